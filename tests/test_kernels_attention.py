"""The kernels of attention against plain JAX: interpreted on a CPU, or compiled on a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import pallas
from levelfield.kernels.attention import Tuning, attention, backward, forward, reference


def arguments(*shape: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array]:
    """Return queries, keys and values (…, length, 3 width), and derivatives of what is attended."""
    random = np.random.default_rng(0)
    *outer, width = shape
    projected, derivative = (random.normal(size=(*outer, size)) for size in (3 * width, width))
    return jnp.asarray(projected, dtype), jnp.asarray(derivative, dtype)


def results(function: Any, heads: int, projected: jax.Array, derivative: jax.Array) -> Any:
    def both(projected: jax.Array, derivative: jax.Array) -> Any:
        attended, pull = jax.vjp(lambda projected: function(projected, heads), projected)
        return attended, *pull(derivative)

    return jax.jit(both)(projected, derivative)


# Lengths of part of a block, of a block and a bit, of several blocks and a bit, and of whole blocks.
@pytest.mark.parametrize(
    ("shape", "heads"),
    [((2, 3, 12, 32), 2), ((1, 2, 70, 16), 1), ((2, 1, 130, 48), 3), ((1, 2, 256, 32), 2)],
)
def test_the_kernels_compute_causal_attention(shape: tuple[int, ...], heads: int) -> None:
    given = arguments(*shape)
    assert relative_error(results(attention, heads, *given), results(reference, heads, *given)) < 1e-5


def test_the_reference_is_jaxs_attention() -> None:
    projected, _ = arguments(2, 12, 32)
    query, key, value = (part.reshape(2, 12, 2, 16) for part in jnp.split(projected, 3, -1))
    expected = jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(2, 12, 32)
    np.testing.assert_allclose(reference(projected, 2), expected, atol=1e-5)


def test_in_bfloat16_the_kernels_err_by_rounding_only() -> None:
    projected, derivative = arguments(1, 2, 70, 32, dtype=jnp.bfloat16)
    actual = results(attention, 2, projected, derivative)
    assert {array.dtype for array in actual} == {jnp.dtype(jnp.bfloat16)}
    wide = projected.astype(jnp.float32), derivative.astype(jnp.float32)
    assert 1e-4 < relative_error(actual, results(reference, 2, *wide)) < 0.02


def attending_to_themselves(length: int) -> tuple[jax.Array, jax.Array]:
    """Return arguments of positions whose keys are like their queries."""
    projected, derivative = arguments(1, 1, length, 32)
    queries = 2 * projected[..., :32]
    return projected.at[..., :64].set(jnp.concatenate([queries, queries], -1)), derivative


def test_rounding_does_not_spoil_gradients_if_each_position_attends_to_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products round their factors to TF32 here, as on a GPU, and so must the sums that have to agree with them."""
    projected, derivative = attending_to_themselves(64)

    def gradient() -> jax.Array:
        kept = forward.__wrapped__(projected, 1)  # not what other tests have traced
        return backward.__wrapped__(derivative, projected, *kept, 1)[..., :64]

    exact, dot, rounded = gradient(), pallas.dot, pallas.in_tf32
    monkeypatch.setattr(pallas, "dot", lambda a, b, **how: dot(rounded(a), rounded(b), **how))
    spoiled = relative_error(gradient(), exact)
    monkeypatch.setattr(pallas, "factor", lambda x, dtype: rounded(x))
    assert relative_error(gradient(), exact) < 5e-3 < spoiled


def test_numbers_are_rounded_to_tf32() -> None:
    numbers = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    np.testing.assert_array_equal(pallas.in_tf32(numbers), jax.lax.reduce_precision(numbers, 8, 10))
    special = jnp.array([jnp.nan, jnp.inf, -jnp.inf, 0, 1 + 2**-11, 1 + 3 * 2**-11])
    np.testing.assert_array_equal(pallas.in_tf32(special), [jnp.nan, jnp.inf, -jnp.inf, 0, 1, 1 + 2**-9])


def test_large_scores_do_not_overflow() -> None:
    projected, derivative = arguments(1, 1, 70, 16)
    found = results(attention, 1, 300 * projected, derivative)
    assert all(bool(jnp.isfinite(array).all()) for array in found)
    assert relative_error(found[0], results(reference, 1, 300 * projected, derivative)[0]) < 1e-4


@pytest.mark.parametrize("length", [130, 96])
def test_tuning_changes_no_result(length: int) -> None:
    projected, derivative = arguments(1, 1, length, 16)
    first, second = Tuning(own=64, others=32), Tuning(own=16, others=64)
    expected, actual = (forward(projected, 1, tuning) for tuning in (first, second))
    assert relative_error(actual, expected) < 1e-5
    derivatives = [backward(derivative, projected, *expected, 1, tuning) for tuning in (first, second)]
    assert relative_error(*derivatives) < 1e-5


@pytest.mark.parametrize(("width", "heads"), [(48, 2), (32, 3), (32, 4)])
def test_heads_must_fit_the_tiles(width: int, heads: int) -> None:
    with pytest.raises(ValueError, match=f"{heads} heads in a width of {width}: expected heads of a power of two"):
        attention(arguments(1, 1, 4, width)[0], heads)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_are_lowered_for_a_gpu(dtype: Any) -> None:
    given = arguments(1, 2, 256, 384, dtype=dtype)
    lowered = lowered_for_cuda(lambda *given: jax.vjp(lambda p: attention(p, 6), given[0])[1](given[1]), *given)
    assert lowered.count("triton") == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 5e-3), (jnp.bfloat16, 2e-2)])
@pytest.mark.parametrize("length", [256, 100])
def test_on_a_gpu_the_kernels_compute_causal_attention(dtype: Any, tolerance: float, length: int) -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    given = arguments(2, 3, length, 384, dtype=dtype)
    with jax.default_matmul_precision("highest"):
        expected = results(reference, 6, *(array.astype(jnp.float32) for array in given))
    assert relative_error(results(attention, 6, *given), expected) < tolerance


@pytest.mark.gpu
def test_on_a_gpu_rounding_does_not_spoil_gradients_if_each_position_attends_to_itself() -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    given = attending_to_themselves(256)
    with jax.default_matmul_precision("highest"):
        _, expected = results(reference, 1, *given)
    _, gradient = results(attention, 1, *given)
    assert relative_error(gradient[..., :64], expected[..., :64]) < 5e-3  # of queries and keys
