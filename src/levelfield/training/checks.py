"""What would fail once training has begun, found in shapes alone before anything is written."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data, Pass, Stream
from levelfield.errors import LevelfieldError, StudyError, UsageError
from levelfield.training.program import Job, load_data, one_step
from levelfield.workload import Workload


def check_workload(workload: Workload, batch_size: int, named: Iterable[frozenset[str]] = (frozenset(),)) -> None:
    """Refuse data, a batch size, a model or metrics that a workload cannot be trained with.

    ``named`` are the workload's hyperparameters that optimizers give: the loss has to do with each of these sets.
    """
    data, called = load_data(workload), f"workload {workload.name!r}"
    if not isinstance(data, Data):
        raise UsageError(f"{called}: load gives {_kind(data)}, no levelfield.Data")
    if not isinstance(data.train, Stream):
        _check_arrays(f"{called}: its training data", data.train)
    for split, content in data.evaluation.items():
        if not isinstance(content, Pass):
            _check_arrays(f"{called}: its {split} data", content)
    _check_batch_size(workload, batch_size, data.train)
    model = _shape_of(workload, "init", jax.random.key(0))
    if not isinstance(model, tuple) or len(model) != 2:
        raise UsageError(f"{called}: init gives {_kind(model)}, no pair (params, state)")
    for names in set(named):
        _check_loss(workload, model, _batch(workload, batch_size, data.train), names)
    _check_metrics(workload, model, data)


def check_rule(job: Job) -> None:
    """Refuse a rule that cannot be trained with: one that needs more than gradients, say."""
    try:
        optimizer = one_step(job, _batch(job.workload, job.batch_size, load_data(job.workload).train)).optimizer
    except Exception as error:  # a rule may be anybody's code
        raise StudyError(f"rule {job.rule.name} cannot be trained with ({_told(error)})") from error
    if any(jnp.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in jax.tree.leaves(optimizer)):
        raise StudyError(f"rule {job.rule.name} cannot be trained with: it keeps randomness of its own")


def _check_arrays(whose: str, tree: Any) -> None:
    leaves = jax.tree.leaves(tree)
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray | jax.Array) or not leaf.ndim:
            raise UsageError(f"{whose} hold {_kind(leaf)}, not arrays whose leading axis counts examples")
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise UsageError(f"{whose} have arrays of {' and '.join(map(str, lengths))} examples: make them equally long")
    if lengths == [0]:
        raise UsageError(f"{whose} are empty: leave the split out, or give it examples")


def _check_batch_size(workload: Workload, batch_size: int, train: Any) -> None:
    leaves = jax.tree.leaves(train) if not isinstance(train, Stream) else []
    examples = train.examples if isinstance(train, Stream) else len(leaves[0]) if leaves else batch_size
    if workload.sequential and batch_size != workload.batch_size:
        raise StudyError(f"batch_size = {batch_size}: {workload.name}'s text is laid out for {workload.batch_size}")
    if batch_size > examples and not workload.sequential:
        raise StudyError(
            f"batch_size = {batch_size} exceeds the {examples} training examples of {workload.name}: lower it"
        )


def _check_loss(workload: Workload, model: Any, batch: Any, names: frozenset[str]) -> None:
    called = f"workload {workload.name!r}: loss gives"
    numbers = dict.fromkeys(names, jax.ShapeDtypeStruct((), jnp.float32))
    found = _shape_of(workload, "loss", *model, batch, jax.random.key(0), numbers)
    if not isinstance(found, tuple) or len(found) != 2:
        raise UsageError(f"{called} {_kind(found)}, no pair (loss, state)")
    loss, state = found
    if getattr(loss, "shape", None) != ():
        raise UsageError(f"{called} a loss of the shape {getattr(loss, 'shape', None)}: it must be one number")
    if _described(state) != _described(model[1]):
        raise UsageError(f"{called} a state of other shapes than init's")


def _check_metrics(workload: Workload, model: Any, data: Data) -> None:
    called, found = f"workload {workload.name!r}", []
    for split, content in data.evaluation.items():
        example = content.example if isinstance(content, Pass) else _example(content)
        counts = [len(leaves[0])] if workload.sequential and (leaves := jax.tree.leaves(content)) else [7, 11]
        given = [_shape_of(workload, "evaluate", *model, _shapes(example, n)) for n in counts]
        if not isinstance(given[0], Mapping):
            raise UsageError(f"{called}: evaluate gives {_kind(given[0])}, no mapping from metrics to values")
        for name, values in given[0].items():
            found.append(f"{split}_{name}")
            # The means of all are no values; nor are two arrays of n that were broadcast against each other.
            alike = all(each[name].shape == (n, *values.shape[1:]) for n, each in zip(counts, given, strict=True))
            if jax.tree.leaves(example) and not alike:
                raise UsageError(
                    f"{called}: evaluate gives {name} in the shape {values.shape} for {counts[0]} examples; "
                    f"give a value for each, levelfield takes their mean"
                )
    if missing := [name for name in workload.metrics if name not in found]:
        raise UsageError(f"{called} declares {', '.join(missing)}, but what it evaluates is {', '.join(found)}")


def _shape_of(workload: Workload, function: str, *arguments: Any) -> Any:
    """What a workload's function gives, in shapes."""
    try:
        return jax.eval_shape(getattr(workload, function), *arguments)
    except LevelfieldError:
        raise
    except Exception as error:  # anybody's code
        raise UsageError(f"workload {workload.name!r}: {function} fails ({_told(error)})") from error


def _told(error: Exception) -> str:
    """Type, message and place of an error in somebody's code, in one line."""
    reason = " ".join(str(error).partition("\n\n")[0].split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _installed(frame.filename)]
    where = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {reason}{where}"


def _installed(file: str) -> bool:
    return "site-packages" in file or file.startswith((str(Path(__file__).parent.parent), "<"))


def _batch(workload: Workload, batch_size: int, train: Any) -> Any:
    """The shapes of a batch."""
    if workload.draw:
        draw = workload.draw
        return jax.eval_shape(lambda: draw(jax.random.key(0), batch_size))
    if isinstance(train, Stream):
        return _shapes(train.example, batch_size)
    return _example(train) if workload.sequential else _shapes(_example(train), batch_size)


def _example(arrays: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), arrays)


def _shapes(example: Any, count: int) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *np.shape(leaf)), leaf.dtype), example)


def _described(tree: Any) -> Any:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _kind(value: Any) -> str:
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}" if value is not None else "None"
