"""The array library of an argument: numpy or jax.numpy.

Equations written with it run on either, and importing them loads no JAX.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def namespace(x: Any) -> Any:
    """Return jax.numpy for a JAX array or tracer, and numpy for a number or a numpy array.

    >>> namespace(2.0).__name__
    'numpy'
    """
    return x.__array_namespace__() if hasattr(x, "__array_namespace__") else np


def sqrt(x: Any) -> Any:
    """The square root, computed by the library of ``x``."""
    return namespace(x).sqrt(x)
