"""Commands on one study: compare, run, status, report, serve, check, export."""

import os
import signal
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelfield.cli.common import (
    CheckpointMinutes,
    Executor,
    Json,
    Out,
    Overrides,
    RayAddress,
    Slots,
    Stale,
    StoreOption,
    app,
    folder,
    loaded,
    on_study,
    open_store,
    print_json,
    slot_count,
    store_name,
    training,
)
from levelfield.cli.output import tell
from levelfield.errors import DataError, NoStore, SearchExhausted, TrialFailed, UsageError

if TYPE_CHECKING:
    from levelfield.analysis.results import PoolState
    from levelfield.comparison import Comparison
    from levelfield.store import Worker
    from levelfield.study import Study


@app.command()
@on_study
def compare(
    study: "Study",
    overrides: Overrides,
    slots: Slots = "auto",
    executor: Executor = "local",
    ray_address: RayAddress = None,
    store: StoreOption = None,
    out: Out = None,
    seed_inclusions: Annotated[
        bool,
        typer.Option(
            "--seed-inclusions",
            help="Also train each optimizer to imitate the best trials of its special cases.",
        ),
    ] = False,
    reruns: Annotated[
        int, typer.Option(metavar="n", min=0, help="Also train the best trials again with this many new seeds.")
    ] = 0,
    seconds: Annotated[
        bool,
        typer.Option("--seconds", help="Measure how long steps take now, separately from training."),
    ] = False,
    stale: Stale = None,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    as_json: Json = False,
) -> None:
    """Train missing trials, print the comparison, write report.html.

    If options change the study, the report's name says so, and the full study's report.html is kept.
    """
    from levelfield.comparison import Comparison
    from levelfield.run import compare

    location = store_name(study, store, out)
    problem: SearchExhausted | TrialFailed | None
    try:
        with training(study, location, executor, slots, stale, out, checkpoint_minutes, ray_address) as options:
            results, problem = compare(
                study, location, seed_inclusions=seed_inclusions, reruns=reruns, seconds=seconds, **options
            )
        comparison = Comparison(results)
    except TrialFailed as error:
        comparison, problem = Comparison.load(study, location), error
        if not any(comparison.trials.values()):
            raise
    _show(comparison, overrides, out, as_json)
    if problem:
        raise problem


@app.command()
@on_study
def run(
    study: "Study",
    overrides: Overrides,
    slots: Slots = "auto",
    executor: Executor = "local",
    ray_address: RayAddress = None,
    store: StoreOption = None,
    out: Out = None,
    stale: Stale = None,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    as_json: Json = False,
) -> None:
    """Train the missing trials of a study."""
    from levelfield.reading import read_states
    from levelfield.report.caveats import pool_caveats
    from levelfield.run import fill

    location = store_name(study, store, out)
    problem: SearchExhausted | TrialFailed | None
    try:
        with training(study, location, executor, slots, stale, out, checkpoint_minutes, ray_address) as options:
            problem = fill(study, location, **options)
    except TrialFailed as error:
        problem = error
    with open_store(study, store, out) as opened:
        states = read_states(study, opened)
    _print_status(study, states, pool_caveats(study, states), overrides, as_json)
    if problem:
        raise problem


@app.command()
@on_study
def status(
    study: "Study",
    overrides: Overrides,
    store: StoreOption = None,
    out: Out = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="Also show each failed trial with its traceback or last output.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show how many trials are done, and which have failed."""
    from levelfield.reading import read_states
    from levelfield.report.caveats import pool_caveats

    with open_store(study, store, out) as opened:
        states = read_states(study, opened)
        identities = {study.identity(name): name for name in study.optimizers}
        workers = opened.workers(list(identities))
    shown = [replace(each, points={identities[key]: n for key, n in each.points.items()}) for each in workers]
    _print_status(study, states, pool_caveats(study, states), overrides, as_json, shown)
    if failures and not as_json:
        _print_failures(states)


@app.command()
@on_study
def report(
    study: "Study",
    overrides: Overrides,
    store: StoreOption = None,
    out: Out = None,
    figures: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also write figures as PDF, SVG, and PNG, and tables as LaTeX."),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            metavar="STUDY", help="Another study of this workload to compare as a tuning protocol. Repeatable."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the comparison and write report.html without training."""
    others = [_beside(name, study, store) for name in beside or []]
    comparison = loaded(study, store_name(study, store, out))  # never overwrite a full page with an empty one
    _show(comparison, overrides, out, as_json, others)
    if figures:
        for path in comparison.write_figures(figures, [comparison, *others]):
            typer.echo(f"wrote {path}", err=True)


@app.command()
@on_study
def serve(
    study: "Study",
    overrides: Overrides,
    store: StoreOption = None,
    out: Out = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, max=65535, help="The port to listen on; 0 for any free port.")
    ] = 8765,
) -> None:
    """Show the report in a browser while the study runs."""
    from levelfield.report.serve import Live, Server
    from levelfield.store import Store

    location = store_name(study, store, out)
    with Server(Live(study, location, overrides.settings), host, port) as server, suppress(KeyboardInterrupt):
        try:
            Store.open(location, create=False).close()
        except NoStore as error:
            typer.echo(
                f"{error.name}: no such store yet; the page is empty until 'levelfield run' creates it", err=True
            )
        if not server.loopback:
            typer.echo(f"--host {host}: anyone who can reach this machine can read the report", err=True)
        for ending in (signal.SIGINT, signal.SIGTERM):  # a script's background jobs ignore SIGINT
            signal.signal(ending, signal.default_int_handler)
        typer.echo(f"Serving {study.name} on {server.url} (press Ctrl-C to stop)")
        server.serve_forever()


@app.command()
@on_study
def check(
    study: "Study",
    measure: Annotated[
        bool, typer.Option("--measure", help="Train briefly to estimate how long the study takes.")
    ] = False,
    gradient_scale: Annotated[
        float | None,
        typer.Option(
            metavar="G", help="Size of the gradients, to judge inclusions by.  [default: measured at the start]"
        ),
    ] = None,
    slots: Slots = "auto",
    as_json: Json = False,
) -> None:
    """Check a study before training: its cost and its search spaces.

    This shows how much of a special case's search space, such as momentum's, the search space of a more general
    optimizer, such as adam's, can express. It warns about ranges that contain no usual value, or that are far from what
    'levelfield suggest' prints.
    """
    from levelfield.executors.local import parts_of
    from levelfield.formatting import format_duration, format_number, pluralize
    from levelfield.report.caveats import pool_sentence
    from levelfield.report.methods import evaluated
    from levelfield.run import coverage, is_trainable, prepared
    from levelfield.usual import departures

    facts, unusual, trainable = {"precision": study.precision} | study.cost(), departures(study), is_trainable(study)
    if measure and not trainable:
        raise UsageError(f"{study.name}: its trials come from elsewhere, so there is no training to --measure")
    if not trainable:
        del facts["trial_steps"]
    obstacle, parts = None, {}
    try:
        if trainable:
            prepared(study, slots=slot_count(slots))
            found = {name: parts_of(study, name) for name in study.optimizers}
            parts = {name: by_part for name, by_part in found.items() if by_part}
    except DataError as error:  # reported below; the rest can be checked without the data
        obstacle = str(error)
    if measure:
        from levelfield.executors.local import measure_speed

        speed = measure_speed(study, next(iter(study.optimizers)), slot_count(slots))
        facts |= {
            "trial_steps_per_second": speed.trial_steps_per_second,
            "compilation_seconds": speed.compilation * len(study.optimizers),
            "hours": speed.seconds(study) / 3600,
        }
    try:
        covered = coverage(study, gradient_scale)
    except DataError as error:
        covered, obstacle = None, str(error)
    if as_json:
        facts |= covered.as_dict() if covered else {"inclusions": None, "obstacle": obstacle}
        facts |= {"parts": parts} if parts else {}
        return print_json(facts | {"departures": [departure.as_dict() for departure in unusual]})
    typer.echo(f"{study.name}: valid")
    batch = f", batch size {study.batch_size}" if study.batch_size else ""
    width = max(11, *map(len, facts["free"]))

    def row(label: str, text: str) -> None:
        tell(text, f"  {label:<{width}} ")

    precision = "" if study.precision == "tf32" else f", precision {study.precision}"  # "tf32" is the default
    row("workload", f"{study.workload}{batch}{precision}, evaluated {evaluated(study)}")
    for name, free in facts["free"].items():
        row(name, f"{len(free)} free{': ' if free else ''}{', '.join(free)}")
        for part, shapes in parts.get(name, {}).items():
            row("", f"updated by {part}: {_shortened(list(shapes))}")
    counts = [(len(study.optimizers), "optimizer"), (study.pool, "trial"), (study.steps, "step")]
    product = " × ".join(pluralize(number, noun) for number, noun in counts)
    if trainable:
        row("cost", f"{product} = {facts['trial_steps']:,} trial-steps if all trials are feasible")
    if measure:
        compiling = facts["compilation_seconds"]
        part = f", {format_duration(compiling)} of it compilation" if compiling else ""
        rate = f"{facts['trial_steps_per_second']:,.0f} trial-steps/s"
        row("time", f"about {format_duration(3600 * facts['hours'])} on this machine ({rate}{part})")
    elif trainable:
        row("time", "'levelfield check --measure' estimates it for this machine")
    if warning := pool_sentence(study):
        row("pool", f"warning: {warning}")
    if not covered:
        row("inclusions", f"not evaluated: {obstacle} (or set --gradient-scale)")
    elif covered.covered or covered.missing:
        row("inclusions", "how much of the special optimizer's space the general one's can express")
        if covered.covered and covered.gradient_scale is not None:
            row("", f"(size of the gradients at the start: about {format_number(covered.gradient_scale)})")
        for line in covered.lines():
            tell(f"    {line}")
    if unusual:
        row("ranges", f"warning: {pluralize(len(unusual), 'unusual setting')}")
    for departure in unusual:
        tell(f"    {departure}")


def _shortened(names: list[str], shown: int = 6) -> str:
    """Return a list of names, without its end if it is long."""
    rest = f", and {len(names) - shown} more" if len(names) > shown else ""
    return (", ".join(names[:shown]) or "nothing") + rest


@app.command()
@on_study
def export(
    study: "Study",
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="A .parquet or .csv file.")] = Path(
        "trials.parquet"
    ),
    curves: Annotated[
        bool, typer.Option("--curves", help="Write one row for each recorded step instead of each trial.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    optuna: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Write to an Optuna storage instead, such as sqlite:///optuna.db."),
    ] = None,
    store: StoreOption = None,
    out: Out = None,
) -> None:
    """Write stored trials to Parquet, CSV, or an Optuna storage."""
    from levelfield.export import check_format, write_trials
    from levelfield.formatting import pluralize
    from levelfield.reading import read_states
    from levelfield.report.caveats import pool_caveats
    from levelfield.store import without_password

    if optuna:
        from levelfield.optuna_export import write_optuna

        with open_store(study, store, out) as opened:
            count = write_optuna(study, opened, optuna)
        typer.echo(f"wrote {pluralize(count, 'trial')} to {without_password(optuna)}", err=True)
        return
    check_format(output)
    if os.path.lexists(output) and not force:
        raise UsageError(f"{output} exists; choose another name with -o, or add --force to overwrite it")
    with open_store(study, store, out) as opened:
        for sentence in pool_caveats(study, read_states(study, opened)):
            tell(sentence, err=True)
        rows = write_trials(study, opened, output, curves=curves)
    typer.echo(f"wrote {output} ({pluralize(rows, 'row')})", err=True)


def _print_status(
    study: "Study",
    pools: "Mapping[str, PoolState]",
    caveats: list[str],
    overrides: Overrides,
    as_json: bool,
    workers: "Sequence[Worker]" = (),
) -> None:
    from levelfield.analysis.results import titled
    from levelfield.formatting import MISSING, format_duration, format_metric, join_words, pluralize

    complete = all(pool.count.full for pool in pools.values())
    rows = [
        {
            "optimizer": name,
            "feasible": pool.count.feasible,
            "pool": pool.count.n,
            "infeasible": pool.count.infeasible,
            "best": pool.best,
            "failed": [asdict(failure) for failure in pool.failures],
        }
        for name, pool in pools.items()
    ]
    if as_json:
        return print_json(
            {
                "study": study.name,
                "overrides": overrides.settings,
                "complete": complete,
                "caveats": caveats,
                "optimizers": rows,
                "workers": [asdict(worker) for worker in workers],
            }
        )
    for sentence in caveats:
        tell(sentence)
    if overrides.settings:
        typer.echo(titled(study, overrides.settings))
    width = max(14, *map(len, pools))
    for name, pool in pools.items():
        best = MISSING if pool.best is None else format_metric(study.select, pool.best)
        typer.echo(
            f"{name:<{width}} {pool.count.feasible:,}/{pool.count.n:,} feasible, {pool.count.infeasible:,} infeasible, "
            f"best {study.select} {best}"
        )
    for worker in workers:
        trials = join_words([f"{pluralize(count, 'trial')} of {name}" for name, count in worker.points.items()])
        since = format_duration(worker.running_seconds)
        tell(f"{worker.host} (process {worker.pid}) is training {trials}; it started {since} ago")
    if given_up := [name for name, pool in pools.items() if pool.count.given_up]:
        tell(f"incomplete: too few trials of {join_words(given_up)} are feasible; narrow the search space")
    else:
        typer.echo("complete" if complete else "incomplete; 'levelfield run' continues it")


def _print_failures(pools: "Mapping[str, PoolState]") -> None:
    """Print each failed trial with its details."""
    from levelfield.formatting import pluralize

    for name, pool in pools.items():
        for failure in pool.failures:
            when = datetime.fromtimestamp(failure.time).astimezone().isoformat(" ", "seconds")
            runs = pluralize(failure.attempts, "run")
            typer.echo()
            tell(f"{name}, trial {failure.index}: {failure.reason}")
            tell(f"    failed in {runs}, last on {failure.host}, {when}")
            if failure.details:
                typer.echo(textwrap.indent(failure.details, "    "))


def _beside(name: str, study: "Study", store: str | None) -> "Comparison":
    """Return another study's comparison, from the same store or from that study's own."""
    from levelfield.comparison import Comparison
    from levelfield.study import load_study

    other = load_study(name)
    if study.scale < other.scale:
        other = other.scaled(study.scale / other.scale)
    if other.workload != study.workload:
        raise UsageError(
            f"--beside {name}: expected a study of the same workload, {study.workload}; it trains {other.workload}"
        )
    comparison = Comparison.load(other, store_name(other, store, None))
    if not any(comparison.trials.values()):
        scaled = f" --scale {study.scale:g}" if other.scale < 1 else ""
        raise UsageError(f"--beside {name}: the store has no trials of it; 'levelfield run {name}{scaled}' trains them")
    return comparison.at(select=study.select)


def _show(
    comparison: "Comparison",
    overrides: Overrides,
    out: Path | None,
    as_json: bool,
    beside: "Sequence[Comparison]" = (),
) -> None:
    """Print a comparison and write its report."""
    from levelfield.analysis.reruns import reruns
    from levelfield.comparison import Comparison
    from levelfield.usual import departures

    comparison = Comparison(replace(comparison.results, overrides=overrides.settings))
    page = overrides.page(folder(comparison.study, out), "report", shared_folder=out is not None)
    if as_json:
        path = comparison.write_report(page, [comparison, *beside])
        print_json(
            {
                "study": comparison.study.name,
                "overrides": overrides.settings,
                "complete": comparison.complete,
                "rows": comparison.rows(),
                "beats": comparison.beats_matrix(),
                "pairs": comparison.pairs(),
                "separated": comparison.separated(),
                "separated_by_steps": comparison.separated_by_steps() if comparison.study.target else [],
                "step_times": {name: asdict(measured) for name, measured in comparison.step_times.items()},
                "sentences": comparison.sentences(),
                "failures": {
                    name: [asdict(failure) for failure in failed] for name, failed in comparison.failures.items()
                },
                "audit": [finding.as_dict() for finding in comparison.audit()],
                "seeded": [pair.as_dict(comparison.study.select) for pair in comparison.followed],
                "reruns": {rerun.optimizer: rerun.as_dict() for rerun in reruns(comparison.results)},
                "departures": [departure.as_dict() for departure in departures(comparison.study)],
                "boundaries": [boundary.as_dict() for boundary in comparison.boundaries()],
                "health": [check.as_dict() for check in comparison.health()],
                "settles": comparison.settles(),
                "report": str(path),
            }
        )
    else:
        from levelfield.cli.terminal import print_comparison

        print_comparison(comparison.results)
        typer.echo(f"\nreport: {comparison.write_report(page, [comparison, *beside])}")
