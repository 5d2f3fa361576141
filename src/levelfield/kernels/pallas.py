"""Where kernels run, and how they are called: this module has everything that depends on the toolchain or its version.

The kernels are written in Pallas and compiled by its Triton backend. It comes with JAX, so users install nothing else
and need no CUDA compiler; it runs on every NVIDIA GPU since Ampere; and Pallas interprets kernels on a CPU, which tests
them without a GPU. JAX 0.11 calls this backend deprecated, so it will be removed some day. The alternatives were worse
when this was decided: Mosaic GPU, the newer backend of Pallas, is for Hopper and later and requires kernels to manage
shared memory and barriers; jax-triton is one more dependency that must match JAX's version, and it cannot interpret
kernels; CUDA through JAX's foreign function interface needs a compiler at installation. When the backend is gone,
``available`` is false and training goes through plain XLA.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from levelfield.errors import UsageError

try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton
except ImportError:  # a version of JAX that no longer has this backend, or does not have it yet
    triton = None  # type: ignore[assignment]

VARIABLE = "LEVELFIELD_KERNELS"
_OLDEST = (8, 0)  # compute capability of Ampere: bfloat16 and TF32
_MOST = 2**31  # numbers in an array: kernels compute positions in 32 bits
_failures: list[str] = []  # why kernels could not be compiled in this process


def available() -> bool:
    """Return whether kernels can be compiled for the default device."""
    return not unavailable_because()


def kernel_type(precision: str) -> Any:
    """Return the type in which kernels compute at a precision, or None if none can be used for it."""
    asked = getattr(jax.config, "jax_default_matmul_precision", None)  # of all products in JAX, by the user
    if precision == "float32" or (precision == "tf32" and asked not in (None, "default", "tensorfloat32")):
        return None
    if not available():
        return None
    return jnp.bfloat16 if precision == "bfloat16" else jnp.float32


def unavailable_because() -> str:
    """Return why kernels cannot be used, or an empty string if they can."""
    return _unsupported_because() or next(iter(_failures), "")


@contextmanager
def given_up(error: BaseException) -> Iterator[None]:
    """Compile without kernels, because compiling with them failed; if that works, train without them from now on.

    They are tuned for one kind of GPU: others may have less shared memory, and other versions of JAX may use other
    names.
    """
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    most = 160
    short = reason if len(reason) <= most else f"{reason[:most]}…"
    _failures.append(f"they cannot be compiled here ({short}); {VARIABLE}=off saves the attempt")
    try:
        yield
    except BaseException:  # the kernels were not to blame
        _failures.pop()
        raise


def _unsupported_because() -> str:
    if not wanted():
        return f"{VARIABLE} is off"
    if jax.default_backend() != "gpu":
        return "there is no GPU"
    if triton is None:
        return f"JAX {jax.__version__} does not have Pallas's Triton backend"
    device = jax.local_devices()[0]
    try:
        major, minor = map(int, device.compute_capability.split("."))
    except (AttributeError, ValueError):  # AMD's GPUs have other names
        return f"the kernels are for NVIDIA's GPUs, this is {device.device_kind}"
    if (major, minor) < _OLDEST:
        return f"{device.device_kind} has compute capability {major}.{minor}, the kernels need at least 8.0"
    return ""


def note() -> str:
    """Return a line for the user if there is a GPU but kernels cannot be used on it; otherwise an empty string."""
    reason = unavailable_because() if jax.default_backend() == "gpu" else ""
    return f"training without levelfield's own GPU kernels, which is slower: {reason}" if reason else ""


def wanted() -> bool:
    """Return whether kernels are turned on, which they are unless the user says otherwise."""
    value = os.environ.get(VARIABLE) or "on"
    if value not in ("on", "off"):
        raise UsageError(f"{VARIABLE} = {value!r}: expected 'on' or 'off'")
    return value == "on"


def interpreted() -> bool:
    """Return whether kernels are interpreted: on a CPU, for tests."""
    return jax.default_backend() == "cpu"


def call(
    kernel: Callable[..., None],
    *,
    grid: tuple[int, ...],
    out_shape: Any,
    name: str,
    warps: int,
    stages: int = 1,
    in_specs: Sequence[Any] | None = None,
    out_specs: Any = None,
) -> Callable[..., Any]:
    """Return the function of arrays that runs a kernel; ``warps`` and ``stages`` tune its compilation.

    If an array has too many numbers, it fails as if memory had run out, because fewer slots help then, too.
    """
    specs = {} if in_specs is None else {"in_specs": in_specs, "out_specs": out_specs}
    how: dict[str, Any] = (
        {"interpret": True}
        if interpreted()
        else {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=stages)}
    )
    run = pallas.pallas_call(kernel, grid=grid, out_shape=out_shape, name=name, **specs, **how)

    def called(*arrays: jax.Array) -> Any:
        largest = max(math.prod(array.shape) for array in jax.tree.leaves((arrays, out_shape)))
        if largest >= _MOST:
            raise jax.errors.JaxRuntimeError(
                f"RESOURCE_EXHAUSTED: {name}: an array of {largest:,} numbers; kernels take less than {_MOST:,}"
            )
        return run(*arrays)

    return called


def slot_of(*shape: int) -> Any:
    """Return the specification of an array with a leading axis of slots, of which each program sees its own slot."""
    return pallas.BlockSpec((None, *shape), lambda slot: (slot, *[0] * len(shape)))


# The operations that kernels use. Names that JAX moves or removes are replaced here.


def number() -> Any:
    """Return the number of this program in a grid with one axis."""
    return pallas.program_id(0)


def load(reference: Any, mask: jax.Array | None = None) -> jax.Array:
    """Load numbers, and zeros where the mask is false."""
    return triton.load(reference, mask=mask, other=None if mask is None else jnp.zeros((), reference.dtype))


def store(reference: Any, values: jax.Array, mask: jax.Array | None = None) -> None:
    """Store numbers where the mask is true, in the type of the array."""
    triton.store(reference, values.astype(reference.dtype), mask=mask)


def dot(a: jax.Array, b: jax.Array, *, transposed: bool = False) -> jax.Array:
    """Multiply matrices, the second one transposed or not. Sums are in float32; factors in float32 become TF32."""
    return triton.dot(a, b, trans_b=transposed, precision=jax.lax.Precision.DEFAULT)


def factor(x: jax.Array, dtype: Any) -> jax.Array:
    """Round numbers to what products keep of their factors, so that other sums can agree with a product."""
    return x.astype(dtype) if dtype != jnp.float32 or interpreted() else in_tf32(x)


def in_tf32(x: jax.Array) -> jax.Array:
    """Round numbers in float32 to TF32, which has 10 bits after the first one; ties go to even numbers."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    bits += 0xFFF + ((bits >> 13) & 1)
    rounded = jax.lax.bitcast_convert_type(bits & ~0x1FFF, jnp.float32)
    return jnp.where(x == x, rounded, x)  # the bits of NaN would overflow


def part(start: int, size: int) -> Any:
    """Return a slice of a reference."""
    return pallas.ds(start, size)


def tanh(x: jax.Array) -> jax.Array:
    """Return the hyperbolic tangent; on a GPU by its own instruction, whose relative error is at most 2⁻¹¹."""
    return jnp.tanh(x) if interpreted() else triton.approx_tanh(x)


def sigmoid(x: jax.Array) -> jax.Array:
    return 0.5 * tanh(0.5 * x) + 0.5
