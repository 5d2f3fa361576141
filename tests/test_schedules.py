"""Schedules against those of optax and PyTorch, with and without a warmup, and what equals what."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import START, STEPS, errors, job, train

import levelfield as lf
from levelfield.errors import SpaceError, StudyError
from levelfield.hyperparameters import FRACTION, POSITIVE
from levelfield.rules import Rule, get_rule
from levelfield.schedules import SCHEDULES, schedule, special_case
from levelfield.taxonomy.order import inclusions, missing

S, RATE = 200, 0.3
# One set of numbers for each kind; what is left out has its default.
NUMBERS: dict[str, dict[str, float]] = {
    "constant": {},
    "linear": {"decay_steps": 0.8, "decay_factor": 0.1},
    "step": {"decay_every": 0.1, "decay_factor": 0.5},
    "cosine": {"decay_steps": 0.8, "decay_factor": 0.1},
    "polynomial": {"decay_steps": 0.8, "decay_factor": 0.1, "power": 2.5},
    "wsd": {"decay_steps": 0.25, "decay_factor": 0.1},
    "inverse_sqrt": {"timescale": 0.1},
    "one_cycle": {"rise_steps": 0.25, "start_factor": 0.1, "decay_factor": 0.01},
}


def rates(kind: str, steps: int = S, **numbers: float) -> np.ndarray:
    """Return the rate at each step, in float64."""
    rate = schedule(kind, steps, {"learning_rate": RATE, **numbers})
    return np.array([float(rate(t)) if callable(rate) else rate for t in range(steps)])


def of_torch(build: Callable[[Any], Any]) -> np.ndarray:
    """Return the rate at each step with a scheduler of PyTorch."""
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(()))], lr=RATE)
    scheduler, found = build((torch.optim.lr_scheduler, optimizer)), []
    for _ in range(S):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SequentialLR calls its schedulers in a deprecated way
            scheduler.step()
    return np.array(found)


IN_OPTAX = {
    "linear": optax.linear_schedule(RATE, 0.1 * RATE, 160),
    "step": optax.exponential_decay(RATE, 20, 0.5, staircase=True),
    "cosine": optax.cosine_decay_schedule(RATE, 160, alpha=0.1),
    "polynomial": optax.polynomial_schedule(RATE, 0.1 * RATE, 2.5, 160),
    "wsd": optax.linear_schedule(RATE, 0.1 * RATE, 50, transition_begin=150),
    "one_cycle": optax.cosine_onecycle_schedule(S, RATE, 0.25, 10.0, 10.0),
}


@pytest.mark.parametrize("kind", IN_OPTAX)
def test_a_schedule_is_that_of_optax(kind: str) -> None:
    np.testing.assert_allclose(rates(kind, **NUMBERS[kind]), jax.vmap(IN_OPTAX[kind])(jnp.arange(S)), rtol=1e-5)


IN_TORCH: dict[str, Callable[[Any], Any]] = {
    "linear": lambda on: on[0].LinearLR(on[1], 1.0, 0.1, 160),
    "step": lambda on: on[0].StepLR(on[1], 20, 0.5),
    # PyTorch's polynomial ends at 0, and its one cycle ends at the last step instead of after it.
    "polynomial": lambda on: on[0].PolynomialLR(on[1], 160, 2.5),
    "cosine": lambda on: on[0].CosineAnnealingLR(on[1], S, 0.1 * RATE),
    "one_cycle": lambda on: on[0].OneCycleLR(
        on[1], RATE, S + 1, pct_start=(0.25 * S + 1) / (S + 1), div_factor=10.0, final_div_factor=10.0
    ),
}


@pytest.mark.parametrize("kind", IN_TORCH)
def test_a_schedule_is_that_of_pytorch(kind: str) -> None:
    changes = {"polynomial": {"decay_factor": 0.0}, "cosine": {"decay_steps": 1.0}}.get(kind, {})
    np.testing.assert_allclose(rates(kind, **NUMBERS[kind] | changes), of_torch(IN_TORCH[kind]), rtol=1e-9, atol=1e-12)


def test_the_defaults_are_those_of_optax_and_pytorch() -> None:
    """A decay ends at 0 with the training; one_cycle has the defaults of OneCycleLR."""
    np.testing.assert_allclose(rates("cosine"), of_torch(lambda on: on[0].CosineAnnealingLR(on[1], S)), atol=1e-12)
    np.testing.assert_allclose(rates("linear"), RATE * (1 - np.arange(S) / S), rtol=1e-12)
    expected = jax.vmap(optax.cosine_onecycle_schedule(S, RATE))(jnp.arange(S))
    np.testing.assert_allclose(rates("one_cycle"), expected, rtol=1e-5, atol=1e-7)


# Warmup


def test_cosine_with_warmup_is_that_of_optax() -> None:
    theirs = optax.warmup_cosine_decay_schedule(RATE / 21, RATE, 20, S, 0.1 * RATE)
    ours = rates("cosine", warmup_steps=0.1, decay_factor=0.1)
    np.testing.assert_allclose(ours, jax.vmap(theirs)(jnp.arange(S)), rtol=1e-5, atol=1e-8)


def test_a_warmup_before_pytorchs_scheduler() -> None:
    def build(on: Any) -> Any:
        schedulers, optimizer = on
        parts = [schedulers.LinearLR(optimizer, 1 / 21, 1.0, 20), schedulers.CosineAnnealingLR(optimizer, S - 20)]
        return schedulers.SequentialLR(optimizer, parts, [20])

    np.testing.assert_allclose(rates("cosine", warmup_steps=0.1), of_torch(build), rtol=1e-9, atol=1e-12)


def test_the_transformers_schedule() -> None:
    """Vaswani et al. 2017 count steps from 1; the rate rises with the step, then falls with its inverse square root."""
    steps, warmup = np.arange(1, S + 1), 21
    theirs = RATE * np.minimum(steps / warmup, np.sqrt(warmup / steps))
    np.testing.assert_allclose(rates("inverse_sqrt", warmup_steps=20 / S, timescale=21 / (S - 20)), theirs, rtol=1e-12)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_after_a_warmup_a_schedule_takes_the_remaining_steps(kind: str) -> None:
    warm = rates(kind, warmup_steps=0.2, **NUMBERS[kind])
    np.testing.assert_allclose(warm[:40], RATE * np.arange(1, 41) / 41, rtol=1e-12)
    np.testing.assert_allclose(warm[40:], rates(kind, S - 40, **NUMBERS[kind]), rtol=1e-12)


@pytest.mark.parametrize("kind", SCHEDULES)
def test_extreme_lengths_leave_the_rate_finite(kind: str) -> None:
    np.testing.assert_allclose(rates(kind, warmup_steps=0.0, **NUMBERS[kind]), rates(kind, **NUMBERS[kind]), rtol=1e-12)
    only_warmup = RATE * np.arange(1, S + 1) / (S + 1)
    np.testing.assert_allclose(rates(kind, warmup_steps=1.0, **NUMBERS[kind]), only_warmup, rtol=1e-12)
    for share in (1e-6, 1.0):
        lengths = {name: share for name in NUMBERS[kind] if not name.endswith(("_factor", "power"))}
        assert np.isfinite(rates(kind, **NUMBERS[kind] | lengths)).all()


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_is_the_same_in_jax(kind: str) -> None:
    numbers = {"learning_rate": RATE, "warmup_steps": 0.1, **NUMBERS[kind]}
    traced = jax.jit(lambda numbers, t: jax.vmap(schedule(kind, S, numbers))(t))(numbers, jnp.arange(S))
    expected = rates(kind, warmup_steps=0.1, **NUMBERS[kind])
    np.testing.assert_allclose(traced, expected, rtol=1e-4, atol=1e-6 * RATE)


@pytest.mark.parametrize("length", [41, 47, 49, 83, 98])
def test_steps_down_come_on_time_in_compiled_code(length: int) -> None:
    """Constants in a compiled program are divided by less exactly than numbers that it is given."""
    t = jnp.arange(500)
    compiled = jax.jit(jax.vmap(schedule("step", 500, {"learning_rate": RATE, **step_numbers(length)})))(t)
    traced = jax.jit(lambda numbers: jax.vmap(schedule("step", 500, numbers))(t))(
        {"learning_rate": RATE, **step_numbers(length)}
    )
    expected = RATE * 0.5 ** (np.arange(500) // length)
    np.testing.assert_allclose(compiled, expected, rtol=1e-5)
    np.testing.assert_allclose(traced, expected, rtol=1e-5)


def step_numbers(length: int) -> dict[str, float]:
    return {"decay_every": length / 500, "decay_factor": 0.5}


# In studies


def test_a_trial_follows_its_schedule_and_warmup() -> None:
    numbers = {"warmup_steps": 0.5, "decay_factor": 0.1}
    (trial,) = train(job(get_rule("sgd"), *numbers, schedule="cosine"), {"learning_rate": RATE, **numbers})
    params, losses = dict(START), []
    for rate in rates("cosine", STEPS, **numbers):
        slopes = jax.grad(lambda params: errors(params).mean())(params)
        params = {name: params[name] - rate * slopes[name] for name in params}
        losses.append(errors(params).mean())
    np.testing.assert_allclose(trial.curve.values["train_loss"], losses[2::3], rtol=1e-5)


def test_a_warmup_does_not_start_at_0() -> None:
    """Prodigy divides by the learning rate of the first steps."""
    prodigy = job(get_rule("optax.contrib.prodigy"), "warmup_steps")
    (trial,) = train(prodigy, {"learning_rate": 1.0, "warmup_steps": 0.5})
    assert np.isfinite(trial.curve.values["train_loss"]).all()


def study(schedule: Any, **optimizers: Any) -> lf.Study:
    return lf.Study(workload="quadratic", steps=100, trials=1, pool=2, schedule=schedule, optimizers=optimizers)


def test_every_number_of_a_schedule_can_be_searched() -> None:
    for kind, numbers in NUMBERS.items():
        ranges = {name: {"log": [value / 2, value]} for name, value in numbers.items()}
        ranges["warmup_steps"] = {"uniform": [0.0, 0.3]}
        assert len(study({"kind": kind, **ranges}, sgd={"learning_rate": 0.1}).optimizer("sgd").space.free) == len(
            ranges
        )


def test_a_rule_keeps_a_warmup_of_its_own() -> None:
    """Its warmup_steps do not set the schedule's, and cannot be given in the schedule."""
    seen = {}

    def build(learning_rate: Any, warmup_steps: Any) -> optax.GradientTransformation:
        seen.update(rate=learning_rate, warmup=warmup_steps)
        return optax.sgd(learning_rate)

    about = {"learning_rate": POSITIVE, "warmup_steps": FRACTION}
    train(job(Rule("warm", about, build), "warmup_steps"), {"learning_rate": RATE, "warmup_steps": 0.5})
    assert not callable(seen["rate"])
    lf.register_rule("warm_for_this_test", build, about)
    table = {"rule": "warm_for_this_test", "learning_rate": RATE, "warmup_steps": 0.5}
    kept = study({"kind": "linear"}, warm=table)
    assert kept.spec()["optimizers"]["warm"] == table | {"schedule": {"kind": "linear"}}
    with pytest.raises(StudyError, match=r"schedule.warmup_steps: warm_for_this_test has a warmup_steps of its own"):
        study({"kind": "linear", "warmup_steps": 0.1}, warm=table)


def test_steps_instead_of_a_fraction_are_refused() -> None:
    with pytest.raises(SpaceError, match=r"warmup_steps reaches 500, outside \[0, 1\]: it is a fraction of the steps"):
        study({"kind": "constant", "warmup_steps": 500}, sgd={"learning_rate": 0.1})


# Which schedule includes which


@pytest.mark.parametrize(("special", "general"), [*itertools.permutations(SCHEDULES, 2)])
def test_special_cases_are_equal(special: str, general: str) -> None:
    values = special_case(special, general)
    if values is not None:
        shared = {name: value for name, value in NUMBERS[special].items() if name in SCHEDULES[general]}
        ours = rates(general, **NUMBERS[general] | shared | values)
        np.testing.assert_allclose(ours, rates(special, **NUMBERS[special]), rtol=1e-12)


def edges(special: dict[str, Any], general: dict[str, Any], rule: str = "momentum") -> tuple[int, list[str]]:
    """Return how many inclusions of sgd in the rule there are, and why others are not."""
    table = {"rule": rule, "learning_rate": {"log": [1e-3, 1.0]}, "momentum": {"uniform": [0.0, 0.9]}}
    tables = {
        "special": {"rule": "sgd", "learning_rate": 0.1, "schedule": special},
        "general": table | {"schedule": general},
    }
    found = study({"kind": "constant"}, **tables)
    reasons = [gap.reason for gap in missing(found) if gap.special == "special"]
    return len([edge for edge in inclusions(found) if edge.special == "special"]), reasons


WARM = {"kind": "constant", "warmup_steps": 0.1}


@pytest.mark.parametrize(
    ("special", "general", "reason"),
    [
        ({"kind": "constant"}, {"kind": "cosine", "decay_factor": {"choice": [0.1, 1.0]}}, None),
        ({"kind": "constant"}, {"kind": "cosine"}, "decay_factor stays at 0.0"),
        ({"kind": "constant"}, {"kind": "one_cycle", "decay_factor": 1.0}, "start_factor stays at 0.04"),
        ({"kind": "constant"}, {"kind": "inverse_sqrt", "timescale": 0.1}, "its schedule is inverse_sqrt"),
        ({"kind": "linear"}, {"kind": "polynomial", "power": {"uniform": [1.0, 3.0]}}, None),
        ({"kind": "linear"}, {"kind": "polynomial", "power": 2.0}, "power is fixed at 2"),
        ({"kind": "linear"}, {"kind": "cosine"}, "its schedule is cosine, special's is linear"),
        (WARM, {"kind": "linear", "decay_factor": 1.0, "warmup_steps": {"uniform": [0.0, 0.2]}}, None),
        (WARM, {"kind": "constant"}, "warmup_steps stays at 0.0"),
        ({"kind": "constant"}, {"kind": "constant", "warmup_steps": {"uniform": [0.0, 0.2]}}, None),
        ({"kind": "constant"}, WARM, "warmup_steps is fixed at 0.1"),
    ],
    ids=str,
)
def test_inclusions_know_schedules(special: dict[str, Any], general: dict[str, Any], reason: str | None) -> None:
    count, reasons = edges(special, general)
    assert count == (reason is None)
    assert reason is None or any(reason in other for other in reasons)


def test_a_warmup_is_no_constant_rate() -> None:
    """nesterov's inclusion in rmsterov holds only at a constant rate."""
    rmsterov = {"rule": "rmsterov", "learning_rate": {"log": [1e-3, 1.0]}, "momentum": {"uniform": [0.0, 0.9]}}
    rmsterov |= {"rho": {"uniform": [0.0, 1.0]}, "epsilon": {"log": [1e-6, 1e6]}}
    nesterov = {"learning_rate": 0.1, "momentum": 0.5}
    for warmup, reasons in (({}, []), ({"warmup_steps": 0.1}, ["rmsterov can imitate nesterov only at a constant"])):
        tables = {"nesterov": nesterov, "rmsterov": rmsterov}
        gaps = [
            gap.reason for gap in missing(study({"kind": "constant", **warmup}, **tables)) if gap.special == "nesterov"
        ]
        assert [gap[: len(reason)] for gap, reason in zip(gaps, reasons, strict=True)] == reasons
