"""What the commands share: the options, a study from the command line, the store, training with progress."""

import contextlib
import functools
import inspect
import json
import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from levelfield.errors import SearchExhausted, UsageError

if TYPE_CHECKING:
    from levelfield.executors import Executor as Trainer
    from levelfield.progress import RunProgress
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
    return chosen if optimizers is None else chosen.only([name.strip() for name in optimizers.split(",")])


def on_study(command: Callable[..., None]) -> Callable[..., None]:
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


def slot_count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"--slots {text}: give auto or a whole number of at least 1")
    return int(text)


def folder(study: "Study", out: Path | None) -> Path:
    return out or Path("levelfield-out") / study.name


def store_name(study: "Study", store: str | None, out: Path | None) -> str:
    return store or str(folder(study, out) / "trials.db")


def open_store(study: "Study", store: str | None, out: Path | None) -> "Store":
    from levelfield.store import Store

    return Store.open(store_name(study, store, out), create=False)


@contextlib.contextmanager
def training(study: "Study", slots: str, executor: str, store: str) -> "Iterator[tuple[Store, Trainer, RunProgress]]":
    """A store, an executor and progress to train a study with; an interruption says how to go on."""
    from levelfield.executors import get_executor
    from levelfield.progress import RunProgress
    from levelfield.store import Store, without_password
    from levelfield.taxonomy.verify import check_registered

    chosen = get_executor(executor, slot_count(slots))
    chosen.check(study)
    check_registered(study)
    with Store.open(store) as opened:
        progress = RunProgress(study)
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: clusters end jobs by it
        try:
            with progress:
                yield opened, chosen, progress
        except KeyboardInterrupt:
            typer.echo(
                f"levelfield: interrupted; {progress.finished} trials finished in this run are saved in {opened.name}. "
                f"To go on: {shlex.join(['levelfield', *map(without_password, sys.argv[1:])])}",
                err=True,
            )
            raise typer.Exit(130) from None
        finally:
            signal.signal(signal.SIGTERM, before)


def run_study(study: "Study", slots: str, executor: str, store: str) -> SearchExhausted | None:
    """Run the study; returns, rather than raises, that a pool could not be filled, so that results follow."""
    from levelfield.runner import other_code, run
    from levelfield.words import listed

    with training(study, slots, executor, store) as (opened, chosen, progress):
        if others := other_code(study, opened):
            progress.say(
                f"{listed(others)}: stored trials were trained with other code than {study.code} holds now; where they "
                f"would come out otherwise, raise the version of the workload or rule, or give another --store"
            )
        try:
            run(study, opened, chosen, progress)
        except SearchExhausted as failure:
            return failure
    return None


def print_json(content: Any) -> None:
    """JSON has no NaN: what is not there is null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [clean(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    typer.echo(json.dumps(clean(content), indent=2, ensure_ascii=False))
