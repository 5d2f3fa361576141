"""Where kernels can be used, and what the user is told if they cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import pytest

from levelfield.errors import UsageError
from levelfield.kernels import pallas


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
