"""The figures: their rows, their files, and how a new one is found."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair
import numpy as np
import pytest
import scipy.stats
import vl_convert
from report_helpers import (
    EVALUATIONS,
    INFEASIBLE,
    INTERVAL,
    METRICS,
    OPTIMIZERS,
    POOL,
    SGD,
    TARGET,
    K,
    Pools,
    random_pools,
    study_of,
)

import levelfield as lf
from levelfield import workloads
from levelfield.report import figures as figures_package
from levelfield.report.figure import Figure
from levelfield.report.figures import figures
from levelfield.report.page import file_spec, render
from levelfield.trial import Target

NUMBERS = {name: number for number, name in enumerate(OPTIMIZERS)}


@pytest.fixture(scope="module")
def pools() -> Pools:
    return random_pools()


@pytest.fixture(scope="module")
def comparison(made, pools) -> lf.Comparison:
    return made(study_of(), pools, INFEASIBLE)


@pytest.fixture
def accuracies(made, pools) -> lf.Comparison:
    """Selected by a metric that is maximized."""
    metrics = {"train_loss": "minimize", "valid_accuracy": "maximize"}
    own = replace(workloads.get_workload("fashion_mini"), name="own", metrics=metrics, select="valid_accuracy")
    lf.register_workload(own)
    study = study_of(workload="own", target={"metric": "valid_accuracy", "value": 0.7})
    risen = {
        name: [{"train_loss": trial["train_loss"], "valid_accuracy": 1 - trial["valid_error"]} for trial in pool]
        for name, pool in pools.items()
    }
    return made(study, risen, INFEASIBLE)


@pytest.fixture(scope="module")
def drawn(comparison) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures(comparison.results)}


def feasible(pools: Pools, name: str) -> list[tuple[int, Mapping[str, np.ndarray]]]:
    return [(i, trial) for i, trial in enumerate(pools[name]) if i not in INFEASIBLE.get(name, [])]


def finals(pools: Pools, name: str, metric: str = "valid_error", at: int = -1) -> np.ndarray:
    """Return a metric of the feasible trials, without the library."""
    return np.array([trial[metric][at] for _, trial in feasible(pools, name)], float)


def selected(by: np.ndarray, shown: np.ndarray, k: int) -> tuple[float, float, float]:
    """Return the mean and 5–95% of the best of k, from the probability that each trial is the best of k draws."""
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


def interval(row: Mapping[str, Any]) -> tuple[float, float, float]:
    return row["median"], row["medianLow"], row["medianHigh"]


def median_ranks(n: int, k: int) -> tuple[int, int, int]:
    """Return which of n sorted trials are the median best of k and the ends of its 90% confidence interval."""
    q = 1 - 0.5 ** (1 / k)
    below = scipy.stats.binom(n, q).cdf(np.arange(n))
    assert below[0] < 0.05  # otherwise the lower end is open
    return math.ceil(q * n) - 1, int(np.flatnonzero(below > 0.05)[0]) - 1, int(np.flatnonzero(below >= 0.95)[0])


# ---------------------------------------------------------------------------- rows


def test_figures_come_in_the_order_of_the_page(drawn):
    assert list(drawn) == [
        "outcomes",
        "steps",
        "best-of-k",
        "pairs",
        "inclusions",
        "hyperparameters",
        "curves",
        "selection",
        "budgets",
    ]


def test_rows_of_outcomes(drawn, pools):
    select, report = drawn["outcomes"].panels
    for panel, metric in ((select, "valid_error"), (report, "test_error")):
        assert panel.metric == metric
        assert [row["name"] for row in panel.rows] == list(OPTIMIZERS)
        for row in panel.rows:
            name = row["name"]
            assert row["optimizer"] == NUMBERS[name]
            expected = selected(finals(pools, name), finals(pools, name, metric), K)
            assert numbers(row) == pytest.approx(expected, rel=1e-6)
            assert ("median" in row) == (metric == "valid_error")
    for row in select.rows:
        errors = np.sort(finals(pools, row["name"]))
        assert interval(row) == pytest.approx(tuple(errors[rank] for rank in median_ranks(POOL, K)), rel=1e-6)


def test_rows_of_steps_to_the_target(drawn, pools):
    (panel,) = drawn["steps"].panels
    assert [row["name"] for row in panel.rows] == list(OPTIMIZERS)
    for row in panel.rows:
        first = [
            next((INTERVAL * (i + 1) for i, value in enumerate(trial["valid_error"]) if value <= TARGET), math.inf)
            for _, trial in feasible(pools, row["name"])
        ]
        reached = np.isfinite(first).sum()
        assert 0 < reached < POOL
        assert row["reached"] == pytest.approx(1 - (1 - reached / POOL) ** K)
        one = scipy.stats.binomtest(int(reached), POOL).proportion_ci(0.9, "exact")
        ends = (1 - (1 - one.low) ** K, 1 - (1 - one.high) ** K)
        assert (row["reachedLow"], row["reachedHigh"]) == pytest.approx(ends, rel=1e-6)
        steps = [np.sort(first)[rank] for rank in median_ranks(POOL, K)]
        assert interval(row) == tuple(step if math.isfinite(step) else None for step in steps)


def test_rows_of_the_best_of_k(drawn, pools):
    by_trials, by_cost, reported = drawn["best-of-k"].panels
    assert by_trials.rows == by_cost.rows
    assert [row["k"] for row in by_trials.rows] == 3 * list(range(1, POOL + 1))
    assert reported.metric == "test_error"
    for row, reported_row in zip(by_trials.rows, reported.rows, strict=True):
        name, k = row["name"], row["k"]
        errors, reported_errors = finals(pools, name), finals(pools, name, "test_error")
        assert numbers(row) == pytest.approx(selected(errors, errors, k))
        assert (reported_row["name"], reported_row["k"]) == (name, k)
        assert numbers(reported_row) == pytest.approx(selected(errors, reported_errors, k))
        spent = INTERVAL * sum(len(trial["valid_error"]) for trial in pools[name])
        assert row["cost"] == pytest.approx(k * spent / POOL)


def test_rows_of_pairs_and_ranks(drawn, comparison):
    wins, ranks = drawn["pairs"].panels
    assert [(row["ours"], row["theirs"]) for row in wins.rows] == list(itertools.permutations(OPTIMIZERS, 2))
    for row in wins.rows:
        assert (row["row"], row["column"]) == (NUMBERS[row["ours"]], NUMBERS[row["theirs"]])
        assert row["chance"] == pytest.approx(comparison.beats(row["ours"], row["theirs"], K), abs=1e-6)
        verdict = {(row["ours"], row["theirs"]): "clearly better", (row["theirs"], row["ours"]): "clearly worse"}
        expected = [verdict[pair] for pair in comparison.separated() if pair in verdict] or ["not clearly different"]
        assert [row["verdict"]] == expected
    assert [(row["name"], row["rank"]) for row in ranks.rows] == list(itertools.product(OPTIMIZERS, [1, 2, 3]))
    expected = comparison.rank_probabilities(K)
    for row in ranks.rows:
        assert row["chance"] == pytest.approx(expected[row["name"]][row["rank"] - 1], abs=1e-6)


def test_rows_of_another_selection(drawn, pools):
    (panel,) = drawn["selection"].panels
    assert panel.metric == "test_error"
    assert [(row["name"], row["selectorName"]) for row in panel.rows] == list(itertools.product(OPTIMIZERS, METRICS))
    for row in panel.rows:
        by, shown = (finals(pools, row["name"], metric) for metric in (row["selectorName"], "test_error"))
        assert numbers(row) == pytest.approx(selected(by, shown, K))


def test_rows_of_other_budgets_and_targets(drawn, pools, comparison):
    budgets, targets = drawn["budgets"].panels
    steps = [INTERVAL * (i + 1) for i in range(EVALUATIONS)]
    assert [(row["name"], row["step"]) for row in budgets.rows] == list(itertools.product(OPTIMIZERS, steps))
    for row in budgets.rows:
        errors = finals(pools, row["name"], at=row["step"] // INTERVAL - 1)
        assert row["mean"] == pytest.approx(selected(errors, errors, K)[0])
    everything = np.concatenate([finals(pools, name) for name in OPTIMIZERS])
    values = [row["target"] for row in targets.rows]
    assert min(values) < np.quantile(everything, 0.05)
    assert max(values) == pytest.approx(np.median(everything), rel=0.01)
    for row in targets.rows:
        outcome = comparison.outcome(row["name"])
        steps = outcome.at(target=Target("valid_error", row["target"])).steps_to_target(K)
        assert numbers(row) == pytest.approx((steps.mean, steps.low, steps.high))


def test_rows_of_hyperparameters_are_the_trials(drawn, pools, comparison):
    part = drawn["hyperparameters"].parts[2]
    assert (part.title, part.name) == ("adam", "adam")
    free = [axis.key for axis in comparison.study.optimizer("adam").space.free]
    # The learning rate comes first.
    assert [free[panel.live["axis"]] for panel in part.panels] == [
        "learning_rate/epsilon",
        "epsilon",
        "one_minus_beta1",
    ]
    rows = part.panels[0].rows
    assert [row["trial"] for row in rows] == list(range(POOL + 1))
    assert [row["trial"] for row in rows if not row["feasible"]] == INFEASIBLE["adam"]
    errors = finals(pools, "adam")
    border = min(errors.max(), 2 * np.median(errors))
    for row in rows:
        trial = comparison.trials["adam"][row["trial"]]
        chosen = trial.point.hyperparameters
        choice = [0.1, 0.05, 0.3].index(pytest.approx(1 - chosen["beta1"]))
        at = (chosen["epsilon"], chosen["learning_rate"] / chosen["epsilon"], choice)
        assert tuple(row[f"x{i}"] for i in range(3)) == pytest.approx(at, rel=1e-5)
        value = float(pools["adam"][row["trial"]]["valid_error"][-1]) if row["feasible"] else math.inf
        assert row["value"] == pytest.approx(min(value, border), rel=1e-6)


def test_rows_of_curves_are_the_curves(drawn, pools, comparison):
    for name, panel in zip(OPTIMIZERS, drawn["curves"].panels, strict=True):
        best = int(np.argmin(finals(pools, name)))
        best, _ = feasible(pools, name)[best]
        assert {row["trial"] for row in panel.rows if row["best"]} == {best}
        assert len(panel.rows) == POOL * EVALUATIONS
        for row in panel.rows:
            value = pools[name][row["trial"]]["valid_error"][row["step"] // INTERVAL - 1]
            assert row["value"] == pytest.approx(float(value), rel=1e-5)


def test_rows_of_inclusions_are_the_findings_and_a_graph(drawn, comparison):
    (panel,) = drawn["inclusions"].panels
    findings = {(finding.edge.special, finding.edge.general): finding for finding in comparison.audit()}
    assert set(findings) == {("sgd", "momentum"), ("sgd", "adam"), ("momentum", "adam")}
    lines = [row for row in panel.rows if "verdict" in row]
    # sgd ⊆ adam follows from the other two.
    names = list(OPTIMIZERS)
    pairs = [(names[row["special"]], names[row["general"]]) for row in lines]
    assert pairs == [("sgd", "momentum"), ("momentum", "adam")]
    places = {row["optimizer"]: (row["x"], row["y"]) for row in panel.rows if "optimizer" in row}
    assert {row["name"]: row["optimizer"] for row in panel.rows if "optimizer" in row} == NUMBERS
    for row, pair in zip(lines, pairs, strict=True):
        finding = findings[pair]
        expected = pytest.approx((finding.worse, finding.better, finding.p_value), rel=1e-6)
        assert (row["worse"], row["better"], row["p"]) == expected
        assert row["verdict"] == finding.verdict
        share = finding.coverage.share
        assert row["coverage"] == ("unknown" if share is None else f"{share:.0%}")
        assert places[row["special"]] == (row["x"], row["y"])
        assert places[row["general"]] == (row["x2"], row["y2"])
        assert row["x"] < row["x2"]


def test_the_metric_that_selects_is_never_the_reported_one(comparison):
    """Where the test set selects, the validation set is held out."""
    for select, report in (("train_loss", "test_loss"), ("test_error", "valid_error")):
        drawn = {figure.name: figure for figure in figures(comparison.at(select=select).results)}
        assert [panel.metric for panel in drawn["outcomes"].panels] == [select, report]
        assert drawn["selection"].panels[0].metric == report


# ---------------------------------------------------------------------------- files

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def files(comparison, tmp_path_factory) -> dict[str, str]:
    """Every file, by name. PDF and PNG come from the same specification, and take long."""
    folder = tmp_path_factory.mktemp("figures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vl_convert, "vegalite_to_pdf", lambda spec: json.dumps(spec).encode())
        patch.setattr(vl_convert, "vegalite_to_png", lambda spec, ppi: str(ppi).encode())
        paths = comparison.write_figures(folder)
    assert sorted(paths) == sorted(folder.iterdir())
    return {path.name: path.read_text() for path in paths}


def test_every_figure_and_table_is_a_file(files, drawn):
    names = {*drawn, *(f"hyperparameters-{name}" for name in OPTIMIZERS)} - {"hyperparameters"}
    forms = {f"{name}.{form}" for name in names for form in ("pdf", "svg", "png")}
    assert files.keys() == forms | {"outcomes.tex", "spaces.tex", "audit.tex", "methods.tex", "methods.md"}


def test_every_chart_is_valid(drawn):
    """The library does not validate when it writes, because that takes seconds."""
    for figure in drawn.values():
        for part in figure.parts[:1]:
            altair.Chart.from_dict(file_spec(part, figure.columns), validate=True)


def marks(svg: str, kind: str) -> int:
    groups = ElementTree.fromstring(svg).iter(f"{SVG}g")
    return sum(len(group) for group in groups if {kind, "role-mark"} <= set(group.get("class", "").split()))


def texts(svg: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_figures_show_their_rows(files, drawn):
    """Counted in the drawings: a mark for each row."""
    assert marks(files["outcomes.svg"], "mark-symbol") == 3 * len(OPTIMIZERS)  # medians and means; test means
    steps = drawn["steps"].panels[0].rows
    arrows = sum(row[end] is None for row in steps for end in ("medianLow", "medianHigh"))
    assert marks(files["steps.svg"], "mark-symbol") == arrows + sum(row["median"] is not None for row in steps)
    assert marks(files["pairs.svg"], "mark-rect") == len(drawn["pairs"].panels[0].rows) + len(
        drawn["pairs"].panels[1].rows
    )
    assert marks(files["selection.svg"], "mark-symbol") == len(OPTIMIZERS) * len(METRICS)
    assert marks(files["inclusions.svg"], "mark-symbol") == len(OPTIMIZERS)
    for name in OPTIMIZERS:
        axes = len(drawn["hyperparameters"].parts[NUMBERS[name]].panels)
        broken = len(INFEASIBLE.get(name, []))
        assert marks(files[f"hyperparameters-{name}.svg"], "mark-symbol") == axes * (POOL + broken)
        panels = drawn["hyperparameters"].parts[NUMBERS[name]].panels
        ranges = [panel for panel in panels if (name, panel.live["axis"]) != ("adam", 2)]  # that one is a choice
        assert marks(files[f"hyperparameters-{name}.svg"], "mark-rule") == 2 * len(ranges)  # their borders


def test_figures_name_what_they_show(files):
    for name in OPTIMIZERS:
        for figure in ("outcomes", "steps", "best-of-k", "pairs", "inclusions", "curves", "selection", "budgets"):
            assert name in texts(files[f"{figure}.svg"]), figure
    for figure in ("outcomes", "best-of-k", "curves", "budgets"):
        assert "valid_error" in texts(files[f"{figure}.svg"]), figure
    assert {"valid_error", "test_error"} <= set(texts(files["outcomes.svg"]))
    assert set(METRICS) <= set(texts(files["selection.svg"]))
    assert "1 − momentum" in texts(files["hyperparameters-momentum.svg"])
    assert not any("\0" in content or "\\u0000" in content for content in files.values())


def test_harder_targets_are_further_right(comparison, accuracies):
    for view, maximized in ((comparison, False), (accuracies, True)):
        (panel,) = (panel for figure in figures(view.results) for panel in figure.panels if "target" in panel.rows[0])
        scale = panel.spec()["layer"][0]["encoding"]["x"]["scale"]
        assert scale["reverse"] is not maximized
        assert scale["type"] == "linear"


def test_a_loss_that_explodes_for_a_while_does_not_flatten_the_budgets(made, pools):
    losses = np.array([1e15, 1e9, 3.0, 2.0, 1.0, 0.5])
    exploding = {
        name: [trial | {"train_loss": losses[: len(trial["train_loss"])]} for trial in pool]
        for name, pool in pools.items()
    }
    view = made(study_of(select="train_loss"), exploding, INFEASIBLE)
    (figure,) = (figure for figure in figures(view.results) if figure.name == "budgets")
    assert max(row["mean"] for row in figure.panels[0].rows) == pytest.approx(1e15)
    assert figure.panels[0].ends == (None, pytest.approx(5.0))
    assert "outside the axis" in figure.caption


def test_budgets_show_all_means_that_are_not_far_from_the_last(drawn):
    assert drawn["budgets"].panels[0].ends == (None, None)


def test_nothing_is_drawn_of_curves_with_one_point_or_of_the_only_metric(made):
    study = study_of(workload="quadratic", eval_interval=500, target=None)
    pools = {name: [{"train_loss": np.array([0.1 * i])} for i in range(1, POOL + 1)] for name in OPTIMIZERS}
    shown = {figure.name for figure in figures(made(study, pools).results)}
    assert "outcomes" in shown
    assert not {"curves", "selection", "budgets"} & shown


def test_targets_below_zero_are_on_a_linear_axis(made, pools):
    shifted = {
        name: [{metric: curve - 1 for metric, curve in trial.items()} for trial in pool] for name, pool in pools.items()
    }
    view = made(study_of(select="train_loss", target={"metric": "train_loss", "value": -0.5}), shifted, INFEASIBLE)
    (panel,) = (panel for figure in figures(view.results) for panel in figure.panels if "target" in panel.rows[0])
    assert min(row["target"] for row in panel.rows) < 0
    assert panel.spec()["layer"][0]["encoding"]["x"]["scale"]["type"] == "linear"


def test_figures_have_nothing_to_select(files, drawn):
    specs = [content for name, content in files.items() if name.endswith(".pdf")]
    assert len(specs) > len(drawn)
    for spec in specs:
        assert '"param' not in spec


def test_losses_are_drawn_on_log_axes_and_errors_are_not(comparison):
    def kinds(view: lf.Comparison, name: str) -> set[str]:
        (figure,) = (figure for figure in figures(view.results) if figure.name == name)
        spec = json.dumps(figure.panels[0].spec())
        return set(re.findall(r'"type": "(log|linear)"', spec))

    assert kinds(comparison, "outcomes") == {"linear"}
    assert kinds(comparison.at(select="train_loss"), "outcomes") == {"log"}


def test_files_have_safe_names(made, pools, tmp_path):
    """Two names that a file system might confuse stay two files, inside the folder."""
    names = ["../a b", "../A b", "x" * 300]
    comparison = made(study_of(dict.fromkeys(names, SGD), target=None), dict.fromkeys(names, pools["momentum"]))
    (figure,) = (figure for figure in figures(comparison.results) if figure.name == "hyperparameters")
    files = [part.name for part in figure.parts]
    assert len({name.lower() for name in files}) == 3
    for name in files:
        assert re.fullmatch(r"[\w.-]{1,80}", name, re.ASCII)
        assert (tmp_path / f"{name}.svg").parent == tmp_path


def test_a_name_with_a_meaning_in_javascript_is_drawn(made, pools):
    names = ["constructor", "__proto__", "toString", "@metric"]
    comparison = made(study_of(dict.fromkeys(names, SGD), target=None), dict.fromkeys(names, pools["momentum"]))
    for figure in figures(comparison.results):
        for part in figure.parts:
            words = texts(vl_convert.vegalite_to_svg(file_spec(part, figure.columns)))
            if figure.name in ("outcomes", "best-of-k", "pairs", "curves", "selection", "budgets"):
                assert set(names) <= set(words), figure.name


# ---------------------------------------------------------------------------- a new figure

STATIC = """
import altair as alt

from levelfield.report import charts
from levelfield.report.figure import Figure, Panel, Part

PLACE = 15


def figure(results, protocols):
    rows = [{"optimizer": i, "pool": len(outcome.pool)} for i, outcome in enumerate(results.outcomes.values())]
    names = charts.Names("optimizer", tuple(results.outcomes))
    chart = alt.Chart(charts.ROWS, height=90).mark_bar()
    chart = chart.encode(x=alt.X("pool:Q"), y=alt.Y("optimizer:N", axis=names.axis()))
    return Figure("Pool sizes", "How many.", [Part([Panel(chart, rows, LIVE)])], columns=1, data={"factor": 10})
"""
SCRIPT = """
live("pool-sizes", {
  rows: (view, panel, { factor }) =>
    view.optimizers.map(optimizer => ({ optimizer: optimizer.number, pool: factor * view.k + panel.live.more })),
});
"""


@pytest.fixture
def new_figure(monkeypatch, tmp_path) -> Path:
    """A folder in which modules of figures are found."""
    monkeypatch.setattr(figures_package, "__path__", [*figures_package.__path__, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("levelfield.report.figures.pool_sizes", None)
    importlib.invalidate_caches()


def test_a_static_figure_is_one_file(new_figure, comparison, opened, tmp_path):
    (new_figure / "pool_sizes.py").write_text(STATIC.replace(", LIVE", ""))
    importlib.invalidate_caches()
    assert [figure.name for figure in figures(comparison.results)][:3] == ["outcomes", "pool-sizes", "steps"]
    page = opened(comparison)
    assert page.locator("nav a", has_text="Pool sizes").get_attribute("href") == "#pool-sizes"
    chart = page.locator("#pool-sizes [data-panel]")
    chart.scroll_into_view_if_needed()
    chart.locator(".mark-rect path").first.wait_for()
    assert chart.locator(".mark-rect path").count() == len(OPTIMIZERS)
    assert set(OPTIMIZERS) <= set(chart.locator("text").all_text_contents())


def test_a_live_figure_is_that_file_and_its_script(new_figure, comparison, opened):
    (new_figure / "pool_sizes.py").write_text(STATIC.replace(", LIVE", ', live={"more": 1}'))
    (new_figure / "pool_sizes.js").write_text(SCRIPT)
    (new_figure / "pool_sizes.html").write_text("<p id='new'>{{ part.panels | length }} panel</p>")
    importlib.invalidate_caches()
    page = opened(comparison)
    assert page.locator("#pool-sizes #new").text_content() == "1 panel"
    page.evaluate("window.page.showAll()")
    rows = "window.page.charts.find(chart => chart.panel.figure === 'pool-sizes').rows.map(row => row.pool)"
    assert page.evaluate(rows) == [10 * K + 1] * len(OPTIMIZERS)
    page.locator("#k").fill("2")
    page.wait_for_function(f"{rows}[0] === 21")


def test_neither_the_page_nor_its_script_names_a_figure(drawn):
    folder = Path(figures_package.__file__).parent.parent
    for name in ("page.html", "page.js", "charts.js", "page.css"):
        text = (folder / name).read_text()
        for figure in drawn:
            if figure != "outcomes":  # the records of that name, and their table
                assert not re.search(rf"[\"'#]{figure}[\"'\s]", text), (name, figure)


def test_numbers_of_the_statistics_are_written_once(comparison):
    """The page gets them from Python."""
    folder = Path(figures_package.__file__).parent.parent
    scripts = [path.read_text() for path in (*folder.glob("*.js"), *folder.glob("figures/*.js"))]
    assert len(scripts) > 10
    for number in ("0.95", "0.05", "1e-12", "1e-16", "9999", "5e-6", "0x7feb352d", "5–95"):
        assert not any(number in script.lower() for script in scripts), number
    assert "5–95%" in render(comparison.results)
