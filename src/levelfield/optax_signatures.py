"""The hyperparameters of optax's optimizers, read from optax's source.

Importing optax loads JAX, which takes seconds; parsing its files does not. If the source is not laid out as expected,
optax is imported and its functions are inspected instead, with the same result.

Names are those within optax, such as ``adamw`` or ``contrib.muon``. An argument that is a tuple, such as
``betas=(0.9, 0.999)``, becomes one hyperparameter for each member: ``betas_1`` and ``betas_2``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import inspect
import math
import operator
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from levelfield.hyperparameters import Hyperparameter, Kind

_SOURCES = {"": "_src/alias.py", "contrib.": "contrib/_*.py"}  # where optax defines its optimizers
_NUMBERS = {"float", "ArrayLike", "Numeric", "Scalar", "ScalarOrSchedule"}  # annotations that admit a number
# Annotated as numbers, but not hyperparameters: a key of random numbers, and descriptions of tensors.
_OBJECTS = {"key", "weight_dimension_numbers", "muon_weight_dimension_numbers"}
_RATE, _SCALING = "learning_rate", "scaling"  # polyak_sgd calls the factor that can follow a schedule its scaling
_NO_LITERAL = object()  # a default that a study file could not hold, such as a dtype or a function


class Parameter(NamedTuple):
    """A parameter of an optimizer: the types that its annotation admits, and its default."""

    types: frozenset[str]
    required: bool
    default: Any


def optimizer_hyperparameters(name: str) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters of optax's optimizer, or None if optax has no such optimizer."""
    return hyperparameters_from_source(name) or hyperparameters_from_import(name)


def hyperparameters_from_source(name: str) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters by parsing optax's source, or None if it has no such optimizer."""
    return _hyperparameters(_signatures().get(name, {}))


def hyperparameters_from_import(name: str) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters by importing optax, or None if it has no such optimizer."""
    try:
        return _hyperparameters(_inspected(optimizer_function(name)))
    except AttributeError:
        return None


def optimizer_function(name: str) -> Any:
    """Return optax's function by its name within optax. This imports optax."""
    return operator.attrgetter(name)(importlib.import_module("optax"))


def function_hyperparameters(function: Any) -> dict[str, Hyperparameter] | None:
    """Return the hyperparameters of a function like optax's optimizers; None if it takes no learning rate.

    A parameter with neither an annotation nor a default is a number.
    """
    parameters = _inspected(function)
    number = frozenset({"float"})
    return _hyperparameters(
        {
            name: parameter._replace(types=number) if parameter.required and not parameter.types else parameter
            for name, parameter in parameters.items()
        }
    )


def names_from_source() -> list[str]:
    """Return the names of the optimizers in optax's source that take a learning rate."""
    return [name for name in _signatures() if not _is_part(name) and hyperparameters_from_source(name)]


def known_optimizers() -> list[str]:
    """Return the names of optax's public optimizers that take a learning rate. This imports optax."""
    optax = importlib.import_module("optax")
    public = [*dir(optax), *(f"contrib.{name}" for name in dir(optax.contrib))]
    return [name for name in public if not _is_part(name) and hyperparameters_from_import(name)]


def _is_part(name: str) -> bool:
    return name.removeprefix("contrib.").startswith(("_", "scale_by"))


def _hyperparameters(parameters: Mapping[str, Parameter]) -> dict[str, Hyperparameter] | None:
    if _RATE not in parameters:
        parameters = {_RATE if name == _SCALING else name: parameter for name, parameter in parameters.items()}
    if _RATE not in parameters:
        return None
    return {name: _hyperparameter(name, parameter) for name, parameter in _members(parameters)}


def _members(parameters: Mapping[str, Parameter]) -> Iterator[tuple[str, Parameter]]:
    """Yield the parameters, one for each member of a tuple."""
    for name, parameter in parameters.items():
        if isinstance(parameter.default, tuple):
            for i, member in enumerate(parameter.default, start=1):
                yield f"{name}_{i}", Parameter(frozenset(), required=False, default=member)
        else:
            yield name, parameter


def arguments(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of optax's function for values of hyperparameters. This imports optax."""
    parameters, given = _inspected(optimizer_function(name)), dict(values)
    if _RATE in given and _RATE not in parameters:
        given[_SCALING] = given.pop(_RATE)
    for tuple_name, parameter in parameters.items():
        if isinstance(parameter.default, tuple):
            members = [given.pop(f"{tuple_name}_{i}", at) for i, at in enumerate(parameter.default, start=1)]
            given |= {tuple_name: tuple(members)}
    return given


def _hyperparameter(name: str, parameter: Parameter) -> Hyperparameter:
    kind, default = _kind(name, parameter), parameter.default
    return Hyperparameter(
        low=0.0 if name == _RATE else -math.inf,
        required=parameter.required or name == _RATE,
        traced=kind == "number",  # switches and whole numbers control Python code in optax
        kind=kind,
        default=None if default is _NO_LITERAL else default,
    )


def _kind(name: str, parameter: Parameter) -> Kind:
    annotated, default = parameter.types, parameter.default
    if "dtype" in name:  # optax takes its name, such as "bfloat16"
        return "text"
    if default is _NO_LITERAL or name in _OBJECTS:
        return "object"
    if isinstance(default, bool) or annotated == {"bool"}:
        return "switch"
    if isinstance(default, int) and ("int" in annotated or "float" not in annotated):  # ns_steps of muon counts
        return "integer"
    if isinstance(default, float) or annotated & _NUMBERS:
        return "number"
    if "int" in annotated:
        return "integer"
    return "text" if isinstance(default, str) or "str" in annotated else "object"


# From the source


@functools.cache
def _signatures() -> dict[str, dict[str, Parameter]]:
    """Return the parameters of the functions in optax's source, and of the partial applications of these."""
    spec = importlib.util.find_spec("optax")
    if spec is None or spec.origin is None:
        return {}
    folder, signatures = Path(spec.origin).parent, dict[str, dict[str, Parameter]]()
    for prefix, pattern in _SOURCES.items():
        for file in folder.glob(pattern):
            try:
                tree = ast.parse(file.read_text("utf-8"))
            except (OSError, SyntaxError, UnicodeDecodeError):
                continue
            signatures |= {f"{prefix}{name}": found for name, found in _functions(tree).items()}
    return signatures


def _functions(tree: ast.Module) -> dict[str, dict[str, Parameter]]:
    """Return the parameters of the functions in a module."""
    signatures: dict[str, dict[str, Parameter]] = {}
    constants: dict[str, Any] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name, args=ast.arguments(posonlyargs=[], vararg=None, kwarg=None) as arguments):
                signatures[name] = _parsed(arguments, constants)
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(func=ast.Attribute(attr="partial"), args=[ast.Name(id=base)], keywords=keywords),
            ) if base in signatures:
                bound = {keyword.arg: _literal(keyword.value) for keyword in keywords if keyword.arg}
                signatures[name] = {
                    parameter: about._replace(default=bound[parameter], required=False) if parameter in bound else about
                    for parameter, about in signatures[base].items()
                }
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                constants[name] = _literal(value)
    return signatures


def _parsed(arguments: ast.arguments, constants: Mapping[str, Any]) -> dict[str, Parameter]:
    required = [None] * (len(arguments.args) - len(arguments.defaults))
    defaults = [*required, *arguments.defaults, *arguments.kw_defaults]
    return {
        argument.arg: Parameter(
            frozenset(_type_names(argument.annotation)),
            required=default is None,
            default=None if default is None else _literal(default, constants),
        )
        for argument, default in zip([*arguments.args, *arguments.kwonlyargs], defaults, strict=True)
    }


def _literal(node: ast.expr, constants: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an expression that is a literal, or the name of a constant that is."""
    if isinstance(node, ast.Name) and constants and node.id in constants:
        return constants[node.id]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _NO_LITERAL


def _type_names(annotation: ast.expr | None) -> set[str]:
    """Return the names of the types in an annotation, without None; unions are taken apart."""
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return {name}
        case ast.BinOp(left=left, right=right):
            return _type_names(left) | _type_names(right)
        case ast.Subscript(value=ast.Name(id="Optional" | "Union"), slice=ast.Tuple(elts=members)):
            return set().union(*map(_type_names, members))
        case ast.Subscript(value=ast.Name(id="Optional" | "Union"), slice=member):
            return _type_names(member)
    return set()


# From the imported functions


def _inspected(function: Any) -> dict[str, Parameter]:
    if not callable(function) or inspect.isclass(function):
        return {}
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a type alias, for example
        return {}
    return {
        name: Parameter(
            frozenset(_names(parameter.annotation)),
            required=parameter.default is parameter.empty,
            default=None if parameter.default is parameter.empty else _plain(parameter.default),
        )
        for name, parameter in parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }


def _plain(default: Any) -> Any:
    if isinstance(default, tuple) and not hasattr(default, "_fields"):  # transformations are named tuples
        return default
    return default if default is None or isinstance(default, bool | int | float | str) else _NO_LITERAL


def _names(annotation: Any) -> set[str]:
    if isinstance(annotation, str):
        return _type_names(ast.parse(annotation, mode="eval").body)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return set().union(*map(_names, typing.get_args(annotation)))
    if annotation in (inspect.Parameter.empty, type(None)):
        return set()
    return {getattr(annotation, "__name__", str(annotation))}
