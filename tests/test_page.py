"""The page in a browser says what the library says, whatever its reader asks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_helpers import (
    BEST_OF_K,
    CHART_KEY,
    EVALUATIONS,
    MOMENTUM,
    OPTIMIZERS,
    OUTCOMES,
    POOL,
    SETTLED,
    SGD,
    WINS,
    K,
    answer,
    ask,
    assert_answers,
    assert_drawn,
    assert_same,
    assert_table,
    assert_tests,
    audit_table,
    expected_table,
    four_optimizers,
    live_charts,
    live_rows,
    narrow,
    outcome_table,
    panel_key,
    pools_of,
    range_inputs,
    ranking,
    study_of,
    texts,
    trials_key,
)

import levelfield as lf
from levelfield.analysis.results import Results
from levelfield.formatting import format_metric
from levelfield.trial import StepTime


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    return four_optimizers(made)


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory) -> Path:
    return comparison.write_report(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(opened, report) -> Any:
    return opened(report)


# ---------------------------------------------------------------------------- as it opens


def test_at_load_it_says_what_it_said_without_scripts(opened, report):
    still, live = opened(report, java_script_enabled=False), opened(report)
    assert len(texts(live)) > 100
    assert texts(live) == texts(still)
    assert live.locator("#reset").is_hidden()
    assert live.locator("#k").input_value() == str(K)


def test_at_load_it_says_what_the_library_says(page, comparison):
    assert {finding.verdict.value for finding in comparison.audit()} == {"violated", "consistent", "no separation"}
    assert any(0.001 < finding.p_value < 0.9 for finding in comparison.audit())  # neither the smallest nor the largest
    assert {test.separated for test in comparison.results.pair_tests()} == {True, False}
    assert_answers(page, comparison, comparison, "test_error")


def test_all_charts_are_drawn_without_scrolling(page):
    """Those who print the page want all of them."""
    drawn = "window.page.charts.filter(chart => chart.place.querySelector('svg')).length"
    count = page.locator("[data-panel]").count()
    page.wait_for_function(f"{drawn} == {count}")
    assert page.evaluate("scrollY") == 0
    assert page.locator("svg").count() == count


# ---------------------------------------------------------------------------- other questions

QUESTIONS = [
    (1, "valid_error", "test_error"),
    (3, "train_loss", "valid_loss"),
    (POOL, "valid_loss", "valid_loss"),
    (12, "test_loss", "train_error"),
    (7, "test_error", "test_error"),
]


def test_other_numbers_of_trials_and_metrics(page, comparison):
    answers = []
    for k, select, report in QUESTIONS:
        ask(page, k=k, select=select, report=report)
        assert page.locator("#k-shown").text_content() == str(k)
        assert_answers(page, comparison, answer(comparison, k, select), report)
        answers.append(outcome_table(page))
    assert len({str(table) for table in answers}) == len(QUESTIONS)


def test_a_metric_that_selects_is_not_also_reported(page, comparison):
    """Choosing the reported metric to select by reports the one that selected before."""
    ask(page, select="test_error")
    assert page.locator("#report option:checked").text_content() == "valid_error"
    assert_table(page, answer(comparison, comparison.study.trials, "test_error"), "valid_error")
    ask(page, select="train_loss")
    assert page.locator("#report option:checked").text_content() == "valid_error"


def test_the_chosen_metrics_are_on_the_axes(page):
    assert_drawn(page)
    ask(page, k=9, select="train_loss", report="valid_loss")
    assert_drawn(page, "train_loss", "valid_loss")


@pytest.mark.parametrize("select", ["valid_error", "test_loss"])
def test_the_ranking_is_by_the_median_best(page, comparison, select):
    view = answer(comparison, 4, select)
    ask(page, k=4, select=select)
    medians = {name: format_metric(select, view.outcome(name).interval(4).median) for name in OPTIMIZERS}
    ranks = [f"{i}.\u00a0{name} {medians[name]}" for i, name in enumerate(ranking(view), start=1)]
    assert page.locator("#ranking").text_content() == f"Median best of 4 by {select}: " + "   ".join(ranks)
    assert list(outcome_table(page)) == ranking(view)


RANGES = [
    {"momentum": {"learning_rate": (0.02, 2)}},
    {"sgd": {"learning_rate": (None, 0.5), "decay_factor": [1 / 3]}, "adam": {"epsilon": (0.1, None)}},
    {"adam": {"one_minus_beta1": [0.1, 0.3], "learning_rate/epsilon": (0.1, 30), "decay_factor": [0.001, 1 / 3]}},
    {"nesterov": {"decay_steps": (2, 4)}, "momentum": {"one_minus_momentum": (0.01, 0.5), "decay_steps": (0.6, 0.9)}},
]


@pytest.mark.parametrize(
    "ranges", [*RANGES[1:3], *(pytest.param(each, marks=pytest.mark.slow) for each in (RANGES[0], RANGES[3]))]
)
def test_typed_ranges_and_checked_choices(page, comparison, ranges):
    narrow(page, comparison.study, ranges)
    view = answer(comparison, ranges=ranges)
    for name in ranges:
        assert 0 < len(view.outcome(name).pool) < POOL
    assert_answers(page, comparison, view, "test_error")
    words = page.locator("#narrowed").text_content()
    for name in ranges:
        assert f"{name} with " in words
        assert f"{len(view.outcome(name).pool)} of its feasible trials are left" in words
    ask(page, k=2, select="train_loss", report="train_error")
    assert_answers(page, comparison, answer(comparison, 2, "train_loss", ranges), "train_error")


def test_the_best_trial_is_the_best_of_the_part(page, comparison):
    ranges = {"momentum": {"learning_rate": (0.5, None)}, "adam": {"epsilon": (1, None)}}
    narrow(page, comparison.study, ranges)
    view = answer(comparison, ranges=ranges)
    assert_table(page, view, "test_error")
    assert view.outcome("momentum").best_trial is not comparison.outcome("momentum").best_trial


def test_a_part_without_trials_has_no_numbers(page, comparison):
    narrow(page, comparison.study, {"momentum": {"learning_rate": (3.0001, 3.0002)}})
    table = outcome_table(page)
    assert list(table)[-1] == "momentum"
    assert table.pop("momentum") == {
        "select": ["–", ""],
        "luck": ["–", ""],
        "report": ["–", ""],
        "steps": ["–", ""],
        "reached": ["–", ""],
        "feasible": ["0 of 0", ""],
        "hyperparameters": ["", ""],
    }
    assert table == {name: row for name, row in expected_table(comparison, "test_error").items() if name != "momentum"}
    assert [line[-1] for line in audit_table(page) if "momentum" in line[0]] == ["unknown", "unknown"]
    assert "momentum" not in page.locator("#ranking").text_content()


def test_without_any_choice_no_trial_is_left(page, comparison):
    narrow(page, comparison.study, {"adam": {"one_minus_beta1": []}})
    assert outcome_table(page)["adam"]["feasible"] == ["0 of 0", ""]
    assert "none of its feasible trials is left" in page.locator("#narrowed").text_content()


# ---------------------------------------------------------------------------- dragging


def drag(page: Any, key: str, start: float, end: float) -> None:
    """Drag over a chart, from one share of its width to another."""
    number = page.evaluate(f"key => window.page.charts.findIndex(chart => {CHART_KEY} === key)", key)
    chart = page.locator("[data-panel]").nth(number)
    chart.evaluate("place => place.scrollIntoView({ block: 'center' })")
    chart.locator("svg").wait_for()
    page.evaluate(SETTLED)  # charts above it may have been drawn as well, and moved it
    chart.evaluate("place => place.scrollIntoView({ block: 'center' })")
    box = chart.locator("svg g.root path.background").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    for share in np.linspace(start, end, 5):
        page.mouse.move(box["x"] + share * box["width"], middle)
    page.mouse.up()
    page.evaluate(SETTLED)


def asked_ranges(page: Any, study: lf.Study) -> dict[str, dict[str, tuple[float, float]]]:
    """Return the ranges that the page counts: optimizer → axis → (low, high)."""
    ranges = {}
    for name, axes in zip(study.optimizers, page.evaluate("window.page.asked.ranges"), strict=True):
        keys = [axis.key for axis in study.optimizer(name).space.free]
        kept = {key: tuple(ends) for key, ends in zip(keys, axes, strict=True) if ends}
        ranges |= {name: kept} if kept else {}
    return ranges


def axis_number(study: lf.Study, optimizer: str, key: str) -> int:
    return [axis.key for axis in study.optimizer(optimizer).space.free].index(key)


@pytest.mark.parametrize(("start", "end"), [(0.3, 0.7), (0.7, 0.3)], ids=["rightward", "leftward"])
def test_a_range_is_dragged_over_a_chart(page, comparison, start, end):
    before = outcome_table(page)
    key = trials_key(1, axis_number(comparison.study, "momentum", "learning_rate"))
    drag(page, key, start, end)

    ranges = asked_ranges(page, comparison.study)
    assert {name: list(axes) for name, axes in ranges.items()} == {"momentum": ["learning_rate"]}
    low, high = ranges["momentum"]["learning_rate"]
    # 0.3 and 0.7 of four decades, with a little room at both ends
    assert np.log10([low, high]) == pytest.approx([-3 + 4 * 0.3, -3 + 4 * 0.7], abs=0.15)
    inputs = range_inputs(page, comparison.study, "momentum", "learning_rate")
    assert [float(inputs.nth(i).input_value()) for i in range(2)] == pytest.approx([low, high], rel=1e-3)
    assert outcome_table(page) != before
    view = answer(comparison, ranges=ranges)
    assert 0 < len(view.outcome("momentum").pool) < POOL
    assert_answers(page, comparison, view, "test_error")

    drag(page, key, 0.9, 0.9)  # a click beside the range
    assert asked_ranges(page, comparison.study) == {}
    assert [inputs.nth(i).input_value() for i in range(2)] == ["", ""]
    assert outcome_table(page) == before


def test_ranges_of_several_charts_hold_together(page, comparison):
    study = comparison.study
    drag(page, trials_key(1, axis_number(study, "momentum", "learning_rate")), 0.2, 0.8)
    drag(page, trials_key(1, axis_number(study, "momentum", "one_minus_momentum")), 0.1, 0.6)
    drag(page, trials_key(3, axis_number(study, "adam", "epsilon")), 0, 0.5)
    ranges = asked_ranges(page, study)
    assert {name: set(axes) for name, axes in ranges.items()} == {
        "momentum": {"learning_rate", "one_minus_momentum"},
        "adam": {"epsilon"},
    }
    assert_answers(page, comparison, answer(comparison, ranges=ranges), "test_error")


def reset(page: Any) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.locator("#reset").click()
    page.evaluate(SETTLED)


def test_reset_restores_everything(page, comparison):
    before, numbers, ranked = texts(page), live_charts(page), page.locator("#ranking").text_content()
    key = trials_key(1, axis_number(comparison.study, "momentum", "learning_rate"))
    drag(page, key, 0.3, 0.5)
    narrow(page, comparison.study, {"sgd": {"decay_factor": [0.01]}})
    ask(page, k=17, select="train_loss", report="train_error")
    assert live_charts(page) != numbers
    reset(page)
    assert texts(page) == before
    assert page.locator("#ranking").text_content() == ranked
    assert live_charts(page) == numbers
    assert page.locator("#reset").is_hidden()
    assert page.locator("#k").input_value() == str(K)
    for control, metric in (("#select", "valid_error"), ("#report", "test_error")):
        assert page.locator(f"{control} option:checked").text_content() == metric
    assert set(page.evaluate("[...document.querySelectorAll('input[type=number]')].map(input => input.value)")) == {""}
    assert page.locator("input[type=checkbox]:not(:checked)").count() == 0
    assert page.locator("#narrowed").text_content() == ""

    drag(page, key, 0.3, 0.5)
    brushes = """[...document.querySelectorAll(".range_brush path")].filter(path =>
        path.getBoundingClientRect().width > 10).length"""
    assert page.evaluate(brushes) == 1
    reset(page)
    page.evaluate("window.page.showAll()")
    assert page.evaluate(brushes) == 0
    assert live_charts(page) == numbers


# ---------------------------------------------------------------------------- numbers


def test_halves_are_rounded_as_python_rounds_them(opened, made):
    """To the even digit: JavaScript would round up."""
    pools = pools_of(["sgd", "momentum"], 8)
    for i, trial in enumerate(pools["sgd"] + pools["momentum"]):
        trial["train_loss"][-1], trial["test_error"][-1] = 1.0625, 0.03125
        reached = {0: 1, 8: 1, 9: 2}.get(i)  # one trial of sgd, two of momentum
        trial["valid_error"] = np.where(np.arange(EVALUATIONS) == reached, 0.1, 0.5)
    optimizers = {"sgd": SGD, "momentum": MOMENTUM}
    comparison = made(study_of(optimizers, select="train_loss", eval_interval=1, trials=1, pool=8), pools)
    page = opened(comparison)
    ask(page, report="test_error")
    rows = outcome_table(page)
    assert [rows[name]["select"][0] for name in optimizers] == ["1.062", "1.062"]
    assert [rows[name]["report"][0] for name in optimizers] == ["3.12%", "3.12%"]
    assert [rows[name]["reached"][0] for name in optimizers] == ["12%", "25%"]
    assert_table(page, comparison, "test_error")


def test_a_page_of_trials_after_fewer_steps(opened, comparison):
    view = comparison.at(step=30)
    page = opened(view)
    page.evaluate("window.page.showAll()")
    assert_table(page, view, "test_error")
    expected, actual = live_rows(view), live_charts(page)
    for key in (OUTCOMES, BEST_OF_K, WINS, trials_key(0, 0)):
        assert_same(actual[key], expected[key], key)


def test_trials_without_a_finite_value_do_not_decide_the_page(opened, made):
    pools = pools_of(["sgd", "momentum"], 10)
    for pool in pools.values():
        for lost, index in ((np.nan, 1), (np.inf, 4), (-np.inf, 7)):
            pool[index]["valid_error"][-1] = lost
    comparison = made(study_of({"sgd": SGD, "momentum": MOMENTUM}, pool=10), pools)
    page = opened(comparison)
    assert_table(page, comparison, "test_error")
    ask(page, k=2)
    assert_table(page, answer(comparison, 2), "test_error")


# ---------------------------------------------------------------------------- what N trials do not tell


def test_open_ends_are_read_as_such(page, comparison):
    """With K = N, nothing bounds the median from below; with K = 1 both ends are known."""
    ask(page, k=POOL)
    assert all(row["select"][1].startswith("≤ ") for row in outcome_table(page).values())
    ask(page, k=1)
    assert all(" – " in row["select"][1] for row in outcome_table(page).values())
    assert_answers(page, comparison, answer(comparison, 1), "test_error")


def test_draws_without_replacement(opened, comparison):
    view = lf.Comparison(Results.of(comparison.study.replace(replacement=False), comparison.trials))
    page = opened(view)
    assert_answers(page, view, view, "test_error")
    assert outcome_table(page) != expected_table(comparison, "test_error")
    ranges = {"momentum": {"learning_rate": (0.02, 2)}}  # leaves fewer than POOL trials, which cannot be drawn
    narrow(page, view.study, ranges)
    ask(page, k=POOL)
    assert_answers(page, view, answer(view, POOL, ranges=ranges), "test_error")
    assert outcome_table(page)["momentum"]["luck"] == ["–", ""]


@pytest.mark.parametrize("sampling", ["adaptive", "unknown"])
def test_trials_that_may_have_been_chosen_have_no_intervals(opened, comparison, sampling):
    study = comparison.study.replace(search="imported", sampling=sampling)
    page = opened(lf.Comparison(Results.of(study, comparison.trials)))
    may_choose_k = sampling == "unknown"
    assert page.locator("#k").is_visible() == may_choose_k
    for k in (1, 2) if may_choose_k else (None,):
        ask(page, k=k)
        assert {row["select"][1] for row in outcome_table(page).values()} == {"unknown"}
        assert page.locator("#separated").text_content().startswith("Nothing is tested")
        assert {row[-1] for row in audit_table(page)} == {"unknown"}


def test_a_pool_with_fewer_than_k_trials_is_not_compared(page, comparison):
    ranges = {"momentum": {"learning_rate": (0.02, 2)}}
    narrow(page, comparison.study, ranges)
    left = len(answer(comparison, ranges=ranges).outcome("momentum").pool)
    for k, is_compared in ((left, True), (left + 1, False)):
        ask(page, k=k)
        view = answer(comparison, k, ranges=ranges)
        assert_answers(page, comparison, view, "test_error")
        assert ("momentum" in view.results.comparable()) == is_compared
        assert ({"momentum"} <= {row["ours"] for row in live_charts(page)[WINS]}) == is_compared
        assert ("momentum" in page.locator("#separated").text_content()) == is_compared
        verdicts = {row[0]: row[-1] for row in audit_table(page) if "momentum" in row[0]}
        assert verdicts
        assert ({"unknown"} == set(verdicts.values())) == (not is_compared)
    assert f"fewer than {left + 1} trials: momentum ({left})" in page.locator("#ranking").text_content()


def test_steps_are_told_apart(opened, made):
    pools = pools_of(["sgd", "momentum"], POOL)
    for i, trial in enumerate(pools["sgd"] + pools["momentum"]):
        reached = i % 3 + (2 if i < POOL else 4)  # sgd is faster
        trial["valid_error"] = np.where(np.arange(EVALUATIONS) >= reached, 0.1, 0.5)
    comparison = made(study_of({"sgd": SGD, "momentum": MOMENTUM}), pools)
    page = opened(comparison)
    ask(page, k=4)
    view = answer(comparison, 4)
    assert [(test.better, test.separated) for test in view.results.step_tests()] == [("sgd", True)]
    assert_tests(page, view)
    assert (
        page.locator("#steps .live").text_content()
        == "At K = 4, sgd is faster than momentum (more than chance explains)."
    )
    assert page.locator("#separated").text_content() == "At K = 4, no two optimizers are clearly different."


def test_charts_in_seconds_are_recomputed_like_those_in_steps(opened, comparison):
    """Each optimizer's steps take twice as long as those of the one before."""
    times = {name: StepTime(0.01 * 2**i, 4, "1 × none") for i, name in enumerate(comparison.study.optimizers)}
    results = comparison.results
    outcomes = {name: replace(outcome, step_time=times[name]) for name, outcome in results.outcomes.items()}
    timed = lf.Comparison(replace(results, outcomes=outcomes, step_times=times))
    page = opened(timed)
    for k in (K, 3):
        ask(page, k=k)
        shown, expected = live_charts(page), live_rows(answer(timed, k))
        assert_same(shown[panel_key("steps", seconds=True)], expected[panel_key("steps", seconds=True)])
        costs = {row["name"]: row["cost"] for row in shown[BEST_OF_K] if row["k"] == 1}
        for name, cost in costs.items():
            assert cost == pytest.approx(timed.outcome(name).cost(1) * times[name].seconds)


def test_a_verdict_is_never_stale(page, comparison):
    """Between a question and its answer, nothing is claimed; what is asked meanwhile replaces it."""
    said = "document.querySelector('#separated').textContent"
    assert page.evaluate(said).startswith(f"At K = {K}, ")
    moved = """async k => {
        const input = document.querySelector("#k");
        input.value = k;
        input.dispatchEvent(new Event("input"));
        await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
        return [...document.querySelectorAll("#separated, #steps .live, #audit-table [data-cell=verdict]")].map(
            place => place.textContent).concat(window.page.charts.flatMap(chart => chart.rows).map(
            row => row.chance && row.verdict).filter(Boolean));
    }"""
    for k in (3, 30, 7):
        texts = page.evaluate(moved, k)
        assert len(texts) > 12
        assert all(text.lower().startswith("testing") for text in texts)
    page.evaluate(SETTLED)
    assert page.evaluate(said).startswith("At K = 7, ")
    assert_answers(page, comparison, answer(comparison, 7), "test_error")


def test_sentences_are_marked_as_the_study_s_when_something_is_moved(page, comparison):
    notes = page.locator(".as-run")
    assert notes.count() > 2
    visible = "[...document.querySelectorAll('.as-run')].filter(note => note.checkVisibility()).length"
    assert page.evaluate(visible) == 0
    moves = [{"k": K + 1}, {"select": "train_loss"}]
    for move in moves:
        ask(page, **move)
        assert page.evaluate(visible) == notes.count()
        assert f"K = {K}, selected by valid_error" in page.locator("#answer .as-run").text_content()
        assert float(page.locator("#answer p:not(.as-run)").first.evaluate("p => getComputedStyle(p).opacity")) < 1
        reset(page)
        assert page.evaluate(visible) == 0
    ask(page, report="train_loss")  # which the sentences do not depend on
    assert page.evaluate(visible) == 0
    narrow(page, comparison.study, {"adam": {"epsilon": (0.1, None)}})
    assert page.evaluate(visible) == notes.count()
