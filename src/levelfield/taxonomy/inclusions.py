"""Inclusions between rules. A ⊆ B: B can follow A, and a witness says with which hyperparameters.

A witness is a function from A's hyperparameters at a step to B's. It takes by name what it needs: any of A's
hyperparameters, ``step`` (counted from 0), and ``previous``, A's hyperparameters one step before. What it takes
after a ``*`` it leaves open: hyperparameters of B that may have any value, or, for the limit, a large enough one.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from levelfield.errors import SpaceError, UnknownName, UsageError
from levelfield.hyperparameters import Hyperparameter
from levelfield.registry import Registry
from levelfield.rules import Rule, get_rule
from levelfield.space import Space

Witness = Callable[..., Mapping[str, Any]]

_LIMITS = {math.inf: 1e6, 0.0: 1e-12}  # towards → how far to go where nobody says


@dataclass(frozen=True, eq=False)
class Inclusion:
    """special ⊆ general: exactly, or in the limit of one of the general rule's hyperparameters."""

    special: str
    general: str
    witnesses: tuple[Witness, ...]  # one after the other: a chain has several
    limit: str | None = None
    towards: float = math.inf  # or 0
    lifts: bool = True  # for any learning rate that varies with the step; otherwise for a constant one only
    where: Mapping[str, Any] = field(default_factory=dict)  # what the special rule's switches must be
    over: Mapping[str, Any] | None = None  # a space to verify it over; by default, all that the special rule allows

    @property
    def exact(self) -> bool:
        return self.limit is None

    @functools.cached_property
    def open(self) -> dict[str, Any]:
        """What the witness leaves open, with a value for each."""
        found = {name: default for witness in self.witnesses for name, default in _taken(witness)[1].items()}
        return found | ({self.limit: _LIMITS[self.towards]} if self.limit else {})

    @property
    def equations(self) -> str:
        """The map in the paper's symbols."""
        return "; then ".join(inspect.getdoc(witness) or "" for witness in self.witnesses)

    @property
    def how(self) -> str:
        """Exactly, or in which limit."""
        return "exact" if self.exact else f"{self.limit} → {'∞' if self.towards else '0'}"

    @functools.cached_property
    def space(self) -> Space:
        """Where the special rule's hyperparameters are drawn from to verify the inclusion."""
        if self.over is not None:
            return Space.parse(self.over)
        return Space.parse(
            {name: _range(self.special, name, about) for name, about in get_rule(self.special).hyperparameters.items()}
        )

    def image(self, hyperparameters: Mapping[str, Any], open: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The general rule's hyperparameters: numbers, or functions of the step where they vary with it."""
        found = dict(hyperparameters)
        for witness in self.witnesses:
            found = _apply(witness, found, self.open | dict(open or {}), self.lifts)
        return found

    def __str__(self) -> str:
        return f"{self.special} ⊆ {self.general} ({self.how})"


def _range(rule: str, name: str, about: Hyperparameter) -> Any:
    if about.low == 0 and about.high == 1:
        return {"uniform": [0.0, 0.95]}
    if about.low == 0:
        return {"log": [1e-3, 1.0]}
    raise SpaceError(f"{name} of {rule} is not bounded: say with over={{...}} where to verify the inclusion")


@functools.cache
def _taken(witness: Witness) -> tuple[frozenset[str], dict[str, Any]]:
    """The names that a witness takes, and those that it leaves open with their defaults."""
    parameters = inspect.signature(witness).parameters.values()
    opened = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
    return frozenset(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY), opened


def taken(way: Inclusion) -> frozenset[str]:
    """What the way takes of the special rule."""
    return _taken(way.witnesses[0])[0]


_PROBES = (0, 1, 2, 3, 10, 100, 1000)


def _apply(witness: Witness, given: Mapping[str, Any], open: Mapping[str, Any], lifts: bool) -> dict[str, Any]:
    taken, opened = _taken(witness)
    chosen = {name: open[name] for name in opened}

    def at(step: Any, given: Mapping[str, Any] = given, chosen: Mapping[str, Any] = chosen) -> Mapping[str, Any]:
        def values(step: Any) -> dict[str, Any]:
            return {name: value(step) if callable(value) else value for name, value in given.items()}

        now = values(step)
        extra = {"step": step, "previous": values((step - 1) * (step > 0)) if lifts else now}
        return witness(**{name: value for name, value in {**now, **extra}.items() if name in taken}, **chosen)

    # What varies is found by trying: plain numbers as they are, anything else by a stand-in.
    tried = {name: _stand_in(value) for name, value in given.items()}
    results = [at(step, tried, {name: _stand_in(value) for name, value in chosen.items()}) for step in _PROBES]
    varying = {name for name in results[0] if any(each[name] != results[0][name] for each in results)}
    start = at(0)
    return {name: _function(at, name) if name in varying else start[name] for name in start}


def _function(at: Callable[[Any], Mapping[str, Any]], name: str) -> Callable[[Any], Any]:
    return lambda step: at(step)[name]


def _stand_in(value: Any) -> Any:
    if callable(value):
        return lambda step: 0.1 + (0.618 * step) % 1
    return value if value is None or isinstance(value, bool | int | float | str) else 0.3


# The paper's inclusions (Appendix A), with the errata corrected


def _sgd_in_momentum(learning_rate: Any) -> Mapping[str, Any]:
    """γ = 0"""
    return {"learning_rate": learning_rate, "momentum": 0.0}


def _sgd_in_rmsprop(learning_rate: Any, *, epsilon: Any = 0.0) -> Mapping[str, Any]:
    """γ = 0, ρ = 1, any ε, α_t = η_t √(1 + ε)"""
    rate = learning_rate * (1 + epsilon) ** 0.5
    return {"learning_rate": rate, "momentum": 0.0, "rho": 1.0, "epsilon": epsilon}


def _sgd_in_rmsprops_limit(learning_rate: Any, *, epsilon: Any, rho: Any = 0.0) -> Mapping[str, Any]:
    """γ = 0, any ρ, α_t = η_t √ε"""
    return {"learning_rate": learning_rate * epsilon**0.5, "momentum": 0.0, "rho": rho, "epsilon": epsilon}


def _momentum_in_rmsprop(learning_rate: Any, momentum: Any, previous: Any, *, epsilon: Any = 0.0) -> Mapping[str, Any]:
    """ρ = 1, any ε, α_t = η_t √(1 + ε), γ_t = γ η_t / η_(t−1)"""
    return {
        "learning_rate": learning_rate * (1 + epsilon) ** 0.5,
        "momentum": momentum * _ratio(learning_rate, previous["learning_rate"]),
        "rho": 1.0,
        "epsilon": epsilon,
    }


def _momentum_in_rmsprops_limit(
    learning_rate: Any, momentum: Any, previous: Any, *, epsilon: Any, rho: Any = 0.0
) -> Mapping[str, Any]:
    """any ρ, α_t = η_t √ε, γ_t = γ η_t / η_(t−1)"""
    return {
        "learning_rate": learning_rate * epsilon**0.5,
        "momentum": momentum * _ratio(learning_rate, previous["learning_rate"]),
        "rho": rho,
        "epsilon": epsilon,
    }


def _ratio(now: Any, before: Any) -> Any:
    return now / (before + (before == 0))  # a rate that has fallen to zero stays there


def _momentum_in_adam(
    step: Any, learning_rate: Any, momentum: Any, *, epsilon: Any, beta2: Any = 0.0
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / ((1 − γ) √(1 − β₂^(t+1)))"""
    correction = (1 - momentum ** (step + 1)) / (1 - beta2 ** (step + 1)) ** 0.5
    return {
        "learning_rate": epsilon * learning_rate * correction / (1 - momentum),
        "beta1": momentum,
        "beta2": beta2,
        "epsilon": epsilon,
    }


# Among optax's optimizers, and from the paper's rules to them


def _momentum_in_optax_sgd(learning_rate: Any, momentum: Any) -> Mapping[str, Any]:
    """the same, nesterov = False"""
    return {"learning_rate": learning_rate, "momentum": momentum, "nesterov": False}


def _nesterov_in_optax_sgd(learning_rate: Any, momentum: Any) -> Mapping[str, Any]:
    """the same, nesterov = True"""
    return {"learning_rate": learning_rate, "momentum": momentum, "nesterov": True}


def _rmsprop_in_optax(learning_rate: Any, momentum: Any, rho: Any, epsilon: Any) -> Mapping[str, Any]:
    """v₀ = 1, ε inside the root"""
    return {
        "learning_rate": learning_rate,
        "momentum": momentum,
        "decay": rho,
        "eps": epsilon,
        "initial_scale": 1.0,
        "eps_in_sqrt": True,
        "centered": False,
        "nesterov": False,
        "bias_correction": False,
    }


def _rmsterov_in_optax(learning_rate: Any, momentum: Any, rho: Any, epsilon: Any) -> Mapping[str, Any]:
    """v₀ = 1, ε inside the root, nesterov = True"""
    return {**_rmsprop_in_optax(learning_rate, momentum, rho, epsilon), "nesterov": True}


def _optax_sgd_in_adam(
    step: Any, learning_rate: Any, momentum: Any = None, *, eps: Any, b2: Any = 0.999
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / (1 − γ)"""
    return {**_optax_sgd_in_adamax(step, learning_rate, momentum, eps=eps, b2=b2), "eps_root": 0.0}


def _optax_sgd_in_adamax(
    step: Any, learning_rate: Any, momentum: Any = None, *, eps: Any, b2: Any = 0.999
) -> Mapping[str, Any]:
    """β₁ = γ, any β₂, α_t = ε η_t (1 − γ^(t+1)) / (1 − γ)"""
    momentum = 0.0 if momentum is None else momentum
    rate = eps * learning_rate * (1 - momentum ** (step + 1)) / (1 - momentum)
    return {"learning_rate": rate, "b1": momentum, "b2": b2, "eps": eps}


def _sgd_in_optax_adagrad(learning_rate: Any, *, initial_accumulator_value: Any, eps: Any = 0.0) -> Mapping[str, Any]:
    """α_t = η_t √(the first sum of squares)"""
    rate = learning_rate * initial_accumulator_value**0.5
    return {"learning_rate": rate, "initial_accumulator_value": initial_accumulator_value, "eps": eps}


def _without_decay(
    learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8, eps_root: Any = 0.0, nesterov: Any = None
) -> Mapping[str, Any]:
    """weight decay 0"""
    same = {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "eps_root": eps_root}
    return {**same, "weight_decay": 0.0} | ({} if nesterov is None else {"nesterov": nesterov})


def _adamax_without_decay(learning_rate: Any, b1: Any = 0.9, b2: Any = 0.999, eps: Any = 1e-8) -> Mapping[str, Any]:
    """weight decay 0"""
    return {"learning_rate": learning_rate, "b1": b1, "b2": b2, "eps": eps, "weight_decay": 0.0}


def _sign_sgd_in_signum(learning_rate: Any) -> Mapping[str, Any]:
    """β = 0"""
    return {"learning_rate": learning_rate, "beta": 0.0}


def _signum_in_lion(learning_rate: Any, beta: Any = 0.9) -> Mapping[str, Any]:
    """β₁ = β₂ = β, weight decay 0"""
    return {"learning_rate": learning_rate, "b1": beta, "b2": beta, "weight_decay": 0.0}


def _sign_sgd_in_adam(learning_rate: Any, *, eps: Any) -> Mapping[str, Any]:
    """β₁ = β₂ = 0"""
    return {"learning_rate": learning_rate, "b1": 0.0, "b2": 0.0, "eps": eps, "eps_root": 0.0}


_RATE = {"learning_rate": {"log": [1e-3, 1.0]}}
_FRACTION = {"uniform": [0.0, 0.95]}
_OPTAX_SGD: dict[str, Any] = {"where": {"nesterov": False}, "over": {**_RATE, "momentum": _FRACTION}}
_OPTAX_ADAMAX = {**_RATE, "b1": _FRACTION, "b2": _FRACTION, "eps": {"log": [1e-8, 1.0]}}
_OPTAX_ADAM = {**_OPTAX_ADAMAX, "eps_root": {"log": [1e-8, 1.0]}}

_INCLUSIONS = [
    Inclusion("sgd", "momentum", (_sgd_in_momentum,)),
    Inclusion("sgd", "nesterov", (_sgd_in_momentum,)),
    # By way of momentum too, but then optax.rmsprop would need a momentum that varies with the rate, be it 0.
    Inclusion("sgd", "rmsprop", (_sgd_in_rmsprop,)),
    Inclusion("sgd", "rmsprop", (_sgd_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("momentum", "rmsprop", (_momentum_in_rmsprop,)),
    Inclusion("momentum", "rmsprop", (_momentum_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("momentum", "adam", (_momentum_in_adam,), limit="epsilon"),
    # RMSterov's step uses its momentum twice, so that no momentum of its own makes up for a rate that varies;
    # sgd, which has none, it follows at any rate.
    Inclusion("sgd", "rmsterov", (_sgd_in_rmsprop,)),
    Inclusion("sgd", "rmsterov", (_sgd_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("nesterov", "rmsterov", (_momentum_in_rmsprop,), lifts=False),
    Inclusion("nesterov", "rmsterov", (_momentum_in_rmsprops_limit,), limit="epsilon", lifts=False),
    Inclusion("nesterov", "nadam", (_momentum_in_adam,), limit="epsilon"),
    Inclusion("momentum", "optax.sgd", (_momentum_in_optax_sgd,)),
    Inclusion("nesterov", "optax.sgd", (_nesterov_in_optax_sgd,)),
    Inclusion("rmsprop", "optax.rmsprop", (_rmsprop_in_optax,)),
    Inclusion("rmsterov", "optax.rmsprop", (_rmsterov_in_optax,)),
    Inclusion("sgd", "optax.adagrad", (_sgd_in_optax_adagrad,), limit="initial_accumulator_value"),
    Inclusion("optax.sgd", "optax.adam", (_optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.amsgrad", (_optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.adabelief", (_optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.adamax", (_optax_sgd_in_adamax,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.adam", "optax.adamw", (_without_decay,), over=_OPTAX_ADAM),
    Inclusion("optax.nadam", "optax.nadamw", (_without_decay,), over=_OPTAX_ADAM),
    Inclusion("optax.adamax", "optax.adamaxw", (_adamax_without_decay,), over=_OPTAX_ADAMAX),
    Inclusion("optax.sign_sgd", "optax.signum", (_sign_sgd_in_signum,), over=_RATE),
    Inclusion("optax.signum", "optax.lion", (_signum_in_lion,), over={**_RATE, "beta": _FRACTION}),
    Inclusion("optax.sign_sgd", "optax.adam", (_sign_sgd_in_adam,), limit="eps", towards=0.0, over=_RATE),
]


_registered: Registry[Inclusion] = Registry("inclusion")


def register_inclusion(
    special: str,
    general: str,
    witness: Witness,
    *,
    limit: str | None = None,
    towards: float = math.inf,
    lifts: bool = True,
    where: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
) -> Inclusion:
    """Say that a rule includes another; ``levelfield.verify`` puts it to the test, as a run does before it trains.

    ``limit`` names the hyperparameter of the general rule in whose limit (``towards`` infinity or 0) it holds.
    """
    if towards not in _LIMITS:
        raise UsageError(f"towards = {towards}: a limit goes to infinity or to 0")
    rules = get_rule(special), get_rule(general)
    found = Inclusion(special, general, (witness,), limit, towards, lifts, dict(where or {}), over)
    taken, opened = _taken(witness)
    for name in taken - {"step", "previous"}:
        if name not in rules[0].hyperparameters:
            raise UnknownName.of(f"hyperparameter of {special}", name, rules[0].hyperparameters)
    for name in opened:
        if name not in rules[1].hyperparameters:
            raise UnknownName.of(f"hyperparameter of {general}", name, rules[1].hyperparameters)
    if limit is not None and limit not in opened:
        raise UsageError(f"limit = {limit!r}: the witness must leave it open, as a keyword after a *")
    for name, default in opened.items():
        if default is inspect.Parameter.empty and name != limit:
            raise UsageError(f"the witness leaves {name!r} open without a default: give it one, as in {name}=0.9")
    for name in found.where:
        if name not in rules[0].hyperparameters:
            raise UnknownName.of(f"hyperparameter of {special}", name, rules[0].hyperparameters)
    _check_image(found, rules[1])
    return _registered.add(_about(found), found)


def _check_image(way: Inclusion, general: Rule) -> None:
    """Refuse a witness that gives no hyperparameters of the general rule."""
    middle = way.space.hyperparameters([0.5] * len(way.space.free)) | dict(way.where)
    try:
        image = way.image(middle, way.open)
    except Exception as error:  # anybody's code
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the witness gives no hyperparameters of {way.general} by name ({reason})") from error
    for name in image:
        if name not in general.hyperparameters:
            raise UnknownName.of(f"hyperparameter of {way.general}", name, general.hyperparameters)


def _about(way: Inclusion) -> tuple[Any, ...]:
    names = [getattr(witness, "__qualname__", "") for witness in way.witnesses]
    return way.special, way.general, way.limit, way.towards, tuple(way.where.items()), tuple(names)


def known_inclusions() -> list[Inclusion]:
    """All inclusions between rules that are known one by one; the others follow from them."""
    return [*_INCLUSIONS, *_registered.values()]


def registered_inclusions() -> list[Inclusion]:
    return _registered.values()


def inclusions_between(special: str, general: str) -> list[Inclusion]:
    """The ways in which one rule includes another, directly or through others: exact ones first, short ones first.

    A rule includes itself, by the witness that changes nothing.
    """
    if special == general:
        return [Inclusion(special, general, ())]
    found = _chains(special, general, frozenset({special}))
    return sorted(found, key=lambda each: (not each.exact, len(each.witnesses)))


def _chains(special: str, general: str, seen: frozenset[str]) -> Iterator[Inclusion]:
    for first in known_inclusions():
        if first.special != special or first.general in seen:
            continue
        if first.general == general:
            yield first
        else:
            for rest in _chains(first.general, general, seen | {first.general}):
                if chain := _chain(first, rest):
                    yield chain


def _chain(first: Inclusion, rest: Inclusion) -> Inclusion | None:
    """The two, one after the other, if they fit: at most one limit, and the switches as the second needs them."""
    if (first.limit and rest.limit) or first.open.keys() & rest.open.keys():
        return None
    between = first.image({"learning_rate": lambda step: 1.0} | _example(first))
    defaults = get_rule(rest.special).hyperparameters if rest.where else {}
    if any(between.get(name, defaults[name].default) != value for name, value in rest.where.items()):
        return None
    # Where a momentum that varies with the step comes out, the next rule must be able to take it.
    takes_it = get_rule(rest.general).scheduled or not any(
        callable(value) for name, value in between.items() if name != "learning_rate"
    )
    return Inclusion(
        first.special,
        rest.general,
        first.witnesses + rest.witnesses,
        first.limit or rest.limit,
        first.towards if first.limit else rest.towards,
        first.lifts and rest.lifts and takes_it,
        first.where,
        first.over,
    )


def _example(inclusion: Inclusion) -> dict[str, Any]:
    middle = inclusion.space.hyperparameters([0.5] * len(inclusion.space.free))
    return {name: value for name, value in middle.items() if name != "learning_rate"} | dict(inclusion.where)


def simulate(special: str, hyperparameters: Mapping[str, Any], by: str, **open: Any) -> dict[str, Any]:
    """The hyperparameters with which the rule ``by`` follows the special rule at the given ones.

    What the inclusion leaves open, such as ``epsilon``, may be given. A value that must vary with the step, as
    adam's learning rate must to undo its bias correction, is a function of the step, counted from 0.

    >>> simulate("sgd", {"learning_rate": 0.1}, by="momentum")
    {'learning_rate': 0.1, 'momentum': 0.0}
    >>> adam = simulate("momentum", {"learning_rate": 0.1, "momentum": 0.5}, by="adam", epsilon=1e6)
    >>> adam["beta1"], adam["epsilon"], adam["learning_rate"](0), adam["learning_rate"](1)
    (0.5, 1000000.0, 100000.0, 150000.0)
    """
    given = {name: _plain(value) for name, value in hyperparameters.items()}
    open = {name: _plain(value) for name, value in open.items()}
    get_rule(special).check_names(given)
    _check_values(get_rule(special), given)
    get_rule(by)
    way = _way(special, by, given, open)
    _check_values(get_rule(by), open)
    carried = taken(way) if way.witnesses else given.keys()
    for name, value in given.items():
        if name not in carried and name not in way.where and value is not None:
            raise UsageError(f"{special}'s {name} has no counterpart in {by}: leave it out")
        if callable(value) and name != "learning_rate":
            raise UsageError(f"{name} is a function: {by} follows {special} with a constant one only")
    rate = given.get("learning_rate")
    if callable(rate) and not way.lifts:
        raise UsageError(f"learning_rate is a function: {by} follows {special} at a constant one only")
    if callable(rate) and rate(0) == 0 and "previous" in carried:
        raise UsageError(f"learning_rate is 0 at the first step, whose gradient {by} would forget: start above 0")
    try:
        return way.image(given, open)
    except ZeroDivisionError:
        shown = {name: value for name, value in (given | open).items() if not callable(value)}
        raise UsageError(f"{by} cannot follow {special} at {shown}: its bias correction has no value there") from None


def _way(special: str, by: str, given: Mapping[str, Any], open: Mapping[str, Any]) -> Inclusion:
    """The first way that has these switches and leaves these values open."""
    ways = inclusions_between(special, by)
    if not ways:
        known = sorted(each for each in _rules() if each != special and inclusions_between(special, each))
        raise UsageError(
            f"{by} is not known to include {special}; "
            + (f"these are: {', '.join(known)}" if known else "nothing is (register_inclusion adds what you know)")
        )
    switched = [way for way in ways if all(given.get(name, value) == value for name, value in way.where.items())]
    if not switched:
        needed = ", ".join(f"{name} = {value}" for name, value in ways[0].where.items())
        raise UsageError(f"{by} includes {special} only with {needed}")
    allowed = sorted({name for way in switched for name in way.open})
    for name in sorted(open):
        if name not in allowed and name in get_rule(by).hyperparameters:
            raise UsageError(
                f"{name} follows from {special}'s hyperparameters; open: {', '.join(allowed) or 'nothing'}"
            )
        if name not in allowed:
            raise UnknownName.of(f"hyperparameter of {by}", name, allowed)
    for way in switched:
        if open.keys() <= way.open.keys():
            return way
    raise UsageError(f"{', '.join(sorted(open))} cannot all be chosen at once where {by} follows {special}")


def _rules() -> set[str]:
    return {name for each in known_inclusions() for name in (each.special, each.general)}


def _plain(value: Any) -> Any:
    """A number of Python's: numpy's divide by zero without a word."""
    return value.item() if hasattr(value, "item") and not callable(value) else value


def _check_values(rule: Rule, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        about = rule.hyperparameters[name]
        if callable(value) or value is None or isinstance(value, bool):
            continue
        if not isinstance(value, int | float):
            raise SpaceError(f"{name} = {value!r} must be a number")
        if not about.allows(value):
            raise SpaceError(f"{name} = {value:g} lies outside {about.interval}")
