"""Training code of any framework: a Python function that trains one trial, or a command that does."""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from levelfield.errors import UnknownName, UsageError
from levelfield.hyperparameters import Hyperparameter
from levelfield.schedules import schedule
from levelfield.space import Hyperparameters
from levelfield.trial import Curve, Direction
from levelfield.workload import BaseWorkload, Precision, WorkloadKind
from levelfield.workloads import register_workload

Train = Callable[["TrialRun"], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Trainable(BaseWorkload):
    """A workload whose trials are trained one by one, in worker processes, by a Python function."""

    train: Train
    file: str = ""  # the code file that defines it; worker processes run it

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.train):
            raise UsageError(f"workload {self.name!r}: train = {self.train!r}: expected a function of a trial")
        if kind := _deferred_kind(self.train):
            raise UsageError(
                f"workload {self.name!r}: train is {kind}, which does nothing when it is called; expected a function "
                f"that trains and calls trial.report"
            )
        if "step" in self.metrics:
            raise UsageError(f"workload {self.name!r}: metric step: each report has a step; choose another name")


def _deferred_kind(function: Any) -> str:
    """Return which kind of function this is if calling it does not run its body, otherwise ""."""
    if inspect.iscoroutinefunction(function):
        return "an async function"
    generates = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    return "a generator function (it has a yield)" if generates else ""


def trainable(
    *misplaced: Any,
    metrics: Mapping[str, Direction | str] | None = None,
    select: str | None = None,
    name: str | None = None,
    summary: str = "",
    batch_size: int | None = None,
    eval_interval: int | None = None,
    hyperparameters: Mapping[str, Hyperparameter] | None = None,
    examples: Mapping[str, int] | None = None,
    kind: WorkloadKind = "",
    version: int = 1,
) -> Callable[[Train], Train]:
    """Make a function that trains one trial available to studies as a workload.

    The function gets a TrialRun, which says what to train and takes the metrics. ``name`` is the workload's, by
    default that of the function. See ``BaseWorkload`` for the other arguments.
    """
    if misplaced:
        raise UsageError(
            "@lf.trainable has no arguments, or some without a name; write "
            '@lf.trainable(metrics={"valid_loss": "minimize"}, select="valid_loss") above the function'
        )
    file = sys._getframe(1).f_code.co_filename  # not the function's, which another decorator may have replaced

    def declare(train: Train) -> Train:
        register_workload(
            Trainable(
                name=name or train.__name__,
                summary=summary or (train.__doc__ or "").strip().partition("\n")[0].rstrip("."),
                metrics=metrics,  # type: ignore[arg-type]  # strings become directions
                select=select,  # type: ignore[arg-type]  # the workload refuses None
                batch_size=batch_size,
                eval_interval=eval_interval,
                hyperparameters=hyperparameters or {},
                examples=examples or {},
                kind=kind,
                version=version,
                train=train,
                file=file,
            )
        )
        return train

    return declare


class Infeasible(BaseException):
    """Ends a trial whose training loss is no longer finite. Code that catches Exception lets it pass."""


@dataclass(frozen=True)
class TrialRun:
    """A trial that custom code is to train: what to train, and where its metrics go."""

    name: str  # the optimizer's, in the study
    rule: str
    hyperparameters: Hyperparameters  # of the rule, the schedule and the workload
    seed: int
    steps: int
    eval_interval: int
    batch_size: int | None
    device: str  # "cuda" if the worker has a GPU, otherwise "cpu"
    index: int  # the trial's, in the optimizer's sequence of points
    schedule: str  # the kind of schedule
    scheduled: frozenset[str]  # which of the hyperparameters are the schedule's
    workload: BaseWorkload
    precision: Precision = "tf32"  # that the study asks for: the code decides what to do about it
    curve: list[tuple[int, dict[str, float]]] = field(default_factory=list)  # what was reported, step by step
    send: Callable[[int, dict[str, float]], None] = lambda step, values: None  # is called with each report

    @functools.cached_property
    def _rate(self) -> Any:
        names = self.scheduled | {"learning_rate"}
        return schedule(self.schedule, self.steps, {name: self.hyperparameters[name] for name in names})

    def learning_rate(self, step: int) -> float:
        """Return the scheduled learning rate of a step, counted from 0."""
        return float(self._rate(step)) if callable(self._rate) else float(self._rate)

    def optimizer(self, params: Any) -> Any:
        """Return the study's rule, with its schedule, as a torch.optim.Optimizer. It needs PyTorch."""
        own = {name: x for name, x in self.hyperparameters.items() if name not in self.workload.hyperparameters}
        build = importlib.import_module("levelfield.torch").optimizer
        return build(self.rule, params, own, schedule=self.schedule, steps=self.steps)

    def due(self, step: int) -> bool:
        """Return whether the metrics should be reported after this many steps: at each evaluation and at the end."""
        return step % self.eval_interval == 0 or step == self.steps

    def report(self, /, step: int, **metrics: Any) -> None:
        """Record metrics after ``step`` steps, each step once and in order.

        A training loss (or, if the workload has none, a selection metric) that is not finite ends the trial.
        """
        values = {name: self._number(name, value) for name, value in metrics.items()}
        step, last = _whole(step), self.curve[-1][0] if self.curve else -1
        if not 0 <= step <= self.steps:
            raise UsageError(f"report(step={step}): expected a step from 0 to {self.steps}, the study's steps")
        if step <= last:
            raise UsageError(f"report(step={step}): step {last} was reported before; expected a later step")
        if not values:
            raise UsageError(f"report(step={step}): expected metrics: {', '.join(self.workload.metrics)}")
        if not self.diverged:  # it has ended, even if the code has caught what ends it
            self.curve.append((step, values))
            self.send(step, values)
        if self.diverged:
            raise Infeasible

    @property
    def diverged(self) -> bool:
        """Whether the training loss is no longer finite."""
        return bool(self.curve) and not math.isfinite(self.curve[-1][1].get(self.workload.feasibility, 0.0))

    def _number(self, name: str, value: Any) -> float:
        if name not in self.workload.metrics:
            raise UnknownName.of(f"metric of {self.workload.name}", name, self.workload.metrics)
        try:
            with np.errstate(over="ignore"):  # the store keeps float32, in which 1e39 is infinite
                return float(np.float32(float(value)))
        except (TypeError, ValueError):
            raise UsageError(f"report({name}={str(value)[:100]}): expected a number") from None

    def check_end(self) -> None:
        """Raise if a trial that has returned did not report what it should have."""
        if not self.curve:
            raise UsageError(
                f"the training ended without any report; expected trial.report(step, …) whenever trial.due(step), the "
                f"last time at step {self.steps}"
            )
        step, values = self.curve[-1]
        if step != self.steps:
            raise UsageError(f"the training ended at step {step}; expected reports up to step {self.steps}")
        if self.workload.select not in values:
            raise UsageError(f"the last report has no {self.workload.select}, the selection metric of the study")


def _whole(step: Any) -> int:
    """Return a step, which may be a number of any library."""
    try:
        whole = int(step)
        if whole == step and not isinstance(step, bool | str):
            return whole
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(f"report(step={repr(step)[:100]}): expected an integer")


def curve_of(reports: Sequence[tuple[int, Mapping[str, float]]], metrics: Mapping[str, Direction]) -> Curve:
    """Return the curve of a trial's reports. A metric that was not reported at a step is NaN there."""
    steps = np.array([step for step, _ in reports], np.int64)
    values = {name: np.array([found.get(name, math.nan) for _, found in reports], np.float32) for name in metrics}
    return Curve(steps, values)
