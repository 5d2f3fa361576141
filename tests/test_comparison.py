"""Comparisons seen otherwise: by another metric, at another step, in parts of the search spaces."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levelfield as lf
from levelfield.analysis.outcomes import Target
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
NOWHERE = {"devices": 0, "device": "none", "backend": "none", "precision": "none", "versions": {}}


def study_of(**changes: Any) -> lf.Study:
    content = {
        "workload": "fashion_mini",
        "steps": STEPS[-1],
        "eval_interval": 2,
        "trials": 4,
        "pool": POOL,
        "schedule": SCHEDULE,
        "target": {"metric": "valid_error", "value": 0.3},
        "optimizers": {"sgd": SGD, "momentum": MOMENTUM, "adam": ADAM},
    }
    return lf.Study(**content | changes)


def made_up(study: lf.Study, location: Path, broken: Container[int] = range(5, 100, 8)) -> lf.Comparison:
    """The comparison of trials that nobody trained; some broke off after two steps."""
    metrics, generator = get_workload(study.workload).metrics, np.random.default_rng(0)
    with lf.Store.open(location) as store:
        for name in study.optimizers:
            search, trials = Search(study, name), []
            while sum(each.feasible for each in trials) < study.pool:
                index = len(trials)
                status, n = (Status.INFEASIBLE, 1) if index in broken else (Status.FEASIBLE, len(STEPS))
                values = {metric: np.round(generator.random(n), 2) for metric in metrics}
                trials.append(Trial(search.point(index), status, Curve(np.array(STEPS[:n]), values)))
            store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
        return lf.Comparison.load(study, store)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> lf.Comparison:
    return made_up(study_of(), tmp_path_factory.mktemp("store") / "trials.db")


def numbers(comparison: lf.Comparison) -> dict[str, Any]:
    """All that a comparison says in numbers."""
    return {
        "rows": comparison.rows(),
        "beats": comparison.beats_matrix(),
        "places": comparison.rank_probabilities(),
        "settles": comparison.settles(),
        "audit": [each.as_dict() for each in comparison.audit()],
        "cost": {name: comparison.outcome(name).cost(4) for name in comparison.study.optimizers},
    }


# Another metric, step or target


def test_another_metric_and_target_are_those_of_a_study_that_names_them(compared, tmp_path):
    changes = {"select": "train_loss", "target": {"metric": "test_error", "value": 0.2}}
    expected = made_up(study_of(**changes), tmp_path / "trials.db")  # the same trials: neither defines them
    found = compared.at(select="train_loss", target=Target("test_error", 0.2))
    np.testing.assert_equal(numbers(found), numbers(expected))
    assert found.study.spec() == expected.study.spec()
    assert numbers(found) != numbers(compared)


@pytest.mark.parametrize("step", [2, 3, 4, 5, 6, 99])
def test_an_earlier_step_is_where_the_curves_are_read(compared, step):
    found = compared.at(step=step)
    n = sum(each <= step for each in STEPS)
    for name in compared.study.optimizers:
        errors = [each.curve.values["valid_error"][n - 1] for each in compared.outcome(name).pool]
        assert found.outcome(name).best(4) == lf.best_of(errors, k=4)
    row, *_ = found.rows()
    assert row["mean"] == found.outcome("sgd").best(4).mean
    assert found.study.spec() == compared.study.spec()


def test_before_the_first_evaluation_there_is_nothing_to_compare(compared):
    found = compared.at(step=1)
    assert all(math.isnan(row["mean"]) for row in found.rows())
    assert all(chances[0] == 1 for chances in found.rank_probabilities().values())  # all tie
    assert found.beats("sgd", "adam") == 0.0
    assert found.settles() == 1
    assert {each.verdict for each in found.audit()} == {"unknown"}
    assert not any(row["best_hyperparameters"] for row in found.rows())


def test_the_audit_is_made_anew(compared):
    verdicts = [each.as_dict() for each in compared.audit()]
    assert [each.as_dict() for each in compared.at(step=2).audit()] != verdicts
    assert [each.as_dict() for each in compared.audit()] == verdicts


def test_what_cannot_be_asked_for_is_refused(compared):
    with pytest.raises(UnknownName, match=r"'valid_eror'; did you mean 'valid_error'"):
        compared.at(select="valid_eror")
    with pytest.raises(UnknownName, match=r"'valid_eror'; did you mean 'valid_error'"):
        compared.at(target=Target("valid_eror", 0.1))
    with pytest.raises(StudyError, match=r"target.value = nan"):
        compared.at(target=Target("valid_error", math.nan))
    for step in (0, -3):
        with pytest.raises(UsageError, match=rf"step = {step}: .*from 1 on"):
            compared.at(step=step)


def test_a_metric_that_was_not_stored_is_missing_and_not_an_error(tmp_path):
    study = study_of(optimizers={"sgd": SGD, "momentum": MOMENTUM})
    metrics = {"valid_error": get_workload(study.workload).metrics["valid_error"]}
    with lf.Store.open(tmp_path / "trials.db") as store:
        for name in study.optimizers:
            points = [Search(study, name).point(index) for index in range(5)]
            curve = Curve(np.array(STEPS), {"valid_error": np.array([0.5, 0.25, 0.125])})
            trials = [Trial(point, Status.FEASIBLE, curve) for point in points]
            store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
        found = lf.Comparison.load(study, store)
    assert [row["mean"] for row in found.rows()] == [0.125, 0.125]
    assert all(math.isnan(row["test_error"]) for row in found.rows())
    other = found.at(select="train_loss")
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
    """However many of the axes are named."""
    axes = [(name, key) for name, ranges in WHOLE.items() for key in ranges]
    ranges: dict[str, dict[str, Any]] = {}
    for name, key in data.draw(st.lists(st.sampled_from(axes), unique=True)):
        ranges.setdefault(name, {})[key] = WHOLE[name][key]
    found = compared.narrowed(ranges)
    assert found.trials == compared.trials
    assert found.study.spec() == compared.study.spec()
    np.testing.assert_equal(found.rows(), compared.rows())
    assert found.rank_probabilities() == compared.rank_probabilities()


@pytest.mark.parametrize("name", ["cifar10_vgg16", "fashion_mnist", "wilson", "cifar10_vgg16_grid"])
def test_the_whole_of_a_paper_s_spaces_changes_nothing(name, tmp_path):
    study = lf.load_study(name)
    study = study.replace(pool=min(study.pool, 40), trials=min(study.trials, 40))
    found = made_up(study, tmp_path / "trials.db", broken=())
    ranges = {name: {one.key: one.dimension.ends for one in each.space.free} for name, each in study.optimizers.items()}
    same = found.narrowed(ranges)
    assert same.trials == found.trials
    assert same.study.spec() == study.spec()
    np.testing.assert_equal(same.rows(), found.rows())


def inside(trial: Trial, ranges: Mapping[str, tuple[float, float]]) -> bool:
    """Whether hyperparameters lie between these ends: of the hyperparameters themselves."""
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
def test_only_the_trials_inside_are_left(compared, optimizer, ranges, hyperparameters):
    found = compared.narrowed({optimizer: ranges})
    kept = [each for each in compared.trials[optimizer] if inside(each, hyperparameters)]
    assert 0 < len(kept) < len(compared.trials[optimizer])
    assert found.trials[optimizer] == kept
    outcome = found.outcome(optimizer)
    assert outcome.pool == [each for each in kept if each.feasible]
    assert outcome.tried == len(kept)
    # Six steps for each feasible trial, two for one that broke off.
    spent = sum(6 if each.feasible else 2 for each in kept)
    assert outcome.cost(len(outcome.pool)) == pytest.approx(spent)
    errors = [each.curve.final("valid_error") for each in kept if each.feasible]
    assert outcome.best(4) == lf.best_of(errors, k=4)
    for other in found.study.optimizers:
        if other != optimizer:
            assert found.trials[other] == compared.trials[other]
            assert found.outcome(other).best(4) == compared.outcome(other).best(4)


def test_a_ratio_is_narrowed_as_a_ratio(compared):
    found = compared.narrowed({"adam": {"learning_rate/epsilon": (0.1, 10)}})
    ratios = [
        each.point.hyperparameters["learning_rate"] / each.point.hyperparameters["epsilon"]
        for each in compared.trials["adam"]
    ]
    expected = [each for each, ratio in zip(compared.trials["adam"], ratios, strict=True) if 0.1 <= ratio <= 10]
    assert 0 < len(expected) < len(ratios)
    assert found.trials["adam"] == expected


def test_the_study_says_what_was_narrowed(compared):
    ranges = {
        "sgd": {"learning_rate": (0.1, 9), "decay_factor": [1e-1, 1e-3]},
        "adam": {"one_minus_beta1": [0.05], "decay_steps": (None, 0.75)},
    }
    found, before = compared.narrowed(ranges).study, compared.study
    schedule = SCHEDULE | {"decay_factor": {"choice": [1e-3, 1e-1]}}
    assert found.optimizer("sgd").spec() == {
        "rule": "sgd",
        "learning_rate": {"log": [0.1, 1.0]},
        "schedule": schedule,
    }
    assert found.optimizer("adam").space.spec() == before.optimizer("adam").space.spec() | {
        "one_minus_beta1": {"choice": [0.05]},
        "decay_steps": {"uniform": [0.5, 0.75]},
    }
    assert found.optimizer("momentum") == before.optimizer("momentum")
    assert lf.Study(**found.spec()).spec() == found.spec()  # a study like any other
    assert compared.study == before
    assert {**found.spec(), "optimizers": None} == {**before.spec(), "optimizers": None}


def test_to_narrow_twice_is_to_narrow_once(compared):
    both = compared.narrowed({"sgd": {"learning_rate": (0.1, 0.5)}, "adam": {"epsilon": (None, 1)}})
    in_turn = compared.narrowed({"adam": {"epsilon": (None, 1)}}).narrowed({"sgd": {"learning_rate": (None, 0.5)}})
    in_turn = in_turn.narrowed({"sgd": {"learning_rate": (0.1, None)}})
    assert in_turn.trials == both.trials
    assert in_turn.study.spec() == both.study.spec()


def test_what_is_asked_of_a_part_does_not_depend_on_what_came_first(compared):
    part = {"sgd": {"learning_rate": (0.05, None)}, "adam": {"epsilon": (1e-2, 1e2)}}
    changes = {"select": "test_loss", "step": 4, "target": Target("train_error", 0.4)}
    one, other = compared.at(**changes).narrowed(part), compared.narrowed(part).at(**changes)
    np.testing.assert_equal(numbers(one), numbers(other))
    assert one.study.spec() == other.study.spec()
    assert {each.step for each in map(one.outcome, one.study.optimizers)} == {4}


def test_a_part_without_trials_has_no_outcome(compared):
    rates = sorted(each.point.hyperparameters["learning_rate"] for each in compared.trials["sgd"])
    low, high = max(itertools.pairwise(rates), key=lambda pair: pair[1] / pair[0])
    found = compared.narrowed({"sgd": {"learning_rate": (low * 1.001, high / 1.001)}})
    assert found.trials["sgd"] == []
    assert math.isnan(found.outcome("sgd").best(4).mean)
    places = found.rank_probabilities()
    assert all(map(math.isnan, places["sgd"]))
    assert sum(places["adam"]) == pytest.approx(1)
    assert found.settles() is not None


def test_a_grid_in_part_is_compared_with_as_many_trials_as_it_has(tmp_path):
    study = lf.load_study("cifar10_vgg16_grid")
    found = made_up(study, tmp_path / "trials.db", broken=()).narrowed({"sgd": {"learning_rate": [1.0, 0.25]}})
    assert [each.point.hyperparameters["learning_rate"] for each in found.trials["sgd"]] == [1.0, 0.25]
    assert len(found.trials["adam"]) == 6
    assert (found.study.trials, found.study.pool) == (2, 2)
    assert [row["k"] for row in found.rows()] == [2] * 4


@pytest.mark.parametrize(
    ("ranges", "error", "words"),
    [
        ({"sdg": {"learning_rate": (0.1, 1)}}, UnknownName, ["'sdg'", "did you mean 'sgd'"]),
        ({"sgd": {"learning_rte": (0.1, 1)}}, UnknownName, ["axis that sgd searches", "did you mean 'learning_rate'"]),
        ({"adam": {"beta2": (0.9, 0.99)}}, UnknownName, ["axis that adam searches", "'beta2'"]),  # fixed
        ({"adam": {"beta1": (0.9, 0.99)}}, UnknownName, ["axis that adam searches", "one_minus_beta1"]),
        ({"sgd": {"learning_rate": (0.5, 0.5)}}, SpaceError, ["learning_rate", "(0.5, 0.5)"]),
        ({"sgd": {"learning_rate": (0.5, 0.1)}}, SpaceError, ["learning_rate", "(0.5, 0.1)"]),
        ({"sgd": {"learning_rate": (5, 6)}}, SpaceError, ["learning_rate", "(5, 6)", "[0.01, 1]"]),
        ({"sgd": {"decay_factor": [0.5]}}, SpaceError, ["decay_factor", "0.5", "[0.001, 0.01, 0.1]"]),
        ({"sgd": {"decay_factor": []}}, SpaceError, ["decay_factor", "at least one"]),
    ],
    ids=str,
)
def test_a_part_that_is_none_is_refused(compared, ranges, error, words):
    with pytest.raises(error) as refusal:
        compared.narrowed(ranges)
    for word in words:
        assert word in str(refusal.value)


# Several optimizers at once


@pytest.mark.parametrize("k", [None, 1, 9])
def test_places_by_simulated_searches(compared, k):
    generator, draws = np.random.default_rng(1), 50_000
    names = list(compared.study.optimizers)
    errors = [[each.curve.final("valid_error") for each in compared.outcome(name).pool] for name in names]
    bests = np.array([generator.choice(each, size=(draws, k or 4)).min(axis=1) for each in errors])
    places = np.sum(bests[None] < bests[:, None], axis=1)
    found = compared.rank_probabilities(k)
    assert list(found) == names
    for name, place in zip(names, places, strict=True):
        expected = np.bincount(place, minlength=3) / draws
        assert found[name] == pytest.approx(expected, abs=5 * 0.5 / math.sqrt(draws))


def test_the_order_settles_where_a_walk_over_all_k_finds_it(compared):
    names = list(compared.study.optimizers)

    def order(k: int) -> list[str]:
        return sorted(names, key=lambda name: compared.outcome(name).best(k).mean)

    last = order(POOL)
    changed = [k for k in range(1, POOL + 1) if order(k) != last]
    assert changed  # they cross
    assert compared.settles() == max(changed) + 1


def test_a_seed_is_shown_where_the_trial_that_it_follows_is_the_best(compared):
    """The best of another part, step or metric is another trial, which nobody has followed."""
    best = compared.outcome("sgd").best_trial
    (edge,) = {each.edge for each in compared.seeds() if (each.edge.special, each.edge.general) == ("sgd", "momentum")}
    seeded = compared.at()
    seeded.followed = [Seeded(edge, best, best)]
    rate = best.point.hyperparameters["learning_rate"]
    assert len(seeded.at().followed) == 1
    assert len(seeded.narrowed({"sgd": {"learning_rate": (rate / 1.1, None)}}).followed) == 1
    assert seeded.narrowed({"sgd": {"learning_rate": (rate * 1.1, None)}}).followed == []
    assert seeded.at(select="train_loss").followed == []


# ---------------------------------------------------------------------------- trials that are far off, or nowhere


def of_losses(made: Any, k: int, **pools: list[float]) -> lf.Comparison:
    content = {"workload": "quadratic", "steps": 2, "eval_interval": 2, "trials": k, "pool": len(pools["a"])}
    study = lf.Study(**content, optimizers={"a": SGD | {"rule": "sgd"}, "b": MOMENTUM | {"rule": "momentum"}})
    return made(study, {name: [{"train_loss": [value]} for value in pool] for name, pool in pools.items()})


def test_one_that_mostly_wins_is_not_said_to_be_like_the_first(made):
    found = of_losses(made, 3, a=[0.5] * 20, b=[0.1] * 16 + [1e5, 1e6, 1e7, 1e9])
    said = found.sentences()
    assert said[0] == "With 3 trials each, a has the best expected train_loss: 0.5."
    assert said[1].startswith("Yet b is better in 99% of repetitions")
    assert not any("told apart" in sentence or "No optimizer" in sentence for sentence in said)


def test_the_first_by_its_mean_may_be_the_worse_one_in_most_repetitions(made):
    """b is better in 84% of them: with a pool of 5, each 16%-chance of two bad trials."""
    found = of_losses(made, 2, a=[0.5] * 5, b=[0.1] * 3 + [1e7, 1e8])
    assert found.beats("b", "a") == pytest.approx(0.84)
    assert found.sentences()[1].startswith("Yet b is better in 84% of repetitions")


def test_where_no_optimizer_has_a_mean_none_is_the_best(made):
    found = of_losses(made, 1, a=[0.5, 0.6, math.inf, math.inf], b=[0.1, 0.1, math.inf, math.inf])
    assert found.sentences()[0].startswith("No optimizer has an expected train_loss")
    assert found.plan().stretches == []


def test_a_ranking_that_short_pools_cannot_tell_of_is_not_said_to_stay(made):
    """Up to 3 trials b leads; with 10, a does."""
    found = of_losses(made, 10, a=[0.9] * 17 + [0.1] * 3, b=[0.3] * 3)
    assert found.sentences()[0].startswith("With 10 trials each, a has the best")
    assert not any("The ranking is the same" in sentence for sentence in found.sentences())


def test_a_part_of_a_space_is_not_called_an_unfinished_pool(made):
    found = of_losses(made, 2, a=[0.5] * 20, b=[0.1] * 20)
    rates = sorted(trial.point.hyperparameters["learning_rate"] for trial in found.trials["a"])
    part = found.narrowed({"a": {"learning_rate": (None, rates[4])}})
    assert any("in that part of its space" in sentence for sentence in part.sentences())
    assert not any("not full" in sentence for sentence in part.sentences())


def test_a_mean_is_there_up_to_the_very_share_that_may_be_lost(made):
    for n, lost in ((140, 7), (180, 9), (220, 11), (280, 14)):
        found = of_losses(made, 1, a=[0.5] * (n - lost) + [math.inf] * lost, b=[0.1] * n)
        assert found.outcome("a").best(1).mean == pytest.approx(0.5)


@pytest.mark.parametrize("lost", [math.inf, math.nan, -math.inf])
def test_a_trial_without_a_finite_value_does_not_decide(made, lost):
    assert math.isnan(of_losses(made, 1, a=[0.1] + [lost] * 19, b=[0.2] * 20).outcome("a").best(1).mean)
    found = of_losses(made, 2, a=[5.0] * 19 + [lost], b=[0.1] * 19 + [lost])
    assert [found.outcome(name).best(2).mean for name in "ab"] == pytest.approx([5.0, 0.1])
    assert found.outcome("b").best(2, bootstrap=50).mean == pytest.approx(0.1)
    assert found.sentences()[:2] == [
        "With 2 trials each, b has the best expected train_loss: 0.1.",
        "It beats a in at least 99% of repetitions.",
    ]
    assert found.outcome("b").best_trial.curve.final("train_loss") == pytest.approx(0.1)


@pytest.mark.parametrize("ask", ["beats", "rows", "audit", "boundaries", "health", "rank_probabilities"])
def test_no_trials_at_all_are_refused(compared, ask):
    names = ["adam", "sgd"] if ask == "beats" else []
    with pytest.raises(ValueError, match="k = 0 must be a whole number of at least 1"):
        getattr(compared, ask)(*names, k=0)


def test_those_who_are_as_fast_are_named_together(made):
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 1, "pool": 2}
    tables = {"a": SGD | {"rule": "sgd"}, "b": MOMENTUM | {"rule": "momentum"}, "c": MOMENTUM | {"rule": "nesterov"}}
    study = lf.Study(**content, optimizers=tables, target={"metric": "train_loss", "value": 1.0})
    early, late, never = ({"train_loss": curve} for curve in ([1.0, 0.5], [2.0, 1.0], [2.0, 2.0]))
    said = made(study, {"a": [early, early], "b": [early, never], "c": [late, late]}).sentences()
    (target,) = (sentence for sentence in said if "target" in sentence)
    assert target.startswith(
        "a and b reach the target (train_loss 1) soonest, after 2 of 4 steps on average, where they"
    )
    assert target.endswith("do (a 100% and b 50% of repetitions).")
