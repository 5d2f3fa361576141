"""The command on several studies: summary."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from levelfield.cli.common import Json, Pool, Scale, Seed, Steps, StoreOption, Trials, app, print_json, store_name
from levelfield.errors import UsageError

if TYPE_CHECKING:
    from levelfield.comparison import Comparison


@app.command()
def summary(
    studies: Annotated[
        list[str], typer.Argument(metavar="STUDY STUDY …", help="Built-in studies or paths of .toml files.")
    ],
    trials: Trials = None,
    pool: Pool = None,
    steps: Steps = None,
    seed: Seed = None,
    scale: Scale = None,
    store: StoreOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for summary.html.  [default: levelfield-out/summary]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare optimizers across several studies without training, and write summary.html.

    Optimizers are matched by name, and each study is compared at its own K. The other options describe how the studies
    were run. Without --store, each study is read from its own folder.
    """
    from levelfield import comparison

    if len(studies) < 2:
        raise UsageError(f"{studies[0]}: expected at least two studies; 'levelfield report' shows one")
    if trials is not None and trials < 1:
        raise UsageError(f"--trials {trials}: expected an integer of at least 1")
    comparisons = [_load(name, store, pool=pool, steps=steps, seed=seed, scale=scale) for name in studies]
    summarized = comparison.summary(comparisons, k=trials)
    path = (out or Path("levelfield-out/summary")) / "summary.html"
    if as_json:
        report = summarized.write_report(path)
        return print_json(summarized.as_dict() | {"sentences": summarized.sentences(), "report": str(report)})
    from levelfield.cli.terminal import print_summary

    print_summary(summarized.standings)
    typer.echo(f"\nreport: {summarized.write_report(path)}")


def _load(
    name: str, store: str | None, *, pool: int | None, steps: int | None, seed: int | None, scale: float | None
) -> "Comparison":
    from levelfield.comparison import Comparison
    from levelfield.study import load_study

    study = load_study(name)
    if scale is not None:
        study = study.scaled(scale)
    study = study.replace(pool=pool, steps=steps, seed=seed)
    comparison = Comparison.load(study, store_name(study, store, None))
    if not any(comparison.trials.values()):
        raise UsageError(
            f"{study.name}: the store has no trials of this study with these settings; 'levelfield run' trains them"
        )
    return comparison
