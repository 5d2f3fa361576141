"""What the commands share: options, the study from the command line, its store, training with progress."""

import contextlib
import functools
import hashlib
import inspect
import json
import math
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from levelfield.cli.output import tell
from levelfield.errors import UsageError

if TYPE_CHECKING:
    from levelfield.analysis.results import Results
    from levelfield.cli.progress import RunProgress
    from levelfield.comparison import Comparison
    from levelfield.store import Store
    from levelfield.study import Study

DEFAULT_STUDY = "fashion_mini"
_LONGEST_NAME = 80  # characters of a report's file name

app = typer.Typer(
    name="levelfield",
    help="Compare deep-learning optimizers on a level playing field.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Download, import, and list data sets.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(data, name="data")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"levelfield {version('levelfield')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None: ...


def _integer(text: str) -> int:
    """Parse an integer, such as 1000 or 1e3."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value.is_integer():
        raise typer.BadParameter(f"expected an integer, got {text!r}")
    return int(text) if text.lstrip("+-").isdigit() else int(value)


StudyArgument = Annotated[str, typer.Argument(metavar="STUDY", help="A built-in study or the path to a .toml file.")]
Trials = Annotated[
    int | None,
    typer.Option("--trials", metavar="K", parser=_integer, help="Number of trials spent on tuning each optimizer."),
]
Pool = Annotated[
    int | None,
    typer.Option("--pool", metavar="N", parser=_integer, help="Number of feasible trials to run for each optimizer."),
]
Steps = Annotated[int | None, typer.Option("--steps", metavar="S", parser=_integer, help="Training steps per trial.")]
Optimizers = Annotated[str | None, typer.Option(metavar="A,B", help="Use only these optimizers of the study.")]
Precision = Annotated[
    Literal["float32", "tf32", "bfloat16"] | None, typer.Option(help="Precision of matrix products in training.")
]
Seed = Annotated[int | None, typer.Option(metavar="INTEGER", parser=_integer, help="Random seed of the study.")]
Scale = Annotated[float | None, typer.Option(metavar="F", help="Dry run: multiply steps, trials, and pool by F.")]
WithoutReplacement = Annotated[
    bool,
    typer.Option(
        "--without-replacement", help="Draw the best of K from the pool without replacement: the unbiased estimate."
    ),
]
Slots = Annotated[str, typer.Option(metavar="auto|n", help="Number of trials to train side by side.")]
Executor = Annotated[str, typer.Option(metavar="NAME", help="The executor that trains the trials: local or ray.")]
RayAddress = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="The cluster of --executor ray: auto, host:port, or ray://host:port.  [default: one on this machine]",
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Trial store: a file or a postgresql:// URL.  [default: OUT/trials.db]",
    ),
]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Folder for results.  [default: levelfield-out/STUDY]")]
Stale = Annotated[
    Literal["retrain", "keep"] | None,
    typer.Option(help="If the study's code has changed: train the old trials again, or keep them."),
]
CheckpointMinutes = Annotated[
    float,
    typer.Option(
        metavar="M", min=0, help="Save trials in flight every M minutes, to continue them after a crash; 0: never."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print results as JSON.")]


@dataclass(frozen=True)
class Overrides:
    """What the command line changes in a study, as a title shows it."""

    settings: Mapping[str, str]  # setting → value, where it differs from the study's own
    scale: float | None = None  # part of the study's name, so no part of a title

    def page(self, out: Path, name: str, *, shared_folder: bool) -> Path:
        """Return where a page of a study goes: next to the full study's page if anything was changed.

        A dry run has a folder of its own unless the user chose one.
        """
        parts = [f"scale{self.scale:g}"] if shared_folder and self.scale not in (None, 1) else []
        for setting, value in self.settings.items():
            parts += [f"{setting}{value}"] if value.isdigit() else [setting, *value.split(", ")]
        safe = [re.sub(r"[^A-Za-z0-9.+_]", "_", part) for part in parts]
        stem = "-".join([name, *safe])[:_LONGEST_NAME]
        if stem != "-".join([name, *parts]) or safe != parts:  # other settings could have the same name
            stem += f"-{hashlib.sha256(repr(parts).encode()).hexdigest()[:6]}"
        return out / f"{stem}.html"


def _study(
    study: StudyArgument = DEFAULT_STUDY,
    trials: Trials = None,
    pool: Pool = None,
    steps: Steps = None,
    optimizers: Optimizers = None,
    seed: Seed = None,
    scale: Scale = None,
    precision: Precision = None,
    without_replacement: WithoutReplacement = False,
) -> "tuple[Study, Overrides]":
    from levelfield.study import load_study

    full = load_study(study)
    if scale is not None:
        full = full.scaled(scale)
    replacement = False if without_replacement else None
    options: dict[str, Any] = {"trials": trials, "pool": pool, "steps": steps, "seed": seed}
    options |= {"precision": precision, "replacement": replacement}
    chosen = full.replace(**options)
    changed = {name: value for name, value in options.items() if value not in (None, getattr(full, name))}
    settings = {name: str(value).lower() for name, value in changed.items()}
    if optimizers is not None:
        chosen = chosen.only([name.strip() for name in optimizers.split(",")])
        if list(chosen.optimizers) != list(full.optimizers):
            settings["optimizers"] = ", ".join(chosen.optimizers)
    return chosen, Overrides(settings, scale)


def on_study(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the STUDY argument and the options that override it, and pass it the study.

    A command with a parameter ``overrides`` also gets what the options change.
    """
    shared, own = inspect.signature(_study), inspect.signature(command)

    @functools.wraps(command)
    def call(**arguments: Any) -> None:
        study, overrides = _study(**{name: arguments.pop(name) for name in shared.parameters})
        if "overrides" in own.parameters:
            arguments["overrides"] = overrides
        command(study, **arguments)

    others = [parameter for name, parameter in own.parameters.items() if name not in ("study", "overrides")]
    parameters = [*shared.parameters.values(), *others]
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return call


def slot_count(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise UsageError(f"--slots {text}: expected auto or an integer of at least 1")
    return int(text)


def folder(study: "Study", out: Path | None) -> Path:
    from levelfield.run import default_folder

    return out or default_folder(study)


def store_name(study: "Study", store: str | None, out: Path | None) -> str:
    return store or str(folder(study, out) / "trials.db")


def open_store(study: "Study", store: str | None, out: Path | None) -> "Store":
    """Open a store to read from."""
    from levelfield.store import Store

    return Store.open(store_name(study, store, out), create=False)


@contextlib.contextmanager
def showing_progress(study: "Study", store: str, *, reads_best: bool = True) -> "Iterator[RunProgress]":
    """Show the progress of a run; when it is interrupted, say how to resume it."""
    from levelfield import interruption
    from levelfield.cli.progress import RunProgress
    from levelfield.store import without_password
    from levelfield.study import workload_of
    from levelfield.workload import Workload

    progress = RunProgress(study, without_password(store), reads_best=reads_best)

    def interrupted() -> None:
        progress.note(f"levelfield: Interrupted; {progress.saved} Resume with: {_this_command()}")

    def announce() -> None:
        # Other training code runs in worker processes, which end without waiting for anything.
        at_evaluation = isinstance(workload_of(study), Workload)
        when = "at the next evaluation" if at_evaluation else "now: unfinished trials will be trained again"
        progress.note(f"levelfield: stopping {when}; interrupt again to stop at once")

    try:
        with interruption.deferred(announce, abort=interrupted), progress:
            yield progress
    except KeyboardInterrupt:
        interrupted()
        sys.exit(130)  # unlike typer.Exit, it says that the user has been told


def _this_command() -> str:
    """Return the command that is running, to be pasted into a shell. Passwords are left out."""
    from levelfield.store import without_password

    arguments = [without_password(argument) for argument in sys.argv[1:]]
    hint = "" if arguments == sys.argv[1:] else " (with the password in PGPASSWORD or PGPASSFILE)"
    return shlex.join(["levelfield", *arguments]) + hint


@contextlib.contextmanager
def training(
    study: "Study",
    location: str,
    executor: str,
    slots: str,
    stale: "Stale",
    out: Path | None,
    checkpoint_minutes: float = 5.0,
    ray_address: str | None = None,
    *,
    reads_best: bool = True,
) -> Iterator[dict[str, Any]]:
    """Show the progress of a run; yield the options for those functions of ``levelfield.run`` that train."""
    from levelfield import run
    from levelfield.executors import get_executor

    count = slot_count(slots)
    with showing_progress(study, location, reads_best=reads_best) as progress:
        folder = run.checkpoint_folder(study, location, checkpoint_minutes, out)
        chosen = get_executor(executor, count, folder, ray_address=ray_address) if ray_address else executor
        yield {"executor": chosen, "slots": count, "listener": progress, "stale": stale, "checkpoints": folder}


def loaded(study: "Study", location: str) -> "Comparison":
    """Read a study's stored trials; raise if there are none."""
    from levelfield.comparison import Comparison

    comparison = Comparison.load(study, location)
    if not any(comparison.trials.values()):
        if any(comparison.failures.values()):
            raise UsageError(
                f"{study.name}: all trials so far have failed; 'levelfield status STUDY --failures' shows why"
            )
        remedy = (
            "'levelfield import SOURCE --study STUDY' adds them" if study.sampling else "'levelfield run' trains them"
        )
        raise UsageError(f"{study.name}: the store has no trials of this study with these settings; {remedy}")
    return comparison


def print_caveats(results: "Results", *, apart: bool = False) -> None:
    """Print what a reader must know first; ``apart``: to stderr, because stdout is for something else."""
    from levelfield.report.caveats import caveats

    for sentence in caveats(results):
        tell(sentence, err=apart)


def print_json(content: Any) -> None:
    """Print JSON, which has no NaN: a missing value is null."""

    def clean(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [clean(item) for item in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    typer.echo(json.dumps(clean(content), indent=2, ensure_ascii=False))


def write_new(path: Path, text: str) -> None:
    """Write a study file that must not exist yet."""
    from levelfield.files import replacing

    try:
        path.open("x").close()  # takes the name, so that no other process can
        try:
            with replacing(path) as temporary:
                temporary.write_text(text, "utf-8")
        except BaseException:
            path.unlink()
            raise
    except FileExistsError:
        raise UsageError(f"{path} exists; choose another name with -o, because a study is never overwritten") from None
    except OSError as error:
        raise UsageError(f"{path}: cannot write the file ({error.strerror})") from None
