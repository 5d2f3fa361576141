"""Refinement in rounds: run trials outside the present ranges, and change ranges only if trials show it pays.

Each round of an optimizer has three steps:

1. Trials in wider ranges, on all axes at once, because hyperparameters make up for each other.
2. A surrogate of all its trials so far proposes ranges, if it expects a clear gain. Ranges that have not changed yet
   are not narrowed, because any space looks better if it is narrowed around its best trials.
3. As many trials in the proposed ranges as in the present ones. They decide.

A round that finds nothing better looks farther next time; two in a row end the optimizer's search.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from levelfield.analysis.boundaries import FEWEST, Boundary, boundaries
from levelfield.analysis.intervals import interval
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.permutation import p_value
from levelfield.analysis.ranges import limits, rounded_ends
from levelfield.analysis.results import Results
from levelfield.analysis.surrogate import Box, BoxSearch, Surrogate, Widths, positions, present_box
from levelfield.derive.refine import Attempt, Refinement, next_name, with_spaces
from levelfield.space import Axis, Choice, Dimension, Log, Range
from levelfield.study import Refined, Study
from levelfield.study_optimizer import optimizer_table
from levelfield.trial import Trial
from levelfield.usual import usual_interval

FIRST_LOOK = 2.0  # decades beyond a log range in the first round
FARTHER = 1.0  # further decades after a round that found nothing better
NEARBY = 1.0  # decades once a range has changed
TRIES = 2  # rounds in a row without anything better that end an optimizer's search
CLEAR_GAIN = 0.05  # expected gain that is worth trials, in standard deviations of the ranks' normal scores
CONVINCING = 0.15  # p-value below which a first change is kept: the surrogate has already chosen the ranges
AGAIN = 0.3  # the same for further changes
_LEAST_DECADES = 1.0  # width of a log range
_LEAST_SHARE = 0.25  # width of another range, relative to where trials were run
_WIDEST = 3  # times the least width, for ranges that are narrowed


@dataclass
class _Search:
    """What is known about an optimizer's ranges."""

    known: dict[tuple[str, int], Trial] = field(default_factory=dict)  # trials of all rounds, by identity and index
    outside: list[tuple[Sequence[Axis], Sequence[Trial]]] = field(default_factory=list)  # wider ranges, their trials
    changed: set[str] = field(default_factory=set)  # axes whose ranges have changed
    failures: int = 0  # rounds in a row without anything better

    @property
    def trials(self) -> list[Trial]:
        return list(self.known.values())

    def learn(self, results: Results, name: str) -> None:
        identity = results.study.identity(name)
        self.known |= {(identity, trial.point.index): trial for trial in results.trials[name]}

    @property
    def done(self) -> bool:
        return self.failures >= TRIES

    @property
    def decades(self) -> float:
        return NEARBY if self.changed else FIRST_LOOK + FARTHER * self.failures


class Rounds:
    """The state of a refinement in rounds. It trains nothing: it says what to train, and is given the trials."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self._searches = {name: _Search() for name in study.optimizers if study.optimizer(name).space.free}
        self._results: Results | None = None
        self._verdicts: list[Boundary] = []  # on the ranges of these results
        self._proposed: dict[str, dict[str, Dimension]] = {}

    @property
    def open(self) -> list[str]:
        """The optimizers whose ranges are still being looked for."""
        return [name for name, search in self._searches.items() if not search.done]

    def wider(self) -> Study:
        """Return the study with wider ranges for the optimizers that are still open."""
        tables = {}
        for name in self.open:
            ranges = self.study.optimizer(name).space.spec()
            for axis in self.study.optimizer(name).space.free:
                ranges[axis.key] = _widened(self.study, name, axis, self._searches[name].decades).spec()
            tables[name] = optimizer_table(self.study.optimizer(name), ranges)
        return self.study.replace(name=f"{self.study.name}_wider", optimizers=tables, refined=())

    def propose(self, results: Results, outside: Results) -> Study | None:
        """Return the study with ranges to try, after trials in the present and in the wider ranges; None for none."""
        self._results = results
        for name in self.open:
            search = self._searches[name]
            search.learn(results, name)
            search.learn(outside, name)
            search.outside.append((outside.study.optimizer(name).space.free, outside.trials[name]))
        self._verdicts = self._boundaries(results)
        self._proposed = {name: self._ranges(name, results) for name in self.open}
        names = [name for name in self.open if self._proposed[name]]
        return self._with_proposals(names, ()) if names else None

    def decide(self, candidates: Results | None) -> Refinement:
        """Keep the proposed ranges that turned out better; ``candidates`` are the results of the proposed study."""
        assert self._results
        attempts = []
        for name in self.open:
            search, ranges = self._searches[name], self._proposed[name]
            attempt = Attempt(name, ranges, len(search.outside[-1][1]), search.decades)
            if ranges and candidates:
                before, after = self._results.outcome(name), candidates.outcome(name)
                search.learn(candidates, name)
                attempt = _judged(attempt, before, after, self._results.k(), AGAIN if search.changed else CONVINCING)
            search.failures = 0 if attempt.kept else search.failures + 1
            search.changed |= attempt.ranges.keys() if attempt.kept else set()
            attempts.append(attempt)
        kept = [attempt for attempt in attempts if attempt.kept]
        refined = self._with_proposals([attempt.optimizer for attempt in kept], self._log(kept)) if kept else self.study
        refinement = Refinement(self._results, self._verdicts, refined, attempts)
        self.study = refined
        return refinement

    def last(self, results: Results) -> Refinement:
        """Return the verdicts on the ranges as they are now."""
        return Refinement(results, self._boundaries(results), self.study)

    def _ranges(self, name: str, results: Results) -> dict[str, Dimension]:
        """Return the ranges to try: those that the surrogate proposes, and longer choices."""
        proposals = _proposed(self.study, name, self._searches[name], results.outcome(name), results.k())
        for verdict in self._verdicts:
            if verdict.optimizer == name and isinstance(verdict.axis.dimension, Choice) and verdict.proposal:
                proposals[verdict.axis.key] = verdict.proposal
        return proposals

    def _boundaries(self, results: Results) -> list[Boundary]:
        return boundaries(results, beyond={name: self._around(name) for name in self._searches})

    def _around(self, name: str) -> Sequence[Trial]:
        """Return the latest trials in wider ranges that hold the present ones."""
        inner = present_box(self.study.optimizer(name).space.free)
        for axes, trials in reversed(self._searches[name].outside):
            outer = present_box(axes)
            if (outer[:, 0] <= inner[:, 0] + 1e-9).all() and (inner[:, 1] <= outer[:, 1] + 1e-9).all():
                return trials
        return ()

    def _with_proposals(self, names: Iterable[str], log: Sequence[Refined]) -> Study:
        tables = {name: self.study.optimizer(name).spec() for name in self.study.optimizers}
        for name in names:
            ranges = self.study.optimizer(name).space.spec()
            ranges |= {key: range_.spec() for key, range_ in self._proposed[name].items()}
            tables[name] = optimizer_table(self.study.optimizer(name), ranges)
        changed = with_spaces(self.study, tables)
        return changed.replace(name=next_name(self.study.name), refined=[*self.study.refined, *log])

    def _log(self, kept: Sequence[Attempt]) -> list[Refined]:
        """Return an entry for each range that changes."""
        log = []
        for attempt in kept:
            name, search = attempt.optimizer, self._searches[attempt.optimizer]
            axes, outside = search.outside[-1]
            wider = {axis.key: axis.dimension.spec() for axis in axes}
            for verdict in self._verdicts:
                if verdict.optimizer == name and (key := verdict.axis.key) in attempt.ranges:
                    log.append(
                        Refined(
                            study=self.study.name,
                            optimizer=name,
                            axis=key,
                            before=verdict.axis.dimension.spec(),
                            after=attempt.ranges[key].spec(),
                            verdict=verdict.place.value,
                            trials=len(search.trials),
                            outside=wider[key],
                            outside_trials=len(outside),
                            evidence=attempt.outcome,
                        )
                    )
        return log


def _widened(study: Study, name: str, axis: Axis, decades: float) -> Dimension:
    """Return a range extended on both sides: log ranges by decades, others by half their width within usual values."""
    if not isinstance(axis.dimension, Range):
        return axis.dimension
    lowest, highest = limits(axis, study.domain(name, axis.name))
    low, high = (float(end) for end in axis.dimension.ends)
    if isinstance(axis.dimension, Log):
        ends = [float(f"{low / 10**decades:.3g}"), float(f"{high * 10**decades:.3g}")]
    else:
        usual = usual_interval(study, name, axis) or (-math.inf, math.inf)
        margin = (high - low) / 2
        ends = [min(low, max(low - margin, usual[0])), max(high, min(high + margin, usual[1]))]
    return axis.dimension.resized(max(ends[0], lowest), min(ends[1], highest))


def _proposed(study: Study, name: str, search: _Search, outcome: Outcome, k: int) -> dict[str, Dimension]:
    """Return the ranges to try instead of the present ones; empty if the surrogate expects no clear gain."""
    axes, trials = study.optimizer(name).space.free, search.trials
    places = positions(axes, [trial.point.hyperparameters for trial in trials])
    known = np.isfinite(places).all(axis=1)
    values = outcome.ranked_trials(trials)
    if known.sum() < FEWEST or len(np.unique(values[known])) < 2:
        return {}
    present = present_box(axes)
    reach = np.stack([places[known].min(axis=0), places[known].max(axis=0)], axis=1)
    reach = np.stack([np.minimum(reach[:, 0], present[:, 0]), np.maximum(reach[:, 1], present[:, 1])], axis=1)
    box, gain = BoxSearch(Surrogate(places, values), axes, reach, k).best(
        present, _widths(axes, present, reach, search.changed)
    )
    if gain < CLEAR_GAIN:
        return {}
    changed = [i for i in range(len(axes)) if not np.allclose(box[i], present[i])]
    ranges = {axes[i].key: _range(study, name, axes[i], box[i], present[i]) for i in changed}
    by_key = {axis.key: axis for axis in axes}
    return {key: range_ for key, range_ in ranges.items() if range_ != by_key[key].dimension}


def _widths(axes: Sequence[Axis], present: Box, reach: Box, changed: Collection[str]) -> Widths:
    """Return which widths to choose from; only ranges that have changed before may become narrower."""
    least = np.array(
        [
            _LEAST_DECADES if isinstance(axis.dimension, Log) else _LEAST_SHARE * (high - low)
            for axis, (low, high) in zip(axes, reach, strict=True)
        ]
    )
    width, free = present[:, 1] - present[:, 0], np.array([axis.key in changed for axis in axes])
    kept = np.maximum(width, least)
    return Widths(np.where(free, least, kept), np.where(free, np.maximum(_WIDEST * least, width), kept + least))


def _range(study: Study, name: str, axis: Axis, box: np.ndarray, present: np.ndarray) -> Dimension:
    """Return a range with round ends; an end that stays is not rounded."""
    assert isinstance(axis.dimension, Range)
    lowest, highest = limits(axis, study.domain(name, axis.name))
    log = isinstance(axis.dimension, Log)
    ends = rounded_ends(axis.dimension, float(box[0]), float(box[1]), log)
    old = [float(end) for end in axis.dimension.ends]
    low, high = (
        before if math.isclose(now, was) else end for before, now, was, end in zip(old, box, present, ends, strict=True)
    )
    return axis.dimension.resized(max(low, lowest), min(high, highest))


def _judged(attempt: Attempt, before: Outcome, after: Outcome, k: int, convincing: float) -> Attempt:
    """Compare the proposed ranges with the present ones by their trials."""
    p, sign = math.nan, before.metrics[before.select].sign
    if min(len(before.pool), len(after.pool)) < FEWEST:  # hardly anything trains there
        kept = len(after.pool) > len(before.pool)
    else:
        p = p_value(after.ranked(), before.ranked(), k)
        kept = p < convincing
    now, was = (interval(outcome.ranked(), k).times(sign) for outcome in (after, before))
    return replace(attempt, kept=kept, p_value=p, k=k, metric=before.select, before=was, after=now)
