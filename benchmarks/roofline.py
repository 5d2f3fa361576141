"""The least time that a training step can take on a device, from its arithmetic and its memory traffic.

    python benchmarks/roofline.py [--products 795] [--memory 4.2] [--measure]

Each layer needs its products: one forward and two backward (the first layer: one), and its outputs pass through memory
five times: written, read by the next layer, read again backward, and their gradient written and read. A layer takes at
least the longer of the two times, at the device's measured speed of large matrix products and copies. Adam reads and
writes each weight and its two averages in float32, and the gradient is written and read: 32 bytes per weight. Layers
that can be one kernel, such as a convolution with its pooling, count as one. --measure measures the ceilings on this
machine's device.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

from aligned import table

BYTES_PER_WEIGHT = 32
PASSES = 5  # of a layer's outputs through memory


class Layer(NamedTuple):
    products: float  # multiplications and additions of a forward pass, in pairs
    outputs: float  # numbers that leave the layer
    backward: int = 2  # products of the same size in the backward pass


class Step(NamedTuple):
    weights: int
    layers: list[Layer]

    def flops(self) -> float:
        return sum(2 * layer.products * (1 + layer.backward) for layer in self.layers)

    def bytes(self, width: int) -> float:
        return sum(PASSES * layer.outputs * width for layer in self.layers) + BYTES_PER_WEIGHT * self.weights

    def seconds(self, width: int, products: float, memory: float) -> float:
        """Return the least time with numbers of this many bytes, for products and bytes per second."""
        layers = sum(
            max(2 * layer.products * (1 + layer.backward) / products, PASSES * layer.outputs * width / memory)
            for layer in self.layers
        )
        return layers + BYTES_PER_WEIGHT * self.weights / memory


def simple_cnn(batch: int = 256) -> Step:
    layers = [
        Layer(28 * 28 * 25 * 32, 14 * 14 * 32, backward=1),
        Layer(14 * 14 * 25 * 32 * 64, 7 * 7 * 64),
        Layer(3136 * 1024, 1024),
        Layer(1024 * 10, 10),
    ]
    return Step(3_274_634, [per_batch(layer, batch) for layer in layers])


def resnet32(batch: int = 256) -> Step:
    layers, before = [Layer(32 * 32 * 27 * 16, 32 * 32 * 16, backward=1)], 16
    for features, side in ((16, 32), (32, 16), (64, 8)):
        pixels = side * side
        for block in range(5):
            first = before if block == 0 else features
            layers += [Layer(pixels * 9 * c * features, pixels * features) for c in (first, features)]
            if first != features:
                layers.append(Layer(pixels * first * features, pixels * features))
        before = features
    return Step(466_714, [per_batch(layer, batch) for layer in [*layers, Layer(64 * 10, 10)]])


def lstm(batch: int = 50, time: int = 50, units: int = 128, characters: int = 83) -> Step:
    """A layer's outputs are its four gates, its cell state and its output; the projection is part of the layer."""
    layers = [Layer(2 * units * 4 * units, 6 * units)] * 2 + [Layer(units * characters, characters)]
    return Step(284_499, [per_batch(layer, batch * time) for layer in layers])


def gpt(batch: int = 64, length: int = 256, width: int = 384, blocks: int = 6, characters: int = 83) -> Step:
    """Each block has four kernels at least: queries, keys and values; attention (causal: half); two dense layers."""
    layers = []
    for _ in range(blocks):
        layers += [
            Layer(3 * width * width, 3 * width),
            Layer(length * width, width, backward=2),
            Layer(width * width, width),
            Layer(4 * width * width, 4 * width),
            Layer(4 * width * width, width),
        ]
    weights = blocks * 12 * width * width + (characters + length) * width
    return Step(
        weights, [per_batch(layer, batch * length) for layer in [*layers, Layer(width * characters, characters)]]
    )


def per_batch(layer: Layer, batch: int) -> Layer:
    return Layer(layer.products * batch, layer.outputs * batch, layer.backward)


STEPS = {
    "fashion_mnist_cnn": simple_cnn(),
    "cifar10_resnet32": resnet32(),
    "war_and_peace_lstm": lstm(),
    "war_and_peace_gpt": gpt(),
}


def measured() -> tuple[float, float, float]:
    """Return the speed of large products in bfloat16 and in TF32, in FLOP/s, and of a copy, in bytes/s."""
    import jax
    import jax.numpy as jnp

    if jax.default_backend() == "cpu":
        raise SystemExit("--measure needs a GPU")

    def best(function: object, *arguments: object) -> float:
        compiled, seconds = jax.jit(function), []  # type: ignore[call-overload]
        for _ in range(8):
            begun = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            seconds.append(time.perf_counter() - begun)
        return min(seconds)

    n, times = 8192, 20
    speeds = []
    for dtype in (jnp.bfloat16, jnp.float32):
        a = jax.random.normal(jax.random.key(0), (n, n), dtype)
        product = lambda a: jax.lax.fori_loop(0, times, lambda _, x: (a @ x) * (1 / n**0.5), a)  # noqa: E731
        speeds.append(times * 2 * n**3 / best(product, a))
    large = jnp.zeros((2**30,), jnp.float32)
    copy = lambda x: jax.lax.fori_loop(0, times, lambda i, y: y + i, x)  # noqa: E731
    return speeds[0], speeds[1], times * 2 * large.nbytes / best(copy, large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--products", type=float, nargs=2, default=[795, 402], help="TFLOP/s in bfloat16 and in TF32")
    parser.add_argument("--memory", type=float, default=4.2, help="TB/s")
    parser.add_argument("--measure", action="store_true", help="measure the ceilings on this device")
    arguments = parser.parse_args()
    bfloat16, tf32, memory = *(value * 1e12 for value in arguments.products), arguments.memory * 1e12
    if arguments.measure:
        bfloat16, tf32, memory = measured()
    print(f"ceilings: {bfloat16 / 1e12:.0f} TFLOP/s in bfloat16, {tf32 / 1e12:.0f} in TF32, {memory / 1e12:.1f} TB/s")
    rows = [["workload", "precision", "GFLOP", "MB", "least µs", "most trial-steps/s"]]
    for name, step in STEPS.items():
        for precision, width, products in (("bfloat16", 2, bfloat16), ("tf32", 4, tf32)):
            least = step.seconds(width, products, memory)
            amounts = [f"{step.flops() / 1e9:.1f}", f"{step.bytes(width) / 1e6:.0f}", f"{least * 1e6:.1f}"]
            rows.append([name, precision, *amounts, f"{1 / least:,.0f}"])
    print(table(rows))


if __name__ == "__main__":
    main()
