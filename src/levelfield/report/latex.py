"""The tables of a paper in LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from levelfield.analysis.reruns import reruns
from levelfield.analysis.results import Results
from levelfield.formatting import MISSING, format_interval, format_metric, format_p_value, format_percent
from levelfield.report.columns import Text, reported_metric, shown_columns
from levelfield.report.spaces import is_refined, space_tables
from levelfield.taxonomy.audit import Finding, audit

_GREEK = ("alpha", "beta", "gamma", "delta", "epsilon", "eta", "lambda", "mu", "rho", "sigma")
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "⊆": r"$\subseteq$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "−": "$-$",
    "×": r"$\times$",
    "…": r"\ldots{}",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
    **{letter: rf"$\{name}$" for letter, name in zip("αβγδεηλμρσ", _GREEK, strict=True)},
}


def latex_tables(results: Results) -> dict[str, str]:
    """Return each table by its name."""
    tables = {"outcomes": _outcomes(results), "spaces": _spaces(results)}
    if findings := audit(results, results.k()):
        tables["audit"] = _audit(findings)
    if results.reruns:
        tables["reruns"] = _reruns(results)
    return tables


def _outcomes(results: Results) -> str:
    """Return the columns of the outcome table; the smaller texts of a column become a separate column."""
    columns: list[list[str]] = []
    for column in shown_columns(results):
        if column.is_long:
            continue
        cells = [column.text(results, outcome, results.k()) for outcome in results.outcomes.values()]
        columns += _split([column.heading(results), *cells])
    headings, *rows = zip(*columns, strict=True)
    return _table(headings, rows)


def _split(texts: Sequence[Text]) -> Iterator[list[str]]:
    yield [text.main for text in texts]
    if any(text.small for text in texts):
        yield [text.small for text in texts]


def _spaces(results: Results) -> str:
    tables = space_tables(results.study)
    refined = is_refined(tables)
    headings = ["optimizer", "hyperparameter", *(["initial"] if refined else []), "range"]
    rows = [
        [table.optimizer, row.hyperparameter, *([row.initial] if refined else []), row.range]
        for table in tables
        for row in table.rows
    ]
    return _table(headings, rows, align="l")


def _reruns(results: Results) -> str:
    """Return each selected trial's metrics next to those of its reruns with new seeds."""
    metrics = list(dict.fromkeys([results.study.select, reported_metric(results)]))
    headings = ["optimizer"]
    for metric in metrics:
        headings += [f"{metric}, selected", "reruns, mean", "reruns, min–max"]
    rows = []
    for rerun in reruns(results):
        cells = [rerun.optimizer]
        for metric in metrics:
            if spread := rerun.metrics.get(metric):
                cells += [format_metric(metric, spread.selected), format_metric(metric, spread.mean)]
                cells.append(format_interval(metric, spread.min, spread.max))
            else:
                cells += [MISSING] * 3
        rows.append([*cells, str(rerun.seeds)])
    return _table([*headings, "seeds"], rows)


def _audit(findings: Sequence[Finding]) -> str:
    rows = [
        [
            f"{finding.edge.special} ⊆ {finding.edge.general}",
            format_percent(finding.worse),
            format_percent(finding.better),
            format_p_value(finding.p_value),
            finding.coverage.text,
            finding.verdict.value,
        ]
        for finding in findings
    ]
    return _table(["inclusion", "worse", "better", "p", "coverage", "verdict"], rows)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str = "r") -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(latex(cell) for cell in cells) + r" \\"

    body = [line(headings), r"\midrule", *map(line, rows)]
    columns = "l" + align * (len(headings) - 1)
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}", ""])


def latex(text: Any) -> str:
    """Escape what LaTeX would interpret.

    >>> print(latex("5–95% of a_b with ε"))
    5--95\\% of a\\_b with $\\epsilon$
    """
    return "".join(_ESCAPES.get(character, character) for character in str(text))
