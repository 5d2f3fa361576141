"""Results in the terminal: a comparison as a table and in words, a ladder, the taxonomy as a tree."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from levelfield.analysis.boundaries import boundaries
from levelfield.analysis.protocols import Columns, flips, pairs
from levelfield.analysis.results import Results
from levelfield.analysis.summary import Standings
from levelfield.cli.output import PIPE_WIDTH, wrapped
from levelfield.formatting import MISSING, format_hyperparameters, format_interval, format_metric, pluralize
from levelfield.report.caveats import caveats
from levelfield.report.columns import PERCENTILES, Column, rows, shown_columns
from levelfield.report.narrative import followed_sentences, rerun_sentences, search_sentences, sentences
from levelfield.report.summary_text import caveats as summary_caveats
from levelfield.report.summary_text import columns, title
from levelfield.report.summary_text import sentences as summary_sentences
from levelfield.taxonomy.verify import Verification

_HEADING_WIDTH = 12  # of a heading's lines
_LEAST_NAME = len("optimizer")  # characters of an optimizer's name on a line


def _console(console: Console | None) -> Console:
    console = console or Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def print_comparison(results: Results, console: Console | None = None) -> None:
    console = _console(console)
    first = caveats(results)
    for line in first:
        _print_wrapped(line, console, indent=0)
    if first:
        console.print()
    _print_table(results, console)
    search_heading = "Possible problems with the searches:"
    if any(not boundary.settled for boundary in boundaries(results)):
        search_heading = "Possible problems with the searches ('levelfield refine' proposes better ranges):"
    for heading, lines in (
        ("", sentences(results)[len(first) :]),
        ("Extra trials that imitate best trials (not counted in any statistic):", followed_sentences(results)),
        ("The best trials with new seeds:", rerun_sentences(results)),
        (search_heading, search_sentences(results)),
    ):
        if lines:
            console.print(f"\n{heading}" if heading else "", highlight=False, markup=False)
        for line in lines:
            _print_wrapped(line, console, indent=2 if heading else 0)


def _print_wrapped(line: str, console: Console, indent: int) -> None:
    """Print a line with an indent, and its continuation lines with twice that indent."""
    text = wrapped(" " * indent + line, console.width)
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _print_table(results: Results, console: Console) -> None:
    """Print the outcome table, and below it what is too long for it; on a narrow terminal without borders."""
    columns = [column for column in shown_columns(results) if not column.is_long]
    primary = [column for column in columns if not column.is_secondary]
    foldable = max(max(map(len, results.outcomes)) - _LEAST_NAME, 0)
    width = console.width
    for kept, wide in ((columns, True), (columns, False), (primary, False)):
        table = _table(results, kept, wide)
        natural = Measurement.get(console, console.options.update(max_width=1000), table).maximum
        least = natural if wide else natural - foldable
        if least <= width:
            break
    # If it still does not fit, the terminal may break its lines, but nothing is cut.
    console.width = max(width, least)
    console.print(table)
    console.width = width
    console.print("\nBest hyperparameters:", highlight=False)
    for row in rows(results):
        hyperparameters = format_hyperparameters(row["best_hyperparameters"]) or MISSING
        _print_wrapped(f"{row['optimizer']}: {hyperparameters}", console, indent=2)


def _table(results: Results, columns: Sequence[Column], wide: bool) -> Table:
    study = results.study
    title = Text(f"{results.title}: best of {pluralize(results.k(), 'trial')} by {study.select}")
    if wide:
        table = Table(title=title, title_justify="left")
    else:
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        heading = column.heading(results)
        label = Text(_lines(textwrap.fill(heading.main, _HEADING_WIDTH, break_long_words=False), heading.small))
        # On a narrow terminal a long name is folded before a number is cut.
        foldable = column.is_long or (column.key == "optimizer" and not wide)
        table.add_column(
            label,
            justify="right" if column.is_number else "left",
            no_wrap=not foldable,
            overflow="fold",
            min_width=_LEAST_NAME if foldable else None,
        )
    for outcome in results.outcomes.values():
        cells = [column.text(results, outcome, results.k()) for column in columns]
        if not wide:
            cells[0] = replace(cells[0], small="")  # a protocol may be long
        table.add_row(*(Text(_lines(cell.main, cell.small)) for cell in cells))
    return table


def _lines(main: str, small: str) -> str:
    return "\n".join(part for part in (main, small) if part)


def print_summary(summary: Standings, console: Console | None = None) -> None:
    """Print the optimizers of several studies as a table and in words."""
    console = _console(console)
    shown = columns(summary)
    first = summary_caveats(summary)
    for line in first:
        _print_wrapped(line, console, indent=0)
    table = Table(title=Text(title(summary)), title_justify="left")
    for column in shown:
        heading = Text(_lines(column.heading.main, column.heading.small))
        table.add_column(heading, justify="right" if column.is_number else "left", overflow="fold")
    for row in summary.optimizers:
        cells = [column.text(row) for column in shown]
        table.add_row(*(Text(_lines(cell.main, cell.small)) for cell in cells))
    console.print(table)
    console.print()
    for line in summary_sentences(summary)[len(first) :]:
        _print_wrapped(line, console, indent=0)


def print_ladder(columns: Columns, metric: str, name: str, console: Console | None = None) -> None:
    """Print each rule's expected best on each rung, who leads, and where pairs change places."""
    console = _console(console)
    table = Table(title=Text(f"{name}: {metric}, mean and {PERCENTILES}"), title_justify="left")
    table.add_column("rule", no_wrap=True)
    for label in columns:
        table.add_column(Text(label), justify="right", no_wrap=True)
    for rule in dict.fromkeys(rule for column in columns.values() for rule in column):
        cells = [rule]
        for column in columns.values():
            best = column[rule].outcome.best(column[rule].k) if rule in column else None
            if best is None or math.isnan(best.mean):
                cells.append(MISSING)
                continue
            lines = [format_metric(metric, best.mean), format_interval(metric, best.low, best.high)]
            if report := column[rule].outcome.held_out_metric:
                value = column[rule].outcome.best(column[rule].k, report).mean
                lines.append(f"{report} {format_metric(report, value)}")
            cells.append("\n".join(lines))
        table.add_row(*map(Text, cells))
    console.print(table)
    console.print()
    if changes := flips(columns):
        console.print("Rank changes (win rate in parentheses):", highlight=False)
    for flip in changes:
        _print_wrapped(str(flip), console, indent=2)
    settled = [pair for pair in pairs(columns) if pair.settles]
    for pair in settled:
        leader = pair.leaders[str(pair.settles)]
        _print_wrapped(f"{pair.ours} and {pair.theirs}: {leader} leads from {pair.settles} on.", console, indent=2)
    if not settled:
        console.print("No two rules change rank between the rungs by more than chance.", highlight=False)


def print_taxonomy(verifications: Sequence[Verification], console: Console | None = None) -> None:
    """Print the inclusion graph, with the rules that include a rule below it, and what the verification found."""
    console = _console(console)
    general = {verification.inclusion.general for verification in verifications}
    special = dict.fromkeys(verification.inclusion.special for verification in verifications)
    drawn: set[str] = set()
    for root in [rule for rule in special if rule not in general]:
        tree = Tree(Text(root, "bold"), guide_style="dim")
        _grow(tree, root, verifications, drawn)
        console.print(tree)
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("")
    table.add_column("inclusion", no_wrap=True)
    table.add_column("witness")
    for heading in ("error", "order", "float32 limit"):
        table.add_column(heading, justify="right", no_wrap=True)
    for verification in verifications:
        table.add_row(*_verification_cells(verification))
    console.print()
    console.print(table)
    verified = sum(verification.holds for verification in verifications)
    console.print(f"\n{verified} of {len(verifications)} inclusions verified on random gradients.", highlight=False)


def _grow(tree: Tree, rule: str, verifications: Sequence[Verification], drawn: set[str]) -> None:
    """Add the rules that include a rule; a rule that has been drawn before is not expanded again."""
    drawn.add(rule)
    inclusions = [item.inclusion for item in verifications if item.inclusion.special == rule]
    for general in dict.fromkeys(inclusion.general for inclusion in inclusions):
        ways = ", ".join(inclusion.how for inclusion in inclusions if inclusion.general == general)
        label = Text(general, "bold").append("  " + ways, "dim")
        again = general in drawn and any(item.inclusion.special == general for item in verifications)
        branch = tree.add(label.append("  (see above)", "dim") if again else label)
        if general not in drawn:
            _grow(branch, general, verifications, drawn)


def _verification_cells(verification: Verification) -> list[Text]:
    inclusion = verification.inclusion
    mark = Text("✓", "green") if verification.holds else Text("✗", "bold red")
    witness = f"{inclusion.equations}{'' if inclusion.lifts else ' (constant rate)'}"
    if inclusion.limit:
        witness = f"{inclusion.how}, {witness}"
    order = "none" if verification.order is None else f"{verification.order:.1f}"
    if inclusion.exact or verification.reached:
        order = ""
    stops = ""
    if verification.single_stops is not None:
        stops = f"{verification.single_stops:.0e} ({verification.single_error:.0e})"
    error = f"{verification.error:.0e}" if verification.error else "0"
    return [mark, *map(Text, (f"{inclusion.special} ⊆ {inclusion.general}", witness, error, order, stops))]
