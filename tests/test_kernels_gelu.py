"""The kernel of GELU against JAX's and PyTorch's: interpreted on a CPU, or compiled on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels import pallas
from levelfield.kernels.gelu import gelu, reference


def arguments(*shape: int, dtype: Any = jnp.float32) -> tuple[jax.Array, jax.Array]:
    random = np.random.default_rng(0)
    x, derivative = (jnp.asarray(random.normal(size=shape) * scale, dtype) for scale in (3, 1))
    return x, derivative


def results(function: Callable[[jax.Array], jax.Array], x: jax.Array, derivative: jax.Array) -> Any:
    found, pull = jax.vjp(function, x)
    return found, *pull(derivative)


@pytest.mark.parametrize("shape", [(2, 1024), (3, 5, 7), (1,)])  # blocks that are full, partly full, and hardly so
def test_the_kernel_computes_what_xla_computes(shape: tuple[int, ...]) -> None:
    assert relative_error(results(gelu, *arguments(*shape)), results(reference, *arguments(*shape))) < 1e-5


def test_the_reference_is_pytorchs_gelu(torch: Any) -> None:
    x, derivative = arguments(3, 40)
    given = torch.tensor(np.asarray(x), requires_grad=True)
    expected = torch.nn.functional.gelu(given, approximate="tanh")
    expected.backward(torch.tensor(np.asarray(derivative)))
    found, dx = results(reference, x, derivative)
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(dx, given.grad.numpy(), atol=1e-5)


def test_in_bfloat16_the_kernel_errs_by_rounding_only() -> None:
    given = arguments(3, 700, dtype=jnp.bfloat16)
    found = results(gelu, *given)
    assert {array.dtype for array in found} == {np.dtype(jnp.bfloat16)}
    wide = tuple(array.astype(jnp.float32) for array in given)
    assert relative_error(found, results(reference, *wide)) < 3e-3


def test_numbers_far_from_zero_become_themselves_or_zero() -> None:
    x = jnp.array([-1e30, -100.0, 0.0, 100.0, 1e30])
    np.testing.assert_array_equal(gelu(x), jnp.maximum(x, 0))


def test_the_kernels_lower_for_cuda() -> None:
    assert lowered_for_cuda(lambda *given: results(gelu, *given), *arguments(2, 4096)).count("triton") == 2


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float32, 1e-3), (jnp.bfloat16, 3e-3)])
def test_on_a_gpu_the_kernels_compute_what_xla_computes(dtype: Any, tolerance: float) -> None:
    if not pallas.available():
        pytest.skip("there is no GPU with kernels")
    given = arguments(2, 5000, dtype=dtype)
    wide = tuple(array.astype(jnp.float32) for array in given)
    assert relative_error(jax.jit(lambda *given: results(gelu, *given))(*given), results(reference, *wide)) < tolerance
