"""Run a study, compare, report, serve, check, export."""

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelfield.cli.common import (
    Executor,
    Json,
    Out,
    Slots,
    StoreOption,
    app,
    folder,
    on_study,
    open_store,
    print_json,
    run_study,
    slot_count,
    store_name,
)
from levelfield.errors import DataError, NoStore, UsageError

if TYPE_CHECKING:
    from levelfield.comparison import Comparison
    from levelfield.study import Study


@app.command()
@on_study
def compare(
    study: "Study",
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    seed_inclusions: Annotated[
        bool,
        typer.Option(
            "--seed-inclusions", help="Also train each special optimizer's best point by the ones that include it."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study, then print the comparison and write report.html."""
    failure = run_study(study, slots, executor, store_name(study, store, out))
    if seed_inclusions:
        _seed(study, slots, executor, store_name(study, store, out))
    _report(study, store, out, as_json)
    if failure:
        raise failure


@app.command()
@on_study
def run(
    study: "Study",
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study."""
    failure = run_study(study, slots, executor, store_name(study, store, out))
    _status(study, store_name(study, store, out), as_json)
    if failure:
        raise failure


@app.command()
@on_study
def status(
    study: "Study",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say how full each optimizer's pool is."""
    _status(study, store_name(study, store, out), as_json)


@app.command()
@on_study
def report(
    study: "Study",
    store: StoreOption = None,
    out: Out = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write figures there as PDF, SVG and PNG, and tables in LaTeX, too."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(metavar="STUDY", help="Another study, shown beside this one as a tuning protocol. Repeatable."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the comparison of what has been run, and write report.html."""
    others = [_beside(name, study, store) for name in beside or []]
    comparison = _report(study, store, out, as_json, others)
    if figures:
        for path in comparison.write_figures(figures, [comparison, *others]):
            typer.echo(f"wrote {path}", err=True)


@app.command()
@on_study
def serve(
    study: "Study",
    store: StoreOption = None,
    out: Out = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any free one.")] = 8765,
) -> None:
    """Show the report in a browser while the study runs."""
    from levelfield.comparison import Comparison
    from levelfield.report.serve import Live, Server
    from levelfield.store import Store
    from levelfield.training.program import leave_accelerators

    location = store_name(study, store, out)
    with Server(Live(study, location, Comparison), host, port) as server, suppress(KeyboardInterrupt):
        try:
            Store.open(location, create=False).close()
        except NoStore as none:
            line = f"{none.name}: no such store yet; the page fills once 'levelfield run' has made it"
            typer.echo(line, err=True)
        if not server.loopback:
            typer.echo(f"--host {host}: everybody who can reach this machine can read the study", err=True)
        leave_accelerators()  # the run needs them
        for ending in (signal.SIGINT, signal.SIGTERM):  # in a script's background, SIGINT would be ignored
            signal.signal(ending, signal.default_int_handler)
        typer.echo(f"serving {study.name} on {server.url} (Ctrl-C ends it)")
        server.serve_forever()


@app.command()
@on_study
def check(
    study: "Study",
    measure: Annotated[bool, typer.Option("--measure", help="Train for a moment to estimate the time.")] = False,
    gradient_scale: Annotated[
        float | None,
        typer.Option(metavar="G", help="The gradients' size for coverage.  [default: measured at the start]"),
    ] = None,
    slots: Slots = "auto",
    as_json: Json = False,
) -> None:
    """Validate a study, say what it costs, and which spaces can express which optimizers."""
    from levelfield.executors import get_executor
    from levelfield.runner import cost
    from levelfield.taxonomy.coverage import coverage
    from levelfield.taxonomy.verify import check_registered
    from levelfield.words import counted, show_time

    found = cost(study)
    with suppress(DataError):  # said below: the rest can be judged without
        get_executor("local", slot_count(slots)).check(study)
    check_registered(study)
    if measure:
        from levelfield.executors.local import measure_speed

        speed = measure_speed(study, next(iter(study.optimizers)), slot_count(slots))
        found |= {"trial_steps_per_second": speed, "hours": found["trial_steps"] / speed / 3600}
    try:
        covered, obstacle = coverage(study, gradient_scale), None
    except DataError as error:  # the rest can be said without
        covered, obstacle = None, str(error)
    if as_json:
        return print_json(found | (covered.as_dict() if covered else {"inclusions": None, "obstacle": obstacle}))
    typer.echo(f"{study.name}: valid")
    interval = counted(study.eval_interval, "step")
    typer.echo(f"  workload    {study.workload}, batch {study.batch_size}, evaluated every {interval}")
    width = max(11, *map(len, found["free"]))
    for name, free in found["free"].items():
        typer.echo(f"  {name:<{width}} {len(free)} free{': ' if free else ''}{', '.join(free)}")
    each = [counted(len(study.optimizers), "optimizer"), counted(study.pool, "trial"), counted(study.steps, "step")]
    typer.echo(f"  cost        {' × '.join(each)} = {found['trial_steps']:,} trial-steps, if all are feasible")
    if measure:
        speed = found["trial_steps_per_second"]
        typer.echo(f"  time        about {show_time(3600 * found['hours'])} here ({speed:,.0f} trial-steps/s)")
    else:
        typer.echo("  time        'levelfield check --measure' estimates it for this machine")
    for line in covered.lines() if covered else [f"  inclusions  not judged: {obstacle} (or give --gradient-scale)"]:
        typer.echo(line)


@app.command()
@on_study
def export(
    study: "Study",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .parquet or .csv file.")] = Path(
        "trials.parquet"
    ),
    curves: Annotated[bool, typer.Option("--curves", help="One row for each recorded step, not each trial.")] = False,
    store: StoreOption = None,
    out: Out = None,
) -> None:
    """Write the stored trials of a study as a table."""
    from levelfield.export import check_format, write_trials

    check_format(output)
    with open_store(study, store, out) as opened:
        rows = write_trials(study, opened, output, curves=curves)
    typer.echo(f"wrote {output} ({rows} rows)", err=True)


def _seed(study: "Study", slots: str, executor: str, store: str) -> None:
    from levelfield.comparison import Comparison
    from levelfield.executors import get_executor
    from levelfield.store import Store
    from levelfield.taxonomy.seeding import run_seeds

    with Store.open(store) as opened:
        chosen = Comparison(study, opened).seeds()
        for each in run_seeds(chosen, opened, get_executor(executor, slot_count(slots))):
            typer.echo(f"seeded: {each.edge.general} has followed {each.edge.special}'s best trial", err=True)


def _status(study: "Study", store: str, as_json: bool) -> None:
    from levelfield.comparison import Comparison
    from levelfield.runner import gave_up
    from levelfield.store import Store
    from levelfield.words import listed, show_metric

    with Store.open(store, create=False) as opened:
        comparison = Comparison(study, opened)
    rows: list[dict[str, Any]] = []
    for name in study.optimizers:
        outcome = comparison.outcome(name)
        best = outcome.best_trial
        rows.append(
            {
                "optimizer": name,
                "feasible": len(outcome.pool),
                "pool": study.pool,
                "infeasible": outcome.tried - len(outcome.pool),
                "best": best.curve.final(study.select) if best else None,
            }
        )
    if as_json:
        return print_json({"study": study.name, "complete": comparison.complete, "optimizers": rows})
    for row in rows:
        best_shown = "–" if row["best"] is None else show_metric(study.select, row["best"])
        typer.echo(
            f"{row['optimizer']:<14} {row['feasible']}/{row['pool']} feasible, {row['infeasible']} infeasible, "
            f"best {study.select} {best_shown}"
        )
    outcomes = {name: comparison.outcome(name) for name in study.optimizers}
    if poor := [name for name, each in outcomes.items() if gave_up(study, name, len(each.pool), each.tried)]:
        typer.echo(f"incomplete: too few trials of {listed(poor)} are feasible; narrow the space")
    else:
        typer.echo("complete" if comparison.complete else "incomplete: 'levelfield run' goes on")


def _beside(name: str, study: "Study", store: str | None) -> "Comparison":
    """Another study's comparison, from the same store or from that study's own."""
    from levelfield.comparison import Comparison
    from levelfield.study import load_study

    other = load_study(name)
    if study.scale < other.scale:
        other = other.scaled(study.scale / other.scale)
    if other.workload != study.workload:
        raise UsageError(f"--beside {name}: it trains {other.workload}, {study.name} trains {study.workload}")
    with open_store(other, store, None) as opened:
        found = Comparison(other, opened)
    if not any(found.trials.values()):
        scaled = f" --scale {study.scale:g}" if other.scale < 1 else ""
        raise UsageError(f"--beside {name}: no trial of it is stored; 'levelfield run {name}{scaled}' trains them")
    return found.at(select=study.select)


def _report(
    study: "Study", store: str | None, out: Path | None, as_json: bool, beside: "Sequence[Comparison]" = ()
) -> "Comparison":
    from levelfield.comparison import Comparison

    with open_store(study, store, out) as opened:
        comparison = Comparison(study, opened)
    if not any(comparison.trials.values()):  # rather than an empty page over a full one
        raise UsageError(f"{study.name}: no trial of this study, as given, is stored; 'levelfield run' trains them")
    page = folder(study, out) / "report.html"
    if as_json:
        path = comparison.write_report(page, [comparison, *beside])
        print_json(
            {
                "study": study.name,
                "complete": comparison.complete,
                "rows": comparison.rows(),
                "beats": comparison.beats_matrix(),
                "sentences": comparison.sentences(),
                "audit": [finding.as_dict() for finding in comparison.audit()],
                "seeded": [each.as_dict(study.select) for each in comparison.seeded],
                "boundaries": [each.as_dict() for each in comparison.boundaries()],
                "health": [each.as_dict() for each in comparison.health()],
                "settles": comparison.settles(),
                "report": str(path),
            }
        )
    else:
        from levelfield.terminal import print_comparison

        print_comparison(comparison)
        typer.echo(f"\nreport: {comparison.write_report(page, [comparison, *beside])}")
    return comparison
