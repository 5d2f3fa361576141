"""Search spaces and trials: refine, ladder, rerun, plan."""

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
    run_study,
    store_name,
    training,
)
from levelfield.errors import SearchExhausted, UsageError

if TYPE_CHECKING:
    from levelfield.analysis.outcomes import Outcome
    from levelfield.refinement import Refinement
    from levelfield.study import Study


@app.command()
@on_study
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
    from levelfield.store import without_password

    if output and os.path.lexists(output):
        raise UsageError(f"{output} exists: name another file, a study is never overwritten")
    if output and not output.parent.is_dir():
        raise UsageError(f"{output}: there is no folder {output.parent}")
    failure = None
    if rounds is None:
        with open_store(study, store, out) as opened:
            found = [refined(Comparison(study, opened))]
    else:
        with training(study, slots, executor, store_name(study, store, out)) as (opened, chosen, listen):
            found = []
            try:
                for each in in_rounds(study, rounds, opened, chosen, listen):
                    found.append(each)
                    if not as_json:
                        _say_refinement(each)
            except SearchExhausted as error:
                if not found:
                    raise
                failure = error  # what was proposed before is written all the same
    last = found[-1].study
    path = output or Path(f"{last.name}.toml")
    if rounds is None and not as_json:
        _say_refinement(found[0])
    if last is not study:
        _write_new(path, last.to_toml(path.parent))
    if as_json:
        written = str(path) if last is not study else None
        print_json({"rounds": [_refinement(each) for each in found], "study": last.name, "file": written})
    elif last is study:
        typer.echo("All ranges can stay: no new study is needed.")
    else:
        where = store_name(study, store, out) if rounds is not None else store
        trained = f" --store {shlex.quote(without_password(where))}" if where else ""
        does = "to search it" if rounds is None else "to see it"
        typer.echo(f"wrote {path}; {does}: levelfield compare {path}{trained}")
    if failure:
        raise failure


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
    """Tune more and more: the learning rate alone, then its schedule, momentum, ε, everything; who leads at each."""
    from levelfield.analysis.protocols import by_protocol, pairs
    from levelfield.comparison import Comparison
    from levelfield.protocols import ladder as rungs

    rising = rungs(study)
    failure = run_study(rising, slots, executor, store_name(study, store, out))
    with open_store(study, store, out) as opened:
        comparison = Comparison(rising, opened)
        top = Comparison(study, opened)  # the last rung is the study itself: the page is about it
    columns = by_protocol([comparison])
    page = folder(study, out) / "ladder.html"
    if as_json:
        path = top.write_report(page, [comparison])
        print_json(
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
        typer.echo(f"\nreport: {top.write_report(page, [comparison])}")
    if failure:
        raise failure


@app.command()
@on_study
def rerun(
    study: "Study",
    best: Annotated[
        bool, typer.Option("--best", help="The best trial of each optimizer (what is done anyway).")
    ] = False,
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
    if best and index is not None:
        raise UsageError(f"--best and --trial {index}: give one of them")
    with open_store(study, store, out) as opened:
        comparison = Comparison(study, opened)
    again = rerun_study(comparison.at(select=metric), seeds=seeds, index=index)
    failure = run_study(again, slots, executor, store_name(study, store, out))
    with open_store(study, store, out) as opened:
        comparison.reruns = {name: Comparison(again, opened).outcome(name) for name in again.optimizers}
    if as_json:
        print_json({name: _seeds(outcome) for name, outcome in comparison.reruns.items()})
    else:
        from levelfield.words import rerun_sentences

        for sentence in rerun_sentences(comparison, "best trial" if index is None else f"trial {index}"):
            typer.echo(sentence)
    if failure:
        raise failure


@app.command()
@on_study
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

    with open_store(study, store, out) as opened:
        found = Comparison(study, opened).plan(gpu_hours)
    if not found.stretches:
        raise UsageError(f"{study.name}: no feasible trial has been run yet; 'levelfield run' runs them")
    if as_json:
        return print_json(found.as_dict())
    for sentence in found.sentences():
        typer.echo(sentence)


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
