"""A comparison: the outcomes of a study's optimizers, side by side, as a table and in words."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from levelfield.analysis.best_of import check_k
from levelfield.analysis.boundaries import Boundary, boundaries
from levelfield.analysis.health import Check, checks
from levelfield.analysis.outcomes import Outcome, Target
from levelfield.analysis.planning import Plan, plan
from levelfield.analysis.ranking import rank_probabilities, settles
from levelfield.errors import SearchExhausted, UnknownName
from levelfield.executors import get_executor
from levelfield.rerun import rerun_study
from levelfield.runner import Listener, pool_window, run
from levelfield.space import Space
from levelfield.store import Store
from levelfield.study import Optimizer, Study
from levelfield.taxonomy.audit import Finding, audit
from levelfield.taxonomy.seeding import Seed, run_seeds, seeds, stored_seeds
from levelfield.trial import Trial
from levelfield.workloads import get_workload

if TYPE_CHECKING:
    import polars


class Comparison:
    """What a study's stored trials say. Reading one trains nothing."""

    def __init__(self, study: Study, store: Store) -> None:
        self.study = study
        self.narrow = False  # whether parts of the spaces are left out
        self.provenance: list[dict[str, Any]] = []
        self.trials: dict[str, list[Trial]] = {}  # of each optimizer's pool, infeasible ones included
        self._findings: dict[int, list[Finding]] = {}
        for name in study.optimizers:
            identity = study.identity(name)
            trials = {trial.point.index: trial for trial in store.trials(identity)}
            window = pool_window({index: trial.status for index, trial in trials.items()}, study.pool)
            prefix = [trials[index] for index in window if index in trials]
            self.trials[name] = prefix
            self.provenance += [each for each in store.provenance(identity) if each not in self.provenance]
        self._outcomes = _outcomes(study, self.trials)
        self.seeded = stored_seeds(self.seeds(), store)
        self.reruns = self._stored_reruns(store)  # optimizer → seeds of its best trial, where there are

    def seeds(self) -> list[Seed]:
        """The extra trials that ``seed_inclusions`` runs: each special optimizer's best point, by the general one."""
        return seeds(self.study, {name: outcome.best_trial for name, outcome in self._outcomes.items()})

    def _stored_reruns(self, store: Store) -> dict[str, Outcome]:
        found: dict[str, Outcome] = {}
        for name, outcome in self._outcomes.items():
            if outcome.best_trial:
                study = rerun_study(self, [name])
                if trials := store.trials(study.identity(name)):
                    found |= _outcomes(study, {name: trials})
        return found

    def outcome(self, optimizer: str) -> Outcome:
        if optimizer not in self._outcomes:
            raise UnknownName.of("optimizer of this study", optimizer, self._outcomes)
        return self._outcomes[optimizer]

    def _k(self, k: int | None) -> int:
        """How many trials: as asked for, or the study's K."""
        chosen = self.study.trials if k is None else k
        check_k(chosen)
        return chosen

    def beats(self, ours: str, theirs: str, k: int | None = None) -> float:
        """P(one optimizer's best of k is strictly better than the other's)."""
        return self.outcome(ours).beats(self.outcome(theirs), self._k(k))

    def beats_matrix(self, k: int | None = None) -> dict[str, dict[str, float]]:
        """P(row's best of k is strictly better than column's), for every two optimizers."""
        return {a: {b: self.beats(a, b, k) for b in self._outcomes if b != a} for a in self._outcomes}

    def rank_probabilities(self, k: int | None = None) -> dict[str, list[float]]:
        """P(an optimizer's best of k comes first, second, …); those that tie share the better place."""
        found = rank_probabilities([outcome.ranked() for outcome in self._outcomes.values()], self._k(k))
        return {name: [float(chance) for chance in row] for name, row in zip(self._outcomes, found, strict=True)}

    def settles(self) -> int | None:
        """From how many trials on the ranking by the expected best is the one that the whole pools give."""
        return settles([outcome.ranked() for outcome in self._outcomes.values()])

    def at(self, *, select: str | None = None, step: int | None = None, target: Target | None = None) -> Comparison:
        """The same trials, selected by another metric, read at an earlier step, with another target.

        Schedules were tuned for the full budget: a shorter one of their own would end better than its like here.
        """
        changed = {
            name: _with_cost(each.at(select=select, step=step, target=target), self.trials[name])
            for name, each in self._outcomes.items()
        }
        study = self.study.replace(select=select, target=asdict(target) if target else None)
        return self._view(study, self.trials, changed)

    def narrowed(self, ranges: Mapping[str, Mapping[str, Any]]) -> Comparison:
        """What if these had been the search spaces? Optimizer → axis → (low, high), or the choices that stay.

        Only the trials inside are left: quasi-random points of a space, as many as fell into that part of it.
        """
        optimizers, trials = dict(self.study.optimizers), dict(self.trials)
        for name, axes in ranges.items():
            optimizer = self.study.optimizer(name)
            narrow = {one.key: one for one in optimizer.space}
            free = [one.key for one in optimizer.space.free]
            for key, kept in axes.items():
                if key not in free:
                    raise UnknownName.of(f"axis that {name} searches", key, free)
                narrow[key] = narrow[key].narrowed(kept)
                trials[name] = [each for each in trials[name] if narrow[key].holds(each.point.hyperparameters)]
            optimizers[name] = replace(optimizer, space=Space(tuple(narrow.values())))
        study = self.study.replace(optimizers=optimizers, **self._fewer(optimizers))
        outcomes = {
            name: _with_cost(each.at(step=self.outcome(name).step), trials[name])
            for name, each in _outcomes(study, trials).items()
        }
        found = self._view(study, trials, outcomes)
        found.narrow = True
        return found

    def _fewer(self, optimizers: Mapping[str, Optimizer]) -> dict[str, int]:
        """K and N that the smallest of these grids still has the points for."""
        if self.study.search != "grid":
            return {}
        points = int(min(each.space.size for each in optimizers.values()))
        return {"trials": min(self.study.trials, points), "pool": min(self.study.pool, points)}

    def _view(self, study: Study, trials: dict[str, list[Trial]], outcomes: dict[str, Outcome]) -> Comparison:
        other = copy.copy(self)
        other.study, other.trials, other._outcomes, other._findings = study, trials, outcomes, {}
        # A seed follows a best trial: what follows another one says nothing here.
        other.seeded = [each for each in self.seeded if each.followed is outcomes[each.edge.special].best_trial]
        other.reruns = {
            name: each.at(select=outcomes[name].select, step=outcomes[name].step)
            for name, each in self.reruns.items()
            if outcomes[name].best_trial is self.outcome(name).best_trial
        }
        return other

    @property
    def complete(self) -> bool:
        return all(self.study.full(name, len(each.pool), each.tried) for name, each in self._outcomes.items())

    def rows(self, k: int | None = None) -> list[dict[str, Any]]:
        """One row an optimizer, in the study's order."""
        k = self._k(k)
        return [self._row(outcome, k) for outcome in self._outcomes.values()]

    def _row(self, outcome: Outcome, k: int) -> dict[str, Any]:
        best = outcome.best(k)
        row = {
            "optimizer": outcome.name,
            "protocol": self.study.optimizer(outcome.name).protocol,
            "metric": outcome.select,
            "k": k,
            **asdict(best),
        }
        if outcome.test_metric:
            row[outcome.test_metric] = outcome.best(k, outcome.test_metric).mean
        if outcome.target:
            reached = outcome.steps_to_target(k)
            row |= {f"steps_{key}": value for key, value in asdict(reached).items()}
        trial = outcome.best_trial
        return row | {
            "feasible": len(outcome.pool),
            "tried": outcome.tried,
            "infeasible_share": outcome.infeasible_share,
            "best_hyperparameters": trial.point.hyperparameters if trial else {},
        }

    def table(self, k: int | None = None) -> polars.DataFrame:
        """The rows as a polars DataFrame; hyperparameters as text."""
        import polars

        from levelfield.words import show_hyperparameters

        rows = self.rows(k)
        for row in rows:
            row["best_hyperparameters"] = show_hyperparameters(row["best_hyperparameters"])
        return polars.DataFrame(rows, infer_schema_length=None)

    def audit(self, k: int | None = None) -> list[Finding]:
        """For each inclusion between the optimizers: is the general one's best of k no worse?"""
        k = self._k(k)
        if k not in self._findings:
            self._findings[k] = audit(self, k)
        return self._findings[k]

    def boundaries(self, k: int | None = None) -> list[Boundary]:
        """For each axis of each optimizer: where the good trials lie in its range, and a better one if there is."""
        study, k = self.study, self._k(k)
        found: list[Boundary] = []
        for name, outcome in self._outcomes.items():
            axes = tuple(study.optimizer(name).space)
            found += boundaries(outcome, axes, [study.domain(name, one.name) for one in axes], k)
        return found

    def plan(self, gpu_hours: float | None = None) -> Plan:
        """Which optimizer to tune with how many trials, or with so many hours of this device."""
        return plan(self._outcomes, gpu_hours)

    def health(self, k: int | None = None) -> list[Check]:
        """Whether each search can be trusted: infeasible trials, good ones, whether more would still help."""
        k = self._k(k)
        found: list[Check] = []
        for name, outcome in self._outcomes.items():
            axes = self.study.optimizer(name).space.free
            more = "give the grid more points" if self.study.exhausted(name, outcome.tried) else "run a larger pool"
            found += checks(outcome, self.trials[name], axes, k, self.reruns.get(name), more)
        return found

    def sentences(self) -> list[str]:
        """What the numbers say, in words."""
        from levelfield.words import sentences

        return sentences(self)

    def write_report(self, path: str | Path, protocols: Sequence[Comparison] = ()) -> Path:
        """One self-contained HTML file. Tuning protocols are shown side by side: its own, or those of others."""
        from levelfield.report.page import write_report

        return write_report(self, Path(path), protocols)

    def write_figures(self, folder: str | Path, protocols: Sequence[Comparison] = ()) -> list[Path]:
        """The report's figures as PDF, SVG and PNG, its tables in LaTeX."""
        from levelfield.report.page import write_figures

        return write_figures(self, Path(folder), protocols)


def _outcomes(study: Study, trials: Mapping[str, list[Trial]]) -> dict[str, Outcome]:
    target = Target(study.target.metric, study.target.value) if study.target else None
    metrics = dict(get_workload(study.workload).metrics)

    def outcome(name: str, prefix: list[Trial]) -> Outcome:
        pool = [trial for trial in prefix if trial.feasible]
        return _with_cost(Outcome(name, pool, len(prefix), metrics, study.select, target), prefix)

    return {name: outcome(name, prefix) for name, prefix in trials.items()}


def _with_cost(outcome: Outcome, tried: list[Trial]) -> Outcome:
    """The outcome with what all its trials cost, as far as they are read."""
    return replace(outcome, spent=sum(map(outcome.last, tried)))


def compare(
    study: Study,
    store: str | Path | Store | None = None,
    *,
    slots: int | None = None,
    executor: str = "local",
    listener: Listener | None = None,
    seed_inclusions: bool = False,
) -> Comparison:
    """Run what is missing of a study, then compare. Optimizers whose pool cannot be filled are compared as far
    as they got; ``comparison.complete`` tells. With ``seed_inclusions``, each general optimizer also trains its
    special ones' best points, as extra trials that take no part in the statistics (``comparison.seeded``).
    The store is by default the one of the command line: levelfield-out/STUDY/trials.db.
    """
    from levelfield.taxonomy.verify import check_registered

    chosen = get_executor(executor, slots)
    chosen.check(study)
    check_registered(study)
    store = Path("levelfield-out") / study.name / "trials.db" if store is None else store
    opened = store if isinstance(store, Store) else Store.open(store)
    try:
        with suppress(SearchExhausted):  # a result, not an accident: the comparison shows what there is
            run(study, opened, chosen, listener)
        comparison = Comparison(study, opened)
        if seed_inclusions:
            comparison.seeded = list(run_seeds(comparison.seeds(), opened, chosen))
        return comparison
    finally:
        if opened is not store:
            opened.close()
