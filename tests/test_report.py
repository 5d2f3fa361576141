"""The report without a browser: rows of its figures, the figures as files, protocols, tables, and the commands."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from levelfield.report.data import packed, script_json

import levelfield as lf
from levelfield import workloads
from levelfield.analysis.outcomes import Target
from levelfield.analysis.protocols import by_protocol, flips
from levelfield.report.figures import Figure, figures
from levelfield.report.page import render
from levelfield.report.tables import latex, latex_tables, space_rows

pytestmark = pytest.mark.usefixtures("no_gradients")

METRICS = ["train_loss", "train_error", "valid_loss", "valid_error", "test_loss", "test_error"]
K, POOL, EVALUATIONS, INTERVAL, TARGET = 4, 20, 6, 10, 0.3
RATE, ONE_MINUS = {"log": [1e-3, 1e1]}, {"log": [1e-3, 1e0]}
SGD = {"rule": "sgd", "learning_rate": RATE}
MOMENTUM = {"rule": "momentum", "learning_rate": RATE, "one_minus_momentum": ONE_MINUS}
ADAM = {
    "rule": "adam",
    "learning_rate/epsilon": {"log": [1e-2, 1e2]},
    "one_minus_beta1": {"choice": [0.1, 0.05, 0.3]},
    "beta2": 0.999,
    "epsilon": {"log": [1e-3, 1e3]},
}
OPTIMIZERS = {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM}
INFEASIBLE = {"sgd": [0, 7], "adam": [3]}
Pools = Mapping[str, Sequence[Mapping[str, np.ndarray]]]


def study_of(optimizers: Mapping[str, Any] = OPTIMIZERS, **changes: Any) -> lf.Study:
    content = {
        "workload": "fashion_mini",
        "steps": INTERVAL * EVALUATIONS,
        "eval_interval": INTERVAL,
        "trials": K,
        "pool": POOL,
        "target": {"metric": "valid_error", "value": TARGET},
        "optimizers": dict(optimizers),
    }
    return lf.Study(**content | changes)


@pytest.fixture(scope="module")
def pools() -> dict[str, list[dict[str, np.ndarray]]]:
    """Curves that fall to random ends, as float32; infeasible ones break off."""
    generator = np.random.default_rng(0)

    def curves(length: int) -> dict[str, np.ndarray]:
        ends = 0.1 + 0.5 * generator.random(len(METRICS))
        return {
            metric: np.linspace(0.9, end, EVALUATIONS)[:length].astype(np.float32)
            for metric, end in zip(METRICS, ends, strict=True)
        }

    return {
        name: [curves(2 if i in broken else EVALUATIONS) for i in range(POOL + len(broken))]
        for name in OPTIMIZERS
        for broken in [INFEASIBLE.get(name, [])]
    }


@pytest.fixture(scope="module")
def comparison(made, pools) -> lf.Comparison:
    return made(study_of(), pools, INFEASIBLE)


@pytest.fixture
def accuracies(made, pools) -> lf.Comparison:
    """Selected by a metric that is the better the higher."""
    metrics = {"train_loss": "minimize", "valid_accuracy": "maximize"}
    own = replace(workloads.get_workload("fashion_mini"), name="own", metrics=metrics, select="valid_accuracy")
    lf.register_workload(own)
    study = study_of(workload="own", target={"metric": "valid_accuracy", "value": 0.7})
    risen = {
        name: [{"train_loss": each["train_loss"], "valid_accuracy": 1 - each["valid_error"]} for each in pool]
        for name, pool in pools.items()
    }
    return made(study, risen, INFEASIBLE)


@pytest.fixture(scope="module")
def drawn(comparison) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(comparison)}


def feasible(pools: Pools, name: str) -> list[tuple[int, Mapping[str, np.ndarray]]]:
    return [(i, each) for i, each in enumerate(pools[name]) if i not in INFEASIBLE.get(name, [])]


def finals(pools: Pools, name: str, metric: str = "valid_error", at: int = -1) -> np.ndarray:
    """Of the pool, past the library."""
    return np.array([each[metric][at] for _, each in feasible(pools, name)], float)


def selected(by: np.ndarray, shown: np.ndarray, k: int) -> tuple[float, float, float]:
    """Mean and 5–95% of what the best of k has: from the chance that each trial is the best of k draws."""
    order = np.argsort(by)
    n = len(by)
    chances = np.array([((n - i) / n) ** k - ((n - i - 1) / n) ** k for i in range(n)])
    values, chances = shown[order], chances
    ascending = np.argsort(values)
    reached = np.cumsum(chances[ascending])
    low, high = (values[ascending][np.flatnonzero(reached > share - 1e-9)[0]] for share in (0.05, 0.95))
    return float(values @ chances), float(low), float(high)


def numbers(row: Mapping[str, Any]) -> tuple[float, float, float]:
    return row["mean"], row["low"], row["high"]


# ---------------------------------------------------------------------------- rows


def test_there_is_every_figure_in_the_order_of_the_page(drawn):
    assert list(drawn) == [
        "outcomes",
        "steps",
        "best-of-k",
        "pairs",
        "inclusions",
        *(f"hyperparameters-{name}" for name in OPTIMIZERS),
        "curves",
        "selection",
        "budgets",
    ]


def test_rows_of_outcomes(drawn, pools):
    select, report = drawn["outcomes"].panels
    for panel, metric in ((select, "valid_error"), (report, "test_error")):
        assert panel.metric == metric
        assert [row["optimizer"] for row in panel.rows] == list(OPTIMIZERS)
        for row in panel.rows:
            name = row["optimizer"]
            expected = selected(finals(pools, name), finals(pools, name, metric), K)
            assert numbers(row) == pytest.approx(expected)


def test_rows_of_steps_to_the_target(drawn, pools):
    (panel,) = drawn["steps"].panels
    assert [row["optimizer"] for row in panel.rows] == list(OPTIMIZERS)
    for row in panel.rows:
        first = [
            next((INTERVAL * (i + 1) for i, value in enumerate(each["valid_error"]) if value <= TARGET), math.inf)
            for _, each in feasible(pools, row["optimizer"])
        ]
        share = np.mean(np.isfinite(first))
        assert 0 < share < 1
        assert row["probability"] == pytest.approx(1 - (1 - share) ** K)
        fastest = np.sort(first)
        chances = np.diff(-((1 - np.arange(POOL + 1) / POOL) ** K))
        able = np.isfinite(fastest)
        assert row["mean"] == pytest.approx(fastest[able] @ chances[able] / chances[able].sum())


def test_rows_of_the_best_of_k(drawn, pools):
    by_trials, by_cost = drawn["best-of-k"].panels
    assert by_trials.rows == by_cost.rows
    assert [row["k"] for row in by_trials.rows] == 3 * list(range(1, POOL + 1))
    for row in by_trials.rows:
        name, k = row["optimizer"], row["k"]
        errors = finals(pools, name)
        assert numbers(row) == pytest.approx(selected(errors, errors, k))
        spent = INTERVAL * sum(len(each["valid_error"]) for each in pools[name])
        assert row["cost"] == pytest.approx(k * spent / POOL)


def test_rows_of_pairs_and_places(drawn, comparison):
    won, places = drawn["pairs"].panels
    assert [(row["ours"], row["theirs"]) for row in won.rows] == list(itertools.permutations(OPTIMIZERS, 2))
    for row in won.rows:
        assert row["chance"] == comparison.beats(row["ours"], row["theirs"], K)
    assert [(row["optimizer"], row["place"]) for row in places.rows] == list(itertools.product(OPTIMIZERS, [1, 2, 3]))
    expected = comparison.rank_probabilities(K)
    for row in places.rows:
        assert row["chance"] == expected[row["optimizer"]][row["place"] - 1]


def test_rows_of_another_selection(drawn, pools):
    (panel,) = drawn["selection"].panels
    assert panel.metric == "test_error"
    assert [(row["optimizer"], row["selector"]) for row in panel.rows] == list(itertools.product(OPTIMIZERS, METRICS))
    for row in panel.rows:
        by, shown = (finals(pools, row["optimizer"], metric) for metric in (row["selector"], "test_error"))
        assert numbers(row) == pytest.approx(selected(by, shown, K))


def test_rows_of_other_budgets_and_targets(drawn, pools, comparison):
    budgets, targets = drawn["budgets"].panels
    steps = [INTERVAL * (i + 1) for i in range(EVALUATIONS)]
    assert [(row["optimizer"], row["step"]) for row in budgets.rows] == list(itertools.product(OPTIMIZERS, steps))
    for row in budgets.rows:
        errors = finals(pools, row["optimizer"], at=row["step"] // INTERVAL - 1)
        assert row["mean"] == pytest.approx(selected(errors, errors, K)[0])
    everything = np.concatenate([finals(pools, name) for name in OPTIMIZERS])
    values = [row["target"] for row in targets.rows]
    assert min(values) < np.quantile(everything, 0.05)
    assert max(values) == pytest.approx(np.median(everything), rel=0.01)
    for row in targets.rows:
        outcome = comparison.outcome(row["optimizer"])
        found = outcome.at(target=Target("valid_error", row["target"])).steps_to_target(K)
        assert numbers(row) == (found.mean, found.low, found.high)


def test_rows_of_hyperparameters_are_the_trials(drawn, pools, comparison):
    figure = drawn["hyperparameters-adam"]
    free = [one.key for one in comparison.study.optimizer("adam").space.free]
    # The learning rate first.
    assert [free[int(panel.key.split(":")[2])] for panel in figure.panels] == [
        "learning_rate/epsilon",
        "epsilon",
        "one_minus_beta1",
    ]
    rows = figure.panels[0].rows
    assert [row["trial"] for row in rows] == list(range(POOL + 1))
    assert [row["trial"] for row in rows if not row["feasible"]] == INFEASIBLE["adam"]
    errors = finals(pools, "adam")
    border = min(errors.max(), 2 * np.median(errors))
    for row in rows:
        trial = comparison.trials["adam"][row["trial"]]
        chosen = trial.point.hyperparameters
        at = (chosen["epsilon"], chosen["learning_rate"] / chosen["epsilon"], 1 - chosen["beta1"])
        assert tuple(row[f"x{i}"] for i in range(3)) == pytest.approx(at, rel=1e-5)
        value = float(pools["adam"][row["trial"]]["valid_error"][-1]) if row["feasible"] else math.inf
        assert row["value"] == min(value, border)


def test_rows_of_curves_are_the_curves(drawn, pools, comparison):
    for name, panel in zip(OPTIMIZERS, drawn["curves"].panels, strict=True):
        best = int(np.argmin(finals(pools, name)))
        best, _ = feasible(pools, name)[best]
        assert {row["trial"] for row in panel.rows if row["best"]} == {best}
        assert len(panel.rows) == POOL * EVALUATIONS
        for row in panel.rows:
            value = pools[name][row["trial"]]["valid_error"][row["step"] // INTERVAL - 1]
            assert row["value"] == pytest.approx(float(value), rel=1e-5)


def test_rows_of_inclusions_are_the_audit_s_and_a_graph(drawn, comparison):
    (panel,) = drawn["inclusions"].panels
    findings = {(each.edge.special, each.edge.general): each for each in comparison.audit()}
    assert set(findings) == {("sgd", "momentum"), ("sgd", "adam"), ("momentum", "adam")}
    lines = [row for row in panel.rows if "verdict" in row]
    # sgd ⊆ adam follows from the other two.
    assert [(row["special"], row["general"]) for row in lines] == [("sgd", "momentum"), ("momentum", "adam")]
    places = {row["optimizer"]: (row["x"], row["y"]) for row in panel.rows if "optimizer" in row}
    for row in lines:
        finding = findings[row["special"], row["general"]]
        assert (row["worse"], row["better"]) == (finding.worse, finding.better)
        assert (row["p_value"], row["verdict"]) == (finding.p_value, finding.verdict)
        assert places[row["special"]] == (row["x"], row["y"])
        assert places[row["general"]] == (row["x2"], row["y2"])
        assert row["x"] < row["x2"]


def test_a_metric_without_a_twin_on_the_test_set_is_shown_once(comparison):
    found = {figure.name: figure for figure in figures(comparison.at(select="test_error"))}
    assert [panel.metric for panel in found["outcomes"].panels] == ["test_error"]


# ---------------------------------------------------------------------------- figures as files

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def files(comparison, tmp_path_factory) -> dict[str, str]:
    """Every file of the figures, by name. PDF and PNG come from the same drawing, and take their time."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_pdf", lambda spec: json.dumps(spec).encode())
        patch.setattr(vl_convert, "vegalite_to_png", lambda spec, ppi: str(ppi).encode())
        paths = comparison.write_figures(folder)
    assert sorted(paths) == sorted(folder.iterdir())
    return {path.name: path.read_text() for path in paths}


def test_every_figure_and_table_is_a_file(files, drawn):
    forms = {f"{name}.{form}" for name in drawn for form in ("pdf", "svg", "png")}
    assert files.keys() == forms | {"outcomes.tex", "spaces.tex", "audit.tex"}


def test_every_chart_is_valid(drawn):
    """The library leaves that out when it writes, for it takes seconds."""
    for figure in drawn.values():
        for panel in {panel.key.partition(":")[0]: panel for panel in figure.panels}.values():
            panel.chart.to_dict(validate=True)


def marks(svg: str, kind: str) -> int:
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return sum(len(group) for group in groups if {kind, "role-mark"} <= set(group.get("class", "").split()))


def texts(svg: str) -> list[str]:
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_figures_show_their_rows(files, drawn):
    """Counted in the drawings: a mark for each row."""
    assert marks(files["outcomes.svg"], "mark-symbol") == 2 * len(OPTIMIZERS)
    assert marks(files["steps.svg"], "mark-symbol") == len(OPTIMIZERS)
    assert marks(files["pairs.svg"], "mark-rect") == len(drawn["pairs"].panels[0].rows) + len(
        drawn["pairs"].panels[1].rows
    )
    assert marks(files["selection.svg"], "mark-symbol") == len(OPTIMIZERS) * len(METRICS)
    assert marks(files["inclusions.svg"], "mark-symbol") == len(OPTIMIZERS)
    for name in OPTIMIZERS:
        axes = len(drawn[f"hyperparameters-{name}"].panels)
        broken = len(INFEASIBLE.get(name, []))
        assert marks(files[f"hyperparameters-{name}.svg"], "mark-symbol") == axes * (POOL + broken)


def test_figures_name_what_they_show(files):
    for name in OPTIMIZERS:
        for figure in ("outcomes", "steps", "best-of-k", "pairs", "inclusions", "curves", "selection", "budgets"):
            assert name in texts(files[f"{figure}.svg"]), figure
    for figure in ("outcomes", "best-of-k", "curves", "budgets"):
        assert "valid_error" in texts(files[f"{figure}.svg"]), figure
    assert {"valid_error", "test_error"} <= set(texts(files["outcomes.svg"]))
    assert set(METRICS) <= set(texts(files["selection.svg"]))
    assert "1 − momentum" in texts(files["hyperparameters-momentum.svg"])
    assert not any("@" in text for svg in files.values() if svg.startswith("<svg") for text in texts(svg))


def test_harder_targets_stand_to_the_right(comparison, accuracies):
    for view, upwards in ((comparison, False), (accuracies, True)):
        (panel,) = (panel for figure in figures(view) for panel in figure.panels if "target" in panel.rows[0])
        scale = panel.spec()["layer"][0]["encoding"]["x"]["scale"]
        assert scale["reverse"] is not upwards
        assert scale["type"] == "linear"


def test_targets_below_zero_are_on_a_linear_axis(made, pools):
    shifted = {name: [{key: c - 1 for key, c in each.items()} for each in pool] for name, pool in pools.items()}
    view = made(study_of(select="train_loss", target={"metric": "train_loss", "value": -0.5}), shifted, INFEASIBLE)
    (panel,) = (panel for figure in figures(view) for panel in figure.panels if "target" in panel.rows[0])
    assert min(row["target"] for row in panel.rows) < 0
    assert panel.spec()["layer"][0]["encoding"]["x"]["scale"]["type"] == "linear"


def test_figures_have_nothing_to_select(files, drawn):
    for name in drawn:
        spec = json.loads(files[f"{name}.pdf"])
        assert '"param' not in json.dumps(spec)


def test_losses_are_drawn_on_log_axes_and_errors_are_not(comparison):
    def kinds(view: lf.Comparison, name: str) -> set[str]:
        (figure,) = (each for each in figures(view) if each.name == name)
        spec = json.dumps(figure.panels[0].spec())
        return set(re.findall(r'"type": "(log|linear)"', spec))

    assert kinds(comparison, "outcomes") == {"linear"}
    assert kinds(comparison.at(select="train_loss"), "outcomes") == {"log"}


def test_files_of_names_that_are_none(made, pools, tmp_path):
    """Two names that a file system would confuse stay two files, inside the folder."""
    names = ["../a b", "../A b", "x" * 300]
    study = study_of(dict.fromkeys(names, SGD), target=None)
    found = made(study, dict.fromkeys(names, pools["momentum"]))
    files = [figure.name for figure in figures(found) if figure.name.startswith("hyper")]
    assert len({name.lower() for name in files}) == 3
    for name in files:
        assert re.fullmatch(r"[\w.-]{1,80}", name, re.ASCII)
        assert (tmp_path / f"{name}.svg").parent == tmp_path


# ---------------------------------------------------------------------------- protocols


def constant(pools: Mapping[str, float]) -> dict[str, list[dict[str, np.ndarray]]]:
    """Pools in which every trial ends alike."""
    return {
        name: [{metric: np.linspace(0.9, end, EVALUATIONS) for metric in METRICS}] * POOL for name, end in pools.items()
    }


FIXED_ADAM = {"rule": "adam", "learning_rate": RATE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
ENDS = {"sgd rate": 0.2, "adam rate": 0.4, "sgd all": 0.3, "adam all": 0.1, "momentum all": 0.15}


@pytest.fixture(scope="module")
def protocols(made) -> lf.Comparison:
    """With the learning rate alone, sgd leads adam; with everything tuned it is the other way round."""
    optimizers = {
        "sgd rate": SGD | {"protocol": "rate"},
        "adam rate": FIXED_ADAM | {"protocol": "rate"},
        "sgd all": SGD | {"protocol": "all", "learning_rate": {"log": [1e-4, 1e1]}},
        "adam all": ADAM | {"protocol": "all"},
        "momentum all": MOMENTUM | {"protocol": "all"},
    }
    return made(study_of(optimizers), constant(ENDS))


def test_protocols_side_by_side(protocols):
    columns = by_protocol([protocols])
    names = {label: {rule: entry.outcome.name for rule, entry in column.items()} for label, column in columns.items()}
    assert names == {
        "rate": {"sgd": "sgd rate", "adam": "adam rate"},
        "all": {"sgd": "sgd all", "adam": "adam all", "momentum": "momentum all"},
    }
    assert {entry.k for column in columns.values() for entry in column.values()} == {K}


def test_a_flip_is_told(protocols):
    (flip,) = flips(by_protocol([protocols]))
    assert (flip.ours, flip.theirs, flip.before, flip.after) == ("sgd", "adam", "rate", "all")
    sentence = "sgd leads adam with rate (100%), and trails it with all (0%)."
    assert str(flip) == sentence
    assert f"<li>{sentence}</li>" in render(protocols)


def test_without_a_flip_none_is_told(made):
    optimizers = {
        "sgd rate": SGD | {"protocol": "rate"},
        "adam rate": FIXED_ADAM | {"protocol": "rate"},
        "adam all": ADAM | {"protocol": "all"},
        "sgd all": SGD | {"protocol": "all", "learning_rate": {"log": [1e-4, 1e1]}},
    }
    # In one protocol adam leads; in the other they tie, so that nobody leads.
    found = made(study_of(optimizers), constant({"sgd rate": 0.4, "adam rate": 0.2, "adam all": 0.3, "sgd all": 0.3}))
    assert flips(by_protocol([found])) == []
    assert "No two rules change places between the protocols" in render(found)


def test_the_figure_of_protocols(protocols):
    (figure,) = (each for each in figures(protocols) if each.name == "protocols")
    select, report = figure.panels
    assert (select.metric, report.metric) == ("valid_error", "test_error")
    rows = {(row["rule"], row["protocol"]): row for row in select.rows}
    assert len(rows) == len(select.rows) == 5
    for (rule, protocol), row in rows.items():
        assert row["optimizer"] == f"{rule} {protocol}"
        assert row["mean"] == pytest.approx(ENDS[row["optimizer"]], rel=1e-6)
        assert row["k"] == K
    select.chart.to_dict(validate=True)
    svg = vl_convert.vegalite_to_svg(select.spec())
    assert marks(svg, "mark-symbol") == 5
    found = texts(svg)
    for name in ("rate", "all", "sgd", "adam", "momentum"):  # columns, and the rules in a legend
        assert name in found


def test_one_protocol_is_no_figure(comparison):
    assert "protocols" not in {figure.name for figure in figures(comparison)}
    assert "Tuning protocols" not in render(comparison)


@pytest.fixture(scope="module")
def three(made) -> list[lf.Comparison]:
    """Three studies of the same rules; the leader changes twice."""
    ends = {"first": (0.2, 0.4), "second": (0.4, 0.2), "third": (0.1, 0.3)}
    schedules = [{"kind": "constant"}, {"kind": "linear", "decay_steps": 1.0, "decay_factor": 0.1}]
    return [
        made(
            study_of({"sgd": SGD, "adam": ADAM}, name=name, trials=1 + i, schedule=schedules[i % 2]),
            constant({"sgd": sgd, "adam": adam}),
        )
        for i, (name, (sgd, adam)) in enumerate(ends.items())
    ]


def test_studies_beside_each_other(three):
    first, *_ = three
    columns = by_protocol(three)
    assert [(label, list(column)) for label, column in columns.items()] == [
        (label, ["sgd", "adam"]) for label in ("first", "second", "third")
    ]
    assert [column["sgd"].k for column in columns.values()] == [1, 2, 3]
    assert [str(each) for each in flips(columns)] == [
        "sgd leads adam with first (100%), and trails it with second (0%).",
        "adam leads sgd with second (100%), and trails it with third (0%).",
    ]
    (figure,) = (each for each in figures(first, three) if each.name == "protocols")
    assert [(row["protocol"], row["rule"]) for row in figure.panels[0].rows] == list(
        itertools.product(["first", "second", "third"], ["sgd", "adam"])
    )
    page = render(first, three)
    assert page.count("and trails it with") == 2


def test_two_optimizers_of_a_rule_go_by_their_names(made):
    found = made(
        study_of({"fast": SGD, "slow": SGD | {"learning_rate": {"log": [1e-5, 1e-4]}}, "adam": ADAM}),
        constant({"fast": 0.1, "slow": 0.3, "adam": 0.2}),
    )
    assert by_protocol([found]).keys() == {"study"}
    assert list(by_protocol([found])["study"]) == ["fast", "slow", "adam"]


def test_studies_of_the_same_name_do_not_hide_each_other(made):
    one, other = (
        made(study_of({"sgd": SGD, "adam": ADAM}, seed=i), constant({"sgd": 0.1 + i, "adam": 0.2 + i})) for i in (0, 1)
    )
    columns = by_protocol([one, other])
    assert list(columns) == ["study", "study (study)"]
    means = [entry.outcome.best(K).mean for column in columns.values() for entry in column.values()]
    assert means == pytest.approx([0.1, 0.2, 1.1, 1.2])


def test_studies_beside_each_other_may_have_protocols_of_the_same_name(made):
    """As the paper's final and initial spaces have: there are two, not one that hides the other."""
    tables = {"sgd": SGD | {"protocol": "everything"}, "adam": ADAM | {"protocol": "everything"}}
    both = [
        made(study_of(tables, seed=i, name=name), constant({"sgd": 0.1 + i, "adam": 0.2 - i / 5}))
        for i, name in enumerate(("final", "initial"))
    ]
    assert list(by_protocol(both)) == ["everything", "everything (initial)"]
    (flip,) = flips(by_protocol(both))
    assert (flip.before, flip.after) == ("everything", "everything (initial)")


def test_an_optimizer_without_trials_is_in_no_figure_of_protocols(made):
    found = made(
        study_of({name: SGD | {"rule": "sgd", "protocol": name} for name in "ab"} | {"momentum": MOMENTUM}),
        constant({"a": 0.1, "b": 0.2}),
    )
    (figure,) = (each for each in figures(found) if each.name == "protocols")
    assert [row["rule"] for row in figure.panels[0].rows] == ["sgd", "sgd"]
    assert flips(by_protocol([found])) == []


# ---------------------------------------------------------------------------- tables in LaTeX


def cells(table: str) -> list[list[str]]:
    """Rows of a table, its heading first; checks that it is one for booktabs."""
    begin, top, heading, middle, *body, bottom, end = table.splitlines()
    columns = re.fullmatch(r"\\begin\{tabular\}\{(l[lr]*)\}", begin)[1]
    assert (top, middle, bottom) == (r"\toprule", r"\midrule", r"\bottomrule")
    assert end == r"\end{tabular}"
    rows = [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in (heading, *body)]
    assert all(line.endswith(r" \\") for line in (heading, *body))
    assert all(len(row) == len(columns) for row in rows)
    return rows


def test_the_table_of_outcomes(comparison, files):
    heading, *rows = cells(files["outcomes.tex"])
    assert heading == [
        "optimizer",
        r"valid\_error",
        r"5--95\%",
        r"test\_error",
        r"5--95\%",
        "steps to target",
        "reached",
        "feasible",
    ]
    for name, row in zip(OPTIMIZERS, rows, strict=True):
        outcome = comparison.outcome(name)
        found, test, reached = outcome.best(K), outcome.best(K, "test_error"), outcome.steps_to_target(K)
        assert row == [
            name,
            rf"{100 * found.mean:.2f}\%",
            rf"{100 * found.low:.2f}\% -- {100 * found.high:.2f}\%",
            rf"{100 * test.mean:.2f}\%",
            rf"{100 * test.low:.2f}\% -- {100 * test.high:.2f}\%",
            f"{reached.mean:.0f}",
            rf"{100 * reached.probability:.0f}\%",
            f"{POOL} of {POOL + len(INFEASIBLE.get(name, []))}",
        ]


def test_the_table_of_the_audit(comparison, files):
    heading, *rows = cells(files["audit.tex"])
    assert heading == ["inclusion", "worse", "better", "p", "verdict"]
    assert [row[0] for row in rows] == [
        rf"{special} $\subseteq$ {general}"
        for special, general in (("sgd", "momentum"), ("sgd", "adam"), ("momentum", "adam"))
    ]
    for row, finding in zip(rows, comparison.audit(), strict=True):
        numbers = [rf"{100 * finding.worse:.0f}\%", rf"{100 * finding.better:.0f}\%", f"{finding.p_value:.2g}"]
        assert row[1:] == [*numbers, finding.verdict]


def test_the_table_of_spaces(files):
    heading, *rows = cells(files["spaces.tex"])
    assert heading == ["optimizer", "hyperparameter", "range"]
    assert ["adam", "learning\\_rate/epsilon", "log [0.01, 100]"] in rows
    assert ["adam", "one\\_minus\\_beta1", r"\{0.1, 0.05, 0.3\}"] in rows
    assert ["adam", "beta2", "0.999"] in rows


def test_tables_without_numbers(made):
    """No trials, and no inclusions: a dash is no range, and there is no table of an audit."""
    found = latex_tables(made(study_of({"momentum": MOMENTUM}, target=None), {}))
    assert found.keys() == {"outcomes", "spaces"}
    heading, row = cells(found["outcomes"])
    assert "steps to target" not in heading
    assert row == ["momentum", "--", "--", "--", "--", "0 of 0"]


ESCAPES = re.compile(
    r"\\text(backslash|asciitilde|asciicircum|less|greater)\{\}|\\[{}$&#%_]|\$(\\subseteq|\\leq|-)\$|--"
)
NAMES_OF = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "less": "<", "greater": ">"}
SYMBOLS = {r"$\subseteq$": "⊆", r"$\leq$": "≤", "$-$": "−", "--": "–"}


def read(match: re.Match[str]) -> str:
    return NAMES_OF.get(match[1]) or SYMBOLS.get(match[0]) or match[0][1:]


@given(text=st.text(st.sampled_from([*"\\{}$&#%_~^<>ab 1", "⊆", "≤", "−", "–"])))
def test_special_characters_are_escaped_and_nothing_is_lost(text):
    written = latex(text)
    assert not set(ESCAPES.sub("", written)) & set("\\{}$&#%_~^<>")
    assert ESCAPES.sub(read, written) == text


def test_hostile_names_leave_a_table_whole(made, pools):
    name = "100% & \\input{x} $a_b$ #1 ~^ {"
    found = latex_tables(made(study_of({name: SGD}), {name: pools["sgd"]}, {name: INFEASIBLE["sgd"]}))
    for table in found.values():
        assert len(cells(table)) >= 2
        assert r"\input{" not in table


# ---------------------------------------------------------------------------- spaces


def test_spaces_beside_the_initial_ones(made):
    """A built-in study's, which was refined from another."""
    study, first = lf.load_study("fashion_mnist"), lf.load_study("fashion_mnist_initial")
    rows = list(space_rows(made(study, {})))
    assert len(rows) == sum(len(study.optimizer(name).space.axes) for name in study.optimizers)
    by_key = {(row["optimizer"], row["hyperparameter"]): row for row in rows}
    row = by_key["momentum", "learning_rate"]
    assert (row["initial"], row["range"]) == ("log [1e-04, 100]", "log [0.001, 0.1]")
    assert row["rule"] == "momentum"
    for (name, key), row in by_key.items():
        before = next(one for one in first.optimizer(name).space if one.key == key).dimension.spec()
        (kind,) = before
        assert row["initial"].startswith("{" if kind == "choice" else kind)
        shown = [float(number) for number in re.findall(r"[\d.e+-]+", row["initial"].removeprefix(kind))]
        assert shown == pytest.approx(before[kind])
    table = latex_tables(made(study, {}))["spaces"]
    assert cells(table)[0] == ["optimizer", "hyperparameter", "initial", "range"]
    page = render(made(study, {}))
    assert '<th scope="col">initial</th>' in page
    assert "log [1e-04, 100]" in page


def test_a_study_that_borrows_a_name_has_no_initial_spaces(made):
    study = study_of(name="fashion_mnist")
    assert {row["initial"] for row in space_rows(made(study, {}))} == {""}


def test_spaces_without_initial_ones(comparison):
    assert {row["initial"] for row in space_rows(comparison)} == {""}
    assert '<th scope="col">initial</th>' not in render(comparison)


def test_what_was_corrected_is_told(made):
    study = lf.load_study("fashion_mnist_initial")
    rows = [row for row in space_rows(made(study, {})) if row["corrected"]]
    assert [(row["optimizer"], row["hyperparameter"]) for row in rows] == [("adam", "learning_rate/epsilon")]
    assert "† corrected: printed [1e-2, 1e-4]" in render(made(study, {}))


# ---------------------------------------------------------------------------- the page's text

CONTENT = st.recursive(
    st.one_of(st.text(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(content=CONTENT)
def test_data_survive_inside_a_script(content):
    text = script_json(content)
    assert json.loads(text) == content
    assert not set(text) & set("<>&\u2028\u2029")


def test_data_cannot_end_their_script():
    text = script_json({"</script>": "<!-- <script> ]]> &lt;"})
    assert json.loads(text) == {"</script>": "<!-- <script> ]]> &lt;"}
    assert "<" not in text
    with pytest.raises(ValueError, match="JSON"):
        script_json(math.nan)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from("abc"), "value": st.none() | st.integers(), "best": st.booleans()}
        )
    )
)
def test_packed_rows_hold_the_rows(rows):
    found = packed(rows)
    assert json.loads(script_json(found)) == found
    names, columns = found["names"], found["columns"]
    again = [
        {key: names[key][value] if key in names else value for key, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]
    assert again == rows


def test_the_study_in_the_page_is_a_study_file(comparison, made):
    optimizers = {"\"quoted\" 'name'": SGD, "a.b/c = 1": ADAM, "ünïcode ∑ 🦊\\": MOMENTUM}
    study = study_of(optimizers, name="<b>&amp;", description='He said "no" & left\n')
    for each in (comparison.study, study):
        shown = re.search(r"<pre[^>]*>(.*?)</pre>", render(made(each, {})), re.DOTALL)
        assert lf.Study(**tomllib.loads(html.unescape(shown[1]))).spec() == each.spec()


def test_a_study_file_has_a_line_for_each_hyperparameter():
    text = study_of({"a/b": ADAM}).to_toml()
    _, _, table = text.partition('[optimizers."a/b"]\n')
    assert sorted(table.splitlines()) == [
        '"learning_rate/epsilon" = { log = [0.01, 100.0] }',
        "beta2 = 0.999",
        "epsilon = { log = [0.001, 1000.0] }",
        "one_minus_beta1 = { choice = [0.1, 0.05, 0.3] }",
        'rule = "adam"',
    ]


def test_most_of_a_small_page_is_its_scripts(comparison):
    page = render(comparison)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert len(data) < 100_000
    assert len(page.encode()) < 1_500_000


def test_a_page_cannot_be_half_written(comparison, tmp_path):
    path = tmp_path / "made" / "report.html"
    assert comparison.write_report(path) == path
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    before = path.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(lf.LevelfieldError, match=r"file/report.html: cannot be written"):
        comparison.write_report(tmp_path / "file" / "report.html")
    assert path.read_text() == before


# ---------------------------------------------------------------------------- the commands


@pytest.fixture
def cli(monkeypatch, command, tmp_path, made) -> Callable[..., tuple[int, str, str]]:
    """Commands in a folder with two studies and their trials, a third without, and one of another workload."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vl_convert, "vegalite_to_pdf", lambda spec: b"%PDF-")
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda spec, ppi: b"PNG")
    ends = {"small": (0.2, 0.4), "other": (0.4, 0.2)}
    for i, (name, (sgd, adam)) in enumerate(ends.items()):
        study = study_of({"sgd": SGD, "adam": ADAM}, name=name, seed=i)
        Path(f"{name}.toml").write_text(study.to_toml())
        made(study, constant({"sgd": sgd, "adam": adam}), store=tmp_path / f"levelfield-out/{name}/trials.db")
    Path("never.toml").write_text(study_of(name="never").to_toml())
    lone = lf.Study(workload="quadratic", steps=4, trials=1, optimizers={"sgd": SGD}, name="lone")
    Path("lone.toml").write_text(lone.to_toml())
    return command


def test_report_writes_figures_and_tables(cli):
    code, out, err = cli("report", "small.toml", "--figures", "paper/figures")
    assert code == 0
    written = {path.name for path in Path("paper/figures").iterdir()}
    assert {"outcomes.pdf", "outcomes.svg", "outcomes.png", "outcomes.tex", "spaces.tex", "audit.tex"} <= written
    assert {"hyperparameters-sgd.svg", "hyperparameters-adam.svg", "curves.svg", "pairs.svg"} <= written
    assert "protocols.svg" not in written
    assert [line for line in err.splitlines() if line.startswith("wrote ")] == [
        line for line in err.splitlines() if line
    ]
    assert len(err.splitlines()) == len(written)
    assert "report: levelfield-out/small/report.html" in out


def test_report_beside_another_study(cli):
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml", "--figures", "figures")
    assert code == 0
    page = Path("levelfield-out/small/report.html").read_text()
    assert "<li>sgd leads adam with small (100%), and trails it with other (0%).</li>" in page
    assert {"protocols.pdf", "protocols.svg", "protocols.png"} <= {path.name for path in Path("figures").iterdir()}
    assert {"small", "other", "sgd", "adam"} <= set(texts(Path("figures/protocols.svg").read_text()))
    assert not Path("levelfield-out/other/report.html").exists()


def test_report_beside_studies_of_one_store(cli, made, tmp_path):
    store = tmp_path / "all.db"
    for i, name in enumerate(("small", "other")):
        study = lf.load_study(f"{name}.toml")
        made(study, constant({"sgd": 0.1 + i / 5, "adam": 0.2}), store=store)
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml", "--store", str(store))
    assert code == 0
    page = Path("levelfield-out/small/report.html").read_text()
    assert "sgd leads adam with small (100%), and trails it with other (0%)." in page


def test_a_study_beside_that_has_no_trials_in_the_store_is_refused(cli, made, tmp_path):
    made(lf.load_study("small.toml"), constant({"sgd": 0.1, "adam": 0.2}), store=tmp_path / "all.db")
    Path("never.toml").write_text(study_of(name="never", seed=9).to_toml())
    code, _, err = cli("report", "small.toml", "--beside", "never.toml", "--store", str(tmp_path / "all.db"))
    assert code == 2
    assert err == "levelfield: --beside never.toml: no trial of it is stored; 'levelfield run never.toml' trains them\n"


def test_a_study_beside_is_selected_by_the_same_metric(cli, monkeypatch):
    other = lf.load_study("other.toml").replace(select="valid_loss")
    Path("other.toml").write_text(other.to_toml())
    selected = []
    write = lf.Comparison.write_report

    def watched(comparison: lf.Comparison, path: Path, protocols: Sequence[lf.Comparison]) -> Path:
        selected.extend(each.outcome("sgd").select for each in protocols)
        return write(comparison, path, protocols)

    monkeypatch.setattr(lf.Comparison, "write_report", watched)
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml")
    assert code == 0
    assert selected == ["valid_error", "valid_error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beside", "lone.toml"], ["--beside lone.toml", "it trains quadratic", "small trains fashion_mini"]),
        (["--beside", "never.toml"], ["levelfield-out/never/trials.db", "no such store"]),
        (["--beside", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["--beside", "fashion_mni"], ["'fashion_mni'", "did you mean 'fashion_mini'?"]),
        (["--beside"], ["--beside", "argument"]),
        (["--figures", "small.toml"], ["small.toml", "cannot be written"]),
        (["--figures", "small.toml/inside"], ["small.toml/inside", "cannot be written"]),
    ],
)
def test_a_bad_report_is_refused_in_one_line(cli, arguments, words):
    code, _, err = cli("report", "small.toml", *arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    for word in words:
        assert word in err
