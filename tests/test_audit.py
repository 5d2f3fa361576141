"""The audit of inclusions: invented pools with a known verdict, and a trained one."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import NOWHERE
from helpers import make_study

import levelfield as lf
from levelfield.analysis.permutation import PERMUTATIONS
from levelfield.errors import DataError
from levelfield.search import Search
from levelfield.taxonomy.audit import Finding, Verdict
from levelfield.training import gradients
from levelfield.trial import Curve, Point, Status, Trial
from levelfield.workloads import get_workload

# momentum's space covers sgd's, and its middle is far from any border.
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

Pool = Sequence[float | None]  # final losses; None is infeasible


def invented(study: lf.Study, name: str, losses: Pool, hyperparameters: dict[str, Any] | None) -> list[Trial]:
    """Return trials with these final losses, all at the same hyperparameters if they are given."""
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
    study: lf.Study,
    pools: Mapping[str, Pool],
    at: Mapping[str, dict[str, Any]] | None = None,
    scale: float | None = None,
) -> lf.Comparison:
    """Return the comparison of invented trials; ``at``: optimizer → hyperparameters of all its trials.

    ``scale``: the size of the gradients that the store knows.
    """
    metrics = get_workload(study.workload).metrics
    provenance = NOWHERE if scale is None else NOWHERE | {"gradient_scale": scale}
    with lf.Store.open("sqlite://") as store:
        for name, losses in pools.items():
            trials = invented(study, name, losses, (at or {}).get(name))
            store.add(study.identity(name), study.definition(name), metrics, trials, provenance)
        return lf.Comparison.load(study, store)


def audited(
    special: Pool, general: Pool, *, trials: int = 5, space: dict[str, Any] | None = None, **best: float
) -> Finding:
    """Return the finding for these losses of sgd and momentum. All trials of momentum are at the same point."""
    feasible = [sum(loss is not None for loss in losses) for losses in (special, general)]
    optimizers = {"sgd": SGD, "momentum": MOMENTUM | (space or {})}
    study = make_study(optimizers, pool=max(*feasible, trials), trials=trials)
    comparison = compared(study, {"sgd": special, "momentum": general}, {"momentum": MIDDLE | best})
    (finding,) = comparison.audit()
    assert (finding.edge.special, finding.edge.general) == ("sgd", "momentum")
    return finding


def audited_at_border(key: str, side: str) -> Finding:
    """Return the finding for momentum's trials if those near a border are the best, and all of sgd's are better."""
    study = make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=20, trials=5)
    (axis,) = (axis for axis in study.optimizer("momentum").space if axis.key == key)
    points = [Search(study, "momentum").point(index).hyperparameters for index in range(20)]
    units = np.array([axis.dimension.unit(axis.coordinate(point)) for point in points])
    rank = np.argsort(np.argsort(units if side == "lower" else -units))
    (finding,) = compared(study, {"sgd": GOOD, "momentum": np.where(rank < 7, 5.0, 6.0).tolist()}).audit()
    return finding


GOOD, BAD = np.linspace(1, 2, 20).tolist(), [5.0] * 20


# Verdicts


def test_a_general_optimizer_that_is_better_is_consistent():
    finding = audited(BAD, GOOD)
    assert finding.verdict is Verdict.CONSISTENT
    assert (finding.worse, finding.better) == (0.0, pytest.approx(1.0))
    assert finding.p_value == 1.0
    assert finding.evidence == ()


def test_equal_pools_are_not_separated():
    finding = audited(GOOD, GOOD)
    assert finding.verdict is Verdict.NO_SEPARATION
    assert finding.worse == pytest.approx(finding.better)
    assert finding.p_value > 0.3
    assert finding.evidence == ()


def test_ties_are_consistent():
    finding = audited([0.0] * 20, [0.0] * 20)
    assert finding.verdict is Verdict.CONSISTENT
    assert (finding.worse, finding.better, finding.p_value) == (0.0, 0.0, 1.0)


def test_a_lead_that_rarely_shows_does_not_count():
    """9 of the general optimizer's 200 trials are worse than all others, which is significant but rare."""
    rare = audited([0.0] * 200, [0.0] * 191 + [2.0] * 9, trials=1)
    assert (rare.worse, rare.better) == (pytest.approx(9 / 200), 0.0)
    assert rare.p_value < 0.05
    assert rare.verdict is Verdict.CONSISTENT
    assert audited([0.0] * 200, [0.0] * 180 + [2.0] * 20, trials=1).verdict is Verdict.VIOLATED


def test_a_general_optimizer_that_is_worse_violates_the_inclusion():
    """There is no evidence: the space covers, the best is in the middle, all is feasible, more trials do not help."""
    finding = audited(GOOD, BAD)
    assert finding.verdict is Verdict.VIOLATED
    assert (finding.worse, finding.better) == (pytest.approx(1.0), 0.0)
    assert finding.p_value < 0.001
    assert finding.evidence == ()
    assert str(finding) == (
        "sgd ⊆ momentum: violated (momentum is worse in 100%, better in 0% of repetitions; one-sided p = "
        "0.0004; coverage 100%). momentum is probably under-tuned: its search does not show why."
    )
    assert repr([finding]) == f"[<{finding}>]"


def test_win_rates_agree_with_enumeration():
    special, general = [1.0, 3.0, 4.0], [2.0, 2.0, 4.0]
    draws = itertools.product(itertools.product(special, repeat=2), itertools.product(general, repeat=2))
    minima = np.array([(min(ours), min(theirs)) for ours, theirs in draws])
    finding = audited(special, general, trials=2)
    assert finding.worse == pytest.approx(np.mean(minima[:, 0] < minima[:, 1]))
    assert finding.better == pytest.approx(np.mean(minima[:, 0] > minima[:, 1]))
    assert finding.verdict is Verdict.NO_SEPARATION


def test_the_number_of_trials_can_be_chosen():
    study = make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=2, trials=2)
    comparison = compared(study, {"sgd": [1.0, 3.0], "momentum": [2.0, 2.0]})
    assert [(finding.k, finding.worse) for finding in comparison.audit()] == [(2, pytest.approx(3 / 4))]
    assert [(finding.k, finding.worse) for finding in comparison.audit(1)] == [(1, pytest.approx(1 / 2))]


def test_a_finding_as_a_dict():
    content = audited_at_border("learning_rate", "upper").as_dict()
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["special"] == "sgd"
    assert content["general"] == "momentum"
    assert content["verdict"] == "violated"
    assert len(content["evidence"]) == 1
    assert (content["coverage"], content["coverage_note"]) == (1.0, "")


# Evidence, one kind at a time


def only(finding: Finding) -> str:
    assert finding.verdict is Verdict.VIOLATED
    (reason,) = finding.evidence
    assert reason in str(finding)
    return reason


def test_evidence_of_a_space_that_does_not_cover_the_special_optimizer():
    reason = only(audited(GOOD, BAD, space={"learning_rate": {"log": [1e-3, 1e-1]}}, learning_rate=0.01))
    assert reason == "momentum's space covers 50% of sgd's: learning_rate must reach 1 (now ≤ 0.1)"


@pytest.mark.parametrize("side", ["lower", "upper"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("learning_rate", "learning_rate (log [0.001, 10])"),
        ("one_minus_momentum", "one_minus_momentum (log [0.001, 1])"),
    ],
)
def test_evidence_of_good_trials_at_a_border(key, shown, side):
    assert only(audited_at_border(key, side)) == f"its good trials lie at the {side} border of {shown}"


@pytest.mark.parametrize("rate", [0.0015, 0.1, 9.0])
def test_trials_that_do_not_differ_are_no_evidence(rate):
    """If all are at the same place, they cannot show that it is better than others."""
    assert audited(GOOD, BAD, learning_rate=rate).evidence == ()


def test_evidence_of_infeasible_trials():
    assert only(audited(GOOD, [None] * 30 + BAD)) == "60% of its trials are infeasible"
    assert audited(GOOD, [None] * 20 + BAD).evidence == ()  # exactly half is not too many


def test_evidence_that_more_trials_would_help():
    """One of 20 trials is at 5, the others at 10; the best of K is 5 if that trial is drawn."""
    reason = only(audited(GOOD, [5.0] + [10.0] * 19))
    half, whole = (10 - 5 * (1 - 0.95**k) for k in (10, 20))
    assert reason == f"more trials would still improve it ({half:.4g} at K = 10, {whole:.4g} at K = 20)"


def test_all_evidence_is_listed():
    finding = audited(GOOD, [None] * 30 + [5.0] + [10.0] * 19, space={"learning_rate": {"log": [1e-3, 1e-1]}})
    assert len(finding.evidence) == 3
    assert all(reason in str(finding) for reason in finding.evidence)


def test_the_audit_handles_infinite_losses():
    """A feasible trial can have an infinite metric."""
    finding = audited(GOOD, [math.inf] * 20)
    assert finding.verdict is Verdict.VIOLATED
    assert audited([math.inf] * 20, [math.inf] * 20).verdict is Verdict.UNKNOWN
    assert audited(GOOD, [3.0] + [math.inf] * 19).verdict is Verdict.VIOLATED


@pytest.mark.parametrize("general", ["momentum", "adam"])
def test_the_audit_needs_no_data(monkeypatch, general):
    """Results can be read on a machine without the training data."""

    def absent(*_: Any) -> float:
        raise DataError("the data are not on this machine")

    monkeypatch.setattr(gradients, "gradient_scale", absent)
    study = make_study({"sgd": SGD, general: {"momentum": MOMENTUM, "adam": ADAM}[general]}, pool=20, trials=5)
    comparison = compared(study, {"sgd": GOOD, general: [None] * 30 + BAD})
    (finding,) = comparison.audit()
    assert finding.verdict is Verdict.VIOLATED
    assert "60% of its trials are infeasible" in finding.evidence
    # Only adam simulates sgd in a limit, which depends on the size of the gradients.
    assert finding.coverage.share == (1.0 if general == "momentum" else None)
    unknown = "coverage unknown: the size of the gradients is unknown" in str(finding)
    assert unknown == (general == "adam")
    sentences = comparison.sentences()
    assert str(finding) in sentences
    assert ("Coverage unknown: the size of the gradients is unknown." in sentences) == unknown


# Coverage

NO_MOMENTUM = {"one_minus_momentum": {"log": [1e-3, 0.5]}}  # sgd needs a momentum of 0


@pytest.mark.parametrize(("special", "general"), [(BAD, GOOD), (GOOD, GOOD), (GOOD, BAD)])
def test_outcomes_say_nothing_about_an_inclusion_that_the_spaces_do_not_cover(special, general):
    finding = audited(special, general, space=NO_MOMENTUM)
    assert (finding.verdict, finding.coverage.share) == (Verdict.NOT_COVERED, 0.0)
    reason = "momentum's space cannot express sgd: one_minus_momentum must reach 1 (now ≤ 0.5)"
    assert finding.evidence == (reason,)
    assert finding.as_dict()["coverage"] == 0.0
    assert finding.as_dict()["coverage_note"] == "one_minus_momentum must reach 1 (now ≤ 0.5)"
    assert str(finding).startswith("sgd ⊆ momentum: not covered by this study's spaces (momentum is worse in ")
    # Losing clearly is still worth a word.
    assert finding.loses == (general is BAD)
    assert (f"momentum is worse than sgd, and {reason}." in str(finding)) == (general is BAD)


def test_the_verdict_stands_on_a_space_that_covers_a_part():
    """sgd's range of two decades: covered from its lower end by so many of them."""
    verdicts = {}
    for decades in (0.02, 0.5, 1.0):
        space = {"learning_rate": {"log": [1e-3, 10 ** (decades - 2)]}}
        finding = audited(BAD, GOOD, space=space, learning_rate=5e-3)
        assert finding.coverage.share == pytest.approx(decades / 2, abs=0.02)
        verdicts[decades] = finding.verdict
    assert verdicts == {0.02: Verdict.NOT_COVERED, 0.5: Verdict.CONSISTENT, 1.0: Verdict.CONSISTENT}


@pytest.mark.parametrize(
    ("scale", "share", "verdict"),
    [(1e-3, 1.0, Verdict.CONSISTENT), (1e4, 0.0, Verdict.NOT_COVERED), (None, None, Verdict.CONSISTENT)],
)
def test_whether_a_limit_is_covered_depends_on_the_size_of_the_gradients(scale, share, verdict):
    """adam's ε reaches 1,000, which is large for small gradients only."""
    study = make_study({"sgd": SGD, "adam": ADAM}, pool=20, trials=5)
    (finding,) = compared(study, {"sgd": BAD, "adam": GOOD}, scale=scale).audit()
    assert (finding.coverage.share, finding.verdict) == (share, verdict)


def test_a_narrowed_space_has_its_own_coverage():
    study = make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=20, trials=5)
    comparison = compared(study, {"sgd": BAD, "momentum": GOOD})
    half = comparison.narrowed({"momentum": {"learning_rate": (1e-3, 1e-1)}})
    assert [finding.coverage.share for finding in (*comparison.audit(), *half.audit())] == [1.0, 0.5]


def test_the_sentence_names_each_inclusion_with_its_coverage():
    optimizers = {"sgd": SGD, "momentum": MOMENTUM | NO_MOMENTUM, "nesterov": MOMENTUM, "adam": ADAM}
    study = make_study(optimizers, pool=20, trials=5)
    worst = [9.0] * 20
    pools = {"sgd": BAD, "momentum": worst, "nesterov": GOOD, "adam": GOOD}
    sentences = compared(study, pools, {"momentum": MIDDLE}, scale=1e-3).sentences()
    (counts,) = (sentence for sentence in sentences if sentence.startswith("Inclusions"))
    assert counts == (
        "Inclusions (coverage in parentheses): consistent: sgd ⊆ nesterov (100%), sgd ⊆ adam (100%), momentum ⊆ adam "
        "(63%); not covered by this study's spaces: sgd ⊆ momentum (0%)."
    )
    assert round(math.log(0.5 / 1e-2) / math.log(0.5 / 1e-3), 2) == 0.63  # adam's momentum is at most 0.99
    (loss,) = (sentence for sentence in sentences if sentence.startswith("sgd ⊆ momentum"))
    assert "momentum is worse than sgd, and momentum's space cannot express sgd" in loss


# Correction for the number of inclusions

ONE_IN_70 = 1 / 70 * (1 + 3 / math.sqrt(PERMUTATIONS / 70))  # with three standard errors of the permutation test


def test_p_values_are_corrected_for_the_number_of_inclusions():
    """All of sgd's four trials are better than momentum's four: one of 70 ways to deal them."""
    ahead, behind = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    pair = make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=4, trials=2)
    (finding,) = compared(pair, {"sgd": ahead, "momentum": behind}).audit()
    assert finding.p_value == pytest.approx(ONE_IN_70, abs=0.005)
    assert finding.verdict is Verdict.VIOLATED

    others = {"nesterov": MOMENTUM, "rmsprop": RMSPROP, "adam": ADAM, "nadam": ADAM}
    many = make_study({"sgd": SGD, "momentum": MOMENTUM, **others}, pool=4, trials=2)
    pools = {"sgd": ahead, "momentum": behind} | dict.fromkeys(others, ahead)
    findings = compared(many, pools).audit()
    assert len(findings) == 8
    (same,) = (finding for finding in findings if (finding.edge.special, finding.edge.general) == ("sgd", "momentum"))
    assert same.p_value == pytest.approx(8 * ONE_IN_70, abs=0.04)
    assert (same.worse, same.verdict) == (pytest.approx(1.0), Verdict.NO_SEPARATION)
    assert all(finding.verdict is not Verdict.VIOLATED for finding in findings)


def test_an_inclusion_without_trials_does_not_count_in_the_correction():
    ahead, behind = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]
    study = make_study(
        {"sgd": SGD, "momentum": MOMENTUM, "nesterov": MOMENTUM, "adam": ADAM, "nadam": ADAM}, pool=4, trials=2
    )
    findings = {
        (finding.edge.special, finding.edge.general): finding
        for finding in compared(study, {"sgd": ahead, "momentum": behind}).audit()
    }
    assert findings["sgd", "momentum"].p_value == pytest.approx(ONE_IN_70, abs=0.005)
    assert findings["sgd", "momentum"].verdict is Verdict.VIOLATED
    assert {pair for pair, finding in findings.items() if finding.verdict is Verdict.UNKNOWN} == findings.keys() - {
        ("sgd", "momentum")
    }


# Empty pools


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
def test_the_verdict_without_feasible_trials_is_unknown(pools, tmp_path):
    comparison = compared(make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=20, trials=5), pools)
    (finding,) = comparison.audit()
    assert finding.verdict is Verdict.UNKNOWN
    assert math.isnan(finding.p_value)
    assert str(finding) == "sgd ⊆ momentum: unknown (too few feasible trials)."
    sentences = " ".join(comparison.sentences())
    assert "has no feasible trial" in sentences
    assert "violated" not in sentences
    page = comparison.write_report(tmp_path / "report.html").read_text()
    assert "has no feasible trial" in page
    assert ('"verdict">unknown<' in page) == any(loss is not None for losses in pools.values() for loss in losses)


def test_the_verdict_on_trials_that_a_tuner_chose_is_unknown():
    study = make_study({"sgd": SGD, "momentum": MOMENTUM}, pool=20, trials=5)
    tuned = study.replace(search="imported", sampling="adaptive")
    assert compared(study, {"sgd": GOOD, "momentum": BAD}).audit()[0].verdict is Verdict.VIOLATED
    (finding,) = compared(tuned, {"sgd": GOOD, "momentum": BAD}).audit()
    assert (finding.verdict, finding.evidence) == (Verdict.UNKNOWN, ())
    assert str(finding) == "sgd ⊆ momentum: unknown (the trials are not known to be independent)."


# Sentences and report


@pytest.fixture(scope="module")
def three() -> lf.Comparison:
    """One of each verdict: sgd ⊆ momentum violated, sgd ⊆ nesterov consistent, sgd ⊆ adam not separated."""
    study = make_study({"sgd": SGD, "momentum": MOMENTUM, "nesterov": MOMENTUM, "adam": ADAM}, pool=20, trials=5)
    better = [loss - 1 for loss in GOOD]
    pools = {"sgd": GOOD, "momentum": BAD, "nesterov": better, "adam": GOOD}
    return compared(study, pools, {"momentum": MIDDLE})


def test_sentences_count_the_verdicts_and_describe_violations(three):
    findings = three.audit()
    verdicts = {(finding.edge.special, finding.edge.general): finding.verdict.value for finding in findings}
    assert verdicts == {
        ("sgd", "momentum"): "violated",
        ("sgd", "nesterov"): "consistent",
        ("sgd", "adam"): "no separation",
        ("momentum", "adam"): "consistent",
    }
    sentences = three.sentences()
    (counts,) = (sentence for sentence in sentences if sentence.startswith("Inclusions"))
    for words in ("consistent: sgd ⊆ nesterov (", "no separation: sgd ⊆ adam (", "violated: sgd ⊆ momentum ("):
        assert words in counts
    violations = [str(finding) for finding in findings if finding.verdict is Verdict.VIOLATED]
    assert [sentence for sentence in sentences if "⊆" in sentence] == [counts, *violations]


def test_a_study_without_inclusions_has_no_findings():
    study = make_study({"momentum": MOMENTUM, "nesterov": MOMENTUM}, pool=20, trials=5)
    comparison = compared(study, {"momentum": GOOD, "nesterov": GOOD})
    assert comparison.audit() == []
    assert not any("nclusion" in sentence for sentence in comparison.sentences())


def test_the_report_shows_the_findings(three, tmp_path: Path):
    page = three.write_report(tmp_path / "report.html").read_text()
    for finding in three.audit():
        assert f">{finding.edge.special} ⊆ {finding.edge.general}<" in page
    for verdict in ("no separation", "violated", "consistent"):
        assert f'"verdict">{verdict}<' in page
    for coverage in ("100%", "unknown"):
        assert f'"coverage">{coverage}<' in page


# Trained


@pytest.fixture(scope="module")
def capped() -> lf.Study:
    """Momentum against adam with a capped ε, on a problem where that matters."""
    return make_study(
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


def test_a_capped_epsilon_is_noticed_before_training_and_explained_after_it(capped, store):
    (before,) = lf.coverage(capped).covered
    assert before.share == 0
    assert "adam's space cannot express momentum: " in str(before)
    assert "epsilon must reach 10 (now ≤ 1e-08)" in before.why
    comparison = lf.compare(capped, store)
    (after,) = comparison.audit()
    assert after.verdict is Verdict.NOT_COVERED
    assert after.coverage.share == 0
    assert after.worse > 0.95
    assert (
        "adam is worse than momentum, and adam's space cannot express momentum: epsilon must reach 10 (now ≤ 1e-08)"
        in str(after)
    )
    assert str(after) in comparison.sentences()
