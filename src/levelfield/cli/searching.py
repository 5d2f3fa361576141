"""Commands on search spaces and trials: suggest, refine, ladder, rerun, plan."""

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelfield.cli.common import (
    Executor,
    Json,
    Out,
    Overrides,
    Slots,
    Stale,
    StoreOption,
    app,
    folder,
    on_study,
    open_store,
    print_caveats,
    print_json,
    showing_progress,
    slot_count,
    store_name,
    training,
    write_new,
)
from levelfield.cli.output import tell
from levelfield.errors import SearchExhausted, UsageError

if TYPE_CHECKING:
    from levelfield.analysis.protocols import Entry
    from levelfield.derive.refine import Refinement
    from levelfield.study import Study


@app.command()
def suggest(
    rules: Annotated[list[str], typer.Argument(metavar="RULE", help="Rules, such as adam or optax.lion.")],
    workload: Annotated[
        str | None, typer.Option(metavar="W", help="The workload to suggest ranges for.  [default: any]")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a whole study of these rules on W.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a search space to start from, with its source, as TOML.

    The tables can be pasted into a study file. With -o, write a study that is ready to run.
    """
    from levelfield.suggestions import suggested_study, suggested_tables, suggestion
    from levelfield.workloads import get_workload

    if output:
        if workload is None:
            raise UsageError("-o needs --workload W, the workload of the study; 'levelfield workloads' lists them")
        write_new(output, suggested_study(rules, workload))
        typer.echo(f"wrote {output}; to run it: levelfield compare {shlex.quote(str(output))}", err=as_json)
    kind = get_workload(workload).kind if workload else ""
    if as_json:
        print_json({rule: suggestion(rule, kind).as_dict() for rule in rules})
    elif not output:
        typer.echo(suggested_tables(rules, kind), nl=False)


@app.command()
@on_study
def refine(
    study: "Study",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The new study.  [default: NAME_refined.toml]")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(metavar="n", min=1, help="Search and refine up to n times, with trials beyond the ranges."),
    ] = None,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    stale: Stale = None,
    as_json: Json = False,
) -> None:
    """Propose better search spaces, in a new study file."""
    from levelfield.store import without_password

    if output and os.path.lexists(output):
        raise UsageError(f"{output} exists; choose another name, because a study is never overwritten")
    if output and not output.parent.is_dir():
        raise UsageError(f"{output}: the folder {output.parent} does not exist")
    shortage = None
    if rounds is None:
        refinements = [_refine_once(study, store, out)]
        _print_refinement(refinements[0], quiet=as_json)
    else:
        refinements, shortage = _refine_in_rounds(
            study, rounds, slots, executor, store_name(study, store, out), stale, quiet=as_json
        )
    last = refinements[-1].study
    path = output or Path(f"{last.name}.toml")
    if last is not study:
        write_new(path, last.to_toml(path.parent))
    if as_json:
        written = str(path) if last is not study else None
        print_json(
            {"rounds": [_as_dict(refinement) for refinement in refinements], "study": last.name, "file": written}
        )
    elif last is study and not shortage:
        unknown = any(boundary.place == "unknown" for boundary in refinements[-1].boundaries)
        stay = "No range is known to need a change" if unknown else "All ranges can stay"
        typer.echo(f"{stay}; no new study is needed.")
    elif last is study:
        typer.echo("Nothing better was found, and no new study is written.")
    else:
        location = store_name(study, store, out) if rounds is not None else store
        option = f" --store {shlex.quote(without_password(location))}" if location else ""
        purpose = "run it" if rounds is None else "see its results"
        command = f"levelfield compare {path}{option}"
        if study.sampling:  # levelfield cannot train its trials
            purpose, command = "add trials from these ranges", f"levelfield import SOURCE --study {path}{option}"
        typer.echo(f"wrote {path}; to {purpose}: {command}")
    if shortage:
        raise shortage


def _refine_once(study: "Study", store: str | None, out: Path | None) -> "Refinement":
    from levelfield.derive.refine import refine
    from levelfield.reading import read_pools

    with open_store(study, store, out) as opened:
        return refine(read_pools(study, opened))


def _refine_in_rounds(
    study: "Study", rounds: int, slots: str, executor: str, store: str, stale: Stale, quiet: bool
) -> "tuple[list[Refinement], SearchExhausted | None]":
    from levelfield import run

    refinements: list[Refinement] = []
    with showing_progress(study, store) as progress:
        chosen = run.prepared(study, executor, slot_count(slots), run.checkpoint_folder(study, store))
        with run.opened(study, store) as opened:
            try:
                for refinement in run.refine_in_rounds(study, rounds, opened, chosen, progress, stale):
                    refinements.append(refinement)
                    _print_refinement(refinement, quiet, number=len(refinements))
            except SearchExhausted as error:
                if not refinements:
                    raise
                return refinements, error  # what was proposed before is still written
    return refinements, None


@app.command()
@on_study
def ladder(
    study: "Study",
    overrides: Overrides,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    stale: Stale = None,
    as_json: Json = False,
) -> None:
    """Compare optimizers while tuning more and more hyperparameters.

    The first rung tunes only the learning rate. The next ones add its schedule, momentum, ε, and everything else.
    """
    from levelfield.analysis.protocols import by_protocol, pairs
    from levelfield.comparison import Comparison
    from levelfield.derive.ladder import ladder
    from levelfield.run import compare

    rungs, location = ladder(study), store_name(study, store, out)
    with training(rungs, location, executor, slots, stale, out) as options:
        results, shortage = compare(rungs, location, **options)
    comparison = Comparison(replace(results, overrides=overrides.settings))
    # The last rung is the study itself: the page is about it.
    top = Comparison(replace(Comparison.load(study, location).results, overrides=overrides.settings))
    columns = by_protocol([results])
    page = overrides.page(folder(study, out), "ladder", shared_folder=out is not None)
    print_caveats(results, apart=as_json)
    if as_json:
        path = top.write_report(page, [comparison])
        print_json(
            {
                "study": rungs.name,
                "overrides": overrides.settings,
                "rungs": {
                    label: {rule: _expected(entry) for rule, entry in column.items()}
                    for label, column in columns.items()
                },
                "pairs": [pair.as_dict() for pair in pairs(columns)],
                "report": str(path),
            }
        )
    else:
        from levelfield.cli.terminal import print_ladder

        print_ladder(columns, study.select, comparison.results.title)
        typer.echo(f"\nreport: {top.write_report(page, [comparison])}")
    if shortage:
        raise shortage


@app.command()
@on_study
def rerun(
    study: "Study",
    index: Annotated[
        int | None, typer.Option("--trial", metavar="i", help="Rerun the trial at this index instead of the best one.")
    ] = None,
    seeds: Annotated[int, typer.Option(metavar="n", min=1, help="Number of new seeds.")] = 5,
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Choose the best trial by this metric.  [default: the study's]"),
    ] = None,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    stale: Stale = None,
    as_json: Json = False,
) -> None:
    """Train the best trials again with new seeds.

    Prints each trial's own metrics, and the mean, min, and max of its reruns. The best trial was selected by its
    metric, so that metric is optimistic; the reruns show what its hyperparameters give.
    """
    from levelfield import run
    from levelfield.analysis.reruns import reruns
    from levelfield.report.narrative import rerun_sentences

    location = store_name(study, store, out)
    with showing_progress(study, location) as progress:
        results, shortage = run.rerun(
            study,
            location,
            seeds=seeds,
            index=index,
            select=metric,
            executor=executor,
            slots=slot_count(slots),
            listener=progress,
            stale=stale,
            checkpoints=run.checkpoint_folder(study, location, out=out),
        )
    print_caveats(results, apart=as_json)
    if as_json:
        print_json({rerun.optimizer: rerun.as_dict() for rerun in reruns(results, index)})
    else:
        for sentence in rerun_sentences(results, index):
            tell(sentence)
    if shortage:
        raise shortage


@app.command()
@on_study
def plan(
    study: "Study",
    gpu_hours: Annotated[
        float | None,
        typer.Option("--gpu-hours", metavar="H", help="Time budget in hours, on the device that ran the trials."),
    ] = None,
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show which optimizer to tune, and with how many trials.

    The answer is based on the trials run so far.
    """
    from levelfield.analysis.planning import plan
    from levelfield.reading import read_pools

    with open_store(study, store, out) as opened:
        results = read_pools(study, opened)
    proposal = plan(results.outcomes, gpu_hours)
    if not proposal.candidates:
        raise UsageError(f"{study.name}: the store has no feasible trials of this study; 'levelfield run' trains them")
    print_caveats(results, apart=as_json)
    if as_json:
        return print_json(proposal.as_dict())
    for sentence in proposal.sentences():
        tell(sentence)


def _expected(entry: "Entry") -> dict[str, Any]:
    """Return the expected best of a rule on a rung, and the metric to report of the selected trial."""
    outcome, report = entry.outcome, entry.outcome.held_out_metric
    return vars(outcome.best(entry.k)) | ({report: outcome.best(entry.k, report).mean} if report else {})


def _print_refinement(refinement: "Refinement", quiet: bool, number: int = 0) -> None:
    """Print what a round tried, or the verdicts on all ranges."""
    print_caveats(refinement.results, apart=quiet)
    if quiet:
        return
    name = refinement.results.study.name
    if refinement.attempts:
        typer.echo(f"round {number}, {name}:")
        for attempt in refinement.attempts:
            tell(f"  {attempt}")
        return
    typer.echo(f"{name}:")
    for boundary in refinement.boundaries:
        if boundary.place != "fixed":
            tell(f"  {boundary}")


def _as_dict(refinement: "Refinement") -> dict[str, Any]:
    return {
        "study": refinement.results.study.name,
        "attempts": [attempt.as_dict() for attempt in refinement.attempts],
        "boundaries": [boundary.as_dict() for boundary in refinement.boundaries],
    }
