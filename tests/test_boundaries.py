"""Where the good trials lie: pools that nobody trained, made so that the answer is known."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.boundaries import Boundary, Place, boundaries
from levelfield.analysis.outcomes import Outcome
from levelfield.search import Search
from levelfield.trial import Curve, Direction, Status, Trial

Value = Callable[[Mapping[str, Any]], float]  # of a trial's hyperparameters

SGD = {"rule": "sgd", "learning_rate": {"log": [1e-4, 1e-1]}}
MOMENTUM = {"rule": "momentum", "learning_rate": {"log": [1e-4, 1e-1]}, "one_minus_momentum": {"log": [1e-2, 1e0]}}
METRICS = {"train_loss": Direction.MINIMIZE, "valid_error": Direction.MINIMIZE, "accuracy": Direction.MAXIMIZE}


def study_of(table: Mapping[str, Any], pool: int = 20, trials: int = 10, **changes: Any) -> lf.Study:
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": trials, "pool": pool}
    return lf.Study(**content | {"optimizers": {"it": dict(table)}} | changes)


def pool_of(
    study: lf.Study, value: Value, noise: float = 0.05, train_loss: Value = lambda _: 1.0, metric: str = "valid_error"
) -> Outcome:
    """The first points of the space with these values and a little noise; the training loss starts at 9."""
    search, noises = Search(study, "it"), noise * np.random.default_rng(study.seed).random(study.pool)
    sign = -1 if METRICS[metric] is Direction.MAXIMIZE else 1
    trials = []
    for index in range(study.pool):
        point = search.point(index)
        last = sign * (value(point.hyperparameters) + noises[index])
        values = {metric: np.array([9.0, last]), "train_loss": np.array([9.0, train_loss(point.hyperparameters)])}
        trials.append(Trial(point, Status.FEASIBLE, Curve(np.array([2, 4]), values)))
    return Outcome("it", trials, len(trials), METRICS, metric)


def judged(study: lf.Study, outcome: Outcome, k: int | None = None) -> dict[str, Boundary]:
    axes = tuple(study.optimizer("it").space)
    domains = [study.domain("it", one.name) for one in axes]
    return {each.axis.key: each for each in boundaries(outcome, axes, domains, k or study.trials)}


def found(table: Mapping[str, Any], value: Value, **changes: Any) -> dict[str, Boundary]:
    study = study_of(table, **changes)
    return judged(study, pool_of(study, value))


def valley(centre: float, floor: float = 0.0, name: str = "learning_rate") -> Value:
    """The distance from a power of ten in decades; on the valley's floor, nothing matters."""
    return lambda at: max(abs(math.log10(at[name]) - centre) - floor, 0.0)


def verdicts(table: Mapping[str, Any], key: str, value: Value, seeds: Iterable[int], **changes: Any) -> Counter[Place]:
    return Counter(found(table, value, seed=seed, **changes)[key].place for seed in seeds)


# Ranges with an optimum in a known place


@pytest.mark.parametrize("table", [SGD, MOMENTUM], ids=["alone", "with momentum"])
@pytest.mark.parametrize(
    ("centre", "floor", "place"),
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
def test_the_place_of_an_optimum(table, centre, floor, place):
    """Of a log range from −4 to −1, whatever the points' scramble; that momentum has no effect is seen, too."""
    rates = verdicts(table, "learning_rate", valley(centre, floor), range(10), pool=40)
    assert rates[place] >= 9, rates
    if table is MOMENTUM:
        others = verdicts(table, "one_minus_momentum", valley(centre, floor), range(10), pool=40)
        assert others[Place.FLAT] >= 8, others


@pytest.mark.parametrize(("pool", "trials"), [(10, 5), (20, 10), (100, 20)])
@pytest.mark.parametrize(("centre", "place"), [(-5.0, Place.LOWER), (0.0, Place.UPPER)])
def test_an_optimum_beyond_a_border_is_seen_in_pools_of_any_size(pool, trials, centre, place):
    rates = verdicts(MOMENTUM, "learning_rate", valley(centre), range(20), pool=pool, trials=trials)
    assert rates[place] >= 15, rates
    assert not rates[Place.UPPER if place is Place.LOWER else Place.LOWER]


@pytest.mark.parametrize("centre", [-7.0, -5.0, -4.0, -1.0, 0.0, 2.0])
def test_a_proposal_reaches_beyond_the_border_and_holds_the_good_trials(centre):
    it = found(SGD, valley(centre))["learning_rate"]
    low, high = it.proposal.ends
    if centre < -2.5:
        assert 1e-6 <= low <= 1e-5  # by one or two decades
        assert it.good[1] < high <= 1e-1
    else:
        assert 1e0 <= high <= 1e1
        assert 1e-4 <= low < it.good[0]


def test_an_end_that_stays_is_not_rounded():
    """The good trials may lie up to it."""
    low, high = 9.5e-3, 10**-1.5
    table = {"rule": "sgd", "learning_rate": {"log": [low, high]}}
    assert found(table, valley(-4))["learning_rate"].proposal.high == high
    assert found(table, valley(0))["learning_rate"].proposal.low == low


@pytest.mark.parametrize("centre", np.linspace(-5.6, 1.6, 12))
def test_what_is_too_wide_is_narrowed_to_where_the_optimum_is(centre):
    it = found({"rule": "sgd", "learning_rate": {"log": [1e-9, 1e5]}}, valley(centre), pool=30)["learning_rate"]
    assert it.place is Place.WIDE
    low, high = it.proposal.ends
    assert 1e-9 <= low < 10**centre < high <= 1e5
    assert math.log10(high / low) < 14 / 2
    assert low < it.good[0] < it.good[1] < high


def test_refining_again_and_again_arrives_at_the_optimum():
    """From far away, and then the range can stay, or holds the optimum and little else."""
    table = SGD
    for _ in range(6):
        it = found(table, valley(2.2))["learning_rate"]
        if it.settled:
            break
        table = SGD | {"learning_rate": it.proposal.spec()}
    low, high = (math.log10(end) for end in table["learning_rate"]["log"])
    assert low < 2.2 < high
    assert high - low <= 3


# Nothing to see


@pytest.mark.parametrize(("pool", "trials"), [(10, 5), (20, 10), (50, 20)])
def test_where_nothing_matters_hardly_any_range_is_objected_to(pool, trials):
    """Noise alone: of 120 axes, a few by chance."""
    places: Counter[Place] = Counter()
    for seed in range(60):
        study = study_of(MOMENTUM, pool, trials, seed=seed)
        places += Counter(each.place for each in judged(study, pool_of(study, lambda _: 0.0)).values())
    objections = places[Place.LOWER] + places[Place.UPPER] + places[Place.WIDE]
    assert objections <= 0.06 * places.total(), places
    assert places[Place.FLAT] > 0.75 * places.total()


def test_ties_are_flat():
    study = study_of(MOMENTUM)
    it = judged(study, pool_of(study, lambda _: 0.0, noise=0.0))
    assert {each.place for each in it.values()} == {Place.FLAT}
    assert it["learning_rate"].lower == pytest.approx(0.1, abs=0.051)  # each trial as likely as any other


# Axes that make up for each other


def effective(centre: float) -> Value:
    """Only the rate that momentum amounts to counts."""
    return lambda at: abs(math.log10(at["learning_rate"] / (1 - at["momentum"])) - centre)


def test_axes_that_make_up_for_each_other_are_both_widened():
    """The rate would have to be 100 times what the corner gives: no border holds most of the best trials."""
    both = [found(MOMENTUM, effective(3.0), pool=40, seed=seed) for seed in range(20)]
    assert sum(it["learning_rate"].place is Place.UPPER for it in both) >= 18
    assert sum(it["one_minus_momentum"].place is Place.LOWER for it in both) >= 15
    assert np.mean([it["learning_rate"].upper for it in both]) < 0.5


def test_axes_that_make_up_for_each_other_inside_stay():
    """Along the diagonal all trials are good, at the borders, too."""
    table = MOMENTUM | {"learning_rate": {"log": [1e-3, 1e-1]}}
    objected = [
        each.place
        for seed in range(20)
        for each in found(table, effective(-1.0), pool=40, seed=seed).values()
        if each.place in (Place.LOWER, Place.UPPER)
    ]
    assert len(objected) <= 2


# Pools that have learned nothing


def test_where_nothing_is_learned_the_training_loss_tells():
    """The error is noise: only that the training loss falls a little more at higher rates shows where to go."""
    study = study_of(SGD)
    hardly = pool_of(study, lambda _: 0.9, train_loss=lambda at: 9.0 - at["learning_rate"])
    it = judged(study, hardly)["learning_rate"]
    assert it.place is Place.UPPER
    assert it.proposal.high > 0.1
    falling = pool_of(study, lambda _: 0.9, train_loss=lambda at: 8.5 - at["learning_rate"])
    assert judged(study, falling)["learning_rate"].place is Place.FLAT


def test_where_nothing_is_learned_a_high_start_is_no_progress():
    """A trial that starts from a hundred times the loss falls by more, without being any better."""
    study = study_of(SGD)
    plain = pool_of(study, lambda _: 0.9, train_loss=lambda at: 9.0 - at["learning_rate"])
    scales = 10 ** np.random.default_rng(0).uniform(-1, 1, study.pool)

    def scaled(trial: Trial, scale: float) -> Trial:
        values = dict(trial.curve.values) | {"train_loss": scale * trial.curve.values["train_loss"]}
        return Trial(trial.point, trial.status, Curve(trial.curve.steps, values))

    pool = [scaled(trial, scale) for trial, scale in zip(plain.pool, scales, strict=True)]
    assert judged(study, Outcome("it", pool, len(pool), METRICS, "valid_error")) == judged(study, plain)


def test_what_has_fallen_before_the_first_evaluation_was_learned():
    """Trials with high rates are down by then; those with low rates still fall, and are behind."""
    study = study_of(SGD)
    plain = pool_of(study, lambda at: 0.1 + 0.01 / at["learning_rate"])
    pool = []
    for trial in plain.pool:
        rate = trial.point.hyperparameters["learning_rate"]
        values = dict(trial.curve.values) | {"train_loss": 1.0 + np.exp(-rate * np.array([2_000.0, 8_000.0]))}
        pool.append(Trial(trial.point, trial.status, Curve(trial.curve.steps, values)))
    found = judged(study, Outcome("it", pool, len(pool), METRICS, "valid_error"))["learning_rate"]
    assert not found.by_loss
    assert found.place is Place.UPPER


# Probabilities of the borders


@pytest.mark.parametrize("k", [1, 3, 20, 50])
def test_probabilities_are_those_of_drawn_trials(k):
    study = study_of(MOMENTUM, pool=20, trials=1)
    outcome = pool_of(study, valley(-3.8), noise=1.0)
    it = judged(study, outcome, k)
    generator, draws = np.random.default_rng(0), 40_000
    drawn = generator.integers(20, size=(draws, k))
    best = drawn[np.arange(draws), np.argmin(outcome.values()[drawn], axis=1)]
    at = [trial.point.hyperparameters for trial in outcome.pool]
    for key, where in {
        "learning_rate": np.array([(math.log10(each["learning_rate"]) + 4) / 3 for each in at]),
        "one_minus_momentum": np.array([(math.log10(1 - each["momentum"]) + 2) / 2 for each in at]),
    }.items():
        assert it[key].lower == pytest.approx(np.mean(where[best] < 0.1), abs=4 * 0.5 / math.sqrt(draws))
        assert it[key].upper == pytest.approx(np.mean(where[best] > 0.9), abs=4 * 0.5 / math.sqrt(draws))
    assert k == 1 or it["learning_rate"].lower > it["learning_rate"].upper


def test_with_one_trial_borders_are_as_likely_as_they_hold_trials():
    study = study_of(SGD, pool=30, trials=1)
    outcome = pool_of(study, valley(-6.0))
    rates = [each.point.hyperparameters["learning_rate"] for each in outcome.pool]
    it = judged(study, outcome)["learning_rate"]
    assert it.lower == pytest.approx(np.mean([rate < 10**-3.7 for rate in rates]))
    assert it.upper == pytest.approx(np.mean([rate > 10**-1.3 for rate in rates]))
    assert it.place is Place.LOWER  # by the good trials: the best of one tells nothing


def test_with_as_many_trials_as_the_pool_has_the_best_decides():
    study = study_of(SGD, pool=8, trials=8)
    it = judged(study, pool_of(study, valley(-6.0)))["learning_rate"]
    assert it.lower == pytest.approx(1 - (7 / 8) ** 8)  # unless the one in the border is never drawn


# Other kinds of dimensions


def test_a_uniform_range():
    schedule = {"kind": "linear", "decay_factor": 0.1, "decay_steps": {"uniform": [0.2, 1.0]}}
    table = {"rule": "sgd", "learning_rate": 0.1, "schedule": schedule}
    ranges = {
        centre: found(table, lambda at, centre=centre: abs(at["decay_steps"] - centre))["decay_steps"]
        for centre in (0.0, 0.5, 2.0)
    }
    assert {centre: each.place for centre, each in ranges.items()} == {
        0.0: Place.LOWER,
        0.5: Place.WIDE,
        2.0: Place.UPPER,
    }
    low, high = ranges[0.0].proposal.ends
    assert 0 < low < 1e-9  # above 0, as a length must be
    assert high < 0.7
    assert ranges[2.0].proposal.high == 1.4  # by half the range
    low, high = ranges[0.5].proposal.ends
    assert 0.2 < low < 0.5 < high < 1.0
    assert all(round(end, 2) == end for end in (low, high))


@pytest.mark.parametrize("last", [2, 3, 5, 6, 30])
def test_integers(last):
    """Rates are no whole numbers, but may be. However few there are, the first and the last are borders."""
    table = {"rule": "sgd", "learning_rate": {"integer": [1, last]}}
    lower = found(table, lambda at: at["learning_rate"])["learning_rate"]
    assert (lower.place, lower.proposal) == (Place.LOWER, None)  # 0 is no rate
    assert str(lower).endswith("its legal limit")
    upper = found(table, lambda at: -at["learning_rate"])["learning_rate"]
    assert upper.place is Place.UPPER
    low, high = upper.proposal.ends
    assert isinstance(low, int)
    assert isinstance(high, int)
    assert 1 <= low < high
    assert last + 1 <= high <= 2 * last
    by_chance = verdicts(table, "learning_rate", lambda _: 0.0, range(40))
    assert by_chance[Place.FLAT] + by_chance[Place.INSIDE] >= 34, by_chance


def test_integers_that_are_too_wide():
    table = {"rule": "sgd", "learning_rate": {"integer": [1, 1000]}}
    it = found(table, lambda at: abs(at["learning_rate"] - 400))["learning_rate"]
    assert it.place is Place.WIDE
    low, high = it.proposal.ends
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
        ("epsilon", [0.0, 1.0, 2.0], 0.0, Place.LOWER, None),  # −1 is no ε
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
    """Their ends are borders; between them, nothing is to be had. Neither is beyond what is legal."""

    def coordinate(at: Mapping[str, Any]) -> float:
        if key == "learning_rate/epsilon":
            return at["learning_rate"] / at["epsilon"]
        return 1 - at["beta1"] if key == "one_minus_beta1" else at["epsilon"]

    it = found(choice_of(key, values), lambda at: float(not math.isclose(coordinate(at), winner, abs_tol=1e-12)))[key]
    assert it.place is place
    assert it.good == (winner,)
    assert (it.proposal and it.proposal.spec()) == (proposal and {"choice": pytest.approx(proposal, rel=1e-12)})
    assert (it.lower > 0.9) == (place is Place.LOWER)
    assert (it.upper > 0.9) == (place is Place.UPPER)


def test_choices_without_effect_are_flat():
    table = choice_of("epsilon", [1e-8, 1e-6, 1e-4]) | {"one_minus_beta1": {"choice": [0.1, 0.01]}}
    places = Counter(each.place for seed in range(40) for each in found(table, lambda _: 0.0, seed=seed).values())
    assert places[Place.FIXED] == 2 * 40
    assert places[Place.FLAT] >= 0.9 * 2 * 40, places


def test_a_choice_of_one_is_no_choice():
    it = found(choice_of("epsilon", [1e-8]), lambda _: 0.0)["epsilon"]
    assert it.settled
    assert it.place not in (Place.LOWER, Place.UPPER)


def test_what_is_fixed_stays():
    it = found({"rule": "adam", **ADAM} | {"learning_rate": {"log": [1e-3, 1e-1]}}, valley(-2, 0.3))
    fixed = {key: each for key, each in it.items() if key != "learning_rate"}
    assert {each.place for each in fixed.values()} == {Place.FIXED}
    assert all(each.settled and math.isnan(each.lower) for each in fixed.values())


def test_a_ratio_is_judged_as_a_ratio():
    """Here the learning rate may be anything: only its ratio to ε counts, and lies beyond the range."""
    table = {"rule": "adam", **ADAM} | {
        "learning_rate/epsilon": {"log": [1e-2, 1e1]},
        "epsilon": {"log": [1e-8, 1e0]},
    }
    del table["learning_rate"]
    it = found(table, lambda at: abs(math.log10(at["learning_rate"] / at["epsilon"]) - 3), pool=40)
    assert it["learning_rate/epsilon"].place is Place.UPPER
    assert it["learning_rate/epsilon"].proposal.high >= 100
    assert it["epsilon"].place is Place.FLAT


def test_one_minus_is_judged_from_1():
    it = found(MOMENTUM, lambda at: 1 - at["momentum"], pool=40)["one_minus_momentum"]
    assert it.place is Place.LOWER
    assert it.proposal.low == 1e-4
    it = found(MOMENTUM, lambda at: at["momentum"], pool=40)["one_minus_momentum"]
    assert (it.place, it.proposal) == (Place.UPPER, None)
    assert str(it).endswith("of the best of K), its legal limit")


def test_a_divisor_stays_above_0():
    """ε itself may be 0, but what is divided by it may not be."""
    table = {"rule": "adam", **ADAM, "epsilon": {"uniform": [0.1, 1.0]}}
    alone = found(table, lambda at: at["epsilon"])["epsilon"]
    assert (alone.place, alone.proposal.low) == (Place.LOWER, 0.0)
    ratio = {key: each for key, each in table.items() if key != "learning_rate"} | {"learning_rate/epsilon": 1.0}
    below = found(ratio, lambda at: at["epsilon"])["epsilon"]
    assert below.place is Place.LOWER
    assert 0 < below.proposal.low < 0.1
    study_of(ratio | {"epsilon": below.proposal.spec()})


def test_the_border_s_own_probability_is_told():
    """A pool that gets better towards the lower border, although its best trial lies at the upper one."""
    study = study_of(SGD, pool=40, trials=30)
    highest = max(Search(study, "it").point(index).hyperparameters["learning_rate"] for index in range(40))

    def value(at: Mapping[str, Any]) -> float:
        return 0.0 if at["learning_rate"] == highest else 9 + math.log10(at["learning_rate"])

    it = judged(study, pool_of(study, value))["learning_rate"]
    assert it.place is Place.LOWER
    assert it.lower < it.upper == pytest.approx(1 - (39 / 40) ** 30)
    assert f"({it.lower:.0%} of the best of K, and good trials lean to it)" in str(it)


# A proposal can always be searched


def log_range(low: float, high: float) -> st.SearchStrategy[Any]:
    """Between powers of ten."""
    ends = st.lists(st.floats(low, high), min_size=2, max_size=2).map(sorted)
    return ends.filter(lambda two: two[1] - two[0] > 0.05).map(lambda two: {"log": [10 ** two[0], 10 ** two[1]]})


def uniform_range(low: float, high: float) -> st.SearchStrategy[Any]:
    ends = st.lists(st.floats(low, high), min_size=2, max_size=2).map(sorted)
    return ends.filter(lambda two: two[1] - two[0] > 0.01 * (high - low)).map(lambda two: {"uniform": two})


def choices(values: Sequence[float]) -> st.SearchStrategy[Any]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=5, unique=True).map(lambda them: {"choice": them})


integers = st.tuples(st.integers(1, 9), st.integers(1, 40)).map(lambda two: {"integer": [two[0], two[0] + two[1]]})
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


@settings(max_examples=60)
@given(table=tables(), seed=st.integers(0, 99), pull=st.lists(st.floats(-3, 3), min_size=6, max_size=6), data=st.data())
def test_a_proposal_is_legal_round_and_holds_the_good_trials(table, seed, pull, data):
    pool = data.draw(st.integers(5, 40))
    k = data.draw(st.integers(1, pool))
    study = study_of(table, pool, k, seed=seed)
    space = study.optimizer("it").space
    centre = data.draw(st.floats(-0.2, 1.2))

    def value(at: Mapping[str, Any]) -> float:
        return 6 + float(sum(by * abs(unit - centre) for by, unit in zip(pull, space.unit(at), strict=False)))

    for key, it in judged(study, pool_of(study, value)).items():
        if it.proposal is None:
            continue
        assert it.place in (Place.LOWER, Place.UPPER, Place.WIDE)
        new = dict(table) | {"schedule": dict(table["schedule"])}
        (new["schedule"] if key in new["schedule"] else new)[key] = it.proposal.spec()
        better = study_of(new, pool, k, seed=seed)  # refused if it left a domain
        for index in range(8):
            at = Search(better, "it").point(index).hyperparameters
            assert at["learning_rate"] > 0
            assert at["epsilon"] >= 0
            assert at["decay_steps"] > 0
            assert all(0 <= at[name] <= 1 for name in ("beta1", "beta2", "decay_factor"))
        before, after = it.axis.dimension, it.proposal
        assert type(after) is type(before)
        assert after != before
        if "choice" in before.spec():
            assert set(before.ends) < set(after.ends)
            continue
        (old_low, old_high), (low, high) = before.ends, after.ends
        assert (low < old_low) == (it.place is Place.LOWER)
        assert (high > old_high) == (it.place is Place.UPPER)
        assert low <= it.good[0] <= it.good[-1] <= high  # of few integers, one is named
        if "log" in before.spec():
            assert all(f"{end:e}"[:8] in ("1.000000", "3.000000") for end in {low, high} - {old_low, old_high})


@settings(max_examples=20)
@given(low=st.floats(-7, -1), width=st.floats(0.1, 7), at=st.sampled_from(["lowest", "highest"]))
@example(low=-7.0, width=3.0, at="lowest")
def test_one_minus_never_leaves_0_to_1(low, width, at):
    """However often it is widened."""
    key, spec = "one_minus_momentum", {"log": [10**low, min(10 ** (low + width), 1.0)]}
    sign = 1 if at == "lowest" else -1
    assume(spec["log"][0] < 0.9 * spec["log"][1])
    for _ in range(20):
        table = {"rule": "momentum", "learning_rate": 0.1, key: spec}
        it = found(table, lambda at_: sign * math.log10(max(1 - at_["momentum"], 1e-18)), pool=10, trials=5)[key]
        if it.settled:
            break
        spec = it.proposal.spec()
        assert 0 < spec["log"][0] < spec["log"][1] <= 1
        assert np.float32(1 - spec["log"][0]) < 1  # as a number, too
    else:
        pytest.fail(f"never settles: {spec}")


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
def test_a_range_at_the_end_of_the_numbers_is_judged_too(spec, sign):
    """No proposal, or one that can be searched."""
    table = {"rule": "sgd", "learning_rate": spec}
    study = study_of(table)
    outcome = pool_of(study, lambda at: sign * math.log10(at["learning_rate"]) / 400, noise=0.0)
    it = judged(study, outcome)["learning_rate"]
    assert str(it)
    assert it.place is not Place.UNKNOWN
    if it.proposal:
        study_of(table | {"learning_rate": it.proposal.spec()})


# Optax's rules have no domains of their own


def test_a_log_range_of_a_rule_without_domains_stays_positive():
    table = {"rule": "optax.adam", "learning_rate": 0.1, "eps": {"log": [1e-29, 1e-27]}}
    it = found(table, lambda at: math.log10(at["eps"]))["eps"]
    assert it.place is Place.LOWER
    assert 0 < it.proposal.low < 1e-29


# Few trials, trials without values, other directions


def test_too_few_trials_tell_nothing():
    for pool in (1, 4):
        it = found(SGD, valley(-6), pool=pool, trials=1)["learning_rate"]
        assert (it.place, it.proposal) == (Place.UNKNOWN, None)
    assert found(SGD, valley(-6), pool=5, trials=1)["learning_rate"].place is not Place.UNKNOWN


def test_an_empty_pool_tells_nothing():
    study = study_of(MOMENTUM)
    it = judged(study, Outcome("it", [], 0, METRICS, "valid_error"))
    assert {each.place for each in it.values()} == {Place.UNKNOWN}


@pytest.mark.parametrize("missing", [math.nan, math.inf])
def test_trials_without_a_value_are_left_out(missing):
    study = study_of(SGD, pool=30)
    whole = pool_of(study, valley(-6))
    lost = {2, 3, 11, 28}

    def cut(trial: Trial) -> Trial:
        if trial.point.index not in lost:
            return trial
        values = dict(trial.curve.values) | {"valid_error": np.array([9.0, missing])}
        return Trial(trial.point, trial.status, Curve(trial.curve.steps, values))

    some = Outcome("it", [cut(trial) for trial in whole.pool], 30, METRICS, "valid_error")
    rest = [trial for trial in whole.pool if trial.point.index not in lost]
    assert judged(study, some) == judged(study, Outcome("it", rest, 30, METRICS, "valid_error"))
    none = Outcome("it", [cut(trial) for trial in whole.pool if trial.point.index in lost], 4, METRICS, "valid_error")
    assert judged(study, none)["learning_rate"].place is Place.UNKNOWN


@pytest.mark.parametrize("centre", [-5.0, -2.5, 0.0])
def test_a_metric_that_goes_up_is_judged_as_its_negative(centre):
    study = study_of(MOMENTUM)
    down = judged(study, pool_of(study, valley(centre)))
    up = judged(study, pool_of(study, valley(centre), metric="accuracy"))
    assert up == down
    assert any(each.proposal for each in up.values())


# What is said


def test_a_boundary_in_words_and_as_content():
    it = found(SGD, valley(-6))["learning_rate"]
    assert str(it) == (
        "it: learning_rate at the lower border of log [1e-04, 0.1] "
        f"({it.lower:.0%} of the best of K): move to log [1e-06, 0.003]"
    )
    content = it.as_dict()
    assert json.loads(json.dumps(content)) == content
    assert content["verdict"] == "at the lower border"
    assert content["range"] == {"log": [1e-4, 1e-1]}
    assert content["proposal"] == {"log": [1e-6, 3e-3]}
    wide = found({"rule": "sgd", "learning_rate": {"log": [1e-9, 1e5]}}, valley(-2))["learning_rate"]
    low, high = wide.good
    assert 1e-4 < low < 1e-2 < high < 1
    assert "the good trials lie in" in str(wide)
    assert ": narrow to log [" in str(wide)


def test_a_comparison_judges_every_axis_of_every_optimizer(made):
    optimizers = {"low": SGD, "high": SGD | {"learning_rate": {"log": [1e-3, 1e0]}}, "both": MOMENTUM}
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 10, "pool": 20}
    study = lf.Study(**content, optimizers=optimizers)
    centre = {"low": 0.0, "high": -5.0, "both": -2.5}
    pools = {
        name: [
            {"train_loss": [9.0, valley(centre[name], 0.6)(Search(study, name).point(index).hyperparameters)]}
            for index in range(20)
        ]
        for name in optimizers
    }
    comparison = made(study, pools)
    places = {(each.optimizer, each.axis.key): each.place for each in comparison.boundaries()}
    assert places["low", "learning_rate"] is Place.UPPER
    assert places["high", "learning_rate"] is Place.LOWER
    assert set(places) == {
        ("low", "learning_rate"),
        ("high", "learning_rate"),
        ("both", "learning_rate"),
        ("both", "one_minus_momentum"),
    }
    lone = {each.optimizer: each.lower for each in comparison.boundaries(1)}
    assert lone["high"] < next(each.lower for each in comparison.boundaries() if each.optimizer == "high")
