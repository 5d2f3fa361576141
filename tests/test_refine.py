"""From an initial search space to a final one: on invented trials, and once on trained ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from fakes import FormulaExecutor, Interrupted
from helpers import make_study

import levelfield as lf
from levelfield import refine
from levelfield.derive.refine import Refinement
from levelfield.errors import SearchExhausted, StudyError, UsageError
from levelfield.executors import get_executor
from levelfield.report.spaces import SpaceRow, space_tables
from levelfield.run import refine_in_rounds, run
from levelfield.search import Search

Loss = Callable[[str, Mapping[str, Any]], float]  # of an optimizer and its hyperparameters; infinity is infeasible

SCHEDULE = {"kind": "linear", "decay_steps": {"uniform": [0.5, 1.0]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}
SGD = {"learning_rate": {"log": [1e-4, 1e-2]}}
MOMENTUM = {"learning_rate": {"log": [1e-4, 1e-2]}, "one_minus_momentum": {"log": [1e-2, 1e0]}}
POOL = 24


def study_of(optimizers: Mapping[str, Any] | None = None, **changes: Any) -> lf.Study:
    content = {
        "name": "mine",
        "trials": 8,
        "pool": POOL,
        "schedule": SCHEDULE,
        "target": {"metric": "train_loss", "value": 0.5},
    }
    return make_study(optimizers or {"sgd": SGD, "momentum": MOMENTUM}, **content | changes)


def rate_at(centers: Mapping[str, float], floor: float = 0.0) -> Loss:
    """Return the distance of the rate from an optimizer's best rate, in decades."""
    return lambda name, at: max(abs(math.log10(at["learning_rate"]) - centers[name]) - floor, 0.0)


# momentum's rate is far too low; all rates of sgd are equally good.
BEYOND = rate_at({"sgd": -3.0, "momentum": 0.5}, floor=0.7)


def formula(loss: Loss, noise: float = 1e-3) -> FormulaExecutor:
    """Return an executor whose trials end at this loss plus some noise from their seeds."""
    return FormulaExecutor(lambda name, point: loss(name, point.hyperparameters) + noise * (point.seed % 1000) / 1000)


def searched(study: lf.Study, store: lf.Store, loss: Loss) -> lf.Comparison:
    """Run a study with this loss and return its comparison."""
    run(study, store, formula(loss))
    return lf.Comparison.load(study, store)


# One refinement


def test_only_ranges_with_a_proposal_are_changed(store):
    study = study_of()
    before = study.spec()
    refinement = refine(searched(study, store, BEYOND))
    assert study.spec() == before
    (change,) = refinement.changes
    assert repr(refinement) == f"<Refinement of mine: [<{change}>]>"
    assert (change.optimizer, change.axis.key, change.place) == ("momentum", "learning_rate", "at the upper border")
    after = refinement.study.spec()
    assert after.pop("name") == "mine_refined"
    assert len(after.pop("refined")) == 1
    assert after["optimizers"]["momentum"].pop("learning_rate") == change.proposal.spec()
    assert change.proposal.high >= 10**0.5 * 0.1  # toward the optimum
    before.pop("name")
    before["optimizers"]["momentum"].pop("learning_rate")
    assert after == before
    assert refinement.study.identity("sgd") == study.identity("sgd")  # its trials are kept
    assert refinement.study.identity("momentum") != study.identity("momentum")


def test_the_log_records_what_was_changed_and_why(store):
    def loss(name: str, at: Mapping[str, Any]) -> float:
        return math.inf if at["decay_steps"] < 0.6 else BEYOND(name, at)

    comparison = searched(study_of(), store, loss)
    (entry,) = refine(comparison, "final").study.refined
    assert (entry.study, entry.optimizer, entry.axis) == ("mine", "momentum", "learning_rate")
    assert entry.before == {"log": [1e-4, 1e-2]}
    assert entry.after == refine(comparison).changes[0].proposal.spec()
    assert entry.verdict == "at the upper border"
    assert entry.trials == len(comparison.trials["momentum"]) > POOL  # including infeasible trials
    assert refine(comparison, "final").study.name == "final"


def test_a_refined_study_is_a_study_file(store, tmp_path):
    """It can be written, and loading it gives the same study."""

    def loss(name: str, at: Mapping[str, Any]) -> float:
        return BEYOND(name, at) + 3 * (name == "sgd") * (1 - at["decay_steps"])  # also a range of sgd's schedule

    refined = refine(searched(study_of(), store, loss)).study
    assert {(change.optimizer, change.axis) for change in refined.refined} == {
        ("momentum", "learning_rate"),
        ("sgd", "decay_steps"),
    }
    assert refined.optimizer("sgd").space.spec()["decay_steps"]["uniform"][1] > 1
    assert refined.optimizer("momentum").space.spec()["decay_steps"] == SCHEDULE["decay_steps"]
    (tmp_path / "other.toml").write_text(refined.to_toml(), "utf-8")
    again = lf.load_study(tmp_path / "other.toml")
    assert again.spec() == refined.spec()
    assert again.refined == refined.refined
    assert again.to_toml() == refined.to_toml()
    for name in refined.optimizers:
        assert again.identity(name) == refined.identity(name)


def test_refining_a_refined_study_extends_its_log(store):
    study, names = study_of(), []
    loss = rate_at({"sgd": -3.0, "momentum": 4.2}, floor=0.7)  # too far away for one round
    for _ in range(3):
        study = refine(searched(study, store, loss)).study
        names.append(study.name)
    assert names == ["mine_refined", "mine_refined2", "mine_refined3"]
    assert [change.study for change in study.refined] == ["mine", "mine_refined", "mine_refined2"]
    steps = [(change.before, change.after) for change in study.refined]
    assert [before for before, _ in steps[1:]] == [after for _, after in steps[:-1]]
    assert lf.Study(**study.spec()).refined == study.refined


SAME = formula(lambda name, at: 1.0, noise=0.0)


def test_if_all_ranges_can_stay_so_does_the_study(store):
    study = study_of()
    run(study, store, SAME)
    refinement = refine(lf.Comparison.load(study, store))
    assert refinement.changes == []
    assert refinement.study is study


def test_a_replaced_range_loses_its_correction_note(store):
    corrected = {"corrected": {"learning_rate": "printed as 1e-2", "one_minus_momentum": "printed as 1e1"}}
    study = study_of(optimizers={"sgd": SGD, "momentum": MOMENTUM | corrected})
    refined = refine(searched(study, store, BEYOND)).study
    assert refined.optimizer("momentum").corrected == {"one_minus_momentum": "printed as 1e1"}
    assert len(study.optimizer("momentum").corrected) == 2


def test_a_whole_grid_stays_whole(store):
    """Otherwise the added points, which come last in the grid, would never be tried."""
    choices = {"learning_rate": {"choice": [0.1 * i for i in range(1, 7)]}}
    momenta = {"one_minus_momentum": {"choice": [0.05, 0.1, 0.2, 0.3, 0.4, 0.5]}}
    content = {"search": "grid", "pool": 36, "trials": 8, "schedule": {"kind": "constant"}}
    study = study_of(**content, optimizers={"momentum": choices | momenta})
    refinement = refine(searched(study, store, lambda name, at: -at["learning_rate"] + abs(at["momentum"] - 0.75)))
    assert [change.axis.key for change in refinement.changes] == ["learning_rate"]
    assert refinement.study.pool == refinement.study.optimizer("momentum").space.size == 42


def test_a_grid_that_is_narrowed_has_a_smaller_pool(store):
    content = {"search": "grid", "pool": 40, "trials": 20, "schedule": {"kind": "constant"}}
    study = study_of(**content, optimizers={"sgd": {"learning_rate": {"integer": [1, 40]}}})
    refined = refine(searched(study, store, lambda name, at: abs(at["learning_rate"] - 20.0))).study
    assert refined.pool == refined.optimizer("sgd").space.size < 40
    assert refined.trials <= refined.pool


def test_a_grid_is_refined_with_longer_choices(store):
    rates = {"choice": [1e-4, 1e-3, 1e-2]}
    factors = {"kind": "linear", "decay_steps": 1.0, "decay_factor": {"choice": [0.0, 0.1, 0.2, 0.3]}}
    study = study_of(search="grid", pool=12, trials=4, schedule=factors, optimizers={"sgd": {"learning_rate": rates}})
    refined = refine(searched(study, store, rate_at({"sgd": 1.0}))).study
    assert refined.optimizer("sgd").space.spec()["learning_rate"] == {"choice": [1e-4, 1e-3, 1e-2, 1e-1]}
    assert refined.search == "grid"


# Refusals


def test_an_unfinished_pool_is_not_refined(store):
    small, study = study_of(pool=10), study_of()
    searched(small, store, BEYOND)
    with pytest.raises(
        UsageError, match=rf"^sgd: its pool has 10 of {POOL} feasible trials \(10 tried\); run the study"
    ):
        refine(lf.Comparison.load(study, store))
    run(study.only(["sgd"]), store, formula(BEYOND))
    with pytest.raises(UsageError, match=rf"^momentum: its pool has 10 of {POOL} feasible trials"):
        refine(lf.Comparison.load(study, store))


def test_a_pool_without_feasible_trials_is_not_refined(store):
    study = study_of()
    shortage = run(study, store, formula(lambda name, at: math.inf if name == "momentum" else 1.0))
    assert isinstance(shortage, SearchExhausted)
    with pytest.raises(UsageError, match=r"^momentum: all 24 trials are infeasible.*lower its learning rates"):
        refine(lf.Comparison.load(study, store))


def test_a_pool_that_is_too_small_to_judge_by_is_not_refined(store):
    """Otherwise all ranges would seem fine."""
    with pytest.raises(UsageError, match=r"^pool = 4: expected at least 5 trials to judge ranges by; raise pool"):
        refine(searched(study_of(pool=4, trials=2), store, BEYOND))


def test_an_invalid_log_is_refused():
    good = {"study": "a", "optimizer": "sgd", "axis": "x", "before": 1, "after": 2, "verdict": "flat", "trials": 3}
    assert study_of(refined=[good]).refined[0].trials == 3
    for bad in ({**good, "trials": -1}, {**good, "who": "me"}, {"study": "a"}):
        with pytest.raises(StudyError, match="refined"):
            study_of(refined=[bad])


# Rounds

FAR = {"sgd": -3.0, "momentum": 3.3}


def final_rate(refinement: Refinement, name: str = "momentum") -> tuple[float, float]:
    low, high = refinement.study.optimizer(name).space.spec()["learning_rate"]["log"]
    return math.log10(low), math.log10(high)


def test_rounds_converge_to_the_optimum(store):
    """The optimum is five decades away at first."""
    *_, last = refine_in_rounds(study_of(), 6, store, formula(rate_at(FAR, floor=0.5)))
    low, high = final_rate(last)
    assert low < FAR["momentum"] + 0.5
    assert FAR["momentum"] - 0.5 < high
    assert high - low <= 4
    first, final = (lf.Comparison.load(study, store).outcome("momentum").best(8) for study in (study_of(), last.study))
    assert first.mean > 4.5
    assert final.mean < 0.3
    assert last.study.optimizer("sgd") == study_of().optimizer("sgd")  # its rates were good


def test_ranges_that_make_up_for_each_other_move_together(store):
    """Only the product of rate and 1 − momentum matters, and one axis alone cannot reach a good one."""

    def loss(name: str, at: Mapping[str, Any]) -> float:
        return abs(math.log10(at["learning_rate"] / (1 - at["momentum"])) - 4.0)

    study = study_of({"momentum": MOMENTUM | {"one_minus_momentum": {"log": [1e-1, 1e0]}}})
    *_, last = refine_in_rounds(study, 4, store, formula(loss))
    assert last.results.outcome("momentum").best(8).mean < 0.3


def test_a_space_whose_trials_all_diverge_recovers(store):
    def loss(name: str, at: Mapping[str, Any]) -> float:
        rate = math.log10(at["learning_rate"])
        return math.inf if rate > -4.2 else abs(rate + 5)

    *_, last = refine_in_rounds(study_of({"sgd": SGD}), 4, store, formula(loss))
    assert last.results.complete
    assert last.results.outcome("sgd").best(8).mean < 0.3


def test_rounds_end_when_nothing_better_is_found(store):
    *earlier, last = refine_in_rounds(study_of(), 50, store, formula(rate_at(FAR, floor=0.5)))
    assert 3 <= len(earlier) < 10
    assert last.changes == []
    assert last.study is last.results.study
    assert last.results.complete
    with lf.Store.open("sqlite://") as other:
        *earlier, last = refine_in_rounds(study_of(), 50, other, SAME)
    assert len(earlier) == 2
    assert last.study.name == "mine"


def test_noise_alone_rarely_changes_a_range():
    """12 searches in which no hyperparameter matters, as in a space that is good already."""
    changed = 0
    for seed in range(6):
        with lf.Store.open("sqlite://") as store:
            study = study_of(seed=seed)
            *_, last = refine_in_rounds(study, 4, store, formula(lambda name, at: 1.0, noise=1.0))
            changed += len({(change.optimizer, change.axis) for change in last.study.refined})
    axes = 6 * (3 + 4)
    assert changed <= 0.05 * axes


@pytest.mark.parametrize("most", [1, 2])
def test_there_are_no_more_rounds_than_asked_for(store, most):
    """The last study is searched but not refined again."""
    refinements = list(refine_in_rounds(study_of(), most, store, formula(rate_at(FAR))))
    assert len(refinements) == most + 1
    assert [refinement.results.study.name for refinement in refinements] == ["mine", "mine_refined", "mine_refined2"][
        : most + 1
    ]
    last = refinements[-1]
    assert last.study is last.results.study is refinements[-2].study
    assert last.results.complete
    assert len({change.study for change in last.study.refined}) == most


def test_the_log_of_rounds_says_what_was_tried_and_what_it_gave(store):
    first, *_ = refine_in_rounds(study_of(), 1, store, formula(rate_at(FAR, floor=0.7)))
    attempts = {attempt.optimizer: attempt for attempt in first.attempts}
    assert not attempts["sgd"].kept
    kept = attempts["momentum"]
    assert kept.kept
    assert kept.outside == POOL
    assert kept.p_value < 0.01
    assert kept.after.median < kept.before.median
    assert str(kept).startswith("momentum: changed to learning_rate = log [")
    assert "after 24 trials up to 2 decades beyond the ranges." in str(kept)
    entries = [entry for entry in first.study.refined if entry.axis == "learning_rate"]
    (entry,) = entries
    assert entry.outside == {"log": [1e-6, 1.0]}
    assert (entry.trials, entry.outside_trials) == (3 * POOL, POOL)
    assert entry.evidence == kept.outcome
    assert lf.Study(**first.study.spec()).refined == first.study.refined
    assert kept.as_dict()["ranges"]["learning_rate"] == entry.after


def test_ranges_that_are_no_better_are_not_kept(store):
    """Outside, a few trials look good by luck."""
    loss = rate_at({"sgd": -3.0, "momentum": -3.0}, floor=1.0)
    for refinement in refine_in_rounds(study_of(), 3, store, formula(loss, noise=2.0)):
        for attempt in refinement.attempts:
            assert attempt.kept == (attempt.optimizer in {change.optimizer for change in refinement.changes})
            if attempt.ranges and not attempt.kept:
                assert attempt.p_value >= 0.15
                assert "tried, but not kept" in str(attempt)


def test_rounds_train_only_what_is_new(store):
    executor = formula(rate_at(FAR, floor=0.7))
    first = list(refine_in_rounds(study_of(), 2, store, executor))
    assert len(set(executor.trained)) == len(executor.trained)
    assert len(executor.trained) % POOL == 0
    assert len(executor.trained) >= 8 * POOL  # momentum: three spaces and two wider ones; sgd: one and two
    again = formula(rate_at(FAR, floor=0.7))
    second = list(refine_in_rounds(study_of(), 2, store, again))
    assert again.trained == []
    assert [refinement.study.spec() for refinement in second] == [refinement.study.spec() for refinement in first]


@pytest.mark.parametrize("stretches", [30, 100, 170])
def test_an_interrupted_refinement_takes_the_same_path(store, stretches):
    loss = rate_at(FAR, floor=0.7)
    expected = [refinement.study.spec() for refinement in refine_in_rounds(study_of(), 2, store, formula(loss))]
    with lf.Store.open("sqlite://") as other:
        executor = formula(loss)
        executor.stretches = stretches
        with pytest.raises(Interrupted):
            list(refine_in_rounds(study_of(), 2, other, executor))
        assert executor.trained
        resumed = refine_in_rounds(study_of(), 2, other, formula(loss))
        assert [refinement.study.spec() for refinement in resumed] == expected


def test_rounds_come_one_at_a_time(store):
    """This way, results can be shown early and an interruption loses nothing."""
    executor = formula(rate_at(FAR, floor=0.7))
    refinements = refine_in_rounds(study_of(), 3, store, executor)
    assert isinstance(next(refinements), Refinement)
    first = len(executor.trained)
    assert 5 * POOL <= first <= 6 * POOL  # both spaces, both wider ones, and momentum's new ranges, maybe sgd's
    next(refinements)
    assert len(executor.trained) > first


def test_a_grid_is_refined_in_rounds_by_its_ends(store):
    rates = {"choice": [1e-4, 1e-3, 1e-2]}
    factors = {"kind": "linear", "decay_steps": 1.0, "decay_factor": {"choice": [0.0, 0.1, 0.2, 0.3]}}
    study = study_of(search="grid", pool=12, trials=4, schedule=factors, optimizers={"sgd": {"learning_rate": rates}})
    *_, last = refine_in_rounds(study, 3, store, formula(rate_at({"sgd": 1.0})))
    assert max(last.study.optimizer("sgd").space.spec()["learning_rate"]["choice"]) >= 1e0
    assert last.study.search == "grid"


def test_invalid_rounds_are_refused(store):
    with pytest.raises(UsageError, match="rounds = 0: expected an integer of at least 1"):
        list(refine_in_rounds(study_of(), 0, store, formula(BEYOND)))
    with pytest.raises(SearchExhausted, match="momentum: none of 24 trials is feasible"):
        list(refine_in_rounds(study_of(), 1, store, formula(lambda name, at: math.inf if name == "momentum" else 1.0)))


# In the report


def space_rows(study: lf.Study) -> dict[tuple[str, str], SpaceRow]:
    return {(table.optimizer, row.hyperparameter): row for table in space_tables(study) for row in table.rows}


def test_the_report_shows_initial_and_final_ranges(store, tmp_path):
    *_, last = refine_in_rounds(study_of(), 2, store, formula(rate_at(FAR, floor=0.7)))
    rows = space_rows(last.study)
    rate = rows["momentum", "learning_rate"]
    assert rate.initial == "log [1e-04, 0.01]"  # the range of the first of three studies
    low, high = last.study.optimizer("momentum").space.spec()["learning_rate"]["log"]
    assert low > 1e-4
    assert rate.range == f"log [{low:g}, {high:g}]"
    changed = {(change.optimizer, change.axis) for change in last.study.refined}
    assert len(rows) > len(changed)
    for key, row in rows.items():
        assert (row.initial == row.range) == (key not in changed)
    page = lf.Comparison(last.results).write_report(tmp_path / "report.html").read_text("utf-8")
    assert rate.initial in page
    assert rate.range in page
    assert {row.initial for row in space_rows(study_of()).values()} == {""}


# The command

FILE = """
workload = "quadratic"
steps = 40
eval_interval = 20
trials = 4
pool = 10

[optimizers.sgd]
learning_rate = { log = [1e-5, 1e-3] }
"""


@pytest.fixture
def command(command, made):
    """Run a command on a study with a full pool, in which higher rates are better."""
    Path("mine.toml").write_text(FILE)
    study = lf.load_study("mine.toml")
    rates = [Search(study, "sgd").point(index).hyperparameters["learning_rate"] for index in range(10)]
    pools = {"sgd": [{"train_loss": [9.0, -math.log10(rate)]} for rate in rates]}
    Path("levelfield-out/mine").mkdir(parents=True)
    made(study, pools, store="levelfield-out/mine/trials.db")
    return command


def test_refine_writes_a_new_study_and_keeps_the_old_one(command):
    code, out, _ = command("refine", "mine.toml")
    assert code == 0
    assert "sgd: learning_rate: good trials at the upper border of log [1e-05, 0.001] (" in out
    assert "levelfield compare mine_refined.toml" in out
    assert Path("mine.toml").read_text() == FILE
    study = lf.load_study("mine_refined.toml")
    low, high = study.optimizer("sgd").space.spec()["learning_rate"]["log"]
    assert (low >= 1e-5, high) == (True, 0.1)
    assert study.refined[0].study == "mine"


def test_refine_as_json_writes_the_same(command):
    code, out, _ = command("refine", "mine.toml", "--json", "-o", "final.toml")
    assert code == 0
    printed = json.loads(out)
    assert printed["file"] == "final.toml"
    assert printed["study"] == "mine_refined"
    (only,) = printed["rounds"]
    (rate,) = only["boundaries"]
    assert rate["verdict"] == "at the upper border"
    study = lf.load_study("final.toml")
    assert study.optimizer("sgd").space.spec()["learning_rate"] == rate["proposal"]


@pytest.mark.parametrize("extra", [[], ["--json"]], ids=["words", "json"])
def test_an_existing_file_is_never_overwritten(command, extra):
    Path("mine_refined.toml").write_text("precious")
    for arguments in (["-o", "mine_refined.toml"], ["-o", "mine.toml"], []):
        code, _, err = command("refine", "mine.toml", *arguments, *extra)
        assert code == 2
        assert "exists" in err
        assert len(err.strip().splitlines()) == 1
    assert Path("mine_refined.toml").read_text() == "precious"
    assert Path("mine.toml").read_text() == FILE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["mine.toml", "--pool", "12"], "sgd: its pool has 10 of 12 feasible trials (10 tried)"),
        (["mine.toml", "--pool", "4"], "expected at least 5 trials"),
        (["mine.toml", "--rounds", "0"], "--rounds"),
        (["mine.toml", "--rounds", "many"], "--rounds"),
        (["mine.toml", "-o", "nowhere/final.toml"], "nowhere"),
        (["mine.toml", "--out", "elsewhere"], "no such store"),
    ],
    ids=str,
)
def test_invalid_refinements_are_refused_in_one_line(command, tmp_path, arguments, words):
    before = set(tmp_path.rglob("*"))
    code, _, err = command("refine", *arguments)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1, err
    assert set(tmp_path.rglob("*")) == before


def test_an_invalid_number_of_rounds_opens_no_store(command, tmp_path):
    assert command("refine", "mine.toml", "--rounds", "0", "--out", "elsewhere")[0] == 2
    assert not (tmp_path / "elsewhere").exists()


def test_if_all_ranges_can_stay_nothing_is_written(command, made, tmp_path):
    study = lf.load_study("mine.toml")
    made(study, {"sgd": [{"train_loss": [9.0, 1.0]}] * 10}, store="flat.db")
    code, out, _ = command("refine", "mine.toml", "--store", "flat.db")
    assert code == 0
    assert "sgd: learning_rate: flat" in out
    assert "All ranges can stay" in out
    code, out, _ = command("refine", "mine.toml", "--store", "flat.db", "--json")
    assert json.loads(out)["file"] is None
    assert [path.name for path in tmp_path.glob("*.toml")] == ["mine.toml"]


def test_a_space_in_which_everything_diverges_is_left_by_the_next_round(command):
    Path("high.toml").write_text(FILE.replace("[1e-5, 1e-3]", "[1e3, 1e5]"))
    code, out, err = command("refine", "high.toml", "--rounds", "1", "--store", "high.db")
    assert (code, "All ranges can stay" in out) == (1, False), err
    assert "sgd: 10 trials up to 2 decades beyond the ranges gave nothing to try." in out
    assert "sgd: none of 20 trials is feasible" in err
    code, out, err = command("refine", "high.toml", "--rounds", "4", "--store", "high.db", "-o", "lower.toml")
    assert (code, "wrote lower.toml" in out) == (0, True), err
    assert lf.load_study("lower.toml").optimizer("sgd").space.spec()["learning_rate"]["log"][0] < 10


def test_the_refine_command_with_rounds(command):
    """Train sgd on the quadratic, where the best rate is close to 1."""
    code, out, err = command("refine", "mine.toml", "--rounds", "3", "--out", "trained", "-o", "final.toml")
    assert code == 0, err
    headings = [line for line in out.splitlines() if line.endswith(":")]
    study = lf.load_study("final.toml")
    assert headings[0] == "round 1, mine:"
    assert len(headings) == 4
    assert study.refined[0].study == "mine"
    assert study.refined[0].outside["log"][1] > 1e-3
    assert study.optimizer("sgd").space.spec()["learning_rate"]["log"][1] >= 1
    again, out, err = command("refine", "mine.toml", "--rounds", "3", "--out", "trained", "-o", "again.toml", "--json")
    assert again == 0
    assert "nothing to run" in err
    assert len(json.loads(out)["rounds"]) == 4
    assert Path("again.toml").read_text() == Path("final.toml").read_text()


# Trained


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_refinement_recovers_from_bad_spaces(tmp_path, capsys):
    """With momentum's rate two decades too low and adam's ε too small, three rounds reach the good spaces' results."""
    good = lf.load_study("fashion_mini")
    tables = {name: good.optimizer(name).spec() for name in good.optimizers}
    tables["momentum"]["learning_rate"] = {"log": [1e-4, 1e-2]}
    tables["adam"]["epsilon"] = {"log": [1e-10, 1e-8]}
    bad = good.replace(name="bad", optimizers=tables)
    executor = get_executor("local", None)
    with lf.Store.open(tmp_path / "trials.db") as store:
        *_, last = refine_in_rounds(bad, 3, store, executor)
        run(good, store, executor)
        compared = {
            "bad": lf.Comparison.load(bad, store),
            "refined": last.results,
            "good": lf.Comparison.load(good, store),
        }
    with capsys.disabled():
        for name in good.optimizers:
            bests = (comparison.outcome(name).best(good.trials) for comparison in compared.values())
            print("", name, *(f"{100 * e.mean:.1f}% ({100 * e.low:.1f} – {100 * e.high:.1f})" for e in bests), sep="  ")
    for name in good.optimizers:
        ours, theirs = (compared[version].outcome(name).best(good.trials) for version in ("refined", "good"))
        assert ours.low <= theirs.high, name
    worse = compared["bad"].outcome("adam").best(good.trials)
    assert worse.low > compared["good"].outcome("adam").best(good.trials).high  # the bad space was much worse
