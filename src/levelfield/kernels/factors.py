"""Convert convolution kernels to right factors of products over windows, and gradients back: see ``windows``.

XLA would need several slow passes for these gathers, and would lay out the trained parameters to suit them. Here
parameters and gradients keep their usual layout.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from levelfield.kernels import pallas
from levelfield.kernels.windows import Axis

_BLOCK = 4096  # numbers that a program loads at once


def right_factors(
    kernel: jax.Array, rows: Axis, columns: Axis, dtype: Any, *, backward: bool = False, transposed: bool = False
) -> jax.Array:
    """Return (slots · window height · window width · channels, group · features), with zeros outside the kernels.

    ``backward`` swaps channels and features, ``transposed`` each slot's rows and columns in the result.
    """
    slots, height, width, *sizes = kernel.shape
    channels, features = reversed(sizes) if backward else sizes
    down, across = np.array(rows.taps)[:, None, :, None], np.array(columns.taps)[None, :, None, :]
    taps = np.where((down < 0) | (across < 0), -1, down * width + across)
    places, copies = rows.window * columns.window, rows.group * columns.group

    def program(kernel_ref: Any, taps_ref: Any, out_ref: Any) -> None:
        number = pallas.number()
        slot, place = lax.div(number, places), lax.rem(number, places)
        channel = jnp.arange(channels, dtype=jnp.int32)[:, None]
        feature = jnp.arange(features, dtype=jnp.int32)[None, :]
        element = feature * channels + channel if backward else channel * features + feature
        for copy in range(copies):
            tap = taps_ref[place * copies + copy]
            first = (slot * (height * width) + jnp.maximum(tap, 0)) * (channels * features)
            block = pallas.load(kernel_ref.at[first + element], jnp.broadcast_to(tap >= 0, element.shape))
            if transposed:
                line = (slot * copies + copy) * features + feature
                at = line * (places * channels) + place * channels + channel
            else:
                at = (number * channels + channel) * (copies * features) + copy * features + feature
            pallas.store(out_ref.at[at], block)

    shape = (copies * features, places * channels) if transposed else (places * channels, copies * features)
    factors: jax.Array = pallas.call(
        program,
        grid=(slots * places,),
        out_shape=jax.ShapeDtypeStruct((slots * shape[0] * shape[1],), dtype),
        name="right_factors",
        warps=4,
    )(kernel.reshape(-1), jnp.asarray(taps.reshape(-1), jnp.int32))
    return factors.reshape(slots * shape[0], shape[1])


def collected(gradients: jax.Array, rows: Axis, columns: Axis, channels: int) -> jax.Array:
    """Return the kernels' gradients from those of the right factors (slots, parts, window, group · features).

    They are the sum over the parts and over all places of a tap.
    """
    slots, parts, window, width = gradients.shape
    copies = rows.group * columns.group
    features = width // copies
    down, across = rows.places[:, None, :, None], columns.places[None, :, None, :]
    places = down * columns.window + across
    height, width = places.shape[:2]
    loaded = 1 << (parts - 1).bit_length()
    piece = min(channels * features, _BLOCK // loaded)
    pieces = channels * features // piece

    def program(gradients_ref: Any, places_ref: Any, out_ref: Any) -> None:
        number = pallas.number()
        tap = lax.rem(lax.div(number, pieces), height * width)
        slot = lax.div(number, pieces * height * width)
        element = lax.rem(number, pieces) * piece + jnp.arange(piece, dtype=jnp.int32)
        part = jnp.arange(loaded, dtype=jnp.int32)[:, None]
        mask = jnp.broadcast_to(part < parts, (loaded, piece))
        total = jnp.zeros((loaded, piece), jnp.float32)
        for copy in range(copies):
            row = places_ref[tap * copies + copy] * channels + lax.div(element, features)
            at = ((slot * parts + part) * window + row[None, :]) * (copies * features)
            at += copy * features + lax.rem(element, features)[None, :]
            total += pallas.load(gradients_ref.at[at], mask)
        out_ref[pallas.part(number * piece, piece)] = total.sum(0)

    size = height * width * channels * features
    kernels: jax.Array = pallas.call(
        program,
        grid=(slots * height * width * pieces,),
        out_shape=jax.ShapeDtypeStruct((slots * size,), jnp.float32),
        name="collected_gradients",
        warps=4,
    )(gradients.reshape(-1), jnp.asarray(places.reshape(-1), jnp.int32))
    return kernels.reshape(slots, height, width, channels, features)
