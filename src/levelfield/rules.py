"""The rules by name: which hyperparameters each takes, and where its update is built.

This module loads no JAX: the update rules themselves live in ``levelfield.training.rules`` and are
imported when a rule is built.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from levelfield.errors import SpaceError, UnknownName
from levelfield.registry import Registry
from levelfield.space import Axis


@dataclass(frozen=True)
class Hyperparameter:
    """What a hyperparameter may be."""

    low: float = -math.inf
    high: float = math.inf
    required: bool = True
    open: bool = False  # whether low itself is excluded
    traced: bool = True  # may differ from trial to trial; otherwise it is part of the program
    numeric: bool = True
    default: Any = None  # what it is where nothing is said, if it need not be
    usual: float | None = None  # what those use who do not tune it

    def allows(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.open and value == self.low)

    @property
    def interval(self) -> str:
        return f"{'(' if self.open else '['}{self.low:g}, {self.high:g}]"


POSITIVE = Hyperparameter(low=0.0, open=True)
NOT_NEGATIVE = Hyperparameter(low=0.0)
FRACTION = Hyperparameter(low=0.0, high=1.0)


@dataclass(frozen=True, eq=False)
class Rule:
    """An update rule: its hyperparameters, and the function that builds its optax transformation."""

    name: str
    hyperparameters: Mapping[str, Hyperparameter]
    build: Callable[..., Any] | str  # a callable, or "module:function", imported when needed
    scheduled: bool = False  # whether more than the learning rate may be a function of the step
    version: int = 1  # raise it when a change alters what trials compute: old trials then stay apart

    @property
    def built_in(self) -> bool:
        return self.name in _BUILT_IN

    def __call__(self, **hyperparameters: Any) -> Any:
        """The optax.GradientTransformation of this rule."""
        self.check_names(hyperparameters)
        build = self.build
        if isinstance(build, str):
            module, _, function = build.partition(":")
            build = getattr(importlib.import_module(module), function)
        return build(**hyperparameters)

    def check_names(self, given: Mapping[str, Any]) -> None:
        for name in given:
            if name not in self.hyperparameters:
                raise UnknownName.of(f"hyperparameter of {self.name}", name, self.hyperparameters)
        for name, about in self.hyperparameters.items():
            if about.required and name not in given:
                raise SpaceError(f"{self.name} needs {name}: give it a range or a value")


CLOSEST_TO_1 = 1e-7  # what lies much closer is 1 in float32, in which trials train


def check_domain(axis: Axis, about: Hyperparameter) -> None:
    """Refuse values that the hyperparameter cannot take."""
    if axis.one_minus:
        for end in axis.dimension.ends:
            if float(end) < CLOSEST_TO_1 * (1 - 1e-9):
                raise SpaceError(f"{axis.key} reaches {end:g}: float32 tells nothing from 1 below {CLOSEST_TO_1:g}")
    if axis.divisor and (about.low not in (0.0, -math.inf) or about.high != math.inf):
        raise SpaceError(f"{axis.key}: a ratio cannot hold {axis.name} in {about.interval}; search {axis.name} itself")
    # Its divisor is positive: a ratio has its hyperparameter's sign.
    for end in axis.dimension.ends if axis.divisor else axis.extremes:
        if isinstance(end, bool | str):
            if axis.dimension.free:
                raise SpaceError(f"{axis.key}: {end!r} cannot be searched over: make one optimizer for each value")
            if about.numeric:
                raise SpaceError(f"{axis.key} = {end!r} must be a number")
        elif not about.allows(end):
            raise SpaceError(f"{axis.key} reaches {end:g}, outside {about.interval}")
    if axis.dimension.free and not about.traced:
        raise SpaceError(f"{axis.key} cannot be searched over: it shapes the program; fix it to a value")


def _paper(name: str, **hyperparameters: Hyperparameter) -> Rule:
    return Rule(
        name, {"learning_rate": POSITIVE, **hyperparameters}, f"levelfield.training.rules:{name}", scheduled=True
    )


def _usually(value: float) -> Hyperparameter:
    """TensorFlow's default."""
    return replace(FRACTION, usual=value)


_RULES = {
    rule.name: rule
    for rule in (
        _paper("sgd"),
        _paper("momentum", momentum=_usually(0.9)),
        _paper("nesterov", momentum=_usually(0.9)),
        _paper("rmsprop", momentum=_usually(0.0), rho=_usually(0.9), epsilon=replace(NOT_NEGATIVE, usual=1e-10)),
        _paper("rmsterov", momentum=_usually(0.9), rho=_usually(0.9), epsilon=replace(NOT_NEGATIVE, usual=1e-10)),
        _paper("adam", beta1=_usually(0.9), beta2=_usually(0.999), epsilon=replace(NOT_NEGATIVE, usual=1e-8)),
        _paper("nadam", beta1=_usually(0.9), beta2=_usually(0.999), epsilon=replace(NOT_NEGATIVE, usual=1e-8)),
    )
}


_BUILT_IN = frozenset(_RULES)
_registered: Registry[Rule] = Registry("rule", lambda name: name in _BUILT_IN or name.startswith("optax."))


def check_hyperparameters(whose: str, hyperparameters: Any) -> None:
    """Refuse what does not say what each hyperparameter may be."""
    if not isinstance(hyperparameters, Mapping):
        raise SpaceError(f"{whose}: hyperparameters = {hyperparameters!r} is no mapping from names to Hyperparameter")
    for name, about in hyperparameters.items():
        if not isinstance(about, Hyperparameter):
            raise SpaceError(f"{whose}: {name} = {about!r} is no Hyperparameter(low=…, high=…)")


def register_rule(
    name: str, build: Callable[..., Any], hyperparameters: Mapping[str, Hyperparameter], version: int = 1
) -> Rule:
    """Make a rule usable in studies. ``build(**hyperparameters)`` returns an optax transformation.

    Under a schedule its learning_rate is a function of the step, as optax's optimizers take it.
    One registered before under this name is replaced. Its trials are not: raise the version when a change alters what
    they compute.
    """
    check_hyperparameters(f"rule {name!r}", hyperparameters)
    return _registered.add(name, Rule(name, dict(hyperparameters), build, version=version))


def get_rule(name: str) -> Rule:
    """A rule by name: the paper's, a registered one, or any optax optimizer as ``optax.<name>``."""
    if name.startswith("optax."):
        return _optax_rule(name)
    if name in _registered:
        return _registered[name]
    if name not in _RULES:
        raise UnknownName.of("rule", name, [*_RULES, *_registered, "optax.adamw"])
    return _RULES[name]


def optimizer(name: str, **hyperparameters: Any) -> Any:
    """A rule as an optax.GradientTransformation, by the paper's names.

    Each hyperparameter (learning_rate, momentum, rho, beta1, beta2, epsilon, as the rule has them) is a number or
    a function from the step to a number. ``optax.<name>`` gives optax's own optimizer, by optax's names.

    >>> optimizer("adma", learning_rate=1e-3)
    Traceback (most recent call last):
    levelfield.errors.UnknownName: no rule is called 'adma'; did you mean 'adam'?
    """
    rule = get_rule(name)
    rule.check_names(hyperparameters)
    for key, value in hyperparameters.items():
        about = rule.hyperparameters[key]
        if isinstance(value, str) and about.numeric:
            raise SpaceError(f"{key} = {value!r} must be a number, or a function from the step to one")
        if isinstance(value, int | float) and not about.allows(value):
            raise SpaceError(f"{key} = {value:g} is outside {about.interval}")
    return rule(**hyperparameters)


@functools.cache
def _optax_rule(name: str) -> Rule:
    optax = importlib.import_module("optax")
    parameters = _parameters(getattr(optax, name.removeprefix("optax."), None))
    if "learning_rate" not in parameters:
        public = [each for each in dir(optax) if not each.startswith(("_", "scale_by"))]
        known = [f"optax.{each}" for each in public if "learning_rate" in _parameters(getattr(optax, each))]
        raise UnknownName.of("optax optimizer", name, known)
    hyperparameters = {
        parameter.name: Hyperparameter(
            required=parameter.default is parameter.empty or parameter.name == "learning_rate",
            # Switches and whole numbers steer Python code in optax; everything else is arithmetic.
            traced=not isinstance(parameter.default, bool | int | str),
            numeric=isinstance(parameter.default, float) or parameter.name == "learning_rate",
            default=None if parameter.default is parameter.empty else parameter.default,
        )
        for parameter in parameters.values()
    }
    return Rule(name, hyperparameters, getattr(optax, name.removeprefix("optax.")))


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    if not callable(function) or inspect.isclass(function):
        return {}
    try:
        return inspect.signature(function).parameters
    except ValueError:  # a type alias, say
        return {}
