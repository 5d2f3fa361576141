"""The methods section: what it says is true for its study."""

from __future__ import annotations

import re

import pytest
from report_helpers import INFEASIBLE, POOL, SGD, K, random_pools, study_of

import levelfield as lf
from levelfield.report.methods import methods


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    return made(study_of(), random_pools(), INFEASIBLE)


def test_the_methods_section_says_what_was_done(comparison):
    texts = methods(comparison.results)
    text, study = texts["methods.md"], comparison.study
    for fact in (
        "We compared sgd, momentum, and adam on the workload fashion_mini",
        f"{study.steps} steps with a batch size of {study.batch_size}",
        f"first {POOL} feasible trials",
        "Infeasible trials were left out and replaced by the next points: 2 (sgd) and 1 (adam).",
        f"The best of K = {K} trials is selected by valid_error at the last step",
        "for the selected trial we also report test_error.",
        f"1 − 0.5^(1/{K}) = 0.16",
        "with replacement, as in Choi et al. (2020)",
        "Holm's correction over 3 pairs",
        "target (valid_error 30.00%)",
    ):
        assert fact in text
    assert "open on the better side" not in text
    for name, optimizer in study.optimizers.items():
        for axis in optimizer.space.free:
            assert f"| {name} | {axis.key} |" in text
    # The LaTeX version says the same. What it escapes must not be left over.
    tex = texts["methods.tex"]
    assert r"\input{spaces.tex}" in tex
    assert r"valid\_error" in tex
    assert not re.search(r"(?<!\\)[_%#&]", tex)


def test_the_methods_section_claims_no_tests_where_there_are_none(comparison, made):
    """Nor confidence intervals: a tuner chose the points."""
    study = comparison.study.replace(search="imported", sampling="adaptive")
    tuned = methods(made(study, random_pools(), INFEASIBLE).results)["methods.md"]
    (search, statistics) = re.findall(r"\*\*(?:Search|Statistics)\.\*\* (.*)", tuned)
    assert "there are no confidence intervals, and nothing is tested" in search
    assert "median best of" in statistics
    for claim in ("confidence interval", "permutation", "tested", "correction"):
        assert claim not in statistics
        assert claim in methods(comparison.results)["methods.md"]


def test_the_methods_section_follows_the_study(made):
    study = study_of({"sgd": SGD}, pool=K, target=None, replacement=False)
    text = methods(made(study, {"sgd": random_pools()["momentum"][:K]}).results)["methods.md"]
    assert "without replacement" in text
    assert "open on the better side, because bounding it takes at least 18 trials" in text
    assert "target" not in text
    assert "permutation" not in text
