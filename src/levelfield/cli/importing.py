"""The command that brings trials from elsewhere into a store."""

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelfield.cli.common import Json, Out, Steps, StoreOption, app, print_json, store_name, write_new
from levelfield.cli.output import tell
from levelfield.errors import UsageError

if TYPE_CHECKING:
    from levelfield.imports import Source
    from levelfield.imports.load import Imported
    from levelfield.study import Study

_SAMPLINGS = "random, quasirandom, grid, adaptive (a tuner such as TPE chose them), or manual"


@app.command("import")
def import_(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE", help="Files, folders, or URLs of Optuna storages; for example, a CSV file per optimizer."
        ),
    ],
    study: Annotated[
        str | None, typer.Option("--study", metavar="STUDY", help="The study that the trials belong to.")
    ] = None,
    infer: Annotated[
        bool, typer.Option("--infer", help="Write a study whose search spaces are inferred from the trials.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The inferred study.  [default: SOURCE.toml, if there is one SOURCE]"
        ),
    ] = None,
    layout: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A TOML file that says what the columns or parts of SOURCE are.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="KEY=VALUE", help="One entry of such a file, e.g. step=epoch. Repeatable."),
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="NAME", help="auto, table, optuna, ray_tune, deepobs, algoperf, or taskset.")
    ] = "auto",
    sampling: Annotated[
        str | None, typer.Option(metavar="HOW", help=f"How the hyperparameters were chosen: {_SAMPLINGS}.")
    ] = None,
    select: Annotated[
        str | None, typer.Option(metavar="METRIC", help="The metric that selects the best trial.")
    ] = None,
    minimize: Annotated[list[str] | None, typer.Option(metavar="METRIC", help="Lower is better. Repeatable.")] = None,
    maximize: Annotated[list[str] | None, typer.Option(metavar="METRIC", help="Higher is better. Repeatable.")] = None,
    steps: Steps = None,
    store: StoreOption = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Bring in trials from elsewhere: CSV, Optuna, W&B, and others.

    Reads CSV, Parquet, Optuna, Ray Tune, Weights & Biases, DeepOBS, AlgoPerf, and TaskSet.
    Afterward, all commands that read trials work on the study: compare, report, plan, export, and others.
    """
    from levelfield.imports import load_layout, read_sources
    from levelfield.imports.load import check_layout, fit_trials, import_trials
    from levelfield.store import Store, without_password
    from levelfield.study import load_study

    if (study is None) != infer:
        raise UsageError("expected either --study STUDY, which the trials belong to, or --infer, which writes one")
    if study and (output or steps is not None):
        raise UsageError(f"{'-o' if output else '--steps'} is for --infer; the study given by --study stays as it is")
    if both := sorted({*(minimize or [])} & {*(maximize or [])}):
        raise UsageError(f"--minimize {both[0]} and --maximize {both[0]}: leave one of them out")
    options = [*(settings or []), *(f"directions.{metric}=minimize" for metric in minimize or [])]
    options += [f"directions.{metric}=maximize" for metric in maximize or []]
    options += [f"select={select}"] if select else []
    options += [f"sampling={sampling}"] if sampling else []
    names = [Path(os.path.abspath(without_password(source))).name for source in sources]  # of "." as well
    if infer and not output and len(names) > 1:
        raise UsageError(f"{_listed(names)}: choose a name for the study of these sources, with -o FILE.toml")
    asked = load_layout(layout, options)
    if study:
        chosen, written = load_study(study), None
        check_layout(chosen, asked)
    found = read_sources(sources, asked, format)
    if not study:
        written = output or Path(f"{names[0].lstrip('.').partition('.')[0]}.toml")
        chosen = _inferred(_asked(found), written, steps)
    fitted = fit_trials(chosen, found)  # before a store is created
    with Store.open(store_name(chosen, store, out)) as opened:
        result = import_trials(chosen, fitted, opened, _listed(names))
        location = opened.name
    if written:
        write_new(written, chosen.to_toml(written.parent))
    name = study or str(written)
    if as_json:
        return print_json(
            {
                "study": name,
                "store": location,
                "trials": dict(result.trials),
                "infeasible": dict(result.infeasible),
                "reruns": dict(result.reruns),
                "known": result.known,
                "notes": result.notes,
            }
        )
    place = f" --store {shlex.quote(location)}" if store else f" --out {shlex.quote(str(out))}" if out else ""
    _print(chosen, name, location, result, place)


def _listed(names: list[str]) -> str:
    """Return the names of sources, without the last of many."""
    from levelfield.formatting import join_words

    return join_words(names if len(names) <= 6 else [*names[:5], f"{len(names) - 5} more"])


def _asked(source: "Source") -> "Source":
    """Ask how the points were chosen, if the source does not say and someone is at the terminal."""
    from levelfield.imports import SAMPLINGS

    if source.sampling or not sys.stdin.isatty():
        return source
    typer.echo(
        f"How were the hyperparameters of these trials chosen? {_SAMPLINGS}; or press Enter if unknown.", err=True
    )
    answer = typer.prompt("sampling", default="", show_default=False, err=True).strip()
    if answer not in ("", *SAMPLINGS):
        raise UsageError(f"sampling = {answer!r}: expected {_SAMPLINGS}")
    return replace(source, sampling=answer)


def _inferred(source: "Source", path: Path, steps: int | None) -> "Study":
    from levelfield.imports.infer import infer_study

    if os.path.lexists(path):
        raise UsageError(f"{path} exists; choose another name with -o, or add to it with --study {path}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: the folder {path.parent} does not exist")
    return infer_study(source, path.stem, steps=steps)


def _print(study: "Study", name: str, location: str, result: "Imported", place: str) -> None:
    from levelfield.formatting import pluralize
    from levelfield.report.caveats import sampling_sentence
    from levelfield.study import workload_of

    for optimizer in study.optimizers:
        infeasible = f", {count:,} of them infeasible" if (count := result.infeasible[optimizer]) else ""
        again = f", and {pluralize(count, 'rerun')}" if (count := result.reruns[optimizer]) else ""
        tell(f"{optimizer}: {pluralize(result.trials[optimizer], 'trial')}{infeasible}{again}")
    if result.known:
        tell(f"{pluralize(result.known, 'trial')} had been imported before")
    for note in result.notes:
        tell(f"note: {note}")
    if study.sampling:
        tell(sampling_sentence(study))
    if study.inferred:
        better = "lower" if workload_of(study).metrics[study.select].sign > 0 else "higher"
        tell(
            f"{name} selects trials by {study.select} ({better} is better), and its search ranges were inferred from "
            f"the trials; if you know the real ranges, correct it and import again with --study {shlex.quote(name)}."
        )
    typer.echo(f"Stored in {location}. See the results with: levelfield report {shlex.quote(name)}{place}")
