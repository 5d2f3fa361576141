"""One rule's hyperparameters translated to a rule that includes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from levelfield.errors import SpaceError, UnknownName, UsageError
from levelfield.rules import Rule, get_rule
from levelfield.taxonomy.inclusions import Inclusion, inclusions_between, known_inclusions


def simulate(special: str, hyperparameters: Mapping[str, Any], by: str, **open: Any) -> dict[str, Any]:
    """Return the hyperparameters with which the rule ``by`` follows the special rule at the given ones.

    Values for what the inclusion leaves open, such as ``epsilon``, can be given. A value that varies with the step,
    such as adam's learning rate, which undoes its bias correction, is a function of the step, counted from 0.

    >>> simulate("sgd", {"learning_rate": 0.1}, by="momentum")
    {'learning_rate': 0.1, 'momentum': 0.0}
    >>> adam = simulate("momentum", {"learning_rate": 0.1, "momentum": 0.5}, by="adam", epsilon=1e6)
    >>> adam["beta1"], adam["epsilon"], adam["learning_rate"](0), adam["learning_rate"](1)
    (0.5, 1000000.0, 100000.0, 150000.0)
    """
    values = {name: _plain(value) for name, value in hyperparameters.items()}
    chosen = {name: _plain(value) for name, value in open.items()}
    special_rule, general_rule = get_rule(special), get_rule(by)
    special_rule.check_names(values)
    _check_values(special_rule, values)
    inclusion = _select(special_rule, general_rule, values, chosen)
    _check_values(general_rule, chosen)
    _check_carried(inclusion, values)
    try:
        return inclusion.image(values, chosen)
    except ZeroDivisionError:
        numbers = {name: value for name, value in (values | chosen).items() if not callable(value)}
        raise UsageError(
            f"{by} cannot imitate {special} at {numbers}: its bias correction is undefined there"
        ) from None


def _select(special: Rule, general: Rule, values: Mapping[str, Any], chosen: Mapping[str, Any]) -> Inclusion:
    """Return the first inclusion that allows these switches and leaves the chosen values open."""
    inclusions = inclusions_between(special.name, general.name)
    if not inclusions:
        rules = {name for inclusion in known_inclusions() for name in (inclusion.special, inclusion.general)}
        known = sorted(name for name in rules - {special.name} if inclusions_between(special.name, name))
        raise UsageError(
            f"{general.name} is not known to include {special.name}; rules that do: "
            f"{', '.join(known) or 'none (register_inclusion adds one)'}"
        )
    allowed = [
        inclusion
        for inclusion in inclusions
        if all(values.get(name, value) == value for name, value in inclusion.where.items())
    ]
    if not allowed:
        switches = ", ".join(f"{name} = {value}" for name, value in inclusions[0].where.items())
        raise UsageError(f"{general.name} includes {special.name} only with {switches}")
    open_names = sorted({name for inclusion in allowed for name in inclusion.open})
    for name in sorted(chosen):
        if name not in open_names and name in general.hyperparameters:
            raise UsageError(
                f"{name} follows from {special.name}'s hyperparameters; open: {', '.join(open_names) or 'nothing'}"
            )
        if name not in open_names:
            raise UnknownName.of(f"hyperparameter of {general.name}", name, open_names)
    for inclusion in allowed:
        if chosen.keys() <= inclusion.open.keys():
            return inclusion
    raise UsageError(f"{', '.join(sorted(chosen))} cannot be set together when {general.name} imitates {special.name}")


def _check_carried(inclusion: Inclusion, values: Mapping[str, Any]) -> None:
    """Raise if the inclusion does not carry over a value, or cannot take a function of the step for it."""
    special, general = inclusion.special, inclusion.general
    carried = inclusion.takes if inclusion.witnesses else values.keys()
    for name, value in values.items():
        if name not in carried and name not in inclusion.where and value is not None:
            raise UsageError(f"{special}'s {name} has no counterpart in {general}; leave it out")
        if callable(value) and name != "learning_rate":
            raise UsageError(f"{name} is a function: {general} can imitate {special} only with a constant {name}")
    rate = values.get("learning_rate")
    if callable(rate) and not inclusion.lifts:
        raise UsageError(f"learning_rate is a function: {general} can imitate {special} only at a constant one")
    if callable(rate) and rate(0) == 0 and "previous" in carried:
        raise UsageError(f"learning_rate is 0 at the first step, whose gradient {general} would forget; start above 0")


def _plain(value: Any) -> Any:
    """Return a Python number for a numpy one, which would divide by zero without an error."""
    return value.item() if hasattr(value, "item") and not callable(value) else value


def _check_values(rule: Rule, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        hyperparameter = rule.hyperparameters[name]
        if callable(value) or value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float):
            raise SpaceError(f"{name} = {value!r}: expected a number")
        if not hyperparameter.allows(value):
            raise SpaceError(f"{name} = {value:g} is outside {hyperparameter.interval}")
