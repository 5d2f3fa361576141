"""Optimizers across several studies: ranks, ratios of steps to target, profiles, the command, and the page."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars
import pytest
from helpers import MOMENTUM, SGD, make_study
from hypothesis import given
from hypothesis import strategies as st
from page_helpers import SETTLED

import levelfield as lf
from levelfield.analysis.intervals import Chance, Contest, compare_pairs, interval
from levelfield.analysis.permutation import holm
from levelfield.analysis.profiles import Bounds, credit, ratio_bounds
from levelfield.analysis.summary import Standing, mean_in_repetitions, rank_bounds, separated_pairs
from levelfield.errors import UnknownName, UsageError

# ---------------------------------------------------------------------------- profiles and scores


def standing(*ratios: float, counted: int | None = None) -> Standing:
    bounds = {str(i): Bounds(ratio, ratio, ratio) for i, ratio in enumerate(ratios)}
    known = lf.Estimate(1.0, 1.0, 1.0)
    return Standing("a", list(bounds), [], Bounds(1, 1, 1), known, counted or len(ratios), bounds)


@given(st.lists(st.one_of(st.floats(1, 8), st.just(math.inf)), min_size=1, max_size=6), st.integers(0, 2))
def test_the_score_is_the_mean_of_the_profile_from_1_to_4(ratios, missing):
    """AlgoPerf: 1/(4 − 1) of the integral of ρ. A study without the optimizer counts as not reached."""
    row = standing(*ratios, counted=len(ratios) + missing)
    taus = 1 + 3 * (np.arange(6_000) + 0.5) / 6_000
    profile = np.mean([[ratio <= tau for tau in taus] for ratio in [*ratios, *[math.inf] * missing]], axis=0)
    assert row.score.value == pytest.approx(profile.mean(), abs=1e-3)
    for tau in (1.0, 1.5, 4.0):
        expected = sum(ratio <= tau for ratio in ratios) / (len(ratios) + missing)
        assert row.profile(tau) == pytest.approx(expected)


def test_a_score_by_hand():
    row = standing(1.0, 1.5, 2.5, math.inf)
    assert row.score.value == pytest.approx((1 + 2.5 / 3 + 0.5 + 0) / 4)
    assert row.geometric_mean == pytest.approx((1.5 * 2.5) ** (1 / 3))  # over the three that it reaches
    assert row.reached == ["0", "1", "2"]
    assert row.missed == ["3"]
    assert row.worst == "3"


def test_without_targets_there_is_no_score():
    row = standing()
    assert math.isnan(row.score.value)
    assert math.isnan(row.geometric_mean)
    assert row.worst is None


@given(
    st.lists(st.sampled_from([2.0, 4.0, 6.0, 8.0, math.inf]), min_size=3, max_size=30),
    st.integers(1, 5),
    st.floats(0.5, 0.99),
)
def test_the_ratio_to_a_known_optimizer_has_the_interval_of_its_steps(steps, k, level):
    """All trials of the other optimizer take 2 steps, the fewest possible, so only our own steps are uncertain."""
    pools = {"ours": np.array(steps), "known": np.full(2_000, 2.0)}
    ours = interval(steps, k, level)
    ratio = ratio_bounds(pools, k, first=2.0, level=level)["ours"]
    assert ratio.value == ours.median / 2
    assert ratio.low == max(ours.low, 2.0) / 2
    assert ratio.high == ours.high / 2


@given(st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0, math.inf]), min_size=4, max_size=12), min_size=2, max_size=4))
def test_ratios_lie_in_their_intervals_and_the_best_is_1(pools):
    named = {str(i): np.array(pool) for i, pool in enumerate(pools)}
    bounds = ratio_bounds(named, k=2, first=1.0)
    medians = {name: interval(pool, 2).median for name, pool in named.items()}
    if math.isinf(min(medians.values())):
        assert bounds == {}
        return
    assert min(bound.value for bound in bounds.values()) == 1
    for name, bound in bounds.items():
        assert bound.value == medians[name] / min(medians.values())
        assert 1 <= bound.low <= bound.value <= bound.high
    wider = ratio_bounds(named, k=2, first=1.0, level=0.99)
    assert all(wider[name].low <= bounds[name].low and wider[name].high >= bounds[name].high for name in named)


@pytest.mark.parametrize("shift", [0.0, 0.6], ids=["equal", "slower"])
def test_the_interval_of_a_score_holds_the_true_one(shift):
    """Of four equal optimizers, the one that looks best in a study looks too good; the interval must allow for it."""
    random, k, n, studies, optimizers = np.random.default_rng(0), 5, 25, 4, 4

    def draw(size: int, slower: float) -> np.ndarray:
        steps = 50 * np.ceil(4 * np.exp(slower + 0.6 * random.normal(size=size)))
        return np.where((steps > 500) | (random.random(size) < 0.3), np.inf, steps)

    ours, theirs = (np.quantile(draw(400_000, s), 1 - 0.5 ** (1 / k), method="inverted_cdf") for s in (shift, 0.0))
    truth, covered, repetitions = credit(ours / theirs), 0, 60
    for _ in range(repetitions):
        summaries = []
        for _ in range(studies):
            pools = {"0": draw(n, shift)} | {str(i): draw(n, 0.0) for i in range(1, optimizers)}
            summaries.append(ratio_bounds(pools, k, first=50)["0"])
        low, high = (np.mean([credit(getattr(ratio, end)) for ratio in summaries]) for end in ("high", "low"))
        covered += low - 1e-9 <= truth <= high + 1e-9
    assert covered >= 0.85 * repetitions


# ---------------------------------------------------------------------------- ranks


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5), st.integers(0, 4))
def test_possible_ranks_are_those_of_all_orders_that_agree_with_the_separated_pairs(medians, gap):
    named = {str(i): float(median) for i, median in enumerate(medians)}
    pairs = [(a, b) for a in named for b in named if named[a] + gap < named[b]]
    orders = [
        order
        for order in itertools.permutations(named)
        if all(order.index(better) < order.index(worse) for better, worse in pairs)
    ]
    for name, bounds in rank_bounds(named, pairs).items():
        places = [1 + order.index(name) for order in orders]
        assert (bounds.low, bounds.high) == (min(places), max(places))
        assert bounds.value == 1 + sum(median < named[name] for median in medians)


def test_pairs_are_corrected_over_all_studies():
    random = np.random.default_rng(3)
    studies = [
        Contest.of({name: random.normal(shift, 1, 20) for name, shift in zip("abc", (0, 0.7 * i, 1.4), strict=True)}, 4)
        for i in range(3)
    ]
    alone = []  # uncorrected p-values: a study of two optimizers has a single pair
    for i, study in enumerate(studies):
        for ours, theirs in itertools.combinations(study.pools, 2):
            (test,) = compare_pairs({name: study.pools[name] for name in (ours, theirs)}, study.k)
            alone.append((i, test))
    corrected = holm([test.p_value for _, test in alone])
    expected: list[list[tuple[str, str]]] = [[], [], []]
    for (i, test), p in zip(alone, corrected, strict=True):
        if p < 0.05:
            expected[i].append((test.better, test.worse))
    assert separated_pairs(studies) == expected
    assert any(expected)
    assert len(alone) > sum(map(len, expected))


def test_many_pairs_can_still_be_separated():
    """Of 136 pairs: the permutations are enough for a p-value that survives the correction."""
    pools = {"best": np.linspace(0, 1, 10)} | {str(i): np.linspace(2, 3, 10) for i in range(16)}
    (pairs,) = separated_pairs([Contest.of(pools, 2)])
    assert pairs == [("best", str(i)) for i in range(16)]


def test_a_study_whose_trials_are_not_independent_is_not_tested_and_does_not_cost_the_others():
    pools = {name: np.linspace(0, 1, 10) + shift for name, shift in (("a", 0.0), ("b", 0.35), ("c", 2.0))}
    alone = separated_pairs([Contest.of(pools, 2)])
    assert ("a", "c") in alone[0]
    adaptive = Contest.of({str(i): np.linspace(i, i + 1, 10) for i in range(16)}, 2, independent=False)
    assert separated_pairs([Contest.of(pools, 2), adaptive]) == [*alone, []]


def test_equal_optimizers_are_seldom_separated():
    random, false = np.random.default_rng(0), 0
    for _ in range(25):
        equal = [Contest.of({name: random.normal(size=10) for name in "abc"}, 2) for _ in range(2)]
        false += any(separated_pairs(equal))
    assert false <= 5  # of 25 with a chance of 5% each: P(more) = 0.1%


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3))
def test_the_mean_rank_in_repetitions_equals_all_combinations(weights):
    chances = [np.array(row) / sum(row) for row in weights]
    values, probabilities = [], []
    for ranks in itertools.product(*(range(len(row)) for row in chances)):
        values.append(1 + sum(ranks) / len(chances))
        probabilities.append(math.prod(row[rank] for row, rank in zip(chances, ranks, strict=True)))
    luck = mean_in_repetitions([list(row) for row in chances])
    assert luck.mean == pytest.approx(np.average(values, weights=probabilities))
    order = np.argsort(values, kind="stable")
    cumulated = np.cumsum(np.array(probabilities)[order])
    for end, share in ((luck.low, 0.05), (luck.high, 0.95)):
        below = cumulated[np.array(values)[order] <= end + 1e-9][-1]
        assert below >= share - 1e-9


# ---------------------------------------------------------------------------- several studies

TARGET, K, POOL, EVALUATIONS, INTERVAL = 1.0, 2, 10, 4, 2
NESTEROV = MOMENTUM | {"rule": "nesterov"}


def trials(reached: int | None, final: float, count: int = POOL) -> list[dict[str, list[float]]]:
    """Return equal trials that reach the target at an evaluation, or never, and end at a value."""
    curve = [9.0] * EVALUATIONS
    curve[(reached or EVALUATIONS) - 1 :] = [final] * (EVALUATIONS + 1 - (reached or EVALUATIONS))
    return [{"train_loss": curve}] * count


def study_of(name: str, optimizers: Sequence[str], seed: int, **changes: Any) -> lf.Study:
    rules = {"a": SGD, "b": MOMENTUM, "c": NESTEROV, "constructor": NESTEROV}
    settings = {"steps": EVALUATIONS * INTERVAL, "eval_interval": INTERVAL, "trials": K, "pool": POOL, "seed": seed}
    target = {"metric": "train_loss", "value": TARGET}
    return make_study({key: rules[key] for key in optimizers}, **settings | {"name": name, "target": target} | changes)


@pytest.fixture(scope="module")
def studies(made) -> list[lf.Comparison]:
    """Two studies with a target, one without c; one without a target; and one whose target nobody reaches."""
    first = study_of("first", "abc", 1)
    second = study_of("second", "ab", 2)
    free = study_of("free", "abc", 3).model_copy(update={"target": None})
    hard = study_of("hard", "abc", 4, target={"metric": "train_loss", "value": 0.01})
    finals = {"a": trials(1, 0.5), "b": trials(2, 0.4)}
    return [
        made(first, finals | {"c": trials(None, 3.0)}),
        made(second, {"a": trials(3, 0.3), "b": trials(1, 0.6)}),
        made(free, finals | {"c": trials(1, 0.2)}),
        made(hard, finals | {"c": trials(1, 0.5)}),
    ]


@pytest.fixture(scope="module")
def summary(studies) -> lf.Summary:
    return lf.summary(studies)


def rows_of(summary: lf.Summary) -> dict[str, dict[str, Any]]:
    return {row["optimizer"]: row for row in summary.as_dict()["optimizers"]}


def test_ratios_and_scores_by_hand(summary):
    rows = rows_of(summary)
    assert {name: row["score"] for name, row in rows.items()} == pytest.approx({"a": 2 / 3, "b": 5 / 6, "c": 0})
    assert rows["a"]["geometric_mean_ratio"] == pytest.approx(math.sqrt(3))
    assert rows["b"]["geometric_mean_ratio"] == pytest.approx(math.sqrt(2))
    assert math.isnan(rows["c"]["geometric_mean_ratio"])
    assert [(row["worst_ratio"], row["worst_study"]) for row in rows.values()] == [
        (2.0, "first"),
        (3.0, "second"),
        (math.inf, "first"),
    ]
    assert rows["a"]["reached"] == ["first", "second"]
    assert rows["c"]["missed"] == ["first"]
    assert {row["counted"] for row in rows.values()} == {2}
    assert [summary.profile("a", tau) for tau in (1, 2.9, 3)] == [0.5, 0.5, 1.0]
    assert summary.profile("c", 4) == 0


def test_ranks_by_hand(summary):
    rows = rows_of(summary)
    assert list(rows) == ["b", "a", "c"]  # complete ones first
    ranks = {"a": [2, 1, 3, 2], "b": [1, 2, 2, 1], "c": [3, 1, 2]}  # c is not in the second study
    for name, row in rows.items():
        assert row["mean_rank"] == pytest.approx(np.mean(ranks[name]))
        assert row["rank_in_repetitions"] == pytest.approx(np.mean(ranks[name]))  # equal trials leave no luck
    # Ten equal trials each tell all optimizers apart, except the equal ones in the last study.
    assert [len(study["separated"]) for study in summary.as_dict()["studies"]] == [3, 1, 3, 2]
    last = summary.as_dict()["studies"][3]["optimizers"]
    assert {name: (place["rank"]["low"], place["rank"]["high"]) for name, place in last.items()} == {
        "a": (2, 3),
        "b": (1, 1),
        "c": (2, 3),
    }
    assert rows["c"]["mean_rank_high"] == pytest.approx((3 + 1 + 3) / 3)


def test_a_study_whose_points_a_tuner_chose_claims_nothing(studies, made):
    first = studies[0]
    study = first.study.replace(name="tuned", search="imported", sampling="adaptive")
    tuned = made(study, {"a": trials(1, 0.5), "b": trials(2, 0.4), "c": trials(None, 3.0)})
    summary = lf.summary([first, tuned])
    fair, open_ = summary.as_dict()["studies"]
    assert (len(fair["separated"]), open_["separated"]) == (3, [])
    assert {(place["rank"]["low"], place["rank"]["high"]) for place in open_["optimizers"].values()} == {(1, 3)}
    for name, place in open_["optimizers"].items():
        assert place["ratio"]["value"] == fair["optimizers"][name]["ratio"]["value"]
        assert (place["ratio"]["low"], place["ratio"]["high"]) == (1, math.inf)
        assert place["steps"]["high"] == math.inf
    assert not any("The pool of tuned" in sentence for sentence in summary.sentences())
    assert "∞" not in "\n".join(summary.sentences())
    assert (
        "a takes the fewest steps in every study; "
        "the 90% confidence intervals do not bound how many times the fewest it may take."
    ) in summary.sentences()
    assert tuned.win_rate("a", "b") == Chance(0.0, 0.0, 1.0)


def test_what_is_missing_is_said(summary):
    text = "\n".join(summary.sentences())
    assert "3 optimizers, matched by name, in first (K = 2), second (K = 2), free (K = 2), and hard (K = 2)." in text
    assert "b has the best mean rank: 1.5" in text
    assert "b has the highest score for steps to target, from 0 to 1: 0.83" in text
    assert "b never takes more than 2 times the fewest steps (up to " in text
    assert "c misses the target in first, in more than half of the repetitions." in text
    assert "c is not in second." in text
    assert "A mean rank leaves out a study that an optimizer is missing in, and a score counts it as a miss." in text
    assert "free has no target, so only its ranks count." in text
    assert "No optimizer reaches the target of hard in at least half of the repetitions" in text
    assert "share a workload, quadratic, and count separately" in text


def test_the_table_is_a_data_frame(summary):
    table = summary.table()
    assert isinstance(table, polars.DataFrame)
    assert table["optimizer"].to_list() == ["b", "a", "c"]
    assert table["missing"].to_list() == ["", "", "second"]


def test_an_unknown_optimizer_has_no_profile(summary):
    with pytest.raises(UnknownName, match="unknown optimizer 'd' of these studies"):
        summary.profile("d", 2)


def test_each_optimizer_needs_k_trials(studies, made):
    few = made(study_of("few", "abc", 5), {"a": trials(1, 0.5), "b": trials(2, 0.4), "c": trials(1, 0.1, count=1)})
    summary = lf.summary([studies[0], few])
    assert rows_of(summary)["c"]["missing"] == ["few"]
    assert "c has too few feasible trials in few." in summary.sentences()
    at_one = lf.summary([studies[0], few], k=1)
    assert rows_of(at_one)["c"]["missing"] == []
    assert [study["k"] for study in at_one.as_dict()["studies"]] == [1, 1]
    assert any("few is incomplete: c (1 of 10)" in sentence for sentence in at_one.sentences())
    with pytest.raises(UsageError, match="first: no optimizer has 11 feasible trials yet"):
        lf.summary([studies[0], few], k=11)


def test_shared_places_are_told_together(made):
    pools = {"a": trials(1, 0.5), "b": trials(1, 0.5)}
    summary = lf.summary([made(study_of(name, "ab", seed), pools) for seed, name in enumerate(["first", "second"])])
    sentences = summary.sentences()
    assert "a and b share the best mean rank: 1." in sentences
    assert "The trials do not separate any two optimizers in any study, so any order is possible." in sentences
    assert "a and b share the highest score for steps to target, from 0 to 1: 1." in sentences
    assert "a and b take the fewest steps in every study." in sentences


def test_optimizers_of_different_studies_are_not_ranked_against_each_other(made):
    first = made(study_of("first", "ab", 1), {"a": trials(1, 0.5), "b": trials(None, 3.0)})
    second = made(study_of("second", "c", 2), {"c": trials(1, 0.5)})
    sentences = lf.summary([first, second]).sentences()
    assert "No optimizer is in all studies, so mean ranks are not comparable." in sentences
    assert not any("best mean rank" in sentence for sentence in sentences)
    assert "No optimizer reaches the target in all studies that have one." in sentences


def test_a_small_pool_is_pointed_out(studies, made):
    small = made(study_of("small", "ab", 6, trials=4), {"a": trials(1, 0.5), "b": trials(2, 0.4)})
    sentences = lf.summary([studies[0], small]).sentences()
    assert "The pool of small is smaller than 4.3 × K, so intervals are wide." in sentences


def test_one_name_for_two_rules_is_pointed_out(studies, made):
    other = make_study({"a": MOMENTUM, "b": MOMENTUM}, name="other", trials=K, pool=POOL, steps=8)
    same_names = made(other, {"a": trials(1, 0.5), "b": trials(1, 0.4)})
    summary = lf.summary([studies[0], same_names])
    assert "Caution: a is not the same rule everywhere: sgd in first and momentum in other." in summary.sentences()


def test_without_any_target_only_ranks_are_compared(studies, made, tmp_path):
    free = studies[2].study.replace(name="free too", seed=9).model_copy(update={"target": None})
    summary = lf.summary([studies[2], made(free, {name: trials(1, 0.1 + i) for i, name in enumerate("abc")})])
    assert not any("score" in sentence for sentence in summary.sentences())
    assert math.isnan(rows_of(summary)["a"]["score"])
    assert math.isnan(summary.profile("a", 2))
    page = summary.write_report(tmp_path / "summary.html").read_text()
    assert "Performance profiles" not in page
    assert page.count("free too has no target") == 1


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ([], "a summary of no studies: expected at least two"),
        ([0], "a summary of 1 study: expected at least two"),
        ([0, 1, 0], "2 studies are called 'first': expected a different name for each"),
    ],
)
def test_invalid_summaries_are_refused(studies, chosen, message):
    with pytest.raises(UsageError, match=message):
        lf.summary([studies[i] for i in chosen])


def test_studies_are_read_from_a_store(studies, made, tmp_path):
    store = tmp_path / "trials.db"
    first, second = (comparison.study for comparison in studies[:2])
    made(first, {"a": trials(1, 0.5), "b": trials(2, 0.4), "c": trials(None, 3.0)}, store=store)
    made(second, {"a": trials(3, 0.3), "b": trials(1, 0.6)}, store=store)
    np.testing.assert_equal(lf.summary([first, second], store).as_dict(), lf.summary(studies[:2]).as_dict())


# ---------------------------------------------------------------------------- the command and the page


@pytest.fixture
def cli(command, made, tmp_path):
    """Run commands in a folder with two studies and their stores."""
    for study, pools in (
        (study_of("first", "abc", 1), {"a": trials(1, 0.5), "b": trials(2, 0.4), "c": trials(None, 3.0)}),
        (study_of("second", "ab", 2), {"a": trials(3, 0.3), "b": trials(1, 0.6)}),
    ):
        (tmp_path / f"{study.name}.toml").write_text(study.to_toml())
        folder = tmp_path / "levelfield-out" / study.name
        folder.mkdir(parents=True)
        made(study, pools, store=folder / "trials.db")
    (tmp_path / "untrained.toml").write_text(study_of("untrained", "ab", 3).to_toml())
    return command


def test_the_command_prints_a_table_and_sentences_and_writes_a_page(cli, tmp_path):
    code, out, err = cli("summary", "first.toml", "second.toml")
    assert (code, err) == (0, "")
    for words in (
        "Summary of first and second",
        "mean rank",
        "95% CI",
        "geometric mean",
        "missed",
        "not in second",
        "0.83",
    ):
        assert words in out
    assert out.endswith("report: levelfield-out/summary/summary.html\n")
    assert "vegaEmbed" in (tmp_path / "levelfield-out/summary/summary.html").read_text()


def test_the_command_prints_json(cli, tmp_path):
    code, out, _ = cli("summary", "first.toml", "second.toml", "--json", "--trials", "3", "--out", "here")
    assert code == 0
    printed = json.loads(out)
    assert [study["k"] for study in printed["studies"]] == [3, 3]
    rows = {row["optimizer"]: row for row in printed["optimizers"]}
    assert rows["b"]["score"] == pytest.approx(5 / 6)
    assert rows["c"]["worst_ratio"] is None  # infinite
    assert rows["c"]["missed"] == ["first"]
    assert printed["report"] == "here/summary-trials3.html"  # not the full studies' page
    assert printed["sentences"]


def test_a_dry_run_is_said_first(command, made, tmp_path):
    for seed, name in enumerate(["first", "second"]):
        study = study_of(name, "ab", seed, steps=80, trials=20, pool=100)
        (tmp_path / f"{name}.toml").write_text(study.to_toml())
        made(study.scaled(0.1), {"a": trials(1, 0.5), "b": trials(2, 0.4)}, store=tmp_path / "trials.db")
    code, out, err = command("summary", "first.toml", "second.toml", "--scale", "0.1", "--store", "trials.db")
    assert (code, err) == (0, "")
    assert out.startswith("first_0.1x: Scaled to 0.1 of the study's steps, trials, and pool: a dry run, not a result.")
    assert "report: levelfield-out/summary/summary-scale0.1.html" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["first.toml"], "first.toml: expected at least two studies; 'levelfield report' shows one"),
        (["first.toml", "missing.toml"], "missing.toml: no such file"),
        (["first.toml", "untrained.toml"], "levelfield-out/untrained/trials.db: no such store"),
        (
            ["first.toml", "untrained.toml", "--store", "levelfield-out/first/trials.db"],
            "untrained: the store has no trials of this study with these settings; 'levelfield run' trains them",
        ),
        (["first.toml", "second.toml", "--trials", "99"], "first: no optimizer has 99 feasible trials yet"),
        (["first.toml", "second.toml", "--trials", "0"], "--trials 0: expected an integer of at least 1"),
        (["first.toml", "first.toml"], "2 studies are called 'first'"),
    ],
)
def test_invalid_commands_say_what_to_do(cli, tmp_path, arguments, message):
    code, out, err = cli("summary", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("levelfield: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "levelfield-out/summary").exists()


def test_the_page_shows_the_table_and_draws_its_charts(summary, opened, tmp_path):
    page = opened(summary.write_report(tmp_path / "summary.html"))
    page.evaluate(SETTLED)
    assert page.locator(".chart svg").count() == 3
    assert [text.strip() for text in page.locator("#summary-table tbody th .main").all_inner_texts()] == ["b", "a", "c"]
    assert page.locator(".answer p").all_inner_texts() == summary.sentences()
    ratios = page.locator("#ratios svg text").all_text_contents()
    assert {"missed", "3", "–"} <= set(ratios)
    page.locator("#summary-table thead button", has_text="score").click()
    assert page.locator("#summary-table tbody th .main").all_inner_texts() == ["c", "a", "b"]


def test_any_name_can_be_drawn(made, opened, tmp_path):
    names = ["constructor", "a"]
    comparisons = [
        made(study_of(name, names, seed), {"constructor": trials(1, 0.5), "a": trials(2, 0.4)})
        for seed, name in enumerate(["<script>alert(1)<\\script>", "__proto__"])
    ]
    page = opened(lf.summary(comparisons).write_report(tmp_path / "summary.html"))
    page.evaluate(SETTLED)
    drawn = page.locator("#ranks svg text").all_text_contents()
    assert {"constructor", "a", "__proto__"} <= set(drawn)


def test_a_narrow_page_does_not_scroll_sideways(summary, opened, tmp_path):
    page = opened(summary.write_report(tmp_path / "summary.html"), viewport={"width": 390, "height": 800})
    page.evaluate(SETTLED)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
