"""Clipping, weight decay and averages of the weights, which weights are evaluated, and what a rule is handed."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import INPUTS, INTERVAL, OUTPUTS, START, STEPS, WORKLOAD, job, plain_curve, train

import levelfield as lf
from levelfield.errors import StudyError
from levelfield.hyperparameters import FRACTION, POSITIVE, Hyperparameter
from levelfield.rules import Rule, get_rule

RATE = 0.1


def by_hand(rate: Any = lambda t: RATE, clip: float = np.inf, decay: float = 0.0, ema: float = 0.0) -> list[float]:
    """Return the losses of gradient descent with options, in float64."""
    w, b = START["w"].astype(np.float64), START["b"].astype(np.float64)
    average, losses = [np.zeros_like(w), np.zeros_like(b)], []

    def residuals(w: Any, b: Any) -> Any:
        return INPUTS @ w + b - OUTPUTS

    for t in range(STEPS):
        r = residuals(w, b) * 2 / OUTPUTS.size
        dw, db = INPUTS.T @ r, r.sum(0)
        scale = min(1.0, clip / np.sqrt((dw**2).sum() + (db**2).sum()))
        w, b = w - rate(t) * (scale * dw + decay * w), b - rate(t) * scale * db
        average = [ema * mean + (1 - ema) * now for mean, now in zip(average, (w, b), strict=True)]
        if (t + 1) % INTERVAL == 0:
            losses.append(float((residuals(*(mean / (1 - ema ** (t + 1)) for mean in average)) ** 2).mean()))
    return losses


CASES = [
    ({"clip_norm": 0.3}, {"clip": 0.3}),
    ({"clip_norm": 1e3}, {}),  # longer than any gradient
    ({"weight_decay": 0.5}, {"decay": 0.5}),
    ({"ema_decay": 0.7}, {"ema": 0.7}),
    ({"ema_decay": 0.0}, {}),
    ({"clip_norm": 0.3, "weight_decay": 0.5, "ema_decay": 0.7}, {"clip": 0.3, "decay": 0.5, "ema": 0.7}),
]


@pytest.mark.parametrize(("options", "expected"), CASES, ids=lambda case: "+".join(case) or "off")
def test_options_follow_their_equations(options: dict[str, float], expected: dict[str, float]) -> None:
    (trial,) = train(job(get_rule("sgd"), *options), {"learning_rate": RATE, **options})
    np.testing.assert_allclose(trial.curve.values["train_loss"], by_hand(**expected), rtol=1e-5)


def test_weight_decay_follows_the_schedule() -> None:
    decays = {"decay_steps": 1.0, "decay_factor": 0.1}
    point = {"learning_rate": RATE, "weight_decay": 0.5, **decays}
    (trial,) = train(job(get_rule("sgd"), "weight_decay", *decays, schedule="linear"), point)
    expected = by_hand(rate=lambda t: RATE * (1 - 0.9 * t / STEPS), decay=0.5)
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-5)


def test_every_option_can_be_searched() -> None:
    optimizer = {"rule": "sgd", "learning_rate": RATE, "clip_norm": {"log": [0.1, 1.0]}}
    optimizer |= {"one_minus_ema_decay": {"log": [1e-3, 1.0]}, "weight_decay": {"choice": [0.0, 0.1]}}
    study = lf.Study(workload="quadratic", steps=4, eval_interval=2, trials=1, pool=4, optimizers={"any": optimizer})
    points = [trial.point.hyperparameters for trial in lf.compare(study).results.trials["any"]]
    assert len({point["clip_norm"] for point in points}) == 4
    assert all(0 <= point["ema_decay"] < 1 for point in points)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"clip_norm": 0.0}, r"clip_norm reaches 0, outside \(0, inf\]"),
        ({"weight_decay": -1.0}, "weight_decay reaches -1, outside"),
        ({"ema_decay": 1.5}, r"ema_decay reaches 1.5, outside \[0, 0.9999999\]"),
        ({"ema_decay": 1}, r"ema_decay reaches 1, outside"),  # an average that stays at its start
        ({"clip_nrm": 1.0}, "did you mean 'clip_norm'"),
    ],
)
def test_an_option_outside_its_domain_is_rejected(option: dict[str, float], words: str) -> None:
    with pytest.raises(lf.LevelfieldError, match=words):
        lf.Study(workload="quadratic", steps=2, trials=1, optimizers={"sgd": {"learning_rate": 0.1, **option}})


# What is evaluated


def test_a_schedule_free_optimizer_is_evaluated_at_its_average() -> None:
    tx = optax.contrib.schedule_free_sgd(RATE, b1=0.8)
    (trial,) = train(job(get_rule("optax.contrib.schedule_free_sgd"), "b1"), {"learning_rate": RATE, "b1": 0.8})
    expected = plain_curve(tx, optax.contrib.schedule_free_eval_params)
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-4)
    assert not np.allclose(expected, plain_curve(tx), rtol=1e-2)  # the weights that it trains are others


def test_a_custom_rule_around_a_schedule_free_optimizer_is_evaluated_at_its_average() -> None:
    def build(learning_rate: Any) -> Any:
        return optax.chain(
            optax.clip(0.2), optax.contrib.schedule_free(optax.sgd(learning_rate), learning_rate, b1=0.5)
        )

    (trial,) = train(job(Rule("mine", {"learning_rate": POSITIVE}, build)), {"learning_rate": RATE})
    expected = plain_curve(build(RATE), lambda state, params: optax.contrib.schedule_free_eval_params(state[1], params))
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-4)


class Lookahead(NamedTuple):
    count: Any
    slow: Any


def lookahead(learning_rate: Any, pull: Any) -> optax.GradientTransformation:
    """Gradient descent that goes back to a slow average every other step (Zhang et al. 2019)."""

    def init(params: Any) -> Lookahead:
        return Lookahead(jnp.zeros((), jnp.int32), params)

    def update(gradients: Any, state: Lookahead, params: Any) -> Any:
        fast = jax.tree.map(lambda leaf, g: leaf - learning_rate * g, params, gradients)
        meets = state.count % 2 == 1
        slow = jax.tree.map(lambda s, f: jnp.where(meets, s + pull * (f - s), s), state.slow, fast)
        new = jax.tree.map(lambda s, f: jnp.where(meets, s, f), slow, fast)
        return jax.tree.map(jnp.subtract, new, params), Lookahead(state.count + 1, slow)

    return optax.GradientTransformation(init, update)


def test_a_rule_can_say_which_weights_to_evaluate() -> None:
    rule = lf.register_rule(
        "lookahead_for_this_test",
        lookahead,
        {"learning_rate": POSITIVE, "pull": FRACTION},
        evaluated=lambda state, params: state.slow,
    )
    (trial,) = train(job(rule, "pull"), {"learning_rate": RATE, "pull": 0.5})
    expected = plain_curve(lookahead(RATE, 0.5), lambda state, params: state.slow)
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-5)


# What a rule is handed


def test_a_rule_that_asks_for_the_loss_is_handed_it() -> None:
    (trial,) = train(job(get_rule("optax.contrib.momo"), "beta"), {"learning_rate": 1.0, "beta": 0.5})
    np.testing.assert_allclose(
        trial.curve.values["train_loss"], plain_curve(optax.contrib.momo(1.0, 0.5), asks_for=("value",)), rtol=1e-4
    )


def test_a_rule_that_draws_random_numbers_draws_them_by_the_seed_of_its_trial() -> None:
    noisy = job(get_rule("optax.noisy_sgd"), "eta")
    points = [{"learning_rate": RATE, "eta": 1.0}] * 3
    trials = train(noisy, *points)
    for trial in trials:
        expected = plain_curve(optax.noisy_sgd(RATE, eta=1.0, key=trial.point.seed))
        np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-4)
    assert len({trial.curve.final("train_loss") for trial in trials}) == 3


def test_every_learning_rate_of_a_rule_follows_the_schedule() -> None:
    seen = {}

    def build(learning_rate: Any, slow_rate: Any) -> optax.GradientTransformation:
        seen.update(fast=learning_rate, slow=slow_rate)
        return optax.sgd(learning_rate)

    about = {"learning_rate": POSITIVE, "slow_rate": Hyperparameter(low=0.0, group="learning rate")}
    decays = {"decay_steps": 1.0, "decay_factor": 0.5}
    scheduled = job(Rule("two_rates", about, build), "slow_rate", *decays, schedule="linear")
    train(scheduled, {"learning_rate": RATE, "slow_rate": 0.01, **decays})
    assert callable(seen["fast"])
    assert callable(seen["slow"])


def test_the_phase_is_the_step_since_the_last_evaluation() -> None:
    """A rule adds the phase to the bias, which is then the sum of the phases."""

    def build(learning_rate: Any) -> optax.GradientTransformationExtraArgs:
        def update(gradients: Any, state: Any, params: Any = None, *, phase: Any, interval: int, **extra: Any) -> Any:
            assert interval == INTERVAL
            return {"w": -params["w"], "b": jnp.zeros(4) + phase}, state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)

    (trial,) = train(job(Rule("phases", {"learning_rate": POSITIVE}, build)), {"learning_rate": RATE})
    sums = np.cumsum([step % INTERVAL for step in range(STEPS)])[INTERVAL - 1 :: INTERVAL]
    expected = [float(np.square(total - OUTPUTS).mean()) for total in sums]
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-5)


def test_a_rule_whose_update_takes_nothing_else_is_handed_nothing_else() -> None:
    """optax.contrib.sam refuses arguments that it does not know. Every second step takes it to the next weights."""

    def build(learning_rate: Any) -> Any:
        adversary = optax.chain(optax.contrib.normalize(), optax.sgd(0.05))
        return optax.contrib.sam(optax.sgd(learning_rate), adversary, sync_period=2)

    (trial,) = train(job(Rule("sam_for_this_test", {"learning_rate": POSITIVE}, build)), {"learning_rate": RATE})
    expected = plain_curve(build(RATE), asks_for=())
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-5)


# Python code that branches on a value


def branching(learning_rate: Any, nudge: Any) -> optax.GradientTransformation:
    return optax.sgd(learning_rate, momentum=nudge if nudge > 0 else None)


@pytest.fixture(scope="module")
def branching_rule() -> str:
    lf.register_workload(WORKLOAD)
    lf.register_rule("branching", branching, {"learning_rate": POSITIVE, "nudge": FRACTION})
    return "branching"


def branching_study(nudge: Any) -> lf.Study:
    optimizers = {"branching": {"learning_rate": {"log": [1e-2, 1e-1]}, "nudge": nudge}}
    return lf.Study(workload=WORKLOAD.name, steps=STEPS, trials=1, pool=3, optimizers=optimizers)


def test_a_fixed_value_that_code_branches_on_is_a_plain_number(branching_rule: str) -> None:
    for trial in lf.compare(branching_study(0.5)).results.trials["branching"]:
        rate = trial.point.hyperparameters["learning_rate"]
        np.testing.assert_allclose(
            trial.curve.values["train_loss"], plain_curve(optax.sgd(rate, momentum=0.5)), rtol=1e-5
        )


def test_several_values_that_code_branches_on_are_named_together() -> None:
    def build(learning_rate: Any, nudge: Any, push: Any, epsilon: Any) -> optax.GradientTransformation:
        return optax.adam(learning_rate, nudge if nudge > 0 and push > 0 else 0.0, 0.9, epsilon)

    domains = dict.fromkeys(("learning_rate", "nudge", "push", "epsilon"), POSITIVE)
    lf.register_rule("branching_twice", build, domains)
    ranges = {name: {"log": [1e-2, 1e-1]} for name in domains}
    study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers={"branching_twice": ranges})
    with pytest.raises(StudyError, match=r"nudge and push of branching_twice cannot be searched over: .* their values"):
        lf.compare(study)


@pytest.mark.parametrize("rate", [0.1, {"log": [1e-2, 1e-1]}], ids=["fixed", "searched"])
def test_code_cannot_branch_on_the_learning_rate(rate: Any) -> None:
    def build(learning_rate: Any) -> optax.GradientTransformation:
        return optax.sgd(learning_rate if learning_rate > 0.05 else 0.05)

    lf.register_rule("branching_on_rate", build, {"learning_rate": POSITIVE})
    optimizers = {"branching_on_rate": {"learning_rate": rate}}
    study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers=optimizers)
    with pytest.raises(StudyError, match=r"branches on the value of learning_rate, .* use jax.numpy.where"):
        lf.compare(study)


@pytest.mark.parametrize(
    ("evaluated", "words"),
    [
        (lambda state, params: state, "returned other shapes or types than the weights have"),
        (lambda state, params: state.slow, "failed .*has no attribute 'slow'"),
    ],
)
def test_weights_to_evaluate_are_checked_before_training(evaluated: Any, words: str) -> None:
    lf.register_rule("evaluated_wrongly", optax.sgd, {"learning_rate": POSITIVE}, evaluated=evaluated)
    optimizers = {"evaluated_wrongly": {"learning_rate": 0.1}}
    study = lf.Study(workload="quadratic", steps=2, trials=1, optimizers=optimizers)
    with pytest.raises(StudyError, match=f"evaluated_wrongly: evaluated {words}"):
        lf.compare(study)


def test_a_searched_value_that_code_branches_on_is_refused_with_the_reason(branching_rule: str) -> None:
    with pytest.raises(StudyError, match=r"nudge of branching cannot be searched over: .* branches on its value"):
        lf.compare(branching_study({"uniform": [0.1, 0.9]}))
