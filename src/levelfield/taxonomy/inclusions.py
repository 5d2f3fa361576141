"""Inclusions between rules. A ⊆ B: B can follow A, and a witness says with which hyperparameters.

``levelfield.taxonomy.witnesses`` describes what a witness is and has the ones that levelfield knows.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from levelfield.errors import SpaceError, UnknownName, UsageError
from levelfield.hyperparameters import Hyperparameter
from levelfield.registry import Registry
from levelfield.rules import Rule, get_rule
from levelfield.space import Space
from levelfield.taxonomy import witnesses as w
from levelfield.taxonomy.witnesses import Function, Witness

TOWARDS = {math.inf: "∞", -math.inf: "−∞", 0.0: "0", 1.0: "1"}
_DECADES = {math.inf: 6, -math.inf: 6, 0.0: 12, 1.0: 6}  # how far a limit goes whose value is not given


def near(towards: float, decades: Any) -> Any:
    """Return a value that many powers of ten on the way to a limit."""
    if math.isinf(towards):
        return math.copysign(1, towards) * 10.0**decades
    return towards - math.copysign(1, towards - 0.5) * 10.0**-decades


@dataclass(frozen=True, eq=False)
class Inclusion:
    """special ⊆ general: exactly, or in the limit of one of the general rule's hyperparameters."""

    special: str
    general: str
    witnesses: tuple[Witness, ...]  # applied in this order; a chain has several
    limit: str | None = None
    towards: float = math.inf  # one of TOWARDS
    lifts: bool = True  # it holds for any learning rate that varies with the step, not only for a constant one
    where: Mapping[str, Any] = field(default_factory=dict)  # values that the special rule's switches must have
    over: Mapping[str, Any] | None = None  # a space to verify it over; by default, all that the special rule allows

    @property
    def exact(self) -> bool:
        return self.limit is None

    @functools.cached_property
    def open(self) -> dict[str, Any]:
        """What the witnesses leave open, with a value for each."""
        defaults = {name: default for witness in self.witnesses for name, default in witness.open.items()}
        return defaults | ({self.limit: self.near_limit(_DECADES[self.towards])} if self.limit else {})

    def near_limit(self, decades: Any) -> Any:
        """Return a value of the limit parameter that many powers of ten on the way."""
        return near(self.towards, decades)

    @property
    def takes(self) -> frozenset[str]:
        """What the inclusion takes from the special rule. A rule's inclusion in itself, which takes all, has none."""
        return self.witnesses[0].takes if self.witnesses else frozenset()

    @property
    def equations(self) -> str:
        """The map in the paper's symbols."""
        return "; then ".join(witness.equations for witness in self.witnesses)

    @property
    def how(self) -> str:
        """Exactly, or in which limit."""
        return "exact" if self.exact else f"{self.limit} → {TOWARDS[self.towards]}"

    @functools.cached_property
    def space(self) -> Space:
        """Where the special rule's hyperparameters are drawn from to verify the inclusion."""
        if self.over is not None:
            return Space.parse(self.over)
        hyperparameters = get_rule(self.special).hyperparameters
        return Space.parse({name: _range(self.special, name, about) for name, about in hyperparameters.items()})

    @property
    def example(self) -> dict[str, Any]:
        """Hyperparameters of the special rule for which the inclusion holds: the middle of its space."""
        return self.space.hyperparameters([0.5] * len(self.space.free)) | dict(self.where)

    def image(self, hyperparameters: Mapping[str, Any], open: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the general rule's hyperparameters: numbers, or functions of the step if they vary with it."""
        values, chosen = dict(hyperparameters), self.open | dict(open or {})
        for witness in self.witnesses:
            values = witness.image(values, chosen, self.lifts)
        return values

    def carried(self, name: str) -> str:
        """Return what the general rule calls a hyperparameter that a witness leaves open."""
        for i, witness in enumerate(self.witnesses):
            if name in witness.open:
                for later in self.witnesses[i + 1 :]:
                    name = later.renames.get(name, name)
                break
        return name

    def __str__(self) -> str:
        return f"{self.special} ⊆ {self.general} ({self.how})"


def _range(rule: str, name: str, hyperparameter: Hyperparameter) -> Any:
    if hyperparameter.low == 0 and hyperparameter.high <= 1:
        return {"uniform": [0.0, 0.95]}
    if hyperparameter.low == 0:
        return {"log": [1e-3, 1.0]}
    raise SpaceError(f"{name} of {rule} has no bounds; set over={{...}} to the space to verify the inclusion over")


_RATE = {"learning_rate": {"log": [1e-3, 1.0]}}
_FRACTION = {"uniform": [0.0, 0.95]}
_OPTAX_SGD: dict[str, Any] = {"where": {"nesterov": False}, "over": {**_RATE, "momentum": _FRACTION}}
_OPTAX_ADAMAX = {**_RATE, "b1": _FRACTION, "b2": _FRACTION, "eps": {"log": [1e-8, 1.0]}}
_OPTAX_ADAM = {**_OPTAX_ADAMAX, "eps_root": {"log": [1e-8, 1.0]}}

_OPTAX_ADAMW: dict[str, Any] = {
    "where": {"nesterov": False},
    "over": {**_OPTAX_ADAM, "weight_decay": {"log": [1e-4, 1e-1]}},
}

_OPTAX_PLAIN_ADAM: dict[str, Any] = {"where": {"nesterov": False}, "over": _OPTAX_ADAM}

_INCLUSIONS = [
    Inclusion("sgd", "momentum", (w.sgd_in_momentum,)),
    Inclusion("sgd", "nesterov", (w.sgd_in_momentum,)),
    # Also by way of momentum, but then optax.rmsprop would need a momentum that varies with the rate, even if it is 0.
    Inclusion("sgd", "rmsprop", (w.sgd_in_rmsprop,)),
    Inclusion("sgd", "rmsprop", (w.sgd_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("momentum", "rmsprop", (w.momentum_in_rmsprop,)),
    Inclusion("momentum", "rmsprop", (w.momentum_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("momentum", "adam", (w.momentum_in_adam,), limit="epsilon"),
    # RMSterov uses its momentum twice in a step, so no value of it makes up for a learning rate that varies. It follows
    # sgd, which has no momentum, at any rate.
    Inclusion("sgd", "rmsterov", (w.sgd_in_rmsprop,)),
    Inclusion("sgd", "rmsterov", (w.sgd_in_rmsprops_limit,), limit="epsilon"),
    Inclusion("nesterov", "rmsterov", (w.momentum_in_rmsprop,), lifts=False),
    Inclusion("nesterov", "rmsterov", (w.momentum_in_rmsprops_limit,), limit="epsilon", lifts=False),
    Inclusion("nesterov", "nadam", (w.momentum_in_adam,), limit="epsilon"),
    Inclusion("momentum", "optax.sgd", (w.momentum_in_optax_sgd,)),
    Inclusion("nesterov", "optax.sgd", (w.nesterov_in_optax_sgd,)),
    Inclusion("rmsprop", "optax.rmsprop", (w.rmsprop_in_optax,)),
    Inclusion("rmsterov", "optax.rmsprop", (w.rmsterov_in_optax,)),
    Inclusion("sgd", "optax.adagrad", (w.sgd_in_optax_adagrad,), limit="initial_accumulator_value"),
    Inclusion("optax.sgd", "optax.adam", (w.optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.amsgrad", (w.optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.adabelief", (w.optax_sgd_in_adam,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.adamax", (w.optax_sgd_in_adamax,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.sgd", "optax.novograd", (w.optax_sgd_in_novograd,), limit="eps", **_OPTAX_SGD),
    Inclusion("optax.adam", "optax.adamw", (w.without_decay,), over=_OPTAX_ADAM),
    Inclusion("optax.nadam", "optax.nadamw", (w.without_decay,), over=_OPTAX_ADAM),
    Inclusion("optax.adamax", "optax.adamaxw", (w.adamax_without_decay,), over=_OPTAX_ADAMAX),
    Inclusion("optax.sign_sgd", "optax.signum", (w.sign_sgd_in_signum,), over=_RATE),
    Inclusion("optax.signum", "optax.lion", (w.signum_in_lion,), over={**_RATE, "beta": _FRACTION}),
    Inclusion("optax.sign_sgd", "optax.adam", (w.sign_sgd_in_adam,), limit="eps", towards=0.0, over=_RATE),
    Inclusion("adam", "soap", (w.adam_in_soap,)),
    Inclusion("adam", "optax.contrib.prodigy", (w.adam_in_prodigy,)),
    Inclusion("optax.adamw", "optax.contrib.ademamix", (w.adamw_in_ademamix,), **_OPTAX_ADAMW),
    Inclusion("optax.adam", "optax.contrib.simplified_ademamix", (w.adam_in_simplified_ademamix,), **_OPTAX_PLAIN_ADAM),
    Inclusion("optax.adam", "optax.optimistic_adam_v2", (w.adam_in_optimistic_adam,), over=_OPTAX_ADAM),
    Inclusion("optax.nadam", "optax.optimistic_adam_v2", (w.nadam_in_optimistic_adam,), over=_OPTAX_ADAM),
    Inclusion(
        "optax.adam",
        "optax.contrib.momo_adam",
        (w.adam_in_momo_adam,),
        limit="lower_bound",
        towards=-math.inf,
        where={"nesterov": False},
        over=_OPTAX_ADAMAX,
    ),
    Inclusion("optax.adam", "optax.adan", (w.adam_in_adan,), limit="b2", towards=1.0, **_OPTAX_PLAIN_ADAM),
    Inclusion("optax.sgd", "optax.radam", (w.sgd_in_radam,), **_OPTAX_SGD),
    Inclusion("sgd", "optax.adadelta", (w.sgd_in_adadelta,), limit="eps"),
    Inclusion("sgd", "optax.contrib.acprop", (w.sgd_in_acprop,), limit="eps"),
    Inclusion("sgd", "optax.noisy_sgd", (w.sgd_in_noisy_sgd,)),
    Inclusion("sgd", "optax.optimistic_gradient_descent", (w.sgd_in_optimistic_gradient_descent,)),
    Inclusion("sgd", "optax.contrib.momo", (w.sgd_in_momo,), limit="lower_bound", towards=-math.inf),
    Inclusion("sgd", "optax.polyak_sgd", (w.sgd_in_polyak_sgd,), limit="f_min", towards=-math.inf),
]

_registered: Registry[Inclusion] = Registry("inclusion")


def register_inclusion(
    special: str,
    general: str,
    witness: Function,
    *,
    limit: str | None = None,
    towards: float = math.inf,
    lifts: bool = True,
    where: Mapping[str, Any] | None = None,
    over: Mapping[str, Any] | None = None,
    varies: Collection[str] | None = None,
    varies_with_rate: Collection[str] | None = None,
    renames: Mapping[str, str] | None = None,
) -> Inclusion:
    """Declare that a rule includes another. ``levelfield.verify`` tests it, and a run does so before it trains.

    ``limit`` names the hyperparameter of the general rule in whose limit it holds, ``towards`` infinity, minus
    infinity, 0, or 1.
    ``lifts=False`` restricts it to a constant learning rate, and ``where`` to values of the special rule's switches.
    ``over`` is the space of the special rule's hyperparameters to verify it over.

    The witness's values that vary with the step are declared: ``varies`` names those that vary at a constant learning
    rate (default: the learning rate if the witness takes ``step``), ``varies_with_rate`` those that vary when the
    special rule's learning rate does (default: the learning rate). ``renames`` maps hyperparameters of the special rule
    that the witness passes on to their names in the general rule, if these differ.
    """
    if towards not in TOWARDS:
        raise UsageError(f"towards = {towards}: expected infinity, minus infinity, 0 or 1")
    declared = Witness(witness, varies, varies_with_rate, dict(renames or {}))
    inclusion = Inclusion(special, general, (declared,), limit, towards, lifts, dict(where or {}), over)
    _check_names(inclusion, declared, get_rule(special), get_rule(general))
    _check_image(inclusion, declared, get_rule(general))
    return _registered.add(_key(inclusion), inclusion)


def _check_names(inclusion: Inclusion, witness: Witness, special: Rule, general: Rule) -> None:
    """Raise if a name is not one of the rules' hyperparameters, or an open one has no value."""
    for name in [*(witness.takes - {"step", "previous"}), *witness.renames, *inclusion.where]:
        if name not in special.hyperparameters:
            raise UnknownName.of(f"hyperparameter of {special.name}", name, special.hyperparameters)
    declared = [*(witness.varies or ()), *(witness.varies_with_rate or ()), *witness.renames.values()]
    for name in [*witness.open, *declared]:
        if name not in general.hyperparameters:
            raise UnknownName.of(f"hyperparameter of {general.name}", name, general.hyperparameters)
    if inclusion.limit is not None and inclusion.limit not in witness.open:
        raise UsageError(f"limit = {inclusion.limit!r}: the witness must leave it open, as a keyword after a *")
    if inclusion.limit and not (about := general.hyperparameters[inclusion.limit]).allows(
        inclusion.open[inclusion.limit]
    ):
        raise UsageError(f"towards = {inclusion.towards}: {inclusion.limit} of {general.name} is in {about.interval}")
    for name, default in witness.open.items():
        if default is inspect.Parameter.empty and name != inclusion.limit:
            raise UsageError(f"the witness leaves {name!r} open without a default; give it one, as in {name}=0.9")


def _check_image(inclusion: Inclusion, witness: Witness, general: Rule) -> None:
    """Raise if the witness does not return hyperparameters of the general rule, or passes on others than declared."""
    example = inclusion.example
    try:
        image = inclusion.image(example)
    except (Exception, SystemExit) as error:  # custom code
        reason = f"{type(error).__name__}: {error}"
        raise UsageError(f"the witness returns no hyperparameters of {general.name} by name ({reason})") from error
    for name in image:
        if name not in general.hyperparameters:
            raise UnknownName.of(f"hyperparameter of {general.name}", name, general.hyperparameters)
    for before, after in witness.renames.items():
        if before in example and image.get(after) != example[before]:
            raise UsageError(f"renames = {{{before!r}: {after!r}}}: the witness does not return {before} as {after}")


def _key(inclusion: Inclusion) -> tuple[Any, ...]:
    names = [getattr(witness.function, "__qualname__", "") for witness in inclusion.witnesses]
    where = tuple(inclusion.where.items())
    return inclusion.special, inclusion.general, inclusion.limit, inclusion.towards, where, tuple(names)


def known_inclusions() -> list[Inclusion]:
    """Return all inclusions between rules that are known one by one; the others follow from them."""
    return [*_INCLUSIONS, *_registered.values()]


def registered_inclusions() -> list[Inclusion]:
    return _registered.values()


def inclusions_between(special: str, general: str) -> list[Inclusion]:
    """Return the ways in which one rule includes another, directly or through others.

    Exact ones come first, and short ones before long ones. A rule includes itself by no witness at all.
    """
    if special == general:
        return [Inclusion(special, general, ())]
    chains = _chains(special, general, frozenset({special}))
    return sorted(chains, key=lambda chain: (not chain.exact, len(chain.witnesses)))


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
    """Return two inclusions in sequence if they fit: at most one limit, and the switches that the second needs."""
    if (first.limit and rest.limit) or first.open.keys() & rest.open.keys():
        return None
    if rest.where:
        between, hyperparameters = first.image(first.example), get_rule(rest.special).hyperparameters
        if any(between.get(name, hyperparameters[name].default) != value for name, value in rest.where.items()):
            return None
    # If more than the learning rate varies under a schedule, the last rule must be able to take functions of the step.
    varying = first.witnesses[0].varying({"learning_rate"})
    takes_it = varying <= {"learning_rate"} or get_rule(rest.general).scheduled
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
