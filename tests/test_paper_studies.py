"""The paper's studies against a second transcription of its tables (Choi et al. 2020: Table 2, Appendices C and D)."""

from __future__ import annotations

import re
import tomllib
from typing import Any, NamedTuple

import pytest

import levelfield as lf
from levelfield.study import built_in_studies
from levelfield.workloads import get_workload


class Paper(NamedTuple):
    """One tuning protocol on one workload, transcribed from the paper.

    ``tables`` has a line for each column of each table: optimizer, symbol, initial, final. In a cell, -3:0 is the
    range [1e-3, 1e0], -3,-2 the set {1e-3, 1e-2}, -3 the value 1e-3; a number with a point is written out. A dash
    means no entry, and x>y an entry that is printed as x and read as y. ``untabled`` is what the tables leave out.
    """

    workload: str
    steps: int
    batch_size: int
    trials_pool: tuple[int, int]
    schedule: dict[str, Any]
    tables: str
    untabled: str = ""
    target: tuple[str, float] | None = None
    protocol: str | None = None
    search: str | None = None
    initial_trials_pool: tuple[int, int] | None = None  # if they differ


LINEAR = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}}
CONSTANT = {"kind": "constant"}
WILSONS = {"kind": "step", "decay_every": 0.1, "decay_factor": 0.5}  # halved every 25 of 250 epochs

SYMBOLS = {
    "η": "learning_rate",
    "α": "learning_rate",
    "η/√ε": "learning_rate/sqrt(epsilon)",
    "α/√ε": "learning_rate/sqrt(epsilon)",
    "α/ε": "learning_rate/epsilon",
    "1-γ": "one_minus_momentum",
    "1-ρ": "one_minus_rho",
    "1-β1": "one_minus_beta1",
    "1-β2": "one_minus_beta2",
    "γ": "momentum",
    "ρ": "rho",
    "β1": "beta1",
    "β2": "beta2",
    "ε": "epsilon",
    "λL2": "l2",
    "λwd": "weight_decay",
    "τ": "label_smoothing",
    "f": "decay_factor",
}

VGG = {"workload": "cifar10_vgg16", "steps": 250 * (45_000 // 128), "batch_size": 128}
CIFAR100 = {"workload": "cifar100_allcnnc", "steps": 350 * (45_000 // 256), "batch_size": 256}
LSTM = {"workload": "war_and_peace_lstm", "steps": 200 * ((2_612_948 - 2_612_948 // 5) // 50 // 50), "batch_size": 50}

WILSONS_DEFAULTS = """
    momentum  γ     0.9
    rmsprop   γ     0.0
    rmsprop   ρ     0.99
    rmsprop   ε     -8
    adam      β1    0.9
    adam      β2    0.999
    adam      ε     -8
    all       λL2   0.0005
"""
DEEPOBS_DEFAULTS = """
    momentum  γ     0.99
    adam      β1    0.9
    adam      β2    0.999
    adam      ε     -8
    all       λL2   0.0005
"""

PAPER = {
    "fashion_mnist": Paper(
        workload="fashion_mnist_cnn",
        steps=10_000,
        batch_size=256,
        trials_pool=(100, 500),
        target=("valid_error", 0.066),
        schedule=LINEAR,
        tables="""
            sgd       η      -2:2          -2:0
            momentum  η      -4:2          -3:-1
            momentum  1-γ    -4:0          -3:0
            nesterov  η      -4:2          -3:-1
            nesterov  1-γ    -4:0          -3:0
            rmsprop   η/√ε   -2:4          -2:0
            rmsprop   1-γ    -3:0          -3:0
            rmsprop   1-ρ    -4:0          -4:0
            rmsprop   ε      -10:10        -10:-6
            adam      α/ε    -2:-4>-2:4    -1:1
            adam      1-β1   -3:0          -3:0
            adam      1-β2   -4:0          -4:0
            adam      ε      -10:10        -6:-2
            nadam     α/ε    -2:4          -1:1
            nadam     1-β1   -3:0          -3:0
            nadam     1-β2   -4:0          -4:0
            nadam     ε      -10:10        -6:-2
        """,
        untabled="all f -3,-2,-1",
    ),
    "cifar10_resnet32": Paper(
        workload="cifar10_resnet32",
        steps=50_000,
        batch_size=256,
        trials_pool=(100, 500),
        target=("valid_error", 0.07),
        schedule=LINEAR,
        tables="""
            sgd       η      -2:2          -1:1
            sgd       λL2    -5,-4,-3,-2   -5,-4,-3,-2
            sgd       f      -4,-3,-2,-1   -4,-3,-2,-1
            momentum  η      -4:2          -2:0
            momentum  1-γ    -3:0          -3:0
            momentum  λL2    -5,-4,-3,-2   -5,-4,-3,-2
            momentum  f      -4,-3,-2,-1   -4,-3,-2,-1
            nesterov  η      -4:2          -2:0
            nesterov  1-γ    -4:1>-4:0     -3:0
            nesterov  λL2    -4            -5,-4,-3,-2
            nesterov  f      -3,-2,-1      -4,-3,-2,-1
            rmsprop   η/√ε   -2:4          -2:0
            rmsprop   1-γ    -3:0          -3:0
            rmsprop   1-ρ    -4:0          -4:0
            rmsprop   ε      -10:10        -4:0
            rmsprop   λL2    -4            -5,-4,-3,-2
            rmsprop   f      -3,-2,-1      -4,-3,-2,-1
            adam      α/ε    -4:-1         -1:1
            adam      1-β1   -3:0.5        -3:0
            adam      1-β2   -4:-1         -4:0
            adam      ε      -9:-5         -3:1
            adam      λL2    -4            -5,-4,-3,-2
            adam      f      -3,-2,-1      -4,-3,-2,-1
            nadam     α/ε    -2:4          -2:0
            nadam     1-β1   -3:0          -3:0
            nadam     1-β2   -4:0          -4:0
            nadam     ε      -10:10        0:4
            nadam     λL2    -5,-4,-3,-2   -5,-4,-3,-2
            nadam     f      -4,-3,-2,-1   -4,-3,-2,-1
        """,
    ),
    "imagenet_resnet50": Paper(
        workload="imagenet_resnet50",
        steps=150_000,
        batch_size=1024,
        trials_pool=(50, 250),
        target=("valid_error", 0.24),
        schedule=LINEAR,
        tables="""
            sgd       η      -2:1          0:2
            sgd       λwd    -5:-2         -4:-3
            sgd       τ      0.0,-2,-1     -1
            sgd       f      -4,-3,-2,-1   -4,-3,-2,-1
            momentum  η      -3:0          -2:0
            momentum  1-γ    -3:0          -2:0
            momentum  λwd    -5:-2         -4:-3
            momentum  τ      0.0,-2,-1     -2
            momentum  f      -4,-3,-2,-1   -4,-3,-2,-1
            nesterov  η      -3:0          -2:0
            nesterov  1-γ    -3:0          -3:0
            nesterov  λwd    -5:-2         -4:-3
            nesterov  τ      0.0,-2,-1     0.0
            nesterov  f      -3            -4,-3,-2,-1
            rmsprop   η/√ε   -2:4          -2:0
            rmsprop   1-γ    0.1           0.1
            rmsprop   1-ρ    -4:0          -2:0
            rmsprop   ε      -10:10        -8:-3
            rmsprop   λwd    -5:-2         -4:-3
            rmsprop   τ      0.0,-2,-1     0.0
            rmsprop   f      -3            -4,-3,-2,-1
            adam      α/ε    0:2           0:2
            adam      1-β1   -3:0          -2:0
            adam      ε      0:4           -2:2
            adam      λwd    -5:-3         -4
            adam      τ      0.0,-2,-1     -1
            adam      f      -3            -4,-3,-2,-1
            nadam     α/ε    -1:3          0:2
            nadam     1-β1   -3:0          -3:0
            nadam     ε      -2:10         3:7
            nadam     λwd    -5:-2         -4
            nadam     τ      0.0,-2,-1     -1
            nadam     f      -3            -3
        """,
        untabled="""
            adam      β2     0.999
            nadam     β2     0.999
        """,
    ),
    "lm1b_transformer": Paper(
        workload="lm1b_transformer",
        steps=750_000,
        batch_size=256,
        trials_pool=(50, 250),
        target=("valid_loss", 3.45),
        schedule=LINEAR,
        tables="""
            sgd       η      -4:-1         -3:-1
            momentum  η      -4:-1         -4:-2
            momentum  1-γ    -4:0          -3:0
            nesterov  η      -4:-1         -4:-2
            nesterov  1-γ    -4:0          -3:0
            rmsprop   η/√ε   -2:4          -1:1
            rmsprop   1-γ    -3:0          -3:0
            rmsprop   1-ρ    -4:0          -4:0
            rmsprop   ε      -10:10        -9:-5
            adam      α/ε    -2:4          1:3
            adam      1-β1   -3:0          -3:0
            adam      1-β2   -4:0          -6:-2
            adam      ε      -10:10        -7:-3
            nadam     α/ε    -2:4          0:2
            nadam     1-β1   -3:0          -3:0
            nadam     1-β2   -4:0          -6:-2
            nadam     ε      -10:10        -6:-2
        """,
        untabled="all f -4,-3,-2,-1,0",
    ),
    "cifar10_vgg16_grid": Paper(
        **VGG,
        trials_pool=(6, 6),
        search="grid",
        protocol="learning rate only",
        schedule=WILSONS,
        # Not in the paper, which points to Wilson et al. 2017.
        tables="""
            sgd       η      –      2.0,1.0,0.5,0.25,0.05,0.01
            momentum  η      –      2.0,1.0,0.5,0.25,0.05,0.01
            rmsprop   η      –      0.005,0.001,0.0005,0.0003,0.0001,0.00005
            adam      α      –      0.005,0.001,0.0005,0.0003,0.0001,0.00005
        """,
        untabled=WILSONS_DEFAULTS,
    ),
    "cifar10_vgg16_wilson": Paper(
        **VGG,
        trials_pool=(16, 16),
        initial_trials_pool=(24, 24),
        protocol="learning rate & {γ, ε}",
        schedule=WILSONS,
        tables="""
            sgd       η      -3:0          -1:1
            momentum  η      -3:0          -1:1
            momentum  1-γ    -3:0          -1:0
            rmsprop   ε      -10:10        -2:2
            rmsprop   α/√ε   -2:4          -1:1
            adam      ε      -10:10        6:10
            adam      α/ε    -2:4          -1:1
        """,
        untabled=WILSONS_DEFAULTS,
    ),
    "cifar10_vgg16_schedule": Paper(
        **VGG,
        trials_pool=(50, 250),
        protocol="schedule",
        schedule=LINEAR,
        tables="""
            sgd       η      -3:1          1.0
            momentum  η      -3:1          -2:0
            rmsprop   η      -5:-1         -4:-2
            adam      α      -5:-1         -5:-1
        """,
        untabled=WILSONS_DEFAULTS + "all f -4,-3,-2,-1",
    ),
    "cifar10_vgg16": Paper(
        **VGG,
        trials_pool=(100, 500),
        protocol="schedule & all",
        schedule=LINEAR,
        tables="""
            sgd       η      -3:1          -2:0
            sgd       λL2    -5:-2         -3:-1
            momentum  η      -3:1          -2:0
            momentum  1-γ    -3:0          -1:0
            momentum  λL2    -5:-2         -3:-1
            rmsprop   α/√ε   -2:4          -2:0
            rmsprop   1-γ    -3:0          -1:0
            rmsprop   1-ρ    -3:0          -3:-2
            rmsprop   ε      -10:10        2:6
            rmsprop   λL2    -5:-2         -3:-1
            adam      α/ε    -2:4          -2:1
            adam      1-β1   -3:0          -1:0
            adam      1-β2   -4:-1         -4:-1
            adam      ε      -10:10        6:10
            adam      λL2    -5:-2         -3:-1
        """,
        untabled="all f -4,-3,-2,-1",
    ),
    "cifar100_allcnnc_constant": Paper(
        **CIFAR100,
        trials_pool=(100, 500),
        protocol="learning rate only",
        schedule=CONSTANT,
        tables="""
            sgd       η      -2:0          -1:0
            momentum  η      -4:0          -3:-2
            adam      α      -5:-2         -4:-3
        """,
        untabled=DEEPOBS_DEFAULTS,
    ),
    "cifar100_allcnnc_schedule": Paper(
        **CIFAR100,
        trials_pool=(100, 500),
        protocol="schedule",
        schedule=LINEAR,
        tables="""
            sgd       η      -2:0          -1:0
            momentum  η      -4:0          -3:-1
            adam      α      -5:-2         -4:-3
        """,
        untabled=DEEPOBS_DEFAULTS + "all f -4,-3,-2,-1",
    ),
    "cifar100_allcnnc_constant_all": Paper(
        **CIFAR100,
        trials_pool=(100, 500),
        protocol="constant & all",
        schedule=CONSTANT,
        tables="""
            momentum  η      –             -4:0
            momentum  1-γ    –             -3:0
            adam      α/ε    -2:-2>-2:2    -1:-1>-1:1
            adam      1-β1   -3:0          -2:0
            adam      1-β2   -4:-1         -4:-1
            adam      ε      -10:-10>-10:10  2:6
        """,
        untabled="all λL2 0.0005",
    ),
    "cifar100_allcnnc": Paper(
        **CIFAR100,
        trials_pool=(100, 500),
        protocol="schedule & all",
        schedule=LINEAR,
        tables="""
            momentum  η      -4:0          -3:-1
            momentum  1-γ    -2:0          -3:-1
            adam      α/ε    -1:1          -1:1
            adam      1-β1   -3:0          -3:0
            adam      1-β2   -4:-1         -5:-2
            adam      ε      2:6           2:6
        """,
        untabled="""
            all       λL2    0.0005
            all       f      -4,-3,-2,-1
        """,
    ),
    "war_and_peace_constant": Paper(
        **LSTM,
        trials_pool=(10, 50),
        protocol="learning rate only",
        schedule=CONSTANT,
        tables="""
            sgd       η          –         -2:1
            momentum  η          –         -4:0
            momentum  1-γ>γ      –         0.99
            adam      α/ε>α      –         -5:-2
            adam      1-β1>β1    –         0.9
            adam      1-β2>β2    –         0.999
            adam      ε          –         -8
        """,
    ),
    "war_and_peace": Paper(
        **LSTM,
        trials_pool=(100, 500),
        protocol="schedule & all",
        schedule=LINEAR,
        tables="""
            sgd       η          -3:1         0:1
            sgd       f          -4,-3,-2,-1  -4,-3,-2,-1
            momentum  η          -4:0         -1:1
            momentum  1-γ        -3:0         -2:0
            momentum  f          -4,-3,-2,-1  -4,-3,-2,-1
            adam      α/ε        -2:4         0:2
            adam      1-β1       -3:0         -2:0
            adam      1-β2       -4:-1        –
            adam      1-β2>β2    –            0.999
            adam      ε          -10:10       0:4
            adam      f          -4,-3,-2,-1  -3
        """,
    ),
}

# "For SGD, we reused the results": it has nothing more to tune there.
REUSED = {
    "cifar100_allcnnc_constant_all": "cifar100_allcnnc_constant",
    "cifar100_allcnnc": "cifar100_allcnnc_schedule",
}
ONLY_FINAL = {"cifar100_allcnnc_constant_all": {"momentum"}}  # it has only one search space
WITHOUT_INITIAL = {"cifar10_vgg16_grid", "war_and_peace_constant"}

NAMES = [*PAPER, *(f"{name}_initial" for name in PAPER if name not in WITHOUT_INITIAL)]


def split(name: str) -> tuple[str, bool]:
    """Return a study's entry in PAPER, and whether it has the initial spaces."""
    return name.removesuffix("_initial"), name.endswith("_initial")


def number(text: str) -> float:
    return float(text if "." in text else f"1e{text}")


def cell(text: str) -> Any:
    """Return a cell as a study file writes it."""
    if ":" in text:
        return {"log": [number(end) for end in text.split(":")]}
    values = [number(value) for value in text.split(",")]
    return {"choice": values} if len(values) > 1 else values[0]


def expected(name: str) -> tuple[dict[str, dict[str, Any]], dict[tuple[str, str], str]]:
    """Return the transcription: optimizer → its space, and (optimizer, key) → what is misprinted."""
    entry, initial = split(name)
    paper = PAPER[entry]
    spaces: dict[str, dict[str, Any]] = {}
    errata = {}
    for line in paper.tables.strip().splitlines():
        optimizer, symbol, *cells = line.split()
        printed, _, read = cells[0 if initial else 1].partition(">")
        if printed == "–":
            continue
        key = SYMBOLS[symbol.split(">")[-1]]
        spaces.setdefault(optimizer, {})[key] = cell(read or printed)
        if read or ">" in symbol:
            errata[optimizer, key] = printed
    if entry in REUSED:
        sgd = expected(REUSED[entry] + "_initial" * initial)[0]["sgd"]
        spaces["sgd"] = {"learning_rate": sgd["learning_rate"]}
    for line in paper.untabled.strip().splitlines():
        optimizer, symbol, text = line.split()
        key = SYMBOLS[symbol]
        for name in spaces if optimizer == "all" else [optimizer]:
            if not {key, f"one_minus_{key}"} & spaces[name].keys():  # a tuned hyperparameter needs no default
                spaces[name][key] = cell(text)
    return spaces, errata


def content(name: str) -> dict[str, Any]:
    return tomllib.loads(built_in_studies()[name].read_text("utf-8"))


def written(name: str) -> dict[str, dict[str, Any]]:
    """Return optimizer → its table in the study file, with the study's schedule merged in."""
    study = content(name)
    return {
        optimizer: table | {"schedule": study["schedule"] | table.get("schedule", {})}
        for optimizer, table in study["optimizers"].items()
    }


# The files


def test_the_paper_has_all_studies_of_its_workloads():
    workloads = {paper.workload for paper in PAPER.values()}
    assert {name for name in built_in_studies() if content(name)["workload"] in workloads} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_budget_is_the_papers(name):
    entry, initial = split(name)
    paper, study = PAPER[entry], content(name)
    trials, pool = paper.initial_trials_pool if initial and paper.initial_trials_pool else paper.trials_pool
    target = {"target": dict(zip(("metric", "value"), paper.target, strict=True))} if paper.target else {}
    search = {"search": paper.search} if paper.search else {}
    budget = {key: value for key, value in study.items() if key not in ("description", "schedule", "optimizers")}
    assert budget == {
        "workload": paper.workload,
        "steps": paper.steps,
        "batch_size": paper.batch_size,
        "trials": trials,
        "pool": pool,
        **target,
        **search,
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_the_search_spaces_is_the_papers(name):
    spaces, _ = expected(name)
    tables = written(name)
    assert tables.keys() == spaces.keys()
    for optimizer, table in tables.items():
        space = dict(spaces[optimizer])
        schedule = dict(PAPER[split(name)[0]].schedule)
        if "decay_factor" in space:
            schedule["decay_factor"] = space.pop("decay_factor")
        assert table.pop("schedule") == schedule, optimizer
        assert table.pop("protocol", None) == PAPER[split(name)[0]].protocol
        table.pop("corrected", None)
        assert table == space, optimizer


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_errata_are_marked_as_corrected(name):
    tables = written(name)
    marked = {(name, key): note for name, table in tables.items() for key, note in table.get("corrected", {}).items()}
    _, errata = expected(name)
    assert marked.keys() == errata.keys()
    for (optimizer, key), printed in errata.items():
        assert key in tables[optimizer]
        as_printed, _, as_read = marked[optimizer, key].partition("; read as ")
        assert as_printed.startswith("printed ")
        assert as_read
        assert numbers(as_printed) == ends(cell(printed))
        assert numbers(as_read) in (ends(tables[optimizer][key]), [])  # no numbers if only the symbol changes


def ends(dimension: Any) -> list[float]:
    return dimension["log"] if isinstance(dimension, dict) else [dimension]


def numbers(text: str) -> list[float]:
    """Return the bounds in brackets, or the value after an equals sign."""
    match = re.search(r"\[(.+?), (.+?)\]|= ([\d.]+\d)", text)
    return [float(group) for group in match.groups() if group] if match else []


def test_there_are_ten_errata():
    assert sum(len(expected(name)[1]) for name in NAMES) == 10


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("_initial")])
def test_initial_and_final_studies_have_the_same_optimizers(name):
    entry, _ = split(name)
    final = set(content(entry)["optimizers"])
    assert set(content(name)["optimizers"]) == final - ONLY_FINAL.get(entry, set())
    assert content(name)["workload"] == content(entry)["workload"]


@pytest.mark.parametrize("name", NAMES)
def test_the_description_is_one_line_that_says_which_space_it_is(name):
    description = content(name)["description"]
    assert "\n" not in description
    assert ("initial" in description) == name.endswith("_initial")
    assert name == "cifar10_vgg16_grid" or ("final" in description) != name.endswith("_initial")


# The loaded studies


@pytest.mark.parametrize("name", NAMES)
def test_the_study_loads_as_written(name):
    entry, _ = split(name)
    spaces, errata = expected(name)
    study = lf.load_study(name)
    assert study.select == get_workload(study.workload).select
    for optimizer, space in spaces.items():
        loaded = study.optimizer(optimizer)
        schedule = {key: dim for key, dim in PAPER[entry].schedule.items() if key != "kind"}
        assert loaded.space.spec() == schedule | space
        assert (loaded.rule.name, loaded.schedule) == (optimizer, PAPER[entry].schedule["kind"])
        assert set(loaded.corrected) == {key for corrected, key in errata if corrected == optimizer}


@pytest.mark.parametrize("suffix", ["", "_initial"])
@pytest.mark.parametrize("entry", REUSED)
def test_sgd_reuses_its_pool_if_it_has_nothing_more_to_tune(entry, suffix):
    again, before = lf.load_study(entry + suffix), lf.load_study(REUSED[entry] + suffix)
    assert again.identity("sgd") == before.identity("sgd")
    assert again.pool <= before.pool
