"""Commands on what comes with levelfield: the taxonomy, data sets, studies, workloads."""

from pathlib import Path
from typing import Annotated, Any

import typer

from levelfield.cli.common import Json, app, data, print_json
from levelfield.errors import DataError


@app.command()
def taxonomy(as_json: Json = False) -> None:
    """Show the inclusions between update rules and verify each one."""
    from rich.console import Console
    from rich.progress import track

    from levelfield.taxonomy.inclusions import known_inclusions
    from levelfield.taxonomy.verify import verify_all

    console = Console(stderr=True)
    count = len(known_inclusions())
    shown = track(verify_all(), "Verifying", count, console=console, transient=True, disable=not console.is_terminal)
    verifications = list(shown)
    if as_json:
        print_json([verification.as_dict() for verification in verifications])
    else:
        from levelfield.cli.terminal import print_taxonomy

        print_taxonomy(verifications)
    if not all(verification.holds for verification in verifications):
        raise typer.Exit(1)


@data.command("get")
def data_get(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set from 'levelfield data list'.")],
    source: Annotated[
        Path | None, typer.Option("--from", metavar="DIR", help="A folder with the publisher's files.")
    ] = None,
) -> None:
    """Download a data set, or import it from a folder, into the cache."""
    from levelfield import datasets
    from levelfield.datasets.sources import NotDownloaded

    try:
        folder = datasets.get(name, source, report=lambda line: typer.echo(line, err=True))
    except NotDownloaded as error:
        raise DataError(f"{error} (--from DIR)") from None
    typer.echo(folder)


@data.command("list")
def data_list(as_json: Json = False) -> None:
    """List the data sets and whether they are on this machine."""
    from levelfield import datasets

    rows = []
    for name in datasets.names():
        try:
            here, problem = datasets.about(name) is not None, None
        except DataError as error:
            here, problem = False, str(error)
        rows.append({"dataset": name, "here": here, "problem": problem, "summary": datasets.summary(name)})
    if as_json:
        return print_json(rows)
    for row in rows:
        typer.echo(f"{row['dataset']:<14} {'here' if row['here'] else '–':<5} {row['problem'] or row['summary']}")


@app.command()
def studies(as_json: Json = False) -> None:
    """List the built-in studies and their cost."""
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
                "trial_steps": study.cost()["trial_steps"],
                "description": study.description,
            }
        )
    if as_json:
        return print_json(rows)
    for row in rows:
        typer.echo(f"{row['study']}: {row['description']}")
        typer.echo(
            f"    {len(row['optimizers'])} optimizers, K = {row['trials']}, N = {row['pool']}, "
            f"{row['steps']:,} steps: {row['trial_steps']:,} trial-steps"
        )


@app.command()
def workloads(as_json: Json = False) -> None:
    """List the workloads: data set, model, and selection metric."""
    from levelfield.workloads import declared_by, get_workload, workload_names

    # Those of packages are not imported: any of them may take long, or fail.
    packaged = {name: package for name in workload_names() if (package := declared_by(name))}
    known = [get_workload(name) for name in workload_names() if name not in packaged]
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "workload": workload.name,
                "summary": workload.summary,
                "batch_size": workload.batch_size,
                "select": workload.select,
                "metrics": dict(workload.metrics),
                "dataset": getattr(workload, "dataset", None),
            }
            for workload in known
        ]
        return print_json(rows + [{"workload": name, "package": package} for name, package in packaged.items()])
    for workload in known:
        dataset = getattr(workload, "dataset", None)
        typer.echo(f"{workload.name}: {workload.summary}")
        size = f"batch size {workload.batch_size}, " if workload.batch_size else ""
        typer.echo(f"    {size}selected by {workload.select}{f', needs the data set {dataset}' if dataset else ''}")
    for name, package in packaged.items():
        typer.echo(f"{name}: a workload of {package}")
