"""Extra trials at the special optimizer's best point, trained by the general one: what it could have found.

Each runs the general rule at the witness's hyperparameters, with the seed of the trial it follows. They are stored
apart, are shown beside the outcomes, and take no part in any statistic.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from levelfield.executors import Executor
from levelfield.rules import Rule, get_rule
from levelfield.space import Space
from levelfield.store import Store
from levelfield.study import Optimizer, Study
from levelfield.taxonomy.inclusions import Inclusion
from levelfield.taxonomy.order import Edge, inclusions
from levelfield.trial import Trial
from levelfield.workloads import get_workload


@dataclass(frozen=True)
class Seed:
    """A trial of the special optimizer, to be followed by the general one."""

    edge: Edge
    followed: Trial
    study: Study  # of this one trial

    @property
    def identity(self) -> str:
        return self.study.identity(self.edge.general)

    def result(self, store: Store) -> Trial | None:
        found = store.trials(self.identity)
        return next((trial for trial in found if trial.point.index == self.followed.point.index), None)


@dataclass(frozen=True)
class Seeded:
    """A seed and what became of it."""

    edge: Edge
    followed: Trial
    trial: Trial

    def as_dict(self, metric: str) -> dict[str, Any]:
        about = {"special": self.edge.special, "general": self.edge.general, "metric": metric}
        return about | {"followed": self.followed.curve.final(metric), "seeded": self.trial.curve.final(metric)}


def seeds(study: Study, best: Mapping[str, Trial | None]) -> list[Seed]:
    """One for each inclusion of the study whose special optimizer has a best trial."""
    found = []
    for edge in inclusions(study):
        if (followed := best[edge.special]) is None:
            continue
        optimizer = Optimizer(
            edge.general,
            _following(edge.ways[0]),
            study.optimizer(edge.special).schedule,
            Space.parse(followed.point.hyperparameters),
        )
        found.append(Seed(edge, followed, study.replace(pool=1, trials=1, optimizers={edge.general: optimizer})))
    return found


def _following(way: Inclusion) -> Rule:
    """The general rule, by the special one's hyperparameters."""
    special, general = get_rule(way.special), get_rule(way.general)
    if not way.witnesses:
        return special

    def build(**hyperparameters: Any) -> Any:
        return general(**way.image(hyperparameters))

    at = "".join(f"; {name} = {value:g}" for name, value in way.open.items())
    name = f"{way.general} as {way.special}: {way.equations}{at}"
    return Rule(name, special.hyperparameters, build, version=general.version)


def run_seeds(chosen: Iterable[Seed], store: Store, executor: Executor) -> Iterator[Seeded]:
    """Train the seeds that the store lacks; each is stored when it has finished."""
    for seed in chosen:
        if seed.result(store) is None:
            definition = seed.study.definition(seed.edge.general)
            metrics = get_workload(seed.study.workload).metrics
            points = iter([seed.followed.point])
            for progress in executor.train(seed.study, seed.edge.general, functools.partial(next, points, None)):
                store.add(seed.identity, definition, metrics, progress.finished, executor.provenance())
        trial = seed.result(store)
        assert trial
        yield Seeded(seed.edge, seed.followed, trial)


def stored_seeds(chosen: Iterable[Seed], store: Store) -> list[Seeded]:
    """The seeds that the store has."""
    found = [(seed, seed.result(store)) for seed in chosen]
    return [Seeded(seed.edge, seed.followed, trial) for seed, trial in found if trial]
