"""The kernel of the cross entropy against plain JAX and PyTorch, in Pallas's interpreter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from training_helpers import lowered_for_cuda, relative_error

from levelfield.kernels.cross_entropy import linear_cross_entropy, linear_logits, reference


def arguments(slots: int, rows: tuple[int, ...], width: int, classes: int, *, biased: bool = True) -> Any:
    random = np.random.default_rng(0)
    x, weights, bias = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in [(slots, *rows, width), (slots, width, classes), (slots, classes)]
    )
    return x, weights, bias if biased else None, jnp.asarray(random.integers(0, classes, (slots, *rows)), jnp.int32)


def results(function: Any, x: jax.Array, weights: jax.Array, bias: jax.Array | None, targets: jax.Array) -> Any:
    """The losses, and the gradients of their weighted sum."""
    factors = jnp.arange(1.0, len(x) + 1)

    def total(*differentiated: Any) -> tuple[jax.Array, jax.Array]:
        losses = function(*differentiated, targets)
        return losses @ factors, losses

    gradients, losses = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(x, weights, bias)
    return losses, gradients


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize(("rows", "classes"), [((3, 7), 11), ((16,), 8), ((1,), 2), ((40,), 83)])
def test_the_kernel_computes_what_xla_computes(rows: tuple[int, ...], classes: int, biased: bool) -> None:
    given = arguments(2, rows, 16, classes, biased=biased)
    assert relative_error(results(linear_cross_entropy, *given), results(reference, *given)) < 1e-5


@pytest.mark.parametrize("biased", [True, False])
def test_logits_are_those_of_a_linear_layer(biased: bool) -> None:
    x, weights, bias, _ = arguments(2, (3, 7), 16, 11, biased=biased)
    expected = np.einsum("srtw,swc->srtc", np.float64(x), np.float64(weights))
    expected += 0.0 if bias is None else np.float64(bias)[:, None, None]
    np.testing.assert_allclose(linear_logits(x, weights, bias), expected, atol=1e-5)


def test_the_reference_is_pytorchs_cross_entropy(torch: Any) -> None:
    x, weights, bias, targets = arguments(1, (5,), 16, 11)
    inputs = [
        torch.tensor(np.asarray(array[0]), dtype=torch.float64, requires_grad=True) for array in (x, weights, bias)
    ]
    loss = torch.nn.functional.cross_entropy(
        inputs[0] @ inputs[1] + inputs[2], torch.tensor(np.asarray(targets[0])).long()
    )
    loss.backward()
    losses, gradients = results(reference, x, weights, bias, targets)
    np.testing.assert_allclose(losses, [loss.item()], rtol=1e-5)
    for found, expected in zip(gradients, inputs, strict=True):
        np.testing.assert_allclose(found[0], expected.grad.numpy(), atol=1e-6)


def test_large_logits_do_not_overflow() -> None:
    x, weights, bias, targets = arguments(1, (5,), 16, 11)
    losses, gradients = results(linear_cross_entropy, 100 * x, weights, bias, targets)
    assert all(np.isfinite(array).all() for array in jax.tree.leaves((losses, gradients)))


def test_in_bfloat16_only_the_derivatives_by_the_logits_are_rounded() -> None:
    x, weights, bias, targets = arguments(2, (9,), 16, 11)
    half = x.astype(jnp.bfloat16)
    losses, gradients = results(linear_cross_entropy, half, weights, bias, targets)
    wide = half.astype(jnp.float32), weights.astype(jnp.bfloat16).astype(jnp.float32), bias, targets
    expected_losses, expected = results(reference, *wide)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert {gradient.dtype for gradient in gradients[1:]} == {np.dtype(np.float32)}
    assert relative_error(gradients, expected) < 1e-2


def test_the_kernel_lowers_for_cuda() -> None:
    given = arguments(2, (64, 256), 384, 83, biased=False)
    assert lowered_for_cuda(lambda *given: results(linear_cross_entropy, *given), *given).count("triton") == 1
