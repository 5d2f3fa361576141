"""The commands, each a few lines over the library. Results go to stdout, progress and errors to stderr."""

import contextlib
import functools
import inspect
import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelfield.errors import DataError, LevelfieldError, NoStore, SearchExhausted, UsageError

if TYPE_CHECKING:
    from levelfield.analysis.outcomes import Outcome
    from levelfield.comparison import Comparison
    from levelfield.executors import Executor as Trainer
    from levelfield.progress import RunProgress
    from levelfield.refinement import Refinement
    from levelfield.store import Store
    from levelfield.study import Study

DEFAULT_STUDY = "fashion_mini"

app = typer.Typer(
    name="levelfield",
    help="Compare deep-learning optimizers on a level playing field.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="The paper's data sets: fetch them, list them.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")
# click's ClickException: what is wrong with a command line. Typer keeps its own copy of click in newer versions.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A built-in study's name or a .toml file.")]
Trials = Annotated[int | None, typer.Option("--trials", metavar="K", help="Trials a tuner gets.")]
Pool = Annotated[int | None, typer.Option("--pool", metavar="N", help="Feasible trials to run for each optimizer.")]
Steps = Annotated[int | None, typer.Option("--steps", metavar="S", help="Training steps of a trial.")]
Optimizers = Annotated[str | None, typer.Option(metavar="A,B", help="Only these optimizers of the study.")]
Seed = Annotated[int | None, typer.Option(help="The study's seed.")]
Scale = Annotated[
    float | None, typer.Option(metavar="F", help="Shrink steps, trials and pool together, to try a study's whole path.")
]
Slots = Annotated[str, typer.Option(metavar="auto|n", help="Trials trained side by side.")]
Executor = Annotated[str, typer.Option(help="Where to train: local.")]
StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="A file or postgresql://…  [default: OUT/trials.db]"),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for results.  [default: levelfield-out/STUDY]")]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]


def _study(
    study: StudyArgument = DEFAULT_STUDY,
    trials: Trials = None,
    pool: Pool = None,
    steps: Steps = None,
    optimizers: Optimizers = None,
    seed: Seed = None,
    scale: Scale = None,
) -> "Study":
    from levelfield.study import load_study

    chosen = load_study(study)
    if scale is not None:
        chosen = chosen.scaled(scale)
    chosen = chosen.replace(trials=trials, pool=pool, steps=steps, seed=seed)
    return chosen.only([name.strip() for name in optimizers.split(",")]) if optimizers else chosen


def _on_study(command: Callable[..., None]) -> Callable[..., None]:
    """A command on a study: takes STUDY and the options that override it, and hands the command the study."""
    shared, own = inspect.signature(_study), inspect.signature(command)

    @functools.wraps(command)
    def call(**given: Any) -> None:
        study = _study(**{name: given.pop(name) for name in shared.parameters})
        command(study, **given)

    parameters = [*shared.parameters.values(), *list(own.parameters.values())[1:]]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


@app.command()
@_on_study
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
    failure = _run(study, slots, executor, _store(study, store, out))
    if seed_inclusions:
        _seed(study, slots, executor, _store(study, store, out))
    _report(study, store, out, as_json)
    if failure:
        raise failure


@app.command()
@_on_study
def run(
    study: "Study",
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Run what is missing of a study."""
    failure = _run(study, slots, executor, _store(study, store, out))
    _status(study, _store(study, store, out), as_json)
    if failure:
        raise failure


@app.command()
@_on_study
def status(
    study: "Study",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say how full each optimizer's pool is."""
    _status(study, _store(study, store, out), as_json)


@app.command()
@_on_study
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
        for path in comparison.write_figures(figures, others):
            typer.echo(f"wrote {path}", err=True)


@app.command()
@_on_study
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

    location = _store(study, store, out)
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
@_on_study
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
    from levelfield.runner import cost
    from levelfield.taxonomy.coverage import coverage

    found = cost(study)
    if measure:
        from levelfield.executors.local import measure_speed

        speed = measure_speed(study, next(iter(study.optimizers)), _slots(slots))
        found |= {"trial_steps_per_second": speed, "hours": found["trial_steps"] / speed / 3600}
    try:
        covered, obstacle = coverage(study, gradient_scale), None
    except DataError as error:  # the rest can be said without
        covered, obstacle = None, str(error)
    if as_json:
        return _print_json(found | (covered.as_dict() if covered else {"inclusions": None, "obstacle": obstacle}))
    typer.echo(f"{study.name}: valid")
    typer.echo(f"  workload    {study.workload}, batch {study.batch_size}, evaluated every {study.eval_interval} steps")
    width = max(11, *map(len, found["free"]))
    for name, free in found["free"].items():
        typer.echo(f"  {name:<{width}} {len(free)} free: {', '.join(free) or 'none'}")
    typer.echo(
        f"  cost        {len(study.optimizers)} optimizers × {study.pool} trials × {study.steps:,} steps "
        f"= {found['trial_steps']:,} trial-steps, if all are feasible"
    )
    if measure:
        speed = found["trial_steps_per_second"]
        typer.echo(f"  time        about {found['hours']:.2g} hours here ({speed:,.0f} trial-steps/s)")
    else:
        typer.echo("  time        'levelfield check --measure' estimates it for this machine")
    for line in covered.lines() if covered else [f"  inclusions  not judged: {obstacle} (or give --gradient-scale)"]:
        typer.echo(line)


@app.command()
@_on_study
def refine(
    study: "Study",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The new study.  [default: NAME_refined.toml]")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="n", min=1, help="Search and refine in turn, at most so many times.")
    ] = None,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Propose better search spaces from what has been run, as a new study."""
    from levelfield.comparison import Comparison
    from levelfield.refinement import refine as refined
    from levelfield.refinement import rounds as in_rounds

    if output and output.exists():
        raise UsageError(f"{output} exists: name another file, a study is never overwritten")
    if output and not output.parent.is_dir():
        raise UsageError(f"{output}: there is no folder {output.parent}")
    if rounds is None:
        with _open(study, store, out) as opened:
            found = [refined(Comparison(study, opened))]
    else:
        with _training(study, slots, executor, _store(study, store, out)) as (opened, chosen, listen):
            found = []
            for each in in_rounds(study, rounds, opened, chosen, listen):
                found.append(each)
                if not as_json:
                    _say_refinement(each)
    last = found[-1].study
    path = output or Path(f"{last.name}.toml")
    if rounds is None and not as_json:
        _say_refinement(found[0])
    if last is not study:
        _write_new(path, last.to_toml())
    if as_json:
        written = str(path) if last is not study else None
        return _print_json({"rounds": [_refinement(each) for each in found], "study": last.name, "file": written})
    if last is study:
        return typer.echo("All ranges can stay: no new study is needed.")
    typer.echo(f"wrote {path}; 'levelfield compare {path}' searches it")


@app.command()
@_on_study
def ladder(
    study: "Study",
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Tune more and more: the learning rate alone, then its schedule, momentum, ε, everything; who leads at each."""
    from levelfield.analysis.protocols import by_protocol, pairs
    from levelfield.comparison import Comparison
    from levelfield.protocols import ladder as rungs

    rising = rungs(study)
    failure = _run(rising, slots, executor, _store(study, store, out))
    with _open(study, store, out) as opened:
        comparison = Comparison(rising, opened)
    path = comparison.write_report(_folder(study, out) / "ladder.html")
    columns = by_protocol([comparison])
    if as_json:
        _print_json(
            {
                "study": rising.name,
                "rungs": {
                    label: {rule: vars(e.outcome.best(e.k)) for rule, e in column.items()}
                    for label, column in columns.items()
                },
                "pairs": [each.as_dict() for each in pairs(columns)],
                "report": str(path),
            }
        )
    else:
        from levelfield.terminal import print_ladder

        print_ladder(columns, study.select)
        typer.echo(f"\nreport: {path}")
    if failure:
        raise failure


@app.command()
@_on_study
def rerun(
    study: "Study",
    best: Annotated[
        bool, typer.Option("--best", help="The best trial of each optimizer (what is done anyway).")
    ] = True,
    index: Annotated[
        int | None, typer.Option("--trial", metavar="i", help="Not the best trial but the one at this index.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="n", help="How many fresh seeds.")] = 5,
    metric: Annotated[str | None, typer.Option(help="Choose the best by this metric.  [default: the study's]")] = None,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Train the best trials again with fresh seeds: mean, least and most, as Wilson et al. report them."""
    from levelfield.comparison import Comparison
    from levelfield.rerun import rerun_study

    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: give a whole number of at least 1")
    with _open(study, store, out) as opened:
        comparison = Comparison(study, opened)
    again = rerun_study(comparison.at(select=metric), seeds=seeds, index=index)
    failure = _run(again, slots, executor, _store(study, store, out))
    with _open(study, store, out) as opened:
        comparison.reruns = {name: Comparison(again, opened).outcome(name) for name in again.optimizers}
    if as_json:
        _print_json({name: _seeds(outcome) for name, outcome in comparison.reruns.items()})
    else:
        from levelfield.words import rerun_sentences

        for sentence in rerun_sentences(comparison, "best trial" if index is None else f"trial {index}"):
            typer.echo(sentence)
    if failure:
        raise failure


@app.command()
@_on_study
def plan(
    study: "Study",
    gpu_hours: Annotated[
        float | None, typer.Option("--gpu-hours", metavar="H", help="A budget of device time, as the trials took it.")
    ] = None,
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Say which optimizer to tune with how many trials, from what has been run."""
    from levelfield.comparison import Comparison

    if gpu_hours is not None and not 0 < gpu_hours < math.inf:
        raise UsageError(f"--gpu-hours {gpu_hours:g}: give a time above 0")
    with _open(study, store, out) as opened:
        found = Comparison(study, opened).plan(gpu_hours)
    if not found.stretches:
        raise UsageError(f"{study.name}: no feasible trial has been run yet; 'levelfield run' runs them")
    if as_json:
        return _print_json(found.as_dict())
    for sentence in found.sentences():
        typer.echo(sentence)


@app.command()
def taxonomy(as_json: Json = False) -> None:
    """Draw the inclusions between update rules, and verify each numerically."""
    from levelfield.taxonomy.verify import verify_all

    found = verify_all()
    if as_json:
        _print_json([each.as_dict() for each in found])
    else:
        from levelfield.terminal import print_taxonomy

        print_taxonomy(found)
    if not all(each.holds for each in found):
        raise typer.Exit(1)


@app.command()
@_on_study
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
    with _open(study, store, out) as opened:
        rows = write_trials(study, opened, output, curves=curves)
    typer.echo(f"wrote {output} ({rows} rows)", err=True)


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set, as 'levelfield data list' names them.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="A folder with the publisher's files.")
    ] = None,
) -> None:
    """Fetch a data set, or read it from a folder, into the cache."""
    from levelfield import datasets

    typer.echo(datasets.get(name, source, say=lambda line: typer.echo(line, err=True)))


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """List the data sets, and which are on this machine."""
    from levelfield import datasets

    rows = [
        {"dataset": name, "here": datasets.about(name) is not None, "summary": datasets.summary(name)}
        for name in datasets.names()
    ]
    if as_json:
        return _print_json(rows)
    for row in rows:
        typer.echo(f"{row['dataset']:<14} {'here' if row['here'] else '–':<5} {row['summary']}")


@app.command()
def studies(as_json: Json = False) -> None:
    """List the built-in studies with their cost."""
    from levelfield.runner import cost
    from levelfield.study import built_in_studies, load_study

    rows = []
    for name in built_in_studies():
        study = load_study(name)
        rows.append(
            {
                "study": name,
                "workload": study.workload,
                "optimizers": list(study.optimizers),
                "trials": study.trials,
                "pool": study.pool,
                "steps": study.steps,
                "trial_steps": cost(study)["trial_steps"],
                "description": study.description,
            }
        )
    if as_json:
        return _print_json(rows)
    for row in rows:
        typer.echo(f"{row['study']}: {row['description']}")
        typer.echo(
            f"    {len(row['optimizers'])} optimizers, K {row['trials']}, N {row['pool']}, "
            f"{row['steps']:,} steps: {row['trial_steps']:,} trial-steps"
        )


@app.command()
def workloads(as_json: Json = False) -> None:
    """List the workloads."""
    from levelfield.workloads import get_workload, workload_names

    found = [get_workload(name) for name in workload_names()]
    if as_json:
        return _print_json(
            [
                {
                    "workload": each.name,
                    "summary": each.summary,
                    "batch_size": each.batch_size,
                    "select": each.select,
                    "metrics": dict(each.metrics),
                    "dataset": each.dataset,
                }
                for each in found
            ]
        )
    for each in found:
        typer.echo(f"{each.name}: {each.summary}")
        needs = f", needs the data set {each.dataset}" if each.dataset else ""
        typer.echo(f"    batch {each.batch_size}, selected by {each.select}{needs}")


def _slots(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--slots {text}: give auto or a whole number of at least 1")
    return int(text)


def _folder(study: "Study", out: Path | None) -> Path:
    return out or Path("levelfield-out") / study.name


def _store(study: "Study", store: str | None, out: Path | None) -> str:
    return store or str(_folder(study, out) / "trials.db")


def _open(study: "Study", store: str | None, out: Path | None) -> "Store":
    from levelfield.store import Store

    return Store.open(_store(study, store, out), create=False)


@contextlib.contextmanager
def _training(study: "Study", slots: str, executor: str, store: str) -> "Iterator[tuple[Store, Trainer, RunProgress]]":
    """A store, an executor and progress to train a study with; an interruption says how to go on."""
    from levelfield.executors import get_executor
    from levelfield.progress import RunProgress
    from levelfield.store import Store

    chosen = get_executor(executor, _slots(slots))
    chosen.check(study)
    with Store.open(store) as opened:
        progress = RunProgress(study)
        try:
            with progress:
                yield opened, chosen, progress
        except KeyboardInterrupt:
            typer.echo(
                f"levelfield: interrupted; {progress.finished} trials finished in this run are saved in {store}. "
                f"To go on: {shlex.join(['levelfield', *sys.argv[1:]])}",
                err=True,
            )
            raise typer.Exit(130) from None


def _run(study: "Study", slots: str, executor: str, store: str) -> SearchExhausted | None:
    """Run the study; returns, rather than raises, that a pool could not be filled, so that results follow."""
    from levelfield.runner import run

    with _training(study, slots, executor, store) as (opened, chosen, progress):
        try:
            run(study, opened, chosen, progress)
        except SearchExhausted as failure:
            return failure
    return None


def _say_refinement(found: "Refinement") -> None:
    typer.echo(f"{found.comparison.study.name}:")
    for each in found.boundaries:
        if each.place != "fixed":
            typer.echo(f"  {each}")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists: name another file by -o, a study is never overwritten") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None


def _refinement(found: "Refinement") -> dict[str, Any]:
    return {"study": found.comparison.study.name, "boundaries": [each.as_dict() for each in found.boundaries]}


def _seeds(outcome: "Outcome") -> dict[str, Any]:
    """Mean, least and most of every metric over the seeds."""
    import numpy as np

    values = {metric: outcome.values(metric) for metric in outcome.metrics}
    return {"seeds": outcome.tried, "feasible": len(outcome.pool)} | {
        metric: {"mean": float(np.mean(each)), "min": float(np.min(each)), "max": float(np.max(each))}
        for metric, each in values.items()
        if len(each)
    }


def _seed(study: "Study", slots: str, executor: str, store: str) -> None:
    from levelfield.comparison import Comparison
    from levelfield.executors import get_executor
    from levelfield.store import Store
    from levelfield.taxonomy.seeding import run_seeds

    with Store.open(store) as opened:
        chosen = Comparison(study, opened).seeds()
        for each in run_seeds(chosen, opened, get_executor(executor, _slots(slots))):
            typer.echo(f"seeded: {each.edge.general} has followed {each.edge.special}'s best trial", err=True)


def _status(study: "Study", store: str, as_json: bool) -> None:
    from levelfield.comparison import Comparison
    from levelfield.store import Store
    from levelfield.words import show_metric

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
        return _print_json({"study": study.name, "complete": comparison.complete, "optimizers": rows})
    for row in rows:
        best_shown = "–" if row["best"] is None else show_metric(study.select, row["best"])
        typer.echo(
            f"{row['optimizer']:<14} {row['feasible']}/{row['pool']} feasible, {row['infeasible']} infeasible, "
            f"best {study.select} {best_shown}"
        )
    typer.echo("complete" if comparison.complete else "incomplete: 'levelfield run' goes on")


def _beside(name: str, study: "Study", store: str | None) -> "Comparison":
    """Another study's comparison, from the same store or from that study's own."""
    from levelfield.comparison import Comparison
    from levelfield.study import load_study

    other = load_study(name)
    if other.workload != study.workload:
        raise UsageError(f"--beside {name}: it trains {other.workload}, {study.name} trains {study.workload}")
    with _open(other, store, None) as opened:
        return Comparison(other, opened)


def _report(
    study: "Study", store: str | None, out: Path | None, as_json: bool, beside: "Sequence[Comparison]" = ()
) -> "Comparison":
    from levelfield.comparison import Comparison

    with _open(study, store, out) as opened:
        comparison = Comparison(study, opened)
    path = comparison.write_report(_folder(study, out) / "report.html", beside)
    if as_json:
        _print_json(
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
        typer.echo(f"\nreport: {path}")
    return comparison


def _print_json(content: Any) -> None:
    """JSON has no NaN: what is not there is null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [clean(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    typer.echo(json.dumps(clean(content), indent=2, ensure_ascii=False))


def main() -> None:
    """The entry point: the library raises, this prints one line and exits with its code."""
    try:
        sys.exit(app(standalone_mode=False))
    except _CommandLineError as error:
        typer.echo(f"levelfield: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except LevelfieldError as error:
        typer.echo(f"levelfield: {error}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("levelfield: interrupted", err=True)
        sys.exit(130)
