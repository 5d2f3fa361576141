"""The update rules against the paper's Table 1, written out again in plain numpy, and optax's by name."""

from __future__ import annotations

import functools
import inspect
import math
import operator
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import levelfield as lf
from levelfield import optax_signatures
from levelfield.errors import SpaceError, UnknownName, UsageError
from levelfield.optax_signatures import (
    hyperparameters_from_import,
    hyperparameters_from_source,
    known_optimizers,
    optimizer_hyperparameters,
)
from levelfield.rules import get_rule
from levelfield.schedules import schedule

STEPS = 2_000


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


# Table 1 of the paper. Each takes the gradients g_0 … g_{T−1}, as the rows of an array, and a rate η_t, and
# yields θ_{t+1} − θ_t; t counts from 0.


def sgd(gradients, rate):
    for t, g in enumerate(gradients):
        yield -rate(t) * g


def momentum(gradients, rate, momentum):
    v = 0.0
    for t, g in enumerate(gradients):
        v = momentum * v + g
        yield -rate(t) * v


def nesterov(gradients, rate, momentum):
    v = 0.0
    for t, g in enumerate(gradients):
        v = momentum * v + g
        yield -rate(t) * (momentum * v + g)


def rmsprop(gradients, rate, momentum, rho, epsilon):
    v, m = 1.0, 0.0
    for t, g in enumerate(gradients):
        v = rho * v + (1 - rho) * g**2
        m = momentum * m + rate(t) / np.sqrt(v + epsilon) * g
        yield -m


def rmsterov(gradients, rate, momentum, rho, epsilon):
    """Not in Table 1, but in Appendix A: RMSProp with Nesterov's step."""
    v, m = 1.0, 0.0
    for t, g in enumerate(gradients):
        v = rho * v + (1 - rho) * g**2
        m = momentum * m + rate(t) / np.sqrt(v + epsilon) * g
        yield -(momentum * m + rate(t) / np.sqrt(v + epsilon) * g)


def adam(gradients, rate, beta1, beta2, epsilon):
    m, v = 0.0, 0.0
    for t, g in enumerate(gradients):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        b = math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        yield -rate(t) * m / (np.sqrt(v) + epsilon) * b


def nadam(gradients, rate, beta1, beta2, epsilon):
    m, v = 0.0, 0.0
    for t, g in enumerate(gradients):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        b = math.sqrt(1 - beta2 ** (t + 1)) / (1 - beta1 ** (t + 1))
        yield -rate(t) * (beta1 * m + (1 - beta1) * g) / (np.sqrt(v) + epsilon) * b


PAPER = {
    "sgd": sgd,
    "momentum": momentum,
    "nesterov": nesterov,
    "rmsprop": rmsprop,
    "rmsterov": rmsterov,
    "adam": adam,
    "nadam": nadam,
}
SCHEDULES = {
    "constant": {},
    "linear": {"decay_steps": 0.7, "decay_factor": 1e-3},
    "step": {"decay_every": 0.13, "decay_factor": 0.5},
}


def paper_rate(kind: str, steps: int, learning_rate: float, values: dict[str, float]) -> Callable[[int], float]:
    """η_t: constant; linear to η_0 · factor over a share of the steps, then flat; or cut at regular intervals."""

    def linear(t: int) -> float:
        end = values["decay_steps"] * steps
        floor = learning_rate * values["decay_factor"]
        return floor if t >= end else learning_rate + (floor - learning_rate) * t / end

    def step(t: int) -> float:
        cuts = t // round(values["decay_every"] * steps)
        return learning_rate * values["decay_factor"] ** cuts

    return {"constant": lambda t: learning_rate, "linear": linear, "step": step}[kind]


# Trajectories over gradients whose components differ by 16 orders of magnitude


def gradients(steps: int, seed: int = 0) -> np.ndarray:
    scales = np.array([1.0, 1e-3, 1e3, 1e-8, 1e8, 1.0, 1e-1])
    return np.random.default_rng(seed).normal(size=(steps, len(scales))) * scales


def tree(rows):
    """A row as a small tree of parameters: a matrix, a vector, a scalar."""
    matrix = rows[..., :4].reshape(*rows.shape[:-1], 2, 2)
    return {"layer": {"w": matrix, "b": rows[..., 4:6]}, "scale": rows[..., 6]}


def rows(tree) -> np.ndarray:
    matrix = np.asarray(tree["layer"]["w"])
    parts = [matrix.reshape(*matrix.shape[:-2], 4), tree["layer"]["b"], tree["scale"][..., None]]
    return np.concatenate(parts, axis=-1)


@functools.partial(jax.jit, static_argnames=("rule", "kind"))
def _train(rule: str, kind: str, gradients, start, hyperparameters, decay):
    """Hyperparameters are traced, so that a rule compiles once for each kind of schedule."""
    rate = schedule(kind, STEPS, {"learning_rate": hyperparameters["learning_rate"]} | decay)
    tx = lf.optimizer(rule, **hyperparameters | {"learning_rate": rate})

    def step(carry, gradient):
        params, state = carry
        updates, state = tx.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params

    return jax.lax.scan(step, (start, tx.init(start)), gradients)[1]


def trajectory(rule: str, kind: str, rows_of_gradients: np.ndarray, hyperparameters: dict) -> np.ndarray:
    """θ_1 … θ_T from θ_0 = 0, where a step cannot hide behind a large parameter."""
    start = tree(np.zeros(rows_of_gradients.shape[1]))
    path = rows(_train(rule, kind, tree(rows_of_gradients), start, hyperparameters, SCHEDULES[kind]))
    assert path.dtype == np.float64
    return path


def paper_trajectory(rule: str, kind: str, rows_of_gradients: np.ndarray, hyperparameters: dict) -> np.ndarray:
    others = dict(hyperparameters)
    rate = paper_rate(kind, STEPS, others.pop("learning_rate"), SCHEDULES[kind])
    return np.cumsum(list(PAPER[rule](rows_of_gradients, rate, **others)), axis=0)


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    """The largest error, each component relative to the farthest that it has come."""
    return float(np.max(np.abs(actual - expected) / np.maximum.accumulate(np.abs(expected), axis=0)))


MOMENTUM = [
    {"learning_rate": 0.1, "momentum": 0.9},
    {"learning_rate": 0.1, "momentum": 0.0},
    {"learning_rate": 1e-6, "momentum": 0.9999},
]
RMSPROP = [
    {"learning_rate": 0.01, "momentum": 0.9, "rho": 0.99, "epsilon": 1e-10},
    {"learning_rate": 0.01, "momentum": 0.0, "rho": 0.9, "epsilon": 1e-16},
    {"learning_rate": 1e3, "momentum": 0.9, "rho": 0.999, "epsilon": 1e10},
    {"learning_rate": 0.01, "momentum": 0.5, "rho": 0.0, "epsilon": 1e-3},
    {"learning_rate": 0.01, "momentum": 0.9999, "rho": 0.9999, "epsilon": 1.0},
    {"learning_rate": 0.01, "momentum": 0.9, "rho": 1.0, "epsilon": 1e-8},
]
ADAM = [
    {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-16},
    {"learning_rate": 1e9, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e10},
    {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.0, "epsilon": 1e-3},
    {"learning_rate": 1e-3, "beta1": 0.0, "beta2": 0.99, "epsilon": 1.0},
    {"learning_rate": 1e-3, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e-8},
    {"learning_rate": 1e-3, "beta1": 0.9999, "beta2": 0.9999, "epsilon": 1e-4},
    {"learning_rate": 1e-3, "beta1": 0.999, "beta2": 0.1, "epsilon": 1e-8},
]
HYPERPARAMETERS = {
    "sgd": [{"learning_rate": 0.1}],
    "momentum": MOMENTUM,
    "nesterov": MOMENTUM,
    "rmsprop": RMSPROP,
    "rmsterov": RMSPROP,
    "adam": ADAM,
    "nadam": ADAM,
}


def named(value) -> str:
    return ",".join(f"{number:g}" for number in value.values()) if isinstance(value, dict) else value


CASES = [(rule, values) for rule, settings in HYPERPARAMETERS.items() for values in settings]


@pytest.mark.parametrize("kind", SCHEDULES)
@pytest.mark.parametrize(("rule", "hyperparameters"), CASES, ids=named)
def test_a_rule_follows_table_1(rule, kind, hyperparameters):
    seen = gradients(STEPS)
    path = trajectory(rule, kind, seen, hyperparameters)
    assert relative_error(path, paper_trajectory(rule, kind, seen, hyperparameters)) <= 1e-12


@pytest.mark.parametrize("rule", HYPERPARAMETERS)
def test_the_written_out_rules_differ(rule):
    """The bound of 1e-12 means something: every other rule with the same hyperparameters is far outside it."""
    seen, values = gradients(STEPS), HYPERPARAMETERS[rule][0]
    path = trajectory(rule, "linear", seen, values)
    for other, settings in HYPERPARAMETERS.items():
        if other != rule and settings[0].keys() == values.keys():
            assert relative_error(path, paper_trajectory(other, "linear", seen, values)) > 1e-2


@pytest.mark.parametrize("kind", SCHEDULES)
def test_a_schedule_returns_the_rate_at_every_step(kind):
    for learning_rate, steps in ((0.1, STEPS), (3.0, 17)):
        ours = schedule(kind, steps, {"learning_rate": learning_rate} | SCHEDULES[kind])
        theirs = paper_rate(kind, steps, learning_rate, SCHEDULES[kind])
        actual = [float(ours(t)) if callable(ours) else ours for t in range(0, steps, max(1, steps // 40))]
        expected = [theirs(t) for t in range(0, steps, max(1, steps // 40))]
        np.testing.assert_allclose(actual, expected, rtol=1e-13)


def test_schedules_at_their_corners():
    linear = schedule("linear", 100, {"learning_rate": 2.0, "decay_steps": 0.5, "decay_factor": 0.1})
    assert [float(linear(t)) for t in (0, 25, 50, 51, 99)] == pytest.approx([2.0, 1.1, 0.2, 0.2, 0.2])
    step = schedule("step", 100, {"learning_rate": 2.0, "decay_every": 0.25, "decay_factor": 0.5})
    assert [float(step(t)) for t in (0, 24, 25, 49, 50, 99)] == [2.0, 2.0, 1.0, 1.0, 0.5, 0.25]
    assert schedule("constant", 100, {"learning_rate": 2.0}) == 2.0


# Known answers: g_0 = 2, g_1 = −1, worked by hand

SQRT = math.sqrt
TWO_STEPS = [
    ("sgd", {"learning_rate": 0.1}, [-0.2, 0.1]),
    # v = 2, 0
    ("momentum", {"learning_rate": 0.1, "momentum": 0.5}, [-0.2, 0.0]),
    # γv + g = 3, −1
    ("nesterov", {"learning_rate": 0.1, "momentum": 0.5}, [-0.3, 0.1]),
    # v = (1 + 4)/2 = 2.5, (2.5 + 1)/2 = 1.75; m = 0.2/√3, 0.1/√3 − 0.1/1.5
    (
        "rmsprop",
        {"learning_rate": 0.1, "momentum": 0.5, "rho": 0.5, "epsilon": 0.5},
        [-0.2 / SQRT(3), -0.1 / SQRT(3) + 0.1 / 1.5],
    ),
    # the same m; θ moves by γm + 0.1·g/√(v + ε)
    (
        "rmsterov",
        {"learning_rate": 0.1, "momentum": 0.5, "rho": 0.5, "epsilon": 0.5},
        [-0.3 / SQRT(3), -0.05 / SQRT(3) + 0.05 / 1.5 + 0.1 / 1.5],
    ),
    # m = 1, 0; v = 1, 1; b = √0.25/0.5 = 1 and √(1 − 0.75²)/(1 − 0.5²)
    ("adam", {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.75, "epsilon": 1.0}, [-0.05, 0.0]),
    # β₁m + (1 − β₁)g = 1.5, −0.5
    (
        "nadam",
        {"learning_rate": 0.1, "beta1": 0.5, "beta2": 0.75, "epsilon": 1.0},
        [-0.075, 0.025 * SQRT(0.4375) / 0.75],
    ),
]


def updates(tx: optax.GradientTransformation, seen: Sequence[float]) -> list[float]:
    """The steps of one parameter over these gradients."""

    def step(state, gradient):
        update, state = tx.update(gradient, state, jnp.zeros(()))
        return state, update

    return jax.jit(lambda seen: jax.lax.scan(step, tx.init(jnp.zeros(())), seen)[1])(jnp.asarray(seen)).tolist()


@pytest.mark.parametrize(("rule", "hyperparameters", "expected"), TWO_STEPS, ids=[case[0] for case in TWO_STEPS])
def test_two_steps_worked_by_hand(rule, hyperparameters, expected):
    assert updates(lf.optimizer(rule, **hyperparameters), [2.0, -1.0]) == pytest.approx(expected, rel=1e-14, abs=1e-17)


def test_adams_first_moment_is_remembered():
    # After g = 2, 2: m = 1, 1.5; v = 1, 1.75.
    tx = lf.optimizer("adam", learning_rate=0.1, beta1=0.5, beta2=0.75, epsilon=1.0)
    second = -0.1 * 1.5 / (SQRT(1.75) + 1) * SQRT(0.4375) / 0.75
    assert updates(tx, [2.0, 2.0]) == pytest.approx([-0.05, second], rel=1e-14)


@pytest.mark.parametrize(("rule", "hyperparameters", "expected"), TWO_STEPS, ids=[case[0] for case in TWO_STEPS])
def test_the_rate_may_be_a_function_of_the_step_counted_from_zero(rule, hyperparameters, expected):
    scheduled = hyperparameters | {"learning_rate": lambda step: jnp.where(step == 0, 0.1, 0.0)}
    first, second = updates(lf.optimizer(rule, **scheduled), [2.0, -1.0])
    assert first == pytest.approx(expected[0], rel=1e-14)
    # Only the momentum buffers of RMSProp and RMSterov contain the rate.
    carried = {"rmsprop": -0.1 / SQRT(3), "rmsterov": -0.05 / SQRT(3)}.get(rule, 0.0)
    assert second == pytest.approx(carried, rel=1e-14, abs=1e-17)


# Against optax


@pytest.mark.parametrize(("step", "ratio"), [(1, 0.03), (100, 0.31), (1000, 0.80)])
def test_the_papers_adam_is_not_optaxs_if_epsilon_is_large(step, ratio):
    """The paper adds ε before the bias correction, optax after it: they differ by √(1 − β₂^t) if ε ≫ √v."""
    seen = 1 + 0.5 * np.random.default_rng(0).random(step)
    ours = lf.optimizer("adam", learning_rate=1.0, beta1=0.9, beta2=0.999, epsilon=1e6)
    theirs = optax.adam(1.0, b1=0.9, b2=0.999, eps=1e6)
    actual = updates(ours, seen)[-1] / updates(theirs, seen)[-1]
    assert actual == pytest.approx(math.sqrt(1 - 0.999**step), rel=1e-4)
    assert round(actual, 2) == ratio


def test_the_papers_adam_is_optaxs_if_epsilon_is_zero():
    seen = gradients(STEPS)[:, 0]
    ours = lf.optimizer("adam", learning_rate=1e-3, beta1=0.9, beta2=0.999, epsilon=0.0)
    np.testing.assert_allclose(updates(ours, seen), updates(optax.adam(1e-3, eps=0.0), seen), rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("rate", [1e-2, optax.linear_schedule(1e-2, 1e-4, 50)], ids=["constant", "linear"])
def test_rmsprop_is_optaxs_with_the_papers_settings(rate):
    seen = gradients(STEPS)[:, 0]
    ours = lf.optimizer("rmsprop", learning_rate=rate, momentum=0.9, rho=0.99, epsilon=1e-3)
    paper = {"initial_scale": 1.0, "eps_in_sqrt": True}
    theirs = optax.rmsprop(rate, decay=0.99, eps=1e-3, momentum=0.9, **paper)
    np.testing.assert_allclose(updates(ours, seen), updates(theirs, seen), rtol=1e-9, atol=1e-15)
    assert updates(optax.rmsprop(rate, decay=0.99, eps=1e-3, momentum=0.9), seen[:2])[0] != pytest.approx(
        updates(ours, seen[:2])[0], rel=1e-2
    )


def test_momentum_and_nesterov_are_optaxs_sgd():
    seen = gradients(STEPS)[:, 0]
    for rule, nesterov in (("momentum", False), ("nesterov", True)):
        ours = lf.optimizer(rule, learning_rate=1e-2, momentum=0.9)
        theirs = optax.sgd(1e-2, momentum=0.9, nesterov=nesterov)
        np.testing.assert_allclose(updates(ours, seen), updates(theirs, seen), rtol=1e-9, atol=1e-15)


def test_an_optax_optimizer_by_name_is_that_optimizer():
    settings = {"learning_rate": 1e-2, "b1": 0.8, "b2": 0.95, "eps": 1e-4, "weight_decay": 0.1}
    params, gradient = {"w": jnp.arange(3.0)}, {"w": jnp.array([1.0, -2.0, 0.5])}
    steps = []
    for tx in (lf.optimizer("optax.adamw", **settings), optax.adamw(**settings)):
        updates, state = tx.update(gradient, tx.init(params), params)
        updates, _ = tx.update(gradient, state, optax.apply_updates(params, updates))
        steps.append(np.asarray(updates["w"]))
    np.testing.assert_array_equal(*steps)
    assert np.all(steps[0] != 0)


def test_an_optax_optimizer_keeps_optaxs_defaults():
    seen = gradients(10)[:, 0]
    assert updates(lf.optimizer("optax.lion", learning_rate=1e-3), seen) == updates(optax.lion(1e-3), seen)


def nothing(**hyperparameters): ...


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: lf.optimizer(5), "rule 5: expected a name, such as 'adam'"),
        (lambda: lf.register_rule(5, nothing, {}), "rule 5: expected a name"),
        (lambda: lf.register_rule("", nothing, {}), "rule '': expected a name"),
        (lambda: lf.register_rule("x", 5, {}), "rule 'x': build = 5: expected a function of the hyperparameters"),
        (lambda: lf.register_rule("x", nothing, {}, evaluated=5), "rule 'x': evaluated = 5: expected a function of"),
        (lambda: lf.register_rule("x", nothing, 5), "rule 'x': hyperparameters = 5: expected a mapping"),
        (lambda: lf.register_workload(5), r"register_workload\(5\): expected an lf.Workload"),
        (lambda: lf.register_dataset("x", 5), r"register_dataset\('x', 5\): expected an lf.Dataset"),
        (lambda: lf.load_study(5), r"load_study\(5\): expected the path to a .toml file"),
        (lambda: lf.load_study("wilson").only("adam"), r"only\('adam'\): expected a list of names"),
        (lambda: lf.compare("wilson"), r"'wilson': expected an lf.Study; lf.load_study\('wilson'\) loads one"),
        (lambda: lf.ladder(5), "5: expected an lf.Study"),
        (lambda: lf.Comparison.load(5), "5: expected an lf.Study"),
    ],
)
def test_an_argument_of_the_wrong_type_is_refused(call, words):
    with pytest.raises(UsageError, match=words):
        call()


# optax's signatures, read without importing it


@pytest.mark.parametrize("name", known_optimizers())
def test_the_source_of_optax_says_what_its_functions_say(name):
    hyperparameters = hyperparameters_from_source(name)
    assert hyperparameters is not None
    assert hyperparameters == hyperparameters_from_import(name)
    parameters = {}
    for key, parameter in inspect.signature(operator.attrgetter(name)(optax)).parameters.items():
        if isinstance(parameter.default, tuple) and not hasattr(parameter.default, "_fields"):
            members = enumerate(parameter.default, start=1)
            parameters |= {f"{key}_{i}": parameter.replace(default=member) for i, member in members}
        else:
            parameters["learning_rate" if name == "polyak_sgd" and key == "scaling" else key] = parameter
    assert list(hyperparameters) == list(parameters)
    for key, parameter in parameters.items():
        if isinstance(parameter.default, bool | int | float | str):
            assert hyperparameters[key].default == parameter.default
        assert hyperparameters[key].required == (parameter.default is parameter.empty or key == "learning_rate")


def test_optimizers_are_found_by_import_if_the_source_is_laid_out_differently(monkeypatch):
    expected = hyperparameters_from_source("adamw")
    monkeypatch.setattr(optax_signatures, "_signatures", dict)
    assert hyperparameters_from_source("adamw") is None
    assert optimizer_hyperparameters("adamw") == expected
    assert optimizer_hyperparameters("adamv") is None


def test_rules_and_schedules_load_no_jax():
    code = """
import sys
import levelfield as lf
from levelfield import rules, schedules
assert rules.get_rule("optax.nadamw").hyperparameters["nesterov"].default is True
rate = schedules.schedule("linear", 100, {"learning_rate": 1.0, "decay_steps": 0.5, "decay_factor": 0.0})
assert rate(25) == 0.5
assert rules.adam(0, 2.0, 0.0, 0.0, 0.1, 0.5, 0.75, 1.0)[1:] == (1.0, 1.0)
print(*sys.modules)
"""
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"jax", "optax", "flax"} & set(loaded)


def optax_study(rule: str, **table) -> lf.Study:
    tables = {rule: {"learning_rate": {"log": [1e-3, 1e-1]}, **table}}
    return lf.Study(workload="quadratic", steps=2, trials=1, optimizers=tables)


@pytest.mark.parametrize(
    ("rule", "table", "words"),
    [
        ("optax.lion", {"mask": "x"}, "mask cannot be set in a study"),
        ("optax.adamw", {"mask": True}, "mask cannot be set in a study"),
        ("optax.adam", {"mu_dtype": 16}, "mu_dtype = 16: expected a string"),
        ("optax.noisy_sgd", {"key": 1}, "key cannot be set in a study"),
        ("optax.lbfgs", {"linesearch": "zoom"}, "linesearch cannot be set in a study"),
        ("optax.sgd", {"momentum": "x"}, "momentum = 'x': expected a number"),
        ("optax.sgd", {"momentum": True}, "momentum = True: expected a number"),
        ("optax.sgd", {"nesterov": "yes"}, "nesterov = 'yes': expected true or false"),
        ("optax.sgd", {"nesterov": 0.5}, "nesterov = 0.5: expected true or false"),
        ("optax.adafactor", {"min_dim_size_to_factor": 2.5}, "min_dim_size_to_factor = 2.5: expected an integer"),
        ("optax.adafactor", {"min_dim_size_to_factor": {"integer": [1, 9]}}, "cannot be searched over"),
    ],
)
def test_a_study_refuses_what_an_optax_optimizer_cannot_take(rule, table, words):
    with pytest.raises(lf.LevelfieldError, match=words):
        optax_study(rule, **table)


@pytest.mark.parametrize(
    ("rule", "table"),
    [
        ("optax.sgd", {"momentum": 0.9, "nesterov": True}),
        ("optax.adam", {"mu_dtype": "bfloat16"}),
        ("optax.adafactor", {"dtype_momentum": "float32"}),
        ("optax.sgd", {"momentum": {"uniform": [0.0, 0.9]}}),
        ("optax.adafactor", {"min_dim_size_to_factor": 64, "decay_offset": 1, "factored": False}),
        ("optax.lars", {"weight_decay_mask": False}),
        ("optax.rmsprop", {"initial_scale": 1, "eps_in_sqrt": False}),
    ],
)
def test_a_study_takes_numbers_switches_and_sizes(rule, table):
    space = optax_study(rule, **table).optimizer(rule).space
    assert {key: space.spec()[key] for key in table} == table


def test_an_object_can_be_passed_in_python():
    """A mask is a function: no study file can hold one, but lf.optimizer takes it."""
    tx = lf.optimizer("optax.adamw", learning_rate=0.1, weight_decay=1.0, mask=lambda params: {"w": True, "b": False})
    params = {"w": jnp.ones(()), "b": jnp.ones(())}
    updates, _ = tx.update({"w": jnp.zeros(()), "b": jnp.zeros(())}, tx.init(params), params)
    assert updates["w"] == pytest.approx(-0.1)
    assert updates["b"] == 0


# The groups in which a ladder tunes hyperparameters


def groups(rule: str) -> dict[str, str]:
    hyperparameters = get_rule(rule).hyperparameters
    return {name: hyperparameter.group for name, hyperparameter in hyperparameters.items() if hyperparameter.group}


def test_every_hyperparameter_of_the_paper_has_a_group():
    expected = {"learning_rate": "learning rate", "epsilon": "epsilon"}
    for rule in PAPER:
        names = get_rule(rule).hyperparameters
        assert groups(rule) == {name: expected.get(name, "momentum") for name in names}


def test_other_rules_have_groups_by_the_names_of_their_hyperparameters():
    assert groups("optax.adamw") == {
        "learning_rate": "learning rate",
        **dict.fromkeys(("b1", "b2"), "momentum"),
        **dict.fromkeys(("eps", "eps_root"), "epsilon"),
    }
    assert groups("optax.rmsprop") == {
        "learning_rate": "learning rate",
        **dict.fromkeys(("decay", "momentum"), "momentum"),
        "eps": "epsilon",
    }


def test_a_registered_rule_can_declare_its_groups():
    hyperparameters = {
        "learning_rate": lf.Hyperparameter(low=0.0),
        "momentum": lf.Hyperparameter(0.0, 1.0, usual=0.9),
        "softness": lf.Hyperparameter(low=0.0, usual=1.0, group="epsilon"),
        "twist": lf.Hyperparameter(low=0.0, usual=0.5),
    }
    lf.register_rule("soft", lambda **_: None, hyperparameters)
    assert groups("soft") == {"learning_rate": "learning rate", "momentum": "momentum", "softness": "epsilon"}
    log = {"log": [1e-2, 1e0]}
    table = {"learning_rate/softness": log, "momentum": {"uniform": [0.0, 0.9]}, "softness": log, "twist": log}
    study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers={"soft": table})
    spaces = {name.split(" (")[1]: optimizer.space.spec() for name, optimizer in lf.ladder(study).optimizers.items()}
    usual = {"momentum": 0.9, "softness": 1.0, "twist": 0.5}
    assert spaces == {
        "learning rate)": {"learning_rate": {"log": [1e-5, 1e-1]}} | usual,
        "+ momentum)": {"learning_rate": {"log": [1e-5, 1e-1]}} | usual | {"momentum": {"uniform": [0.0, 0.9]}},
        "+ epsilon)": table | {"twist": 0.5},
        "everything)": table,
    }


def test_an_unknown_group_is_refused():
    with pytest.raises(UnknownName, match="did you mean 'momentum'"):
        lf.Hyperparameter(group="momentun")


# The contract of every rule

SENSIBLE = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.02, "momentum": 0.9},
    "nesterov": {"learning_rate": 0.02, "momentum": 0.9},
    "rmsprop": {"learning_rate": 0.003, "momentum": 0.9, "rho": 0.9, "epsilon": 1e-2},
    "rmsterov": {"learning_rate": 0.003, "momentum": 0.9, "rho": 0.9, "epsilon": 1e-2},
    "adam": {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-2},
    "nadam": {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-2},
    "soap": {"learning_rate": optax.linear_schedule(0.1, 0.0, 500)},
    "cautious_adamw": {"learning_rate": optax.linear_schedule(0.1, 0.0, 500)},
    "optax.adamw": {"learning_rate": optax.linear_schedule(0.1, 0.0, 500), "weight_decay": 0.0},
}


@pytest.mark.parametrize("rule", SENSIBLE)
def test_a_rule_minimizes_a_quadratic(rule):
    tx = lf.optimizer(rule, **SENSIBLE[rule])
    target = {"a": jnp.array([1.0, -2.0]), "b": jnp.array(3.0)}
    curvature = {"a": jnp.array([0.5, 5.0]), "b": jnp.array(1.0)}

    def loss(params):
        return sum(jax.tree.leaves(jax.tree.map(lambda h, p, t: jnp.sum(h * (p - t) ** 2), curvature, params, target)))

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    start = jax.tree.map(jnp.zeros_like, target)
    (end, _), _ = jax.lax.scan(step, (start, tx.init(start)), length=500)
    assert loss(end) < 1e-4 * loss(start)


@pytest.mark.parametrize("rule", [*PAPER, "soap", "cautious_adamw"])
def test_a_rule_keeps_the_types_of_its_parameters(rule):
    """A step must not widen what it updates, or a loop on the device would refuse it."""
    tx = lf.optimizer(rule, **SENSIBLE[rule])
    params = {"w": jnp.ones((2, 3), jnp.float32), "b": jnp.ones(2, jnp.float32)}
    state = tx.init(params)
    updates, after = tx.update(jax.tree.map(jnp.ones_like, params), state, params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), updates) == jax.tree.map(lambda x: (x.shape, x.dtype), params)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


# Refusals


@pytest.mark.parametrize("rule", PAPER)
def test_a_missing_hyperparameter_is_refused(rule):
    for missing in SENSIBLE[rule]:
        others = {name: value for name, value in SENSIBLE[rule].items() if name != missing}
        with pytest.raises(SpaceError, match=f"{rule} needs {missing}"):
            lf.optimizer(rule, **others)


@pytest.mark.parametrize(
    ("rule", "unknown", "words"),
    [
        ("adam", "epsilom", r"'epsilom' of adam; did you mean 'epsilon'\?"),
        ("adam", "momentum", "'momentum' of adam.*beta1, beta2, epsilon"),
        ("sgd", "momentum", "'momentum' of sgd.*learning_rate"),
        ("optax.adamw", "weight_decy", r"'weight_decy' of optax.adamw; did you mean 'weight_decay'\?"),
    ],
)
def test_an_unknown_hyperparameter_is_refused(rule, unknown, words):
    with pytest.raises(UnknownName, match=words):
        lf.optimizer(rule, **SENSIBLE[rule], **{unknown: 0.1})


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("adma", r"'adma'; did you mean 'adam'\?"),
        ("Adam", r"'Adam'; did you mean 'adam'\?"),
        ("zzz", "expected one of: adam.*rmsterov"),
        ("optax.adamv", r"'optax.adamv'; did you mean 'optax.adam"),
        ("optax.apply_updates", "'optax.apply_updates'"),
    ],
)
def test_an_unknown_rule_is_refused(rule, words):
    with pytest.raises(UnknownName, match=words):
        lf.optimizer(rule, learning_rate=0.1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": -1.0}, "learning_rate = -1 is outside"),
        ({"learning_rate": math.nan}, "learning_rate = nan is outside"),
        ({"beta1": 1.5}, r"beta1 = 1.5 is outside \[0, 1\]"),
        ({"epsilon": "1e-8"}, "epsilon = '1e-8': expected a number"),
    ],
)
def test_a_number_that_a_rule_cannot_take_is_refused(changes, words):
    with pytest.raises(SpaceError, match=words):
        lf.optimizer("adam", **SENSIBLE["adam"] | changes)
