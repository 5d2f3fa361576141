"""Where the time of a training step goes on a GPU: its kernels, in µs per trial-step, and the operations they compute.

    python benchmarks/profiled.py war_and_peace_gpt:bfloat16:1 cifar10_resnet32:tf32:64 … [--hlo FOLDER]

Each argument is a workload, a precision and a number of slots, which are trained with Adam as in throughput.py. All are
compiled first, at the same time. Download the data sets first, or use --random-data.
"""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # several programs stay on the GPU

import argparse
import collections
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, get_args

import jax
from data_sets import prepare
from gpu import device_events
from throughput import Slots

from levelfield.training.devices import keep_programs
from levelfield.workload import Precision
from levelfield.workloads import get_workload


class Case(NamedTuple):
    workload: str
    precision: Precision
    slots: int

    @classmethod
    def parse(cls, text: str) -> Case:
        try:
            workload, precision, slots = text.split(":")
            if precision not in get_args(Precision) or int(slots) < 1:
                raise ValueError
        except ValueError:
            expected = f"expected WORKLOAD:PRECISION:SLOTS, with a precision of {', '.join(get_args(Precision))}"
            raise argparse.ArgumentTypeError(f"{text!r}: {expected}") from None
        return cls(workload, precision, int(slots))  # type: ignore[arg-type]

    def __str__(self) -> str:
        return ":".join(map(str, self))


def compiled(what: Case) -> Slots | str:
    """Return trials that fill their slots, or why there are none."""
    begun = time.perf_counter()
    try:
        trials = Slots(get_workload(what.workload), what.slots, precision=what.precision)
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:600]}"
    print(f"{what}: compiled after {time.perf_counter() - begun:.0f} s", flush=True)
    return trials


def profile(what: Case, trials: Slots, most: int, hlo: Path | None) -> None:
    steps, rates = trials.stretch(), list[float]()
    while len(rates) < 5:
        begun = time.perf_counter()
        trials.stretch()
        rates.append(steps / (time.perf_counter() - begun))
    text = trials.compiled_text()
    if hlo:
        hlo.mkdir(parents=True, exist_ok=True)
        hlo.joinpath(f"{'-'.join(map(str, what))}.hlo").write_text(text)
    rate = statistics.median(rates)
    print(f"\n{what}: {rate:,.0f} trial-steps/s, {1e6 / rate:.1f} µs each", flush=True)
    print_kernels(trials, steps, operations(text), most)


def operations(hlo: str) -> dict[str, str]:
    """Return the JAX operation of each instruction of a compiled program."""
    found = re.finditer(r'^ +(?:ROOT )?%?([\w.-]+) = .*op_name="([^"]*)"', hlo, re.MULTILINE)
    return {match[1].replace(".", "_"): match[2] for match in found}  # kernels have underscores


def print_kernels(trials: Slots, steps: int, names: dict[str, str], most: int) -> None:
    """Print the kernels that take longest. Those of one operation whose names differ only by a number share a line."""
    groups: dict[tuple[str, str], list[float]] = collections.defaultdict(list)
    ends: list[float] = []
    for event in device_events(trials.stretch):
        operation = names.get(event.name) or names.get(event.operation.replace(".", "_"), "")
        operation = re.sub(r"_\d+\b", "", operation.split("closed_call/")[-1])
        groups[re.sub(r"_\d+$", "", event.name), operation].append(event.duration_ns)
        ends += [event.start_ns, event.start_ns + event.duration_ns]
    if not ends:
        print("the profiler saw no kernels")
        return
    busy, span = sum(map(sum, groups.values())), max(ends) - min(ends)
    print(f"  {busy / steps / 1e3:.1f} µs busy of {span / steps / 1e3:.1f} µs per trial-step")
    for (name, operation), durations in sorted(groups.items(), key=lambda item: -sum(item[1]))[:most]:
        share, each = sum(durations) / busy, statistics.median(durations) / 1e3
        print(
            f"  {sum(durations) / steps / 1e3:7.2f} µs {100 * share:4.1f}% {len(durations):6}× {each:7.1f} µs  "
            f"{name[:60]} [{operation[-80:]}]"
        )
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="+", type=Case.parse, metavar="WORKLOAD:PRECISION:SLOTS")
    parser.add_argument("--most", type=int, default=40, help="how many lines to print of each")
    parser.add_argument("--hlo", type=Path, metavar="FOLDER", help="where to write the compiled programs")
    parser.add_argument("--random-data", action="store_true", help="in the place of missing data sets")
    arguments = parser.parse_args()
    prepare({what.workload for what in arguments.what}, random=arguments.random_data)
    keep_programs()
    print(f"{jax.local_devices()[0].device_kind}, jax {jax.__version__}", flush=True)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(compiled, arguments.what))
    for what, trials in zip(arguments.what, found, strict=True):
        if isinstance(trials, str):
            print(f"{what}: {trials}", flush=True)
        else:
            profile(what, trials, arguments.most, arguments.hlo)


if __name__ == "__main__":
    main()
