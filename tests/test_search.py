"""The points of a search: stable by index, a function of what is searched, and well spread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

import levelfield as lf
from levelfield.search import Search
from levelfield.trial import Point

ADAM = {
    "rule": "adam",
    "learning_rate/epsilon": {"log": [1e-1, 1e1]},
    "one_minus_beta1": {"log": [1e-3, 1e0]},
    "beta2": 0.999,
    "epsilon": {"log": [1e-6, 1e-2]},
}


def study(table: dict | None = None, **changes) -> lf.Study:
    content = {"workload": "quadratic", "steps": 100, "trials": 2, "pool": 4, "seed": 3}
    return lf.Study(**content | {"optimizers": {"ours": table or ADAM}} | changes)


def search(table: dict | None = None, **changes) -> Search:
    return Search(study(table, **changes), "ours")


def first(count: int, found: Search) -> list[Point]:
    return [found.point(index) for index in range(count)]


def hyperparameters(count: int, found: Search) -> list[dict]:
    return [point.hyperparameters for point in first(count, found)]


@given(indices=st.lists(st.integers(0, 600), min_size=1, max_size=20))
@settings(deadline=None, max_examples=30)
def test_a_point_does_not_depend_on_the_order_and_number_of_those_asked_for(indices):
    together = search()
    for index in indices:
        assert together.point(index) == search().point(index)


def test_a_longer_sequence_begins_with_the_shorter_one():
    extended = search()
    short = first(64, extended)
    assert extended.point(5000).index == 5000
    assert first(64, extended) == short == first(64, search())


def test_a_point_carries_its_index_and_all_hyperparameters_inside_their_ranges():
    for index, point in enumerate(first(200, search())):
        values = point.hyperparameters
        assert point.index == index
        assert sorted(values) == ["beta1", "beta2", "epsilon", "learning_rate"]
        assert 1e-6 <= values["epsilon"] <= 1e-2
        assert 0 <= values["beta1"] <= 0.999
        assert values["beta2"] == 0.999
        assert 0.0999 <= values["learning_rate"] / values["epsilon"] <= 10.001


def test_no_point_comes_twice():
    assert len({tuple(values.values()) for values in hyperparameters(500, search())}) == 500


@pytest.mark.parametrize(
    "changes",
    [
        {"trials": 4},
        {"pool": 100},
        {"name": "another"},
        {"target": {"metric": "train_loss", "value": 0.1}},
        {"steps": 7},
        {"optimizers": {"sgd": {"learning_rate": 0.1}, "ours": ADAM}},
        {"optimizers": {"ours": dict(reversed(ADAM.items()))}},
        {"optimizers": {"ours": ADAM | {"protocol": "some"}}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_is_not_searched_leaves_the_points_alone(changes):
    assert first(20, search(**changes)) == first(20, search())


def test_another_display_name_leaves_the_points_alone():
    renamed = study(optimizers={"renamed": ADAM})
    assert first(20, Search(renamed, "renamed")) == first(20, search())


STEP = {"kind": "step", "decay_every": 0.5, "decay_factor": 0.5}


@pytest.mark.parametrize(
    ("table", "seed"),
    [
        ({}, 4),
        ({"rule": "nadam"}, 3),
        ({"beta2": 0.99}, 3),
        ({"epsilon": {"log": [1e-6, 1e-1]}}, 3),
        ({"schedule": STEP}, 3),
    ],
    ids=["seed", "rule", "value", "range", "schedule"],
)
def test_another_seed_rule_or_space_gives_other_points(table, seed):
    def positions(found: Search) -> np.ndarray:
        """Along epsilon, which all of these search."""
        axis = [one.key for one in found.space.free].index("epsilon")
        return np.array([found.space.unit(values)[axis] for values in hyperparameters(20, found)])

    assert np.all(np.abs(positions(search(ADAM | table, seed=seed)) - positions(search())) > 1e-9)


def test_a_trials_seed_follows_from_the_studys_seed_and_its_index_only():
    def seeds(found: Search) -> list[int]:
        return [point.seed for point in first(200, found)]

    ours = seeds(search())
    assert seeds(search({"rule": "sgd", "learning_rate": 0.1})) == ours
    assert seeds(search(workload="fashion_mini", steps=7, pool=100)) == ours
    assert len({*ours, *seeds(search(seed=4))}) == 400
    assert all(0 <= seed < 2**32 for seed in ours)


def test_seeds_of_neighbouring_studies_and_trials_do_not_run_together():
    # A seed made by adding the two would give trial 1 of study 3 and trial 0 of study 4 the same.
    assert search(seed=3).point(1).seed != search(seed=4).point(0).seed
    assert search(seed=1).point(11).seed != search(seed=11).point(1).seed
    assert search(seed=1).point(23).seed != search(seed=12).point(3).seed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [16, 50, 200])
def test_points_fill_the_cube_better_than_random_ones(count, seed):
    found = search(seed=seed)
    points = np.array([found.space.unit(values) for values in hyperparameters(count, found)])
    assert points.shape == (count, 3)
    random = np.random.default_rng(0).random((20, count, 3))
    ours, theirs = qmc.discrepancy(np.clip(points, 0, 1)), [qmc.discrepancy(each) for each in random]
    assert ours < 0.5 * np.mean(theirs)
    assert ours < np.min(theirs)


def test_every_prefix_of_a_power_of_two_is_balanced_along_every_axis():
    found = search()
    points = np.array([found.space.unit(values) for values in hyperparameters(256, found)])
    for power in range(1, 9):
        cells = np.floor(points[: 2**power] * 2**power).astype(int)
        assert (np.sort(cells, axis=0) == np.arange(2**power)[:, None]).all()


def test_a_space_with_nothing_free_repeats_its_values_under_other_seeds():
    found = search({"rule": "sgd", "learning_rate": 0.1})
    points = first(5, found)
    assert [point.hyperparameters for point in points] == [{"learning_rate": 0.1}] * 5
    assert len({point.seed for point in points}) == 5


@pytest.mark.parametrize("index", [-1, -64])
def test_there_is_no_point_before_the_first(index):
    with pytest.raises(IndexError, match=str(index)):
        search().point(index)


# Grids

CHOICES, INTEGERS, FACTORS = [0.1, 3.0, 0.02], [2, 5], [1e-3, 1e-2, 1e-1]
GRID = {
    "rule": "optax.sgd",
    "learning_rate": {"choice": CHOICES},
    "momentum": {"integer": INTEGERS},
    "schedule": {"kind": "step", "decay_every": 0.25, "decay_factor": {"choice": FACTORS}},
}


def test_a_grid_holds_the_exact_product_once_each():
    found = search(GRID, search="grid")
    names = ("learning_rate", "momentum", "decay_factor", "decay_every")
    points = [tuple(values[name] for name in names) for values in hyperparameters(36, found)]
    assert found.size == len(points) == 36
    assert sorted(points) == sorted(itertools.product(CHOICES, range(2, 6), FACTORS, [0.25]))


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_any_grid_holds_its_product_once_each(sizes, seed):
    names = ("learning_rate", "beta1", "beta2")
    axes = {name: [(i + 1) / 10 for i in range(size)] for name, size in zip(names, sizes, strict=False)}
    table = {"rule": "adam", "beta1": 0.5, "beta2": 0.5, "epsilon": 1.0}
    table |= {name: {"choice": values} for name, values in axes.items()}
    found = search(table, search="grid", trials=1, pool=1, seed=seed)
    points = [tuple(values[name] for name in axes) for values in hyperparameters(int(found.size), found)]
    assert sorted(points) == sorted(itertools.product(*axes.values()))


def test_a_grids_points_are_the_same_whatever_the_seed_and_the_pool():
    ours = hyperparameters(36, search(GRID, search="grid"))
    assert hyperparameters(36, search(GRID, search="grid", seed=9, pool=36)) == ours


@pytest.mark.parametrize("index", [-1, 36, 1000])
def test_a_grid_ends(index):
    with pytest.raises(IndexError, match=rf"{index} of 36"):
        search(GRID, search="grid").point(index)
