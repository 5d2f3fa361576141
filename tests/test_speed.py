"""The number of slots is measured once, and then known."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from helpers import make_study
from training_helpers import ADAM, assert_same, by_index, job_of, trained

from levelfield.executors._jax import JaxExecutor
from levelfield.training import program, speed
from levelfield.training.step import Job
from levelfield.trial import Point


def pace(rate: Callable[[int], float], slots: int, most: int) -> float:
    """Return how fast ``most`` trials finish: some slots have nothing to do in the last round."""
    return rate(slots) * most / (math.ceil(most / slots) * slots)


@pytest.mark.parametrize(
    ("rate", "most", "expected"),
    [
        (lambda slots: min(slots, 100), 1000, 128),  # grows until the device is full
        (lambda slots: 1 / slots, 1000, 1),  # grouped convolutions
        (lambda slots: 1.0, 1000, 1),  # more slots need more memory
        (lambda slots: slots, 50, 50),  # no more than there are trials
        (lambda slots: min(slots, 70), 100, 100),  # with 64 slots, most would have nothing to do in the end
        (lambda slots: slots if slots <= 20 else 0.0, 1000, 16),  # no more than fit
        (lambda slots: {4: 0.9}.get(slots, slots), 300, 300),  # one slow candidate is no maximum
        (lambda slots: min(slots, 30), 1000, 32),  # half a power of four
    ],
)
def test_the_fastest_candidate_is_chosen(rate: Callable[[int], float], most: int, expected: int) -> None:
    measured: list[int] = []

    def measure(slots: int) -> float:
        assert slots <= most
        measured.append(slots)
        return rate(slots)

    rates: speed.Rates = {}
    chosen = speed.fastest(rates, measure, most)
    assert chosen == expected
    assert pace(rate, chosen, most) >= 0.95 * max(pace(rate, slots, most) for slots in measured)
    assert len(set(measured)) == len(measured)
    measured.clear()
    assert speed.fastest(rates, measure, most) == expected
    assert measured == []


def test_the_choice_is_seldom_more_than_a_tenth_slower_than_the_best() -> None:
    """Over random devices, whose rate grows until they are full, in steps if a slot needs a processor of its own."""
    random = np.random.default_rng(0)
    shares = []
    for _ in range(1000):
        half, decline, power = 10 ** random.uniform(-1, 2.5), 10 ** random.uniform(2, 5), random.uniform(0.8, 1.5)
        processors, most = random.choice([1, 132]), int(10 ** random.uniform(0.5, 2.7))

        def rate(slots: int, half=half, decline=decline, power=power, processors=processors) -> float:
            busy = slots / (math.ceil(slots / processors) * processors) if slots > processors else 1
            return busy / (1 + (half / slots) ** power) / (1 + slots / decline)

        chosen = speed.fastest({}, lambda slots, rate=rate: rate(slots) * random.normal(1, 0.02), most)
        best = max(pace(rate, slots, most) for slots in range(1, most + 1))
        shares.append(pace(rate, chosen, most) / best)
    assert np.mean(np.array(shares) < 0.9) < 0.06
    assert min(shares) > 0.7


def test_measurements_are_kept_for_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def rate(job: object, values: object, slots: int) -> float:
        calls.append(slots)
        return float(min(slots, 16))

    monkeypatch.setattr(speed, "training_rate", rate)
    file, job = tmp_path / "slots" / "mine.json", job_of("quadratic")
    assert speed.measured(job, ADAM, file, 1000) == 16
    first = list(calls)
    assert speed.measured(job, ADAM, file, 1000) == 16
    assert speed.measured(job, ADAM, file, 3) == 3
    assert calls == [*first, 3]
    file.write_text("damaged")
    assert speed.measured(job, ADAM, file, 1000) == 16
    assert json.loads(file.read_text())["16"] == 16.0


def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def rate(job: object, values: object, slots: int) -> float:
        calls.append(slots)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return float(slots)

    monkeypatch.setattr(speed, "training_rate", rate)
    file, job = tmp_path / "mine.json", job_of("quadratic")
    with pytest.raises(KeyboardInterrupt):
        speed.measured(job, ADAM, file, 64)
    assert speed.measured(job, ADAM, file, 64) == 64
    assert calls == [1, 4, 16, 16, 64, 32]


def test_memory_that_others_use_is_not_missing_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, file, job = 2, tmp_path / "mine.json", job_of("quadratic")

    def rate(job: object, values: object, slots: int) -> float:
        if slots > free:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1 byte.")
        return float(slots) if slots <= 64 else 0.0  # 0: more than the device has

    monkeypatch.setattr(speed, "training_rate", rate)
    assert speed.measured(job, ADAM, file, 1000) == 2
    free = 1000
    assert speed.measured(job, ADAM, file, 1000) == 64
    assert json.loads(file.read_text()) == {"1": 1, "2": 2, "4": 4, "16": 16, "32": 32, "64": 64, "128": 0, "256": 0}


def test_training_for_a_moment_gives_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "_SECONDS", 0.01)
    monkeypatch.setattr(program._Common, "evaluation", property(lambda self: pytest.fail("evaluation was compiled")))
    job = job_of("quadratic", steps=4, eval_interval=2)
    assert speed.training_rate(job, ADAM, 1) > 0
    monkeypatch.setattr(speed, "device_memory", lambda: 1.0)
    assert speed.training_rate(job, ADAM, 1) == 0


def test_a_run_on_a_gpu_measures_its_workload_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the CPU in the place of a GPU."""
    calls: list[int] = []

    def rate(job: Job, values: object, slots: int) -> float:
        calls.append(slots)
        return float(min(slots, 3))

    monkeypatch.setenv("LEVELFIELD_CACHE", str(tmp_path))
    monkeypatch.setattr(speed, "training_rate", rate)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    study = make_study(pool=40)
    chosen = JaxExecutor().slots(study)
    assert chosen == 4 * jax.local_device_count()
    first = list(calls)
    assert JaxExecutor().slots(study.replace(seed=7)) == chosen
    assert calls == first
    JaxExecutor().slots(study.replace(precision="bfloat16"))
    assert calls == 2 * first
    monkeypatch.setattr(type(study), "code_version", lambda study, name: "of changed code")
    JaxExecutor().slots(study)
    assert calls == 3 * first


def test_a_gpu_evaluates_slots_one_after_the_other_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [Point(i, {"learning_rate": 0.1 * (i + 1)}, seed=i) for i in range(3)]
    job = job_of("wilson", "sgd", steps=4, eval_interval=2)
    expected = by_index(trained(job, 3, points))
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    job = job._replace(workload=dataclasses.replace(job.workload))  # so that it is compiled anew
    for ours, theirs in zip(by_index(trained(job, 3, points)), expected, strict=True):
        assert_same(ours, theirs, rtol=1e-6)
