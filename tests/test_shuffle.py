"""The order in which a trial reads its data: a permutation that looks random."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from levelfield.training import shuffle


def orders(seeds: Any, n: int) -> np.ndarray:
    """Return one row per seed: where its permutation maps 0 … n−1."""
    permute = jax.jit(lambda seeds: shuffle.permute(seeds[:, None], jnp.arange(n), n))
    return np.asarray(permute(jnp.asarray(seeds, jnp.uint32)))


def epochs(trials: int, count: int, n: int) -> np.ndarray:
    """Return the orders of the first epochs of trials 0, 1, …, with one batch per epoch."""
    draw = jax.jit(jax.vmap(lambda seed: shuffle.batch_indices(seed, jnp.arange(count), n, n)))
    return np.asarray(draw(jnp.arange(trials))).reshape(-1, n)


def p_value(categories: np.ndarray, cells: int) -> float:
    """Of a chi-square test that draws of 0 … cells−1 are uniform; the columns are tests of their own."""
    tests = [stats.chisquare(np.bincount(column, minlength=cells)).pvalue for column in categories.T]
    return float(min(1.0, min(tests) * len(tests)))  # Bonferroni


def p_uniform(actual: np.ndarray) -> dict[str, float]:
    """How likely a fair shuffle brings orders as uneven as these."""
    n = actual.shape[1]
    here, there = actual, np.roll(actual, -1, axis=1)
    # Where two neighbors go, as a single number: the position of the first, and the distance of the second.
    pairs = here * (n - 1) + (there - here) % n - 1
    return {"element": p_value(here, n), "pair": p_value(pairs, n * (n - 1))}


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 1000, 9973])
def test_an_order_is_a_permutation(n: int) -> None:
    actual = orders([0, 1, 2, 12345, 2**31, 2**32 - 1], n)
    np.testing.assert_array_equal(np.sort(actual, axis=1), np.tile(np.arange(n), (6, 1)))


def test_seeds_and_epochs_have_different_orders() -> None:
    of_seeds, of_epochs = orders(np.arange(200), 1000), epochs(1, 200, 1000)
    assert len(np.unique(of_seeds, axis=0)) == 200
    assert len(np.unique(of_epochs, axis=0)) == 200
    # Two orders agree in one position on average, by the Poisson distribution.
    for actual in (of_seeds, of_epochs):
        same_places = (actual[1:] == actual[:-1]).sum(axis=1)
        assert 0.7 < same_places.mean() < 1.3
        assert same_places.max() <= 7


@pytest.mark.parametrize("n", [5, 12, 16])
@pytest.mark.parametrize("source", ["seeds", "epochs"])
def test_orders_are_uniform(n: int, source: str) -> None:
    actual = orders(np.arange(40_000), n) if source == "seeds" else epochs(200, 200, n)
    assert min(p_uniform(actual).values()) > 1e-3


@pytest.mark.parametrize("n", [5, 12, 16])
def test_too_few_rounds_are_not_uniform(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice a poor shuffle."""
    monkeypatch.setattr(shuffle, "_ROUNDS", 4)
    assert max(p_uniform(orders(np.arange(40_000), n)).values()) < 1e-30


def test_all_permutations_are_equally_likely() -> None:
    number = {permutation: i for i, permutation in enumerate(itertools.permutations(range(5)))}
    actual = np.array([[number[tuple(order)]] for order in orders(np.arange(40_000), 5).tolist()])
    assert p_value(actual, len(number)) > 1e-3


def test_neighbors_are_separated_in_a_long_order() -> None:
    actual = orders(np.arange(200), 1000)
    distance = (actual[:, 1:] - actual[:, :-1]) % 1000 - 1
    assert p_value(distance.reshape(-1, 1), 999) > 1e-3


@pytest.mark.parametrize(("n", "batch_size"), [(10, 3), (12, 4), (7, 7), (5, 1), (1000, 64)])
def test_an_epoch_draws_each_example_at_most_once(n: int, batch_size: int) -> None:
    batches, several = n // batch_size, 3
    actual = np.asarray(shuffle.batch_indices(7, jnp.arange(several * batches), n, batch_size))
    assert actual.shape == (several * batches, batch_size)
    for epoch in actual.reshape(several, -1):
        assert len(set(epoch)) == len(epoch) == n - n % batch_size
        assert epoch.min() >= 0
        assert epoch.max() < n


def test_the_batch_of_a_step_does_not_depend_on_other_steps() -> None:
    together = shuffle.batch_indices(3, jnp.arange(20), 50, 8)
    one_by_one = [shuffle.batch_indices(3, jnp.array([step]), 50, 8)[0] for step in range(20)]
    np.testing.assert_array_equal(together, one_by_one)
