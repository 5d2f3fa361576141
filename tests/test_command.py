"""Trials that a command trains: what it is given, what it prints, and commands that go wrong."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

import levelfield as lf
from levelfield.errors import StudyError, TrialFailed
from levelfield.executors import get_executor
from levelfield.executors.base import hand_out
from levelfield.search import Search
from levelfield.trial import Failure, Status, Trial

PROGRAM = """
import json, os, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
rate = float(arguments["--learning_rate"])
print("training", flush=True)
for step in (2, 4):
    print(json.dumps({"step": step, "train_loss": rate * step, "valid_error": 0.5}))
"""


def study_of(place: Path, command: list[str], **changes: Any) -> lf.Study:
    content = {
        "metrics": {"train_loss": "minimize", "valid_error": "minimize"},
        "select": "valid_error",
        "folder": str(place),
        "steps": 4,
        "trials": 1,
        "pool": 2,
        "retries": 0,
        "optimizers": {"any": {"learning_rate": {"log": [0.1, 1.0]}, "flavor": "mild"}},
    }
    return lf.Study(command=command, **content | changes)


def train(study: lf.Study, count: int = 1) -> tuple[list[Trial], list[Failure]]:
    search, executor = Search(study, "any"), get_executor("local", 1)
    executor.check(study)
    stretches = list(executor.train(study, hand_out("any", [search.point(index) for index in range(count)])))
    finished = [trial for stretch in stretches for trial in stretch.finished]
    return finished, [failure for stretch in stretches for failure in stretch.failed]


def test_a_command_trains_trials(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    trials, failed = train(study_of(tmp_path, [sys.executable, "train.py", "{hyperparameters}"]), 2)
    assert not failed
    for trial in trials:
        rate = trial.point.hyperparameters["learning_rate"]
        assert trial.curve.steps.tolist() == [2, 4]
        assert trial.curve.values["train_loss"].tolist() == pytest.approx([2 * rate, 4 * rate])
        assert trial.status is Status.FEASIBLE


def test_a_command_is_given_the_trial(tmp_path):
    (tmp_path / "train.py").write_text(
        "import json, os, sys\n"
        "json.dump([sys.argv[1:], json.loads(os.environ['LEVELFIELD_TRIAL'])], open('told.json', 'w'))\n"
        'print(\'{"step": 4, "train_loss": 1, "valid_error": NaN}\')\n'
    )
    study = study_of(tmp_path, [sys.executable, "train.py", "--lr={learning_rate}", "{seed}/{steps}", "{{x}}"])
    trials, failed = train(study)
    assert not failed
    assert trials[0].status is Status.FEASIBLE  # only its training loss must be finite
    arguments, told = json.loads((tmp_path / "told.json").read_text())
    point = trials[0].point
    assert arguments == [f"--lr={point.hyperparameters['learning_rate']!r}", f"{point.seed}/4", "{x}"]
    assert told["hyperparameters"] == point.hyperparameters
    assert told["rule"] == "any"


FAILURES = {
    'print(\'{"step": 1, "train\')': ["expected a line of JSON", '{"step": 1, "train'],
    "print('{\"train_loss\": 1}')": ["expected a line of JSON", "it has no step"],
    "print('{\"step\":' * 100_000)": ["expected a line of JSON"],
    'print(\'{"step": 1, "train_los": 1}\')': ["'train_los'", "did you mean 'train_loss'?"],
    'print(\'{"step": 4, "train_loss": "low", "valid_error": 1}\')': ["train_loss=low", "expected a number"],
    'print(\'{"step": null, "train_loss": 1}\')': ["step=None"],
    "pass": ["printed no metrics"],
    "raise ValueError('boom')": ["exit code 1", "ValueError: boom"],
    "import os; os.abort()": ["signal 6 (SIGABRT)"],
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_command_that_goes_wrong_fails_its_trial(code, tmp_path):
    (tmp_path / "train.py").write_text(code)
    trials, failed = train(study_of(tmp_path, [sys.executable, "train.py"]))
    assert not trials
    for word in FAILURES[code]:
        assert word in failed[0].reason
    assert "\n" not in failed[0].reason


def test_a_command_without_metrics_is_told_which_lines_are_expected(tmp_path):
    _, failed = train(study_of(tmp_path, ["echo", "{{'step': 4, 'train_loss': 1}}"]))
    assert failed[0].reason == (
        'the command printed no metrics; expected lines such as {"step": 4, "train_loss": 0.5, "valid_error": 0.5}; '
        "its last output is: {'step': 4, 'train_loss': 1}"
    )


def test_lines_that_are_not_json_are_ordinary_output(tmp_path):
    lines = ["{'lr': 0.1}", "{", "[1]", ' {"step": 4, "train_loss": 1, "valid_error": 0.5}']
    (tmp_path / "output").write_text("\n".join(lines))
    trials, _ = train(study_of(tmp_path, ["cat", "output"]))
    assert trials[0].curve.steps.tolist() == [4]


def test_a_metric_of_a_command_may_have_any_name_but_step(tmp_path):
    command = ["echo", '{{"step": 4, "self": 1, "train loss": 2}}']
    metrics = {"self": "maximize", "train loss": "minimize"}
    trials, _ = train(study_of(tmp_path, command, metrics=metrics, select="self"))
    assert trials[0].curve.final("train loss") == 2
    with pytest.raises(lf.LevelfieldError, match="metric step: each report has a step"):
        study_of(tmp_path, command, metrics={"step": "minimize"}, select="step")


def test_metrics_of_python_arrive_when_they_are_printed(tmp_path):
    """Even if the program does not flush: a trial that diverges ends at once."""
    (tmp_path / "train.py").write_text('import time\nprint(\'{"step": 1, "train_loss": NaN}\')\ntime.sleep(600)')
    trials, _ = train(study_of(tmp_path, [sys.executable, "train.py"], trial_timeout=60))
    assert trials[0].status is Status.INFEASIBLE


def test_a_command_gets_the_users_environment(tmp_path, monkeypatch):
    """It may be of another Python, which must not import from levelfield's folder."""
    monkeypatch.setenv("PYTHONPATH", "/somewhere")
    (tmp_path / "train.py").write_text("import os, sys\nsys.exit(os.environ['PYTHONPATH'])")
    _, failed = train(study_of(tmp_path, [sys.executable, "train.py"]))
    assert failed[0].reason.endswith("its last output is: /somewhere")


def test_the_processes_of_a_command_end_with_it(tmp_path):
    """Here a shell waits for another one, and its trial diverges."""
    (tmp_path / "inner.sh").write_text('sleep 600 & echo $! > pid; echo \'{"step": 1, "train_loss": NaN}\'; wait')
    study = study_of(tmp_path, ["bash", "-c", "bash inner.sh; echo done"])
    with closing(get_executor("local", 1).train(study, hand_out("any", [Search(study, "any").point(0)]))) as stretches:
        for stretch in stretches:
            assert not stretch.note  # nothing was left behind
            if stretch.finished:
                assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
                return
    raise AssertionError("the trial has not ended")


def test_a_process_that_a_command_leaves_behind_does_not_keep_its_trial(tmp_path):
    """It holds the command's output open."""
    (tmp_path / "train.sh").write_text(
        'sleep 600 & echo $! > pid; echo \'{"step": 4, "train_loss": 1, "valid_error": 1}\''
    )
    study = study_of(tmp_path, ["bash", "train.sh"], trial_timeout=60)
    with closing(get_executor("local", 1).train(study, hand_out("any", [Search(study, "any").point(0)]))) as stretches:
        ended = next(stretch for stretch in stretches if stretch.ended)
        assert ended.finished
        assert ended.note == "trial 0 left a process behind, which levelfield has ended"
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_any_output_of_a_command_is_read(tmp_path):
    """Long lines, ends of lines of all kinds, a last line without one, and bytes that are no text."""
    first, last = (json.dumps({"step": step, "train_loss": step, "valid_error": 1}) for step in (2, 4))
    output = b"x" * 3_000_000 + f"\n 10%|###\r{first}\r\n".encode() + b"\xff\x00\n" + last.encode()
    (tmp_path / "output").write_bytes(output)
    trials, _ = train(study_of(tmp_path, ["cat", "output"]))
    assert trials[0].curve.values["train_loss"].tolist() == [2, 4]


def test_a_training_loss_that_is_not_finite_ends_the_command(tmp_path):
    (tmp_path / "train.py").write_text(
        'import time\nprint(\'{"step": 1, "train_loss": NaN}\', flush=True)\ntime.sleep(600)'
    )
    trials, _ = train(study_of(tmp_path, [sys.executable, "train.py"]))
    assert trials[0].status is Status.INFEASIBLE


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": ["no-such-program-here"]}, ["no-such-program-here", "PATH"]),
        ({"command": ["./train.py"]}, ["./train.py"]),
        ({"command": ["true"], "folder": "/no/such/folder"}, ["/no/such/folder"]),
        ({"command": ["true", "{learning_rat}"]}, ["{learning_rat}", "did you mean 'learning_rate'?"]),
        ({"command": ["true", "{beta1}"]}, ["{beta1}", "any", "{hyperparameters}"]),
        ({"command": ["true", "--all={hyperparameters}"]}, ["'--all={hyperparameters}'", "an argument of its own"]),
        ({"command": ["true", "{batch_size}"]}, ["{batch_size} needs a value", "batch_size = …"]),
        ({"command": ["true", "{"]}, ["'{'", "{{"]),
        ({"command": "python train.py"}, ["'python train.py'", "list of strings"]),
        ({"command": 5}, ["command = 5", "list of strings"]),
        ({"command": []}, ["command = []", "list of strings"]),
        ({"command": ["true"], "metrics": None}, ["metrics"]),
        ({"command": ["true"], "metrics": {}}, ["metrics"]),
        ({"command": ["true"], "metrics": {"valid_error": "down"}}, ["'down'", "'minimize' or 'maximize'"]),
        ({"command": ["true"], "select": "valid_eror"}, ["'valid_eror'"]),
        ({"command": ["true"], "select": ["valid_error"]}, ["select = ['valid_error']", "one of its metrics"]),
        ({"command": ["true"], "workload": "quadratic"}, ["quadratic", "metrics"]),
        ({"command": ["true"], "trial_timeout": 0}, ["trial_timeout = 0"]),
        ({"command": ["true"], "retries": -1}, ["retries = -1"]),
    ],
    ids=str,
)
def test_an_invalid_command_is_rejected(changes, words, tmp_path):
    with pytest.raises(lf.LevelfieldError) as caught:
        get_executor("local", 1).check(study_of(tmp_path, **changes))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_command_needs_metrics():
    with pytest.raises(StudyError, match="command needs metrics: expected a table such as"):
        lf.Study(command=["true"], steps=4, trials=1, optimizers={"any": {"learning_rate": 0.1}})


def test_a_format_that_does_not_fit_its_value_is_named(tmp_path):
    _, failed = train(study_of(tmp_path, ["echo", "{flavor:.3f}"]))
    assert failed[0].reason.startswith("command: '{flavor:.3f}': ValueError: Unknown format code")


def test_a_study_file_runs_its_command_in_its_folder(tmp_path):
    study = study_of(tmp_path / "inner", ["true", "{seed}"])
    (tmp_path / "inner").mkdir()
    (tmp_path / "study.toml").write_text(study.to_toml(tmp_path))
    loaded = lf.load_study(tmp_path / "study.toml")
    assert loaded.folder == str(tmp_path / "inner")
    assert loaded.identity("any") == study.identity("any")


def test_trials_of_a_program_that_has_changed_are_stale(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    study = study_of(tmp_path, [sys.executable, "train.py", "{hyperparameters}"])
    before = study.code_version("any")
    program.write_text(PROGRAM + "\n")
    assert before
    assert study.code_version("any") != before


def test_a_program_that_is_edited_during_a_run_is_not_mixed_with_the_old(tmp_path):
    (tmp_path / "train.py").write_text(f"open('train.py', 'a').write('# edited')\n{PROGRAM}")
    with pytest.raises(TrialFailed, match=r"train\.py has changed since this run began"):
        train(study_of(tmp_path, [sys.executable, "train.py", "{hyperparameters}"]), 2)


def test_a_trial_is_stored_with_the_code_that_it_began_with(tmp_path):
    (tmp_path / "train.py").write_text(f"open('train.py', 'a').write('# edited')\n{PROGRAM}")
    study = study_of(tmp_path, [sys.executable, "train.py", "{hyperparameters}"], pool=1)
    before = study.code_version("any")
    comparison = lf.compare(study, store=str(tmp_path / "trials.db"))
    assert [trial.code for trial in comparison.trials["any"]] == [before]
    assert study.code_version("any") != before


def test_the_code_of_a_program_is_tracked_beside_that_of_a_study_but_its_data_are_not(tmp_path):
    for name in ("train.py", "rules.py"):
        (tmp_path / name).write_text("")
    with (tmp_path / "data.bin").open("wb") as file:
        file.truncate(10**9)
    command = ["python", "train.py", "data.bin"]
    study = study_of(tmp_path, command, code=str(tmp_path / "rules.py"))
    assert study.code_name == "rules.py, train.py"


def test_a_missing_command_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(StudyError, match="no program"):
        lf.compare(study_of(tmp_path, ["no-such-program-here"]), store=str(tmp_path / "trials.db"))
    assert os.listdir(tmp_path) == []
