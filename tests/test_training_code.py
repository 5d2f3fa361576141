"""Custom training code: what it is told, and what becomes of code that goes wrong."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from helpers import FIXTURES

import levelfield as lf
from levelfield.errors import SpaceError, StudyError, TrialFailed, UsageError
from levelfield.executors import get_executor
from levelfield.executors._workers import WorkerExecutor, visible_gpus
from levelfield.executors.base import hand_out
from levelfield.search import Search
from levelfield.trial import Batch, Failure, Status, Trial

STEPS = 4


def study_of(code: Path, optimizers: dict[str, Any], **changes: Any) -> lf.Study:
    content = {"steps": STEPS, "trials": 1, "pool": 1, "optimizers": optimizers} | changes
    return lf.Study(code=str(code), **content)


def train_all(study: lf.Study, workers: int = 2) -> tuple[dict[str, Trial], dict[str, Failure], list[str]]:
    """Train the first point of each optimizer; return finished and failed trials by optimizer, and the notes."""
    waiting = [Batch(name, [Search(study, name).point(0)]) for name in study.optimizers]

    def take(count: int, optimizer: str | None = None) -> Batch | None:
        return waiting.pop(0) if waiting else None

    finished: dict[str, Trial] = {}
    failed: dict[str, Failure] = {}
    notes = []
    for progress in WorkerExecutor(workers).train(study, take):
        for trial in progress.finished:
            finished[progress.optimizer] = trial
        for failure in progress.failed:
            failed[progress.optimizer] = failure
        notes += [f"{progress.optimizer}: {progress.note}"] if progress.note else []
    return finished, failed, notes


FAILURES = {
    "backward": ["report(step=1)", "step 2 was reported before"],
    "twice": ["report(step=2)", "step 2 was reported before"],
    "beyond": ["report(step=5)", "from 0 to 4"],
    "fraction": ["1.5", "integer"],
    "unknown": ["'train_los'", "did you mean 'train_loss'?"],
    "text": ["train_loss=low", "expected a number"],
    "raises": ["misbehaving_training.py, line", "ValueError: boom second line"],
    "exits": ["SystemExit: 3"],
    "vanishes": ["exit code 7", "about to vanish"],
    "killed": ["signal 9 (SIGKILL)", "memory"],
    "deadlocked": ["trial_timeout = 6 seconds"],
}
FINE = (
    *("fine", "talkative", "diverges", "overflows", "forks", "reports_from_a_fork", "replaces_its_output"),
    *("leaves_a_thread", "leaves_an_orphan", "leaves_children"),
    *("goes_on_after_divergence", "fails_after_divergence"),
)
DIVERGING = ("diverges", "overflows", "leaves_a_thread", "goes_on_after_divergence", "fails_after_divergence")


@pytest.fixture(scope="module")
def misbehaved() -> tuple[dict[str, Trial], dict[str, Failure], list[str]]:
    table = {"rule": "any", "learning_rate": 0.5}
    optimizers = dict.fromkeys([*FAILURES, *FINE], table)
    code = FIXTURES / "misbehaving_training.py"
    return train_all(study_of(code, optimizers, workload="misbehaving", trial_timeout=6.0, retries=0))


@pytest.mark.parametrize("name", FAILURES)
def test_a_trial_that_goes_wrong_fails_with_its_reason(name, misbehaved):
    finished, failed, _ = misbehaved
    assert name not in finished
    for word in FAILURES[name]:
        assert word in failed[name].reason
    assert "\n" not in failed[name].reason


def test_the_other_trials_go_on(misbehaved):
    finished, failed, _ = misbehaved
    assert finished.keys() == set(FINE)
    assert failed.keys() == set(FAILURES)
    assert finished["fine"].curve.values["train_loss"].tolist() == [0.5]
    assert finished["talkative"].status is Status.FEASIBLE


def test_the_details_of_a_failure_show_where_it_happened(misbehaved):
    _, failed, _ = misbehaved
    assert "in raises" in failed["raises"].details
    assert "in deadlocked" in failed["deadlocked"].details  # the stack of the process before it was ended


@pytest.mark.parametrize("name", sorted(set(FINE) - set(DIVERGING)))
def test_only_a_trials_own_process_and_thread_report(name, misbehaved):
    """Copies of the process, and what is left of earlier trials, change no curve."""
    curve = misbehaved[0][name].curve
    assert curve.steps.tolist() == ([1, STEPS] if name.startswith("leaves") else [STEPS])
    assert curve.values["train_loss"][-1] == 0.5


@pytest.mark.parametrize("name", DIVERGING)
def test_a_training_loss_that_is_not_finite_ends_the_trial_as_infeasible(name, misbehaved):
    trial = misbehaved[0][name]
    assert trial.status is Status.INFEASIBLE
    assert trial.curve.steps.tolist() == [1]
    assert not np.isfinite(trial.curve.values["train_loss"][-1])


def test_processes_that_a_trial_leaves_behind_are_ended(misbehaved):
    finished, _, notes = misbehaved
    for name, left in {"leaves_children": "2 processes", "leaves_an_orphan": "a process"}.items():
        assert not psutil.pid_exists(int(finished[name].curve.values["train_loss"][0]))
        assert f"{name}: trial 0 left {left} behind, which levelfield has ended" in notes


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("everything", ["without any report", "trial.due(step)"]),
        ("the_end", ["ended at step 2", "up to step 4"]),
        ("the_selection", ["no valid_error", "selection metric"]),
    ],
)
def test_a_trial_that_does_not_report_what_it_should_fails(name, words):
    table = {"rule": "any", "learning_rate": 0.5}
    code = FIXTURES / "misbehaving_training.py"
    _, failed, _ = train_all(study_of(code, {name: table}, workload="forgetful", retries=0), workers=1)
    for word in words:
        assert word in failed[name].reason


def write(folder: Path, body: str, arguments: str = "") -> Path:
    """Write a code file with a trainable function of this body."""
    path = folder / "code.py"
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    path.write_text(
        f"import os, pathlib, random, sys, time\nimport numpy as np\nimport levelfield as lf\n"
        f'@lf.trainable(metrics={{"train_loss": "minimize"}}, select="train_loss"{arguments})\n'
        f"def custom(trial):\n{indented}\n"
    )
    return path


def test_a_failed_trial_is_tried_again_once_and_then_reported(tmp_path):
    code = write(
        tmp_path,
        f"tries = pathlib.Path({str(tmp_path)!r}) / trial.name\n"
        "with tries.open('a') as file:\n    file.write('x')\n"
        "if trial.name == 'never' or len(tries.read_text()) < 2: raise ValueError(trial.name)\n"
        "trial.report(trial.steps, train_loss=1.0)",
    )
    table = {"rule": "any", "learning_rate": 1.0}
    finished, failed, notes = train_all(study_of(code, {"later": table, "never": table}))
    assert finished.keys() == {"later"}
    assert failed.keys() == {"never"}
    assert {name: len((tmp_path / name).read_text()) for name in ("later", "never")} == {"later": 2, "never": 2}
    assert sum("is tried again" in note for note in notes) == 2


def test_a_trial_after_a_failed_one_gets_a_new_process(tmp_path):
    """An exception may have broken the old one: after some errors of a GPU, all that follows fails, too."""
    code = write(
        tmp_path,
        "if globals().get('broken'): raise ValueError('still broken')\nglobals()['broken'] = True\n"
        "if trial.index == 0: raise ValueError('breaks')\ntrial.report(trial.steps, train_loss=1.0)",
    )
    study = study_of(code, {"any": {"learning_rate": {"log": [0.1, 1.0]}}}, retries=0)
    stretches = list(WorkerExecutor(1).train(study, hand_out("any", map(Search(study, "any").point, range(2)))))
    assert [failure.reason for stretch in stretches for failure in stretch.failed] == [
        "code.py, line 8, ValueError: breaks"
    ]
    assert [trial.point.index for stretch in stretches for trial in stretch.finished] == [1]


def test_processes_that_the_code_holds_are_kept_for_the_next_trial(tmp_path):
    """Such as those of a data loader at the top of the file, which has persistent workers."""
    code = write(
        tmp_path,
        "if not HELD: HELD.append(start())\n"
        "trial.report(trial.steps, train_loss=HELD[0].pid)\nprint(start().pid, file=open(f'pid{trial.index}', 'w'))",
    )
    code.write_text(
        "from multiprocessing import Process\nHELD = []\ndef start():\n"
        "    process = Process(target=time.sleep, args=(600,), daemon=True)\n    process.start()\n    return process\n"
        + code.read_text().replace("f'pid", f"f'{tmp_path}/pid")
    )
    study = study_of(code, {"any": {"learning_rate": {"log": [0.1, 1.0]}}})
    stretches = WorkerExecutor(1).train(study, hand_out("any", map(Search(study, "any").point, range(2))))
    held, notes = set(), []
    for stretch in stretches:
        notes += [stretch.note] if stretch.note else []
        for trial in stretch.finished:
            held.add(int(trial.curve.final("train_loss")))
            assert all(map(psutil.pid_exists, held))
            assert not psutil.pid_exists(int((tmp_path / f"pid{trial.point.index}").read_text()))
    assert len(held) == 1
    assert notes == [f"trial {index} left a process behind, which levelfield has ended" for index in range(2)]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_training_code_may_start_processes_of_its_own(method, tmp_path):
    """As PyTorch's DataLoader does. Some import the code file anew, by its name."""
    code = write(
        tmp_path, f"with Pool(1, {method!r}) as pool: trial.report(trial.steps, train_loss=pool.map(half, [3])[0])"
    )
    code = code.rename(tmp_path / "my_training.py")
    code.write_text(
        "import multiprocessing\nPool = lambda count, method: multiprocessing.get_context(method).Pool(count)\n"
        "def half(number): return number / 2\n" + code.read_text()
    )
    finished, _, _ = train_all(study_of(code, {"any": {"learning_rate": 0.1}}), workers=1)
    assert finished["any"].curve.final("train_loss") == 1.5


def test_code_that_is_edited_during_a_run_is_not_mixed_with_the_old(tmp_path):
    """Workers that run go on with the code that they have loaded; new ones would load the new code."""
    code = write(
        tmp_path,
        f"open({str(tmp_path / 'code.py')!r}, 'a').write('# edited')\n"
        "trial.report(trial.steps, train_loss=1.0)\nif trial.index == 1: os._exit(1)",
    )
    study = study_of(code, {"any": {"learning_rate": {"log": [0.1, 1.0]}}})
    stretches = WorkerExecutor(1).train(study, hand_out("any", map(Search(study, "any").point, range(3))))
    assert next(stretch.ended for stretch in stretches if stretch.ended) == [0]
    with pytest.raises(TrialFailed, match=r"code\.py has changed since this run began"):
        list(stretches)


def test_points_are_not_forgotten_while_a_worker_starts(tmp_path):
    """The only worker that was ready has died, and there is nothing in flight."""
    code = write(tmp_path, "if trial.index == 0: os._exit(1)\ntrial.report(trial.steps, train_loss=1.0)")
    with code.open("a") as file:
        file.write(
            "if 'LEVELFIELD_WORKER' in os.environ:\n"
            f"    try: (pathlib.Path({str(tmp_path)!r}) / 'first').touch(exist_ok=False)\n"
            "    except FileExistsError: time.sleep(2)\n"
        )
    study = study_of(code, {"any": {"learning_rate": {"log": [0.1, 1.0]}}}, retries=0)
    stretches = list(WorkerExecutor(2).train(study, hand_out("any", map(Search(study, "any").point, range(2)))))
    ended = [stretch.ended for stretch in stretches if stretch.ended]
    assert ended == [[0], [1]]


def test_a_worker_imports_once_and_seeds_every_trial(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=random.random() + np.random.random())")
    with code.open("a") as file:
        file.write(f"if 'LEVELFIELD_WORKER' in os.environ:\n    open({str(tmp_path / 'imports')!r}, 'a').write('x')\n")
    study = study_of(code, {"any": {"learning_rate": {"log": [0.1, 1.0]}}}, pool=5)
    search = Search(study, "any")
    points = [search.point(index) for index in range(5)]

    def losses(order: list) -> dict[int, float]:
        stretches = WorkerExecutor(1).train(study, hand_out("any", order))
        return {
            trial.point.index: trial.curve.final("train_loss") for stretch in stretches for trial in stretch.finished
        }

    forward = losses(points)
    assert (tmp_path / "imports").read_text() == "x"
    assert losses(points[::-1]) == forward
    assert len(set(forward.values())) == 5


def test_a_rule_and_a_schedule_have_each_their_own_warmup(tmp_path):
    """A rule that levelfield does not know keeps a warmup of its own, in steps; a schedule's is a fraction."""
    code = write(
        tmp_path,
        "rates = [trial.learning_rate(step) for step in range(trial.steps)]\n"
        f"pathlib.Path({str(tmp_path)!r}, trial.name).write_text(str(rates))\n"
        "trial.report(trial.steps, train_loss=1.0)",
    )
    own = {"rule": "my.Optimizer", "learning_rate": 0.4, "warmup_steps": 500}
    scheduled = {"rule": "my.Optimizer", "learning_rate": 0.4, "schedule": {"kind": "linear", "warmup_steps": 0.5}}
    train_all(study_of(code, {"own": own, "scheduled": scheduled}, steps=4, eval_interval=4), workers=1)
    assert json.loads((tmp_path / "own").read_text()) == [0.4] * 4
    assert json.loads((tmp_path / "scheduled").read_text()) == pytest.approx([0.4 / 3, 0.8 / 3, 0.4, 0.2])


def test_the_seconds_of_steps_are_refused_before_anything_is_trained(tmp_path):
    study = study_of(write(tmp_path, "trial.report(trial.steps, train_loss=1.0)"), {"any": {"learning_rate": 0.1}})
    with pytest.raises(UsageError, match="seconds measures the steps of JAX workloads only"):
        lf.compare(study, tmp_path / "trials.db", seconds=True)
    assert not (tmp_path / "trials.db").exists()


def test_options_are_refused_where_custom_code_trains(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    for option in ("clip_norm", "weight_decay", "ema_decay"):
        table = {"learning_rate": 0.4, option: 0.1}
        with pytest.raises(SpaceError, match=f"{option} is not a hyperparameter of sgd but an option"):
            study_of(code, {"sgd": table}, steps=4)


def test_a_trial_is_told_what_to_train(tmp_path):
    code = write(
        tmp_path,
        "import json\n"
        "told = {name: getattr(trial, name) for name in "
        "('name', 'rule', 'hyperparameters', 'seed', 'steps', 'batch_size', 'device', 'index', 'schedule')}\n"
        "told['rates'] = [trial.learning_rate(step) for step in range(trial.steps)]\n"
        "told['due'] = [step for step in range(trial.steps + 1) if trial.due(step)]\n"
        f"pathlib.Path({str(tmp_path)!r}, 'told').write_text(json.dumps(told))\n"
        "trial.report(trial.steps, train_loss=1.0)",
        arguments=', batch_size=32, hyperparameters={"dropout": lf.Hyperparameter(low=0.0, high=1.0)}',
    )
    schedule = {"kind": "linear", "decay_steps": 1.0, "decay_factor": 0.5}
    table = {"rule": "my.Optimizer", "learning_rate": 0.4, "flavor": "mild", "dropout": 0.1, "schedule": schedule}
    study = study_of(code, {"mine": table}, steps=4, eval_interval=3)
    train_all(study, workers=1)
    told = json.loads((tmp_path / "told").read_text())
    point = Search(study, "mine").point(0)
    assert told.pop("rates") == pytest.approx([0.4, 0.35, 0.3, 0.25])
    assert told == {
        "name": "mine",
        "rule": "my.Optimizer",
        "hyperparameters": {
            "learning_rate": 0.4,
            "flavor": "mild",
            "dropout": 0.1,
            "decay_steps": 1.0,
            "decay_factor": 0.5,
        },
        "seed": point.seed,
        "steps": 4,
        "batch_size": 32,
        "device": "cuda" if visible_gpus() else "cpu",
        "index": 0,
        "schedule": "linear",
        "due": [0, 3, 4],
    }


def test_a_trial_builds_its_optimizer_for_pytorch():
    """It is the rule with its schedule; hyperparameters of the workload are not the rule's."""
    torch = pytest.importorskip("torch")
    workload = lf.Trainable(
        name="with_dropout",
        summary="",
        metrics={"train_loss": "minimize"},
        select="train_loss",
        hyperparameters={"dropout": lf.Hyperparameter(low=0.0, high=1.0)},
        train=lambda trial: None,
        file=__file__,
    )
    values = {"learning_rate": 0.5, "momentum": 0.9, "decay_steps": 1.0, "decay_factor": 0.1, "dropout": 0.2}
    trial = lf.TrialRun(
        "mine",
        "momentum",
        values,
        0,
        10,
        5,
        None,
        "cpu",
        0,
        "linear",
        frozenset({"decay_steps", "decay_factor"}),
        workload,
    )
    weight = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))
    optimizer = trial.optimizer([weight])
    expected, velocity = 1.0, 0.0
    for step in range(10):
        weight.grad = torch.full_like(weight, 0.1)
        optimizer.step()
        velocity = 0.9 * velocity + 0.1
        expected -= 0.5 * (1 - 0.9 * step / 10) * velocity
        assert trial.learning_rate(step) == pytest.approx(0.5 * (1 - 0.9 * step / 10))
    assert weight.item() == pytest.approx(expected)


def test_a_domain_that_a_known_rule_has_is_checked(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    with pytest.raises(SpaceError, match=r"optimizers\.momentum.*momentum reaches 2"):
        study_of(code, {"momentum": {"learning_rate": 0.1, "momentum": 2.0}})


def test_code_that_fails_only_in_a_worker_is_refused_before_anything_is_trained(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    with code.open("a") as file:
        file.write("if 'LEVELFIELD_WORKER' in os.environ: raise RuntimeError('no GPU here')\n")
    study = study_of(code, {"any": {"learning_rate": 0.1}})
    with pytest.raises(StudyError, match="RuntimeError: no GPU here"):
        get_executor("local").check(study)


def test_a_worker_that_does_not_come_to_train_is_refused(tmp_path, monkeypatch):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    with code.open("a") as file:
        file.write("if 'LEVELFIELD_WORKER' in os.environ: time.sleep(600)\n")
    monkeypatch.setattr("levelfield.executors._workers._FIRST", 3.0)
    with pytest.raises(StudyError, match=r"has not loaded the study's code within 0\.05 minutes"):
        get_executor("local").check(study_of(code, {"any": {"learning_rate": 0.1}}))


def test_modules_of_the_current_folder_do_not_replace_others(tmp_path, monkeypatch):
    for module in ("queue", "platform", "random"):
        (tmp_path / f"{module}.py").write_text("raise RuntimeError('not me')\n")
    monkeypatch.chdir(tmp_path)
    get_executor("local", 1).check(study_of(FIXTURES / "misbehaving_training.py", {"any": {}}, workload="misbehaving"))


def test_a_function_may_have_other_decorators(tmp_path):
    """The file that workers load is the one that declares it, not that of the decorator."""
    code = tmp_path / "decorated.py"
    code.write_text(
        "import contextlib\nimport levelfield as lf\n@contextlib.contextmanager\ndef noted():\n    yield\n"
        '@lf.trainable(metrics={"acc": "maximize"}, select="acc")\n@noted()\n'
        "def decorated(trial): trial.report(trial.steps, acc=1.0)\n"
    )
    spec = importlib.util.spec_from_file_location("decorated", code)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    study = lf.Study(workload="decorated", steps=STEPS, trials=1, pool=1, optimizers={"any": {"learning_rate": 0.1}})
    assert study.code_files == [str(code)]
    assert train_all(study, workers=1)[0].keys() == {"any"}


DECLARED = 'import levelfield as lf\n@lf.trainable(metrics={"train_loss": "minimize"}, select="train_loss")\n'


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("def train(trial): ...", ["registers none", "@lf.trainable(metrics=…, select=…)"]),
        ("from .model import Model", ["line 1", "relative import", "without a dot"]),
        ("import levelfield as lf\nlf.trainable(metrics={'step': 'minimize'}, select='step')(print)", ["metric step"]),
        ("raise AssertionError", ["line 1, AssertionError"]),
        (
            "import levelfield as lf\n@lf.trainable\ndef train(trial): ...",
            ["@lf.trainable has no arguments", "write @lf.trainable(metrics="],
        ),
        (f"{DECLARED}async def train(trial): ...", ["'train': train is an async function, which does nothing"]),
        (f"{DECLARED}def train(trial): yield 1", ["'train': train is a generator function (it has a yield)"]),
        (f"{DECLARED}async def train(trial): yield 1", ["'train': train is a generator function (it has a yield)"]),
        ("import levelfield as lf\n@lf.trainable()\ndef train(trial): ...", ["metrics = None: expected a mapping"]),
    ],
)
def test_code_that_cannot_train_is_refused_with_what_to_do(content, words, tmp_path):
    (tmp_path / "train.py").write_text(content)
    with pytest.raises(StudyError) as refused:
        study_of(tmp_path / "train.py", {"any": {"learning_rate": 0.1}})
    for word in words:
        assert word in str(refused.value)


def test_what_code_prints_is_no_result(tmp_path, capfd):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    code.write_text(code.read_text() + "print('loading')\n")
    study_of(code, {"any": {"learning_rate": 0.1}})
    out, err = capfd.readouterr()
    assert (out, err) == ("", "loading\n")


def test_a_script_that_starts_a_run_without_a_guard_is_told_how_to_fix_it(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    with code.open("a") as file:
        file.write(
            "study = lf.Study(workload='custom', steps=4, trials=1, pool=1,\n"
            "                 optimizers={'any': {'learning_rate': 0.1}})\n"
            f"lf.compare(study, store={str(tmp_path / 'trials.db')!r})\n"
        )
    done = subprocess.run([sys.executable, str(code)], capture_output=True, text=True)
    assert done.returncode
    assert "if __name__ == '__main__':" in done.stderr.splitlines()[-1]


def test_workers_end_with_their_runner(tmp_path):
    """Also if it is killed while they train."""
    code = write(
        tmp_path,
        "import subprocess\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"pathlib.Path({str(tmp_path)!r}, 'pids').write_text(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)",
    )
    study = study_of(code, {"any": {"learning_rate": 0.1}})
    (tmp_path / "study.toml").write_text(study.to_toml(tmp_path))
    runner = subprocess.Popen(
        [sys.executable, "-m", "levelfield", "run", "study.toml"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "pids").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert all(map(psutil.pid_exists, pids))
    runner.kill()
    runner.wait()
    deadline = time.monotonic() + 30
    while any(map(psutil.pid_exists, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(psutil.pid_exists, pids))


def test_a_run_can_be_interrupted_while_workers_load_the_code(tmp_path):
    code = write(tmp_path, "trial.report(trial.steps, train_loss=1.0)")
    with code.open("a") as file:
        file.write(
            f"if 'LEVELFIELD_WORKER' in os.environ:\n    open({str(tmp_path / 'loads')!r}, 'w')\n    time.sleep(600)\n"
        )
    (tmp_path / "study.toml").write_text(study_of(code, {"any": {"learning_rate": 0.1}}).to_toml(tmp_path))
    runner = subprocess.Popen(
        [sys.executable, "-m", "levelfield", "run", "study.toml"], cwd=tmp_path, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "loads").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    runner.send_signal(signal.SIGINT)
    assert runner.wait(30) == 130
