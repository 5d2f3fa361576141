"""What tests of the page in a browser need: a study, its trials, questions to the page and the library's answers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import pytest
from helpers import make_study

import levelfield as lf
from levelfield.formatting import format_hyperparameters, format_metric
from levelfield.report import charts
from levelfield.report.figures import figures
from levelfield.taxonomy.audit import Finding

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
    "decay_factor": {"choice": [1e-3, 1e-2, 1 / 3]},  # the last has more digits than the page shows
}
LITTLE = {"sgd": SGD, "momentum": MOMENTUM}

# ---------------------------------------------------------------------------- studies and trials


def study_of(optimizers: Mapping[str, Any] = OPTIMIZERS, **changes: Any) -> lf.Study:
    content = {
        "workload": "fashion_mini",
        "steps": 10 * EVALUATIONS,
        "eval_interval": 10,
        "trials": K,
        "pool": POOL,
        "target": {"metric": "valid_error", "value": 0.25},
        "schedule": SCHEDULE,
    }
    return make_study(optimizers, **content | changes)


def little_study(optimizers: Mapping[str, Any] = LITTLE, **changes: Any) -> lf.Study:
    return study_of(optimizers, **{"schedule": {"kind": "constant"}} | changes)


def curves(generator: np.random.Generator, worse: float = 0.0, length: int = EVALUATIONS) -> dict[str, np.ndarray]:
    """Return curves that fall to random ends. Errors are multiples of 1/50, so that some tie."""
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


def four_optimizers(made: Any) -> lf.Comparison:
    """Return a comparison in which some trials end early, one lacks a metric and one has an infinite metric."""
    pools, generator = pools_of(list(OPTIMIZERS)), np.random.default_rng(1)
    infeasible = {name: list(range(i, 36, 6 + i)) for i, name in enumerate(OPTIMIZERS)}
    for name, broken in infeasible.items():
        for index in broken:
            pools[name][index] = curves(generator, length=1 + index % 3)
    pools["sgd"][9]["test_loss"][-1] = np.nan
    pools["adam"][5]["train_loss"][-1] = np.inf
    comparison = made(study_of(), pools, infeasible)
    assert comparison.complete
    assert 9 not in infeasible["sgd"]
    assert 5 not in infeasible["adam"]
    return comparison


def one_trial(made: Any) -> lf.Comparison:
    return made(little_study(trials=1, pool=1), pools_of(LITTLE, 1))


# ---------------------------------------------------------------------------- questions to the page

SETTLED = """async () => {
    await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
    await window.page.settled;
    await window.page.tested;
}"""


def browser_path(bundled: str) -> str | None:
    """Return where a Chromium is: the system's, or the one that Playwright brings."""
    paths = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    return next(filter(None, paths), bundled if Path(bundled).exists() else None)


def ask(page: Any, *, k: int | None = None, select: str | None = None, report: str | None = None) -> None:
    if k is not None:
        page.locator("#k").fill(str(k))
    if select is not None:
        page.locator("#select").select_option(label=select)
    if report is not None:
        page.locator("#report").select_option(label=report)
    page.evaluate(SETTLED)


def range_inputs(page: Any, study: lf.Study, optimizer: str, key: str) -> Any:
    axes = [axis.key for axis in study.optimizer(optimizer).space.free]
    number = list(study.optimizers).index(optimizer)
    return page.locator(f'[data-end][data-optimizer="{number}"][data-axis="{axes.index(key)}"]')


def narrow(page: Any, study: lf.Study, ranges: Mapping[str, Mapping[str, Sequence[Any]]]) -> None:
    """Type ranges, and check the choices to keep, with the keyboard."""
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true; })")
    for optimizer, axes in ranges.items():
        for key, kept in axes.items():
            inputs = range_inputs(page, study, optimizer, key)
            choices = next(axis for axis in study.optimizer(optimizer).space if axis.key == key).dimension.ends
            for i in range(inputs.count()):
                if inputs.nth(i).get_attribute("type") != "checkbox":
                    inputs.nth(i).fill("" if kept[i] is None else str(kept[i]))
                    inputs.nth(i).press("Tab")
                elif inputs.nth(i).is_checked() != (choices[i] in kept):
                    inputs.nth(i).press("Space")  # a click would miss it if a chart above it were being drawn
                page.evaluate(SETTLED)


def outcome_table(page: Any) -> dict[str, dict[str, list[str]]]:
    """Return the cells of the outcome table as they are read: optimizer → column → its texts."""
    rows = page.evaluate("""() => [...document.querySelectorAll("#outcome-table tbody tr")].map(row =>
        [...row.cells].filter(cell => !cell.hidden).map(cell =>
            [cell.dataset.column, [...cell.querySelectorAll(".main, .small")].map(text => text.textContent)]))""")
    cells = [dict(row) for row in rows]
    return {row["optimizer"][0]: {key: texts for key, texts in row.items() if key != "optimizer"} for row in cells}


def audit_table(page: Any) -> list[list[str]]:
    return page.evaluate("""() => [...document.querySelectorAll("#audit-table tbody tr")].map(row => [
        row.querySelector("th"), ...["worse", "better", "p", "coverage", "verdict"].map(key =>
        row.querySelector(`[data-cell=${key}]`))].map(cell => cell.textContent))""")


def live_charts(page: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the live charts, by key."""
    rows = page.evaluate(f"window.page.charts.filter(chart => chart.live).map(chart => [{CHART_KEY}, chart.rows])")
    assert len(rows) > 5
    return dict(rows)


CHART_KEY = "`${chart.panel.figure} ${chart.panel.choice} ${JSON.stringify(chart.panel.live)}`"


def panel_key(figure: str, choice: str = "", **live: Any) -> str:
    return f"{figure} {choice} {json.dumps(live, separators=(',', ':'))}"


def trials_key(optimizer: int, axis: int) -> str:
    return panel_key("hyperparameters", "select", optimizer=optimizer, axis=axis)


OUTCOMES, REPORTED = panel_key("outcomes", "select"), panel_key("outcomes", "report")
STEPS, SELECTION = panel_key("steps"), panel_key("selection", "report")
BEST_OF_K, BEST_OF_K_REPORTED = panel_key("best-of-k", "select"), panel_key("best-of-k", "report")
WINS, RANKS, INCLUSIONS = panel_key("pairs", chart="wins"), panel_key("pairs", chart="ranks"), panel_key("inclusions")

DRAWN = f"""async () => Promise.all(window.page.charts.filter(chart => chart.live).map(async chart => {{
    const {{ view }} = await chart.drawn;
    const drawn = view.data("rows").map((row, i) => JSON.stringify(row, Object.keys(chart.rows[i] ?? {{}})));
    const titles = [...chart.place.querySelectorAll(".role-axis-title text")].map(text => text.textContent);
    const rows = chart.rows.map(row => JSON.stringify(row));
    return {{ key: {CHART_KEY}, choice: chart.panel.choice, drawn, rows, titles }};
}}))"""


def assert_drawn(page: Any, select: str = "valid_error", report: str = "test_error") -> None:
    """Charts show the rows that were computed, and the metric on an axis is the one that was asked for."""
    page.evaluate("window.page.showAll()")
    drawn = page.evaluate(DRAWN)
    assert len(drawn) > 4
    for chart in drawn:
        assert chart["drawn"] == chart["rows"], chart["key"]
        metric = {"select": {select}, "report": {report}, "": set()}[chart["choice"]]
        assert set(chart["titles"]) & set(METRICS) == metric, chart["key"]


# ---------------------------------------------------------------------------- the library's answers


def answer(comparison: lf.Comparison, k: int = K, select: str | None = None, ranges: Any = None) -> lf.Comparison:
    """Return the library's answer to what the page is asked."""
    results = comparison.narrowed(ranges or {}).at(select=select).results
    return lf.Comparison(replace(results, study=results.study.replace(trials=k)))


def ranking(comparison: lf.Comparison) -> list[str]:
    """Return the optimizers, best first; those without a number last."""
    k = comparison.study.trials
    sign = comparison.outcome(next(iter(comparison.study.optimizers))).metrics[comparison.study.select].sign
    medians = {name: sign * comparison.outcome(name).interval(k).median for name in comparison.study.optimizers}
    means = {name: sign * comparison.outcome(name).best(k).mean for name in comparison.study.optimizers}
    # NaN, of those without a number, comes last.
    return sorted(
        medians, key=lambda name: np.nan_to_num([medians[name], means[name]], nan=1e300, posinf=1e200).tolist()
    )


def expected_table(comparison: lf.Comparison, report: str) -> dict[str, dict[str, list[str]]]:
    """Return what the outcome table should say."""
    study, rows = comparison.study, {}
    for name in ranking(comparison):
        outcome, cells = comparison.outcome(name), {}
        median = outcome.interval(study.trials)
        ends = shown_ends(lambda value: format_metric(study.select, value), median.low, median.high)
        known = np.isfinite(median.median)
        cells["select"] = [format_metric(study.select, median.median), ends] if known else ["–", ""]
        for key, metric in (("luck", study.select), ("report", report)):
            best = outcome.best(study.trials, metric)
            ends = " – ".join(format_metric(metric, end) for end in (best.low, best.high))
            if key == "luck" or metric != study.select:
                cells[key] = [format_metric(metric, best.mean), "" if np.isnan(best.mean) else ends]
        if study.target:
            steps, reached = outcome.steps_interval(study.trials), outcome.reached(study.trials)
            ends = "not reached" if steps.low == np.inf else shown_ends("{:,.0f}".format, steps.low, steps.high)
            median = "not reached" if np.isinf(steps.median) else f"{steps.median:,.0f}"
            cells["steps"] = [median, ends] if outcome.pool else ["–", ""]
            shares = [f"{reached.probability:.0%}", f"{reached.low:.0%} – {reached.high:.0%}"]
            cells["reached"] = ["–", ""] if np.isnan(reached.probability) else shares
        best_trial = outcome.best_trial
        cells["feasible"] = [f"{len(outcome.pool)} of {outcome.tried}", ""]
        cells["hyperparameters"] = [format_hyperparameters(best_trial.point.hyperparameters) if best_trial else "", ""]
        rows[name] = cells
    return rows


def shown_ends(shown: Any, low: float, high: float) -> str:
    """Return an interval as it is read, where an infinite end is open."""
    if np.isinf([low, high]).any():
        return "unknown" if np.isinf([low, high]).all() else f"≤ {shown(high)}" if np.isinf(low) else f"≥ {shown(low)}"
    return f"{shown(low)} – {shown(high)}"


def assert_table(page: Any, comparison: lf.Comparison, report: str) -> None:
    """The outcome table says what it should, in the order of the ranking."""
    table, expected = outcome_table(page), expected_table(comparison, report)
    assert table == expected
    assert list(table) == list(expected)


def expected_audit(comparison: lf.Comparison, whole: lf.Comparison | None = None) -> list[list[str]]:
    """Return what the table of inclusions should say; coverage is that of the whole spaces."""

    def share(value: float) -> str:
        return "–" if np.isnan(value) else f"{value:.0%}"

    return [
        [
            f"{finding.edge.special} ⊆ {finding.edge.general}",
            share(finding.worse),
            share(finding.better),
            "–" if np.isnan(finding.p_value) else f"{finding.p_value:.2g}",
            "unknown" if full.coverage.share is None else share(full.coverage.share),
            expected_verdict(finding, full.coverage.share),
        ]
        for finding, full in zip(comparison.audit(), (whole or comparison).audit(), strict=True)
    ]


def expected_verdict(finding: Finding, share: float | None) -> str:
    if np.isnan(finding.p_value):
        return "unknown"
    if share is not None and share < 0.05:
        return "not covered"
    if finding.worse <= 0.05:
        return "consistent"
    return "violated" if finding.p_value < 0.05 else "no separation"


def live_rows(comparison: lf.Comparison) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the library's live figures, by key. Charts take most of the time, and are left out."""
    figures(comparison.results)  # imports the modules
    modules = [module for name, module in sys.modules.items() if name.startswith("levelfield.report.figures.")]
    with ExitStack() as stack:
        for module in [charts, *modules]:
            stack.enter_context(patch.object(module, "alt", MagicMock()))
        made = figures(comparison.results)
    return {
        panel_key(figure.name, panel.choice, **panel.live): panel.rows
        for figure in made
        for panel in figure.panels
        if panel.live is not None
    }


def expected_charts(view: lf.Comparison, whole: lf.Comparison, report: str, ks: Sequence[int]) -> dict[str, Any]:
    """Return the rows of the figures for what is asked."""
    study = view.study
    numbers = {
        number: name for number, name in enumerate(study.optimizers) if np.isfinite(view.outcome(name).values()).any()
    }

    def estimate(best: Any) -> dict[str, float | None]:
        return {part: finite(getattr(best, part)) for part in ("mean", "low", "high")}

    rows = live_rows(view)
    rows[REPORTED] = [
        {"optimizer": number, "name": name} | estimate(view.outcome(name).best(study.trials, report))
        for number, name in numbers.items()
    ]
    rows[SELECTION] = [
        {"optimizer": number, "name": name, "selector": i, "selectorName": selector}
        | estimate(view.outcome(name).at(select=selector).best(study.trials, report))
        for number, name in numbers.items()
        for i, selector in enumerate(METRICS)
    ]
    for key, metric in ((BEST_OF_K, study.select), (BEST_OF_K_REPORTED, report)):
        rows[key] = [
            {"optimizer": number, "name": name, "k": k, "cost": view.outcome(name).cost(k)}
            | estimate(view.outcome(name).best(k, metric))
            for number, name in numbers.items()
            for k in ks
        ]
    audited = {line[0]: line for line in expected_audit(view, whole)}
    for row in rows.get(INCLUSIONS, []):
        if "inclusion" in row:
            row["coverage"], row["verdict"] = audited[row["inclusion"]][-2:]
    rows.setdefault(STEPS, [])
    for key, all_rows in live_rows(answer(whole, study.trials, study.select)).items():
        if key.startswith("hyperparameters"):  # excluded trials stay, pale
            kept = {trial.point.index for trial in view.trials[all_rows[0]["name"]]}
            rows[key] = [row | {"kept": row["trial"] in kept} for row in all_rows]
    return rows


def finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def assert_same(actual: Any, expected: Any, where: str = "") -> None:
    """The two are equal, floats up to the digits that are drawn."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys(), where
        for key in expected:
            assert_same(actual[key], expected[key], f"{where} {key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            assert_same(ours, theirs, f"{where} {i}")
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1.1e-6, abs=1e-9), where
    else:
        assert actual == expected, where


def assert_answers(page: Any, whole: lf.Comparison, view: lf.Comparison, report: str) -> None:
    """Everything on the page is what the library says."""
    assert_table(page, view, report)
    assert audit_table(page) == expected_audit(view, whole)
    findings = page.evaluate(
        "window.page.prepared.get('inclusions').findings.map(finding => [finding.worse, finding.better, finding.p])"
    )
    numbers = [[finding.worse, finding.better, finding.p_value] for finding in view.audit()]
    np.testing.assert_allclose(np.array(findings, float), np.array(numbers), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.array(page.evaluate(NUMBERS), float), numbers_of(view, report), rtol=1e-9, atol=1e-12)
    assert_tests(page, view)
    ks = page.evaluate("window.page.data.figures.get('best-of-k').ks")
    assert ks[0] == 1
    assert ks[-1] == max(len(whole.outcome(name).pool) for name in whole.study.optimizers)
    assert_same(live_charts(page), expected_charts(view, whole, report, ks))


NUMBERS = """() => {
    const { k, select, report, optimizers } = window.page.view;
    return optimizers.flatMap(optimizer => [
        ...[select, report].map(metric => optimizer.best(k, metric)).map(({ mean, low, high }) => [mean, low, high]),
        ...[optimizer.interval(k), optimizer.stepsInterval(k)].map(({ median, low, high }) => [median, low, high]),
        ...[optimizer.reachedBy(k)].map(({ probability, low, high }) => [probability, low, high]),
    ]);
}"""


def numbers_of(view: lf.Comparison, report: str) -> np.ndarray:
    """Return the numbers behind the outcome table."""
    k, rows = view.study.trials, []
    for name in view.study.optimizers:
        outcome = view.outcome(name)
        rows += [astuple(outcome.best(k, metric)) for metric in (view.study.select, report)]
        rows += [astuple(numbers) for numbers in (outcome.interval(k), outcome.steps_interval(k), outcome.reached(k))]
    return np.array(rows)


def assert_tests(page: Any, view: lf.Comparison) -> None:
    """The page separates the pairs that the library separates, with the same p-values, and says so."""
    names, results = list(view.study.optimizers), view.results
    able = set(results.comparable())
    kinds = {"best": results.pair_tests()} | ({"steps": results.step_tests()} if view.study.target else {})
    texts = {"best": "#separated", "steps": "#steps .live"}
    verbs = {"best": "beats", "steps": "is faster than"}
    for kind, tests in kinds.items():
        compared = [test for test in tests if able.issuperset(test.names)]
        shown = page.evaluate(f"window.page.view.tests.{kind}")
        assert [{names[test["better"]], names[test["worse"]]} for test in shown] == [
            set(test.names) for test in compared
        ]
        np.testing.assert_allclose([test["p"] for test in shown], [test.p_value for test in compared], rtol=1e-9)
        separated = {
            (test.better, test.worse) for test in compared if test.separated and test.wins + test.losses > 0.01
        }
        assert {(names[test["better"]], names[test["worse"]]) for test in shown if test["separated"]} == separated
        if page.locator(texts[kind]).count() and len(able) > 1:
            text = page.locator(texts[kind]).text_content()
            assert f"At K = {view.study.trials}, " in text
            assert text.count(verbs[kind]) == len({better for better, _ in separated})
            assert ("not clearly different" in text or "clearly differ" in text) == (len(separated) < len(compared))
            for better, _ in separated:
                assert f"{better} {verbs[kind]} " in text


def texts(page: Any) -> list[str]:
    """Return everything that there is to read, besides charts."""
    return [text.strip() for text in page.locator("td, th, h1, h2, h3, p:not(.live), li").all_text_contents()]
