"""The records of workloads: what a study must know of them, and how JAX trains them. Importing this loads no JAX.

Each built-in workload is declared in a file of ``levelfield.workloads``. Its functions live in ``levelfield.models``
and are imported when they are first called, so that reading a study needs no JAX.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from levelfield.data import Data, Tree
from levelfield.errors import UnknownName, UsageError
from levelfield.hyperparameters import Hyperparameter, check_hyperparameters
from levelfield.trial import Direction

TRAIN_LOSS = "train_loss"
WorkloadKind = Literal["images", "text", ""]
Precision = Literal["float32", "tf32", "bfloat16"]  # of products; weights and what updates them stay in float32
# (params, state, batch, keys, hyperparameters) of all slots of a device → (losses, gradients, state). Every array, the
# typed keys, and each hyperparameter have a leading axis of slots. Losses and gradients are in float32.
Gradients = Callable[[Tree, Tree, Tree, Any, Mapping[str, Any]], tuple[Any, Tree, Tree]]
# (params, state, batch) → {metric: values} of all slots of a device, on the same batch. All else has a leading axis of
# slots.
Evaluate = Callable[[Tree, Tree, Tree], Mapping[str, Any]]


def check_kind(kind: str) -> None:
    """Raise unless this is a known kind of workload."""
    if kind not in get_args(WorkloadKind):
        raise UnknownName.of("kind of workload", str(kind), filter(None, get_args(WorkloadKind)))


@dataclass(frozen=True, eq=False, kw_only=True)
class BaseWorkload:
    """What a study must know of a workload. Its subclasses add how a trial is trained; trials of others are imported.

    ``metrics`` declares what a curve records, each to "minimize" or "maximize".
    """

    name: str
    metrics: Mapping[str, Direction]  # or the strings "minimize" and "maximize"
    select: str  # the metric that chooses the best trial, at the last step
    summary: str = ""
    batch_size: int | None = None
    eval_interval: int | None = None  # steps between evaluations; by default a twentieth of the training
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)
    # Split → number of predictions that its errors and accuracies are shares of, if known: it determines how precise a
    # single value is.
    examples: Mapping[str, int] = field(default_factory=dict)
    kind: WorkloadKind = ""  # what the data are: search ranges are suggested, and judged, for each kind
    version: int = 1  # raise it when a change alters what trials compute; trials of different versions are kept apart

    def __post_init__(self) -> None:
        label = f"workload {self.name!r}"
        check_kind(self.kind)
        directions = " or ".join(repr(direction.value) for direction in Direction)
        if not isinstance(self.metrics, Mapping) or not self.metrics:
            raise UsageError(f"{label}: metrics = {self.metrics!r}: expected a mapping from metrics to {directions}")
        check_hyperparameters(label, self.hyperparameters)
        for metric, direction in self.metrics.items():
            if direction not in list(Direction):
                raise UsageError(f"{label}: metric {metric} = {direction!r}: expected {directions}")
        metrics = {metric: Direction(direction) for metric, direction in self.metrics.items()}
        object.__setattr__(self, "metrics", metrics)
        if not isinstance(self.select, str) or self.select not in metrics:
            raise UsageError(f"{label}: select = {self.select!r}: expected one of its metrics: {', '.join(metrics)}")

    @property
    def feasibility(self) -> str:
        """The metric that must stay finite for a trial to be feasible."""
        return TRAIN_LOSS if TRAIN_LOSS in self.metrics else self.select


@dataclass(frozen=True, eq=False, kw_only=True)
class Workload(BaseWorkload):
    """A workload in JAX: pure functions over one trial, which the training loop batches over slots.

    ``init(key)`` returns (params, state). ``loss(params, state, batch, key, hyperparameters)`` returns (loss, state).
    ``evaluate(params, state, batch)`` returns {metric: one value per example}. A curve records the mean over each split
    of the data as ``<split>_<metric>``; ``metrics`` declares all of them.
    """

    summary: str
    batch_size: int
    eval_interval: int  # long enough to keep the cost of evaluations small
    load: Callable[[], Data]
    init: Callable[[Any], tuple[Tree, Tree]]
    loss: Callable[[Tree, Tree, Tree, Any, Mapping[str, Any]], tuple[Any, Tree]]
    evaluate: Callable[[Tree, Tree, Tree], Mapping[str, Any]]
    # The gradients of all slots at once, for a workload with kernels of its own. Called where trials are trained, it
    # returns None if those do not serve the device or the precision; then JAX differentiates and batches ``loss``.
    batched: Callable[[Precision], Gradients | None] | None = None
    # In the same way, ``evaluate`` for all slots at once.
    batched_evaluate: Callable[[Precision], Evaluate | None] | None = None
    # (key, batch size) → batch, for a workload that generates its examples instead of storing them
    draw: Callable[[Any, int], Tree] | None = None
    # Whether the data are one text, read in order: the leading axis counts batches, the state carries over from one
    # batch to the next, and ``evaluate`` gets a whole split at once.
    sequential: bool = False
    dataset: str | None = None  # the data set that must be downloaded first
    slots_per_core: int = 4  # on a CPU: the fastest number, from benchmarks/throughput.py; on a GPU, runs measure it

    def __post_init__(self) -> None:
        super().__post_init__()
        label = f"workload {self.name!r}"
        for name, hyperparameter in self.hyperparameters.items():
            if not (hyperparameter.traced and hyperparameter.numeric):
                raise UsageError(f"{label}: hyperparameter {name} must be numeric and traced")
        if TRAIN_LOSS not in self.metrics:
            raise UsageError(
                f"{label} declares no {TRAIN_LOSS}, the metric that decides whether a trial is feasible; add it"
            )


def imported(module: str, *functions: str) -> dict[str, Any]:
    """Return functions of a module by name. The module is imported when one of them is first called.

    >>> imported("math", "sqrt")["sqrt"](9.0)
    3.0
    """

    def importing(function: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            return getattr(importlib.import_module(module), function)(*arguments)

        return call

    return {function: importing(function) for function in functions}


def minimized(*metrics: str) -> dict[str, Direction]:
    """Declare metrics that are to be minimized."""
    return dict.fromkeys(metrics, Direction.MINIMIZE)


CLASSIFICATION = minimized(
    *(f"{split}_{metric}" for split in ("train", "valid", "test") for metric in ("loss", "error"))
)

# Regularization that a workload may offer. It is off unless the study sets it.
_OFF = Hyperparameter(low=0.0, required=False, default=0.0)
L2 = {"l2": replace(_OFF, usual_range=(0.0, 0.1))}  # λ/2 ‖w‖² added to the loss
LABEL_SMOOTHING = {"label_smoothing": replace(_OFF, high=1.0, usual_range=(0.0, 0.3))}
