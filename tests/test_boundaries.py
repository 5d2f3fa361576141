"""Verdicts on search ranges, from invented pools with a known answer."""

from __future__ import annotations

import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from helpers import make_study
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu, norm, qmc, rankdata

import levelfield as lf
from levelfield.analysis.boundaries import Boundary, judge_axes
from levelfield.analysis.outcomes import Outcome
from levelfield.analysis.range_tests import higher, parabola
from levelfield.analysis.ranges import Place
from levelfield.hyperparameters import Hyperparameter
from levelfield.report.narrative import search_sentences
from levelfield.search import Search
from levelfield.space import parse_axis
from levelfield.trial import Curve, Direction, Point, Status, Trial

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


@pytest.mark.parametrize("factor", [1.0, 1.3, 2.0, 2.8, 4.0, 7.4])
@pytest.mark.parametrize("center", [-8.0, 3.0])
def test_a_proposal_reaches_one_to_two_decades_past_ends_that_are_not_round(factor, center):
    """Ranges that were inferred from trials end anywhere."""
    old = [1e-4 * factor, 1e-1 * factor]
    low, high = judge(SGD | {"learning_rate": {"log": old}}, valley(center))["learning_rate"].proposal.ends
    beyond = old[0] / low if center < -2.5 else high / old[1]
    assert 1 <= math.log10(beyond) <= 2.05  # a little beyond a round number counts as that number


@pytest.mark.parametrize("center", np.linspace(-5.6, 1.6, 12))
def test_a_range_that_is_too_wide_is_narrowed_around_the_optimum(center):
    boundary = judge({"rule": "sgd", "learning_rate": {"log": [1e-9, 1e5]}}, valley(center), pool=30)["learning_rate"]
    assert boundary.place is Place.WIDE
    check_proposal(boundary)
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
    assert changed <= 0.05 * places.total(), places
    assert places[Place.INSIDE] <= 0.05 * places.total(), places
    assert pool < 50 or places[Place.FLAT] > 0.5 * places.total(), places  # fewer trials cannot show it


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
    assert not judged(study, falling)["learning_rate"].by_loss
    assert judged(study, falling)["learning_rate"].settled


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


def test_a_loss_that_is_the_same_at_all_evaluations_says_nothing():
    """Imported tables may repeat the final loss in every row of a trial."""
    study = study_of(SGD)
    plain = pool_of(study, lambda at: 0.1 + 0.01 / at["learning_rate"])
    pool = []
    for trial in plain.pool:
        loss = 1.0 - np.log10(trial.point.hyperparameters["learning_rate"])
        values = dict(trial.curve.values) | {"train_loss": np.full(2, loss)}
        pool.append(Trial(trial.point, trial.status, Curve(trial.curve.steps, values)))
    boundary = judged(study, Outcome("ours", pool, len(pool), METRICS, "valid_error"))["learning_rate"]
    assert not boundary.by_loss


# Error rates, from random cases


@dataclass(frozen=True)
class Case:
    """A random loss on the unit cube: what it does along each axis, and how many trials see it."""

    kinds: list[str]
    centers: np.ndarray  # where each axis is best
    weights: np.ndarray
    ridge: float | None  # the best sum of the first two axes, which compensate for each other
    tilt: float  # what moves the optimum along the ridge
    curved: bool
    noise: float
    trials: int
    sobol: bool

    @classmethod
    def draw(cls, generator: np.random.Generator, sizes: Sequence[int]) -> Case:
        axes = int(generator.integers(3, 7))
        kinds = [str(kind) for kind in generator.choice(["none", "inside", "beyond", "just beyond"], axes)]
        ridge = generator.choice(["", "ridge inside", "ridge beyond", "tilted ridge"], p=[0.55, 0.15, 0.15, 0.15])
        sums = {
            "ridge inside": generator.uniform(0.75, 1.25),
            "ridge beyond": generator.choice([-1, 1]) * generator.uniform(1, 2) + 1,
            "tilted ridge": 1.0,
        }
        kinds[:2] = [str(ridge)] * 2 if ridge else kinds[:2]
        outward = {
            "none": lambda: 0.0,
            "inside": lambda: generator.uniform(0, 0.2),
            "beyond": lambda: 0.5 + generator.exponential(0.5),
            "just beyond": lambda: 0.5 + generator.uniform(0, 0.1),
        }
        centers = [0.5 + generator.choice([-1, 1]) * outward.get(kind, lambda: 0.0)() for kind in kinds]
        weights = [generator.uniform(0.3, 1.5) * (kind in outward and kind != "none") for kind in kinds]
        return cls(
            kinds,
            np.array(centers),
            np.array(weights),
            sums.get(str(ridge)),
            0.3 * (ridge == "tilted ridge"),
            bool(generator.integers(2)),
            float(generator.choice([0.05, 0.2, 0.5])),
            int(generator.choice(sizes)),
            bool(generator.integers(2)),
        )

    def points(self, generator: np.random.Generator) -> np.ndarray:
        shape = self.trials, len(self.kinds)
        with warnings.catch_warnings():  # 25 and 100 are no powers of 2
            warnings.simplefilter("ignore", UserWarning)
            return qmc.Sobol(shape[1], rng=generator).random(shape[0]) if self.sobol else generator.random(shape)

    def values(self, points: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        distances = np.abs(points - self.centers)
        values = (self.weights * (2 * distances**2 if self.curved else distances)).sum(axis=1)
        if self.ridge is not None:
            distance = np.abs(points[:, 0] + points[:, 1] - self.ridge)
            values += 2 * (2 * distance**2 if self.curved else distance)
            values += self.tilt * (points[:, 0] - points[:, 1])
        return values + self.noise * generator.standard_normal(len(points))

    def shares(self, generator: np.random.Generator) -> np.ndarray:
        """The share of the variance of the ranks that a parabola along each axis explains."""
        points = generator.random((1_000, len(self.kinds)))
        ranks = rankdata(self.values(points, generator))
        fits = (np.polyval(np.polyfit(unit, ranks, 2), unit) for unit in points.T)
        return np.array([1 - np.var(ranks - fit) / np.var(ranks) for fit in fits])

    def border(self, axis: int) -> Place | None:
        """The border that the optimum lies beyond."""
        if self.kinds[axis] == "tilted ridge":
            return Place.UPPER if axis else Place.LOWER
        at = self.ridge - 0.5 if self.kinds[axis] == "ridge beyond" else self.centers[axis]
        return Place.LOWER if at < 0 else Place.UPPER if at > 1 else None


def unit_trials(points: np.ndarray, values: np.ndarray) -> list[Trial]:
    """Return trials of hyperparameters x0, x1, …; those without a finite value are infeasible."""
    trials = []
    for index, (point, value) in enumerate(zip(points.tolist(), values.tolist(), strict=True)):
        at = Point(index, {f"x{axis}": unit for axis, unit in enumerate(point)}, seed=index)
        status = Status.FEASIBLE if math.isfinite(value) else Status.INFEASIBLE
        trials.append(Trial(at, status, Curve(np.array([4]), {"valid_error": np.array([value])})))
    return trials


def judge_units(
    tried: list[Trial], beyond: Sequence[Trial] = (), domain: Hyperparameter | None = None
) -> list[Boundary]:
    """Judge trials by axes with ranges from 0 to 1."""
    pool = [trial for trial in tried if trial.feasible]
    axes = [parse_axis(key, {"uniform": [0.0, 1.0]}) for key in tried[0].point.hyperparameters]
    domains = [domain or Hyperparameter()] * len(axes)
    return judge_axes(Outcome("ours", pool, len(tried), METRICS, "valid_error"), axes, domains, 10, tried, beyond)


def claims(cases: int, sizes: Sequence[int], beyond: int) -> dict[str, Counter[str]]:
    """Return how often each kind of axis gets each verdict; "wrong border" is the opposite one or one without need."""
    generator, counts = np.random.default_rng(0), defaultdict(Counter)
    for _ in range(cases):
        case = Case.draw(generator, sizes)
        points, wider = case.points(generator), generator.uniform(-0.5, 1.5, (beyond, len(case.kinds)))
        tried, outer = (unit_trials(at, case.values(at, generator)) for at in (points, wider))
        shares = case.shares(generator)
        for axis, boundary in enumerate(judge_units(tried, outer)):
            place = boundary.place.value
            if boundary.place in (Place.LOWER, Place.UPPER):
                place = "right border" if boundary.place is case.border(axis) else "wrong border"
            counts[case.kinds[axis]][place] += 1
            counts["any"][place] += 1
            counts["strong" if shares[axis] > 0.15 else "weak"][place] += 1
            if shares[axis] > 0.3 and case.trials == 100 and case.ridge is None:
                counts["very strong, 100 trials"][place] += 1
    return counts


@pytest.mark.parametrize(
    ("cases", "sizes", "beyond"),
    [
        (200, (25, 50, 100), 0),
        (100, (25, 50, 100), 60),
        pytest.param(3_000, (25, 50, 100), 0, marks=pytest.mark.slow),
        pytest.param(2_000, (25, 50, 100), 60, marks=pytest.mark.slow),
        pytest.param(1_000, (15, 300), 0, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_wrong_verdicts_are_rare(cases, sizes, beyond, capsys):
    """At most 5% of the axes of each kind get a wrong one, and axes with a strong effect mostly get a right one."""
    counts = claims(cases, sizes, beyond)
    rates = {kind: {place: n / places.total() for place, n in places.items()} for kind, places in counts.items()}
    if cases >= 1_000:
        with capsys.disabled():
            for kind, places in rates.items():
                shown = ", ".join(f"{place} {100 * rate:.1f}%" for place, rate in sorted(places.items()))
                print(f"\n{kind} ({counts[kind].total():,} axes): {shown}", end="")
    for kind, rate in rates.items():
        assert rate.get("wrong border", 0) <= 0.05, kind
    for kind in ("beyond", "just beyond", "ridge beyond", "tilted ridge", "none"):
        assert rates[kind].get("inside", 0) + rates[kind].get("too wide", 0) <= 0.05, kind
    assert rates["strong"].get("flat", 0) <= 0.05
    assert rates["beyond"]["right border"] > 0.4
    assert rates["none"]["flat"] > 0.4
    assert rates["inside"]["inside"] > 0.1
    if 100 in sizes:
        assert rates["very strong, 100 trials"].get("unknown", 0) < 0.25


# Trials beyond the borders


def judge_line(
    value: Callable[[np.ndarray], np.ndarray], trials: int = 40, beyond: int = 60, domain: Hyperparameter | None = None
) -> Boundary:
    """Judge one axis by a pool and by trials from a space of twice its width; a second axis has no effect."""
    generator = np.random.default_rng(3)
    inner, outer = generator.random((trials, 2)), generator.uniform(-0.5, 1.5, (beyond, 2))
    tried, wider = (
        unit_trials(points, value(points[:, 0]) + 0.05 * generator.random(len(points))) for points in (inner, outer)
    )
    return judge_units(tried, wider, domain)[0]


def test_trials_beyond_the_borders_that_are_worse_show_that_the_optimum_is_inside():
    """Within the range the loss is flat, so the pool alone cannot tell."""

    def plateau(at: np.ndarray) -> np.ndarray:
        return np.maximum(np.abs(at - 0.5) - 0.5, 0)

    alone = judge_line(plateau, beyond=0)
    assert alone.place in (Place.FLAT, Place.UNKNOWN)
    assert alone.beyond == (0, 0)
    boundary = judge_line(plateau)
    assert (boundary.place, boundary.by_beyond) == (Place.INSIDE, True)
    below, above = boundary.beyond
    assert 8 <= below <= 25
    assert 8 <= above <= 25
    assert str(boundary) == f"ours: x0: inside uniform [0, 1]; the {below} trials below and {above} above are worse."


def test_trials_beyond_a_border_that_are_better_show_that_it_holds_the_search_back():
    """Within the range the loss is flat, and it falls only beyond the upper border."""
    boundary = judge_line(lambda at: -np.maximum(at - 1, 0))
    assert (boundary.place, boundary.by_beyond) == (Place.UPPER, True)
    assert boundary.proposal.high > 1
    assert f"(the {boundary.beyond[1]} trials above are better)" in str(boundary)


def test_an_optimum_next_to_trials_that_diverge_is_not_taken_for_one_inside():
    """Beyond the upper border, most trials are infeasible, but the best ones are there as well."""
    boundary = judge_line(lambda at: np.where(at > 1.15, np.inf, -at), beyond=120)
    assert boundary.place is Place.UPPER


def test_infeasible_trials_inside_do_not_make_the_trials_beyond_look_like_the_optimum():
    """The upper half of the range diverges, so that lower trials are better on average; the optimum is inside."""
    boundary = judge_line(lambda at: np.where(at > 0.5, np.inf, np.abs(at - 0.35)), beyond=120)
    assert boundary.place in (Place.INSIDE, Place.WIDE)


def test_an_end_of_the_domain_needs_no_trials_beyond():
    """The loss is flat up to 0.7 and rises above it; nothing lies below 0."""

    def value(at: np.ndarray) -> np.ndarray:
        return np.maximum(at - 0.7, 0)

    assert judge_line(value, beyond=0).place not in (Place.INSIDE, Place.WIDE)
    assert judge_line(value, beyond=0, domain=Hyperparameter(low=0.0)).place is Place.INSIDE


def test_an_unknown_verdict_says_how_many_trials_would_tell():
    """With that many trials, most axes like it get a verdict."""
    generator = np.random.default_rng(0)

    def judge_more(trials: int) -> Boundary:
        points = generator.random((trials, 1))
        return judge_units(unit_trials(points, np.abs(points[:, 0] - 0.5) + 0.8 * generator.random(trials)))[0]

    unknown = [boundary for boundary in (judge_more(20) for _ in range(40)) if boundary.place is Place.UNKNOWN]
    needed = sorted(boundary.needed for boundary in unknown if boundary.needed)
    assert len(needed) > 5
    median = needed[len(needed) // 2]
    more = Counter(judge_more(20 + 2 * median).place for _ in range(40))
    assert more[Place.UNKNOWN] < len(unknown) / 2, (median, more)
    boundary = next(boundary for boundary in unknown if boundary.needed and boundary.needed > 1)
    assert str(boundary) == (
        f"ours: x0: unknown: about {boundary.needed:,} more trials, or trials beyond its borders, would tell."
    )
    assert boundary.as_dict()["needed"] == boundary.needed


# The tests themselves


@settings(max_examples=60)
@given(st.lists(st.integers(0, 9), min_size=3, max_size=30), st.lists(st.integers(0, 9), min_size=3, max_size=30))
def test_the_z_score_is_that_of_a_mann_whitney_test(first, second):
    assume(len({*first, *second}) > 1)
    expected = mannwhitneyu(first, second, alternative="greater", method="asymptotic").pvalue
    assert norm.sf(higher(np.array(first), np.array(second))) == pytest.approx(expected)


def test_a_share_of_the_variance_that_is_called_small_is_small():
    """An axis that explains exactly 15% is called small in about 5% of pools."""
    generator, small = np.random.default_rng(0), 0
    slope = math.sqrt(0.15 / 0.85 * 12)  # the noise has variance 1, the unit coordinate 1/12
    for _ in range(1_000):
        unit = generator.random(60)
        small += parabola(unit, slope * unit + generator.standard_normal(60)).is_small
    assert 0.02 < small / 1_000 < 0.08


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
    assert by_chance[Place.LOWER] + by_chance[Place.UPPER] <= 0.05 * 40, by_chance


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


def test_choices_without_effect_are_flat_or_unknown():
    table = choice_of("epsilon", [1e-8, 1e-6, 1e-4]) | {"one_minus_beta1": {"choice": [0.1, 0.01]}}
    places = Counter(
        boundary.place for seed in range(40) for boundary in judge(table, lambda _: 0.0, seed=seed).values()
    )
    assert places[Place.FIXED] == 2 * 40
    assert places[Place.FLAT] + places[Place.UNKNOWN] >= 0.95 * 2 * 40, places
    many = Counter(
        boundary.place for seed in range(10) for boundary in judge(table, lambda _: 0.0, seed=seed, pool=100).values()
    )
    assert many[Place.FLAT] >= 0.75 * 2 * 10, many


def test_only_numbers_have_borders():
    """What would settle an unknown verdict on a choice of names is more trials."""
    for values, has_borders in (((1, 2, 3), True), (("adam", "adamw", "sgd"), False)):
        for needed in (None, 1, 40):
            axis = parse_axis("kind", {"choice": list(values)})
            verdict = Boundary("ours", axis, Place.UNKNOWN, good=(values[0],), needed=needed).unknown
            assert verdict.startswith("unknown: ")
            assert ("borders" in verdict) == has_borders
            assert (str(needed) in verdict) == (needed is not None)


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
    assert f"(the best of K is there in {boundary.lower:.0%} of repetitions)" in str(boundary)


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
    assert {Place.LOWER, Place.UPPER} <= set(proposals)


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
        assert str(boundary) == "ours: learning_rate: unknown: too few trials."
    assert judge(SGD, valley(-6), pool=10, trials=1)["learning_rate"].place is Place.LOWER


def test_the_verdict_on_an_empty_pool_is_unknown():
    study = study_of(MOMENTUM)
    by_axis = judged(study, Outcome("ours", [], 0, METRICS, "valid_error"))
    assert {boundary.place for boundary in by_axis.values()} == {Place.UNKNOWN}


@pytest.mark.parametrize("missing", ["nan", "inf", "infeasible"])
def test_trials_without_a_finite_value_count_as_the_worst(missing):
    """The loss falls toward the lower border. If the trials next to it fail, it does not hold the search back."""
    study = study_of(SGD, pool=60)
    whole = pool_of(study, valley(-6))
    assert judged(study, whole)["learning_rate"].place is Place.LOWER

    def cut(trial: Trial) -> Trial:
        if trial.point.hyperparameters["learning_rate"] > 10**-3.6:
            return trial
        last = -1.0 if missing == "infeasible" else float(missing)
        values = dict(trial.curve.values) | {"valid_error": np.array([9.0, last])}
        status = Status.INFEASIBLE if missing == "infeasible" else Status.FEASIBLE
        return Trial(trial.point, status, Curve(trial.curve.steps, values))

    tried = [cut(trial) for trial in whole.pool]
    pool = [trial for trial in tried if trial.feasible]
    outcome = Outcome("ours", pool, 60, METRICS, "valid_error")
    axes = tuple(study.optimizer("ours").space)
    rate = judge_axes(outcome, axes, [study.domain("ours", axis.name) for axis in axes], 10, tried)[0]
    assert rate.place in (Place.INSIDE, Place.WIDE)
    assert rate.good[0] > 10**-3.6
    none = Outcome("ours", [], 60, METRICS, "valid_error")
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


def test_the_report_shows_unknown_ranges_and_compare_does_not(made, tmp_path):
    """Eight trials with a noisy loss show nothing."""
    study = make_study({"ours": SGD}, trials=4, pool=8)
    losses = np.random.default_rng(1).random(8)
    comparison = made(study, {"ours": [{"train_loss": [9.0, loss]} for loss in losses]})
    (boundary,) = comparison.boundaries()
    assert boundary.place is Place.UNKNOWN
    assert boundary.needed
    page = comparison.write_report(tmp_path / "report.html").read_text("utf-8")
    assert f"about {boundary.needed} more trials" in page
    assert not any("unknown:" in sentence for sentence in search_sentences(comparison.results))
