"""The points of a search: stable by index, determined by what is searched, and evenly spread."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import make_study
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import qmc

from levelfield.search import Search
from levelfield.trial import Point

ADAM = {
    "rule": "adam",
    "learning_rate/epsilon": {"log": [1e-1, 1e1]},
    "one_minus_beta1": {"log": [1e-3, 1e0]},
    "beta2": 0.999,
    "epsilon": {"log": [1e-6, 1e-2]},
}


def search_of(table: dict | None = None, **changes) -> Search:
    return Search(make_study(**{"optimizers": {"ours": table or ADAM}, "seed": 3} | changes), "ours")


def first(count: int, search: Search) -> list[Point]:
    return [search.point(index) for index in range(count)]


def hyperparameters(count: int, search: Search) -> list[dict]:
    return [point.hyperparameters for point in first(count, search)]


@given(indices=st.lists(st.integers(0, 600), min_size=1, max_size=20))
@settings(deadline=None, max_examples=30)
def test_a_point_does_not_depend_on_which_points_were_drawn_before(indices):
    together = search_of()
    for index in indices:
        assert together.point(index) == search_of().point(index)


def test_a_longer_sequence_starts_with_the_shorter_one():
    extended = search_of()
    short = first(64, extended)
    assert extended.point(5000).index == 5000
    assert first(64, extended) == short == first(64, search_of())


def test_a_point_has_its_index_and_hyperparameters_in_their_ranges():
    for index, point in enumerate(first(200, search_of())):
        values = point.hyperparameters
        assert point.index == index
        assert sorted(values) == ["beta1", "beta2", "epsilon", "learning_rate"]
        assert 1e-6 <= values["epsilon"] <= 1e-2
        assert 0 <= values["beta1"] <= 0.999
        assert values["beta2"] == 0.999
        assert 0.0999 <= values["learning_rate"] / values["epsilon"] <= 10.001


def test_points_do_not_repeat():
    assert len({tuple(values.values()) for values in hyperparameters(500, search_of())}) == 500


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
def test_fields_that_are_not_searched_do_not_change_the_points(changes):
    assert first(20, search_of(**changes)) == first(20, search_of())


def test_the_optimizers_name_does_not_change_the_points():
    renamed = make_study({"renamed": ADAM}, seed=3)
    assert first(20, Search(renamed, "renamed")) == first(20, search_of())


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
def test_seed_rule_and_space_change_the_points(table, seed):
    def positions(search: Search) -> np.ndarray:
        """Return the positions along epsilon, which every case searches."""
        position = [axis.key for axis in search.space.free].index("epsilon")
        return np.array([search.space.unit(values)[position] for values in hyperparameters(20, search)])

    assert np.all(np.abs(positions(search_of(ADAM | table, seed=seed)) - positions(search_of())) > 1e-9)


def test_a_trials_seed_depends_only_on_the_studys_seed_and_its_index():
    def seeds(search: Search) -> list[int]:
        return [point.seed for point in first(200, search)]

    ours = seeds(search_of())
    assert seeds(search_of({"rule": "sgd", "learning_rate": 0.1})) == ours
    assert seeds(search_of(workload="fashion_mini", steps=7, pool=100)) == ours
    assert len({*ours, *seeds(search_of(seed=4))}) == 400
    assert all(0 <= seed < 2**32 for seed in ours)


def test_seeds_of_neighboring_studies_and_trials_differ():
    # If seeds were sums, trial 1 of study 3 and trial 0 of study 4 would have the same.
    assert search_of(seed=3).point(1).seed != search_of(seed=4).point(0).seed
    assert search_of(seed=1).point(11).seed != search_of(seed=11).point(1).seed
    assert search_of(seed=1).point(23).seed != search_of(seed=12).point(3).seed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("count", [16, 50, 200])
def test_points_fill_the_cube_better_than_random_points(count, seed):
    search = search_of(seed=seed)
    points = np.array([search.space.unit(values) for values in hyperparameters(count, search)])
    assert points.shape == (count, 3)
    random = np.random.default_rng(0).random((20, count, 3))
    ours, theirs = qmc.discrepancy(np.clip(points, 0, 1)), [qmc.discrepancy(sample) for sample in random]
    assert ours < 0.5 * np.mean(theirs)
    assert ours < np.min(theirs)


def test_every_prefix_of_a_power_of_two_is_balanced_along_every_axis():
    search = search_of()
    points = np.array([search.space.unit(values) for values in hyperparameters(256, search)])
    for power in range(1, 9):
        cells = np.floor(points[: 2**power] * 2**power).astype(int)
        assert (np.sort(cells, axis=0) == np.arange(2**power)[:, None]).all()


def test_a_fixed_space_repeats_its_values_with_different_seeds():
    search = search_of({"rule": "sgd", "learning_rate": 0.1})
    points = first(5, search)
    assert [point.hyperparameters for point in points] == [{"learning_rate": 0.1}] * 5
    assert len({point.seed for point in points}) == 5


@pytest.mark.parametrize("index", [-1, -64])
def test_negative_indices_are_rejected(index):
    with pytest.raises(IndexError, match=str(index)):
        search_of().point(index)


# Grids

CHOICES, INTEGERS, FACTORS = [0.1, 3.0, 0.02], [2, 5], [1e-3, 1e-2, 1e-1]
GRID = {
    "rule": "optax.sgd",
    "learning_rate": {"choice": CHOICES},
    "momentum": {"integer": INTEGERS},
    "schedule": {"kind": "step", "decay_every": 0.25, "decay_factor": {"choice": FACTORS}},
}


def test_a_grid_is_the_exact_product():
    search = search_of(GRID, search="grid")
    names = ("learning_rate", "momentum", "decay_factor", "decay_every")
    points = [tuple(values[name] for name in names) for values in hyperparameters(36, search)]
    assert search.size == len(points) == 36
    assert sorted(points) == sorted(itertools.product(CHOICES, range(2, 6), FACTORS, [0.25]))


@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=25)
def test_every_grid_is_its_product(sizes, seed):
    names = ("learning_rate", "beta1", "beta2")
    axes = {name: [(i + 1) / 10 for i in range(size)] for name, size in zip(names, sizes, strict=False)}
    table = {"rule": "adam", "beta1": 0.5, "beta2": 0.5, "epsilon": 1.0}
    table |= {name: {"choice": values} for name, values in axes.items()}
    search = search_of(table, search="grid", trials=1, pool=1, seed=seed)
    points = [tuple(values[name] for name in axes) for values in hyperparameters(int(search.size), search)]
    assert sorted(points) == sorted(itertools.product(*axes.values()))


def test_a_larger_pool_extends_a_grid_and_another_seed_changes_its_order():
    ours = hyperparameters(36, search_of(GRID, search="grid"))
    assert hyperparameters(36, search_of(GRID, search="grid", pool=36)) == ours
    other = hyperparameters(36, search_of(GRID, search="grid", seed=9))
    assert other != ours
    assert sorted(map(str, other)) == sorted(map(str, ours))


def test_the_first_points_of_a_grid_are_a_sample_of_all_of_it():
    """Of 20 × 20 points, the first 20 are in about 20 · (1 − 0.95²⁰) = 12.8 rows and columns; in order, in one row."""
    table = {"rule": "momentum", "learning_rate": {"integer": [1, 20]}}
    table |= {"momentum": {"choice": [i / 20 for i in range(20)]}}
    for seed in range(20):
        points = hyperparameters(20, search_of(table, search="grid", trials=1, pool=1, seed=seed))
        for name in ("learning_rate", "momentum"):
            assert 8 <= len({point[name] for point in points}) <= 18


@pytest.mark.parametrize("index", [-1, 36, 1000])
def test_indices_outside_a_grid_are_rejected(index):
    with pytest.raises(IndexError, match=rf"point {index}: expected an index from 0 to 35"):
        search_of(GRID, search="grid").point(index)
