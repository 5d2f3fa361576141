"""The audit of inclusions: pools made up so that the verdict is known, and one that is trained."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import levelfield as lf
from levelfield.errors import DataError
from levelfield.search import Search
from levelfield.taxonomy.audit import Finding, Verdict
from levelfield.training import gradients
from levelfield.trial import Curve, Point, Status, Trial
from levelfield.workloads import get_workload

# momentum's space holds all of sgd's, and its middle is far from any border.
SGD = {"learning_rate": {"log": [1e-2, 1e0]}}
MOMENTUM = {"learning_rate": {"log": [1e-3, 1e1]}, "one_minus_momentum": {"log": [1e-3, 1e0]}}
MIDDLE = {"learning_rate": 0.1, "momentum": 0.97}
ADAM = {
    "learning_rate/epsilon": {"log": [1e-3, 1e3]},
    "one_minus_beta1": {"log": [1e-2, 1e0]},
    "one_minus_beta2": {"log": [1e-2, 1e0]},
    "epsilon": {"log": [1e-3, 1e3]},
}
RMSPROP = {
    "learning_rate": {"log": [1e-3, 1e3]},
    "momentum": {"uniform": [0, 1]},
    "rho": {"uniform": [0, 1]},
    "epsilon": {"log": [1e-3, 1e3]},
}

NOWHERE = {"devices": 0, "device": "none", "backend": "none", "precision": "none", "versions": {}}

Pool = Sequence[float | None]  # final losses; None: infeasible


def study_of(optimizers: Mapping[str, Any], pool: int, trials: int, **changes: Any) -> lf.Study:
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": trials, "pool": pool}
    return lf.Study(**content | {"optimizers": dict(optimizers)} | changes)


def made_up(study: lf.Study, name: str, losses: Pool, hyperparameters: dict[str, Any] | None) -> list[Trial]:
    trials = []
    for index, loss in enumerate(losses):
        point = Search(study, name).point(index)
        if hyperparameters:
            point = Point(index, hyperparameters, point.seed)
        status = Status.INFEASIBLE if loss is None else Status.FEASIBLE
        last = math.inf if loss is None else loss
        metrics = get_workload(study.workload).metrics
        curve = Curve(np.array([2, 4]), {metric: np.array([9.0, last], np.float32) for metric in metrics})
        trials.append(Trial(point, status, curve))
    return trials


def compared(
    study: lf.Study, pools: Mapping[str, Pool], at: Mapping[str, dict[str, Any]] | None = None
) -> lf.Comparison:
    """The comparison of trials that nobody trained; ``at`` says with which hyperparameters."""
    metrics = get_workload(study.workload).metrics
    with lf.Store.open("sqlite://") as store:
        for name, losses in pools.items():
            trials = made_up(study, name, losses, (at or {}).get(name))
            store.add(study.identity(name), study.definition(name), metrics, trials, NOWHERE)
        return lf.Comparison.load(study, store)


def finding(
    special: Pool, general: Pool, *, trials: int = 5, space: dict[str, Any] | None = None, **best: float
) -> Finding:
    """What the audit makes of these losses of sgd and momentum. All of momentum's trials are at one point."""
    feasible = [sum(loss is not None for loss in losses) for losses in (special, general)]
    study = study_of({"sgd": SGD, "momentum": MOMENTUM | (space or {})}, max(*feasible, trials), trials)
    found = compared(study, {"sgd": special, "momentum": general}, {"momentum": MIDDLE | best})
    (one,) = found.audit()
    assert (one.edge.special, one.edge.general) == ("sgd", "momentum")
    return one


GOOD, BAD = np.linspace(1, 2, 20).tolist(), [5.0] * 20


# Verdicts


def test_a_general_optimizer_that_is_better_is_consistent():
    found = finding(BAD, GOOD)
    assert found.verdict is Verdict.CONSISTENT
    assert (found.worse, found.better) == (0.0, pytest.approx(1.0))
    assert found.p_value == 1.0
    assert found.evidence == ()


def test_pools_that_are_alike_are_not_separated():
    found = finding(GOOD, GOOD)
    assert found.verdict is Verdict.NO_SEPARATION
    assert found.worse == pytest.approx(found.better)
    assert found.p_value > 0.3
    assert found.evidence == ()


def test_ties_are_consistent():
    found = finding([0.0] * 20, [0.0] * 20)
    assert found.verdict is Verdict.CONSISTENT
    assert (found.worse, found.better, found.p_value) == (0.0, 0.0, 1.0)


def test_a_lead_that_hardly_ever_shows_is_none():
    """However certain it is: 9 of 200 trials are worse than all others, and all 9 are the general one's."""
    rare = finding([0.0] * 200, [0.0] * 191 + [2.0] * 9, trials=1)
    assert (rare.worse, rare.better) == (pytest.approx(9 / 200), 0.0)
    assert rare.p_value < 0.05
    assert rare.verdict is Verdict.CONSISTENT
    assert finding([0.0] * 200, [0.0] * 180 + [2.0] * 20, trials=1).verdict is Verdict.VIOLATED


def test_a_general_optimizer_that_is_worse_violates_the_inclusion():
    """Nothing here explains it: the space covers, the best lies in the middle, all is feasible, more brings nothing."""
    found = finding(GOOD, BAD)
    assert found.verdict is Verdict.VIOLATED
    assert (found.worse, found.better) == (pytest.approx(1.0), 0.0)
    assert found.p_value < 0.001
    assert found.evidence == ()
    assert str(found) == (
        "sgd ⊆ momentum: violated (momentum is worse in 100%, better in 0% of repetitions; p = 0.0001). "
        "momentum is under-tuned: nothing in its search tells why."
    )


def test_chances_are_those_of_all_draws():
    special, general = [1.0, 3.0, 4.0], [2.0, 2.0, 4.0]
    draws = itertools.product(itertools.product(special, repeat=2), itertools.product(general, repeat=2))
    minima = np.array([(min(ours), min(theirs)) for ours, theirs in draws])
    found = finding(special, general, trials=2)
    assert found.worse == pytest.approx(np.mean(minima[:, 0] < minima[:, 1]))
    assert found.better == pytest.approx(np.mean(minima[:, 0] > minima[:, 1]))
    assert found.verdict is Verdict.NO_SEPARATION


def test_the_number_of_trials_is_the_study_s_or_as_asked():
    study = study_of({"sgd": SGD, "momentum": MOMENTUM}, 2, 2)
    comparison = compared(study, {"sgd": [1.0, 3.0], "momentum": [2.0, 2.0]})
    assert [(found.k, found.worse) for found in comparison.audit()] == [(2, pytest.approx(3 / 4))]
    assert [(found.k, found.worse) for found in comparison.audit(1)] == [(1, pytest.approx(1 / 2))]


def test_a_finding_is_plain_content():
    content = finding(GOOD, BAD, learning_rate=9.9).as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["special"] == "sgd"
    assert content["general"] == "momentum"
    assert content["verdict"] == "violated"
    assert len(content["evidence"]) == 1


# Evidence, one kind at a time


def only(found: Finding) -> str:
    assert found.verdict is Verdict.VIOLATED
    (said,) = found.evidence
    assert said in str(found)
    return said


def test_evidence_of_a_space_that_cannot_express_the_special_one():
    said = only(finding(GOOD, BAD, space={"learning_rate": {"log": [1e-3, 1e-1]}}, learning_rate=0.01))
    assert said == "momentum's space covers 50% of sgd's: learning_rate must reach 1 (now ≤ 0.1)"
    said = only(finding(GOOD, BAD, space={"one_minus_momentum": {"log": [1e-3, 0.5]}}))
    assert said.startswith("momentum's space cannot express sgd: one_minus_momentum must reach 1 (now ≤ 0.5)")


@pytest.mark.parametrize(
    ("best", "words"),
    [
        ({"learning_rate": 9.0}, ["upper", "learning_rate (log [0.001, 10])"]),
        ({"learning_rate": 0.0015}, ["lower", "learning_rate (log [0.001, 10])"]),
        ({"momentum": 0.9985}, ["lower", "one_minus_momentum (log [0.001, 1])"]),
        ({"momentum": 0.0}, ["upper", "one_minus_momentum (log [0.001, 1])"]),
    ],
)
def test_evidence_of_a_best_trial_at_a_border(best, words):
    said = only(finding(GOOD, BAD, **best))
    assert "border" in said
    for word in words:
        assert word in said


@pytest.mark.parametrize("rate", [0.003, 3.0])
def test_a_best_trial_off_the_border_is_none(rate):
    """A tenth of the range's four decades is the border."""
    assert finding(GOOD, BAD, learning_rate=rate).evidence == ()


def test_evidence_of_many_infeasible_trials():
    assert only(finding(GOOD, [None] * 30 + BAD)) == "60% of its trials are infeasible"
    assert finding(GOOD, [None] * 20 + BAD).evidence == ()  # half of them are not most of them


def test_evidence_of_more_trials_that_would_help():
    """One of 20 is at 5, the others at 10: the best of K draws is 5 unless none of them is the one."""
    said = only(finding(GOOD, [5.0] + [10.0] * 19))
    half, whole = (10 - 5 * (1 - 0.95**k) for k in (10, 20))
    assert said == f"more trials would still improve it ({half:.4g} at K = 10, {whole:.4g} at 20)"


def test_all_evidence_is_told():
    found = finding(GOOD, [None] * 30 + [5.0] + [10.0] * 19, space={"learning_rate": {"log": [1e-3, 1e-1]}})
    assert len(found.evidence) == 4
    assert all(said in str(found) for said in found.evidence)


def test_losses_without_bound_do_not_trouble_the_audit():
    """A trial may be feasible and its metric infinite all the same."""
    found = finding(GOOD, [math.inf] * 20)
    assert found.verdict is Verdict.VIOLATED
    assert finding([math.inf] * 20, [math.inf] * 20).verdict is Verdict.UNKNOWN
    assert finding(GOOD, [3.0] + [math.inf] * 19).verdict is Verdict.VIOLATED


@pytest.mark.parametrize("general", ["momentum", "adam"])
def test_reading_results_needs_no_data(monkeypatch, general):
    """They may be read where the training data are not: the verdict stands, and so does what the trials show."""

    def absent(*_: Any) -> float:
        raise DataError("the data are not on this machine")

    monkeypatch.setattr(gradients, "gradient_scale", absent)
    study = study_of({"sgd": SGD, general: {"momentum": MOMENTUM, "adam": ADAM}[general]}, 20, 5)
    comparison = compared(study, {"sgd": GOOD, general: [None] * 30 + BAD})
    (found,) = comparison.audit()
    assert found.verdict is Verdict.VIOLATED
    assert "60% of its trials are infeasible" in found.evidence
    assert str(found) in comparison.sentences()


# A correction for the number of inclusions


def test_the_same_lead_counts_less_among_many():
    """Four trials each, all of sgd's better than all of momentum's: one of 70 ways to deal them."""
    ahead, behind = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    lone = study_of({"sgd": SGD, "momentum": MOMENTUM}, 4, 2)
    (found,) = compared(lone, {"sgd": ahead, "momentum": behind}).audit()
    assert found.p_value == pytest.approx(1 / 70, abs=0.005)
    assert found.verdict is Verdict.VIOLATED

    others = {"nesterov": MOMENTUM, "rmsprop": RMSPROP, "adam": ADAM, "nadam": ADAM}
    many = study_of({"sgd": SGD, "momentum": MOMENTUM, **others}, 4, 2)
    pools = {"sgd": ahead, "momentum": behind} | dict.fromkeys(others, ahead)
    findings = compared(many, pools).audit()
    assert len(findings) == 8
    (same,) = (each for each in findings if (each.edge.special, each.edge.general) == ("sgd", "momentum"))
    assert same.p_value == pytest.approx(8 / 70, abs=0.04)
    assert (same.worse, same.verdict) == (pytest.approx(1.0), Verdict.NO_SEPARATION)
    assert all(each.verdict is not Verdict.VIOLATED for each in findings)


def test_an_inclusion_without_trials_takes_no_part_in_the_correction():
    ahead, behind = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    study = study_of({"sgd": SGD, "momentum": MOMENTUM, "nesterov": MOMENTUM, "adam": ADAM, "nadam": ADAM}, 4, 2)
    findings = {
        (each.edge.special, each.edge.general): each
        for each in compared(study, {"sgd": ahead, "momentum": behind}).audit()
    }
    assert findings["sgd", "momentum"].p_value == pytest.approx(1 / 70, abs=0.005)
    assert findings["sgd", "momentum"].verdict is Verdict.VIOLATED
    assert {pair for pair, each in findings.items() if each.verdict is Verdict.UNKNOWN} == findings.keys() - {
        ("sgd", "momentum")
    }


# Pools that are empty


@pytest.mark.parametrize(
    "pools",
    [
        {"sgd": GOOD},
        {"momentum": GOOD},
        {"sgd": GOOD, "momentum": [None] * 20},
        {"sgd": [None] * 20, "momentum": GOOD},
        {},
    ],
    ids=["no momentum", "no sgd", "momentum infeasible", "sgd infeasible", "nothing"],
)
def test_without_trials_nothing_is_known_and_the_rest_still_works(pools, tmp_path):
    comparison = compared(study_of({"sgd": SGD, "momentum": MOMENTUM}, 20, 5), pools)
    (found,) = comparison.audit()
    assert found.verdict is Verdict.UNKNOWN
    assert math.isnan(found.p_value)
    assert str(found) == "sgd ⊆ momentum: no feasible trials to judge by."
    said = " ".join(comparison.sentences())
    assert "has no feasible trial" in said
    assert "violated" not in said
    page = comparison.write_report(tmp_path / "report.html").read_text()
    assert "has no feasible trial" in page
    assert ('"verdict">unknown<' in page) == any(loss is not None for losses in pools.values() for loss in losses)


# What is said of it


@pytest.fixture(scope="module")
def three() -> lf.Comparison:
    """Something of each verdict: sgd ⊆ momentum violated, sgd ⊆ nesterov consistent, sgd ⊆ adam not separated."""
    study = study_of({"sgd": SGD, "momentum": MOMENTUM, "nesterov": MOMENTUM, "adam": ADAM}, 20, 5)
    better = [loss - 1 for loss in GOOD]
    pools = {"sgd": GOOD, "momentum": BAD, "nesterov": better, "adam": GOOD}
    return compared(study, pools, {"momentum": MIDDLE})


def test_sentences_count_the_verdicts_and_tell_the_violations(three):
    verdicts = {(each.edge.special, each.edge.general): each.verdict.value for each in three.audit()}
    assert verdicts == {
        ("sgd", "momentum"): "violated",
        ("sgd", "nesterov"): "consistent",
        ("sgd", "adam"): "no separation",
        ("momentum", "adam"): "consistent",
    }
    said = three.sentences()
    (counts,) = (each for each in said if each.startswith("Inclusions"))
    for words in ("2 consistent", "1 no separation", "1 violated"):
        assert words in counts
    assert [each for each in said if "⊆" in each] == [str(each) for each in three.audit() if each.verdict == "violated"]


def test_a_study_without_inclusions_says_nothing_of_them():
    study = study_of({"momentum": MOMENTUM, "nesterov": MOMENTUM}, 20, 5)
    comparison = compared(study, {"momentum": GOOD, "nesterov": GOOD})
    assert comparison.audit() == []
    assert not any("nclusion" in each for each in comparison.sentences())


def test_the_report_shows_the_findings(three, tmp_path: Path):
    page = three.write_report(tmp_path / "report.html").read_text()
    for each in three.audit():
        assert f">{each.edge.special} ⊆ {each.edge.general}<" in page
    for verdict in ("no separation", "violated", "consistent"):
        assert f'"verdict">{verdict}<' in page


# For real


@pytest.fixture(scope="module")
def capped() -> lf.Study:
    """Momentum against adam whose ε cannot grow, on the problem made for it."""
    return study_of(
        {
            "momentum": {"learning_rate": {"log": [1e-2, 1e0]}, "one_minus_momentum": {"log": [1e-1, 1e0]}},
            "adam": {
                "learning_rate": {"log": [1e-3, 1e0]},
                "one_minus_beta1": {"log": [1e-1, 1e0]},
                "one_minus_beta2": {"log": [1e-3, 1e0]},
                "epsilon": {"log": [1e-12, 1e-8]},
            },
        },
        pool=8,
        trials=4,
        workload="wilson",
        steps=200,
        eval_interval=100,
    )


def test_a_capped_epsilon_is_seen_before_and_explained_after_training(capped):
    (before,) = lf.coverage(capped).covered
    assert before.share == 0
    assert "adam's space cannot express momentum: " in str(before)
    assert "epsilon ≤ 1e-08" in before.why
    with lf.Store.open("sqlite://") as store:
        comparison = lf.compare(capped, store)
    (after,) = comparison.audit()
    assert after.verdict is Verdict.VIOLATED
    assert after.worse > 0.95
    assert "epsilon ≤ 1e-08" in str(after)
    assert str(after) in comparison.sentences()
