"""Refine one bad study, as an example: three optimizers on tolstoi_mini whose ranges miss the good values.

    python benchmarks/bad_spaces.py

Prints what each round tried, the verdicts at the end, and the median best of 8 in the bad, the refined, and the good
space. It trains several hundred trials: minutes on a GPU or a CPU.
"""

from __future__ import annotations

import levelfield as lf
from levelfield import run
from levelfield.executors import get_executor
from levelfield.reading import read_pools
from levelfield.store import Store

BAD = {
    "nesterov": {"learning_rate": {"log": [1e2, 3e3]}},
    "rmsprop": {"learning_rate": {"log": [1e-5, 1e-4]}, "epsilon": {"log": [1e-10, 1e-8]}},
    "adam": {
        "learning_rate": {"log": [1e-5, 1e-3]},
        "one_minus_beta1": {"log": [1e-4, 1e-3]},
        "epsilon": {"log": [1e-8, 1e-4]},
    },
}


def main() -> None:
    good = lf.load_study("tolstoi_mini").only(BAD).replace(steps=600, eval_interval=300, trials=8, pool=20)
    tables = {name: good.optimizer(name).spec() for name in BAD}
    for name, ranges in BAD.items():
        without_ratio = {key: value for key, value in tables[name].items() if not key.startswith("learning_rate/")}
        tables[name] = without_ratio | ranges
    bad = good.replace(name="bad", optimizers=tables)
    print(*lf.departures(bad), sep="\n")
    executor = get_executor("local", None)
    with Store.open("sqlite://") as store:
        for refinement in run.refine_in_rounds(bad, 3, store, executor):
            print(*refinement.attempts or refinement.boundaries, sep="\n")
        for study in (bad, good):
            run.run(study, store, executor)
        pools = [read_pools(study, store) for study in (bad, refinement.study, good)]
    for name in BAD:
        medians = [results.outcome(name).interval(good.trials).median for results in pools]
        print(f"{name}: bad {medians[0]:.2%}, refined {medians[1]:.2%}, good {medians[2]:.2%}")


if __name__ == "__main__":
    main()
