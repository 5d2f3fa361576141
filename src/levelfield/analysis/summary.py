"""Optimizers compared across several studies: ranks, ratios of steps to target, and performance profiles.

Optimizers are matched by name. Each study is taken at its own K. Two kinds of uncertainty are kept apart: the luck of a
tuner with K trials (rank probabilities), and the uncertainty of N trials (rank intervals, ratio intervals).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from levelfield.analysis.best_of import NO_ESTIMATE, Estimate, estimate
from levelfield.analysis.intervals import Contest, Interval, compare_all
from levelfield.analysis.profiles import Bounds, credit, ratio_bounds
from levelfield.analysis.results import Results
from levelfield.errors import UsageError
from levelfield.formatting import pluralize

Pair = tuple[str, str]  # better, worse


@dataclass(frozen=True)
class Place:
    """One optimizer in one study."""

    best: Interval  # the median best of K, with its confidence interval
    rank: Bounds  # by the median best of K; ties share the better rank
    rank_probabilities: Sequence[float]  # of ranks 1, 2, … over repetitions of tuning with K trials
    steps: Interval | None = None  # the median steps of the fastest of K; None: the study has no target
    ratio: Bounds | None = None  # of these steps to the best optimizer's; None: no target, or nobody reaches it

    @property
    def reached(self) -> bool:
        """Whether at least half of the repetitions reach the target."""
        return self.steps is not None and math.isfinite(self.steps.median)


@dataclass(frozen=True, eq=False)
class StudyStanding:
    """One study: its settings and the place of each of its optimizers that has trials."""

    results: Results
    k: int
    places: Mapping[str, Place]
    separated: Sequence[Pair]  # by tests whose correction covers all studies

    @property
    def name(self) -> str:
        return self.results.study.name

    @property
    def counted(self) -> bool:
        """Whether profiles and ratios count it: it has a target, and at least one optimizer reaches it."""
        return any(place.reached for place in self.places.values())

    @property
    def first_evaluation(self) -> int:
        return first_evaluation(self.results)


@dataclass(frozen=True)
class Standing:
    """One optimizer over all studies."""

    optimizer: str
    present: Sequence[str]  # studies that it is ranked in
    missing: Sequence[str]  # the other studies
    mean_rank: Bounds  # over the studies that it is ranked in
    rank_in_repetitions: Estimate  # the mean rank in one repetition: mean, 5th and 95th percentiles
    counted: int  # studies with a target that somebody reaches
    ratios: Mapping[str, Bounds]  # study → ratio, where it is ranked in one of them; infinite: it misses the target

    @property
    def reached(self) -> list[str]:
        """The studies in which it reaches the target in at least half of the repetitions."""
        return [study for study, ratio in self.ratios.items() if math.isfinite(ratio.value)]

    @property
    def missed(self) -> list[str]:
        """The studies in which it misses the target and another optimizer reaches it."""
        return [study for study, ratio in self.ratios.items() if math.isinf(ratio.value)]

    @property
    def geometric_mean(self) -> float:
        """The geometric mean of the ratios over the studies in which it reaches the target; NaN without any."""
        logs = [math.log(self.ratios[study].value) for study in self.reached]
        return math.exp(sum(logs) / len(logs)) if logs else math.nan

    @property
    def worst(self) -> str | None:
        """The study with the largest ratio; None if there is none."""
        return max(self.ratios, key=lambda study: self.ratios[study].value, default=None)

    @property
    def score(self) -> Bounds:
        """The mean of its profile from 1 to 4; a study that it is missing in counts as not reached. NaN: no target."""
        if not self.counted:
            return Bounds(math.nan, math.nan, math.nan)
        # A larger ratio is worth less, so the ends of the intervals change places.
        ratios = self.ratios.values()
        return Bounds(
            sum(credit(ratio.value) for ratio in ratios) / self.counted,
            sum(credit(ratio.high) for ratio in ratios) / self.counted,
            sum(credit(ratio.low) for ratio in ratios) / self.counted,
        )

    def profile(self, tau: float) -> float:
        """Return the share of studies in which its steps to the target are within τ times the best; NaN: no target."""
        if not self.counted:
            return math.nan
        return sum(ratio.value <= tau for ratio in self.ratios.values()) / self.counted


@dataclass(frozen=True)
class Standings:
    """Several studies and their optimizers: the best mean rank first, those that are missing in a study last."""

    studies: Sequence[StudyStanding]
    optimizers: Sequence[Standing]

    @cached_property
    def counted(self) -> list[StudyStanding]:
        """The studies that profiles and ratios count."""
        return [study for study in self.studies if study.counted]


def standings(results: Sequence[Results], k: int | None = None) -> Standings:
    """Compare the optimizers of several studies; ``k`` replaces each study's own K."""
    _check(results, k)
    ks = [study.k(k) for study in results]
    separated = separated_pairs([_contest(study, chosen) for study, chosen in zip(results, ks, strict=True)])
    studies = [
        StudyStanding(study, chosen, _places(study, chosen, pairs), pairs)
        for study, chosen, pairs in zip(results, ks, separated, strict=True)
    ]
    names = dict.fromkeys(name for study in results for name in study.outcomes)
    rows = [_standing(name, studies) for name in names if any(name in study.places for study in studies)]
    return Standings(studies, sorted(rows, key=lambda row: (bool(row.missing), row.mean_rank.value)))


def separated_pairs(studies: Sequence[Contest]) -> list[list[Pair]]:
    """Return the pairs that each study's trials tell apart.

    Holm's correction runs over all pairs of all studies, so the chance that any two equal optimizers are separated is
    at most 5% in total.
    """
    return [[(test.better, test.worse) for test in tests if test.separated] for tests in compare_all(studies)]


def rank_bounds(medians: Mapping[str, float], separated: Sequence[Pair]) -> dict[str, Bounds]:
    """Return ranks by the median, with the ranks that the separated pairs leave possible; lower medians are better.

    An optimizer ranks behind all that are separated as better than it, and ahead of all that are separated as worse.
    """
    bounds = {}
    for name, median in medians.items():
        rank = 1 + sum(other < median for other in medians.values())
        low = 1 + sum(worse == name for _, worse in separated)
        high = len(medians) - sum(better == name for better, _ in separated)
        bounds[name] = Bounds(rank, min(low, rank), max(high, rank))
    return bounds


def mean_in_repetitions(probabilities: Sequence[Sequence[float]]) -> Estimate:
    """Return the distribution of a mean of independent ranks, given each one's probabilities of ranks 1, 2, …"""
    if not probabilities:
        return NO_ESTIMATE
    total = np.ones(1)
    for ranks in probabilities:
        total = np.convolve(total, ranks)
    values = 1 + np.arange(len(total)) / len(probabilities)
    return estimate(values, total)


def first_evaluation(results: Results) -> int:
    """Return the first step at which a trial of the study is evaluated."""
    return min(results.study.eval_interval, results.study.steps)


def _check(results: Sequence[Results], k: int | None) -> None:
    if len(results) < 2:
        raise UsageError(
            f"a summary of {len(results) or 'no'} {'study' if len(results) == 1 else 'studies'}: expected at least two"
        )
    names = [study.study.name for study in results]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{names.count(name)} studies are called {name!r}: expected a different name for each")
    for study in results:
        if not study.comparable(k):
            raise UsageError(
                f"{study.study.name}: no optimizer has {pluralize(study.k(k), 'feasible trial')} yet; train more of "
                f"them, or compare at a smaller K"
            )


def _contest(results: Results, k: int) -> Contest:
    """Return the optimizers that can be ranked, with their values, the lower the better."""
    pools = {name: results.outcome(name).ranked() for name in results.comparable(k)}
    return Contest.of(pools, k, results.study.is_tested)


def _places(results: Results, k: int, separated: Sequence[Pair]) -> dict[str, Place]:
    outcomes = {name: results.outcome(name) for name in results.comparable(k)}
    best = {name: outcome.interval(k) for name, outcome in outcomes.items()}
    signs = {name: outcome.metrics[outcome.select].sign for name, outcome in outcomes.items()}
    ranks = rank_bounds({name: signs[name] * best[name].median for name in outcomes}, separated)
    chances = results.rank_probabilities(k)
    has_target = results.study.target is not None
    pools = {name: outcome.steps for name, outcome in outcomes.items()} if has_target else {}
    ratios = ratio_bounds(pools, k, first_evaluation(results))
    if not results.study.is_tested:  # the trials are not independent, so nothing bounds what others would give
        ratios = {name: Bounds(ratio.value, 1.0, math.inf) for name, ratio in ratios.items()}
    return {
        name: Place(
            best[name],
            ranks[name],
            chances[name][: len(outcomes)],
            outcome.steps_interval(k) if has_target else None,
            ratios.get(name),
        )
        for name, outcome in outcomes.items()
    }


def _standing(name: str, studies: Sequence[StudyStanding]) -> Standing:
    present = [study for study in studies if name in study.places]
    places = [study.places[name] for study in present]
    ranks = [place.rank for place in places]
    return Standing(
        optimizer=name,
        present=[study.name for study in present],
        missing=[study.name for study in studies if name not in study.places],
        mean_rank=Bounds(
            sum(rank.value for rank in ranks) / len(ranks),
            sum(rank.low for rank in ranks) / len(ranks),
            sum(rank.high for rank in ranks) / len(ranks),
        ),
        rank_in_repetitions=mean_in_repetitions([place.rank_probabilities for place in places]),
        counted=sum(study.counted for study in studies),
        ratios={study.name: ratio for study in present if (ratio := study.places[name].ratio)},
    )
