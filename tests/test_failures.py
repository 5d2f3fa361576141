"""Failed trials: kept with their reason, shown, tried again, and never counted."""

from __future__ import annotations

import html
import json
import re
import socket
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from databases import connected
from fakes import FormulaExecutor
from helpers import make_study
from test_store import DEFINITION, HERE, METRICS, count, trial_of

import levelfield as lf
from levelfield.errors import TrialFailed
from levelfield.executors.base import Take
from levelfield.reading import read
from levelfield.report.page import render
from levelfield.run import compare, run
from levelfield.search import Search
from levelfield.store import SCHEMA_VERSION, Store
from levelfield.store.failures import LONGEST_DETAILS
from levelfield.trial import Failure, Point, Progress

Command = Callable[..., tuple[int, str, str]]


def failed(index: int, reason: str = "bad", details: str = "") -> Failure:
    return Failure(Point(index, {"learning_rate": 0.1}, 0), reason, details)


class TestEveryStore:
    def test_failures_are_read_back_by_index(self, location: str) -> None:
        before = time.time()
        with Store.open(location) as store:
            store.add_failures("adam", [failed(7, "my.py, line 3, ValueError: no", "Traceback …\n  é\n"), failed(2)])
            store.add_failures("sgd", [failed(0)])
        with Store.open(location, create=False) as store:
            second, seventh = store.failures("adam")
            assert [failure.index for failure in store.failures("sgd")] == [0]
            assert store.failures("other") == []
        assert (second.index, second.reason, second.details, second.attempts) == (2, "bad", "", 1)
        assert (seventh.index, seventh.reason) == (7, "my.py, line 3, ValueError: no")
        assert seventh.details == "Traceback …\n  é"
        assert before <= seventh.time <= time.time()
        assert seventh.host == socket.gethostname()

    def test_a_later_failure_replaces_the_reason_and_counts(self, location: str) -> None:
        with Store.open(location) as store:
            for reason in ("first", "second", "third"):
                store.add_failures("adam", [failed(1, reason, f"{reason} traceback"), failed(5)])
            store.add_failures("adam", [failed(5, "again")])
            one, five = store.failures("adam")
        assert (one.reason, one.details, one.attempts) == ("third", "third traceback", 3)
        assert (five.reason, five.attempts) == ("again", 4)

    def test_a_finished_trial_is_no_failure(self, location: str) -> None:
        with Store.open(location) as store:
            store.add_failures("adam", [failed(0), failed(1)])
            store.add_failures("sgd", [failed(0)])
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
            assert [failure.index for failure in store.failures("adam")] == [1]
            assert [failure.index for failure in store.failures("sgd")] == [0]
            assert count(location, "failures") == 2
            store.add_failures("adam", [failed(0)])  # another runner was slower, and failed
            assert [failure.index for failure in store.failures("adam")] == [1]
            assert [trial.point.index for trial in store.trials("adam")] == [0]

    def test_an_error_while_a_trial_is_stored_keeps_its_failure(self, location: str) -> None:
        with Store.open(location) as store:
            store.add_failures("adam", [failed(0)])
            with connected(location) as connection:
                connection.execute(sa.text("ALTER TABLE trials RENAME COLUMN seed TO seeds"))
            with pytest.raises(lf.LevelfieldError):
                store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        assert count(location, "failures") == 1

    @pytest.mark.parametrize("bad", ["\x00", "\ud800", "\x1b[31m"], ids=["NUL", "surrogate", "escape"])
    def test_any_text_can_be_stored_and_shown(self, bad: str, location: str) -> None:
        with Store.open(location) as store:
            store.add_failures("adam", [failed(0, f"two\nlines {bad}", f"one\r\ntwo\t{bad}\nthree")])
            (failure,) = store.failures("adam")
        assert failure.reason == f"two lines �{bad[1:]}"
        assert failure.details == f"one\ntwo\t�{bad[1:]}\nthree"

    def test_the_end_of_long_details_is_kept(self, location: str) -> None:
        text = "".join(f"{line}\n" for line in range(10_000))
        with Store.open(location) as store:
            store.add_failures("adam", [failed(0, details=text)])
            (failure,) = store.failures("adam")
        assert len(failure.details) == LONGEST_DETAILS
        assert failure.details.endswith("\n9998\n9999")

    def test_a_store_of_schema_2_is_read_as_it_is_and_upgraded_by_a_run(self, location: str) -> None:
        with Store.open(location) as store:
            store.add("adam", DEFINITION, METRICS, [trial_of(0)], HERE)
        with connected(location) as connection:
            connection.execute(sa.text("DROP TABLE failures"))
            connection.execute(sa.text("UPDATE levelfield SET value = '2' WHERE key = 'schema'"))
        with Store.open(location, create=False) as store:
            assert store.failures("adam") == []
            assert store.workers(["adam"]) == []
            assert len(store.trials("adam")) == 1
        assert schema(location) == "2"
        with Store.open(location) as store:
            store.add_failures("adam", [failed(1)])
            assert len(store.failures("adam")) == 1
            assert len(store.trials("adam")) == 1
        assert schema(location) == str(SCHEMA_VERSION) == "4"


def schema(location: str) -> str:
    with connected(location) as connection:
        return str(connection.scalar(sa.text("SELECT value FROM levelfield WHERE key = 'schema'")))


class Flaky(FormulaExecutor):
    """Trials of these optimizers and indices fail; others finish with a loss of 1."""

    def __init__(self, failing: Sequence[tuple[str, int]]) -> None:
        super().__init__(lambda *_: 1.0)
        self.failing = failing

    def train(self, study: lf.Study, take: Take) -> Generator[Progress]:
        while batch := take(1):
            for point in batch.points:
                if (batch.optimizer, point.index) in self.failing:
                    broken = Failure(point, f"<b>reason {point.index}", f"traceback of {point.index}")
                    yield Progress(batch.optimizer, failed=[broken])
                else:
                    yield from self._train(study, batch.optimizer, [point], lambda *_: None)


def test_a_run_keeps_failures_until_the_trials_finish(store: Store) -> None:
    study = make_study()
    for attempts in (1, 2):
        with pytest.raises(TrialFailed, match=r"sgd: trial 1 failed: <b>reason 1 \(2 trials failed\)"):
            run(study, store, Flaky([("sgd", 1), ("sgd", 3)]))
        results = read(study, store)
        found = [(failure.index, failure.attempts) for failure in results.failures["sgd"]]
        assert found == [(1, attempts), (3, attempts)]
        assert results.failures["momentum"] == []
        count = results.count("sgd")
        assert (count.feasible, count.infeasible, count.full) == (2, 0, False)
        assert [trial.point.index for trial in results.trials["sgd"]] == [0, 2]
    again = Flaky([])
    results, shortage = compare(study, store, executor=again)
    assert shortage is None
    assert sorted(again.finished) == [("sgd", 1), ("sgd", 3)]
    assert results.complete
    assert not any(results.failures.values())


def test_failures_outside_of_the_pool_are_not_shown(store: Store) -> None:
    """A larger study shares its trials with a smaller one, which does not need the failed one."""
    study = make_study()
    with pytest.raises(TrialFailed):
        run(study.replace(pool=6), store, Flaky([("sgd", 5)]))
    assert read(study, store).failures == {"sgd": [], "momentum": []}
    assert [failure.index for failure in read(study.replace(pool=6), store).failures["sgd"]] == [5]


def test_the_page_says_first_what_failed(store: Store) -> None:
    study = make_study()
    with pytest.raises(TrialFailed):
        run(study, store, Flaky([("sgd", 1), ("sgd", 2), ("momentum", 0)]))
    results = read(study, store)
    expected = [
        "2 trials of sgd failed and are not counted: trial 1: <b>reason 1.",
        "1 trial of momentum failed and is not counted: trial 0: <b>reason 0. 'levelfield status STUDY --failures' "
        "shows the details; the next run trains failed trials again.",
    ]
    assert lf.Comparison(results).sentences()[:2] == expected
    page = render(results)
    note = re.search(r'<div class="answer caveats".*?</div>', page, re.DOTALL)
    assert note
    assert [html.unescape(line) for line in re.findall("<p>(.*)</p>", note[0])] == expected
    assert "<b>reason" not in page
    assert "failed" not in re.sub(r"<script.*?</script>", "", page.replace(note[0], ""), flags=re.DOTALL)


def test_a_served_page_notices_failures(tmp_path: Path) -> None:
    from levelfield.report.serve import Live

    study, location = make_study(), str(tmp_path / "trials.db")
    live = Live(study, location)
    with Store.open(location) as store:
        with pytest.raises(TrialFailed):
            run(study, store, Flaky([("sgd", 1)]))
        page = live.page()
        assert "1 trial of sgd failed" in page
        with pytest.raises(TrialFailed):
            run(study, store, Flaky([("sgd", 1)]))
        assert live.page() != page
        run(study, store, Flaky([]))
        assert "1 trial of sgd failed" not in live.page()


# ---------------------------------------------------------------------------- the command line

STUDY = """
code = "my_code.py"
workload = "line"
steps = 2
eval_interval = 1
trials = 1
pool = 4

[optimizers.sgd]
learning_rate = { log = [1e-3, 1e-1] }
"""
CODE = """
import jax.numpy as jnp
import numpy as np
import levelfield as lf
from levelfield.data import Data, Stream

X = np.linspace(-1, 1, 8, dtype=np.float32)

def batches(seed, batch_size):
    for step in range(2):
        if seed in {seeds}:
            raise ValueError("no such file")
        yield X[:batch_size], 2 * X[:batch_size]

def loss(params, state, batch, key, hyperparameters):
    x, y = batch
    return jnp.mean((params * x - y) ** 2), state

lf.register_workload(lf.Workload(
    name="line", summary="", batch_size=4, eval_interval=1,
    metrics={{"train_loss": "minimize"}}, select="train_loss",
    load=lambda: Data(Stream(8, (X[0], X[0]), batches), {{"train": (X, 2 * X)}}),
    init=lambda key: (jnp.zeros(()), ()), loss=loss,
    evaluate=lambda params, state, batch: {{"loss": (params * batch[0] - batch[1]) ** 2}},
))
"""
SEEDS = [Search(make_study(), "sgd").point(index).seed for index in range(4)]  # those of every optimizer's trials
REASON = "my_code.py, line 12, ValueError: no such file"


def write_code(folder: Path, failing: Sequence[int]) -> None:
    (folder / "study.toml").write_text(STUDY)
    (folder / "my_code.py").write_text(CODE.format(seeds=[SEEDS[index] for index in failing]))


def test_commands_show_what_failed(command: Command, tmp_path: Path) -> None:
    write_code(tmp_path, [1, 2])
    options = ("study.toml", "--store", "trials.db")
    code, out, err = command("compare", *options, "--slots", "2")
    sentence = (
        f"2 trials of sgd failed and are not counted: trial 1: {REASON}. 'levelfield status STUDY --failures' shows "
        f"the details; the next run trains failed trials again."
    )
    assert code == 1
    assert " ".join(out.split()).startswith(sentence)
    assert "2 of 4 feasible trials" in out  # the comparison of the others is printed
    assert err.splitlines()[-1].startswith(f"levelfield: sgd: trial 1 failed: {REASON} (2 trials failed); ")
    assert sentence.replace("'", "&#39;") in (tmp_path / "levelfield-out/study/report.html").read_text("utf-8")

    code, out, err = command("status", *options)
    assert (code, err) == (0, "")
    assert " ".join(out.split()).startswith(sentence)
    assert max(map(len, out.splitlines())) <= 120
    assert "sgd            2/4 feasible, 0 infeasible" in out
    assert "Traceback" not in out

    code, out, _ = command("status", *options, "--failures")
    assert code == 0
    details = re.findall(r"^sgd, trial (\d): (.*)\n    failed in 1 run, last on (\S+), ", out, re.MULTILINE)
    assert details == [(index, REASON, socket.gethostname()) for index in "12"]
    assert out.count("    Traceback (most recent call last):\n") == 2
    assert out.count('my_code.py", line 12, in batches\n') == 2

    code, out, err = command("run", *options, "--json")
    assert code == 1
    (row,) = json.loads(out)["optimizers"]
    assert (row["feasible"], row["infeasible"]) == (2, 0)
    assert [(each["index"], each["reason"], each["attempts"]) for each in row["failed"]] == [
        (1, REASON, 2),
        (2, REASON, 2),
    ]
    assert row["failed"][0]["details"].endswith("ValueError: no such file")
    status: dict[str, Any] = json.loads(command("status", *options, "--json")[1])
    assert status["optimizers"] == [row]

    code, out, _ = command("report", *options, "--json")
    assert code == 0
    assert json.loads(out)["failures"] == {"sgd": row["failed"]}

    write_code(tmp_path, [])
    code, out, err = command("run", *options, "--stale", "keep")
    assert code == 0, err
    assert "failed" not in out + err
    assert json.loads(command("status", *options, "--json")[1])["optimizers"][0]["failed"] == []


def test_a_study_whose_trials_have_all_failed_says_so(command: Command, tmp_path: Path) -> None:
    write_code(tmp_path, [0, 1, 2, 3])
    options = ("study.toml", "--store", "trials.db")
    code, out, err = command("compare", *options, "--slots", "4")
    assert (code, out) == (1, "")
    assert "sgd: trial 0 failed" in err
    code, out, err = command("report", *options)
    assert (code, out) == (2, "")
    assert err == "levelfield: study: all trials so far have failed; 'levelfield status STUDY --failures' shows why\n"
