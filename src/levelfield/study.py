"""Studies: one workload, several optimizers, a budget. TOML in and out; identity by content."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from levelfield.errors import SpaceError, StudyError, UnknownName, suggestion
from levelfield.rules import FRACTION, POSITIVE, Hyperparameter, Rule, check_domain, get_rule
from levelfield.space import Space
from levelfield.user_code import run_code
from levelfield.workload import Workload
from levelfield.workloads import get_workload

# What each kind of schedule takes, besides the learning rate it starts from. Both lengths are × steps.
SCHEDULES: dict[str, dict[str, Hyperparameter]] = {
    "constant": {},
    "linear": {"decay_steps": POSITIVE, "decay_factor": FRACTION},
    "step": {"decay_every": POSITIVE, "decay_factor": FRACTION},
}

# What every object has in JavaScript: the page's charts look optimizers up by name.
_RESERVED = {
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "isPrototypeOf",
    "propertyIsEnumerable",
    "toLocaleString",
    "toString",
    "valueOf",
}


@dataclass(frozen=True)
class Optimizer:
    """A rule plus which of its hyperparameters are free, and over which ranges."""

    name: str
    rule: Rule
    schedule: str
    space: Space
    protocol: str = ""
    corrected: Mapping[str, str] = field(default_factory=dict)  # axis → what its source had printed wrongly

    def spec(self) -> dict[str, Any]:
        """The optimizer as a study file writes it, its schedule's table apart."""
        schedule = {name: dim for name, dim in self.space.spec().items() if name in SCHEDULES[self.schedule]}
        table = {name: dim for name, dim in self.space.spec().items() if name not in schedule}
        about: dict[str, Any] = {"rule": self.rule.name} | ({"protocol": self.protocol} if self.protocol else {})
        about |= {"corrected": dict(self.corrected)} if self.corrected else {}
        return about | table | {"schedule": {"kind": self.schedule} | schedule}


class Target(BaseModel):
    """The value of a metric that counts as reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    metric: str
    value: FiniteFloat


class Refined(BaseModel):
    """A range that was changed for what the trials of an earlier study showed."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    study: str  # the earlier one
    optimizer: str
    axis: str
    before: Any  # the dimension, as a study file writes it
    after: Any
    verdict: str
    trials: Annotated[int, Field(ge=0, strict=True)]  # spent on it


Count = Annotated[int, Field(ge=1, lt=2**31, strict=True)]  # steps are counted in int32


class Study(BaseModel):
    """One workload, several optimizers, a step budget, K, N, a target and a seed.

    Keyword arguments have the shape of a study file. Whatever is wrong is refused here, in one line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    name: str = "study"
    description: str = ""
    code: str | None = None  # a Python file that registers workloads, rules and inclusions of one's own
    workload: str
    steps: Count
    batch_size: Count  # default: the workload's, as the next two
    eval_interval: Count
    select: str
    trials: Count
    pool: Count
    target: Target | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    search: Literal["quasirandom", "grid"] = "quasirandom"
    scale: Annotated[float, Field(gt=0, le=1)] = 1.0  # of another study: less than 1 marks a try, not a result
    refined: tuple[Refined, ...] = ()  # how its spaces came to be, first to last
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
        if not isinstance(content.get("workload"), str) or not isinstance(code, str | None):
            return content  # refused by the field itself
        if code is not None:
            content = content | {"code": run_code(code)}
        workload = get_workload(content["workload"])
        defaults = {
            "batch_size": workload.batch_size,
            "eval_interval": workload.eval_interval,
            "select": workload.select,
        }
        if "trials" in content:
            defaults["pool"] = content["trials"]
        return defaults | content

    @model_validator(mode="after")
    def _check(self) -> Study:
        workload = get_workload(self.workload)
        if not self.name.isprintable() or "/" in self.name or not self.name.strip(". "):
            raise StudyError(f"name = {self.name!r}: results go into a folder of this name; choose a plainer one")
        if self.trials > self.pool:
            raise StudyError(
                f"trials = {self.trials} exceeds pool = {self.pool}: the best of K trials is estimated from a "
                f"pool of at least K; raise pool or lower trials"
            )
        for metric in [self.select, *([self.target.metric] if self.target else [])]:
            if metric not in workload.metrics:
                raise UnknownName.of(f"metric of {workload.name}", metric, workload.metrics)
        if not self.optimizers:
            raise StudyError("optimizers is empty: a study needs at least one [optimizers.name] table")
        for name, table in self.optimizers.items():
            if name.startswith("@") or name in _RESERVED:
                raise StudyError(f"optimizers.{name}: charts keep this name for themselves; choose another")
            if not name or name != name.strip() or not name.isprintable() or "," in name:
                raise StudyError(f"optimizers.{name!r}: no command could name it; use printable characters, no comma")
            try:
                self.optimizers[name] = _optimizer(name, table, self.schedule, workload)
                self._check_grid(self.optimizers[name])
            except (SpaceError, UnknownName, StudyError) as error:
                raise type(error)(f"optimizers.{name}: {error}") from None
        return self

    def _check_grid(self, optimizer: Optimizer) -> None:
        if self.search != "grid":
            return
        for one in optimizer.space.free:
            if math.isinf(one.dimension.size):
                raise SpaceError(f"{one.key} is a range: a grid needs a choice, an integer range or a value")
        if self.pool > (size := optimizer.space.size):
            raise StudyError(f"pool = {self.pool} exceeds the grid's {size} points: lower pool")

    def optimizer(self, name: str) -> Optimizer:
        if name not in self.optimizers:
            raise UnknownName.of("optimizer of this study", name, self.optimizers)
        found: Optimizer = self.optimizers[name]
        return found

    def full(self, optimizer: str, feasible: int, tried: int) -> bool:
        """Whether an optimizer's pool holds N feasible trials, or all that its grid has."""
        return feasible >= self.pool or (self.exhausted(optimizer, tried) and feasible > 0)

    def exhausted(self, optimizer: str, tried: int) -> bool:
        """Whether there is no point left to try."""
        return self.search == "grid" and tried >= self.optimizer(optimizer).space.size

    def domain(self, optimizer: str, hyperparameter: str) -> Hyperparameter:
        """What a hyperparameter of an optimizer may be: its rule's, its schedule's or its workload's."""
        chosen = self.optimizer(optimizer)
        return _known(chosen.rule, chosen.schedule, get_workload(self.workload))[hyperparameter]

    def replace(self, **changes: Any) -> Study:
        """The study with some fields changed, checked again; ``None`` leaves a field as it is.

        A new schedule is every optimizer's.
        """
        content = self.spec()
        if changes.get("schedule") is not None:
            content["optimizers"] = {
                name: {key: value for key, value in table.items() if key != "schedule"}
                for name, table in content["optimizers"].items()
            }
        return Study(**content | {key: value for key, value in changes.items() if value is not None})

    def scaled(self, factor: float) -> Study:
        """The study in small, to try its whole path: steps, trials and pool shrink together.

        Schedules shrink with the steps, since their lengths are shares of them.
        """
        if not 0 < factor <= 1:
            raise StudyError(f"scale = {factor:g}: give a share of the study, above 0 and at most 1")

        def shrunk(count: int) -> int:
            return max(1, round(count * factor))

        if factor == 1:
            return self
        counts = {name: shrunk(getattr(self, name)) for name in ("steps", "trials", "pool")}
        # Evaluations do not get cheaper: they stay as far apart, but for the few that a curve needs.
        interval = min(self.eval_interval, -(-counts["steps"] // 4))
        name = f"{self.name}_{factor:g}x"
        return self.replace(name=name, scale=self.scale * factor, eval_interval=interval, **counts)

    def only(self, names: Iterable[str]) -> Study:
        """The study with some of its optimizers."""
        return self.replace(optimizers={name: self.optimizer(name).spec() for name in names})

    def spec(self) -> dict[str, Any]:
        """The study as a file holds it, with every default written out."""
        content = self.model_dump(exclude={"optimizers", "schedule", "refined"}, exclude_none=True)
        if self.refined:
            content["refined"] = [each.model_dump() for each in self.refined]
        return content | {"optimizers": {name: each.spec() for name, each in self.optimizers.items()}}

    def to_toml(self, folder: Path | None = None) -> str:
        """A study file for a folder, or for that of its code.

        It has a line for each hyperparameter; the schedule apart, where all have the same.
        """
        content = self.spec()
        if self.code:
            content["code"] = os.path.relpath(self.code, Path(folder or Path(self.code).parent).resolve())
        tables, log = content.pop("optimizers"), content.pop("refined", [])
        schedules = [table["schedule"] for table in tables.values()]
        shared = schedules[0] if schedules.count(schedules[0]) == len(schedules) else None
        lines = [f"{_toml(key)} = {_inline(value)}" for key, value in content.items()]
        if shared:
            tables = {
                name: {key: value for key, value in table.items() if key != "schedule"}
                for name, table in tables.items()
            }
            lines += ["", "[schedule]", *(f"{_toml(key)} = {_inline(value)}" for key, value in shared.items())]
        for name, table in tables.items():
            lines += ["", f"[optimizers.{_toml(name)}]"]
            lines += [f"{_toml(key)} = {_inline(value)}" for key, value in table.items()]
        for entry in log:
            lines += ["", "[[refined]]", *(f"{_toml(key)} = {_inline(value)}" for key, value in entry.items())]
        return "\n".join(lines) + "\n"

    def definition(self, name: str) -> dict[str, Any]:
        """All that defines the trials of an optimizer. K, N, the target and display names are no part of it."""
        optimizer = self.optimizer(name)
        return {
            "workload": self.workload,
            "version": get_workload(self.workload).version,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "eval_interval": self.eval_interval,
            "search": self.search,
            "seed": str(self.seed),
            "rule": optimizer.rule.name,
            "schedule": optimizer.schedule,
            "space": optimizer.space.spec(),
        } | ({"rule_version": optimizer.rule.version} if optimizer.rule.version != 1 else {})

    def identity(self, name: str) -> str:
        """A digest of the definition: equal where the trials are the same, whatever the study."""
        return digest(self.definition(name))


def _toml(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _inline(value: Any) -> str:
    """A value of a study file in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_toml(key)} = {_inline(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(_inline(each) for each in value) + "]"
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")


def digest(content: Any) -> str:
    """A stable digest of plain content; whole numbers and floats of the same value agree."""
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
    """A study from a TOML file, or a built-in one by name."""
    path = Path(source)
    try:
        there = path.is_file()
    except OSError as error:
        raise StudyError(f"{source}: cannot be read ({error.strerror})") from None
    if path.suffix == ".toml" or there:
        if not there:
            raise StudyError(f"{source}: no such file")
        text, name = _read(path), path.stem
    elif str(source) in (known := built_in_studies()):
        text, name = known[str(source)].read_text("utf-8"), str(source)
    elif Path(f"{source}.toml").is_file():
        raise StudyError(f"no study is called {str(source)!r}; did you mean the file {source}.toml?")
    else:
        raise UnknownName.of("study", str(source), known)
    try:
        content = tomllib.loads(text)
        if isinstance(content.get("code"), str):
            content["code"] = str(path.parent / content["code"])
        return Study(**{"name": name} | content)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{source}: not valid TOML: {error}") from None
    except (StudyError, SpaceError, UnknownName) as error:
        raise StudyError(f"{source}: {error}") from None


def built_in_studies() -> dict[str, Any]:
    """Name → file of each study that comes with levelfield."""
    folder = resources.files("levelfield") / "studies"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # some editors begin a file with a mark of its encoding
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not valid TOML: no UTF-8 text ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot be read ({error.strerror})") from None


def _optimizer(name: str, table: Any, study_schedule: Mapping[str, Any], workload: Workload) -> Optimizer:
    if isinstance(table, Optimizer):
        return table
    if not isinstance(table, Mapping):
        raise StudyError(f"{table!r} is no table of hyperparameters")
    table = dict(table)
    rule = get_rule(_text(table, "rule", name))
    if "learning_rate" not in rule.hyperparameters:
        raise StudyError(f"rule {rule.name} takes no learning_rate, which is what a schedule schedules")
    protocol = _text(table, "protocol", "")
    corrected = table.pop("corrected", {})
    own = table.pop("schedule", {})
    if not isinstance(own, Mapping):
        raise StudyError(f'schedule = {own!r} is no table: write schedule = {{ kind = "linear", … }}')
    # An optimizer's own schedule refines the study's, or replaces it where it is of another kind.
    shared = study_schedule.get("kind", "constant")
    kind = own.get("kind", shared)
    schedule = {**(study_schedule if kind == shared else {}), **own}
    schedule.pop("kind", None)
    if not isinstance(kind, str) or kind not in SCHEDULES:
        raise UnknownName.of("schedule", str(kind), SCHEDULES)
    for key in schedule:
        if key not in SCHEDULES[kind]:
            raise StudyError(f"schedule.{key}: a {kind} schedule has no such value{suggestion(key, SCHEDULES[kind])}")
    for key in SCHEDULES[kind]:
        if key not in schedule:
            raise StudyError(f"schedule.{key} is missing: a {kind} schedule needs it")
    for key in table.keys() & schedule.keys():
        raise StudyError(f"{key} is given twice, in the optimizer's table and in its schedule: keep the schedule's")
    # Weight decay is one or the other's, never both: a rule that has its own keeps the workload's out.
    for both in sorted(rule.hyperparameters.keys() & workload.hyperparameters.keys() - {"weight_decay"}):
        raise StudyError(f"{both} is a hyperparameter of both {rule.name} and {workload.name}: rename the workload's")
    space = Space.parse(table | schedule)
    known = _known(rule, kind, workload)
    for one in space:
        if one.name not in known:
            raise UnknownName.of(f"hyperparameter of {rule.name} on {workload.name}", one.name, known)
        check_domain(one, known[one.name])
    for needed, about in known.items():
        if about.required and needed not in space.names:
            raise SpaceError(f"{needed} is missing: {rule.name} needs it; give it a range or a value")
    if not isinstance(corrected, Mapping):
        raise StudyError(f"corrected = {corrected!r} is no table from a hyperparameter to what was corrected")
    for key in corrected:
        if key not in (keys := [one.key for one in space]):
            raise UnknownName.of("axis of this space", key, keys)
    return Optimizer(name, rule, kind, space, protocol, {key: str(text) for key, text in corrected.items()})


def _known(rule: Rule, schedule: str, workload: Workload) -> dict[str, Hyperparameter]:
    return {**workload.hyperparameters, **SCHEDULES[schedule], **rule.hyperparameters}


def _text(table: dict[str, Any], key: str, default: str) -> str:
    value = table.pop(key, default)
    if not isinstance(value, str):
        raise StudyError(f"{key} = {value!r} must be a string")
    return value


def _one_line(error: ValidationError) -> str:
    """Pydantic's chief complaint as a sentence: the field, what it got, what to do."""
    # A misspelt field is missing, too: the spelling comes first.
    first, *_ = sorted(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        *within, last = first["loc"]
        parts: dict[str, type[BaseModel]] = {"target": Target, "refined": Refined}
        of = parts.get(str(within[0]), Study) if within else Study
        return f"{field!r} is no field of a {of.__name__.lower()}{suggestion(str(last), of.model_fields)}"
    if first["type"] == "missing":
        return f"{field} is missing: a study needs it"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{field} = {first['input']!r}: {first['msg'].lower()}{more}"
