"""Comparisons: by another metric, at another step, in parts of the search spaces, and in words."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import NOWHERE
from helpers import make_study
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.results import Followed
from levelfield.errors import SpaceError, StudyError, UnknownName, UsageError
from levelfield.search import Search
from levelfield.trial import Curve, Status, Trial
from levelfield.workloads import get_workload

POOL = 32
STEPS = (2, 4, 6)
SGD = {"learning_rate": {"log": [1e-2, 1e0]}}
MOMENTUM = {"learning_rate": {"log": [1e-3, 1e1]}, "one_minus_momentum": {"log": [1e-3, 1e0]}}
ADAM = {
    "learning_rate/epsilon": {"log": [1e-3, 1e3]},
    "one_minus_beta1": {"choice": [0.1, 0.05, 0.001]},
    "beta2": 0.999,
    "epsilon": {"log": [1e-3, 1e3]},
}
SCHEDULE = {
    "kind": "linear",
    "decay_steps": {"uniform": [0.5, 1.0]},
    "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]},
}


def images_study(**changes: Any) -> lf.Study:
    """A study with a schedule, a target, and spaces with every kind of axis."""
    content = {
        "workload": "fashion_mini",
        "steps": STEPS[-1],
        "trials": 4,
        "pool": POOL,
        "schedule": SCHEDULE,
        "target": {"metric": "valid_error", "value": 0.3},
        "optimizers": {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM},
    }
    return make_study(**content | changes)


def made_up(study: lf.Study, location: Path, broken: Container[int] = range(5, 100, 8)) -> lf.Comparison:
    """Return the comparison of random trials; the broken ones end after two steps."""
    metrics, generator = get_workload(study.workload).metrics, np.random.default_rng(0)
    with lf.Store.open(location) as store:
        for name in study.optimizers:
            search, trials = Search(study, name), []
            while sum(trial.feasible for trial in trials) < study.pool:
                index = len(trials)
                status, n = (Status.INFEASIBLE, 1) if index in broken else (Status.FEASIBLE, len(STEPS))
                values = {metric: np.round(generator.random(n), 2) for metric in metrics}
                trials.append(Trial(search.point(index), status, Curve(np.array(STEPS[:n]), values)))
            store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
        return lf.Comparison.load(study, store)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> lf.Comparison:
    return made_up(images_study(), tmp_path_factory.mktemp("store") / "trials.db")


def numbers(comparison: lf.Comparison) -> dict[str, Any]:
    """Return all numbers of a comparison."""
    return {
        "rows": comparison.rows(),
        "beats": comparison.beats_matrix(),
        "places": comparison.rank_probabilities(),
        "settles": comparison.settles(),
        "audit": [finding.as_dict() for finding in comparison.audit()],
        "cost": {name: comparison.outcome(name).cost(4) for name in comparison.study.optimizers},
    }


# Another metric, step or target


def test_another_metric_and_target_give_the_results_of_a_study_with_them(compared, tmp_path):
    changes = {"select": "train_loss", "target": {"metric": "test_error", "value": 0.2}}
    expected = made_up(images_study(**changes), tmp_path / "trials.db")  # the same trials, because neither defines them
    view = compared.at(select="train_loss", target=lf.Target("test_error", 0.2))
    np.testing.assert_equal(numbers(view), numbers(expected))
    assert view.study.spec() == expected.study.spec()
    assert numbers(view) != numbers(compared)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 99])
def test_curves_are_read_at_an_earlier_step(compared, step):
    view = compared.at(step=step)
    n = sum(evaluated <= step for evaluated in STEPS)
    for name in compared.study.optimizers:
        errors = [trial.curve.values["valid_error"][n - 1] for trial in compared.outcome(name).pool]
        assert view.outcome(name).best(4) == lf.best_of(errors, k=4)
    row, *_ = view.rows()
    assert row["mean"] == view.outcome("sgd").best(4).mean
    assert view.study.spec() == compared.study.spec()


def test_before_the_first_evaluation_nothing_is_compared(compared):
    view = compared.at(step=1)
    assert all(math.isnan(row["mean"]) for row in view.rows())
    assert all(math.isnan(chance) for chances in view.rank_probabilities().values() for chance in chances)
    assert view.beats("sgd", "adam") == 0.0
    assert view.settles() == 1
    assert {finding.verdict for finding in view.audit()} == {"unknown"}
    assert not any(row["best_hyperparameters"] for row in view.rows())


def test_a_view_has_its_own_audit(compared):
    verdicts = [finding.as_dict() for finding in compared.audit()]
    assert [finding.as_dict() for finding in compared.at(step=2).audit()] != verdicts
    assert [finding.as_dict() for finding in compared.audit()] == verdicts


def test_an_invalid_view_is_rejected(compared):
    with pytest.raises(UnknownName, match=r"'valid_eror'; did you mean 'valid_error'"):
        compared.at(select="valid_eror")
    with pytest.raises(UnknownName, match=r"'valid_eror'; did you mean 'valid_error'"):
        compared.at(target=lf.Target("valid_eror", 0.1))
    with pytest.raises(StudyError, match=r"target.value = nan"):
        compared.at(target=lf.Target("valid_error", math.nan))
    with pytest.raises(UsageError, match=r"step = -3: expected an integer of at least 0"):
        compared.at(step=-3)


def test_a_metric_that_was_not_stored_is_missing(tmp_path):
    study = images_study(optimizers={"sgd": SGD, "momentum": MOMENTUM})
    metrics = {"valid_error": get_workload(study.workload).metrics["valid_error"]}
    with lf.Store.open(tmp_path / "trials.db") as store:
        for name in study.optimizers:
            points = [Search(study, name).point(index) for index in range(5)]
            curve = Curve(np.array(STEPS), {"valid_error": np.array([0.5, 0.25, 0.125])})
            trials = [Trial(point, Status.FEASIBLE, curve) for point in points]
            store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
        view = lf.Comparison.load(study, store)
    assert [row["mean"] for row in view.rows()] == [0.125, 0.125]
    assert all(math.isnan(row["test_error"]) for row in view.rows())
    other = view.at(select="train_loss")
    assert all(math.isnan(row["mean"]) for row in other.rows())
    assert other.settles() == 1


# Parts of the search spaces

WHOLE = {
    "sgd": {"learning_rate": (1e-2, 1e0), "decay_steps": (0.5, 1.0), "decay_factor": [1e-3, 1e-2, 1e-1]},
    "momentum": {"learning_rate": (1e-3, None), "one_minus_momentum": (None, None)},
    "adam": {"learning_rate/epsilon": (0, 1e9), "one_minus_beta1": [0.001, 0.1, 0.05], "epsilon": (1e-3, 1e3)},
}


@settings(max_examples=15)
@given(data=st.data())
def test_whole_ranges_change_nothing(compared, data):
    """Whichever axes are named."""
    axes = [(name, key) for name, ranges in WHOLE.items() for key in ranges]
    ranges: dict[str, dict[str, Any]] = {}
    for name, key in data.draw(st.lists(st.sampled_from(axes), unique=True)):
        ranges.setdefault(name, {})[key] = WHOLE[name][key]
    view = compared.narrowed(ranges)
    assert view.trials == compared.trials
    assert view.study.spec() == compared.study.spec()
    np.testing.assert_equal(view.rows(), compared.rows())
    assert view.rank_probabilities() == compared.rank_probabilities()


@pytest.mark.parametrize("name", ["cifar10_vgg16", "fashion_mnist", "wilson", "cifar10_vgg16_grid"])
def test_whole_ranges_of_built_in_studies_change_nothing(name, tmp_path):
    study = lf.load_study(name)
    study = study.replace(pool=min(study.pool, 40), trials=min(study.trials, 40))
    view = made_up(study, tmp_path / "trials.db", broken=())
    ranges = {
        name: {axis.key: axis.dimension.ends for axis in optimizer.space.free}
        for name, optimizer in study.optimizers.items()
    }
    same = view.narrowed(ranges)
    assert same.trials == view.trials
    assert same.study.spec() == study.spec()
    np.testing.assert_equal(same.rows(), view.rows())


def inside(trial: Trial, ranges: Mapping[str, tuple[float, float]]) -> bool:
    """Return whether hyperparameters lie within these bounds."""
    return all(low <= trial.point.hyperparameters[name] <= high for name, (low, high) in ranges.items())


@pytest.mark.parametrize(
    ("optimizer", "ranges", "hyperparameters"),
    [
        ("sgd", {"learning_rate": (0.1, 0.9)}, {"learning_rate": (0.1, 0.9)}),
        ("sgd", {"learning_rate": (None, 0.1)}, {"learning_rate": (0, 0.1)}),
        ("sgd", {"decay_steps": (0.7, None)}, {"decay_steps": (0.7, 1)}),
        ("sgd", {"decay_factor": [1e-3, 1e-2]}, {"decay_factor": (1e-3, 1e-2)}),
        ("momentum", {"one_minus_momentum": (0.01, 0.1)}, {"momentum": (0.9, 0.99)}),
        (
            "momentum",
            {"learning_rate": (0.01, 1), "one_minus_momentum": (0.01, None), "decay_steps": (0.6, 0.9)},
            {"learning_rate": (0.01, 1), "momentum": (0, 0.99), "decay_steps": (0.6, 0.9)},
        ),
        ("adam", {"one_minus_beta1": [0.1, 0.05]}, {"beta1": (0.9, 0.95)}),
        ("adam", {"one_minus_beta1": [0.001]}, {"beta1": (0.999, 0.999)}),
    ],
    ids=str,
)
def test_only_the_trials_inside_are_kept(compared, optimizer, ranges, hyperparameters):
    view = compared.narrowed({optimizer: ranges})
    kept = [trial for trial in compared.trials[optimizer] if inside(trial, hyperparameters)]
    assert 0 < len(kept) < len(compared.trials[optimizer])
    assert view.trials[optimizer] == kept
    outcome = view.outcome(optimizer)
    assert outcome.pool == [trial for trial in kept if trial.feasible]
    assert outcome.tried == len(kept)
    # Six steps for a feasible trial, two for a broken one.
    spent = sum(6 if trial.feasible else 2 for trial in kept)
    assert outcome.cost(len(outcome.pool)) == pytest.approx(spent)
    errors = [trial.curve.final("valid_error") for trial in kept if trial.feasible]
    assert outcome.best(4) == lf.best_of(errors, k=4)
    for other in view.study.optimizers:
        if other != optimizer:
            assert view.trials[other] == compared.trials[other]
            assert view.outcome(other).best(4) == compared.outcome(other).best(4)


def test_a_ratio_is_narrowed_as_a_ratio(compared):
    view = compared.narrowed({"adam": {"learning_rate/epsilon": (0.1, 10)}})
    ratios = [
        trial.point.hyperparameters["learning_rate"] / trial.point.hyperparameters["epsilon"]
        for trial in compared.trials["adam"]
    ]
    expected = [trial for trial, ratio in zip(compared.trials["adam"], ratios, strict=True) if 0.1 <= ratio <= 10]
    assert 0 < len(expected) < len(ratios)
    assert view.trials["adam"] == expected


def test_the_study_of_a_view_has_the_narrowed_ranges(compared):
    ranges = {
        "sgd": {"learning_rate": (0.1, 9), "decay_factor": [1e-1, 1e-3]},
        "adam": {"one_minus_beta1": [0.05], "decay_steps": (None, 0.75)},
    }
    view, before = compared.narrowed(ranges).study, compared.study
    schedule = SCHEDULE | {"decay_factor": {"choice": [1e-3, 1e-1]}}
    assert view.optimizer("sgd").spec() == {
        "rule": "sgd",
        "learning_rate": {"log": [0.1, 1.0]},
        "schedule": schedule,
    }
    assert view.optimizer("adam").space.spec() == before.optimizer("adam").space.spec() | {
        "one_minus_beta1": {"choice": [0.05]},
        "decay_steps": {"uniform": [0.5, 0.75]},
    }
    assert view.optimizer("momentum") == before.optimizer("momentum")
    assert lf.Study(**view.spec()).spec() == view.spec()
    assert compared.study == before
    assert {**view.spec(), "optimizers": None} == {**before.spec(), "optimizers": None}


def test_narrowing_twice_equals_narrowing_once(compared):
    both = compared.narrowed({"sgd": {"learning_rate": (0.1, 0.5)}, "adam": {"epsilon": (None, 1)}})
    in_turn = compared.narrowed({"adam": {"epsilon": (None, 1)}}).narrowed({"sgd": {"learning_rate": (None, 0.5)}})
    in_turn = in_turn.narrowed({"sgd": {"learning_rate": (0.1, None)}})
    assert in_turn.trials == both.trials
    assert in_turn.study.spec() == both.study.spec()


def test_the_order_of_views_does_not_matter(compared):
    part = {"sgd": {"learning_rate": (0.05, None)}, "adam": {"epsilon": (1e-2, 1e2)}}
    changes = {"select": "test_loss", "step": 4, "target": lf.Target("train_error", 0.4)}
    first, second = compared.at(**changes).narrowed(part), compared.narrowed(part).at(**changes)
    np.testing.assert_equal(numbers(first), numbers(second))
    assert first.study.spec() == second.study.spec()
    assert {outcome.step for outcome in map(first.outcome, first.study.optimizers)} == {4}


def test_a_part_without_trials_has_no_outcome(compared):
    rates = sorted(trial.point.hyperparameters["learning_rate"] for trial in compared.trials["sgd"])
    low, high = max(itertools.pairwise(rates), key=lambda pair: pair[1] / pair[0])
    view = compared.narrowed({"sgd": {"learning_rate": (low * 1.001, high / 1.001)}})
    assert view.trials["sgd"] == []
    assert math.isnan(view.outcome("sgd").best(4).mean)
    places = view.rank_probabilities()
    assert all(map(math.isnan, places["sgd"]))
    assert sum(places["adam"]) == pytest.approx(1)
    assert view.settles() is not None


def test_a_narrowed_grid_is_compared_at_the_number_of_its_points(tmp_path):
    study = lf.load_study("cifar10_vgg16_grid")
    view = made_up(study, tmp_path / "trials.db", broken=()).narrowed({"sgd": {"learning_rate": [1.0, 0.25]}})
    assert [trial.point.hyperparameters["learning_rate"] for trial in view.trials["sgd"]] == [1.0, 0.25]
    assert len(view.trials["adam"]) == 6
    assert (view.study.trials, view.study.pool) == (2, 2)
    assert [row["k"] for row in view.rows()] == [2] * 4


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        ({"sdg": {"learning_rate": (0.1, 1)}}, UnknownName, ["'sdg'", "did you mean 'sgd'"]),
        (
            {"sgd": {"learning_rte": (0.1, 1)}},
            UnknownName,
            ["free axis 'learning_rte' of sgd; did you mean"],
        ),
        ({"adam": {"beta2": (0.9, 0.99)}}, UnknownName, ["unknown free axis 'beta2' of adam"]),  # fixed
        ({"adam": {"beta1": (0.9, 0.99)}}, UnknownName, ["unknown free axis 'beta1' of adam", "one_minus_beta1"]),
        ({"sgd": {"learning_rate": (0.5, 0.5)}}, SpaceError, ["learning_rate", "(0.5, 0.5)"]),
        ({"sgd": {"learning_rate": (0.5, 0.1)}}, SpaceError, ["learning_rate", "(0.5, 0.1)"]),
        ({"sgd": {"learning_rate": (5, 6)}}, SpaceError, ["learning_rate", "(5, 6)", "[0.01, 1]"]),
        ({"sgd": {"decay_factor": [0.5]}}, SpaceError, ["decay_factor", "0.5", "[0.001, 0.01, 0.1]"]),
        ({"sgd": {"decay_factor": []}}, SpaceError, ["decay_factor", "at least one"]),
    ],
    ids=str,
)
def test_an_invalid_part_is_rejected(compared, ranges, error, words):
    with pytest.raises(error) as raised:
        compared.narrowed(ranges)
    for word in words:
        assert word in str(raised.value)


# Several optimizers at once


@pytest.mark.parametrize("k", [None, 1, 9])
def test_rank_probabilities_equal_simulated_searches(compared, k):
    generator, draws = np.random.default_rng(1), 50_000
    names = list(compared.study.optimizers)
    errors = [[trial.curve.final("valid_error") for trial in compared.outcome(name).pool] for name in names]
    bests = np.array([generator.choice(pool, size=(draws, k or 4)).min(axis=1) for pool in errors])
    places = np.sum(bests[None] < bests[:, None], axis=1)
    view = compared.rank_probabilities(k)
    assert list(view) == names
    for name, place in zip(names, places, strict=True):
        expected = np.bincount(place, minlength=3) / draws
        assert view[name] == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(draws))


def test_the_ranking_settles_where_a_loop_over_all_k_says(compared):
    names = list(compared.study.optimizers)

    def order(k: int) -> list[str]:
        return sorted(names, key=lambda name: compared.outcome(name).best(k).mean)

    last = order(POOL)
    changed = [k for k in range(1, POOL + 1) if order(k) != last]
    assert changed  # there is something to find
    assert compared.settles() == max(changed) + 1


def test_a_followed_trial_is_shown_only_while_it_follows_the_best_one(compared):
    """In another part, at another step or by another metric, the best trial is a different one."""
    best = compared.outcome("sgd").best_trial
    pair = Followed("sgd", "momentum", best, best)
    followed = lf.Comparison(dataclasses.replace(compared.results, followed=[pair]))
    rate = best.point.hyperparameters["learning_rate"]
    assert followed.at().followed == [pair]
    assert followed.narrowed({"sgd": {"learning_rate": (rate / 1.1, None)}}).followed == [pair]
    assert followed.narrowed({"sgd": {"learning_rate": (rate * 1.1, None)}}).followed == []
    assert followed.at(select="train_loss").followed == []
    assert not compared.followed  # a view is a new record


# ---------------------------------------------------------------------------- extreme and missing values


def of_losses(made: Any, k: int, **pools: list[float]) -> lf.Comparison:
    tables = {"a": SGD | {"rule": "sgd"}, "b": MOMENTUM | {"rule": "momentum"}}
    study = make_study(tables, steps=2, trials=k, pool=len(pools["a"]))
    return made(study, {name: [{"train_loss": [value]} for value in pool] for name, pool in pools.items()})


def test_an_optimizer_that_wins_mostly_is_not_called_similar_to_the_first(made):
    view = of_losses(made, 3, a=[0.5] * 20, b=[0.1] * 16 + [1e5, 1e6, 1e7, 1e9])
    sentences = view.sentences()
    assert sentences[0].startswith("With 3 trials each, b has the best median train_loss: 0.1 (90% confidence interval")
    assert "It beats a in at least 99% of repetitions, more than chance explains." in sentences
    assert any(
        sentence.startswith("b's mean (") and "lies outside its 5–95% range" in sentence for sentence in sentences
    )


def test_too_few_trials_separate_nothing(made):
    """With a pool of 5, b draws two bad trials with probability 16%."""
    view = of_losses(made, 2, a=[0.5] * 5, b=[0.1] * 3 + [1e7, 1e8])
    assert view.beats("b", "a") == pytest.approx(0.84)
    close = "b is not clearly different from a (which it beats in 84% of repetitions)."
    assert any(sentence.startswith(close) for sentence in view.sentences())
    assert "These trials do not separate any two optimizers." in view.sentences()


def test_without_medians_no_optimizer_is_the_best(made):
    view = of_losses(made, 1, a=[0.5, math.inf, math.inf, math.inf], b=[0.1, math.inf, math.inf, math.inf])
    assert view.sentences()[0].startswith("No optimizer has a median train_loss")
    assert view.plan().stretches == []


def test_an_optimizer_with_fewer_than_k_trials_is_not_ranked(made):
    view = of_losses(made, 10, a=[0.9] * 20, b=[0.1] * 3)
    assert "b has 3 feasible trials, fewer than K = 10; it is not ranked yet." in view.sentences()
    assert not any("best median" in sentence or "beats" in sentence for sentence in view.sentences())
    assert math.isnan(view.beats_matrix()["b"]["a"])
    with pytest.raises(UsageError, match=r"k = 10: expected at most 3, the number of feasible trials"):
        view.beats("b", "a")


def test_k_beyond_the_pools_is_refused(compared):
    with pytest.raises(UsageError, match="k = 500: expected at most"):
        compared.beats("sgd", "adam", k=500)
    with pytest.raises(UsageError, match="k = 500: expected at most"):
        compared.win_rate("sgd", "adam", k=500)


def test_pairs_hold_win_rates_with_intervals_and_tests(compared):
    names = list(compared.study.optimizers)
    pairs = compared.pairs(3)
    assert {frozenset(pair["optimizers"]) for pair in pairs} == {*map(frozenset, itertools.combinations(names, 2))}
    for pair in pairs:
        ours, theirs = pair["optimizers"]
        assert pair["wins"]["probability"] == compared.beats(ours, theirs, 3)
        assert pair["wins"]["low"] <= pair["wins"]["probability"] <= pair["wins"]["high"]
        either = {(ours, theirs), (theirs, ours)} & {*compared.separated(3)}
        assert pair["separated"] == bool(either) == (pair["p_value"] < 0.05)


def test_a_narrowed_space_is_not_called_an_unfinished_pool(made):
    view = of_losses(made, 2, a=[0.5] * 20, b=[0.1] * 20)
    rates = sorted(trial.point.hyperparameters["learning_rate"] for trial in view.trials["a"])
    part = view.narrowed({"a": {"learning_rate": (None, rates[4])}})
    assert any("in that part of its space" in sentence for sentence in part.sentences())
    assert not any("not full" in sentence for sentence in part.sentences())


def test_a_mean_exists_up_to_the_accepted_share_of_lost_trials(made):
    for n, lost in ((140, 7), (180, 9), (220, 11), (280, 14)):
        view = of_losses(made, 1, a=[0.5] * (n - lost) + [math.inf] * lost, b=[0.1] * n)
        assert view.outcome("a").best(1).mean == pytest.approx(0.5)


@pytest.mark.parametrize("lost", [math.inf, math.nan, -math.inf])
def test_a_trial_without_a_finite_value_does_not_decide(made, lost):
    assert math.isnan(of_losses(made, 1, a=[0.1] + [lost] * 19, b=[0.2] * 20).outcome("a").best(1).mean)
    view = of_losses(made, 2, a=[5.0] * 19 + [lost], b=[0.1] * 19 + [lost])
    assert [view.outcome(name).best(2).mean for name in "ab"] == pytest.approx([5.0, 0.1])
    assert view.outcome("b").best(2, bootstrap=50).mean == pytest.approx(0.1)
    assert view.sentences()[:2] == [
        "With 2 trials each, b has the best median train_loss: 0.1 (90% confidence interval: 0.1 to 0.1).",
        "It beats a in at least 99% of repetitions, more than chance explains.",
    ]
    assert view.outcome("b").best_trial.curve.final("train_loss") == pytest.approx(0.1)


@pytest.mark.parametrize("ask", ["beats", "rows", "audit", "boundaries", "health", "rank_probabilities"])
def test_a_k_of_zero_is_rejected(compared, ask):
    names = ["adam", "sgd"] if ask == "beats" else []
    with pytest.raises(ValueError, match="k = 0: expected an integer of at least 1"):
        getattr(compared, ask)(*names, k=0)


ERRORS = [f"{split}_{kind}" for split in ("train", "valid", "test") for kind in ("loss", "error")]


def curves_study(pool: int, trials: int, names: str = "abc") -> lf.Study:
    rules = dict(zip("abc", ("sgd", "momentum", "nesterov"), strict=True))
    tables = {name: (SGD if name == "a" else MOMENTUM) | {"rule": rules[name]} for name in names}
    return make_study(tables, trials=trials, pool=pool, target=lf.Target("train_loss", 1.0))


EARLY, LATE, NEVER, BRIEF = ({"train_loss": curve} for curve in ([1.0, 0.5], [2.0, 1.0], [2.0, 2.0], [0.9, 1.5]))


def test_a_repetition_that_misses_the_target_counts_as_slow(made):
    """b is fast in the few trials that reach the target; a and c always reach it."""
    comparison = made(curves_study(20, 1), {"a": [EARLY] * 20, "b": [EARLY] * 8 + [NEVER] * 12, "c": [LATE] * 20})
    sentences = comparison.sentences()
    start = next(i for i, sentence in enumerate(sentences) if "target" in sentence)
    assert sentences[start : start + 3] == [
        "a has the fewest median steps to the target (train_loss 1): 2 (90% confidence interval: 2 to 2); it reaches "
        "the target in 100% of repetitions.",
        "a is faster than c (4 steps, 100%) and b (no median, 40%), more than chance explains.",
        "Evaluations are 2 steps apart, so steps to the target are known only that precisely.",
    ]
    assert {("a", "b"), ("a", "c")} <= {*comparison.separated_by_steps()}


def test_steps_that_are_known_only_at_the_end_are_told(made):
    """The interval between evaluations is longer than the training."""
    study = curves_study(20, 1, "ab").replace(eval_interval=500)
    comparison = made(study, {"a": [EARLY] * 20, "b": [LATE] * 20})
    told = [sentence for sentence in comparison.sentences() if "known only that precisely" in sentence]
    assert told == [
        "Trials are evaluated only at the end of training, so steps to the target are known only that precisely."
    ]


def test_a_target_that_most_repetitions_miss_has_no_winner(made):
    comparison = made(curves_study(20, 1, "ab"), {"a": [EARLY] * 2 + [NEVER] * 18, "b": [EARLY] * 4 + [NEVER] * 16})
    assert (
        "No optimizer reaches the target (train_loss 1) in most repetitions; b does most often (20% of repetitions)."
        in comparison.sentences()
    )


def test_a_target_that_is_reached_for_a_while_is_told(made):
    comparison = made(curves_study(20, 1, "ab"), {"a": [BRIEF] * 3 + [EARLY] * 17, "b": [LATE] * 20})
    assert comparison.outcome("a").transient == 3
    assert (
        "Some trials reached the target only for a while and ended short of it: 3 of 20 (a)." in comparison.sentences()
    )


def test_many_infeasible_trials_are_told(made):
    losses = [{"train_loss": [2.0, 0.1]}] * 20
    pools = {"sgd": losses, "momentum": losses[:10]}
    comparison = made(make_study(trials=2, pool=10), pools, infeasible={"sgd": range(10)})
    assert (
        "Many trials are infeasible: 10 of 20 (sgd). K counts feasible trials; to get 2 of them, a tuner would run "
        "about 4." in comparison.sentences()
    )


def test_the_answer_names_the_test_metric(made):
    study = make_study(workload="fashion_mini", trials=1, pool=5)
    pools = {
        name: [{metric: [0.5, test if metric == "test_error" else valid] for metric in ERRORS}] * 5
        for name, valid, test in (("sgd", 0.1, 0.3), ("momentum", 0.2, 0.25))
    }
    sentences = made(study, pools).sentences()
    by_test = (
        "By the mean test_error of the selected trials, momentum is first (25.00%) and sgd is 2nd (30.00%); this order "
        "is not tested."
    )
    assert by_test in sentences
    # sqrt(0.1 · 0.9 / 2,000)
    assert "A single valid_error near 10.00% has a standard error of 0.67 points, from 2,000 examples." in sentences


def test_a_pool_below_4_3_k_is_warned_about(made):
    losses = [{"train_loss": [2.0, 0.1]}] * 8
    sentences = made(make_study(trials=2, pool=8), {"sgd": losses, "momentum": losses}).sentences()
    (warning,) = [sentence for sentence in sentences if "4.3" in sentence]
    assert "pool = 9 or more, or trials = 1 or fewer" in warning
    losses = losses + losses[:1]
    assert "4.3" not in " ".join(made(make_study(trials=2, pool=9), {"sgd": losses, "momentum": losses}).sentences())


def test_a_study_that_selects_by_the_test_set_says_so_first(compared):
    """What is shown beside it was measured on data that did not select."""
    by_test = compared.at(select="test_error")
    assert by_test.sentences()[0] == (
        "Trials are selected by test_error, so their test_error is optimistic; see valid_error instead."
    )
    assert by_test.rows()[0]["valid_error"] == by_test.outcome("sgd").best(4, "valid_error").mean
    assert not any("optimistic" in sentence for sentence in compared.sentences())
