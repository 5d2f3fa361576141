"""The command on several studies: summary."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelfield.cli.common import (
    Json,
    Overrides,
    Pool,
    Scale,
    Seed,
    Steps,
    Trials,
    app,
    loaded,
    print_json,
    store_name,
)
from levelfield.errors import UsageError

if TYPE_CHECKING:
    from levelfield.comparison import Comparison


@app.command()
def summary(
    studies: Annotated[list[str], typer.Argument(metavar="STUDY", help="Built-in studies or paths to .toml files.")],
    trials: Trials = None,
    pool: Pool = None,
    steps: Steps = None,
    seed: Seed = None,
    scale: Scale = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            metavar="URL",
            help="One store for all studies: a file or a postgresql:// URL.  [default: each study's own]",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for summary.html.  [default: levelfield-out/summary]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare optimizers across studies and write summary.html.

    Optimizers are matched by name, and each study is compared at its own K. Give the options that the studies were run
    with; the page's name says so.
    """
    from levelfield import comparison

    if len(studies) < 2:
        raise UsageError(f"{studies[0]}: expected at least two studies; 'levelfield report' shows one")
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials}: expected an integer of at least 1")
    comparisons = [_load(name, store, scale, pool=pool, steps=steps, seed=seed, trials=trials) for name in studies]
    summarized = comparison.summary(comparisons, k=trials)
    options = {"trials": trials, "pool": pool, "steps": steps, "seed": seed}
    overrides = Overrides({name: str(value) for name, value in options.items() if value is not None}, scale)
    path = overrides.page(out or Path("levelfield-out/summary"), "summary", shared_folder=True)
    if as_json:
        report = summarized.write_report(path)
        return print_json(summarized.as_dict() | {"sentences": summarized.sentences(), "report": str(report)})
    from levelfield.cli.terminal import print_summary

    print_summary(summarized.standings)
    typer.echo(f"\nreport: {summarized.write_report(path)}")


def _load(
    name: str, store: str | None, scale: float | None, *, trials: int | None, **changes: int | None
) -> "Comparison":
    """Read a study as it was run; ``trials`` only changes its K."""
    from levelfield.comparison import Comparison
    from levelfield.study import load_study

    full = load_study(name)
    if scale is not None:
        full = full.scaled(scale)
    study = full.replace(**changes)
    results = loaded(study, store_name(study, store, None)).results
    settings = {"trials": trials, **changes}
    overrides = {key: str(value) for key, value in settings.items() if value not in (None, getattr(full, key))}
    return Comparison(replace(results, overrides=overrides))
