"""Commands for stores that several machines share: work, store check."""

from typing import TYPE_CHECKING, Annotated

import typer

from levelfield.cli.common import CheckpointMinutes, Json, Out, Slots, Stale, app, on_study, print_json, training

if TYPE_CHECKING:
    from levelfield.study import Study

store_commands = typer.Typer(help="Check a store of trials.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(store_commands, name="store")


@app.command()
@on_study
def work(
    study: "Study",
    store: Annotated[
        str,
        typer.Option("--store", metavar="URL", help="The store that the workers share: a file or a postgresql:// URL."),
    ],
    slots: Slots = "auto",
    out: Out = None,
    checkpoint_minutes: CheckpointMinutes = 5.0,
    stale: Stale = None,
) -> None:
    """Train a study together with other workers on the same store.

    Start as many workers as you like, on as many machines as you like; each trial is trained by one of them. A worker
    ends when the study has all the trials that it needs. One that is stopped returns its trials to the others.
    """
    from levelfield.run import fill

    # Thousands of workers must not all read the whole store.
    with training(study, store, "local", slots, stale, out, checkpoint_minutes, reads_best=False) as options:
        shortage = fill(study, store, **options)
    if shortage:
        raise shortage


@store_commands.command("check")
def check(
    store: Annotated[str, typer.Argument(metavar="STORE", help="A file or a postgresql:// URL.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Remove damaged trials, so that the next run trains them again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a store for damage."""
    from levelfield.errors import StoreError
    from levelfield.formatting import pluralize
    from levelfield.store import Store

    with Store.open(store, create=repair) as opened:
        damage, trials = opened.check(), opened.count()
        removed = opened.remove(damage) if repair else 0
    if as_json:
        print_json({"trials": trials, "damage": [each.what for each in damage], "removed": removed})
    else:
        for each in damage:
            typer.echo(f"damaged: {each.what}")
        state = f"{pluralize(len(damage), 'problem')}" if damage else "no damage"
        typer.echo(f"{opened.name}: {pluralize(trials, 'trial')}, {state}")
        if removed:
            typer.echo(f"removed {pluralize(removed, 'damaged trial')}; the next run trains them again")
    if len(damage) > removed:
        remedy = "" if repair else "; --repair removes damaged trials, so that the next run trains them again"
        raise StoreError(f"{opened.name}: the store is damaged{remedy}")
