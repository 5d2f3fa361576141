"""Where kernels can be used, and what the user is told if they cannot."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest
from regression import WORKLOAD

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.executors._jax import JaxExecutor
from levelfield.executors.base import Batch
from levelfield.kernels import pallas
from levelfield.search import Search


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


def test_kernels_can_be_switched_off(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(pallas.VARIABLE, "off")
    assert pallas.unavailable_because() == "LEVELFIELD_KERNELS is off"
    monkeypatch.setenv(pallas.VARIABLE, "no")
    with pytest.raises(UsageError, match="LEVELFIELD_KERNELS = 'no': expected 'on' or 'off'"):
        pallas.available()


def test_on_a_cpu_there_is_nothing_to_say() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("this looks at a machine with no GPU")
    assert pallas.unavailable_because() == "there is no GPU"
    assert pallas.note() == ""


@pytest.mark.parametrize(("own", "expected"), [(lambda precision: None, ["no kernels here"]), (None, [])])
def test_a_run_says_once_that_it_trains_without_kernels(
    own: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so if the workload has kernels, and whatever the number of optimizers."""
    monkeypatch.setattr(pallas, "note", lambda: "no kernels here")
    lf.register_workload(replace(WORKLOAD, name="least_squares_notes", batched=own))
    optimizers = {name: {"rule": "sgd", "learning_rate": {"log": [0.01, 0.1]}} for name in ("a", "b")}
    study = lf.Study(workload="least_squares_notes", steps=2, trials=1, pool=1, optimizers=optimizers)
    left = {name: Search(study, name).point(0) for name in optimizers}

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        name = next((name for name in left if optimizer in (None, name)), None)
        return Batch(name, [left.pop(name)]) if name else None

    progress = list(JaxExecutor(1).train(study, take))
    assert sum(len(part.finished) for part in progress) == 2
    assert [part.note for part in progress if part.note] == expected
