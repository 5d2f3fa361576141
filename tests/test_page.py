"""The page in a browser: it says what the library says, whatever its reader asks and whatever the study holds."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from levelfield.words import show_hyperparameters, show_metric

import levelfield as lf
from levelfield import workloads
from levelfield.report import charts as drawn_charts
from levelfield.report import figures
from levelfield.trial import Direction

pytestmark = pytest.mark.usefixtures("no_gradients")

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

METRICS = ["train_loss", "train_error", "valid_loss", "valid_error", "test_loss", "test_error"]
K, POOL, TRIED, EVALUATIONS = 5, 36, 42, 8
RATE, ONE_MINUS = {"log": [1e-3, 1e1]}, {"log": [1e-3, 1e0]}
SGD = {"rule": "sgd", "learning_rate": RATE}
MOMENTUM = {"rule": "momentum", "learning_rate": RATE, "one_minus_momentum": ONE_MINUS}
OPTIMIZERS = {
    "sgd": SGD,
    "momentum": MOMENTUM,
    "nesterov": MOMENTUM
    | {"rule": "nesterov", "schedule": {"kind": "linear", "decay_steps": {"integer": [1, 9]}, "decay_factor": 0.1}},
    "adam": {
        "learning_rate/epsilon": {"log": [1e-2, 1e2]},
        "one_minus_beta1": {"choice": [0.1, 0.05, 0.3]},
        "beta2": 0.999,
        "epsilon": {"log": [1e-3, 1e3]},
    },
}
SCHEDULE = {
    "kind": "linear",
    "decay_steps": {"uniform": [0.5, 1.0]},
    "decay_factor": {"choice": [1e-3, 1e-2, 1 / 3]},  # the last has more digits than the page has
}


def study_of(optimizers: Mapping[str, Any] = OPTIMIZERS, **changes: Any) -> lf.Study:
    content = {
        "workload": "fashion_mini",
        "steps": 10 * EVALUATIONS,
        "eval_interval": 10,
        "trials": K,
        "pool": POOL,
        "target": {"metric": "valid_error", "value": 0.25},
        "schedule": SCHEDULE,
        "optimizers": dict(optimizers),
    }
    return lf.Study(**content | changes)


def curves(generator: np.random.Generator, worse: float = 0.0, length: int = EVALUATIONS) -> dict[str, np.ndarray]:
    """Curves that fall to random ends. Errors are multiples of 1/50, so that some tie."""
    end = 0.1 + 0.5 * generator.random() + worse
    falling = np.linspace(0.9, end, EVALUATIONS)[:length]
    noise = {metric: 0.9 + 0.2 * generator.random() for metric in METRICS}
    return {
        metric: np.round(50 * noise[metric] * falling) / 50 if metric.endswith("error") else noise[metric] * falling**2
        for metric in METRICS
    }


def pools_of(names: Sequence[str], tried: int = TRIED, seed: int = 0) -> dict[str, list[dict[str, np.ndarray]]]:
    generator = np.random.default_rng(seed)
    worse = {"momentum": 0.3, "nesterov": 0.06, "adam": 0.14}
    return {name: [curves(generator, worse.get(name, 0.0)) for _ in range(tried)] for name in names}


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    """Four optimizers. Some trials break off, one lacks a metric, one has an infinite one."""
    pools, generator = pools_of(list(OPTIMIZERS)), np.random.default_rng(1)
    infeasible = {name: list(range(i, 36, 6 + i)) for i, name in enumerate(OPTIMIZERS)}
    for name, broken in infeasible.items():
        for index in broken:
            pools[name][index] = curves(generator, length=1 + index % 3)
    pools["sgd"][9]["test_loss"][-1] = np.nan
    pools["adam"][5]["train_loss"][-1] = np.inf
    found = made(study_of(), pools, infeasible)
    assert found.complete
    assert 9 not in infeasible["sgd"]
    assert 5 not in infeasible["adam"]
    return found


# ---------------------------------------------------------------------------- the browser


def executable(own: str) -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    return found or (own if Path(own).exists() else None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        path = executable(playwright.chromium.executable_path)
        if path is None:
            pytest.skip("no Chromium or Chrome on this machine")
        arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=path, args=arguments)
        yield running
        running.close()


@pytest.fixture
def opened(browser, tmp_path) -> Iterator[Callable[..., Any]]:
    """Opens a page or a comparison's; whatever its console says, and any request but for the file, is a failure."""
    contexts, problems = [], []

    def open_page(source: Path | lf.Comparison, **options: Any) -> Any:
        path = source if isinstance(source, Path) else source.write_report(tmp_path / f"{len(contexts)}.html")
        context = browser.new_context(offline=True, **{"viewport": {"width": 1200, "height": 900}} | options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(f"console {message.type}: {message.text}"))
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: problems.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_function("window.page")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory) -> Path:
    return comparison.write_report(tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture
def page(opened, report) -> Any:
    return opened(report)


# ---------------------------------------------------------------------------- questions and answers

SETTLED = """async () => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    await window.page.settled;
}"""


def ask(page: Any, *, k: int | None = None, select: str | None = None, report: str | None = None) -> None:
    if k is not None:
        page.locator("#k").fill(str(k))
    if select is not None:
        page.locator("#select").select_option(select)
    if report is not None:
        page.locator("#report").select_option(report)
    page.evaluate(SETTLED)


def inputs(page: Any, study: lf.Study, optimizer: str, key: str) -> Any:
    axes = [one.key for one in study.optimizer(optimizer).space.free]
    number = list(study.optimizers).index(optimizer)
    return page.locator(f'[data-end][data-optimizer="{number}"][data-axis="{axes.index(key)}"]')


def narrow(page: Any, study: lf.Study, ranges: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """Type ranges, and tick the choices that stay, by keyboard."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    for optimizer, axes in ranges.items():
        for key, kept in axes.items():
            found = inputs(page, study, optimizer, key)
            choices = next(one for one in study.optimizer(optimizer).space if one.key == key).dimension.ends
            for i in range(found.count()):
                if found.nth(i).get_attribute("type") != "checkbox":
                    found.nth(i).fill("" if kept[i] is None else str(kept[i]))
                    found.nth(i).press("Tab")
                elif found.nth(i).is_checked() != (choices[i] in kept):
                    found.nth(i).press("Space")  # a click misses what moves while charts above it are drawn
                page.evaluate(SETTLED)


def seen(comparison: lf.Comparison, k: int = K, select: str | None = None, ranges: Any = None) -> lf.Comparison:
    """The library's answer to what the page is asked."""
    found = comparison.narrowed(ranges or {}).at(select=select)
    found.study = found.study.replace(trials=k)
    return found


def table(page: Any) -> list[dict[str, str]]:
    """Its cells as they are read, by name."""
    return page.evaluate("""() => [...document.querySelectorAll("#outcomes tbody tr")].map(row => Object.fromEntries(
        [...row.querySelectorAll("[data-cell]")].map(cell => [cell.dataset.cell, cell.textContent])))""")


def said(comparison: lf.Comparison, report: str) -> list[dict[str, str]]:
    """What the table should read."""
    study, rows = comparison.study, []
    for name in study.optimizers:
        outcome, cells = comparison.outcome(name), {}
        for key, metric in (("select", study.select), ("report", report)):
            found = outcome.best(study.trials, metric)
            cells[key] = show_metric(metric, found.mean)
            ends = " – ".join(show_metric(metric, end) for end in (found.low, found.high))
            cells[f"{key}-range"] = "" if np.isnan(found.mean) else ends
        if study.target:
            reached = outcome.steps_to_target(study.trials)
            able = reached.probability > 0
            cells["steps"] = f"{reached.mean:,.0f} ({reached.probability:.0%})" if able else "–"
        best = outcome.best_trial
        cells["trials"] = f"{len(outcome.pool)} of {outcome.tried}"
        cells["hyperparameters"] = show_hyperparameters(best.point.hyperparameters) if best else ""
        rows.append(cells)
    return rows


def audit_table(page: Any) -> list[list[str]]:
    return page.evaluate("""() => [...document.querySelectorAll("#audit tbody tr")].map(row => [
        row.querySelector("th"), ...["worse", "better", "p", "verdict"].map(key =>
        row.querySelector(`[data-cell=${key}]`))].map(cell => cell.textContent))""")


def audit_said(comparison: lf.Comparison) -> list[list[str]]:
    def share(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:.0%}"

    return [
        [
            f"{each.edge.special} ⊆ {each.edge.general}",
            share(each.worse),
            share(each.better),
            "–" if np.isnan(each.p_value) else f"{each.p_value:.2g}",
            each.verdict.value,
        ]
        for each in comparison.audit()
    ]


def charts(page: Any) -> dict[str, list[dict[str, Any]]]:
    """Rows of the live charts, by key."""
    found = page.evaluate("window.page.charts.filter(c => c.panel.key).map(c => [c.panel.key, c.rows])")
    assert len(found) > 5
    return dict(found)


def live_rows(comparison: lf.Comparison) -> dict[str, list[dict[str, Any]]]:
    """The rows of the library's figures, by key, without the charts, which take most of the time."""
    names = ("shades", "metric_format")
    no_charts = MagicMock(**{name: getattr(drawn_charts, name) for name in names})
    with patch.object(figures, "charts", no_charts):
        found = figures.figures(comparison)
    return {panel.key: panel.rows for figure in found for panel in figure.panels if panel.key}


def expected_charts(view: lf.Comparison, whole: lf.Comparison, report: str, ks: Sequence[int]) -> dict[str, Any]:
    """The rows of the figures for what is asked. Where the page keeps the whole in sight, the library's numbers."""
    study = view.study
    names = [name for name in study.optimizers if np.isfinite(view.outcome(name).values()).any()]
    number = {name: i for i, name in enumerate(study.optimizers)}

    def numbers(found: Any) -> dict[str, float | None]:
        return {part: none(getattr(found, part)) for part in ("mean", "low", "high")}

    rows = live_rows(view)
    rows["outcomes:report"] = [
        {"optimizer": name} | numbers(view.outcome(name).best(study.trials, report)) for name in names
    ]
    rows["selection"] = [
        {"optimizer": name, "selector": selector}
        | numbers(view.outcome(name).at(select=selector).best(study.trials, report))
        for name in names
        for selector in METRICS
    ]
    rows["best_of_k"] = [
        {"optimizer": name, "k": k, "cost": view.outcome(name).cost(k)} | numbers(view.outcome(name).best(k))
        for name in names
        for k in ks
    ]
    rows["inclusions"] = [
        row | {"special": number[row["special"]], "general": number[row["general"]]} if "special" in row else row
        for row in rows["inclusions"]
    ]
    rows.setdefault("steps", [])
    for key, all_rows in live_rows(seen(whole, study.trials, study.select)).items():
        if key.startswith("trials:"):  # what is excluded stays, pale
            kept = {trial.point.index for trial in view.trials[all_rows[0]["optimizer"]]}
            rows[key] = [row | {"kept": row["trial"] in kept} for row in all_rows]
    return rows


def none(value: float) -> float | None:
    return value if np.isfinite(value) else None


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Equal, floats up to rounding."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_same(found[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for i, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where} {i}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), where
    else:
        assert found == expected, where


def assert_answers(page: Any, whole: lf.Comparison, view: lf.Comparison, report: str) -> None:
    """All that the page shows is what the library says."""
    assert table(page) == said(view, report)
    assert audit_table(page) == audit_said(view)
    findings = page.evaluate("window.page.findings.map(each => [each.worse, each.better, each.p])")
    numbers = [[each.worse, each.better, each.p_value] for each in view.audit()]
    np.testing.assert_allclose(np.array(findings, float), np.array(numbers), rtol=1e-9, atol=1e-12)
    ks = page.evaluate("window.page.data.ks")
    assert ks[0] == 1
    assert ks[-1] == max(len(whole.outcome(name).pool) for name in whole.study.optimizers)
    assert_same(charts(page), expected_charts(view, whole, report, ks))


# ---------------------------------------------------------------------------- as it opens


def texts(page: Any) -> list[str]:
    """All there is to read, besides the charts."""
    return [text.strip() for text in page.locator("td, th, h1, h2, h3, p:not(#ranking), li").all_text_contents()]


def test_at_load_it_says_what_it_said_without_scripts(opened, report):
    still, live = opened(report, java_script_enabled=False), opened(report)
    assert len(texts(live)) > 100
    assert texts(live) == texts(still)
    assert live.locator("#reset").is_hidden()
    assert live.locator("#k").input_value() == str(K)


def test_at_load_it_says_what_the_library_says(page, comparison):
    assert {each.verdict.value for each in comparison.audit()} == {"violated", "consistent", "no separation"}
    assert any(0.001 < each.p_value < 0.9 for each in comparison.audit())  # neither as small nor as large as can be
    assert_answers(page, comparison, comparison, "test_error")


def test_charts_are_drawn_when_they_are_seen(page):
    drawn = "window.page.charts.filter(chart => chart.place.querySelector('svg')).length"
    page.wait_for_function(f"{drawn} > 0")
    count = page.locator("[data-panel]").count()
    assert page.evaluate(drawn) < count
    page.evaluate("window.page.showAll()")
    assert page.evaluate(drawn) == count
    assert page.locator("svg").count() == count


DRAWN = """async () => Promise.all(window.page.charts.filter(chart => chart.panel.key).map(async chart => {
    const { view } = await chart.drawn;
    const drawn = view.data("rows").map((row, i) => JSON.stringify(row, Object.keys(chart.rows[i] ?? {})));
    const titles = [...chart.place.querySelectorAll(".role-axis-title text")].map(each => each.textContent);
    return { key: chart.panel.key, drawn, rows: chart.rows.map(row => JSON.stringify(row)), titles };
}))"""


def assert_drawn(page: Any, select: str = "valid_error", report: str = "test_error") -> None:
    """What was computed is what stands in the charts, and the metric on an axis is the one that was asked for."""
    for chart in page.evaluate(DRAWN):
        assert chart["drawn"] == chart["rows"]
        kind = chart["key"].partition(":")[0] if chart["key"].startswith("trials") else chart["key"]
        axis = {"outcomes:report": report, "selection": report, "steps": None, "beats": None, "ranks": None}
        metric = axis.get(kind, None if kind == "inclusions" else select)
        assert set(chart["titles"]) & set(METRICS) == {metric} - {None}, chart["key"]


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
        assert_answers(page, comparison, seen(comparison, k, select), report)
        answers.append(table(page))
    assert len({str(answer) for answer in answers}) == len(QUESTIONS)


def test_another_metric_is_on_the_axes(page):
    page.evaluate("window.page.showAll()")
    assert_drawn(page)
    ask(page, k=9, select="train_loss", report="valid_loss")
    assert_drawn(page, "train_loss", "valid_loss")


def ranking(comparison: lf.Comparison) -> list[str]:
    """Names, best first; those without a number last."""
    k = comparison.study.trials
    means = {name: comparison.outcome(name).best(k).mean for name in comparison.study.optimizers}
    return sorted(means, key=lambda name: (np.isnan(means[name]), means[name]))


@pytest.mark.parametrize("select", ["valid_error", "test_loss"])
def test_the_ranking_is_by_the_expected_best(page, comparison, select):
    """With test_loss, one optimizer has no number."""
    view = seen(comparison, 4, select)
    ask(page, k=4, select=select)
    text = page.locator("#ranking").text_content()
    means = {name: show_metric(select, view.outcome(name).best(4).mean) for name in OPTIMIZERS}
    places = [f"{i}. {name} {means[name]}" for i, name in enumerate(ranking(view), start=1)]
    assert text == f"Best of 4 by {select}: " + "   ".join(places)


RANGES = [
    {"momentum": {"learning_rate": (0.02, 2)}},
    {"sgd": {"learning_rate": (None, 0.5), "decay_factor": [1 / 3]}, "adam": {"epsilon": (0.1, None)}},
    {"adam": {"one_minus_beta1": [0.1, 0.3], "learning_rate/epsilon": (0.1, 30), "decay_factor": [0.001, 1 / 3]}},
    {"nesterov": {"decay_steps": (2, 4)}, "momentum": {"one_minus_momentum": (0.01, 0.5), "decay_steps": (0.6, 0.9)}},
]


@pytest.mark.parametrize("ranges", RANGES)
def test_typed_ranges_and_ticked_choices(page, comparison, ranges):
    narrow(page, comparison.study, ranges)
    view = seen(comparison, ranges=ranges)
    for name in ranges:
        assert 0 < len(view.outcome(name).pool) < POOL
    assert_answers(page, comparison, view, "test_error")
    words = page.locator("#narrowed").text_content()
    for name in ranges:
        assert f"What if {name} had been searched" in words
        assert f"{len(view.outcome(name).pool)} of its trials are left" in words
    ask(page, k=2, select="train_loss", report="train_error")
    assert_answers(page, comparison, seen(comparison, 2, "train_loss", ranges), "train_error")


def test_the_best_of_a_part_is_told(page, comparison):
    ranges = {"momentum": {"learning_rate": (0.5, None)}, "adam": {"epsilon": (1, None)}}
    narrow(page, comparison.study, ranges)
    view = seen(comparison, ranges=ranges)
    assert table(page) == said(view, "test_error")
    assert view.outcome("momentum").best_trial is not comparison.outcome("momentum").best_trial


def test_a_part_without_trials_has_no_numbers(page, comparison):
    narrow(page, comparison.study, {"momentum": {"learning_rate": (3.0001, 3.0002)}})
    row = table(page)[1]
    assert row == {
        "select": "–",
        "select-range": "",
        "report": "–",
        "report-range": "",
        "steps": "–",
        "trials": "0 of 0",
        "hyperparameters": "",
    }
    assert [line[-1] for line in audit_table(page) if "momentum" in line[0]] == ["unknown", "unknown"]
    assert "momentum" not in page.locator("#ranking").text_content()
    others = [row for row in table(page) if row["trials"] != "0 of 0"]
    assert others == [row for row in said(comparison, "test_error") if row != said(comparison, "test_error")[1]]


def test_no_choice_at_all_leaves_no_trial(page, comparison):
    narrow(page, comparison.study, {"adam": {"one_minus_beta1": []}})
    assert table(page)[3]["trials"] == "0 of 0"


# ---------------------------------------------------------------------------- dragging


def drag(page: Any, key: str, start: float, end: float) -> None:
    """Over a chart, from one share of its width to another."""
    number = page.evaluate(f"window.page.charts.findIndex(chart => chart.panel.key === {key!r})")
    chart = page.locator("[data-panel]").nth(number)
    chart.evaluate("each => each.scrollIntoView({ block: 'center' })")
    chart.locator("svg").wait_for()
    page.evaluate(SETTLED)  # charts above it may have been drawn, too, and moved it
    chart.evaluate("each => each.scrollIntoView({ block: 'center' })")
    box = chart.locator("svg g.root path.background").first.bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + start * box["width"], middle)
    page.mouse.down()
    for share in np.linspace(start, end, 5):
        page.mouse.move(box["x"] + share * box["width"], middle)
    page.mouse.up()
    page.evaluate(SETTLED)


@pytest.mark.parametrize(("start", "end"), [(0.3, 0.7), (0.7, 0.3)], ids=["rightwards", "leftwards"])
def test_a_range_is_dragged_over_a_chart(page, comparison, start, end):
    before = page.locator("#ranking").text_content()
    number, name = 1, "momentum"
    free = comparison.study.optimizer(name).space.free
    axis = [one.key for one in free].index("learning_rate")
    drag(page, f"trials:{number}:{axis}", start, end)

    asked = page.evaluate("window.page.asked.ranges")
    assert asked.keys() == {str(number)}
    assert asked[str(number)].keys() == {str(axis)}
    low, high = asked[str(number)][str(axis)]
    # 0.3 and 0.7 of four decades, with a little room at both sides
    assert np.log10([low, high]) == pytest.approx([-3 + 4 * 0.3, -3 + 4 * 0.7], abs=0.15)
    found = inputs(page, comparison.study, name, "learning_rate")
    assert [float(found.nth(i).input_value()) for i in range(2)] == pytest.approx([low, high], rel=1e-3)
    assert page.locator("#ranking").text_content() != before
    ranges = {name: {"learning_rate": (low, high)}}
    assert 0 < len(seen(comparison, ranges=ranges).outcome(name).pool) < POOL
    assert_answers(page, comparison, seen(comparison, ranges=ranges), "test_error")

    drag(page, f"trials:{number}:{axis}", 0.9, 0.9)  # a click beside it
    assert page.evaluate("window.page.asked.ranges") == {str(number): {}}
    assert [found.nth(i).input_value() for i in range(2)] == ["", ""]
    assert page.locator("#ranking").text_content() == before


def test_ranges_of_several_charts_hold_together(page, comparison):
    free = [one.key for one in comparison.study.optimizer("momentum").space.free]
    drag(page, f"trials:1:{free.index('learning_rate')}", 0.2, 0.8)
    drag(page, f"trials:1:{free.index('one_minus_momentum')}", 0.1, 0.6)
    drag(
        page,
        "trials:3:" + str([one.key for one in comparison.study.optimizer("adam").space.free].index("epsilon")),
        0,
        0.5,
    )
    asked = page.evaluate("window.page.asked.ranges")
    ranges = {
        name: {comparison.study.optimizer(name).space.free[int(axis)].key: tuple(ends) for axis, ends in axes.items()}
        for number, axes in asked.items()
        for name in [list(OPTIMIZERS)[int(number)]]
    }
    assert {name: set(axes) for name, axes in ranges.items()} == {
        "momentum": {"learning_rate", "one_minus_momentum"},
        "adam": {"epsilon"},
    }
    assert_answers(page, comparison, seen(comparison, ranges=ranges), "test_error")


def test_everything_goes_back_to_what_the_study_has(page, comparison):
    before, numbers, ranked = texts(page), charts(page), page.locator("#ranking").text_content()
    axis = [one.key for one in comparison.study.optimizer("momentum").space.free].index("learning_rate")
    drag(page, f"trials:1:{axis}", 0.3, 0.5)
    narrow(page, comparison.study, {"sgd": {"decay_factor": [0.01]}})
    ask(page, k=17, select="train_loss", report="train_error")
    assert charts(page) != numbers
    go_back(page)
    assert texts(page) == before
    assert page.locator("#ranking").text_content() == ranked
    assert charts(page) == numbers
    assert page.locator("#reset").is_hidden()
    assert page.locator("#k").input_value() == str(K)
    assert page.locator("#select").input_value() == "valid_error"
    assert page.locator("#report").input_value() == "test_error"
    assert set(page.evaluate("[...document.querySelectorAll('input[type=number]')].map(each => each.value)")) == {""}
    assert page.locator("input[type=checkbox]:not(:checked)").count() == 0
    assert page.locator("#narrowed").text_content() == ""

    drag(page, f"trials:1:{axis}", 0.3, 0.5)
    brushes = """[...document.querySelectorAll(".range_brush path")].filter(each =>
        each.getBoundingClientRect().width > 10).length"""
    assert page.evaluate(brushes) == 1
    go_back(page)
    assert page.evaluate(brushes) == 0
    assert charts(page) == numbers


def go_back(page: Any) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.locator("#reset").click()
    page.evaluate(SETTLED)


def test_halves_are_rounded_as_python_rounds_them(opened, made):
    """To the even digit: JavaScript's own goes up."""
    pools = pools_of(["sgd", "momentum"], 8)
    for i, each in enumerate(pools["sgd"] + pools["momentum"]):
        each["train_loss"][-1], each["test_error"][-1] = 1.0625, 0.03125
        reached = {0: 1, 8: 1, 9: 2}.get(i)  # of sgd's one, of momentum's two
        each["valid_error"] = np.where(np.arange(EVALUATIONS) == reached, 0.1, 0.5)
    optimizers = {"sgd": SGD, "momentum": MOMENTUM}
    comparison = made(study_of(optimizers, select="train_loss", eval_interval=1, trials=1, pool=8), pools)
    page = opened(comparison)
    ask(page, report="test_error")
    rows = table(page)
    assert [row["select"] for row in rows] == ["1.062", "1.062"]
    assert [row["report"] for row in rows] == ["3.12%", "3.12%"]
    assert [row["steps"] for row in rows] == ["2 (12%)", "2 (25%)"]
    assert rows == said(comparison, "test_error")


def test_a_page_of_trials_read_earlier(opened, comparison):
    view = comparison.at(step=30)
    page = opened(view)
    page.evaluate("window.page.showAll()")
    assert table(page) == said(view, "test_error")
    expected, found = live_rows(view), charts(page)
    for key in ("outcomes:select", "best_of_k", "beats", "trials:0:0"):
        assert_same(found[key], expected[key], key)


def test_trials_without_a_finite_value_do_not_decide_the_page(opened, made):
    pools = pools_of(["sgd", "momentum"], 10)
    for pool in pools.values():
        for lost, index in ((np.nan, 1), (np.inf, 4), (-np.inf, 7)):
            pool[index]["valid_error"][-1] = lost
    comparison = made(study_of({"sgd": SGD, "momentum": MOMENTUM}, pool=10), pools)
    page = opened(comparison)
    assert table(page) == said(comparison, "test_error")
    ask(page, k=2)
    assert table(page) == said(seen(comparison, 2), "test_error")


# ---------------------------------------------------------------------------- metrics that go up


@pytest.fixture
def accuracies(made) -> lf.Comparison:
    """Selected by a metric that is the better the higher, and that there is none of on a test set."""
    metrics = {"valid_accuracy": Direction.MAXIMIZE, "train_loss": Direction.MINIMIZE}
    workload = replace(
        workloads.get_workload("fashion_mini"), name="accuracy", metrics=metrics, select="valid_accuracy"
    )
    lf.register_workload(workload)
    optimizers = {"sgd": SGD, "momentum": MOMENTUM}
    study = study_of(optimizers, workload=workload.name, target={"metric": "valid_accuracy", "value": 0.7})
    pools = {
        name: [{"valid_accuracy": 1 - each["valid_error"], "train_loss": each["train_loss"]} for each in pool]
        for name, pool in pools_of(list(optimizers), POOL).items()
    }
    return made(study, pools)


def test_a_metric_that_goes_up(opened, accuracies):
    page = opened(accuracies)
    page.evaluate("window.page.showAll()")
    assert table(page) == said(accuracies, "valid_accuracy")
    assert audit_table(page) == audit_said(accuracies)
    first = max(accuracies.study.optimizers, key=lambda name: accuracies.outcome(name).best(K).mean)
    assert f": 1. {first}" in page.locator("#ranking").text_content()
    expected, found = live_rows(accuracies), charts(page)
    for key in ("outcomes:select", "steps", "beats", "ranks", "selection", "trials:0:0", "trials:1:1"):
        assert_same(found[key], expected[key], key)
    ask(page, k=2, select="train_loss")
    assert table(page) == said(seen(accuracies, 2, "train_loss"), "valid_accuracy")
    for chart in page.evaluate(DRAWN):
        if chart["key"] in ("outcomes:select", "best_of_k", "trials:0:0"):
            assert "train_loss" in chart["titles"]
        if chart["key"] == "selection":
            assert "valid_accuracy" in chart["titles"]


# ---------------------------------------------------------------------------- what the axes take in

AXES = """async () => Promise.all(
    window.page.charts.filter(chart => chart.rows.some(row => "k" in row || "best" in row)).map(async chart => {
        const { view } = await chart.drawn;
        const points = chart.place.querySelectorAll(".mark-symbol.role-mark path").length;
        return { rows: chart.rows, domain: view.scale("y").domain(), points };
    }))"""


def assert_in_sight(page: Any, better: str) -> list[dict[str, Any]]:
    """Most of each best trial's curve, and the best of more than one trial with the better end of its band."""
    page.evaluate("window.page.showAll()")
    shown = page.evaluate(AXES)
    for chart in shown:
        ends, rows = chart["domain"], chart["rows"]
        if "best" in rows[0]:
            best = [row["value"] for row in rows if row["best"]]
            seen = best[len(best) // 4 :]
        else:
            seen = [row[part] for row in rows if row["k"] > 1 for part in ("mean", better)]
        assert all(min(ends) - 1e-5 <= value <= max(ends) + 1e-5 for value in seen)
    return shown


def test_errors_in_sight(opened, comparison):
    shown = assert_in_sight(opened(comparison), "low")
    assert len(shown) == 2 + len(OPTIMIZERS)


def test_accuracies_in_sight(opened, accuracies):
    assert len(assert_in_sight(opened(accuracies), "high")) == 4


def test_one_trial_in_sight(opened, made):
    """A line through one K has no length: the chart has points instead."""
    for chart in assert_in_sight(opened(one_trial(made)), "low"):
        if "k" in chart["rows"][0]:
            assert chart["points"] == len(LITTLE)


# ---------------------------------------------------------------------------- names that mean harm

EVIL = "</script><script>window.hacked=1</script>"
EVIL_FOLDER = "<img src=x onerror=window.hacked=1>"
NAMES = [
    EVIL,
    "\"quoted' & <b>",
    "<img src=x onerror=window.hacked=1>",
    "</script /",
    "🦊 ∑ שלום",
    "wide" * 75,
    "{{ 7 * 7 }} ${7 * 7} \\",
]


@pytest.fixture(scope="module")
def hostile(made, tmp_path_factory) -> Path:
    protocols = ["<i>tuned</i>", "</td>not"]
    optimizers = {name: (SGD if i % 2 else MOMENTUM) | {"protocol": protocols[i % 2]} for i, name in enumerate(NAMES)}
    study = study_of(optimizers, name=EVIL_FOLDER, description=f"<b>bold</b>{EVIL}{'long' * 40}", pool=8)
    found = made(study, pools_of(NAMES, 8))
    return found.write_report(tmp_path_factory.mktemp("hostile") / "report.html")


def test_names_are_shown_and_not_run(opened, hostile):
    page = opened(hostile, viewport={"width": 390, "height": 800})
    ask(page, k=3, select="train_loss")
    page.evaluate("window.page.showAll()")
    assert page.evaluate("window.hacked") is None
    assert page.title().startswith(EVIL_FOLDER)
    assert page.locator("h1").text_content() == EVIL_FOLDER
    assert page.locator("b, i, img").count() == 0
    assert page.locator("script").count() == 2
    assert EVIL in page.locator(".lead").text_content()
    headings = [text.strip() for text in page.locator("h3").all_text_contents()]
    assert headings == [name.strip() for name in NAMES]
    for i, name in enumerate(NAMES):
        assert name.strip() in page.locator("#outcomes tbody th").nth(i).text_content()
        assert name in page.locator("#ranking").text_content()
    assert list(tomllib.loads(page.locator("pre").text_content())["optimizers"]) == NAMES
    assert [row["optimizer"] for row in charts(page)["outcomes:select"]] == NAMES
    assert_drawn(page, "train_loss")
    narrow(page, study_of(dict.fromkeys(NAMES, SGD)), {NAMES[1]: {"learning_rate": (0.1, 1)}})
    assert f"What if {NAMES[1]} had been searched" in page.locator("#narrowed").text_content()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


# ---------------------------------------------------------------------------- studies with little in them

LITTLE = {"sgd": SGD, "momentum": MOMENTUM}
MORE = LITTLE | {"nesterov": MOMENTUM | {"rule": "nesterov"}}


def little(optimizers: Mapping[str, Any] = LITTLE, **changes: Any) -> lf.Study:
    return study_of(optimizers, **{"schedule": {"kind": "constant"}} | changes)


def no_trials(made) -> lf.Comparison:
    return made(little(), {})


def none_feasible(made) -> lf.Comparison:
    return made(little(), pools_of(LITTLE, 20), dict.fromkeys(LITTLE, range(20)))


def one_optimizer(made) -> lf.Comparison:
    return made(little({"sgd": SGD}), pools_of(["sgd"], POOL))


def one_trial(made) -> lf.Comparison:
    return made(little(trials=1, pool=1), pools_of(LITTLE, 1))


def one_evaluation(made) -> lf.Comparison:
    pools = {name: [curves(np.random.default_rng(i), length=1) for i in range(5)] for name in LITTLE}
    return made(little(steps=10, pool=5), pools)


def unfinished(made) -> lf.Comparison:
    """The first has not begun, the last has hardly."""
    pools = pools_of(MORE, 10)
    return made(little(MORE), {"momentum": pools["momentum"], "nesterov": pools["nesterov"][:2]})


def no_target(made) -> lf.Comparison:
    return made(little(target=None), pools_of(LITTLE, POOL))


def out_of_reach(made) -> lf.Comparison:
    return made(little(target={"metric": "valid_error", "value": 0.0001}), pools_of(LITTLE, POOL))


def without_selection(made) -> lf.Comparison:
    pools = pools_of(LITTLE, POOL)
    for pool in pools.values():
        for each in pool:
            each["valid_error"] = np.full(EVALUATIONS, np.nan)
    return made(little(), pools)


def one_without_selection(made) -> lf.Comparison:
    pools = pools_of(LITTLE, POOL)
    for each in pools["sgd"]:
        each["valid_error"] = np.full(EVALUATIONS, np.nan)
    return made(little(), pools)


def metric_missing(made) -> lf.Comparison:
    return made(little(), pools_of(LITTLE, POOL), without={"momentum": ["test_error", "train_loss"]})


def selection_missing(made) -> lf.Comparison:
    return made(little(), pools_of(LITTLE, POOL), without={"sgd": ["valid_error"]})


def nothing_searched(made) -> lf.Comparison:
    fixed = {"kind": "linear", "decay_steps": 1.0, "decay_factor": 0.1}
    study = little({"sgd": {"learning_rate": 0.1}, "momentum": MOMENTUM}, schedule=fixed)
    return made(study, pools_of(["sgd", "momentum"], POOL))


EDGES: dict[Callable[[Any], lf.Comparison], list[str]] = {
    no_trials: ["sgd has no feasible trial (0 tried)", "Best of 5 by valid_error: no trials"],
    none_feasible: ["sgd has no feasible trial (20 tried)", "Best of 5 by valid_error: no trials"],
    one_optimizer: ["1\noptimizer on fashion_mini", "Best of 5 by valid_error: 1. sgd"],
    one_trial: ["With 1 trial each"],
    one_evaluation: ["With 5 trials each"],
    unfinished: [
        "sgd has no feasible trial (0 tried)",
        "nesterov's pool is not full: 2 of 36",
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
    assert table(page) == said(comparison, "test_error")
    known = [name for name in comparison.study.optimizers if np.isfinite(comparison.outcome(name).values()).any()]
    if known:
        assert [row["optimizer"] for row in charts(page)["outcomes:select"]] == known
        assert_drawn(page)
    else:
        assert page.locator("svg").count() == 0
    if page.locator("#k").count():
        ask(page, k=1, select="train_loss", report="valid_loss")
        view = seen(comparison, 1, "train_loss")
        assert table(page) == said(view, "valid_loss")
        assert audit_table(page) == (audit_said(view) if known else [])
    else:
        assert not any(comparison.outcome(name).pool for name in comparison.study.optimizers)


def test_an_optimizer_has_one_colour(opened, made):
    """In the table and in all charts, although the first has no trials yet."""
    page = opened(unfinished(made))
    page.locator('[data-panel="1"] svg').wait_for()
    rows = page.evaluate("""() => [...document.querySelectorAll("#outcomes .swatch")].map(each =>
        getComputedStyle(each).backgroundColor)""")
    swatches = dict(zip(MORE, rows, strict=True))
    points = page.evaluate("""() => [0, 1].flatMap(panel => [...document.querySelectorAll(
        `[data-panel="${panel}"] .mark-symbol.role-mark path`)].map(each =>
        [each.__data__.datum.optimizer, getComputedStyle(each).fill]))""")
    assert len(points) == 4
    assert dict(points) == {name: swatches[name] for name in ("momentum", "nesterov")}


# ---------------------------------------------------------------------------- how it looks


def luminance(page: Any, selector: str, style: str) -> float:
    """0 is black, 1 is white."""
    numbers = page.locator(selector).first.evaluate(f"each => getComputedStyle(each).{style}.match(/[\\d.]+/g)")
    return sum(map(float, numbers[:3])) / (3 * 255)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_reader_s(opened, report, scheme, dark):
    page = opened(report, color_scheme=scheme)
    page.locator("[data-panel] svg").first.wait_for()
    texts = [luminance(page, "body", "color"), luminance(page, "#outcomes td", "color")]
    texts.append(luminance(page, "[data-panel] .role-axis-label text", "fill"))
    assert all((text > 0.6) == dark for text in texts)
    assert (luminance(page, "html", "backgroundColor") < 0.4) == dark


def test_on_paper_there_is_nothing_to_press(page):
    assert page.locator(".controls").is_visible()
    page.emulate_media(media="print")
    assert page.locator(".controls").is_hidden()
    assert page.locator("#outcomes").is_visible()


def test_it_fits_a_telephone(opened, report, comparison):
    page = opened(report, viewport={"width": 390, "height": 800})
    ask(page, k=3, select="train_loss")
    narrow(page, comparison.study, {"momentum": {"learning_rate": (0.02, 2)}})
    page.evaluate("window.page.showAll()")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_a_large_study_is_a_page_of_a_few_megabytes(made, tmp_path):
    optimizers = {f"{name}{i}": table | {"rule": name} for name, table in OPTIMIZERS.items() for i in range(2)}
    optimizers = dict(list(optimizers.items())[2:])
    generator = np.random.default_rng(0)
    ends = generator.random((6, 500, 6, 1)) * np.linspace(2, 1, 100)
    pools = {
        name: [dict(zip(METRICS, each, strict=True)) for each in pool]
        for name, pool in zip(optimizers, ends, strict=True)
    }
    study = study_of(optimizers, steps=1000, pool=500, trials=100)
    found = made(study, pools)
    assert found.complete
    assert found.write_report(tmp_path / "report.html").stat().st_size <= 3e6
