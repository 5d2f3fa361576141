"""The rules' equations in numpy against their optax transformations in JAX."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from levelfield.rules import get_rule
from levelfield.taxonomy.inclusions import inclusions_between
from levelfield.taxonomy.order import column
from levelfield.taxonomy.trajectories import deviation, trajectory
from levelfield.training import following

PAPER = ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam")
INCLUSIONS = [inclusion for pair in itertools.permutations(PAPER, 2) for inclusion in inclusions_between(*pair)]
LIMITS = 10.0 ** np.arange(-6, 9, 2)


def test_all_of_the_papers_inclusions_are_here():
    assert len({(inclusion.special, inclusion.general) for inclusion in INCLUSIONS}) == 10


@pytest.mark.parametrize("scale", [1e-2, 1e2])
@pytest.mark.parametrize("inclusion", INCLUSIONS, ids=str)
def test_numpy_and_jax_see_the_same_deviations(inclusion, scale):
    space, generator = inclusion.space, np.random.default_rng(0)
    special, general = get_rule(inclusion.special), get_rule(inclusion.general)
    points = [space.hyperparameters(unit) for unit in generator.random((12, len(space.free)))]
    gradients = scale * generator.normal(size=(len(points), 30, 4))
    limits = {inclusion.limit: LIMITS} if inclusion.limit else {}
    columns = {name: column([point[name] for point in points], (-1, 1)) for name in points[0]}
    steps_first = np.moveaxis(gradients, 0, -1)[..., None]
    expected = trajectory(special.equations, columns, steps_first)
    followed = trajectory(general.equations, inclusion.image(columns, limits), steps_first)
    opens = [{inclusion.limit: limit} for limit in LIMITS] if inclusion.limit else [{}]
    in_jax = following.deviations(
        special, general, inclusion.image, points, [inclusion.open | open for open in opens], gradients
    )
    in_numpy = deviation(followed, expected)
    assert in_numpy.shape == in_jax.shape == (len(points), len(opens))
    np.testing.assert_allclose(in_numpy, in_jax, rtol=1e-8, atol=1e-13)


@pytest.mark.parametrize("rule", PAPER)
def test_a_trajectory_in_numpy_is_the_one_in_jax(rule):
    """With a learning rate that varies with the step."""
    import jax

    values = {name: 0.4 for name in get_rule(rule).hyperparameters if name != "learning_rate"}
    values["learning_rate"] = lambda t: 0.1 / (t + 1)
    gradients = np.random.default_rng(1).normal(size=(20, 3))
    with jax.enable_x64(True):
        expected = np.asarray(following.trajectory(get_rule(rule), values, jax.numpy.asarray(gradients)))
    actual = list(trajectory(get_rule(rule).equations, values, gradients))
    np.testing.assert_allclose(actual, expected, rtol=1e-12)
