"""What a workload is: a model, its data, a loss and metrics. One file each; the training loop knows no names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from levelfield.data import Data, Tree
from levelfield.errors import UsageError
from levelfield.hyperparameters import Hyperparameter, check_hyperparameters
from levelfield.trial import Direction


@dataclass(frozen=True, eq=False)
class Workload:
    """Pure functions over one trial; the training loop batches them over slots.

    ``init(key)`` → (params, state); ``loss(params, state, batch, key, hyperparameters)`` → (loss, state);
    ``evaluate(params, state, batch)`` → {metric: a value for each example}. A curve records the mean over each
    split of the data as ``<split>_<metric>``; ``metrics`` declares them all, each to "minimize" or "maximize".
    """

    name: str
    summary: str
    batch_size: int
    eval_interval: int  # steps between evaluations that keep their cost small
    metrics: Mapping[str, Direction]  # or their names
    select: str  # the metric by which the best trial is chosen, at the last step
    load: Callable[[], Data]
    init: Callable[[Any], tuple[Tree, Tree]]
    loss: Callable[[Tree, Tree, Tree, Any, Mapping[str, Any]], tuple[Any, Tree]]
    evaluate: Callable[[Tree, Tree, Tree], Mapping[str, Any]]
    hyperparameters: Mapping[str, Hyperparameter] = field(default_factory=dict)
    draw: Callable[[Any, int], Tree] | None = None  # (key, batch size) → batch, where examples are made, not stored
    sequential: bool = False  # one text, read in order: the leading axis of the data counts batches, and the state
    # goes from one to the next; ``evaluate`` then gets a whole split at once
    dataset: str | None = None  # what ``levelfield data get`` must have brought
    slots_per_core: int = 4  # what trains fastest: measured with benchmarks/throughput.py
    slots_per_gpu: int = 256
    version: int = 1  # raise it when a change alters what trials compute: old trials then stay apart

    def __post_init__(self) -> None:
        if not isinstance(self.metrics, Mapping):
            raise UsageError(
                f"workload {self.name!r}: metrics = {self.metrics!r} does not say which way each is better"
            )
        check_hyperparameters(f"workload {self.name!r}", self.hyperparameters)
        for name, about in self.hyperparameters.items():
            if not (about.traced and about.numeric):
                raise UsageError(f"workload {self.name!r}: {name} must be a number that may differ from trial to trial")
        ways = [way.value for way in Direction]
        for metric, way in self.metrics.items():
            if way not in ways:
                raise UsageError(f"workload {self.name!r}: {metric} is {way!r}, not {' or '.join(ways)}")
        object.__setattr__(self, "metrics", {metric: Direction(way) for metric, way in self.metrics.items()})
        if "train_loss" not in self.metrics:
            raise UsageError(f"workload {self.name!r} declares no train_loss: a trial is feasible by it")
        if self.select not in self.metrics:
            declared = ", ".join(self.metrics)
            raise UsageError(f"workload {self.name!r} selects by {self.select!r}, which is none of {declared}")


# Regularisation that a workload may offer; what a study does not name is off.
L2 = {"l2": Hyperparameter(low=0.0, required=False, default=0.0)}  # λ/2 ‖w‖² in the loss
WEIGHT_DECAY = {"weight_decay": Hyperparameter(low=0.0, required=False, default=0.0)}  # decoupled: × learning rate
LABEL_SMOOTHING = {"label_smoothing": Hyperparameter(low=0.0, high=1.0, required=False, default=0.0)}


def minimized(*metrics: str) -> dict[str, Direction]:
    return dict.fromkeys(metrics, Direction.MINIMIZE)


CLASSIFICATION = minimized(
    *(f"{split}_{metric}" for split in ("train", "valid", "test") for metric in ("loss", "error"))
)
