"""Tables: the columns of outcomes, search spaces, and both in LaTeX."""

from __future__ import annotations

import io
import math
import re

import pytest
import rich.console
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import INFEASIBLE, MOMENTUM, OPTIMIZERS, POOL, SGD, K, Pools, random_pools, study_of

import levelfield as lf
from levelfield.cli.terminal import print_comparison
from levelfield.report import columns
from levelfield.report.columns import Column, Text
from levelfield.report.latex import latex, latex_tables
from levelfield.report.page import render
from levelfield.report.spaces import SpaceRow, space_tables


@pytest.fixture(scope="module")
def pools() -> Pools:
    return random_pools()


@pytest.fixture(scope="module")
def comparison(made, pools) -> lf.Comparison:
    return made(study_of(), pools, INFEASIBLE)


# ---------------------------------------------------------------------------- LaTeX


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


def test_the_table_of_outcomes(comparison):
    heading, *rows = cells(latex_tables(comparison.results)["outcomes"])
    assert heading == [
        "optimizer",
        r"median valid\_error",
        r"90\% CI",
        r"mean valid\_error",
        r"5--95\%",
        r"mean test\_error",
        r"5--95\%",
        r"median steps to 30.00\%",
        r"90\% CI",
        "reached",
        r"90\% CI",
        "feasible",
    ]
    for name, row in zip(OPTIMIZERS, rows, strict=True):
        outcome = comparison.outcome(name)
        median, steps, reached = outcome.interval(K), outcome.steps_interval(K), outcome.reached(K)
        best, test = outcome.best(K), outcome.best(K, "test_error")
        assert row[:-4] == [
            name,
            rf"{100 * median.median:.2f}\%",
            rf"{100 * median.low:.2f}\% -- {100 * median.high:.2f}\%",
            rf"{100 * best.mean:.2f}\%",
            rf"{100 * best.low:.2f}\% -- {100 * best.high:.2f}\%",
            rf"{100 * test.mean:.2f}\%",
            rf"{100 * test.low:.2f}\% -- {100 * test.high:.2f}\%",
            f"{steps.median:.0f}",
        ]
        ends = f"{steps.low:.0f} -- {steps.high:.0f}" if math.isfinite(steps.high) else rf"$\geq$ {steps.low:.0f}"
        assert row[-4:] == [
            ends,
            rf"{100 * reached.probability:.0f}\%",
            rf"{100 * reached.low:.0f}\% -- {100 * reached.high:.0f}\%",
            f"{POOL} of {POOL + len(INFEASIBLE.get(name, []))}",
        ]


def test_open_ends_in_latex(made, pools):
    """With K = N, nothing bounds the median from below."""
    comparison = made(study_of(trials=POOL), pools, INFEASIBLE)
    _, *rows = cells(latex_tables(comparison.results)["outcomes"])
    for name, row in zip(OPTIMIZERS, rows, strict=True):
        assert row[2] == rf"$\leq$ {100 * comparison.interval(name).high:.2f}\%"


def test_the_table_of_the_audit(comparison):
    heading, *rows = cells(latex_tables(comparison.results)["audit"])
    assert heading == ["inclusion", "worse", "better", "p", "coverage", "verdict"]
    assert [row[0] for row in rows] == [
        rf"{special} $\subseteq$ {general}"
        for special, general in (("sgd", "momentum"), ("sgd", "adam"), ("momentum", "adam"))
    ]
    for row, finding in zip(rows, comparison.audit(), strict=True):
        numbers = [rf"{100 * finding.worse:.0f}\%", rf"{100 * finding.better:.0f}\%", f"{finding.p_value:.2g}"]
        share = finding.coverage.share
        assert row[1:] == [*numbers, "unknown" if share is None else rf"{100 * share:.0f}\%", finding.verdict]


def test_the_table_of_spaces(comparison):
    heading, *rows = cells(latex_tables(comparison.results)["spaces"])
    assert heading == ["optimizer", "hyperparameter", "range"]
    assert ["adam", "learning\\_rate/epsilon", "log [0.01, 100]"] in rows
    assert ["adam", "one\\_minus\\_beta1", r"\{0.1, 0.05, 0.3\}"] in rows
    assert ["adam", "beta2", "0.999"] in rows


def test_tables_without_numbers(made):
    """Without trials and inclusions: cells are empty or a dash, and there is no table of an audit."""
    tables = latex_tables(made(study_of({"momentum": MOMENTUM}, target=None), {}).results)
    assert tables.keys() == {"outcomes", "spaces"}
    heading, row = cells(tables["outcomes"])
    assert not any("steps" in text for text in heading)
    assert row == ["momentum", "--", "", "--", "", "--", "", "0 of 0"]


ESCAPES = re.compile(
    r"\\text(backslash|asciitilde|asciicircum|less|greater)\{\}|\\[{}$&#%_]|\$(\\subseteq|\\leq|\\geq|-)\$|--"
)
NAMES_OF = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "less": "<", "greater": ">"}
SYMBOLS = {r"$\subseteq$": "⊆", r"$\leq$": "≤", r"$\geq$": "≥", "$-$": "−", "--": "–"}


def read(match: re.Match[str]) -> str:
    return NAMES_OF.get(match[1]) or SYMBOLS.get(match[0]) or match[0][1:]


@given(text=st.text(st.sampled_from([*"\\{}$&#%_~^<>ab 1", "⊆", "≤", "≥", "−", "–"])))
def test_special_characters_are_escaped_and_nothing_is_lost(text):
    written = latex(text)
    assert not set(ESCAPES.sub("", written)) & set("\\{}$&#%_~^<>")
    assert ESCAPES.sub(read, written) == text


def test_hostile_names_leave_a_table_whole(made, pools):
    name = "100% & \\input{x} $a_b$ #1 ~^ {"
    comparison = made(study_of({name: SGD}), {name: pools["sgd"]}, {name: INFEASIBLE["sgd"]})
    for table in latex_tables(comparison.results).values():
        assert len(cells(table)) >= 2
        assert r"\input{" not in table


# ---------------------------------------------------------------------------- columns


def test_a_new_column_is_in_the_terminal_the_page_and_latex(monkeypatch, comparison, opened):
    """It is declared once; where the page does not recompute it, it stays as it is."""
    column = Column(
        "spread",
        heading=lambda results: Text("spread_of", "N trials"),
        text=lambda results, outcome, k: Text(f"{len(outcome.pool) + k}", f"{outcome.tried} in all"),
        numbers=lambda results, outcome, k: {"spread": len(outcome.pool) + k},
    )
    monkeypatch.setattr(columns, "COLUMNS", (*columns.COLUMNS[:2], column, *columns.COLUMNS[2:]))
    assert [row["spread"] for row in comparison.rows()] == [POOL + K] * len(OPTIMIZERS)
    console = rich.console.Console(record=True, width=200, file=io.StringIO(), force_terminal=True)
    print_comparison(comparison.results, console)
    terminal = console.export_text()
    heading, *rows = cells(latex_tables(comparison.results)["outcomes"])
    page = opened(comparison)
    assert "spread_of" in terminal
    assert heading[3:5] == [r"spread\_of", "N trials"]
    assert page.locator("#outcome-table th[data-column=spread]").inner_text().split() == ["spread_of", "N", "trials"]
    for name, row in zip(OPTIMIZERS, rows, strict=True):
        tried = POOL + len(INFEASIBLE.get(name, []))
        assert row[3:5] == [f"{POOL + K}", f"{tried} in all"]
        assert f"{tried} in all" in terminal
        cell = page.locator("#outcome-table tr", has=page.get_by_text(name, exact=True)).locator("[data-column=spread]")
        assert cell.inner_text().split("\n") == [f"{POOL + K}", f"{tried} in all"]
    page.locator("#k").fill("2")
    assert page.locator("#outcome-table td[data-column=spread] .main").first.text_content() == f"{POOL + K}"
    page.locator("#outcome-table th[data-column=spread] button").click()
    assert page.locator("#outcome-table th[aria-sort]").get_attribute("data-column") == "spread"


# ---------------------------------------------------------------------------- spaces


def rows_of(study: lf.Study) -> dict[tuple[str, str], SpaceRow]:
    return {(table.optimizer, row.hyperparameter): row for table in space_tables(study) for row in table.rows}


def test_spaces_beside_the_initial_ones(made):
    """Those of a built-in study, which was refined from another."""
    study, first = lf.load_study("fashion_mnist"), lf.load_study("fashion_mnist_initial")
    rows = rows_of(study)
    assert len(rows) == sum(len(study.optimizer(name).space.axes) for name in study.optimizers)
    row = rows["momentum", "learning_rate"]
    assert (row.initial, row.range) == ("log [1e-04, 100]", "log [0.001, 0.1]")
    for (name, key), row in rows.items():
        before = next(axis for axis in first.optimizer(name).space if axis.key == key).dimension.spec()
        (kind,) = before
        assert row.initial.startswith("{" if kind == "choice" else kind)
        shown = [float(number) for number in re.findall(r"[\d.e+-]+", row.initial.removeprefix(kind))]
        assert shown == pytest.approx(before[kind])
    results = made(study, {}).results
    assert cells(latex_tables(results)["spaces"])[0] == ["optimizer", "hyperparameter", "initial", "range"]
    page = render(results)
    assert '<th scope="col">initial</th>' in page
    assert "log [1e-04, 100]" in page


def test_a_study_that_borrows_a_name_has_no_initial_spaces():
    assert {row.initial for row in rows_of(study_of(name="fashion_mnist")).values()} == {""}


def test_spaces_without_initial_ones(comparison):
    assert {row.initial for row in rows_of(comparison.study).values()} == {""}
    assert '<th scope="col">initial</th>' not in render(comparison.results)


def test_a_correction_is_shown(made):
    study = lf.load_study("fashion_mnist_initial")
    assert [key for key, row in rows_of(study).items() if row.corrected] == [("adam", "learning_rate/epsilon")]
    assert "† corrected: printed [1e-2, 1e-4]" in render(made(study, {}).results)
