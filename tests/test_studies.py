"""The built-in studies are valid and show what they are meant to show."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from training_helpers import from_list

import levelfield as lf
from levelfield.executors._jax import job
from levelfield.search import Search
from levelfield.study import built_in_studies
from levelfield.training.program import program
from levelfield.training.slots import train

SIX = ["sgd", "momentum", "nesterov", "rmsprop", "adam", "nadam"]


@pytest.mark.parametrize("name", built_in_studies())
def test_every_built_in_study_is_valid(name):
    study = lf.load_study(name)
    assert study.name == name
    assert study.description


@pytest.mark.parametrize("name", ["fashion_mini", "tolstoi_mini", "quadratic"])
def test_the_embedded_studies_compare_the_six_optimizers_of_the_paper(name):
    assert list(lf.load_study(name).optimizers) == SIX


@pytest.mark.parametrize("name", ["fashion_mini", "tolstoi_mini", "quadratic", "wilson"])
def test_the_embedded_studies_can_show_what_they_are_meant_to_show(name):
    """General optimizers can express most of their special cases, and the pools hold enough trials for an answer."""
    study = lf.load_study(name)
    assert study.pool >= 5 * study.trials
    coverage = lf.coverage(study)
    assert {covered.edge.general for covered in coverage.covered} >= {"momentum", "adam"}
    for covered in coverage.covered:
        assert covered.share > 0.6, covered


def test_on_wilsons_problem_adam_loses_only_with_the_default_epsilon(tmp_path):
    comparison = lf.compare(lf.load_study("wilson"), tmp_path / "trials.db")
    assert comparison.complete
    assert comparison.outcome("adam_default").best(k=10).mean > 0.3
    assert comparison.outcome("adam").best(k=10).mean < 0.01
    assert comparison.beats("sgd", "adam_default", k=10) > 0.95
    assert comparison.beats("sgd", "adam", k=10) < 0.05
    assert "beats adam_default in all repetitions" in " ".join(comparison.sentences())


@pytest.mark.slow
def test_the_default_comparison(tmp_path):
    """All six learn, and the general ones do not lose to their special cases."""
    comparison = lf.compare(lf.load_study("fashion_mini"), tmp_path / "trials.db")
    assert comparison.complete
    for name in SIX:
        assert comparison.outcome(name).best(k=5).mean < 0.15
    for special, general in [("sgd", "momentum"), ("momentum", "adam"), ("nesterov", "nadam"), ("momentum", "rmsprop")]:
        assert comparison.beats(special, general, k=5) < 0.95
    assert comparison.write_report(tmp_path / "report.html").stat().st_size < 3e6


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fashion_mini", "tolstoi_mini", "quadratic", "wilson"])
def test_on_a_gpu_a_trial_among_many_equals_the_trial_alone(name):
    """Up to a relative error of 1e-3 after 40 steps in full float32, because grouped kernels add in another order."""
    if jax.default_backend() != "gpu":
        pytest.skip("there is no GPU")
    sgd = {"learning_rate": {"log": [1e-3, 1e-1]}}
    study = lf.Study(workload=name, steps=40, eval_interval=20, trials=1, optimizers={"sgd": sgd})
    search = Search(study, "sgd")

    def losses(slots: int, indices: list[int]) -> dict[int, np.ndarray]:
        waiting = iter([search.point(index) for index in indices])
        stretches = train(program(job(study, "sgd"), slots), "sgd", from_list(waiting))
        trials = [trial for stretch in stretches for trial in stretch.finished]
        return {trial.point.index: trial.curve.values["train_loss"] for trial in trials}

    with jax.default_matmul_precision("highest"):
        together, alone = losses(16, list(range(40))), losses(1, [0, 17, 39])
    for index, values in alone.items():
        np.testing.assert_allclose(together[index], values, rtol=1e-3)
