"""Measure kernels on a GPU: the errors of the gradients of workloads with images, and the best tunings.

    python benchmarks/kernels.py check cifar10_resnet32         gradients against those of each trial, in float32
    python benchmarks/kernels.py tune resnet bfloat16           kernels with many tunings: of resnet, cnn, lstm or gpt
    python benchmarks/kernels.py tune cnn tf32 forward          those with this in their name

Several of these can be given at once, separated by a comma; then all are compiled at the same time, on all cores.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gpu import device_events

DTYPES = {"bfloat16": jnp.bfloat16, "tf32": jnp.float32}
BATCH = 256
# When tuning: enough to fill a large GPU.
SLOTS = 64
SLOTS_OF_GPT = 4
SLOTS_OF_LSTM = 264


def model(workload: str) -> Any:
    return importlib.import_module(f"levelfield.models.{workload}")


def arguments(workload: str, slots: int) -> tuple[Any, ...]:
    """Return what ``gradients`` takes at real shapes, with parameters away from zeros and ones."""
    classifier = model(workload).CLASSIFIER
    keys = jax.random.split(jax.random.key(0), slots)
    params, state = jax.jit(jax.vmap(classifier.init))(keys)
    params = jax.tree.map(lambda p: p + 0.02 * jax.random.normal(jax.random.key(p.size), p.shape), params)
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (slots, BATCH, *classifier.shape), dtype=np.uint8)
    images[:, :, :6] = 0
    labels = generator.integers(0, 10, (slots, BATCH), dtype=np.int32)
    return params, state, (jnp.asarray(images), jnp.asarray(labels)), keys, {}


def check(workload: str) -> Iterator[Any]:
    """Print errors of gradients, relative to their norm, and those of XLA at the same precision."""
    classifier = model(workload).CLASSIFIER
    given = arguments(workload, 2)

    def each(cast: Callable[[Any], Any], *given: Any) -> Any:
        params, *rest = given

        def loss(params: Any, *rest: Any) -> Any:
            value, state = classifier.loss(cast(params), *rest)
            return value.astype(jnp.float32), state

        (losses, state), derivatives = jax.vmap(jax.value_and_grad(loss, has_aux=True))(params, *rest)
        return losses, derivatives, state

    def precise(*given: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return each(lambda params: params, *given)

    ways = {"float32": precise, "XLA tf32": functools.partial(each, lambda params: params)}
    ways |= {f"kernels {name}": model(workload).gradients(classifier, dtype) for name, dtype in DTYPES.items()}
    compiled = {name: jax.jit(way).lower(*given).compile() for name, way in ways.items()}
    yield
    results = {name: jax.device_get(function(*given)) for name, function in compiled.items()}
    losses, derivatives, state = results.pop("float32")
    print(f"{workload}: losses {losses}")
    for name, (other_losses, other, other_state) in results.items():
        errors = jax.tree.map(relative_error, other, derivatives)
        worst = sorted(jax.tree_util.tree_leaves_with_path(errors), key=lambda pair: -pair[1])[:3]
        listed = ", ".join(f"{jax.tree_util.keystr(path)} {error:.1e}" for path, error in worst)
        print(
            f"{workload}, {name}: losses off by {np.abs(other_losses - losses).max():.1e}, gradients by "
            f"{relative_error(flat(other), flat(derivatives)):.1e}, state by "
            f"{relative_error(flat(other_state), flat(state)):.1e}; largest: {listed}",
            flush=True,
        )


def flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0), *map(np.ravel, jax.tree.leaves(tree))])


def relative_error(value: Any, expected: Any) -> float:
    return float(np.linalg.norm(value - expected) / max(np.linalg.norm(expected), 1e-30))


@jax.jit
def distance(value: jax.Array, first: jax.Array) -> jax.Array:
    """Return the norm of the difference, relative to that of the first; on the GPU, because arrays are large."""
    value, first = (array.astype(jnp.float32).ravel() for array in (value, first))
    return jnp.linalg.norm(value - first) / jnp.linalg.norm(first)


def tune(network: str, precision: str, kinds: str = "") -> Iterator[Any]:
    """Time a network's kernels, or those with ``kinds`` in their name, with many tunings."""
    if network not in KERNELS or precision not in DTYPES:
        raise SystemExit(f"tune {network} {precision}: expected one of {', '.join(KERNELS)}, and {' or '.join(DTYPES)}")
    measured = KERNELS[network](DTYPES[precision])
    calls = [
        (name, function, given, options)
        for name, function, given, several in measured
        if kinds in name
        for options in several
    ]

    def compile_one(call: tuple[Any, ...]) -> Any:
        _, function, given, options = call
        try:
            return functools.partial(function.lower(*given, **options).compile(), *given)
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:80]!r}"

    with ThreadPoolExecutor(16) as pool:
        compiled = list(pool.map(compile_one, calls))
    yield
    found: dict[str, list[Any]] = collections.defaultdict(list)
    expected: dict[str, Any] = {}
    for (name, _, (first, *_), options), function in zip(calls, compiled, strict=True):
        if isinstance(function, str):
            print(f"{precision} {name} {options['tuning']}: {function}")
            continue
        try:
            result = function()
            pairs = jax.tree.map(distance, result, expected.setdefault(name, result))
            difference = float(np.max(jax.tree.leaves(pairs)))  # NaN if one is
            found[name].append((timed(function) / len(first), options["tuning"], difference))
        except Exception as error:
            print(f"{precision} {name} {options['tuning']}: {type(error).__name__}: {str(error)[:80]!r}")
    for name, results in found.items():
        for duration, tuning, difference in sorted(results)[:6]:
            print(f"{precision} {name}: {1e6 * duration:6.2f} µs, off by {difference:.0e}, {short(tuning)}", flush=True)
        slowest = max(results)
        print(f"{precision} {name}: {1e6 * slowest[0]:6.2f} µs, slowest of {len(results)}: {short(slowest[1])}")


def short(tuning: Any) -> str:
    """Return a tuning as code, without its defaults."""
    defaults = type(tuning)()._asdict()
    return ", ".join(f"{key}={value}" for key, value in tuning._asdict().items() if value != defaults[key])


def normal(number: int, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
    return jax.random.normal(jax.random.key(number), shape).astype(dtype)


def resnet_kernels(dtype: Any) -> Iterator[Any]:
    """Yield (name, function, arguments, options) of each kernel of ResNet-32."""
    from levelfield.kernels import convolution as kernels

    for inputs, outputs, stride in ((16, 16, 1), (32, 32, 1), (64, 64, 1), (16, 64, 2), (32, 128, 2), (4, 16, 1)):
        side = 512 // max(inputs, 16)
        x = normal(0, (SLOTS, BATCH, side, side, inputs), dtype)
        dy = normal(1, (SLOTS, BATCH, side // stride, side // stride, outputs), dtype)
        kernel = normal(2, (SLOTS, 3, 3, inputs, outputs)) / 12
        normalization = kernels.Normalization(*jnp.abs(normal(3, (4, SLOTS, inputs))))
        for function, given in (
            (kernels.convolution, (x, kernel)),
            (kernels.input_gradient, (dy, kernel, x, normalization)),
            (kernels.kernel_gradient, (x, dy)),
        ):
            kind = function.__name__
            if inputs > 4:
                several = list(candidates(kind, dtype, 3, inputs, outputs, stride))
            elif kind != "input_gradient" and dtype == jnp.bfloat16:
                several = [tuning for tuning in candidates(kind, dtype, 3, 16, 16, 1) if tuning.group[1] == 2]
            else:
                continue
            options = [{"stride": stride, "tuning": tuning} for tuning in several]
            yield f"{kind} {inputs}→{outputs}", function, given, options


def cnn_kernels(dtype: Any) -> Iterator[Any]:
    """Yield (name, function, arguments, options) of each kernel of Simple CNN."""
    from levelfield.kernels import convolution
    from levelfield.kernels import pooled_convolution as kernels
    from levelfield.kernels.windowed_products import Tuning

    images, pooled = normal(0, (SLOTS, BATCH, 28, 28, 1), dtype), normal(1, (SLOTS, BATCH, 14, 14, 32), dtype)
    first, second = normal(2, (SLOTS, 5, 5, 1, 32)) / 5, normal(3, (SLOTS, 5, 5, 32, 64)) / 28
    winners = (1 << jax.random.randint(jax.random.key(4), pooled.shape, 0, 4)).astype(jnp.int8)
    dy, biases = normal(5, (SLOTS, BATCH, 14, 14, 64), dtype), jnp.zeros((SLOTS, 64))
    pixels = [
        Tuning((2, 2), rows=rows, run=64, tiles=tiles, warps=warps)
        for rows, tiles, warps in itertools.product((32, 64, 128), (1, 4), (2, 4, 8))
    ]
    gradients = [
        Tuning((2, 2), rows=rows, run=64, window_rows=8, parts=parts, warps=warps, stages=stages, ahead=ahead)
        for rows, parts, warps, stages, ahead in itertools.product((32, 64), (4, 14, 28), (4, 8), (1, 3), (False, True))
    ]
    for name, function, given, several in (
        ("first forward", kernels.pooled_convolution, (images, first, biases[:, :32]), pixels),
        ("first kernel_gradient", kernels.first_kernel_gradient, (images, pooled, winners), gradients),
        (
            "forward",
            kernels.pooled_convolution,
            (pooled, second, biases),
            [t for t in candidates("convolution", dtype, 5, 32, 64, 1) if t.group in ((2, 1), (2, 2))],
        ),
        ("input_gradient", kernels.input_gradient, (dy, second), candidates("input_gradient", dtype, 5, 32, 64, 1)),
    ):
        yield name, function, given, [{"tuning": tuning} for tuning in several]
    options = [{"size": 5, "tuning": tuning} for tuning in candidates("kernel_gradient", dtype, 5, 32, 64, 1)]
    yield "second kernel_gradient", convolution.kernel_gradient, (pooled, dy), options


def gpt_kernels(dtype: Any) -> Iterator[Any]:
    """Yield (name, function, arguments, options) of each kernel of the GPT."""
    from levelfield.kernels import attention, residual

    length, width, heads = 256, 384, 6
    slots = SLOTS_OF_GPT
    projected = normal(0, (slots, 64, length, 3 * width), dtype)
    stream, branch, derivative = (normal(number, (slots, 64, length, width), dtype) for number in (1, 2, 3))
    noise, scale = jax.random.bits(jax.random.key(4), stream.shape, jnp.uint8), jnp.ones((slots, width))
    several = [
        {"heads": heads, "tuning": attention.Tuning(*chosen)}
        for chosen in itertools.product((64, 128), (32, 64), (4, 8), (1, 2, 3))
    ]
    yield "attention forward", attention.forward, (projected,), several
    attended, logarithms = attention.forward(projected, heads)
    yield "attention backward", attention.backward, (derivative, projected, attended, logarithms), several
    several = [
        {"drop": 51, "tuning": residual.Tuning(*chosen)}
        for chosen in itertools.product((1, 2, 4), (1, 2, 4, 8, 16, 32), (1, 2, 4))
        if 1 <= chosen[0] / chosen[2] <= 4
    ]
    yield "residual forward", residual.forward, (stream, branch, noise, scale), several
    total, _, statistics = residual.forward(stream, branch, noise, scale, 51)
    given = (derivative, derivative, total, statistics, noise, scale)
    yield "residual backward", residual.backward, given, several


def lstm_kernels(dtype: Any) -> Iterator[Any]:
    """Yield (name, function, arguments, options) of each kernel of the LSTM."""
    from levelfield.kernels import recurrence

    slots, time, batch, units = SLOTS_OF_LSTM, 50, 50, 128
    projected, gates = (0.3 * normal(number, (slots, time, batch, 4 * units), dtype) for number in (0, 1))
    doutputs, cells = normal(2, (slots, time, batch, units), dtype), normal(3, (slots, time + 1, batch, units), dtype)
    weights, bias = normal(4, (slots, units, 4 * units)) / units**0.5, normal(5, (slots, 4 * units))
    state = (normal(6, (slots, batch, units)),) * 2
    noise = jax.random.bits(jax.random.key(7), doutputs.shape, jnp.uint8)
    several = [
        {"drop": 92, "tuning": recurrence.Tuning(*chosen)}
        for chosen in itertools.product((8, 16), (1, 2) if dtype == jnp.float32 else (4,), (False, True))
    ]
    forward, backward = (
        jax.jit(function, static_argnames=("drop", "tuning")) for function in (recurrence.forward, recurrence.backward)
    )
    yield "lstm forward", forward, (projected, weights, bias, state, noise), several
    yield "lstm backward", backward, (doutputs, weights, noise, gates, cells), several


KERNELS = {"resnet": resnet_kernels, "cnn": cnn_kernels, "lstm": lstm_kernels, "gpt": gpt_kernels}


def timed(function: Callable[[], Any], calls: int = 4) -> float:
    """Return how many seconds a GPU is busy with a function. A clock would also count the time to start its kernels."""
    jax.block_until_ready(function())
    events = device_events(lambda: jax.block_until_ready([function() for _ in range(calls)]))
    if not events:
        raise RuntimeError("the profiler saw no kernels")
    return sum(event.duration_ns for event in events) / calls / 1e9


def candidates(kind: str, dtype: Any, size: int, inputs: int, outputs: int, stride: int) -> Iterator[Any]:
    """Yield tunings worth trying: those whose tiles fit into registers."""
    if kind == "input_gradient":
        inputs, outputs = outputs, inputs
    groups = [(1, 1), (1, 2), (2, 1), (2, 2)] if stride == 1 else [(2, 2)] if kind == "input_gradient" else [(1, 1)]
    if size == 3 and stride == 1:
        groups.remove((2, 1))
    several = tf32_candidates if dtype == jnp.float32 else bf16_candidates
    for group in groups:
        window = (2, 2) if stride == 2 and kind == "input_gradient" else tuple(side - 1 + size for side in group)
        yield from several(kind, group, window, inputs, group[0] * group[1] * outputs)


def bf16_candidates(
    kind: str, group: tuple[int, int], window: tuple[int, int], inputs: int, features: int
) -> Iterator[Any]:
    from levelfield.kernels.windowed_products import Tuning

    height, width = window
    run = min(1 << (width.bit_length() - 1), max(1, 256 // inputs))
    for rows, warps in itertools.product((32, 64, 128, 256), (4, 8)):
        if kind == "kernel_gradient":
            for held, stages in itertools.product({1, 2, height}, (1, 3)):
                sums = held * width * inputs * features  # numbers in registers
                if rows <= 64 and height % held == 0 and sums <= 8192 * warps <= max(8192 * 4, 4 * sums):
                    yield Tuning(group, rows, 1, run, warps, stages, window_rows=held)
        elif rows >= 64 and 1024 * warps <= rows * features <= 4096 * warps and features <= 256:
            if height < 5:
                yield Tuning(group, rows, 1, run, warps, 1)
                if height * width * inputs * features <= 2**15:
                    yield Tuning(group, rows, 4, run, warps, 1)
                yield Tuning(group, rows, 1, run, warps, 3, loop="rows")
            else:  # all of a larger window would need too many registers
                yield Tuning(group, rows, 1, 1, warps, 1, loop="rows")
            if rows == 128:
                for length in {1, run}:
                    yield Tuning(group, rows, 1, length, warps, 3, loop="blocks")


def tf32_candidates(
    kind: str, group: tuple[int, int], window: tuple[int, int], inputs: int, features: int
) -> Iterator[Any]:
    """Yield fewer tunings, because larger numbers leave less choice."""
    from levelfield.kernels.windowed_products import Tuning

    height, width = window
    run = min(1 << (width.bit_length() - 1), max(1, 128 // inputs))
    if kind == "kernel_gradient":
        for held, rows, warps in itertools.product({1, height}, (32, 64), (4, 8)):
            if held * width * inputs * features <= 4096 * warps:
                for transposed, ahead in itertools.product((False, True), repeat=2):
                    chosen = Tuning(group, rows, 1, run, warps, window_rows=held)
                    yield chosen._replace(transposed=transposed, ahead=ahead)
    elif features <= 128:
        warps = 8 if features == 128 else 4
        for transposed in (False, True):
            if height < 5:
                yield Tuning(group, 128, 1, 1 if group == (1, 1) else run, warps, 1, transposed=transposed)
            else:
                for rows in (128, 256):
                    yield Tuning(group, rows, 1, 1, warps, 1, loop="rows", transposed=transposed)
            yield Tuning(group, 128, 1, 1, warps, 3, loop="blocks", transposed=transposed)
            if width % 2 == 0:
                yield Tuning(group, 128, 1, 2, warps, 2, loop="blocks", transposed=transposed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", nargs="+", help="as above, separated by commas")
    given = " ".join(parser.parse_args().jobs)
    jobs: list[Iterator[Any]] = []
    for kind, *rest in (part.split() for part in given.split(",")):
        jobs += [tune(*rest)] if kind == "tune" else map(check, rest)
    print(f"{jax.local_devices()[0].device_kind}, JAX {jax.__version__}", flush=True)

    def advance(job: Iterator[Any]) -> None:
        try:
            next(job, None)
        except Exception as error:
            print(f"failed: {type(error).__name__}: {str(error)[:600]}", flush=True)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(advance, jobs))  # compile all
    for job in jobs:
        advance(job)  # measure one after the other


if __name__ == "__main__":
    main()
