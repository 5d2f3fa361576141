"""Results in the terminal: a comparison as a table and in words, the taxonomy as a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from levelfield.analysis.protocols import Columns, flips, pairs
from levelfield.comparison import Comparison
from levelfield.taxonomy.verify import Verification
from levelfield.words import (
    counted,
    rerun_sentences,
    search_sentences,
    seeded_sentences,
    show_hyperparameters,
    show_metric,
)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    console = console or Console()
    if not console.is_terminal:
        console.width = 120  # a pipe has no width of its own
    console.print(_table(comparison))
    for heading, said in (
        ("", comparison.sentences()),
        ("Seeded by inclusions, extra trials that take no part in the statistics:", seeded_sentences(comparison)),
        ("The best trials again, with fresh seeds:", rerun_sentences(comparison)),
        (_searches(comparison), search_sentences(comparison)),
    ):
        if said:
            console.print(f"\n{heading}" if heading else "", highlight=False, markup=False)
        for sentence in said:
            console.print(f"  {sentence}" if heading else sentence, highlight=False, markup=False)


def _searches(comparison: Comparison) -> str:
    better = any(not each.settled for each in comparison.boundaries())
    return "The searches ('levelfield refine' proposes better ranges):" if better else "The searches:"


def print_ladder(columns: Columns, metric: str, console: Console | None = None) -> None:
    """Each rule's expected best at each rung, who leads, and where pairs change places."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 120
    table = Table(title=Text(f"{metric}, mean and 5–95%"), title_justify="left")
    table.add_column("rule", no_wrap=True)
    for label in columns:
        table.add_column(Text(label), justify="right", no_wrap=True)
    for rule in dict.fromkeys(rule for column in columns.values() for rule in column):
        cells = [rule]
        for column in columns.values():
            found = column[rule].outcome.best(column[rule].k) if rule in column else None
            parts = (found.mean, found.low, found.high) if found else (math.nan,) * 3
            cells.append(_with_range(*(show_metric(metric, part) for part in parts)))
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print()
    if changes := flips(columns):
        console.print("Who changes places, and in brackets how often the first is the better one:", highlight=False)
    for flip in changes:
        console.print(f"  {flip}", highlight=False, markup=False)
    changed = [pair for pair in pairs(columns) if pair.settles]
    for pair in changed:
        console.print(
            f"  {pair.ours} and {pair.theirs}: {pair.leaders[str(pair.settles)]} leads from {pair.settles} on.",
            highlight=False,
            markup=False,
        )
    if not changed:
        said = "No two rules change places between the rungs, by which of them is the better one more often."
        console.print(said, highlight=False)


def print_taxonomy(verifications: Sequence[Verification], console: Console | None = None) -> None:
    """The inclusion graph: below each rule those that include it; then what the verification found."""
    console = console or Console()
    if not console.is_terminal:
        console.width = 120
    included = {each.inclusion.general for each in verifications}
    roots = dict.fromkeys(each.inclusion.special for each in verifications if each.inclusion.special not in included)
    drawn: set[str] = set()
    for root in roots:
        tree = Tree(Text(root, "bold"), guide_style="dim")
        _grow(tree, root, verifications, drawn)
        console.print(tree)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("inclusion", no_wrap=True)
    table.add_column("witness")
    for heading in ("error", "order", "float32 stops at"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in verifications:
        table.add_row(*_verified(each))
    console.print()
    console.print(table)
    verified = sum(each.holds for each in verifications)
    console.print(f"\n{verified} of {len(verifications)} inclusions verified on random gradients.", highlight=False)


def _grow(tree: Tree, rule: str, verifications: Sequence[Verification], drawn: set[str]) -> None:
    """Add the rules that include a rule; one that has been drawn before is not followed again."""
    drawn.add(rule)
    above = [each.inclusion for each in verifications if each.inclusion.special == rule]
    for general in dict.fromkeys(each.general for each in above):
        label = Text(general, "bold").append("  " + ", ".join(e.how for e in above if e.general == general), "dim")
        again = general in drawn and any(each.inclusion.special == general for each in verifications)
        branch = tree.add(label.append("  (as above)", "dim") if again else label)
        if general not in drawn:
            _grow(branch, general, verifications, drawn)


def _verified(found: Verification) -> list[Text]:
    way = found.inclusion
    mark = Text("✓", "green") if found.holds else Text("✗", "bold red")
    witness = f"{way.equations}{'' if way.lifts else ' (constant rate)'}"
    if way.limit:
        witness = f"{way.how}, {witness}"
    order = "" if way.exact else "none" if found.order is None else f"{found.order:.1f}"
    stops = "" if found.single_stops is None else f"{found.single_stops:.0e} ({found.single_error:.0e})"
    error = f"{found.error:.0e}" if found.error else "0"
    return [mark, *map(Text, (f"{way.special} ⊆ {way.general}", witness, error, order, stops))]


def _table(comparison: Comparison) -> Table:
    study = comparison.study
    rows = comparison.rows()
    test = comparison.outcome(rows[0]["optimizer"]).test_metric
    title = f"{study.name}: best of {counted(study.trials, 'trial')} by {study.select}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("optimizer", no_wrap=True)
    table.add_column(Text(f"{study.select}\n5–95%"), justify="right", no_wrap=True)
    if test:
        table.add_column(Text(test), justify="right", no_wrap=True)
    if study.target:
        aim = show_metric(study.target.metric, study.target.value)
        table.add_column(f"steps to {aim}\n5–95%", justify="right", no_wrap=True)
        table.add_column("reached", justify="right", no_wrap=True)
    table.add_column("infeasible", justify="right", no_wrap=True)
    table.add_column("best hyperparameters")
    for row in rows:
        cells = [
            row["optimizer"],
            _with_range(*(show_metric(study.select, row[key]) for key in ("mean", "low", "high"))),
        ]
        if test:
            cells.append(show_metric(test, row[test]))
        if study.target:
            cells.append(_with_range(*(_count(row[f"steps_{key}"]) for key in ("mean", "low", "high"))))
            cells.append(_percent(row["steps_probability"]))
        cells += [_percent(row["infeasible_share"]), show_hyperparameters(row["best_hyperparameters"])]
        table.add_row(*map(Text, cells))
    return table


def _with_range(mean: str, low: str, high: str) -> str:
    return mean if mean == "–" else f"{mean}\n{low} – {high}"


def _count(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:,.0f}"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.0%}"
