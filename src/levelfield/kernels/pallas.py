"""Pallas, JAX's language for kernels, through its Triton backend. What depends on JAX's version is here."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental import pallas as pl

try:
    from jax.experimental.pallas import triton
except ImportError:  # removed from this version of JAX
    triton = None

_LEAST_CAPABILITY = 8.0  # Ampere: the first GPUs with bfloat16 and TF32


def available() -> bool:
    """Whether kernels can be compiled for this machine's device."""
    return not unavailable_because()


@functools.cache
def unavailable_because() -> str:
    """Say why kernels cannot be compiled for this machine's device; empty if they can."""
    device = jax.local_devices()[0]
    if triton is None:
        return f"JAX {jax.__version__} has no Triton backend for Pallas"
    if device.platform not in ("gpu", "cuda"):
        return f"the device is a {device.platform.upper()}"
    if float(getattr(device, "compute_capability", 0)) < _LEAST_CAPABILITY:
        return f"{device.device_kind} is older than the kernels need"
    return ""


def interpreted() -> bool:
    """Whether kernels are run by JAX's interpreter, which tests use where there is no GPU."""
    return jax.default_backend() == "cpu"


def call(
    kernel: Callable[..., None], *, grid: tuple[int, ...], out_shape: Any, name: str, warps: int, stages: int
) -> Callable[..., Any]:
    """Return the function of arrays that runs the kernel on a grid of programs."""
    options: dict[str, Any] = {"interpret": True}
    if not interpreted():
        options = {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=stages)}
    return pl.pallas_call(kernel, grid=grid, out_shape=out_shape, name=name, **options)
