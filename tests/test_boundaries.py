"""Verdicts on search ranges, from invented pools with a known answer."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from helpers import make_study
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.boundaries import Boundary, Place, judge_axes
from levelfield.analysis.outcomes import Outcome
from levelfield.search import Search
from levelfield.trial import Curve, Direction, Status, Trial

Value = Callable[[Mapping[str, Any]], float]  # of a trial's hyperparameters

SGD = {"rule": "sgd", "learning_rate": {"log": [1e-4, 1e-1]}}
MOMENTUM = {"rule": "momentum", "learning_rate": {"log": [1e-4, 1e-1]}, "one_minus_momentum": {"log": [1e-2, 1e0]}}
METRICS = {"train_loss": Direction.MINIMIZE, "valid_error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}


def study_of(table: Mapping[str, Any], pool: int = 20, trials: int = 10, **changes: Any) -> lf.Study:
    """Return a study of a single optimizer, called "ours"."""
    return make_study({"ours": dict(table)}, pool=pool, trials=trials, **changes)


def pool_of(
    study: lf.Study, value: Value, noise: float = 0.05, train_loss: Value = lambda _: 1.0, metric: str = "valid_error"
) -> Outcome:
    """Return a pool of the first points of the space with these values and some noise; losses start at 9."""
    search, noises = Search(study, "ours"), noise * np.random.default_rng(study.seed).random(study.pool)
    sign = METRICS[metric].sign
    trials = []
    for index in range(study.pool):
        point = search.point(index)
        last = sign * (value(point.hyperparameters) + noises[index])
        values = {metric: np.array([9.0, last]), "train_loss": np.array([9.0, train_loss(point.hyperparameters)])}
        trials.append(Trial(point, Status.FEASIBLE, Curve(np.array([2, 4]), values)))
    return Outcome("ours", trials, len(trials), METRICS, metric)


def judged(study: lf.Study, outcome: Outcome, k: int | None = None) -> dict[str, Boundary]:
    """Return axis → verdict."""
    axes = tuple(study.optimizer("ours").space)
    domains = [study.domain("ours", axis.name) for axis in axes]
    return {boundary.axis.key: boundary for boundary in judge_axes(outcome, axes, domains, k or study.trials)}


def judge(table: Mapping[str, Any], value: Value, **changes: Any) -> dict[str, Boundary]:
    """Return axis → verdict for a space whose trials have these values."""
    study = study_of(table, **changes)
    return judged(study, pool_of(study, value))


def valley(center: float, floor: float = 0.0, name: str = "learning_rate") -> Value:
    """Return the distance from a power of ten in decades; the floor of the valley is flat."""
    return lambda at: max(abs(math.log10(at[name]) - center) - floor, 0.0)


def verdicts(table: Mapping[str, Any], key: str, value: Value, seeds: Iterable[int], **changes: Any) -> Counter[Place]:
    return Counter(judge(table, value, seed=seed, **changes)[key].place for seed in seeds)


# Ranges with a known optimum


@pytest.mark.parametrize("table", [SGD, MOMENTUM], ids=["alone", "with momentum"])
@pytest.mark.parametrize(
    ("center", "floor", "place"),
    [
        (-2.5, 0.6, Place.INSIDE),
        (-2.5, 0.0, Place.WIDE),
        (-4.0, 0.0, Place.LOWER),
        (-6.0, 0.0, Place.LOWER),
        (-1.0, 0.0, Place.UPPER),
        (1.0, 0.0, Place.UPPER),
    ],
    ids=str,
)
def test_the_verdict_follows_the_place_of_the_optimum(table, center, floor, place):
    """A log range from 1e-4 to 1e-1 with differently scrambled points; momentum has no effect."""
    rates = verdicts(table, "learning_rate", valley(center, floor), range(10), pool=40)
    assert rates[place] >= 9, rates
    if table is MOMENTUM:
        others = verdicts(table, "one_minus_momentum", valley(center, floor), range(10), pool=40)
        assert others[Place.FLAT] >= 8, others


@pytest.mark.parametrize(("pool", "trials"), [(10, 5), (20, 10), (100, 20)])
@pytest.mark.parametrize(("center", "place"), [(-5.0, Place.LOWER), (0.0, Place.UPPER)])
def test_an_optimum_beyond_a_border_is_noticed_in_pools_of_any_size(pool, trials, center, place):
    rates = verdicts(MOMENTUM, "learning_rate", valley(center), range(20), pool=pool, trials=trials)
    assert rates[place] >= 15, rates
    assert not rates[Place.UPPER if place is Place.LOWER else Place.LOWER]


@pytest.mark.parametrize("center", [-7.0, -5.0, -4.0, -1.0, 0.0, 2.0])
def test_a_proposal_extends_past_the_border_and_keeps_the_good_trials(center):
    boundary = judge(SGD, valley(center))["learning_rate"]
    low, high = boundary.proposal.ends
    if center < -2.5:
        assert 1e-6 <= low <= 1e-5  # by one or two decades
        assert boundary.good[1] < high <= 1e-1
    else:
        assert 1e0 <= high <= 1e1
        assert 1e-4 <= low < boundary.good[0]


def test_an_end_that_stays_is_not_rounded():
    """The good trials may reach up to it."""
    low, high = 9.5e-3, 10**-1.5
    table = {"rule": "sgd", "learning_rate": {"log": [low, high]}}
    assert judge(table, valley(-4))["learning_rate"].proposal.high == high
    assert judge(table, valley(0))["learning_rate"].proposal.low == low


@pytest.mark.parametrize("center", np.linspace(-5.6, 1.6, 12))
def test_a_range_that_is_too_wide_is_narrowed_around_the_optimum(center):
    boundary = judge({"rule": "sgd", "learning_rate": {"log": [1e-9, 1e5]}}, valley(center), pool=30)["learning_rate"]
    assert boundary.place is Place.WIDE
    low, high = boundary.proposal.ends
    assert 1e-9 <= low < 10**center < high <= 1e5
    assert math.log10(high / low) < 14 / 2
    assert low < boundary.good[0] < boundary.good[1] < high


def test_repeated_refinement_arrives_at_the_optimum():
    """The range ends up containing the optimum and little else, although it starts far away."""
    table = SGD
    for _ in range(6):
        boundary = judge(table, valley(2.2))["learning_rate"]
        if boundary.settled:
            break
        table = SGD | {"learning_rate": boundary.proposal.spec()}
    low, high = (math.log10(end) for end in table["learning_rate"]["log"])
    assert low < 2.2 < high
    assert high - low <= 3


# Hyperparameters without effect


@pytest.mark.parametrize(("pool", "trials"), [(10, 5), (20, 10), (50, 20)])
def test_noise_alone_rarely_changes_a_range(pool, trials):
    """Of 120 axes, only a few are changed by chance."""
    places: Counter[Place] = Counter()
    for seed in range(60):
        study = study_of(MOMENTUM, pool, trials, seed=seed)
        places += Counter(boundary.place for boundary in judged(study, pool_of(study, lambda _: 0.0)).values())
    changed = places[Place.LOWER] + places[Place.UPPER] + places[Place.WIDE]
    assert changed <= 0.06 * places.total(), places
    assert places[Place.FLAT] > 0.75 * places.total()


def test_ties_are_flat():
    study = study_of(MOMENTUM)
    by_axis = judged(study, pool_of(study, lambda _: 0.0, noise=0.0))
    assert {boundary.place for boundary in by_axis.values()} == {Place.FLAT}
    assert by_axis["learning_rate"].lower == pytest.approx(0.1, abs=0.051)  # all trials are equally likely


# Axes that compensate for each other


def effective(center: float) -> Value:
    """Return a loss that depends only on the effective learning rate."""
    return lambda at: abs(math.log10(at["learning_rate"] / (1 - at["momentum"])) - center)


def test_axes_that_compensate_for_each_other_are_both_widened():
    """The best effective rate is 100 times that of the corner, so no single border holds most of the best trials."""
    both = [judge(MOMENTUM, effective(3.0), pool=40, seed=seed) for seed in range(20)]
    assert sum(by_axis["learning_rate"].place is Place.UPPER for by_axis in both) >= 18
    assert sum(by_axis["one_minus_momentum"].place is Place.LOWER for by_axis in both) >= 15
    assert np.mean([by_axis["learning_rate"].upper for by_axis in both]) < 0.5


def test_axes_that_compensate_for_each_other_inside_their_ranges_stay():
    """All trials along the diagonal are good, including those at the borders."""
    table = MOMENTUM | {"learning_rate": {"log": [1e-3, 1e-1]}}
    places = [
        boundary.place
        for seed in range(20)
        for boundary in judge(table, effective(-1.0), pool=40, seed=seed).values()
        if boundary.place in (Place.LOWER, Place.UPPER)
    ]
    assert len(places) <= 2


# Pools in which nothing was learned


def test_if_nothing_is_learned_the_training_loss_decides():
    """The error is noise; only the training loss, which falls more at higher rates, shows where to go."""
    study = study_of(SGD)
    hardly = pool_of(study, lambda _: 0.9, train_loss=lambda at: 9.0 - at["learning_rate"])
    boundary = judged(study, hardly)["learning_rate"]
    assert boundary.place is Place.UPPER
    assert boundary.proposal.high > 0.1
    falling = pool_of(study, lambda _: 0.9, train_loss=lambda at: 8.5 - at["learning_rate"])
    assert judged(study, falling)["learning_rate"].place is Place.FLAT


def test_if_nothing_is_learned_a_high_initial_loss_does_not_count_as_progress():
    """A trial that starts at 100 times the loss falls by more without being better."""
    study = study_of(SGD)
    plain = pool_of(study, lambda _: 0.9, train_loss=lambda at: 9.0 - at["learning_rate"])
    scales = 10 ** np.random.default_rng(0).uniform(-1, 1, study.pool)

    def scaled(trial: Trial, scale: float) -> Trial:
        values = dict(trial.curve.values) | {"train_loss": scale * trial.curve.values["train_loss"]}
        return Trial(trial.point, trial.status, Curve(trial.curve.steps, values))

    pool = [scaled(trial, scale) for trial, scale in zip(plain.pool, scales, strict=True)]
    assert judged(study, Outcome("ours", pool, len(pool), METRICS, "valid_error")) == judged(study, plain)


def test_a_loss_that_fell_before_the_first_evaluation_counts_as_learned():
    """Trials with high rates have converged by then; those with low rates still fall, but are worse."""
    study = study_of(SGD)
    plain = pool_of(study, lambda at: 0.1 + 0.01 / at["learning_rate"])
    pool = []
    for trial in plain.pool:
        rate = trial.point.hyperparameters["learning_rate"]
        values = dict(trial.curve.values) | {"train_loss": 1.0 + np.exp(-rate * np.array([2_000.0, 8_000.0]))}
        pool.append(Trial(trial.point, trial.status, Curve(trial.curve.steps, values)))
    boundary = judged(study, Outcome("ours", pool, len(pool), METRICS, "valid_error"))["learning_rate"]
    assert not boundary.by_loss
    assert boundary.place is Place.UPPER


# Border probabilities


@pytest.mark.parametrize("k", [1, 3, 20, 50])
def test_border_probabilities_agree_with_simulation(k):
    study = study_of(MOMENTUM, pool=20, trials=1)
    outcome = pool_of(study, valley(-3.8), noise=1.0)
    by_axis = judged(study, outcome, k)
    generator, draws = np.random.default_rng(0), 40_000
    drawn = generator.integers(20, size=(draws, k))
    best = drawn[np.arange(draws), np.argmin(outcome.values()[drawn], axis=1)]
    at = [trial.point.hyperparameters for trial in outcome.pool]
    for key, where in {
        "learning_rate": np.array([(math.log10(hyperparameters["learning_rate"]) + 4) / 3 for hyperparameters in at]),
        "one_minus_momentum": np.array(
            [(math.log10(1 - hyperparameters["momentum"]) + 2) / 2 for hyperparameters in at]
        ),
    }.items():
        assert by_axis[key].lower == pytest.approx(np.mean(where[best] < 0.1), abs=4 * 0.5 / math.sqrt(draws))
        assert by_axis[key].upper == pytest.approx(np.mean(where[best] > 0.9), abs=4 * 0.5 / math.sqrt(draws))
    assert k == 1 or by_axis["learning_rate"].lower > by_axis["learning_rate"].upper


def test_with_one_trial_border_probabilities_are_shares_of_the_pool():
    study = study_of(SGD, pool=30, trials=1)
    outcome = pool_of(study, valley(-6.0))
    rates = [trial.point.hyperparameters["learning_rate"] for trial in outcome.pool]
    boundary = judged(study, outcome)["learning_rate"]
    assert boundary.lower == pytest.approx(np.mean([rate < 10**-3.7 for rate in rates]))
    assert boundary.upper == pytest.approx(np.mean([rate > 10**-1.3 for rate in rates]))
    assert boundary.place is Place.LOWER  # because of the good trials; the best of 1 says nothing


def test_with_k_equal_to_n_the_best_trial_decides():
    study = study_of(SGD, pool=8, trials=8)
    boundary = judged(study, pool_of(study, valley(-6.0)))["learning_rate"]
    assert boundary.lower == pytest.approx(1 - (7 / 8) ** 8)  # unless the trial at the border is never drawn


# Other kinds of dimensions


def test_a_uniform_range():
    schedule = {"kind": "linear", "decay_factor": 0.1, "decay_steps": {"uniform": [0.2, 1.0]}}
    table = {"rule": "sgd", "learning_rate": 0.1, "schedule": schedule}
    boundaries = {
        center: judge(table, lambda at, center=center: abs(at["decay_steps"] - center))["decay_steps"]
        for center in (0.0, 0.5, 2.0)
    }
    assert {center: boundary.place for center, boundary in boundaries.items()} == {
        0.0: Place.LOWER,
        0.5: Place.WIDE,
        2.0: Place.UPPER,
    }
    low, high = boundaries[0.0].proposal.ends
    assert 0 < low < 1e-9  # a length must be above 0
    assert high < 0.7
    assert boundaries[2.0].proposal.high == 1.4  # by half the range
    low, high = boundaries[0.5].proposal.ends
    assert 0.2 < low < 0.5 < high < 1.0
    assert all(round(end, 2) == end for end in (low, high))


@pytest.mark.parametrize("last", [2, 3, 5, 6, 30])
def test_integer_ranges(last):
    """The first and the last integer are borders, even if there are only a few."""
    table = {"rule": "sgd", "learning_rate": {"integer": [1, last]}}
    lower = judge(table, lambda at: at["learning_rate"])["learning_rate"]
    assert (lower.place, lower.proposal) == (Place.LOWER, None)  # a rate must be above 0
    assert str(lower).endswith("the hyperparameter allows no values beyond it.")
    upper = judge(table, lambda at: -at["learning_rate"])["learning_rate"]
    assert upper.place is Place.UPPER
    low, high = upper.proposal.ends
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert 1 <= low < high
    assert last + 1 <= high <= 2 * last
    by_chance = verdicts(table, "learning_rate", lambda _: 0.0, range(40))
    assert by_chance[Place.FLAT] + by_chance[Place.INSIDE] >= 34, by_chance


def test_an_integer_range_that_is_too_wide():
    table = {"rule": "sgd", "learning_rate": {"integer": [1, 1000]}}
    boundary = judge(table, lambda at: abs(at["learning_rate"] - 400))["learning_rate"]
    assert boundary.place is Place.WIDE
    low, high = boundary.proposal.ends
    assert 1 < low < 400 < high < 1000


ADAM = {"learning_rate": 0.01, "one_minus_beta1": 0.1, "one_minus_beta2": 0.01, "epsilon": 1e-8}


def choice_of(key: str, values: Sequence[float]) -> dict[str, Any]:
    table = {"rule": "adam", **ADAM} | {key: {"choice": list(values)}}
    if key == "learning_rate/epsilon":
        del table["learning_rate"]
    return table


@pytest.mark.parametrize(
    ("key", "values", "winner", "place", "proposal"),
    [
        ("epsilon", [1e-8, 1e-6, 1e-4], 1e-8, Place.LOWER, [1e-10, 1e-8, 1e-6, 1e-4]),
        ("epsilon", [1e-8, 1e-6, 1e-4], 1e-4, Place.UPPER, [1e-8, 1e-6, 1e-4, 1e-2]),
        ("epsilon", [1e-4, 1e-6, 1e-8], 1e-8, Place.LOWER, [1e-4, 1e-6, 1e-8, 1e-10]),
        ("epsilon", [1e-8, 1e-6, 1e-4], 1e-6, Place.INSIDE, None),
        ("epsilon", [0.0, 1.0, 2.0], 0.0, Place.LOWER, None),  # ε must not be negative
        ("epsilon", [0.0, 1.0, 2.0], 2.0, Place.UPPER, [0.0, 1.0, 2.0, 3.0]),
        ("one_minus_beta1", [0.1, 0.05, 0.001], 0.001, Place.LOWER, [0.1, 0.05, 0.001, 2e-5]),
        ("one_minus_beta1", [0.1, 0.05, 0.001], 0.1, Place.UPPER, [0.2, 0.1, 0.05, 0.001]),
        ("one_minus_beta1", [0.1, 0.3, 0.9], 0.9, Place.UPPER, None),  # 2.7 would leave (0, 1]
        ("one_minus_beta1", [0.1, 0.3, 0.7], 0.3, Place.INSIDE, None),
        ("learning_rate/epsilon", [0.7, 7.0, 70.0], 0.7, Place.LOWER, [0.07, 0.7, 7.0, 70.0]),
        ("learning_rate/epsilon", [0.7, 7.0, 70.0], 70.0, Place.UPPER, [0.7, 7.0, 70.0, 700.0]),
        ("learning_rate/epsilon", [0.7, 7.0], 7.0, Place.UPPER, [0.7, 7.0, 70.0]),
    ],
    ids=str,
)
def test_choices(key, values, winner, place, proposal):
    """The ends of a choice are borders; a proposal adds a value beyond them if it is legal."""

    def coordinate(at: Mapping[str, Any]) -> float:
        if key == "learning_rate/epsilon":
            return at["learning_rate"] / at["epsilon"]
        return 1 - at["beta1"] if key == "one_minus_beta1" else at["epsilon"]

    boundary = judge(choice_of(key, values), lambda at: float(not math.isclose(coordinate(at), winner, abs_tol=1e-12)))[
        key
    ]
    assert boundary.place is place
    assert boundary.good == (winner,)
    assert (boundary.proposal and boundary.proposal.spec()) == (
        proposal and {"choice": pytest.approx(proposal, rel=1e-12)}
    )
    assert (boundary.lower > 0.9) == (place is Place.LOWER)
    assert (boundary.upper > 0.9) == (place is Place.UPPER)


def test_choices_without_effect_are_flat():
    table = choice_of("epsilon", [1e-8, 1e-6, 1e-4]) | {"one_minus_beta1": {"choice": [0.1, 0.01]}}
    places = Counter(
        boundary.place for seed in range(40) for boundary in judge(table, lambda _: 0.0, seed=seed).values()
    )
    assert places[Place.FIXED] == 2 * 40
    assert places[Place.FLAT] >= 0.9 * 2 * 40, places


def test_a_choice_of_a_single_value_stays():
    boundary = judge(choice_of("epsilon", [1e-8]), lambda _: 0.0)["epsilon"]
    assert boundary.settled
    assert boundary.place not in (Place.LOWER, Place.UPPER)


def test_fixed_hyperparameters_stay():
    by_axis = judge({"rule": "adam", **ADAM} | {"learning_rate": {"log": [1e-3, 1e-1]}}, valley(-2, 0.3))
    fixed = {key: boundary for key, boundary in by_axis.items() if key != "learning_rate"}
    assert {boundary.place for boundary in fixed.values()} == {Place.FIXED}
    assert all(boundary.settled and math.isnan(boundary.lower) for boundary in fixed.values())


def test_a_ratio_is_judged_as_a_ratio():
    """Only the ratio of the learning rate to ε matters, and its optimum lies beyond the range."""
    table = {"rule": "adam", **ADAM} | {
        "learning_rate/epsilon": {"log": [1e-2, 1e1]},
        "epsilon": {"log": [1e-8, 1e0]},
    }
    del table["learning_rate"]
    by_axis = judge(table, lambda at: abs(math.log10(at["learning_rate"] / at["epsilon"]) - 3), pool=40)
    assert by_axis["learning_rate/epsilon"].place is Place.UPPER
    assert by_axis["learning_rate/epsilon"].proposal.high >= 100
    assert by_axis["epsilon"].place is Place.FLAT


def test_one_minus_is_judged_by_its_distance_from_1():
    boundary = judge(MOMENTUM, lambda at: 1 - at["momentum"], pool=40)["one_minus_momentum"]
    assert boundary.place is Place.LOWER
    assert boundary.proposal.low == 1e-4
    boundary = judge(MOMENTUM, lambda at: at["momentum"], pool=40)["one_minus_momentum"]
    assert (boundary.place, boundary.proposal) == (Place.UPPER, None)
    assert str(boundary).endswith(
        "of repetitions). It cannot be widened: the hyperparameter allows no values beyond it."
    )


def test_a_divisor_stays_above_0():
    """ε may be 0, unless something is divided by it."""
    table = {"rule": "adam", **ADAM, "epsilon": {"uniform": [0.1, 1.0]}}
    alone = judge(table, lambda at: at["epsilon"])["epsilon"]
    assert (alone.place, alone.proposal.low) == (Place.LOWER, 0.0)
    ratio = {key: spec for key, spec in table.items() if key != "learning_rate"} | {"learning_rate/epsilon": 1.0}
    below = judge(ratio, lambda at: at["epsilon"])["epsilon"]
    assert below.place is Place.LOWER
    assert 0 < below.proposal.low < 0.1
    study_of(ratio | {"epsilon": below.proposal.spec()})


def test_the_probability_shown_is_that_of_the_border_in_the_verdict():
    """The pool improves toward the lower border, but its best trial is at the upper one."""
    study = study_of(SGD, pool=40, trials=30)
    highest = max(Search(study, "ours").point(index).hyperparameters["learning_rate"] for index in range(40))

    def value(at: Mapping[str, Any]) -> float:
        return 0.0 if at["learning_rate"] == highest else 9 + math.log10(at["learning_rate"])

    boundary = judged(study, pool_of(study, value))["learning_rate"]
    assert boundary.place is Place.LOWER
    assert boundary.lower < boundary.upper == pytest.approx(1 - (39 / 40) ** 30)
    assert (
        f"(the best of K is there in {boundary.lower:.0%} of repetitions, and the good trials lean toward it)"
        in str(boundary)
    )


# Proposals are valid ranges


def log_range(low: float, high: float) -> st.SearchStrategy[Any]:
    """Return ranges between these powers of ten."""
    ends = st.lists(st.floats(low, high), min_size=2, max_size=2).map(sorted)
    return ends.filter(lambda ends: ends[1] - ends[0] > 0.05).map(lambda ends: {"log": [10 ** ends[0], 10 ** ends[1]]})


def uniform_range(low: float, high: float) -> st.SearchStrategy[Any]:
    ends = st.lists(st.floats(low, high), min_size=2, max_size=2).map(sorted)
    return ends.filter(lambda ends: ends[1] - ends[0] > 0.01 * (high - low)).map(lambda ends: {"uniform": ends})


def choices(values: Sequence[float]) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=5, unique=True).map(lambda values: {"choice": values})


integers = st.tuples(st.integers(1, 9), st.integers(1, 40)).map(lambda pair: {"integer": [pair[0], pair[0] + pair[1]]})
positive = st.one_of(log_range(-12, 6), uniform_range(1e-3, 10), choices([1e-6, 1e-3, 0.1, 0.2, 3.0, 50.0]))
share = st.one_of(log_range(-7, 0), uniform_range(0.01, 1.0), choices([1e-4, 0.01, 0.1, 0.5, 0.9, 1.0]))
fraction = st.one_of(uniform_range(0.0, 1.0), choices([0.0, 0.5, 0.9, 0.99]), share)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Any]:
    rate = draw(st.sampled_from(["learning_rate", "learning_rate/epsilon", "learning_rate/sqrt(epsilon)"]))
    table = {
        "rule": draw(st.sampled_from(["adam", "nadam"])),
        rate: draw(positive | integers),
        "epsilon": draw(positive | integers),
    }
    for name in ("beta1", "beta2"):
        key = draw(st.sampled_from([name, f"one_minus_{name}"]))
        table[key] = draw(share if key.startswith("one") else fraction)
    schedule = {"kind": "linear", "decay_steps": draw(uniform_range(0.01, 1.0) | log_range(-3, 0))}
    return table | {"schedule": schedule | {"decay_factor": draw(fraction)}}


def check_proposal(boundary: Boundary) -> None:
    """A proposal is another range of the same kind, with round ends, that keeps the good trials."""
    before, after = boundary.axis.dimension, boundary.proposal
    assert boundary.place in (Place.LOWER, Place.UPPER, Place.WIDE)
    assert type(after) is type(before)
    assert after != before
    if "choice" in before.spec():
        assert set(before.ends) < set(after.ends)
        return
    (old_low, old_high), (low, high) = before.ends, after.ends
    assert (low < old_low) == (boundary.place is Place.LOWER)
    assert (high > old_high) == (boundary.place is Place.UPPER)
    assert low <= boundary.good[0] <= boundary.good[-1] <= high  # a single value if there are few integers
    if "log" in before.spec():
        assert all(f"{end:e}"[:8] in ("1.000000", "3.000000") for end in {low, high} - {old_low, old_high})


def test_a_proposal_is_legal_and_round_and_keeps_the_good_trials():
    proposals = Counter()

    @settings(max_examples=60)
    @given(tables(), st.integers(0, 99), st.lists(st.floats(-3, 3), min_size=6, max_size=6), st.data())
    def check(table, seed, pull, data):
        pool = data.draw(st.integers(5, 40))
        k = data.draw(st.integers(1, pool))
        study = study_of(table, pool, k, seed=seed)
        space = study.optimizer("ours").space
        center = data.draw(st.floats(-0.2, 1.2))

        def value(at: Mapping[str, Any]) -> float:
            units = zip(pull, space.unit(at), strict=False)
            return 6 + float(sum(weight * abs(unit - center) for weight, unit in units))

        for key, boundary in judged(study, pool_of(study, value)).items():
            if boundary.proposal is None:
                continue
            proposals[boundary.place] += 1
            check_proposal(boundary)
            new = dict(table) | {"schedule": dict(table["schedule"])}
            (new["schedule"] if key in new["schedule"] else new)[key] = boundary.proposal.spec()
            better = study_of(new, pool, k, seed=seed)  # raises if the range leaves the domain
            for index in range(8):
                at = Search(better, "ours").point(index).hyperparameters
                assert at["learning_rate"] > 0
                assert at["epsilon"] >= 0
                assert at["decay_steps"] > 0
                assert all(0 <= at[name] <= 1 for name in ("beta1", "beta2", "decay_factor"))

    check()
    assert set(proposals) == {Place.LOWER, Place.UPPER, Place.WIDE}


@settings(max_examples=20)
@given(low=st.floats(-7, -1), width=st.floats(0.1, 7), end=st.sampled_from(["lowest", "highest"]))
@example(low=-7.0, width=3.0, end="lowest")
def test_one_minus_stays_between_0_and_1(low, width, end):
    """This holds after any number of refinements."""
    key, spec = "one_minus_momentum", {"log": [10**low, min(10 ** (low + width), 1.0)]}
    sign = 1 if end == "lowest" else -1
    assume(spec["log"][0] < 0.9 * spec["log"][1])
    for _ in range(20):
        table = {"rule": "momentum", "learning_rate": 0.1, key: spec}
        boundary = judge(table, lambda at: sign * math.log10(max(1 - at["momentum"], 1e-18)), pool=10, trials=5)[key]
        if boundary.settled:
            break
        spec = boundary.proposal.spec()
        assert 0 < spec["log"][0] < spec["log"][1] <= 1
        assert np.float32(1 - spec["log"][0]) < 1  # 1 − x must not round to 1
    else:
        pytest.fail(f"the range never settles: {spec}")


@pytest.mark.parametrize("sign", [-1, 0, 1])
@pytest.mark.parametrize(
    "spec",
    [
        {"log": [0.1, 0.1 * (1 + 1e-14)]},
        {"uniform": [1.0, 1.0 + 4e-16]},
        {"uniform": [1e-20, 2e-20]},
        {"log": [1e-38, 1e-36]},
        {"log": [1e-300, 1e300]},
        {"log": [1e305, 1e308]},
        {"integer": [1, 2]},
        {"integer": [10**15, 10**15 + 3]},
    ],
    ids=str,
)
def test_extreme_ranges_are_judged_too(spec, sign):
    """There is no proposal, or a valid one."""
    table = {"rule": "sgd", "learning_rate": spec}
    study = study_of(table)
    outcome = pool_of(study, lambda at: sign * math.log10(at["learning_rate"]) / 400, noise=0.0)
    boundary = judged(study, outcome)["learning_rate"]
    assert str(boundary)
    assert boundary.place is not Place.UNKNOWN
    if boundary.proposal:
        study_of(table | {"learning_rate": boundary.proposal.spec()})


# Optax rules declare no domains


def test_a_log_range_of_a_rule_without_domains_stays_positive():
    table = {"rule": "optax.adam", "learning_rate": 0.1, "eps": {"log": [1e-29, 1e-27]}}
    boundary = judge(table, lambda at: math.log10(at["eps"]))["eps"]
    assert boundary.place is Place.LOWER
    assert 0 < boundary.proposal.low < 1e-29


# Few trials, missing values, other directions


def test_with_too_few_trials_the_verdict_is_unknown():
    for pool in (1, 4):
        boundary = judge(SGD, valley(-6), pool=pool, trials=1)["learning_rate"]
        assert (boundary.place, boundary.proposal) == (Place.UNKNOWN, None)
    assert judge(SGD, valley(-6), pool=5, trials=1)["learning_rate"].place is not Place.UNKNOWN


def test_the_verdict_on_an_empty_pool_is_unknown():
    study = study_of(MOMENTUM)
    by_axis = judged(study, Outcome("ours", [], 0, METRICS, "valid_error"))
    assert {boundary.place for boundary in by_axis.values()} == {Place.UNKNOWN}


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_trials_without_a_finite_value_are_left_out(missing):
    study = study_of(SGD, pool=30)
    whole = pool_of(study, valley(-6))
    lost = {2, 3, 11, 28}

    def cut(trial: Trial) -> Trial:
        if trial.point.index not in lost:
            return trial
        values = dict(trial.curve.values) | {"valid_error": np.array([9.0, missing])}
        return Trial(trial.point, trial.status, Curve(trial.curve.steps, values))

    some = Outcome("ours", [cut(trial) for trial in whole.pool], 30, METRICS, "valid_error")
    rest = [trial for trial in whole.pool if trial.point.index not in lost]
    assert judged(study, some) == judged(study, Outcome("ours", rest, 30, METRICS, "valid_error"))
    none = Outcome("ours", [cut(trial) for trial in whole.pool if trial.point.index in lost], 4, METRICS, "valid_error")
    assert judged(study, none)["learning_rate"].place is Place.UNKNOWN


@pytest.mark.parametrize("center", [-5.0, -2.5, 0.0])
def test_a_maximized_metric_is_judged_like_its_negative(center):
    study = study_of(MOMENTUM)
    down = judged(study, pool_of(study, valley(center)))
    up = judged(study, pool_of(study, valley(center), metric="accuracy"))
    assert up == down
    assert any(boundary.proposal for boundary in up.values())


# Sentences


def test_a_boundary_as_a_sentence_and_as_a_dict():
    boundary = judge(SGD, valley(-6))["learning_rate"]
    assert str(boundary) == (
        f"ours: learning_rate: good trials at the lower border of log [1e-04, 0.1] (the best of K is there in "
        f"{boundary.lower:.0%} of repetitions). Move it to log [1e-06, 0.003]."
    )
    assert repr([boundary]) == f"[<{boundary}>]"
    content = boundary.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["verdict"] == "at the lower border"
    assert content["range"] == {"log": [1e-4, 1e-1]}
    assert content["proposal"] == {"log": [1e-6, 3e-3]}
    wide = judge({"rule": "sgd", "learning_rate": {"log": [1e-9, 1e5]}}, valley(-2))["learning_rate"]
    low, high = wide.good
    assert 1e-4 < low < 1e-2 < high < 1
    assert str(wide).startswith("ours: learning_rate: range too wide; the good trials lie in ")
    assert ". Narrow it to log [" in str(wide)


def test_a_comparison_judges_every_axis_of_every_optimizer(made):
    optimizers = {"low": SGD, "high": SGD | {"learning_rate": {"log": [1e-3, 1e0]}}, "both": MOMENTUM}
    study = make_study(optimizers, trials=10, pool=20)
    center = {"low": 0.0, "high": -5.0, "both": -2.5}
    pools = {
        name: [
            {"train_loss": [9.0, valley(center[name], 0.6)(Search(study, name).point(index).hyperparameters)]}
            for index in range(20)
        ]
        for name in optimizers
    }
    comparison = made(study, pools)
    places = {(boundary.optimizer, boundary.axis.key): boundary.place for boundary in comparison.boundaries()}
    assert places["low", "learning_rate"] is Place.UPPER
    assert places["high", "learning_rate"] is Place.LOWER
    assert set(places) == {
        ("low", "learning_rate"),
        ("high", "learning_rate"),
        ("both", "learning_rate"),
        ("both", "one_minus_momentum"),
    }
    with_one_trial = {boundary.optimizer: boundary.lower for boundary in comparison.boundaries(1)}
    assert with_one_trial["high"] < next(
        boundary.lower for boundary in comparison.boundaries() if boundary.optimizer == "high"
    )
