"""The public view of a study's results: numbers, tables, sentences and reports, each one call away."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield import run
from levelfield.analysis.boundaries import Boundary, boundaries
from levelfield.analysis.health import Check, health
from levelfield.analysis.intervals import Chance, Interval, beats
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.planning import Plan, plan
from levelfield.analysis.results import Followed, Results
from levelfield.analysis.summary import Standing, Standings, StudyStanding, standings
from levelfield.derive import ladder as ladders
from levelfield.derive import refine as refinements
from levelfield.derive import rerun as rerun_studies
from levelfield.derive.refine import Refinement
from levelfield.errors import UnknownName
from levelfield.executors import Executor
from levelfield.listener import Listener
from levelfield.reading import read
from levelfield.store import Store
from levelfield.study import Study, expect_study
from levelfield.taxonomy.audit import Finding, audit
from levelfield.trial import FailedTrial, StepTime, Target, Trial

if TYPE_CHECKING:
    import polars


class Comparison:
    """What a study's stored trials say. Reading one trains nothing."""

    def __init__(self, results: Results) -> None:
        self.results = results

    @classmethod
    def load(cls, study: Study, store: str | Path | Store | None = None) -> Comparison:
        """Read a study's trials from a store, by default the one that the CLI uses for that study."""
        with run.opened(expect_study(study), store, create=False) as opened:
            return cls(read(study, opened))

    @property
    def study(self) -> Study:
        return self.results.study

    @property
    def trials(self) -> Mapping[str, Sequence[Trial]]:
        """The trials of each optimizer's pool, infeasible ones included."""
        return self.results.trials

    @property
    def provenance(self) -> Sequence[Mapping[str, Any]]:
        """Versions, device and precision of each way in which the trials were trained."""
        return self.results.provenance

    @property
    def failures(self) -> Mapping[str, Sequence[FailedTrial]]:
        """The trials of each optimizer's pool that have failed. No statistic counts them; the next run tries again."""
        return self.results.failures

    @property
    def followed(self) -> Sequence[Followed]:
        """Extra trials of general optimizers at their special cases' best points. No statistic counts them."""
        return self.results.followed

    @property
    def reruns(self) -> Mapping[str, Outcome]:
        """Each optimizer's best trial with new seeds, where it was rerun."""
        return self.results.reruns

    @property
    def complete(self) -> bool:
        """Whether every optimizer's pool is full."""
        return self.results.complete

    def outcome(self, optimizer: str) -> Outcome:
        """Return the distribution of the best of K trials of an optimizer."""
        return self.results.outcome(optimizer)

    def beats(self, ours: str, theirs: str, k: int | None = None) -> float:
        """Return P(one optimizer's best of k is strictly better than the other's)."""
        return self.results.beats(ours, theirs, k)

    def interval(self, optimizer: str, k: int | None = None, level: float = 0.9) -> Interval:
        """Return the median best of k of an optimizer, with its confidence interval.

        The interval shows how uncertain the pool leaves it for the whole search space; it shrinks as N grows.
        """
        return self.outcome(optimizer).interval(self.results.k(k), level)

    def separated(self, k: int | None = None) -> list[tuple[str, str]]:
        """Return the pairs (better, worse) that the trials tell apart at k trials each; empty if there are none.

        Permutation tests corrected over all pairs: the chance that any two optimizers whose trials come from the same
        distribution are separated is at most 5%.
        """
        return self.results.separated(k)

    def beats_matrix(self, k: int | None = None) -> dict[str, dict[str, float]]:
        """Return P(row's best of k is strictly better than column's) for every two optimizers."""
        names, able = list(self.results.outcomes), self.results.comparable(k)

        def rate(ours: str, theirs: str) -> float:
            return self.beats(ours, theirs, k) if ours in able and theirs in able else math.nan

        return {ours: {theirs: rate(ours, theirs) for theirs in names if theirs != ours} for ours in names}

    def win_rate(self, ours: str, theirs: str, k: int | None = None, level: float = 0.9) -> Chance:
        """Return P(one optimizer's best of k is strictly better), with its confidence interval."""
        first, second = self.outcome(ours), self.outcome(theirs)
        estimate = first.beats(second, self.results.k(k))
        if not self.study.is_tested:  # the trials are not independent, so nothing bounds what others would give
            return Chance(estimate, 0.0, 1.0)
        bounds = beats(first.ranked(), second.ranked(), self.results.k(k), level)
        return replace(bounds, probability=estimate)

    def pairs(self, k: int | None = None) -> list[dict[str, Any]]:
        """Return every two optimizers with their win rate, its interval, and the test that separates them."""
        return [
            {
                "optimizers": [test.ours, test.theirs],
                "wins": asdict(self.win_rate(test.ours, test.theirs, k)),
                "p_value": test.p_value,
                "separated": test.separated,
                "needed_trials": test.needed,
            }
            for test in self.results.pair_tests(k)
        ]

    def separated_by_steps(self, k: int | None = None) -> list[tuple[str, str]]:
        """Return the pairs (faster, slower) whose steps to the target the trials tell apart at k trials each."""
        return [(test.better, test.worse) for test in self.results.step_tests(k) if test.separated]

    @property
    def step_times(self) -> Mapping[str, StepTime]:
        """What a step of each optimizer takes on the device where all of them were measured; empty if there is none."""
        return self.results.step_times

    def rank_probabilities(self, k: int | None = None) -> dict[str, list[float]]:
        """Return P(an optimizer's best of k comes first, second, …); ties share the better place."""
        return self.results.rank_probabilities(k)

    def settles(self) -> int | None:
        """Return the number of trials from which the ranking by expected best stays the same as for the whole pools."""
        return self.results.settles()

    def at(self, *, select: str | None = None, step: int | None = None, target: Target | None = None) -> Comparison:
        """Return the same trials, selected by another metric, read at an earlier step, or with another target.

        Schedules were tuned for the full budget: trials trained with a shorter one would end better.
        """
        return Comparison(self.results.at(select=select, step=step, target=target))

    def narrowed(self, ranges: Mapping[str, Mapping[str, Any]]) -> Comparison:
        """Return the comparison as if parts of the search spaces had been left out.

        ``ranges``: optimizer → axis → (low, high), or the choices to keep.
        """
        return Comparison(self.results.narrowed(ranges))

    def rows(self, k: int | None = None) -> list[dict[str, Any]]:
        """Return one row of numbers for each optimizer, in the study's order."""
        from levelfield.report.columns import rows

        return rows(self.results, k)

    def table(self, k: int | None = None) -> polars.DataFrame:
        """Return the rows as a polars DataFrame; hyperparameters as text."""
        import polars

        from levelfield.formatting import format_hyperparameters

        rows = self.rows(k)
        for row in rows:
            row["best_hyperparameters"] = format_hyperparameters(row["best_hyperparameters"])
        return polars.DataFrame(rows, infer_schema_length=None)

    def audit(self, k: int | None = None) -> list[Finding]:
        """For each inclusion between the optimizers, return whether the general one's best of k is no worse."""
        return audit(self.results, self.results.k(k))

    def boundaries(self, k: int | None = None) -> list[Boundary]:
        """For each axis of each optimizer, return where its good trials lie, and a better range if there is one."""
        return boundaries(self.results, k)

    def health(self, k: int | None = None) -> list[Check]:
        """Return whether each search can be trusted: infeasible trials, good ones, whether more would still help."""
        return health(self.results, k)

    def plan(self, gpu_hours: float | None = None) -> Plan:
        """Return which optimizer to tune with how many trials, or within a budget of hours."""
        return plan(self.results.outcomes, gpu_hours)

    def sentences(self) -> list[str]:
        """Return what the numbers say, in words."""
        from levelfield.report.narrative import sentences

        return sentences(self.results)

    def write_report(self, path: str | Path, protocols: Sequence[Comparison] = ()) -> Path:
        """Write one self-contained HTML file. It shows the tuning protocols of these comparisons side by side."""
        from levelfield.report.page import write_report

        return write_report(self.results, Path(path), [other.results for other in protocols])

    def write_figures(self, folder: str | Path, protocols: Sequence[Comparison] = ()) -> list[Path]:
        """Write the report's figures as PDF, SVG and PNG, and its tables in LaTeX."""
        from levelfield.report.page import write_figures

        return write_figures(self.results, Path(folder), [other.results for other in protocols])


def compare(
    study: Study,
    store: str | Path | Store | None = None,
    *,
    slots: int | None = None,
    executor: str | Executor = "local",
    listener: Listener | None = None,
    seed_inclusions: bool = False,
    reruns: int = 0,
    stale: run.Stale | None = None,
    checkpoint_minutes: float = 5.0,
    seconds: bool = False,
) -> Comparison:
    """Run what is missing of a study, then compare its optimizers.

    If an optimizer's pool cannot be filled, it is compared as it is, and ``comparison.complete`` is false. With
    ``seed_inclusions``, each general optimizer also trains its special cases' best points, as extra trials that no
    statistic counts (``comparison.followed``). With ``reruns``, each optimizer's best trial is trained again with this
    many new seeds (``comparison.reruns``): its own metric is optimistic, because it was selected by it. The default
    store is the CLI's: levelfield-out/STUDY/trials.db.

    If the study's custom code has changed since trials were stored, this raises, unless ``stale`` is "retrain" (train
    them again; the store keeps the old ones apart) or "keep" (count them as they are).

    How long steps take is measured while trials train (``comparison.step_times``). With ``seconds``, it is measured
    again, apart from that: for trials that were trained elsewhere, or while the machine was busy.

    Trials that train for longer than ``checkpoint_minutes`` are saved that often, in a folder next to the store, and a
    run that was killed continues from there; 0 saves none.
    """
    study = expect_study(study)
    results, _ = run.compare(
        study,
        store,
        executor=executor,
        slots=slots,
        listener=listener,
        seed_inclusions=seed_inclusions,
        reruns=reruns,
        stale=stale,
        checkpoints=run.checkpoint_folder(study, store, checkpoint_minutes),
        seconds=seconds,
    )
    return Comparison(results)


def ladder(study: Study) -> Study:
    """Return a study of tuning protocols: the learning rate alone, then more and more of the hyperparameters."""
    return ladders.ladder(expect_study(study))


def refine(comparison: Comparison, name: str | None = None) -> Refinement:
    """Propose better search spaces from a complete comparison; ``.study`` of the answer is the new study."""
    return refinements.refine(comparison.results, name)


def rerun_study(
    comparison: Comparison, optimizers: Sequence[str] | None = None, seeds: int = 1, index: int | None = None
) -> Study:
    """Return the study that trains each optimizer's best trial, or the one at an index, with new seeds."""
    return rerun_studies.rerun_study(comparison.results, optimizers, seeds, index)


class Summary:
    """What several studies say about their optimizers, which are matched by name."""

    def __init__(self, standings: Standings) -> None:
        self.standings = standings

    def table(self) -> polars.DataFrame:
        """Return one row for each optimizer as a polars DataFrame: the best mean rank first, incomplete ones last."""
        import polars

        rows = [_summary_row(row) for row in self.standings.optimizers]
        for row in rows:
            row |= {key: ", ".join(value) for key, value in row.items() if isinstance(value, list)}
        return polars.DataFrame(rows, infer_schema_length=None)

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers: each optimizer over all studies, and each study with its optimizers."""
        return {
            "optimizers": [_summary_row(row) for row in self.standings.optimizers],
            "studies": [_summary_study(study) for study in self.standings.studies],
        }

    def profile(self, optimizer: str, tau: float) -> float:
        """Return the share of studies in which an optimizer takes at most τ times the steps of the best one."""
        rows = {row.optimizer: row for row in self.standings.optimizers}
        if optimizer not in rows:
            raise UnknownName.of("optimizer of these studies", optimizer, rows)
        return rows[optimizer].profile(tau)

    def sentences(self) -> list[str]:
        """Return what the numbers say, in words."""
        from levelfield.report.summary_text import sentences

        return sentences(self.standings)

    def write_report(self, path: str | Path) -> Path:
        """Write one self-contained HTML file."""
        from levelfield.report.summary_page import write_summary

        return write_summary(self.standings, Path(path))


def _summary_row(row: Standing) -> dict[str, Any]:
    return {
        "optimizer": row.optimizer,
        "mean_rank": row.mean_rank.value,
        "mean_rank_low": row.mean_rank.low,
        "mean_rank_high": row.mean_rank.high,
        "rank_in_repetitions": row.rank_in_repetitions.mean,
        "rank_in_repetitions_low": row.rank_in_repetitions.low,
        "rank_in_repetitions_high": row.rank_in_repetitions.high,
        "score": row.score.value,
        "score_low": row.score.low,
        "score_high": row.score.high,
        "geometric_mean_ratio": row.geometric_mean,
        "worst_ratio": row.ratios[row.worst].value if row.worst else math.nan,
        "worst_study": row.worst or "",
        "counted": row.counted,
        "present": list(row.present),
        "missing": list(row.missing),
        "reached": row.reached,
        "missed": row.missed,
    }


def _summary_study(study: StudyStanding) -> dict[str, Any]:
    content = study.results.study
    return {
        "study": study.name,
        "workload": content.workload,
        "k": study.k,
        "pool": content.pool,
        "metric": content.select,
        "target": asdict(content.target) if content.target else None,
        "counted": study.counted,
        "separated": [list(pair) for pair in study.separated],
        "optimizers": {name: asdict(place) | {"reached": place.reached} for name, place in study.places.items()},
    }


def summary(
    studies: Sequence[Comparison | Study], store: str | Path | Store | None = None, *, k: int | None = None
) -> Summary:
    """Compare the optimizers of several studies, matched by name. Trains nothing.

    ``store`` holds the trials of those given as a Study; the default is the CLI's store of each. Each study is compared
    at its own K, or all of them at ``k``.
    """
    comparisons = [item if isinstance(item, Comparison) else Comparison.load(item, store) for item in studies]
    return Summary(standings([comparison.results for comparison in comparisons], k))
