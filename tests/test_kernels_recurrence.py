"""The recurrence's kernels against plain JAX: interpreted on a CPU, or compiled on a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import pallas
from levelfield.kernels.recurrence import Tuning, backward, evaluated, forward, recurrence, reference

DROP = 92


def arguments(slots: int, time: int, batch: int, units: int, dtype: Any = jnp.float32) -> Any:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(random.normal(size=shape), jnp.float32)

    state = normal(slots, batch, units) * 0.5, normal(slots, batch, units)
    noise = jnp.asarray(random.integers(0, 256, (slots, time, batch, units)), jnp.uint8)
    weights = normal(slots, units, 4 * units) * units**-0.5
    return normal(slots, time, batch, 4 * units).astype(dtype), weights, normal(slots, 4 * units), state, noise


def gradients(function: Any, arguments: Any) -> Any:
    """The outputs, the state at the end, and the gradients of a weighted sum of the outputs."""
    projected, recurrent, bias, state, noise = arguments
    factors = jnp.cos(jnp.arange(noise.size).reshape(noise.shape))

    def loss(*differentiated: jax.Array) -> Any:
        outputs, end = function(*differentiated, state, noise, DROP)
        return (outputs * factors).sum(), (outputs, end)

    found, results = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(projected, recurrent, bias)
    return *results, *found


@pytest.mark.parametrize(("slots", "time", "batch", "units"), [(2, 3, 5, 16), (1, 1, 16, 32)])
def test_the_kernels_compute_what_a_scan_computes(slots: int, time: int, batch: int, units: int) -> None:
    given = arguments(slots, time, batch, units)
    assert relative_error(gradients(recurrence, given), gradients(reference, given)) < 1e-5


def test_evaluation_drops_nothing() -> None:
    *given, noise = arguments(2, 3, 5, 16)
    assert relative_error(evaluated(*given), reference(*given, jnp.zeros_like(noise), 0)) < 1e-5


def test_in_bfloat16_the_kernels_err_by_rounding_only() -> None:
    projected, *others = arguments(2, 3, 5, 16, jnp.bfloat16)
    outputs, state, dprojected, *dweights = actual = gradients(recurrence, (projected, *others))
    assert {outputs.dtype, dprojected.dtype} == {jnp.dtype(jnp.bfloat16)}
    assert {array.dtype for array in (*state, *dweights)} == {jnp.dtype(jnp.float32)}
    expected = gradients(reference, (projected.astype(jnp.float32), *others))
    assert 1e-4 < relative_error(actual, expected) < 0.02


def test_tuning_changes_no_result() -> None:
    tuning = Tuning(resident=2, early=True)
    given = arguments(2, 2, 5, 16)
    expected, actual = (forward(*given, DROP, chosen) for chosen in (Tuning(), tuning))
    assert relative_error(actual, expected) < 1e-6
    recurrent, noise, (outputs, _, (_, *kept)) = given[1], given[4], expected
    derivatives = [backward(outputs, recurrent, noise, *kept, DROP, chosen) for chosen in (tuning, Tuning())]
    assert relative_error(*derivatives) < 1e-6


def test_units_must_fit_the_tiles() -> None:
    with pytest.raises(ValueError, match="24 units: expected a power of two, at least 16"):
        recurrence(*arguments(1, 1, 2, 24), DROP)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_are_lowered_for_a_gpu(dtype: Any) -> None:
    projected, recurrent, bias, state, noise = arguments(2, 50, 50, 128, dtype)

    def loss(*differentiated: jax.Array) -> jax.Array:
        return recurrence(*differentiated, state, noise, DROP)[0].astype(jnp.float32).sum()

    lowered = lowered_for_cuda(jax.grad(loss, argnums=(0, 1, 2)), projected, recurrent, bias)
    assert lowered.count("triton") == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 5e-3), (jnp.bfloat16, 2e-2)])
def test_on_a_gpu_the_kernels_compute_what_a_scan_computes(dtype: Any, tolerance: float) -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    projected, *others = arguments(3, 50, 50, 128, dtype)
    with jax.default_matmul_precision("highest"):
        expected = gradients(reference, (projected.astype(jnp.float32), *others))
    actual = gradients(recurrence, (projected, *others))
    assert relative_error(actual, expected) < tolerance


@pytest.mark.gpu
def test_on_a_gpu_a_slot_does_not_depend_on_its_neighbors() -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    given = arguments(5, 50, 50, 128, jnp.bfloat16)
    last = jax.tree.map(lambda array: array[4:], given)
    together, alone = forward(*given, DROP), forward(*last, DROP)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[4:], b), together, alone)
