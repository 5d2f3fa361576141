"""How well ``levelfield refine --rounds`` recovers from bad search spaces, on random cases.

    python benchmarks/refinement.py [--seed 0] [--cases 3] [--good 1] [--workloads NAMES] [--rules NAMES] [--json FILE]
    python benchmarks/refinement.py --read FILE …
    python benchmarks/refinement.py --taskset DIR [--repetitions 1000]

A case (benchmarks/refinement_cases.py) is one rule on one workload. In its bad space, one to three ranges of a good
space are displaced by 1 to 3 decades or cut to a tenth. Refined in at most four rounds, a space has recovered if its
median best of K is no worse than the upper end of the good space's 90% interval. The table also shows

- the same share before refinement, and for a second pool of the good space: what chance alone allows
- the share whose median best of K lies within the 5–95% range of the good space's best of K
- how often the refined space is worse than one very wide space that was searched with as many trials in all
- how often the best of all trials of the refinement, trained again with new seeds, is worse by more than two standard
  errors than the wide search's, and than the best that Optuna's TPE finds in the wide space with as many trials
- the verdicts on the ranges of the bad and of the last study. "Inside" and "flat", which leave a range as it is, are
  wrong if the outcome gets clearly better when that range alone is replaced by the good one: the median best of K is
  above the upper end of the 90% interval with the good one
- how many ranges of good spaces are changed, and how often that makes the outcome clearly worse

With ``--taskset``, nothing is trained: verdicts on parts of other people's trials are compared with all of them
(benchmarks/refinement_taskset.py).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import math
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from combining import ON_CPU, ON_GPU, CombiningExecutor, Dispatcher
from refinement_cases import RULES, STEPS, Case, draw_case, with_ranges
from refinement_taskset import print_taskset

from levelfield import run
from levelfield.analysis.boundaries import Boundary, boundaries
from levelfield.analysis.intervals import Interval, interval
from levelfield.analysis.ranges import Place
from levelfield.analysis.results import Results
from levelfield.derive.refine import Refinement
from levelfield.reading import read_pools
from levelfield.search import Search, trial_seed
from levelfield.space import Choice, Log
from levelfield.store import Store
from levelfield.study import Study
from levelfield.trial import Point, Trial

ROUNDS = 4
RETRAININGS = 4
BATCH = 10  # trials that TPE asks for at once
CLEAR = 2  # standard errors
STAY = (Place.INSIDE, Place.FLAT)  # verdicts that leave a range as it is

Record = dict[str, Any]


# A case


class Laboratory:
    """Trains what is needed to judge one case."""

    def __init__(self, store: Store, executor: CombiningExecutor) -> None:
        self.store, self.executor = store, executor

    def search(self, study: Study) -> Results:
        """Fill a study's pool as far as possible."""
        run.run(study, self.store, self.executor)
        return read_pools(study, self.store)

    def refine(self, study: Study) -> tuple[Refinement | None, Results, int, str]:
        """Return the last refinement, the results of the last study, the number of rounds, and the error, if any."""
        refinement, rounds, error = None, 0, ""
        try:
            for refinement in run.refine_in_rounds(study, ROUNDS, self.store, self.executor):
                rounds += refinement.study is not refinement.results.study
        except Exception as exception:  # one case that fails must not end the benchmark
            error = f"{type(exception).__name__}: {exception}"
            print(f"{study.name}:", traceback.format_exc(), file=sys.stderr)
        return refinement, read_pools(refinement.study if refinement else study, self.store), rounds, error

    def train(self, study: Study, hyperparameters: Iterable[Any], seed: int) -> list[Trial]:
        points = [Point(i, values, trial_seed(seed, i)) for i, values in enumerate(hyperparameters)]
        return self.executor.train_points(study, next(iter(study.optimizers)), points)

    def quasi_random(self, study: Study, budget: int) -> list[Trial]:
        (name,) = study.optimizers
        search = Search(study, name)
        return self.executor.train_points(study, name, [search.point(index) for index in range(budget)])

    def tpe(self, study: Study, budget: int) -> list[Trial]:
        """Return the trials that Optuna's TPE asks for; infeasible ones count as infinitely bad."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        space = study.optimizer(next(iter(study.optimizers))).space
        distributions = {
            axis.key: optuna.distributions.CategoricalDistribution(axis.dimension.ends)
            if isinstance(axis.dimension, Choice)
            else optuna.distributions.FloatDistribution(*axis.dimension.ends, log=isinstance(axis.dimension, Log))
            for axis in space.free
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(constant_liar=True, seed=study.seed)
        tuner, trials = optuna.create_study(sampler=sampler), list[Trial]()
        while len(trials) < budget:
            asked = [tuner.ask(distributions) for _ in range(min(BATCH, budget - len(trials)))]
            units = [[axis.dimension.unit(one.params[axis.key]) for axis in space.free] for one in asked]
            trained = self.train(study, map(space.hyperparameters, units), seed=trial_seed(study.seed, len(trials)))
            for one, trial in zip(asked, trained, strict=True):
                tuner.tell(one, final(study, trial) if trial.feasible else math.inf)
            trials += trained
        return trials

    def retrained(self, study: Study, best: Sequence[Trial]) -> list[list[float]]:
        """Return the final values of trials with new seeds."""
        repeated = [trial.point.hyperparameters for trial in best for _ in range(RETRAININGS)]
        values = [final(study, trial) for trial in self.train(study, repeated, seed=trial_seed(study.seed, -1))]
        return [values[i : i + RETRAININGS] for i in range(0, len(values), RETRAININGS)]


def final(study: Study, trial: Trial) -> float:
    """Return what a trial ends with, lower is better; NaN if it is infeasible."""
    value = trial.curve.final(study.select)
    return (value if math.isfinite(value) else math.inf) if trial.feasible else math.nan


def best_of(study: Study, trials: Iterable[Trial]) -> Trial:
    def value(trial: Trial) -> float:
        return final(study, trial) if trial.feasible else math.inf

    return min(trials, key=value)


def best_of_k(study: Study, trials: Iterable[Trial]) -> Interval:
    """Return the median best of K and its interval; infinite if no trial is feasible."""
    found = interval([final(study, trial) for trial in trials], study.trials)
    return Interval(math.inf, math.inf, math.inf) if math.isnan(found.median) else found


def of_pool(results: Results) -> Interval:
    return best_of_k(results.study, *results.trials.values())


def unlucky(results: Results) -> float:
    """Return the 95% quantile of the best of K."""
    (outcome,) = results.outcomes.values()
    return outcome.best(results.study.trials).high


def measure(case: Case, tpe: bool, executor: CombiningExecutor) -> Record:
    """Refine a case's bad space and train what it is compared with."""
    with Store.open("sqlite://") as store:
        lab = Laboratory(store, executor)
        first = lab.search(case.bad)
        refinement, last, rounds, error = lab.refine(case.bad)
        refined = list(executor.trained)
        good = lab.search(case.good)
        again = lab.search(case.good.replace(seed=case.good.seed + 1))
        tried = {"refined": refined, "wide": lab.quasi_random(case.wide, len(refined))}
        if tpe:
            tried["tpe"] = lab.tpe(case.wide, len(refined))
        best = lab.retrained(case.good, [best_of(case.good, trials) for trials in tried.values()])
        verdicts = {"first": judged(case, lab, first, boundaries(first)) if first.complete else [], "last": []}
        if refinement:
            verdicts["last"] = judged(case, lab, lab.search(refinement.results.study), refinement.boundaries)
        return description(case.good) | {
            "changes": {key: [change, space(case.bad)[key]] for key, change in case.changes.items()},
            "good_space": space(case.good),
            "refined_space": space(last.study),
            "outcomes": {
                "bad": vars(of_pool(first)),
                "refined": vars(of_pool(last)),
                "good": vars(of_pool(good)) | {"unlucky": unlucky(good)},
                "again": vars(of_pool(again)),
                "wide": vars(best_of_k(case.wide, tried["wide"])),
            },
            "spent": len(refined),
            "rounds": rounds,
            "error": error,
            "retrained": dict(zip(tried, best, strict=True)),
            "verdicts": verdicts,
        }


def judged(case: Case, lab: Laboratory, results: Results, verdicts: Iterable[Boundary]) -> list[Record]:
    """Return each free axis's verdict, and whether it wrongly leaves the range as it is."""
    good, present, records = space(case.good), of_pool(results).median, []
    for verdict in verdicts:
        key, wrong = verdict.axis.key, False
        if not verdict.axis.dimension.free:
            continue
        if verdict.place in STAY and space(results.study)[key] != good[key]:
            replaced = lab.search(with_ranges(results.study, {key: good[key]}))
            wrong = present > of_pool(replaced).high
        records.append({"axis": key, "verdict": verdict.place.value, "wrong": wrong})
    return records


def measure_good(study: Study, executor: CombiningExecutor) -> Record:
    """Refine a good space, which should stay as it is."""
    with Store.open("sqlite://") as store:
        lab = Laboratory(store, executor)
        first = of_pool(lab.search(study))
        _, last, rounds, error = lab.refine(study)
        before, after = space(study), space(last.study)
        return description(study) | {
            "outcomes": {"good": vars(first), "refined": vars(of_pool(last))},
            "axes": len(study.optimizer(next(iter(study.optimizers))).space.free),
            "changes": {key: [before[key], after[key]] for key in before if before[key] != after[key]},
            "spent": len(executor.trained),
            "rounds": rounds,
            "error": error,
        }


def description(study: Study) -> Record:
    (rule,) = study.optimizers
    return {"workload": study.workload, "rule": rule, "k": study.trials, "n": study.pool, "seed": study.seed}


def space(study: Study) -> dict[str, Any]:
    (rule,) = study.optimizers
    return study.optimizer(rule).space.spec()


# The summary


def recovered(record: Record, which: str = "refined", within: str = "high") -> bool:
    return bool(record["outcomes"][which]["median"] <= record["outcomes"]["good"][within])


def below_wide(record: Record) -> bool:
    return bool(record["outcomes"]["refined"]["median"] > record["outcomes"]["wide"]["median"])


def clearly_worse(record: Record, other: str) -> bool:
    """Return whether the refinement's best trial is clearly worse than another search's. A diverged trial is worst."""
    ours, theirs = (np.nan_to_num(record["retrained"][which], nan=np.inf) for which in ("refined", other))
    if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
        return bool(np.isinf(ours).sum() > np.isinf(theirs).sum())
    error = math.sqrt((ours.var(ddof=1) + theirs.var(ddof=1)) / RETRAININGS)
    return bool(ours.mean() - theirs.mean() > CLEAR * error)


def share(records: Sequence[Record], holds: Callable[[Record], bool]) -> str:
    if not records:
        return "–"
    return f"{np.mean([holds(record) for record in records]):.0%} ({sum(map(holds, records))} of {len(records)})"


def median(records: Sequence[Record], key: str) -> str:
    return f"{np.median([record[key] for record in records]):g}" if records else "–"


def counted(records: Iterable[Record], when: str) -> str:
    """Return how often each verdict was given, and how many of those that leave a range as it is are wrong."""
    verdicts = [verdict for record in records for verdict in record["verdicts"][when]]
    wrong = Counter(verdict["verdict"] for verdict in verdicts if verdict["wrong"])
    counts = Counter(verdict["verdict"] for verdict in verdicts).most_common()
    return ", ".join(f"{n} {name}" + f" ({wrong[name]} wrong)" * (name in STAY) for name, n in counts) or "–"


def changed(records: Sequence[Record]) -> str:
    axes, changes = sum(record["axes"] for record in records), sum(len(record["changes"]) for record in records)
    return f"{changes / axes:.0%} ({changes} of {axes})" if axes else "–"


def summary(cases: Sequence[Record], good: Sequence[Record]) -> dict[str, str]:
    """Return measure → what the cases show."""
    with_tpe = [record for record in cases if "tpe" in record["retrained"]]
    return {
        "recovered, before": share(cases, functools.partial(recovered, which="bad")),
        "recovered, refined": share(cases, recovered),
        "good against good": share(cases, functools.partial(recovered, which="again")),
        "refined, within 5–95% of the good space's best of K": share(
            cases, functools.partial(recovered, within="unlucky")
        ),
        "trials spent (median)": median(cases, "spent"),
        "rounds (median)": median(cases, "rounds"),
        "failed": share(cases, lambda record: bool(record["error"])),
        "worse than the wide search": share(cases, below_wide),
        "best trial clearly worse than the wide search's": share(cases, lambda record: clearly_worse(record, "wide")),
        "best trial clearly worse than TPE's": share(with_tpe, lambda record: clearly_worse(record, "tpe")),
        "verdicts before": counted(cases, "first"),
        "verdicts at the end": counted(cases, "last"),
        "good spaces: ranges changed": changed(good),
        "good spaces: trials spent (median)": median(good, "spent"),
        "good spaces: clearly worse afterward": share(good, lambda record: not recovered(record)),
    }


def print_tables(cases: Sequence[Record], good: Sequence[Record]) -> None:
    """Print what the cases of each workload, of each rule, and all of them show."""
    print(f"{len(cases)} cases, {len(good)} good spaces, at most {ROUNDS} rounds")
    for field in ("workload", "rule"):
        groups = list(dict.fromkeys(record[field] for record in [*cases, *good]))
        columns = {
            group: summary(*([record for record in records if record[field] == group] for records in (cases, good)))
            for group in groups
        } | {"all": summary(cases, good)}
        print(f"\n| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|")
        for row in columns["all"]:
            print(f"| {row} | {' | '.join(column[row] for column in columns.values())} |")


# The command


def measure_workload(
    workload: str, arguments: argparse.Namespace, dispatcher: Dispatcher
) -> tuple[list[Record], list[Record]]:
    """Return the records of a workload's cases and of its good spaces. Both train together."""
    tpe = not arguments.without_tpe
    cases = {
        f"case {rule} {index}": functools.partial(measure, draw_case(arguments.seed, workload, rule, index), tpe)
        for rule in arguments.rules
        for index in range(arguments.cases)
    }
    good = {
        f"good {rule} {index}": functools.partial(measure_good, draw_case(arguments.seed, workload, rule, index).good)
        for rule in arguments.rules
        for index in range(arguments.good)
    }
    records = dispatcher.run({**cases, **good})
    return [records[name] for name in cases], [records[name] for name in good]


def names_among(known: Iterable[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r}: expected names from {', '.join(known)}, with commas")
        return names

    return parse


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of the cases")
    parser.add_argument("--cases", type=int, default=3, help="bad spaces for each workload and rule")
    parser.add_argument("--good", type=int, default=1, help="good spaces for each workload and rule")
    parser.add_argument("--workloads", type=names_among(STEPS), default=list(STEPS), help=", ".join(STEPS))
    parser.add_argument("--rules", type=names_among(RULES), default=list(RULES), help=", ".join(RULES))
    parser.add_argument("--slots", type=int, help=f"trials side by side; default: {ON_CPU} on a CPU, {ON_GPU} on a GPU")
    parser.add_argument("--without-tpe", action="store_true", help="leave out the comparison with Optuna's TPE")
    parser.add_argument("--json", type=Path, help="file for the record of every case")
    parser.add_argument("--read", type=Path, nargs="+", help="files of --json; prints their tables and trains nothing")
    parser.add_argument("--taskset", type=Path, help="folder with TaskSet's trials as *.json.xz; trains nothing")
    parser.add_argument("--repetitions", type=int, default=1_000, help="of --taskset, for each N")
    arguments = parser.parse_args()
    if arguments.taskset:
        print_taskset(arguments.taskset, arguments.repetitions, arguments.seed)
        return
    if arguments.read:
        contents = [json.loads(file.read_text()) for file in arguments.read]
        print_tables(*([record for content in contents for record in content[part]] for part in ("cases", "good")))
        return
    if not arguments.without_tpe and not importlib.util.find_spec("optuna"):
        parser.error("the comparison with TPE needs optuna; run pip install optuna, or pass --without-tpe")
    start, dispatcher = time.perf_counter(), Dispatcher(arguments.slots)
    cases, good = list[Record](), list[Record]()
    for workload in arguments.workloads:
        own_cases, own_good = measure_workload(workload, arguments, dispatcher)
        cases += own_cases
        good += own_good
        if arguments.json:
            arguments.json.write_text(json.dumps({"cases": cases, "good": good}, indent=1))
        print(f"{workload}: {time.perf_counter() - start:.0f} s so far", file=sys.stderr)
    print_tables(cases, good)


if __name__ == "__main__":
    main()
