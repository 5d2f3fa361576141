"""Studies: one workload, several optimizers, a budget. A trial's identity follows from the study's content."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from levelfield.command import Command
from levelfield.errors import SpaceError, StudyError, UnknownName, UsageError, suggestion
from levelfield.hyperparameters import Hyperparameter
from levelfield.rules import rule_file
from levelfield.study_file import built_in_studies, read_study, to_toml, without_schedule
from levelfield.study_optimizer import Optimizer, known_domains, parse_optimizer
from levelfield.training_code import Trainable
from levelfield.trial import Direction, Target
from levelfield.user_code import code_digest, run_code
from levelfield.workload import BaseWorkload, Precision
from levelfield.workloads import get_workload, workload_file, workload_names, workloads_of

__all__ = [
    "Refined",
    "Study",
    "built_in_studies",
    "digest",
    "load_study",
    "workload_of",
]


class Refined(BaseModel):
    """A range that was changed because of what the trials of an earlier study showed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str  # the earlier one
    optimizer: str
    axis: str
    before: Any  # the dimension, as a study file writes it
    after: Any
    verdict: str
    trials: Annotated[int, Field(ge=0, strict=True)]  # that the verdict is based on
    outside: Any = None  # a wider range in which trials were run as well, if any were
    outside_trials: Annotated[int, Field(ge=0, strict=True)] = 0
    evidence: str = ""  # what the trials showed, in words


def _whole(value: Any) -> Any:
    """Accept 1e3 where an integer is expected."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Sampling = Literal["random", "quasirandom", "grid", "adaptive", "manual", "unknown"]
CHOSEN = ("adaptive", "manual")  # points that depend on results: no others could have been drawn

POOL_FACTOR = 5  # N / K unless the study gives N
_LARGEST_GRID = 10_000_000  # points, whose order is held in memory

Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, lt=2**31, strict=True)]  # steps are counted in int32


class Study(BaseModel):
    """One workload, several optimizers, a step budget, K, N, a target and a seed.

    A study that gives ``metrics`` declares its workload itself: its trials are trained by ``command``, or imported.
    Keyword arguments have the shape of a study file. Invalid content raises a one-line StudyError.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = "study"
    description: str = ""
    code: str | None = None  # a Python file that registers custom workloads, rules and inclusions
    workload: str  # default: the only one that the code registers, or the study's name if it declares its own
    metrics: dict[str, Direction] | None = None  # of a workload that the study declares
    command: Annotated[tuple[str, ...], Field(min_length=1)] | None = None  # trains a trial of that workload
    folder: str | None = None  # where the command runs; default: the study file's folder
    trial_timeout: Annotated[float, Field(gt=0)] | None = None  # seconds; of trials that custom code trains
    retries: Annotated[int, Field(ge=0, strict=True)] = 1  # of a failed trial that custom code trains
    steps: Count
    batch_size: Count | None = None  # default: the workload's, like the next two
    eval_interval: Count
    select: str
    trials: Count
    pool: Count = 1  # default: 5 × trials
    replacement: bool = True  # how K trials are drawn from the pool; True as in the paper, False is unbiased
    target: Target | None = None
    seed: Annotated[int, BeforeValidator(_whole), Field(ge=0, strict=True)] = 0
    precision: Precision = "tf32"  # of products in training; on a CPU, tf32 is float32
    search: Literal["quasirandom", "grid", "imported"] = "quasirandom"
    sampling: Sampling | None = None  # how the points of imported trials were chosen
    inferred: bool = False  # whether the search spaces are what the imported trials span
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # relative to another study; below 1 it is a dry run
    refined: tuple[Refined, ...] = ()  # how its search spaces were refined, first to last
    schedule: dict[str, Any] = {"kind": "constant"}
    optimizers: dict[str, Any]

    def __init__(self, /, **content: Any) -> None:
        try:
            super().__init__(**content)
        except ValidationError as error:
            raise StudyError(_one_line(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, content: dict[str, Any]) -> dict[str, Any]:
        code = content.get("code")
        if not isinstance(code, str | None):
            return content  # the field's own validator refuses it
        if code is not None:
            content = content | {"code": run_code(code)}
        if "workload" not in content:
            content = content | _default_workload(content)
        if not isinstance(content.get("workload"), str):
            return content
        workload = _workload(content)
        steps = content.get("steps")
        defaults = {
            "batch_size": workload.batch_size,
            "eval_interval": workload.eval_interval or (max(1, steps // 20) if isinstance(steps, int) else 1),
            "select": workload.select,
        }
        return {key: value for key, value in defaults.items() if value is not None} | content

    @model_validator(mode="after")
    def _check(self) -> Study:
        workload = workload_of(self)
        if not self.name.isprintable() or "/" in self.name or not self.name.strip(". "):
            raise StudyError(f"name = {self.name!r}: expected a valid folder name, because results are stored under it")
        for metric in [self.select, *([self.target.metric] if self.target else [])]:
            if metric not in workload.metrics:
                raise UnknownName.of(f"metric of {workload.name}", metric, workload.metrics)
        if not self.optimizers:
            raise StudyError("optimizers is empty: expected at least one [optimizers.NAME] table")
        for name, table in self.optimizers.items():
            if not name or name != name.strip() or not name.isprintable() or "," in name:
                raise StudyError(
                    f"optimizers.{name!r}: expected printable characters without commas or surrounding spaces"
                )
            try:
                self.optimizers[name] = parse_optimizer(name, table, self.schedule, workload)
                self._check_grid(self.optimizers[name])
            except (SpaceError, UnknownName, StudyError) as error:
                raise type(error)(f"optimizers.{name}: {error}") from None
        if isinstance(workload, Trainable) and isinstance(workload.train, Command):
            workload.train.check({name: self.optimizers[name].space.names for name in self.optimizers}, self.batch_size)
        if self.search == "imported" and self.sampling is None:
            raise StudyError('search = "imported" needs sampling, such as sampling = "random": how points were chosen')
        if self.search == "quasirandom" and self.sampling is not None:
            raise StudyError('sampling is for trials from elsewhere; write search = "imported"')
        if "pool" not in self.model_fields_set:
            self.__dict__["pool"] = self._default_pool()
        if self.trials > self.pool:
            raise StudyError(
                f"trials = {self.trials} exceeds pool = {self.pool}: the best of K trials is estimated from a pool of "
                f"at least K; raise pool or lower trials"
            )
        return self

    def _default_pool(self) -> int:
        """Return 5 K, which bounds the median best of K from both sides, or the size of the smallest grid."""
        sizes = map(self.points, self.optimizers) if self.search == "grid" else ()
        return int(min([POOL_FACTOR * self.trials, *sizes]))

    def _check_grid(self, optimizer: Optimizer) -> None:
        if self.search != "grid":
            return
        for axis in optimizer.space.free:
            if math.isinf(axis.dimension.size):
                raise SpaceError(f"{axis.key} is a range; a grid needs a choice, an integer range or a fixed value")
        if self.pool > (size := optimizer.space.size):
            raise StudyError(f"pool = {self.pool} exceeds the grid's {size} points; lower pool")
        if size > _LARGEST_GRID:
            raise StudyError(
                f'a grid of {size:,} points: expected at most {_LARGEST_GRID:,}; use search = "quasirandom"'
            )

    def optimizer(self, name: str) -> Optimizer:
        if name not in self.optimizers:
            raise UnknownName.of("optimizer of this study", name, self.optimizers)
        optimizer: Optimizer = self.optimizers[name]
        return optimizer

    def code_version(self, optimizer: str) -> str:
        """Return a digest of the custom code that an optimizer's trials depend on; "" if they depend on none.

        Trials of a built-in rule on a built-in workload do not depend on the study's code.
        """
        custom = isinstance(workload_of(self), Trainable) or workload_file(self.workload)
        depends = custom or rule_file(self.optimizer(optimizer).rule.name)
        return code_digest(*self.code_files) if depends else ""

    @property
    def is_tested(self) -> bool:
        """Whether its trials can be tested: those that a tuner or a person chose are not independent."""
        return self.sampling not in (*CHOSEN, "unknown")

    @property
    def is_chosen(self) -> bool:
        """Whether a tuner that learns or a person chose its points: a part of them is not what fewer trials give."""
        return self.sampling in CHOSEN

    @property
    def code_files(self) -> list[str]:
        """The files of custom code: ``code``, the one that defines a trainable workload, or what a command runs."""
        code, workload = [self.code] if self.code else [], workload_of(self)
        if not isinstance(workload, Trainable):
            return code
        if isinstance(workload.train, Command):
            return list(dict.fromkeys(code + workload.train.files()))
        return code or [workload.file]

    @property
    def code_name(self) -> str:
        """The names of the files of custom code."""
        return ", ".join(Path(file).name for file in self.code_files)

    def points(self, optimizer: str) -> float:
        """Return how many points an optimizer's search has: a grid's size, infinity, or 0 if it was elsewhere."""
        if self.search == "imported":
            return 0
        return self.optimizer(optimizer).space.size if self.search == "grid" else math.inf

    def domain(self, optimizer: str, hyperparameter: str) -> Hyperparameter:
        """Return which values a hyperparameter of an optimizer may take."""
        return self.domains(optimizer)[hyperparameter]

    def domains(self, optimizer: str) -> dict[str, Hyperparameter]:
        """Return the hyperparameters that an optimizer could have: its rule's, schedule's, workload's and options."""
        chosen = self.optimizer(optimizer)
        return known_domains(chosen.rule, chosen.schedule, workload_of(self))

    def replace(self, **changes: Any) -> Study:
        """Return the study with some fields changed and checked again; ``None`` leaves a field unchanged.

        A new schedule applies to every optimizer. A pool that was never given stays 5 × ``trials``.
        """
        content = self.spec()
        if "pool" not in self.model_fields_set:
            del content["pool"]
        if changes.get("schedule") is not None:
            content["optimizers"] = {name: without_schedule(table) for name, table in content["optimizers"].items()}
        return Study(**content | {key: value for key, value in changes.items() if value is not None})

    def scaled(self, factor: float) -> Study:
        """Return a dry run of the study: fewer steps, trials and a smaller pool by the same factor.

        Schedules shrink with the steps, because their lengths are fractions of them.
        """
        if not 0 < factor <= 1:
            raise StudyError(f"scale = {factor:g}: expected a number above 0 and at most 1")

        def shrunk(count: int) -> int:
            return max(1, round(count * factor))

        if factor == 1:
            return self
        counts = {name: shrunk(getattr(self, name)) for name in ("steps", "trials", "pool")}
        # Evaluations do not get cheaper, so they stay as far apart, except for the few that a curve needs.
        interval = min(self.eval_interval, -(-counts["steps"] // 4))
        name = f"{self.name}_{factor:g}x"
        return self.replace(name=name, scale=self.scale * factor, eval_interval=interval, **counts)

    def only(self, names: Iterable[str]) -> Study:
        """Return the study with some of its optimizers."""
        if isinstance(names, str):
            raise UsageError(f"only({names!r}): expected a list of names, such as [{names!r}]")
        return self.replace(optimizers={name: self.optimizer(name).spec() for name in names})

    def spec(self) -> dict[str, Any]:
        """Return the study as a file holds it, with every default written out."""
        content = self.model_dump(exclude={"optimizers", "schedule", "refined"}, exclude_none=True)
        content = {key: _plain(value) for key, value in content.items() if not _is_unset(key, value)}
        if self.refined:
            content["refined"] = [change.model_dump(exclude_defaults=True) for change in self.refined]
        return content | {"optimizers": {name: optimizer.spec() for name, optimizer in self.optimizers.items()}}

    def to_toml(self, folder: Path | None = None) -> str:
        """Return the study as a file for a folder, by default the folder of its code."""
        content = self.spec()
        for key in ("code", "folder"):
            if path := content.get(key):
                default = Path(path).parent if key == "code" else path
                content[key] = os.path.relpath(path, Path(folder or default).resolve())
        return to_toml(content)

    def definition(self, name: str) -> dict[str, Any]:
        """Return everything that defines an optimizer's trials. K, N, the target and display names do not."""
        optimizer = self.optimizer(name)
        content = {
            "workload": self.workload,
            "version": workload_of(self).version,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "eval_interval": self.eval_interval,
            "search": "shuffled grid" if self.search == "grid" else self.search,  # grids once came in another order
            "seed": str(self.seed),
            "rule": optimizer.rule.name,
            "schedule": optimizer.schedule,
            "space": optimizer.space.spec(),
        }
        content |= {"rule_version": optimizer.rule.version} if optimizer.rule.version != 1 else {}
        content |= {} if _is_unset("precision", self.precision) else {"precision": self.precision}
        return content | ({"command": list(self.command)} if self.command else {})

    def identity(self, name: str) -> str:
        """Return a digest of the definition. It is the same in all studies that define the same trials."""
        return digest(self.definition(name))

    def cost(self) -> dict[str, Any]:
        """Return what the study costs if every trial is feasible, and what it searches."""
        trials = len(self.optimizers) * self.pool
        free = {name: [axis.key for axis in optimizer.space.free] for name, optimizer in self.optimizers.items()}
        return {"trials": trials, "trial_steps": trials * self.steps, "free": free}


def workload_of(study: Study) -> BaseWorkload:
    """Return a study's workload: the one that it declares, or else the one of its name."""
    return _workload(study.__dict__)


def _workload(content: Mapping[str, Any]) -> BaseWorkload:
    """Return the workload of a study's content, which may not have been validated."""
    name, metrics, command = content["workload"], content.get("metrics"), content.get("command")
    if metrics is None:
        if command is not None:
            raise StudyError('command needs metrics: expected a table such as metrics = { train_loss = "minimize" }')
        return get_workload(name)
    if name in workload_names():
        raise StudyError(
            f"metrics: workload {name!r} has its own; choose another name for the workload, or leave it out"
        )
    if not isinstance(metrics, Mapping) or len(metrics) == 0:
        raise StudyError(f'metrics = {metrics!r}: expected a table such as {{ valid_error = "minimize" }}')
    if "select" not in content and len(metrics) > 1:
        raise StudyError(f"select is missing: expected one of the metrics: {', '.join(metrics)}")
    about = {"name": name, "metrics": metrics, "select": content.get("select", next(iter(metrics)))}
    about |= {"summary": str(content.get("description", ""))}
    if command is None:
        return BaseWorkload(**about)
    if not isinstance(command, list | tuple) or not command or not all(isinstance(part, str) for part in command):
        raise StudyError(f"command = {command!r}: expected a list of strings, a program and its arguments")
    return Trainable(**about, train=Command(tuple(command), str(content.get("folder") or Path.cwd())))


def _default_workload(content: Mapping[str, Any]) -> dict[str, str]:
    """Return the ``workload`` of a study that does not give one; nothing if it cannot be derived from its content."""
    if "metrics" in content or "command" in content:
        return {"workload": content.get("name", "study")}
    if not content.get("code"):
        return {}
    registered = workloads_of(content["code"])
    if len(registered) > 1:
        raise StudyError(f"workload is missing: the code registers several: {', '.join(registered)}")
    if not registered:
        raise StudyError(
            "workload is missing: the code registers none; give the function that trains a trial the decorator "
            "@lf.trainable(metrics=…, select=…), or name a workload"
        )
    return {"workload": registered[0]}


def _plain(value: Any) -> Any:
    """Return a value as TOML has it."""
    return list(value) if isinstance(value, tuple) else value


def _is_unset(key: str, value: Any) -> bool:
    """Return whether a field that few studies need has its default."""
    return (key, value) in (("inferred", False), ("retries", 1), ("precision", "tf32"))


def digest(content: Any) -> str:
    """Return a stable digest of plain content; integers and floats of the same value agree."""
    canonical = json.dumps(_floats(content), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:24]


def _floats(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _floats(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_floats(value) for value in content]
    if isinstance(content, int) and not isinstance(content, bool):
        return float(content)
    return content


def load_study(source: str | Path) -> Study:
    """Load a study from a TOML file, or a built-in one by name."""
    if not isinstance(source, str | Path):
        raise UsageError(f"load_study({source!r}): expected the path to a .toml file or the name of a built-in study")
    content = read_study(source)
    try:
        return Study(**content)
    except (StudyError, SpaceError, UnknownName) as error:
        raise StudyError(f"{source}: {error}") from None


def expect_study(value: object) -> Study:
    """Return the value if it is a study; raise otherwise."""
    if isinstance(value, Study):
        return value
    hint = f"; lf.load_study({value!r}) loads one" if isinstance(value, str) else ""
    raise UsageError(f"{value!r}: expected an lf.Study{hint}")


def _one_line(error: ValidationError) -> str:
    """Return pydantic's first complaint as a sentence: the field, what it got, what to do."""
    unknown = ("extra_forbidden", "unexpected_keyword_argument")
    # A misspelled field is also missing: report the spelling first.
    first, *rest = sorted(error.errors(include_url=False), key=lambda complaint: complaint["type"] not in unknown)
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] in unknown:
        *parents, last = first["loc"]
        fields = {"target": ("metric", "value"), "refined": Refined.model_fields}
        parent = str(parents[0]) if parents else "study"
        return f"unknown field {path!r}{suggestion(str(last), fields.get(parent, Study.model_fields))}"
    if first["type"] == "missing":
        return f"{path} is missing: a study needs it"
    # Fields that a valid workload would have filled in are missing only because of the first complaint.
    others = sum(complaint["type"] != "missing" for complaint in rest)
    more = f" (and {others} more)" if others else ""
    return f"{path} = {first['input']!r}: {_expectation(first)}{more}"


def _expectation(complaint: Mapping[str, Any]) -> str:
    """Return what pydantic would have accepted, in the words of levelfield's other errors."""
    limits = complaint.get("ctx", {})
    expected = {
        "int_type": "an integer",
        "int_from_float": "an integer",
        "finite_number": "a finite number",
        "float_type": "a number",
        "float_parsing": "a number",
        "tuple_type": "a list of tables",
        "string_type": "a string",
        "dict_type": "a table",
        "dataclass_type": "a table",
        "model_type": "a table",
        "greater_than_equal": f"an integer of at least {limits.get('ge')}",
        "greater_than": f"a number above {limits.get('gt')}",
        "less_than": f"an integer below {limits.get('lt')}",
        "less_than_equal": f"a number of at most {limits.get('le')}",
        "literal_error": limits.get("expected"),
    }.get(complaint["type"])
    message = str(complaint["msg"])
    return f"expected {expected}" if expected else message[0].lower() + message[1:]
