"""Measure the training of the LSTM on War and Peace with levelfield's own GPU kernels, and the kernels alone.

    python benchmarks/recurrence.py [check] [rate] [plain] [profile] [tune] [--slots 132,264] [--precisions tf32]
        [--hlo FILE]

``check`` compares the gradients with those of the plain way in float32, ``rate`` measures trial-steps per second with
adam, ``plain`` does so without the kernels, ``profile`` lists where a step's time goes, and ``tune`` measures the
kernels alone in several tunings. ``--hlo`` writes the compiled program of the profiled step, one file a precision. The
text is random: it does not change how long a step takes. Needs a GPU.
"""

from __future__ import annotations

import argparse
import collections
import functools
import glob
import re
import statistics
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from levelfield.kernels import pallas, recurrence
from levelfield.kernels.recurrence import Tuning
from levelfield.models import war_and_peace_lstm as workload
from levelfield.workloads.war_and_peace_lstm import STREAMS, WINDOW

UNITS = workload.NET.units
STATS = ("name", "tf_op", "hlo_op", "long_name", "kernel_details")  # of the profiler, about an event
DTYPES = {"bfloat16": jnp.bfloat16, "tf32": jnp.float32}
TUNINGS = {
    ("bfloat16", "forward"): [Tuning(warps=16, early=True), Tuning(early=True)],
    ("bfloat16", "backward"): [Tuning(), Tuning(early=True), Tuning(warps=16, early=True)],
    ("tf32", "forward"): [Tuning(resident=2), Tuning(resident=2, early=True), Tuning(resident=1)],
    ("tf32", "backward"): [Tuning(resident=2), Tuning(resident=2, early=True)],
}


def trials(slots: int) -> tuple[Any, Any, Any]:
    """Return the parameters, the state and the random keys of new trials."""
    keys = jax.random.split(jax.random.key(0), slots)
    return *jax.jit(jax.vmap(workload.init))(keys), keys


def texts(count: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).integers(0, 83, (count, STREAMS, WINDOW + 1), dtype=np.uint8))


def plain(params: Any, state: Any, batch: Any, keys: Any, hyperparameters: Any) -> tuple[Any, Any, Any]:
    found = jax.vmap(jax.value_and_grad(workload.loss, has_aux=True))(params, state, batch, keys, hyperparameters)
    (losses, state), gradients = found
    return losses, gradients, state


# ---------------------------------------------------------------------------- the whole step


def check(precisions: list[str], slots: int = 3) -> None:
    params, state, keys = trials(slots)
    state = jax.tree.map(lambda leaf: leaf + 0.3, state)
    arguments = (params, state, (texts(slots), jnp.array([True, False, False])), keys, {})
    with jax.default_matmul_precision("highest"):
        expected = jax.jit(plain)(*arguments)
    for precision in precisions:
        actual = jax.jit(gradients_of(precision))(*arguments)
        errors = jax.tree.map(lambda a, b: float(jnp.linalg.norm(a - b) / jnp.linalg.norm(b)), actual, expected)
        named = jax.tree_util.tree_leaves_with_path(errors)
        print(f"check {precision}: relative errors", flush=True)
        for path, error in named:
            print(f"    {error:.1e} {jax.tree_util.keystr(path)}", flush=True)
        assert max(error for _, error in named) < (0.03 if precision == "bfloat16" else 0.01)


def gradients_of(precision: str) -> Any:
    gradients = workload.batched(precision)
    if gradients is None:
        raise SystemExit(f"the kernels cannot be used: {pallas.unavailable_because()}")
    return gradients


def training(gradients: Any, slots: int, steps: int) -> Any:
    """Return a function that trains new trials by this many steps each time, how long it took to compile, its HLO."""
    optimizer = optax.adam(2e-3)

    def train(params: Any, moments: Any, state: Any, keys: Any, batches: Any) -> Any:
        def step(carry: Any, number: jax.Array) -> tuple[Any, jax.Array]:
            params, moments, state = carry
            tokens = batches[jnp.broadcast_to(number % len(batches), (slots,))]
            now = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
            losses, found, state = gradients(params, state, (tokens, jnp.full(slots, number == 0)), now, {})
            updates, moments = optimizer.update(found, moments, params)
            return (optax.apply_updates(params, updates), moments, state), losses.mean()

        return jax.lax.scan(step, (params, moments, state), jnp.arange(steps))

    params, state, keys = trials(slots)
    held = [params, optimizer.init(params), state]
    batches, start = texts(40), time.perf_counter()
    compiled = jax.jit(train, donate_argnums=(0, 1, 2)).lower(*held, keys, batches).compile()
    compilation = time.perf_counter() - start

    def run() -> float:
        held[:], losses = compiled(*held, keys, batches)
        return float(losses[-1])

    return run, compilation, compiled.as_text()


def measure(label: str, gradients: Any, slots: int, steps: int, profiled: bool = False, file: str = "") -> None:
    run, compilation, hlo = training(gradients, slots, steps)
    first, times = run(), []
    while sum(times) < 1.5 or len(times) < 3:
        start = time.perf_counter()
        last = run()
        times.append(time.perf_counter() - start)
    rate = slots * steps / statistics.median(times)
    print(
        f"{label}, {slots} slots: {rate:,.0f} trial-steps/s, {1e6 / rate:.1f} µs each "
        f"(compiled in {compilation:.0f} s; loss {first:.3f} → {last:.3f})",
        flush=True,
    )
    if profiled:
        profile(run, slots * steps, operations(hlo))
        if file:
            path = Path(file)
            path.with_stem(f"{path.stem}-{label}").write_text(hlo)


def operations(hlo: str) -> dict[str, str]:
    """Return the JAX operation of each instruction of a compiled program."""
    found = re.finditer(r'^ +(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', hlo, re.MULTILINE)
    return {match[1]: match[2] for match in found}


def profile(run: Any, count: int, names: dict[str, str], lines: int = 40) -> None:
    """Print the kernels that take longest, in µs per trial-step, and the operations that they compute.

    XLA names the kernel of a fusion like its instruction, with underscores for points; products have cuBLAS's names.
    """
    folder = tempfile.mkdtemp()
    with jax.profiler.trace(folder):
        run()
    total: collections.Counter[str] = collections.Counter()
    said: dict[str, str] = {}
    for path in glob.glob(folder + "/**/*.xplane.pb", recursive=True):
        for plane in jax.profiler.ProfileData.from_file(path).planes:
            for line in plane.lines if "/device:GPU" in plane.name else ():
                for event in line.events if line.name.startswith("Stream") else ():
                    total[event.name] += event.duration_ns
                    if event.name not in said:
                        with warnings.catch_warnings(action="ignore"):
                            said[event.name] = str({key: value for key, value in event.stats if key in STATS})
    by_kernel = {name.replace(".", "_"): operation for name, operation in names.items()}
    print(f"    {sum(total.values()) / count / 1e3:6.2f} µs in all kernels")
    for kernel, nanoseconds in total.most_common(lines):
        operation = by_kernel.get(kernel) or said[kernel]
        print(f"    {nanoseconds / count / 1e3:6.2f} µs {kernel[:70]} [{operation[-90:]}]", flush=True)


# ---------------------------------------------------------------------------- the kernels alone


def tune(precision: str, slots: int = 264) -> None:
    dtype, random = DTYPES[precision], jax.random.key(0)

    def normal(*shape: int) -> jax.Array:
        return 0.3 * jax.random.normal(random, shape)

    per_step, state = (slots, WINDOW, STREAMS), (normal(slots, STREAMS, UNITS),) * 2
    projected, outputs = normal(*per_step, 4 * UNITS).astype(dtype), normal(*per_step, UNITS).astype(dtype)
    cells = normal(slots, WINDOW + 1, STREAMS, UNITS).astype(dtype)
    noise = jax.random.randint(random, (slots, 1, WINDOW, STREAMS, UNITS), 0, 256).astype(jnp.uint8)
    weights, bias = normal(slots, UNITS, 4 * UNITS), normal(slots, 4 * UNITS)
    cases = {
        "forward": (recurrence.forward, (projected, weights, bias, state, noise)),
        "backward": (recurrence.backward, (outputs, weights, noise, projected, cells)),
    }

    def compiled(case: tuple[str, Tuning]) -> Any:
        function, arguments = cases[case[0]]
        try:
            return jax.jit(functools.partial(function, layer=0, drop=92, tuning=case[1])).lower(*arguments).compile()
        except Exception as error:  # such as too much shared memory
            return error

    tried = [(kind, tuning) for kind in cases for tuning in TUNINGS[precision, kind]]
    with ThreadPoolExecutor(8) as pool:
        functions = list(pool.map(compiled, tried))
    for (kind, tuning), function in zip(tried, functions, strict=True):
        try:
            if isinstance(function, Exception):
                raise function
            microseconds = 1e6 * seconds(function, cases[kind][1])
        except Exception as error:
            print(f"tune {precision} {kind} {tuple(tuning)}: {str(error)[:120]!r}", flush=True)
            continue
        print(
            f"tune {precision} {kind} {tuning}: {microseconds / slots:.2f} µs a trial, "
            f"{microseconds / WINDOW / -(-slots // 132):.1f} µs a time step",
            flush=True,
        )


def seconds(function: Any, arguments: Any, calls: int = 10) -> float:
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(calls):
            results = function(*arguments)
        jax.block_until_ready(results)
        times.append((time.perf_counter() - start) / calls)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["check", "rate"])
    parser.add_argument("--slots", default="132,264,528")
    parser.add_argument("--precisions", default="bfloat16,tf32")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hlo", default="", metavar="FILE", help="where to write what XLA compiled")
    options = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.devices()[0].device_kind}", flush=True)
    precisions, counts = options.precisions.split(","), [int(slots) for slots in options.slots.split(",")]
    ways = {precision: gradients_of(precision) for precision in precisions}  # exits without kernels
    if "check" in options.parts:
        attempt(check, precisions)
    if "tune" in options.parts:
        for precision in precisions:
            attempt(tune, precision)
    if "rate" in options.parts or "profile" in options.parts:
        for precision in precisions:
            for slots in counts:
                profiled = "profile" in options.parts and slots == counts[-1]
                attempt(measure, precision, ways[precision], slots, options.steps, profiled, options.hlo)
    if "plain" in options.parts:
        for slots in counts:
            attempt(measure, "plain", plain, slots, options.steps)


def attempt(function: Any, *arguments: Any) -> None:
    """Call a function; if it fails, say so and let the others run."""
    try:
        function(*arguments)
    except Exception as error:
        print(f"{function.__name__} {arguments[0]}: failed: {type(error).__name__}: {str(error)[:600]}", flush=True)


if __name__ == "__main__":
    main()
