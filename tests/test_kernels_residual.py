"""The kernels of residual connections against plain JAX: interpreted on a CPU, or compiled on a GPU."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import pallas
from levelfield.kernels.residual import Tuning, added_and_normalized, backward, forward, reference

DROP = 51


def arguments(*shape: int, dtype: Any = jnp.float32, noisy: bool = True) -> Any:
    """Return a stream, a branch, noise, a scale, and derivatives of the two results."""
    random = np.random.default_rng(0)
    stream, branch, *derivatives = (jnp.asarray(random.normal(size=shape) + 0.5, dtype) for _ in range(4))
    noise = jnp.asarray(random.integers(0, 256, shape), jnp.uint8) if noisy else None
    return stream, branch, noise, jnp.asarray(random.normal(size=(shape[0], shape[-1])), jnp.float32), derivatives


def results(function: Any, stream: Any, branch: Any, noise: Any, scale: Any, derivatives: Any) -> Any:
    def both(*given: jax.Array) -> Any:
        found, pull = jax.vjp(lambda *given: function(*given[:2], noise, given[2], DROP), *given)
        return found, pull(tuple(derivatives))

    return jax.jit(both)(stream, branch, scale)


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize(
    "shape", [(2, 3, 5, 48), (3, 41, 16), (1, 1, 3), (1, 5, 130), (2, 3, 450), (1, 8, 384)]
)  # widths and rows that do not fill a tile, and rows of several pieces
def test_the_kernels_compute_what_xla_computes(shape: tuple[int, ...], noisy: bool) -> None:
    given = arguments(*shape, noisy=noisy)
    assert relative_error(results(added_and_normalized, *given), results(reference, *given)) < 1e-5


@pytest.mark.parametrize("noisy", [True, False])
def test_a_branch_that_begins_the_stream_is_added_to_zeros(noisy: bool) -> None:
    stream, *given = arguments(2, 3, 5, 48, noisy=noisy)
    found, (dstream, *gradients) = results(added_and_normalized, None, *given)
    expected, (_, *expected_gradients) = results(reference, jnp.zeros_like(stream), *given)
    assert dstream is None
    assert relative_error((found, gradients), (expected, expected_gradients)) < 1e-5
    assert relative_error(results(reference, None, *given)[0], expected) < 1e-6


def test_the_reference_is_pytorchs_dropout_and_layer_normalization(torch: Any) -> None:
    stream, branch, noise, scale, (dtotal, dnormalized) = arguments(1, 5, 48)
    inputs = [torch.tensor(np.asarray(array), dtype=torch.float64) for array in (stream, branch, scale[0])]
    for array in inputs:
        array.requires_grad_()
    kept = torch.tensor(np.asarray(noise) >= DROP)
    total = inputs[0] + inputs[1] * kept / ((256 - DROP) / 256)
    normal = torch.nn.functional.layer_norm(total, (48,), inputs[2], None, 1e-5)
    d, dnormal = (torch.tensor(np.asarray(derivative)) for derivative in (dtotal, dnormalized))
    ((total * d).sum() + (normal * dnormal).sum()).backward()
    found, gradients = results(reference, stream, branch, noise, scale, (dtotal, dnormalized))
    for actual, expected in zip(found, (total, normal), strict=True):
        np.testing.assert_allclose(actual, expected.detach().numpy(), atol=1e-5)
    for actual, array in zip(gradients, inputs, strict=True):
        np.testing.assert_allclose(actual, array.grad.numpy().reshape(actual.shape), atol=1e-5)


def test_in_bfloat16_the_kernels_err_by_rounding_only() -> None:
    stream, branch, noise, scale, derivatives = arguments(2, 7, 48, dtype=jnp.bfloat16)
    found, gradients = actual = results(added_and_normalized, stream, branch, noise, scale, derivatives)
    assert [array.dtype.name for array in (*found, *gradients)] == ["bfloat16"] * 4 + ["float32"]
    wide = [array.astype(jnp.float32) for array in (stream, branch, *derivatives)]
    expected = results(reference, *wide[:2], noise, scale, wide[2:])
    assert 1e-4 < relative_error(actual, expected) < 0.01


def test_tuning_changes_no_result() -> None:
    stream, branch, noise, scale, derivatives = arguments(2, 37, 16)
    tunings = Tuning(rows=2, tiles=3), Tuning(rows=8)
    found = [forward(stream, branch, noise, scale, DROP, tuning) for tuning in tunings]
    assert relative_error(*found) < 1e-6
    total, _, statistics = found[0]
    gradients = [backward(*derivatives, total, statistics, noise, scale, DROP, tuning) for tuning in tunings]
    assert relative_error(*gradients) < 1e-5


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_the_kernels_are_lowered_for_a_gpu(dtype: Any) -> None:
    stream, branch, noise, scale, derivatives = arguments(1, 512, 384, dtype=dtype)

    def gradients(*given: jax.Array) -> Any:
        return jax.vjp(lambda *given: added_and_normalized(*given[:2], noise, given[2], DROP), *given)[1](
            tuple(derivatives)
        )

    assert lowered_for_cuda(gradients, stream, branch, scale).count("triton") == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-5), (jnp.bfloat16, 1e-2)])
@pytest.mark.parametrize("noisy", [True, False])
def test_on_a_gpu_the_kernels_compute_what_xla_computes(dtype: Any, tolerance: float, noisy: bool) -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    stream, branch, noise, scale, derivatives = arguments(2, 1000, 384, dtype=dtype, noisy=noisy)
    actual = results(added_and_normalized, stream, branch, noise, scale, derivatives)
    wide = [array.astype(jnp.float32) for array in (stream, branch, *derivatives)]
    assert relative_error(actual, results(reference, *wide[:2], noise, scale, wide[2:])) < tolerance
