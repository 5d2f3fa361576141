"""What a workload's training step becomes on a GPU: its kernels, their memory traffic, and their registers.

    pip install '.[cuda]'         # gigabytes, but no GPU is needed
    python benchmarks/compiled.py war_and_peace_gpt --precision bfloat16 [--slots 1] [--gpu a100] [--evaluation]

XLA compiles the step with Adam for a GPU that this machine does not have, by default an H200. It chooses how to compute
products and convolutions by rules instead of trying them out, so some kernels differ from those of a run. The traffic
of a kernel is the size of its arguments and results, even if it reads only a part of an argument. The time is how long
this traffic takes at the memory's speed. With --evaluation, this is about a batch of an evaluation instead. The table
has amounts per trial, and one line for kernels that differ only in the block of the network.

A kernel that has too few registers spills: it keeps numbers in memory. These are listed with their bytes per thread.
"""

from __future__ import annotations

import argparse
import collections
import functools
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ["JAX_PLATFORMS"] = "cpu"  # for everything that is not compiled

import jax
import jax.numpy as jnp
import numpy as np
from aligned import positive, table
from data_sets import prepare
from gpu import FASTEST
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from levelfield.rules import get_rule
from levelfield.training.program import load_data, metrics_of_slots
from levelfield.training.step import Job, gradients_of, start, train, trial_key
from levelfield.workload import Precision
from levelfield.workloads import get_workload

ADAM = ("learning_rate", "beta1", "beta2", "epsilon")
BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "u16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8}
FREE = ("get-tuple-element", "tuple", "parameter", "constant", "bitcast", "while", "conditional")  # no kernels
TARGET = """
platform_name: "CUDA"
device_description_str: "{gpu.name}"
dnn_version_info {{ major: 9 minor: 10 }}
gpu_device_info {{
  name: "{gpu.name}" device_vendor: "NVIDIA Corporation" device_address_bits: 64 ecc_enabled: true
  cuda_compute_capability {{ {gpu.capability} }}
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
  core_count: {gpu.processors} fpus_per_core: 128 clock_rate_ghz: 1.9
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: {gpu.threads}
  registers_per_block_limit: 65536 registers_per_core_limit: 65536
  shared_memory_per_block: 49152 shared_memory_per_block_optin: {gpu.shared} shared_memory_per_core: {processor_shared}
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  l2_cache_size: 50000000 device_memory_size: 141000000000 memory_bandwidth: 4800000000000
}}
"""


class Gpu(NamedTuple):
    name: str
    capability: str
    processors: int
    threads: int  # of a processor
    shared: int  # bytes of fast memory that a program can have

    @property
    def target(self) -> str:
        return TARGET.format(gpu=self, processor_shared=self.shared + 1024)


GPUS = {
    "h200": Gpu("NVIDIA H200", "major: 9 feature_extension: ACCELERATED_FEATURES", 132, 2048, 232_448),
    "b200": Gpu("NVIDIA B200", "major: 10 feature_extension: ACCELERATED_FEATURES", 148, 2048, 232_448),
    "a100": Gpu("NVIDIA A100", "major: 8", 108, 2048, 166_912),
    "rtx4090": Gpu("NVIDIA GeForce RTX 4090", "major: 8 minor: 9", 128, 1536, 101_376),
}


class Kernel(NamedTuple):
    """What tells kernels apart, and the bytes of arguments and results of one of them."""

    name: str
    result: str
    operation: str
    read: int
    written: int


def compiled(
    gpu: Gpu, name: str, precision: Precision, slots: int, options: dict[str, Any], evaluation: bool = False
) -> str:
    """Return a program compiled with these options of XLA: of training steps with Adam, or of an evaluation."""
    try:
        topology = topologies.get_topology_desc("", platform="cuda", topology="1x1x1", target_config=gpu.target)
    except NotImplementedError:
        raise SystemExit("JAX cannot compile for NVIDIA's GPUs: pip install '.[cuda]'") from None
    device = topology.devices[0]
    workload = get_workload(name)
    job = Job(workload, get_rule("adam"), "constant", 1_000_000, workload.batch_size, 20, ADAM, precision=precision)
    mesh = Mesh(np.array([device]), ("slots",))

    def on_device(tree: Any, spec: PartitionSpec) -> Any:
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), tree)

    split, whole = PartitionSpec("slots"), PartitionSpec()
    seeds = jax.ShapeDtypeStruct((slots,), jnp.uint32)
    numbers = dict.fromkeys(ADAM, jax.ShapeDtypeStruct((slots,), jnp.float32))
    model = jax.eval_shape(jax.vmap(lambda seed: workload.init(trial_key(seed, 0, 0))), seeds)
    held = jax.eval_shape(jax.vmap(functools.partial(start, job)), seeds, numbers, model)
    given = load_data(workload)
    data = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, given.evaluation if evaluation else given.train))
    jax.default_backend = lambda: "gpu"  # what the training code asks for
    jax.local_devices = lambda **_: [device]
    evaluate = functools.partial(metrics_of_slots, workload, precision)
    loop = evaluate if evaluation else functools.partial(train, job, gradients_of(workload, precision))
    spread = jax.shard_map(loop, mesh=mesh, in_specs=(split, whole), out_specs=split, check_vma=False)
    first = model if evaluation else held
    lowered = jax.jit(spread).lower(on_device(first, split), on_device(data, whole))
    return str(lowered.compile({"xla_gpu_autotune_level": 0, **options}).as_text())


def size(shape: str) -> int:
    """Return the bytes of an array or of a tuple of arrays, given as HLO writes its type."""
    arrays = re.findall(r"\b([a-z]+\d*)\[([\d,]*)\]", shape)
    return sum(BYTES.get(dtype, 0) * math.prod(map(int, filter(None, sides.split(",")))) for dtype, sides in arrays)


def kernels_of_a_step(program: str) -> list[Kernel]:
    """Return the kernels in the body of the loop over steps: of the program's own loops, the one with most traffic."""
    computations = dict(re.findall(r"^(?:ENTRY )?%?([\w.\-]+) \([^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL))
    (entry,) = re.findall(r"^ENTRY %?([\w.\-]+)", program, re.MULTILINE)
    bodies = [list(kernels(name, computations)) for name in re.findall(r"body=%?([\w.\-]+)", computations[entry])]
    return max(bodies, key=traffic)


def kernels(computation: str, computations: dict[str, str]) -> Iterator[Kernel]:
    """Yield the kernels of a computation, and those of the loops in it as often as they run."""
    shapes: dict[str, str] = {}
    for line in computations[computation].splitlines():
        if loop := re.search(r" while\(.*body=%?([\w.\-]+).*known_trip_count\D*(\d+)", line):
            yield from int(loop[2]) * list(kernels(loop[1], computations))
            continue
        found = re.match(r"\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?:, |$)(.*)", line)
        if not found:
            continue
        name, shape, kind, operands, rest = found.groups()
        shapes[name] = shape
        if kind in FREE:
            continue
        read = sum(size(shapes.get(operand, "")) for operand in re.findall(r"%([\w.\-]+)", operands))
        operation = re.search(r'op_name="([^"]*)"', rest)
        place = re.sub(r"_\d+\b", "", operation[1].split("closed_call/")[-1]) if operation else ""
        result = re.sub(r"\{[^}]*\}", "", shape)
        yield Kernel(re.sub(r"[._]*\d*$", "", name), result, place, read, size(shape))


def traffic(kernels: list[Kernel]) -> int:
    return sum(kernel.read + kernel.written for kernel in kernels)


def verbose_assembler(folder: Path) -> dict[str, Any]:
    """Return options with which XLA runs an assembler that says how many registers a kernel takes, in this folder."""
    tools = [*Path(topologies.__file__).parents[2].glob("nvidia/*/bin/ptxas"), shutil.which("ptxas")]
    assembler = next(filter(None, tools), None)
    if assembler is None:
        raise SystemExit("there is no ptxas: pip install '.[cuda]'")
    program = folder / "bin" / "ptxas"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{assembler}" -v "$@" 2>"{folder}/$$.log"\n')
    program.chmod(0o755)
    return {
        "xla_gpu_cuda_data_dir": str(folder),
        "xla_gpu_enable_libnvptxcompiler": False,
        "xla_gpu_libnvjitlink_mode": "LIB_NV_JIT_LINK_MODE_DISABLED",
    }


def spills(folder: Path) -> list[str]:
    """Return the kernels that spill, with the bytes that each thread stores, from what the assembler said."""
    said = "".join(file.read_text() for file in folder.glob("*.log"))
    kernels = re.findall(r"entry function '(\w+)'.*?(\d+) bytes spill stores", said, re.DOTALL)
    if not kernels:
        raise SystemExit("the assembler named no kernels: this version of XLA calls another one")
    stores: dict[str, int] = collections.Counter()
    for name, stored in kernels:
        name = re.sub(r"__\d+$", "", name)  # several kernels of one name have numbers
        stores[name] = max(stores[name], int(stored))
    return [f"{name} ({stored} bytes)" for name, stored in sorted(stores.items()) if stored]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload")
    parser.add_argument("--precision", default="bfloat16", choices=("float32", "tf32", "bfloat16"))
    parser.add_argument("--slots", type=positive, help="default: what is fastest on an H200")
    parser.add_argument("--gpu", default="h200", choices=GPUS)
    parser.add_argument("--memory", type=float, default=4.2, help="TB/s; default: an H200's, measured")
    parser.add_argument("--evaluation", action="store_true", help="show a batch of an evaluation")
    parser.add_argument("--most", type=int, default=20, help="how many lines of kernels to print")
    arguments = parser.parse_args()
    gpu, speed = GPUS[arguments.gpu], arguments.memory * 1e12
    slots = arguments.slots or FASTEST.get(arguments.workload, 1)
    prepare([arguments.workload], random=True)
    with tempfile.TemporaryDirectory() as folder:
        options = verbose_assembler(Path(folder))
        given = arguments.workload, arguments.precision, slots, options, arguments.evaluation
        found = kernels_of_a_step(compiled(gpu, *given))
        spilling = spills(Path(folder))
    groups: dict[tuple[str, ...], list[Kernel]] = collections.defaultdict(list)
    for kernel in found:
        groups[kernel[:3]].append(kernel)
    rows = [["kernel", "times", "MB read", "MB written", "µs", "operation"]]
    for (name, _, operation), members in sorted(groups.items(), key=lambda item: -traffic(item[1])):
        megabytes = [sum(kernel[i] for kernel in members) / slots / 1e6 for i in (3, 4)]
        microseconds = traffic(members) / slots / speed * 1e6
        numbers = [f"{len(members)}", *(f"{number:.2f}" for number in (*megabytes, microseconds))]
        rows.append([name, *numbers, operation[-70:]])
    print(table(rows[: arguments.most + 1]))
    each = traffic(found) / slots
    print(f"{arguments.workload}, {arguments.precision}, --slots {slots}: {len(found)} kernels; for each trial "
          f"{each / 1e6:,.0f} MB, at least {each / speed * 1e6:,.0f} µs")  # fmt: skip
    print(f"kernels that spill: {', '.join(spilling) or 'none'}")


if __name__ == "__main__":
    main()
