"""Where kernels can be used, and what the user is told if they cannot."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import jax
import jax.numpy as jnp
import pytest
from regression import WORKLOAD

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.executors._jax import JaxExecutor
from levelfield.executors.base import Batch
from levelfield.kernels import pallas
from levelfield.search import Search
from levelfield.training import speed
from levelfield.training.devices import out_of_memory
from levelfield.training.program import with_or_without_kernels
from levelfield.training.step import plain_gradients
from levelfield.trial import Progress
from levelfield.workload import Precision


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretend that JAX has a GPU; return it."""
    device = SimpleNamespace(device_kind="NVIDIA H200", compute_capability="9.0")
    monkeypatch.delenv(pallas.VARIABLE, raising=False)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    return device


def test_kernels_run_on_gpus_since_ampere(gpu: Any) -> None:
    assert pallas.available()
    assert not pallas.interpreted()
    assert pallas.note() == ""
    gpu.compute_capability, gpu.device_kind = "7.5", "Tesla T4"
    assert not pallas.available()
    assert pallas.note() == (
        "training without levelfield's own GPU kernels, which is slower: "
        "Tesla T4 has compute capability 7.5, the kernels need at least 8.0"
    )
    gpu.compute_capability, gpu.device_kind = "gfx942", "AMD Instinct MI300X"
    assert pallas.unavailable_because() == "the kernels are for NVIDIA's GPUs, this is AMD Instinct MI300X"


def test_kernels_need_pallas_triton_backend(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "triton", None)
    assert not pallas.available()
    assert pallas.unavailable_because() == f"JAX {jax.__version__} does not have Pallas's Triton backend"


def test_products_that_the_user_wants_in_float32_are_not_made_by_kernels(gpu: Any) -> None:
    assert [pallas.kernel_type(precision) for precision in get_args(Precision)] == [None, jnp.float32, jnp.bfloat16]
    with jax.default_matmul_precision("highest"):
        assert [pallas.kernel_type(precision) for precision in get_args(Precision)] == [None, None, jnp.bfloat16]


def test_kernels_can_be_switched_off(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pallas.VARIABLE, "off")
    assert pallas.unavailable_because() == "LEVELFIELD_KERNELS is off"
    monkeypatch.setenv(pallas.VARIABLE, "no")
    with pytest.raises(UsageError, match="LEVELFIELD_KERNELS = 'no': expected 'on' or 'off'"):
        pallas.available()


def test_a_wrong_switch_is_refused_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pallas.VARIABLE, "no")
    with pytest.raises(UsageError, match="LEVELFIELD_KERNELS = 'no'"):
        JaxExecutor(1).check(lf.load_study("wilson"))


def test_on_a_cpu_there_is_nothing_to_say() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("this looks at a machine with no GPU")
    assert pallas.unavailable_because() == "there is no GPU"
    assert pallas.note() == ""


def run(workload: Any, slots: int | None = 1) -> list[Progress]:
    """Train a trial of each of two optimizers."""
    lf.register_workload(workload)
    optimizers = {name: {"rule": "sgd", "learning_rate": {"log": [0.01, 0.1]}} for name in ("a", "b")}
    study = lf.Study(workload=workload.name, steps=2, trials=1, pool=1, optimizers=optimizers)
    left = {name: Search(study, name).point(0) for name in optimizers}

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        name = next((name for name in left if optimizer in (None, name)), None)
        return Batch(name, [left.pop(name)]) if name else None

    progress = list(JaxExecutor(slots).train(study, take))
    assert sum(len(part.finished) for part in progress) == 2
    return progress


@pytest.mark.parametrize(("own", "expected"), [(lambda precision: None, ["no kernels here"]), (None, [])])
def test_a_run_says_once_that_it_trains_without_kernels(
    own: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so if the workload has kernels, and whatever the number of optimizers."""
    monkeypatch.setattr(pallas, "note", lambda: "no kernels here")
    progress = run(replace(WORKLOAD, name="least_squares_notes", batched=own))
    assert [part.note for part in progress if part.note] == expected


def doubled(x: jax.Array) -> jax.Array:
    def program(x_ref: Any, out_ref: Any) -> None:
        out_ref[:] = 2 * x_ref[:]

    call = pallas.call(program, grid=(1,), out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), name="doubled", warps=4)
    result: jax.Array = call(x)
    return result


@pytest.mark.parametrize("slots", [1, None])
@pytest.mark.parametrize("part", ["training", "evaluation"])
def test_a_run_goes_on_without_kernels_that_cannot_be_compiled(
    part: str, slots: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the CPU in the place of a GPU: it cannot compile any."""
    attempts = []

    def batched(precision: Any) -> Any:
        plain = plain_gradients(WORKLOAD, precision)

        def gradients(*arguments: Any) -> Any:
            attempts.append(precision)
            losses, found, state = plain(*arguments)
            return losses, jax.tree.map(doubled, found), state

        return gradients if pallas.available() else None

    def batched_evaluate(precision: Any) -> Any:
        def evaluate(*arguments: Any) -> Any:
            attempts.append(precision)
            return jax.tree.map(doubled, jax.vmap(WORKLOAD.evaluate, in_axes=(0, 0, None))(*arguments))

        return evaluate if pallas.available() else None

    own = {"training": (batched, None), "evaluation": (lambda precision: None, batched_evaluate)}[part]
    workload = replace(WORKLOAD, name=f"{part}_{slots}", batched=own[0], batched_evaluate=own[1])
    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    monkeypatch.setattr(speed, "_SECONDS", 0.01)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(pallas, "_unsupported_because", lambda: "")
    monkeypatch.setattr(pallas, "_failures", [])
    progress = run(workload, slots)
    (note,) = [part.note for part in progress if part.note]
    start, end = note.split(" (ValueError: ")
    assert start == "training without levelfield's own GPU kernels, which is slower: they cannot be compiled here"
    assert end.endswith("; LEVELFIELD_KERNELS=off saves the attempt")
    assert len(attempts) == 1


def test_kernels_stay_if_they_are_not_to_blame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pallas, "_unsupported_because", lambda: "")
    monkeypatch.setattr(pallas, "_failures", [])
    seen = []

    def compiled() -> None:
        seen.append(pallas.available())
        raise NotImplementedError("no kernel, and no lowering of something else")

    with pytest.raises(NotImplementedError):
        with_or_without_kernels(lambda precision: None, compiled)
    assert seen == [True, False]
    assert pallas.available()


def test_a_kernel_that_needs_too_much_of_its_processors_memory_is_not_a_matter_of_slots() -> None:
    for text, expected in (
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte.", True),
        ("RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 131072, available: 101376", False),
        ("RESOURCE_EXHAUSTED: Tensor memory size limit exceeded: requested 640, available: 512", False),  # a B200's
        ("INTERNAL: ptxas failed", False),
    ):
        assert out_of_memory(jax.errors.JaxRuntimeError(text)) is expected


def test_an_array_too_large_for_positions_in_32_bits_asks_for_fewer_slots() -> None:
    jax.eval_shape(doubled, jax.ShapeDtypeStruct((2**31 - 1,), jnp.float32))
    with pytest.raises(jax.errors.JaxRuntimeError, match="doubled: an array of 2,147,483,648 numbers") as caught:
        jax.eval_shape(doubled, jax.ShapeDtypeStruct((2**16, 2**15), jnp.float32))
    assert out_of_memory(caught.value)
