"""Search spaces as rows, and the tables of a paper in LaTeX (booktabs)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from levelfield.analysis.results import Results
from levelfield.formatting import format_metric, format_range
from levelfield.space import dimension
from levelfield.study import Study, built_in_studies, load_study
from levelfield.taxonomy.audit import audit

_INITIAL = "_initial"
_SPECIAL = {
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
    "−": "$-$",
    "–": "--",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\n": " ",
}


def space_rows(results: Results) -> Iterator[dict[str, str]]:
    """The search spaces as text, one row for each axis; beside it the initial space's, where that is known."""
    study = results.study
    for name, optimizer in study.optimizers.items():
        initial = _initial(study, name)
        for one in optimizer.space:
            yield {
                "optimizer": name,
                "rule": optimizer.rule.name,
                "hyperparameter": one.key,
                "range": format_range(one.dimension),
                "initial": initial.get(one.name, ""),
                "corrected": optimizer.corrected.get(one.key, ""),
            }


def _initial(study: Study, name: str) -> dict[str, str]:
    """Hyperparameter → the range it had before the study was refined: by its log, or in the built-in initial study."""
    space = study.optimizer(name).space
    if study.refined:
        first = {each.axis: each.before for each in reversed(study.refined) if each.optimizer == name}
        return {one.name: format_range(dimension(first.get(one.key, one.dimension.spec()))) for one in space}
    built_in = built_in_studies()
    if study.name not in built_in or f"{study.name}{_INITIAL}" not in built_in:
        return {}
    own = load_study(study.name).optimizers.get(name)  # not a study of the user's with the same name
    if not own or own.space != space:
        return {}
    before = load_study(f"{study.name}{_INITIAL}").optimizers.get(name)
    keys = {one.key for one in space}
    return {
        one.name: ("" if one.key in keys else f"{one.key} ") + format_range(one.dimension)
        for one in (before.space if before else ())
    }


def latex_tables(results: Results) -> dict[str, str]:
    """Name → table."""
    found = {"outcomes": _outcomes(results), "spaces": _spaces(results)}
    if audit(results, results.k()):
        found["audit"] = _audit(results)
    return found


def _outcomes(results: Results) -> str:
    study = results.study
    test = results.outcome(next(iter(study.optimizers))).test_metric
    metrics = [study.select, *([test] if test else [])]
    headings = ["optimizer", *(text for metric in metrics for text in (metric, "5–95%"))]
    if study.target:
        headings += ["steps to target", "reached"]
    rows = []
    for name in study.optimizers:
        outcome = results.outcome(name)
        cells = [name]
        for metric in metrics:
            found = outcome.best(study.trials, metric)
            low, high = format_metric(metric, found.low), format_metric(metric, found.high)
            cells += [format_metric(metric, found.mean), "–" if math.isnan(found.mean) else f"{low} – {high}"]
        if study.target:
            reached = outcome.steps_to_target(study.trials)
            cells += ["–" if math.isnan(reached.mean) else f"{reached.mean:,.0f}", _percent(reached.probability)]
        rows.append([*cells, f"{len(outcome.pool)} of {outcome.tried}"])
    return _latex([*headings, "feasible"], rows)


def _spaces(results: Results) -> str:
    rows = list(space_rows(results))
    keys = ["optimizer", "hyperparameter", *(["initial"] if any(row["initial"] for row in rows) else []), "range"]
    return _latex(keys, [[row[key] for key in keys] for row in rows], "l")


def _audit(results: Results) -> str:
    rows = [
        [
            f"{each.edge.special} ⊆ {each.edge.general}",
            _percent(each.worse),
            _percent(each.better),
            "–" if math.isnan(each.p_value) else f"{each.p_value:.2g}",
            each.verdict.value,
        ]
        for each in audit(results, results.k())
    ]
    return _latex(["inclusion", "worse", "better", "p", "verdict"], rows)


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"


def _latex(headings: Sequence[str], rows: Sequence[Sequence[str]], align: str = "r") -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(latex(cell) for cell in cells) + r" \\"

    body = [line(headings), r"\midrule", *map(line, rows)]
    columns = "l" + align * (len(headings) - 1)
    return "\n".join([rf"\begin{{tabular}}{{{columns}}}", r"\toprule", *body, r"\bottomrule", r"\end{tabular}", ""])


def latex(text: Any) -> str:
    """
    >>> print(latex("5–95% of a_b"))
    5--95\\% of a\\_b
    """
    return "".join(_SPECIAL.get(character, character) for character in str(text))
