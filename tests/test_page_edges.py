"""The page in a browser, for unusual studies: metrics that are maximized, any name, and little data."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_helpers import (
    DRAWN,
    EVALUATIONS,
    LITTLE,
    MOMENTUM,
    NUMBERS,
    OPTIMIZERS,
    OUTCOMES,
    POOL,
    RANKS,
    SELECTION,
    SGD,
    STEPS,
    WINS,
    K,
    answer,
    ask,
    assert_drawn,
    assert_same,
    assert_table,
    assert_tests,
    audit_table,
    curves,
    expected_audit,
    four_optimizers,
    little_study,
    live_charts,
    live_rows,
    narrow,
    numbers_of,
    one_trial,
    outcome_table,
    pools_of,
    study_of,
    trials_key,
)

import levelfield as lf
from levelfield import workloads
from levelfield.trial import Direction

# ---------------------------------------------------------------------------- coverage of inclusions


def test_an_inclusion_that_is_not_covered_stays_so_for_every_question(opened, made):
    """momentum cannot be 0, as sgd needs it."""
    study = little_study({"sgd": SGD, "momentum": MOMENTUM | {"one_minus_momentum": {"log": [1e-3, 0.5]}}})
    comparison = made(study, pools_of(LITTLE, POOL))
    page = opened(comparison)
    evidence = page.locator("[data-cell=evidence]")
    assert evidence.text_content().startswith("momentum's space cannot express sgd: one_minus_momentum must reach 1")
    assert evidence.is_visible()
    for k, select in ((K, "valid_error"), (1, "train_loss"), (POOL, "test_error")):
        ask(page, k=k, select=select)
        view = answer(comparison, k, select)
        assert audit_table(page) == expected_audit(view)
        assert audit_table(page)[0][-2:] == ["0%", "not covered"]


def test_coverage_is_that_of_the_full_ranges(opened, made):
    """In the part of momentum's space that the page looks at, nothing covers sgd."""
    comparison = made(little_study(), pools_of(LITTLE, POOL))
    ranges = {"momentum": {"one_minus_momentum": (None, 0.5)}}
    assert comparison.narrowed(ranges).audit()[0].verdict == "not covered"
    page = opened(comparison)
    narrow(page, comparison.study, ranges)
    view = answer(comparison, ranges=ranges)
    assert audit_table(page) == expected_audit(view, comparison)
    assert audit_table(page)[0][-2] == "100%"
    assert "coverage remain those of the full ranges" in page.locator("main").text_content()


# ---------------------------------------------------------------------------- metrics that are maximized


@pytest.fixture
def accuracies(made) -> lf.Comparison:
    """Selected by a metric that is maximized and has no counterpart on a test set."""
    metrics = {"valid_accuracy": Direction.MAXIMIZE, "train_loss": Direction.MINIMIZE}
    workload = replace(
        workloads.get_workload("fashion_mini"), name="accuracy", metrics=metrics, select="valid_accuracy"
    )
    lf.register_workload(workload)
    optimizers = {"sgd": SGD, "momentum": MOMENTUM}
    study = study_of(optimizers, workload=workload.name, target={"metric": "valid_accuracy", "value": 0.7})
    pools = {
        name: [{"valid_accuracy": 1 - trial["valid_error"], "train_loss": trial["train_loss"]} for trial in pool]
        for name, pool in pools_of(list(optimizers), POOL).items()
    }
    return made(study, pools)


def test_a_metric_that_is_maximized(opened, accuracies):
    page = opened(accuracies)
    page.evaluate("window.page.showAll()")
    assert_table(page, accuracies, "valid_accuracy")
    assert audit_table(page) == expected_audit(accuracies)
    first = max(accuracies.study.optimizers, key=lambda name: accuracies.outcome(name).interval(K).median)
    assert f": 1.\u00a0{first} " in page.locator("#ranking").text_content()
    assert page.locator('#outcome-table th[aria-sort="descending"]').get_attribute("data-column") == "select"
    expected, actual = live_rows(accuracies), live_charts(page)
    for key in (OUTCOMES, STEPS, WINS, RANKS, SELECTION, trials_key(0, 0), trials_key(1, 1)):
        assert_same(actual[key], expected[key], key)
    for k in (1, 3, POOL):  # with K = N, nothing bounds the median from above
        ask(page, k=k)
        view = answer(accuracies, k)
        assert_table(page, view, "valid_accuracy")
        assert_tests(page, view)
        np.testing.assert_allclose(
            np.array(page.evaluate(NUMBERS), float), numbers_of(view, "valid_accuracy"), rtol=1e-9
        )
        assert_same(live_charts(page)[OUTCOMES], live_rows(view)[OUTCOMES])
    assert all(row["select"][1].startswith("≥ ") for row in outcome_table(page).values())
    ask(page, k=2, select="train_loss")
    assert_table(page, answer(accuracies, 2, "train_loss"), "valid_accuracy")
    assert page.locator('#outcome-table th[aria-sort="ascending"]').get_attribute("data-column") == "select"
    page.evaluate("window.page.showAll()")
    for chart in page.evaluate(DRAWN):
        if chart["choice"]:
            assert {"select": "train_loss", "report": "valid_accuracy"}[chart["choice"]] in chart["titles"]


# ---------------------------------------------------------------------------- axes

AXES = """async () => Promise.all(
    window.page.charts.filter(chart => chart.rows.some(row => "k" in row || "best" in row)).map(async chart => {
        const { view } = await chart.drawn;
        const points = chart.place.querySelectorAll(".mark-symbol.role-mark path").length;
        return { rows: chart.rows, domain: view.scale("y").domain(), points };
    }))"""


def assert_in_sight(page: Any, better: str) -> list[dict[str, Any]]:
    """Axes show most of each best trial's curve, and the best of several trials with the better end of its band."""
    page.evaluate("window.page.showAll()")
    shown = page.evaluate(AXES)
    for chart in shown:
        ends, rows = chart["domain"], chart["rows"]
        if "best" in rows[0]:
            best = [row["value"] for row in rows if row["best"]]
            values = best[len(best) // 4 :]
        else:
            values = [row[part] for row in rows if row["k"] > 1 for part in ("mean", better)]
        assert all(min(ends) - 1e-5 <= value <= max(ends) + 1e-5 for value in values)
    return shown


def test_errors_in_sight(opened, made):
    shown = assert_in_sight(opened(four_optimizers(made)), "low")
    assert len(shown) == 3 + len(OPTIMIZERS)


def test_accuracies_in_sight(opened, accuracies):
    assert len(assert_in_sight(opened(accuracies), "high")) == 4


def test_one_trial_in_sight(opened, made):
    """A line through a single K has no length, so the chart has points instead."""
    shown = [chart for chart in assert_in_sight(opened(one_trial(made)), "low") if "k" in chart["rows"][0]]
    assert [chart["points"] for chart in shown] == [len(LITTLE)] * 3


def test_axes_show_short_numbers(opened, made):
    """Where all values are equal up to rounding, an axis has one short tick."""
    third = np.float32(1 / 3)
    equal = {metric: np.full(EVALUATIONS, third) for metric in pools_of(["sgd"], 1)["sgd"][0]}
    study = little_study(target={"metric": "valid_error", "value": 0.34}, trials=3, pool=7)
    page = opened(made(study, {name: [equal] * 7 for name in LITTLE}))
    page.evaluate("window.page.showAll()")
    labels = page.evaluate("""() => window.page.charts.flatMap(chart =>
        [...chart.place.querySelectorAll(".role-axis-label text")].map(text =>
            [chart.panel.figure, text.textContent]))""")
    assert len(labels) > 50
    assert [label for label in labels if len(label[1]) > len("train_error")] == []
    numbers = [label for label in labels if label[1][:1].isdigit()]
    assert [label for label in numbers if len(label[1]) > len("33.3333%")] == []


# ---------------------------------------------------------------------------- any name

EVIL = "</script><script>window.hacked=1</script>"
EVIL_FOLDER = "<img src=x onerror=window.hacked=1>"
HOSTILE = [
    EVIL,
    "\"quoted' & <b>",
    "<img src=x onerror=window.hacked=1>",
    "</script /",
    "🦊 ∑ שלום",
    "wide" * 75,
    "{{ 7 * 7 }} ${7 * 7} \\",
]
# Properties of every JavaScript object, and what looks like a part of a chart.
RESERVED = ["constructor", "__proto__", "toString", "hasOwnProperty", "@metric", "datum.label", "null", "0"]


def page_of_names(made: Any, names: list[str], folder: Path, **changes: Any) -> Path:
    """Write the page of a study whose optimizers have these names, some with a rule in two protocols."""
    protocols = ["<i>tuned</i>", "valueOf"]
    optimizers = {
        name: (SGD if i % 4 < 2 else MOMENTUM) | {"protocol": protocols[i % 2]} for i, name in enumerate(names)
    }
    comparison = made(study_of(optimizers, pool=8, **changes), pools_of(names, 8))
    return comparison.write_report(folder / "report.html")


@pytest.mark.parametrize("names", [HOSTILE, RESERVED], ids=["hostile", "reserved"])
def test_any_name_is_shown_and_not_run(opened, made, tmp_path, names):
    path = page_of_names(made, names, tmp_path, name=EVIL_FOLDER, description=f"<b>bold</b>{EVIL}{'long' * 40}")
    page = opened(path, viewport={"width": 390, "height": 800})
    ask(page, k=3, select="train_loss")
    assert_drawn(page, "train_loss")
    assert page.locator("svg").count() == page.locator("[data-panel]").count()
    assert page.evaluate("window.hacked") is None
    assert page.title().startswith(EVIL_FOLDER)
    assert page.locator("h1").text_content() == EVIL_FOLDER
    assert page.locator("b, i, img").count() == 0
    assert page.locator("script").count() == 3
    assert EVIL in page.locator(".lead").text_content()
    headings = [text.strip() for text in page.locator("h3").all_text_contents()]
    assert headings == [name.strip() for name in names]
    assert outcome_table(page).keys() == set(names)
    for name in names:
        assert name in page.locator("#ranking").text_content()
    assert list(tomllib.loads(page.locator("pre").text_content())["optimizers"]) == names
    assert [row["name"] for row in live_charts(page)[OUTCOMES]] == names
    narrow(page, study_of(dict.fromkeys(names, SGD)), {names[1]: {"learning_rate": (0.1, 1)}})
    assert f"{names[1]} with learning_rate in 0.1 … 1" in page.locator("#narrowed").text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_reserved_names_are_read_in_every_chart(opened, made, tmp_path):
    page = opened(page_of_names(made, RESERVED, tmp_path, trials=3))
    page.evaluate("window.page.showAll()")
    shown = page.evaluate("""() => window.page.charts.map(chart => [chart.panel.figure,
        [...chart.place.querySelectorAll("text")].map(text => text.textContent)])""")
    named = {"outcomes", "best-of-k", "pairs", "selection", "budgets", "steps"}
    assert named <= {figure for figure, _ in shown}
    for figure, words in shown:
        if figure in named:
            assert set(RESERVED) <= set(words), figure
        if figure == "protocols":
            assert {"<i>tuned</i>", "valueOf"} <= set(words)
    titles = [words for figure, words in shown if figure == "curves"]
    assert [set(RESERVED) & set(words) for words in titles] == [{name} for name in RESERVED]


@pytest.mark.parametrize("width", [390, 1200])
def test_long_names_are_not_cut_off_where_a_chart_ends(opened, made, tmp_path, width):
    names = [f"{'a_long_name_' * 8}{letter}" for letter in "abc"]
    path = page_of_names(made, names, tmp_path, trials=3)
    page = opened(path, viewport={"width": width, "height": 900})
    page.evaluate("window.page.showAll()")
    outside = page.evaluate("""() => [...document.querySelectorAll("#pairs svg")].map(chart => {
        const { left, right } = chart.getBoundingClientRect();
        const boxes = [...chart.querySelectorAll("text")].map(text => text.getBoundingClientRect());
        return Math.max(...boxes.map(box => Math.max(left - box.left, box.right - right)));
    })""")
    assert len(outside) == 2
    assert max(outside) <= 1


def test_a_legend_highlights_an_optimizer(opened, made, tmp_path):
    page = opened(page_of_names(made, RESERVED, tmp_path))
    chart = page.locator("#best-of-k [data-panel]").first
    chart.scroll_into_view_if_needed()
    chart.locator("svg").wait_for()
    chart.locator(".role-legend-label text").get_by_text("constructor", exact=True).click()
    opacities = "chart => [...chart.querySelectorAll('.mark-line path')].map(path => path.getAttribute('opacity'))"
    page.wait_for_function(f"() => ({opacities})(document.querySelector('#best-of-k [data-panel]')).includes('0.1')")
    assert chart.evaluate(opacities) == ["1"] + ["0.1"] * (len(RESERVED) - 1)


# ---------------------------------------------------------------------------- studies with little data

MORE = LITTLE | {"nesterov": MOMENTUM | {"rule": "nesterov"}}


def no_trials(made) -> lf.Comparison:
    return made(little_study(), {})


def none_feasible(made) -> lf.Comparison:
    return made(little_study(), pools_of(LITTLE, 20), dict.fromkeys(LITTLE, range(20)))


def one_optimizer(made) -> lf.Comparison:
    return made(little_study({"sgd": SGD}), pools_of(["sgd"], POOL))


def one_evaluation(made) -> lf.Comparison:
    pools = {name: [curves(np.random.default_rng(i), length=1) for i in range(5)] for name in LITTLE}
    return made(little_study(steps=10, pool=5), pools)


def unfinished(made) -> lf.Comparison:
    """The first optimizer has no trials yet, the last has few."""
    pools = pools_of(MORE, 10)
    return made(little_study(MORE), {"momentum": pools["momentum"], "nesterov": pools["nesterov"][:2]})


def no_target(made) -> lf.Comparison:
    return made(little_study(target=None), pools_of(LITTLE, POOL))


def out_of_reach(made) -> lf.Comparison:
    return made(little_study(target={"metric": "valid_error", "value": 0.0001}), pools_of(LITTLE, POOL))


def without_selection(made) -> lf.Comparison:
    pools = pools_of(LITTLE, POOL)
    for pool in pools.values():
        for trial in pool:
            trial["valid_error"] = np.full(EVALUATIONS, np.nan)
    return made(little_study(), pools)


def one_without_selection(made) -> lf.Comparison:
    pools = pools_of(LITTLE, POOL)
    for trial in pools["sgd"]:
        trial["valid_error"] = np.full(EVALUATIONS, np.nan)
    return made(little_study(), pools)


def metric_missing(made) -> lf.Comparison:
    return made(little_study(), pools_of(LITTLE, POOL), without={"momentum": ["test_error", "train_loss"]})


def selection_missing(made) -> lf.Comparison:
    return made(little_study(), pools_of(LITTLE, POOL), without={"sgd": ["valid_error"]})


def nothing_searched(made) -> lf.Comparison:
    fixed = {"kind": "linear", "decay_steps": 1.0, "decay_factor": 0.1}
    study = little_study({"sgd": {"learning_rate": 0.1}, "momentum": MOMENTUM}, schedule=fixed)
    return made(study, pools_of(["sgd", "momentum"], POOL))


EDGES: dict[Callable[[Any], lf.Comparison], list[str]] = {
    no_trials: ["sgd has no feasible trials yet", "Median best of 5 by valid_error: no trials"],
    none_feasible: ["sgd has no feasible trials (20 tried)", "Median best of 5 by valid_error: no trials"],
    one_optimizer: ["1 optimizer\non fashion_mini", "Median best of 5 by valid_error: 1.\u00a0sgd"],
    one_trial: ["With 1 trial each"],
    one_evaluation: ["With 5 trials each"],
    unfinished: [
        "sgd has no feasible trials yet",
        "nesterov has 2 feasible trials, fewer than K = 5; it is not ranked yet",
        "The study is incomplete",
    ],
    no_target: ["With 5 trials each"],
    out_of_reach: ["No trial reached the target (valid_error 0.01%)"],
    without_selection: ["sgd has no valid_error"],
    one_without_selection: ["sgd has no valid_error"],
    metric_missing: ["With 5 trials each"],
    selection_missing: ["sgd has no valid_error"],
    nothing_searched: ["With 5 trials each"],
}


@pytest.mark.parametrize("make", EDGES, ids=lambda make: make.__name__)
def test_a_page_says_what_is_missing_and_shows_the_rest(opened, made, make):
    comparison = make(made)
    page = opened(comparison)
    page.evaluate("window.page.showAll()")
    text = page.locator("main").text_content()
    for words in EDGES[make]:
        assert words in text
    assert_table(page, comparison, "test_error")
    known = [name for name in comparison.study.optimizers if np.isfinite(comparison.outcome(name).values()).any()]
    if known:
        assert [row["name"] for row in live_charts(page)[OUTCOMES]] == known
        assert_drawn(page)
    else:
        assert page.locator("svg").count() == 0
    if page.locator("#controls").is_visible():
        ask(page, k=1, select="train_loss", report="valid_loss")
        view = answer(comparison, 1, "train_loss")
        assert_table(page, view, "valid_loss")
        assert audit_table(page) == (expected_audit(view) if known else [])
    else:
        assert not any(comparison.outcome(name).pool for name in comparison.study.optimizers)


def test_an_optimizer_has_one_color(opened, made):
    """In the table and in all charts, although the first has no trials yet."""
    page = opened(unfinished(made))
    page.evaluate("window.page.showAll()")
    swatches = dict(
        page.evaluate("""() => [...document.querySelectorAll("#outcome-table tbody th")].map(cell =>
        [cell.querySelector(".main").textContent,
         getComputedStyle(cell.querySelector(".swatch")).backgroundColor])""")
    )
    points = page.evaluate("""() => [0, 1].flatMap(panel => [...document.querySelectorAll(
        `[data-panel="${panel}"] .mark-symbol.role-mark path`)].map(path =>
        [path.__data__.datum.name, getComputedStyle(path).fill]))""")
    assert len(points) > 4
    assert len({tuple(point) for point in points}) == 2
    assert dict(points) == {name: swatches[name] for name in ("momentum", "nesterov")}
