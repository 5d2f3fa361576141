"""Every optimizer of optax, core and contrib: trained as optax trains it, or refused with the reason."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from regression import job, plain_curve, train

import levelfield as lf
from levelfield.errors import StudyError, UnknownName, UsageError
from levelfield.optax_optimizers import build_optimizer, optax_optimizers, refusal
from levelfield.optax_signatures import function_hyperparameters, known_optimizers, optimizer_function
from levelfield.rules import get_rule
from levelfield.training.checks import check_rule

RATE = 0.05
pytestmark = [
    pytest.mark.filterwarnings("ignore:`optimistic_adam`:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:optax:DeprecationWarning"),
]
SEED = 100  # of the first trial
REFUSED = [name for name in optax_optimizers() if refusal(name)]
TRAINED = [name for name in known_optimizers() if not refusal(name)]
# What optax demands besides the gradient; the others ignore it.
ASKS_FOR = {
    "lbfgs": ("value", "grad", "value_fn"),
    "polyak_sgd": ("value",),
    "contrib.momo": ("value",),
    "contrib.momo_adam": ("value",),
    "contrib.sophia": ("obj_fn",),
}


@pytest.mark.parametrize("name", TRAINED)
def test_an_optimizer_trains_as_in_a_plain_loop(name: str) -> None:
    function = optimizer_function(name)
    arguments: dict[str, Any] = {"scaling" if name == "polyak_sgd" else "learning_rate": RATE}
    arguments |= {"key": SEED} if name == "noisy_sgd" else {}
    evaluated = optax.contrib.schedule_free_eval_params if "schedule_free" in name else lambda state, params: params
    expected = plain_curve(function(**arguments), evaluated, ASKS_FOR.get(name, ()))
    (trial,) = train(job(get_rule(f"optax.{name}")), {"learning_rate": RATE}, slots=1)
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-3)


@pytest.mark.parametrize("name", REFUSED)
def test_an_optimizer_that_cannot_be_trained_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(UsageError, match=f"optax.{name} cannot be trained: it "):
        get_rule(f"optax.{name}")


def test_every_optimizer_of_optax_is_known_or_refused() -> None:
    """What optax's documentation lists as an optimizer takes a learning rate, or wraps another optimizer."""
    wrappers = {"selective_transform"}  # it changes how an optimizer is called
    missing = []
    for prefix, module in (("", optax), ("contrib.", optax.contrib)):
        for name in {*dir(module), *getattr(module, "__all__", ())}:  # which has deprecated names, too
            value = getattr(module, name)
            if name.startswith(("_", "scale_by")) or not inspect.isfunction(value):
                continue
            returned = str(inspect.signature(value).return_annotation)
            rates = {"learning_rate", "max_learning_rate", "base_optimizer", "optimizer"}
            takes = rates & inspect.signature(value).parameters.keys()
            if "GradientTransformation" in returned and takes and name not in wrappers:
                missing += [] if f"{prefix}{name}" in TRAINED or refusal(f"{prefix}{name}") else [f"{prefix}{name}"]
    assert missing == []


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("optax.muon", "optax.contrib.muon"),
        ("optax.contrib.prodgy", "optax.contrib.prodigy"),
        ("optax.sam", "optax.contrib.sam"),
        ("optax.adamv", "optax.adam"),
        ("optax.adma", "optax.adam"),
        ("optax.AdamW", "optax.adamw"),
    ],
)
def test_a_misspelled_optimizer_is_corrected(name: str, suggested: str) -> None:
    with pytest.raises(UnknownName, match=f"did you mean '{suggested}'"):
        get_rule(name)


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("lion", "optax.lion"),
        ("AdamW", "optax.adamw"),
        ("adam_w", "optax.adamw"),
        ("muon", "optax.contrib.muon"),
        ("contrib.sam", "contrib.sam"),
    ],
)
def test_a_name_without_its_module_is_completed(name: str, suggested: str) -> None:
    with pytest.raises(UnknownName, match=f"unknown rule '{name}'; did you mean '.*{suggested}'"):
        get_rule(name)


@pytest.mark.parametrize("name", ["clip", "chain", "scale_by_adam", "contrib.scale_by_muon"])
def test_a_part_of_an_optimizer_is_named_as_such(name: str) -> None:
    with pytest.raises(UnknownName, match=f"'optax.{name}' is part of an optimizer; register"):
        get_rule(f"optax.{name}")


def test_an_unknown_optimizer_is_looked_up_in_the_documentation() -> None:
    with pytest.raises(UnknownName, match=r"unknown optax optimizer 'optax.MultiSteps'; docs/optimizers.md lists"):
        get_rule("optax.MultiSteps")


def test_every_number_can_be_searched_and_every_other_value_set() -> None:
    """None of optax's code branches on a number that is not an integer."""
    for name in TRAINED:
        about = get_rule(f"optax.{name}").hyperparameters
        numbers = [key for key, one in about.items() if one.kind == "number" and one.traced and key != "learning_rate"]
        values = {key: one.default for key, one in about.items() if not one.traced and one.default is not None}
        searched = job(get_rule(f"optax.{name}"), *numbers, **values)
        check_rule(searched, dict.fromkeys(searched.traced, 0.5))


NO_SCHEDULE = ["optimistic_adam", "rprop", "sm3"]


def test_all_other_optimizers_take_a_schedule() -> None:
    for name in set(TRAINED) - set(NO_SCHEDULE):
        scheduled = job(get_rule(f"optax.{name}"), "warmup_steps", schedule="cosine")
        check_rule(scheduled, dict.fromkeys(scheduled.traced, 0.5))


@pytest.mark.parametrize("name", NO_SCHEDULE)
def test_an_optimizer_that_takes_no_schedule_says_so(name: str) -> None:
    schedule = {"kind": "linear"} if name != "rprop" else {"kind": "constant", "warmup_steps": 0.5}
    optimizers = {"x": {"rule": f"optax.{name}", "learning_rate": 0.1}}
    study = lf.Study(workload="quadratic", steps=2, trials=1, pool=1, schedule=schedule, optimizers=optimizers)
    with pytest.raises(StudyError, match=rf'optax.{name} cannot be trained with a schedule .* kind = "constant"'):
        lf.compare(study)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"learning_rate": -0.1}, r"learning_rate reaches -0.1, outside \[0, inf\]"),
        ({"rule": "optax.contrib.galore", "rank": 4.0}, "rank = 4.0: expected an integer"),
        ({"rule": "optax.contrib.muon", "ns_steps": 5.5}, "ns_steps = 5.5: expected an integer"),
        ({"rule": "optax.contrib.muon", "ns_steps": -1}, r"ns_steps reaches -1, outside \[0, inf\]"),
        ({"rule": "optax.contrib.galore", "rank": 0}, r"rank reaches 0, outside \[1, inf\]"),
        ({"rule": "optax.contrib.galore", "update_proj_gap": 0}, r"update_proj_gap reaches 0, outside \[1, inf\]"),
        ({"rule": "optax.contrib.sophia", "update_interval": 0}, r"update_interval reaches 0, outside \[1, inf\]"),
        ({"rule": "optax.lbfgs", "memory_size": 0}, r"memory_size reaches 0, outside \[1, inf\]"),
        ({"b1": 1.0}, r"b1 reaches 1, outside \[0, 0.9999999\]"),
        ({"b2": {"uniform": [0.9, 1.5]}}, r"b2 reaches 1.5, outside"),
        ({"one_minus_b2": {"uniform": [0.1, 1.5]}}, r"so that 0 ≤ b2 < 1"),
        ({"rule": "optax.contrib.prodigy", "betas_2": -0.1}, r"betas_2 reaches -0.1, outside"),
        ({"rule": "optax.signum", "beta": 1.1}, r"beta reaches 1.1, outside"),
        ({"rule": "optax.rmsprop", "decay": 2.0}, r"decay reaches 2, outside"),
        ({"rule": "optax.adadelta", "rho": -1.0}, r"rho reaches -1, outside"),
        ({"eps": -1e-8}, r"eps reaches -1e-08, outside \[0, inf\]"),
        ({"rule": "optax.contrib.prodigy", "betas": [0.9, 0.99]}, r"got \[0.9, 0.99\]; members .*: betas_1, betas_2"),
        ({"rule": "optax.contrib.prodigy", "betas": (0.9, 0.99)}, r"got \(0.9, 0.99\); members .*: betas_1, betas_2"),
    ],
    ids=lambda case: "",
)
def test_a_value_that_an_optimizer_cannot_take_is_refused(table: dict[str, Any], words: str) -> None:
    optimizers = {"x": {"rule": "optax.adam", "learning_rate": 0.1} | table}
    with pytest.raises(UsageError, match=words):
        lf.Study(workload="quadratic", steps=2, trials=1, optimizers=optimizers)


@pytest.mark.parametrize(
    "table",
    [
        {"b1": 0.0, "one_minus_b2": {"log": [1e-7, 1e0]}, "eps": {"log": [1e-16, 1e30]}, "eps_root": 0.0},
        {"rule": "optax.optimistic_gradient_descent", "alpha": 1.0, "beta": 1.5},  # this beta is no moving average's
        {"rule": "optax.sgd", "momentum": 1.0},
        {"rule": "optax.adafactor", "min_dim_size_to_factor": 0, "decay_offset": 0},
        {"rule": "optax.contrib.muon", "ns_steps": 0},
    ],
    ids=lambda case: "",
)
def test_limits_and_unusual_values_are_allowed(table: dict[str, Any]) -> None:
    optimizers = {"x": {"rule": "optax.adam", "learning_rate": 0.1} | table}
    lf.Study(workload="quadratic", steps=2, trials=1, optimizers=optimizers)


def test_every_default_of_optax_can_be_set() -> None:
    for name in TRAINED:
        rule = get_rule(f"optax.{name}")
        defaults = {key: about.default for key, about in rule.hyperparameters.items() if about.default is not None}
        rule.check_values(defaults)


def test_an_integer_is_a_number_where_a_float_is_declared() -> None:
    def mine(learning_rate: float, decay: float = 0, count: int = 3, many: Any = 3) -> None: ...

    kinds = {name: (about.kind, about.traced) for name, about in (function_hyperparameters(mine) or {}).items()}
    number, integer = ("number", True), ("integer", False)
    assert kinds == {"learning_rate": number, "decay": number, "count": integer, "many": integer}


# Arguments that are tuples


def test_the_members_of_a_tuple_are_hyperparameters_of_their_own() -> None:
    prodigy = job(get_rule("optax.contrib.prodigy"), "betas_1", "betas_2")
    (trial,) = train(prodigy, {"learning_rate": 1.0, "betas_1": 0.5, "betas_2": 0.9})
    expected = plain_curve(optax.contrib.prodigy(1.0, betas=(0.5, 0.9)), asks_for=())
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-4)


def test_members_that_are_not_given_have_optaxs_values() -> None:
    (trial,) = train(job(get_rule("optax.contrib.muon"), "ns_coeffs_2"), {"learning_rate": RATE, "ns_coeffs_2": -4.7})
    expected = plain_curve(optax.contrib.muon(RATE, ns_coeffs=(3.4445, -4.7, 2.0315)), asks_for=())
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-3)


def test_a_tuple_may_hold_text() -> None:
    dog = get_rule("optax.contrib.dog").hyperparameters
    assert dog["init_step_1"].kind == "text"
    static = job(get_rule("optax.contrib.dog"), init_step_1="learning_rate", init_step_2=0.1)
    (trial,) = train(static, {"learning_rate": 1.0})
    expected = plain_curve(optax.contrib.dog(1.0, init_step=("learning_rate", 0.1)), asks_for=())
    np.testing.assert_allclose(trial.curve.values["train_loss"], expected, rtol=1e-4)


# Muon on kernels


def test_reshaped_muon_treats_a_kernel_as_a_matrix() -> None:
    """A kernel of 3×3×2×5 moves as the matrix of 18×5 does; by default, it is left to AdamW."""
    kernel = jax.random.normal(jax.random.key(0), (3, 3, 2, 5))
    gradient = jax.random.normal(jax.random.key(1), kernel.shape)

    def update(leaf: Any, slope: Any, **options: Any) -> Any:
        tx = build_optimizer("contrib.muon", learning_rate=1.0, **options)
        return tx.update({"k": slope}, tx.init({"k": leaf}), {"k": leaf})[0]["k"]

    reshaped = update(kernel, gradient, reshape=True)
    as_matrix = update(kernel.reshape(18, 5), gradient.reshape(18, 5))
    np.testing.assert_allclose(reshaped.reshape(18, 5), as_matrix, rtol=1e-4, atol=1e-5)
    assert not jnp.allclose(update(kernel, gradient), reshaped, atol=1e-3)
