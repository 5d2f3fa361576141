"""Commands on search spaces and trials: refine, ladder, rerun, plan."""

import os
import shlex
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
    showing_progress,
    slot_count,
    store_name,
)
from levelfield.errors import SearchExhausted, UsageError

if TYPE_CHECKING:
    from levelfield.analysis.outcomes import Outcome
    from levelfield.derive.refine import Refinement
    from levelfield.study import Study


@app.command()
@on_study
def refine(
    study: "Study",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The new study.  [default: NAME_refined.toml]")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="n", min=1, help="Alternate search and refinement up to this many times.")
    ] = None,
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Propose better search spaces and write them to a new study file."""
    from levelfield.store import without_password

    if output and os.path.lexists(output):
        raise UsageError(f"{output} exists; choose another name, because a study is never overwritten")
    if output and not output.parent.is_dir():
        raise UsageError(f"{output}: the folder {output.parent} does not exist")
    shortage = None
    if rounds is None:
        refinements = [_refine_once(study, store, out)]
        if not as_json:
            _print_refinement(refinements[0])
    else:
        refinements, shortage = _refine_in_rounds(
            study, rounds, slots, executor, store_name(study, store, out), quiet=as_json
        )
    last = refinements[-1].study
    path = output or Path(f"{last.name}.toml")
    if last is not study:
        _write_new(path, last.to_toml(path.parent))
    if as_json:
        written = str(path) if last is not study else None
        print_json(
            {"rounds": [_as_dict(refinement) for refinement in refinements], "study": last.name, "file": written}
        )
    elif last is study:
        typer.echo("All ranges can stay; no new study is needed.")
    else:
        location = store_name(study, store, out) if rounds is not None else store
        option = f" --store {shlex.quote(without_password(location))}" if location else ""
        purpose = "run it" if rounds is None else "see its results"
        typer.echo(f"wrote {path}; to {purpose}: levelfield compare {path}{option}")
    if shortage:
        raise shortage


def _refine_once(study: "Study", store: str | None, out: Path | None) -> "Refinement":
    from levelfield.derive.refine import refine
    from levelfield.run import read_pools

    with open_store(study, store, out) as opened:
        return refine(read_pools(study, opened))


def _refine_in_rounds(
    study: "Study", rounds: int, slots: str, executor: str, store: str, quiet: bool
) -> "tuple[list[Refinement], SearchExhausted | None]":
    from levelfield import run

    refinements: list[Refinement] = []
    with showing_progress(study, store) as progress:
        chosen = run.prepared(study, executor, slot_count(slots))
        with run.opened(study, store) as opened:
            try:
                for refinement in run.refine_in_rounds(study, rounds, opened, chosen, progress):
                    refinements.append(refinement)
                    if not quiet:
                        _print_refinement(refinement)
            except SearchExhausted as error:
                if not refinements:
                    raise
                return refinements, error  # what was proposed before is still written
    return refinements, None


@app.command()
@on_study
def ladder(
    study: "Study",
    slots: Slots = "auto",
    executor: Executor = "local",
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Compare optimizers while tuning more and more hyperparameters.

    The first rung tunes only the learning rate. The next ones add its schedule, momentum, ε, and everything else.
    """
    from levelfield import run
    from levelfield.analysis.protocols import by_protocol, pairs
    from levelfield.comparison import Comparison
    from levelfield.derive.ladder import ladder

    rungs, location = ladder(study), store_name(study, store, out)
    with showing_progress(rungs, location) as progress:
        results, shortage = run.compare(rungs, location, executor=executor, slots=slot_count(slots), listener=progress)
    comparison = Comparison(results)
    top = Comparison.load(study, location)  # the last rung is the study itself: the page is about it
    columns = by_protocol([results])
    page = folder(study, out) / "ladder.html"
    if as_json:
        path = top.write_report(page, [comparison])
        print_json(
            {
                "study": rungs.name,
                "rungs": {
                    label: {rule: vars(entry.outcome.best(entry.k)) for rule, entry in column.items()}
                    for label, column in columns.items()
                },
                "pairs": [pair.as_dict() for pair in pairs(columns)],
                "report": str(path),
            }
        )
    else:
        from levelfield.cli.terminal import print_ladder

        print_ladder(columns, study.select)
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
    as_json: Json = False,
) -> None:
    """Train the best trials again with new seeds.

    Prints mean, min, and max, as Wilson et al. report them.
    """
    from dataclasses import replace

    from levelfield import run
    from levelfield.derive.rerun import rerun_study

    location = store_name(study, store, out)
    with open_store(study, store, out) as opened:
        results = run.read_pools(study, opened)
    again = rerun_study(results.at(select=metric), seeds=seeds, index=index)
    with showing_progress(again, location) as progress:
        reruns, shortage = run.compare(again, location, executor=executor, slots=slot_count(slots), listener=progress)
    if as_json:
        print_json({name: _over_seeds(outcome) for name, outcome in reruns.outcomes.items()})
    else:
        from levelfield.report.narrative import rerun_sentences

        trial = "best trial" if index is None else f"trial {index}"
        for sentence in rerun_sentences(replace(results, reruns=reruns.outcomes), trial):
            typer.echo(sentence)
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
    from levelfield.run import read_pools

    with open_store(study, store, out) as opened:
        proposal = plan(read_pools(study, opened).outcomes, gpu_hours)
    if not proposal.stretches:
        raise UsageError(f"{study.name}: the store has no feasible trials of this study; 'levelfield run' trains them")
    if as_json:
        return print_json(proposal.as_dict())
    for sentence in proposal.sentences():
        typer.echo(sentence)


def _print_refinement(refinement: "Refinement") -> None:
    typer.echo(f"{refinement.results.study.name}:")
    for boundary in refinement.boundaries:
        if boundary.place != "fixed":
            typer.echo(f"  {boundary}")


def _write_new(path: Path, text: str) -> None:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path} exists; choose another name with -o, because a study is never overwritten") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot write the file ({error.strerror})") from None


def _as_dict(refinement: "Refinement") -> dict[str, Any]:
    boundaries = [boundary.as_dict() for boundary in refinement.boundaries]
    return {"study": refinement.results.study.name, "boundaries": boundaries}


def _over_seeds(outcome: "Outcome") -> dict[str, Any]:
    """Return mean, min, and max of every metric over the seeds."""
    import numpy as np

    values = {metric: outcome.values(metric) for metric in outcome.metrics}
    return {"seeds": outcome.tried, "feasible": len(outcome.pool)} | {
        metric: {"mean": float(np.mean(seeds)), "min": float(np.min(seeds)), "max": float(np.max(seeds))}
        for metric, seeds in values.items()
        if len(seeds)
    }
