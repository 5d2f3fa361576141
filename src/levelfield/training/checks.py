"""Checks before anything is written: problems that would otherwise stop the training, found from shapes alone."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from levelfield.data import Data, Pass, Stream, Tree
from levelfield.errors import LevelfieldError, StudyError, UsageError
from levelfield.formatting import join_words
from levelfield.schedules import WARMUP
from levelfield.space import Hyperparameters
from levelfield.training.feeds import device_shape, stacked_shapes
from levelfield.training.options import evaluated_weights
from levelfield.training.precision import in_precision
from levelfield.training.program import load_data
from levelfield.training.step import Job, one_step, options_of, started
from levelfield.workload import Precision, Workload


def check_workload(
    workload: Workload,
    batch_size: int,
    named: Iterable[frozenset[str]] = (frozenset(),),
    precision: Precision = "tf32",
) -> None:
    """Raise if the workload cannot be trained: because of its data, the batch size, the model or the metrics.

    ``named`` holds the workload's hyperparameters that each optimizer sets: the loss must accept each of these sets.
    """
    data, label = load_data(workload), f"workload {workload.name!r}"
    if not isinstance(data, Data):
        raise UsageError(f"{label}: load returned {_kind(data)}; expected a levelfield.Data")
    if not isinstance(data.train, Stream):
        _check_arrays(f"{label}: the training data", data.train)
    for split, content in data.evaluation.items():
        if not isinstance(content, Pass):
            _check_arrays(f"{label}: the evaluation data {split!r}", content)
    _check_batch_size(workload, batch_size, data.train)
    model = _shapes_from(workload, "init", jax.random.key(0))
    if not isinstance(model, tuple) or len(model) != 2:
        raise UsageError(f"{label}: init returned {_kind(model)}; expected a pair (params, state)")
    batch = _batch_shapes(workload, batch_size, data.train)
    for names in set(named):
        _check_loss(workload, model, batch, names)
        if precision == "bfloat16":
            _check_in_bfloat16(workload, model, batch, names)
    _check_metrics(workload, model, data)


def check_rule(job: Job, values: Hyperparameters) -> None:
    """Raise if the rule cannot be trained, for example because it needs more than gradients.

    ``values`` are those of any trial. They tell which hyperparameters are at fault.
    """
    error = _training_error(job)
    if error is None:
        return _check_evaluated(job)
    label = f"rule {job.rule.name} cannot be trained"
    constant = job._replace(schedule="constant", traced=tuple(name for name in job.traced if name != WARMUP))
    if constant != job and _training_error(constant) is None:
        raise StudyError(
            f"{label} with a schedule ({_in_one_line(error)}); give it a constant learning rate: "
            'schedule = { kind = "constant" }, without a warmup'
        ) from error
    if isinstance(error, jax.errors.ConcretizationTypeError | jax.errors.TracerBoolConversionError | TypeError):
        names = _branched_on(job, values)
        if "learning_rate" in names:
            raise StudyError(
                f"{label}: its code branches on the value of learning_rate, which may differ between trials and steps; "
                "use jax.numpy.where instead"
            ) from error
        if names:
            listed = join_words(names)
            its, it = ("its value", "it") if len(names) == 1 else ("their values", "they")
            raise StudyError(
                f"{listed} of {job.rule.name} cannot be searched over: the rule's code branches on {its}, so {it} must "
                f"be the same in all trials; fix {listed}, or define one optimizer for each value"
            ) from error
    raise StudyError(f"{label} ({_in_one_line(error)})") from error


@functools.lru_cache(maxsize=256)
def with_branches(job: Job, fixed: tuple[tuple[str, Any], ...]) -> Job:
    """Return the job with a fixed hyperparameter as a plain number if the rule's code needs that, to branch on it.

    Others stay traced: a plain number would be rounded differently. If nothing helps, ``check_rule`` says why.
    """
    if _training_error(job) is None:
        return job
    values = dict(fixed)
    candidates = [_with_static(job, names, values) for names in [*([name] for name in values), list(values)]]
    return next((candidate for candidate in candidates if _training_error(candidate) is None), job)


def _branched_on(job: Job, values: Mapping[str, Any]) -> list[str]:
    """Return the hyperparameters that must be plain numbers for the rule to train; none if that is not the problem."""

    def trains_with(names: Collection[str]) -> bool:
        return _training_error(_with_static(job, names, values)) is None

    needed = [name for name in job.traced if name in job.rule.hyperparameters]
    if not trains_with(needed):
        return []
    for name in list(needed):
        if trains_with(fewer := [other for other in needed if other != name]):
            needed = fewer
    return needed


def _check_evaluated(job: Job) -> None:
    """Raise if the weights that a custom rule wants evaluated are not like those that it trains."""
    slot = started(job)
    weights = evaluated_weights(job.rule, slot.optimizer, options_of(job, slot.hyperparameters))
    if job.rule.evaluated is None or weights is None:
        return
    label = f"rule {job.rule.name}: evaluated"
    try:
        found = jax.eval_shape(weights, slot)
    except (Exception, SystemExit) as error:  # custom code
        raise StudyError(f"{label} failed ({_in_one_line(error)})") from error
    if _signature(found) != _signature(slot.params):
        raise StudyError(f"{label} returned other shapes or types than the weights have; return weights like params")


def _with_static(job: Job, names: Collection[str], values: Mapping[str, Any]) -> Job:
    traced = tuple(other for other in job.traced if other not in names)
    return job._replace(traced=traced, static=(*job.static, *((name, values[name]) for name in names)))


@functools.lru_cache(maxsize=256)  # each run asks twice: for its job, and when the study is checked
def _training_error(job: Job) -> BaseException | None:
    """Return what goes wrong in a step; None if nothing does."""
    batch = _batch_shapes(job.workload, job.batch_size, load_data(job.workload).train)
    try:
        one_step(job, batch)
    except (Exception, SystemExit) as error:  # a rule may be custom code
        return error
    return None


def _check_arrays(label: str, tree: Tree) -> None:
    leaves = jax.tree.leaves(tree)
    for leaf in leaves:
        if not isinstance(leaf, np.ndarray | jax.Array) or not leaf.ndim:
            raise UsageError(f"{label} contain {_kind(leaf)}; expected arrays whose leading axis counts examples")
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise UsageError(
            f"{label} have arrays of {' and '.join(map(str, lengths))} examples; expected arrays of equal length"
        )
    if lengths == [0]:
        raise UsageError(f"{label} are empty; add examples or leave the split out")
    # Otherwise every trial would diverge, and the search space would get the blame.
    invalid = sum(np.count_nonzero(~np.isfinite(leaf)) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact))
    if invalid:
        values = "1 value that is" if invalid == 1 else f"{invalid:,} values that are"
        raise UsageError(f"{label} contain {values} NaN or infinite; remove or replace them in load")


def _check_batch_size(workload: Workload, batch_size: int, train: Tree | Stream) -> None:
    leaves = jax.tree.leaves(train) if not isinstance(train, Stream) else []
    examples = train.examples if isinstance(train, Stream) else len(leaves[0]) if leaves else batch_size
    label = f"batch_size = {batch_size}: expected"
    if workload.sequential and batch_size != workload.batch_size:
        raise StudyError(f"{label} {workload.batch_size}, which the text of {workload.name} is laid out for")
    if batch_size > examples and not workload.sequential:
        raise StudyError(f"{label} at most {examples}, the number of training examples of {workload.name}")


def _check_loss(workload: Workload, model: tuple[Tree, Tree], batch: Tree, names: frozenset[str]) -> None:
    label = f"workload {workload.name!r}: loss returned"
    hyperparameters = dict.fromkeys(names, jax.ShapeDtypeStruct((), jnp.float32))
    result = _shapes_from(workload, "loss", *model, batch, jax.random.key(0), hyperparameters)
    if not isinstance(result, tuple) or len(result) != 2:
        raise UsageError(f"{label} {_kind(result)}; expected a pair (loss, state)")
    loss, state = result
    if getattr(loss, "shape", None) != ():
        raise UsageError(f"{label} a loss of shape {getattr(loss, 'shape', None)}; expected a single number")
    if _signature(state) != _signature(model[1]):
        raise UsageError(f"{label} a state whose shapes or types differ from those of init; return the same kind")


def _check_in_bfloat16(workload: Workload, model: tuple[Tree, Tree], batch: Tree, names: frozenset[str]) -> None:
    """Raise if a loss that can be computed in float32 cannot be computed in bfloat16."""
    hyperparameters = dict.fromkeys(names, jax.ShapeDtypeStruct((), jnp.float32))
    try:
        jax.eval_shape(in_precision(workload.loss, "bfloat16"), *model, batch, jax.random.key(0), hyperparameters)
    except (Exception, SystemExit) as error:  # custom code
        raise StudyError(
            f"precision = 'bfloat16': the loss of workload {workload.name!r} fails with parameters and inputs in "
            f"bfloat16 ({_in_one_line(error)}); give the arrays that it makes their type, or choose another precision"
        ) from error


def _check_metrics(workload: Workload, model: tuple[Tree, Tree], data: Data) -> None:
    label, evaluated = f"workload {workload.name!r}", list[str]()
    for split, content in data.evaluation.items():
        example = content.example if isinstance(content, Pass) else _example_shapes(content)
        counts = [len(leaves[0])] if workload.sequential and (leaves := jax.tree.leaves(content)) else [7, 11]
        results = [_shapes_from(workload, "evaluate", *model, stacked_shapes(example, n)) for n in counts]
        if not isinstance(results[0], Mapping):
            raise UsageError(
                f"{label}: evaluate returned {_kind(results[0])}; expected a mapping from metrics to values"
            )
        for metric, values in results[0].items():
            evaluated.append(f"{split}_{metric}")
            # Neither a mean over the examples nor two arrays of n broadcast against each other has this shape.
            per_example = all(
                result[metric].shape == (n, *values.shape[1:]) for n, result in zip(counts, results, strict=True)
            )
            if jax.tree.leaves(example) and not per_example:
                raise UsageError(
                    f"{label}: evaluate returned {metric} of shape {values.shape} for {counts[0]} examples; "
                    "expected one value per example, which levelfield averages"
                )
    if missing := [metric for metric in workload.metrics if metric not in evaluated]:
        raise UsageError(
            f"{label} declares {', '.join(missing)}, but evaluate returns {', '.join(evaluated)}; make them match"
        )


def _shapes_from(workload: Workload, function: str, *arguments: Any) -> Any:
    """Return the shapes of what a workload's function returns."""
    try:
        return jax.eval_shape(getattr(workload, function), *arguments)
    except LevelfieldError:
        raise
    except (Exception, SystemExit) as error:  # custom code
        raise UsageError(f"workload {workload.name!r}: {function} failed ({_in_one_line(error)})") from error


def _in_one_line(error: BaseException) -> str:
    """Return the type, message and location of an error in custom code."""
    reason = " ".join(str(error).partition("\n\n")[0].split())
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_library(frame.filename)]
    location = f", {Path(frames[-1].filename).name} line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {reason}{location}"


def _is_library(file: str) -> bool:
    return "site-packages" in file or file.startswith((str(Path(__file__).parent.parent), "<"))


def _batch_shapes(workload: Workload, batch_size: int, train: Tree | Stream) -> Tree:
    if workload.draw:
        draw = workload.draw
        return jax.eval_shape(lambda: draw(jax.random.key(0), batch_size))
    if isinstance(train, Stream):
        return stacked_shapes(train.example, batch_size)
    return _example_shapes(train) if workload.sequential else stacked_shapes(_example_shapes(train), batch_size)


def _example_shapes(arrays: Tree) -> Tree:
    return jax.tree.map(lambda array: device_shape(array.shape[1:], array.dtype), arrays)


def _signature(tree: Tree) -> tuple[Any, list[tuple[Any, Any]]]:
    return jax.tree.structure(tree), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(tree)]


def _kind(value: Any) -> str:
    if isinstance(value, jax.ShapeDtypeStruct):
        return f"an array of shape {value.shape}"
    return f"a {type(value).__name__}" if value is not None else "None"
