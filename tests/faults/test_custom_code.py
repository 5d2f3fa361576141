"""Custom code that raises, exits, hangs, or runs out of data; memory that runs out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import make_study
from processes import CACHE, Commands
from stores import Pool, claimed, read_pool, stored

from levelfield import registry, user_code
from levelfield.search import Search

STUDY = """
code = "my_code.py"
workload = "line"
steps = 20
eval_interval = 10
trials = 2
pool = 10

[optimizers.sgd]
rule = "my_sgd"
learning_rate = { log = [1e-3, 1e-1] }

[optimizers.momentum]
learning_rate = { log = [1e-3, 1e-1] }
momentum = 0.9
"""
CODE = """
import os, sys, time
import jax.numpy as jnp
import numpy as np
import optax
import levelfield as lf
from levelfield.data import Data, Stream

X = np.linspace(-1, 1, 8, dtype=np.float32)

def batches(seed, batch_size):
    for step in range(20):
        if seed == {seed} and step == 15:
            {data}
        yield X[:batch_size], 2 * X[:batch_size]

def loss(params, state, batch, key, hyperparameters):
    {loss}
    x, y = batch
    return jnp.mean((params * x - y) ** 2), state

def load():
    {load}
    return Data(Stream(8, (X[0], X[0]), batches), {{"train": (X, 2 * X)}})

def my_sgd(learning_rate):
    {rule}
    return optax.sgd(learning_rate)

lf.register_rule("my_sgd", my_sgd, {{"learning_rate": lf.Hyperparameter(0)}})
lf.register_workload(lf.Workload(
    name="line", summary="", batch_size=4, eval_interval=10,
    metrics={{"train_loss": "minimize"}}, select="train_loss",
    load=load,
    init=lambda key: (jnp.zeros(()), ()), loss=loss,
    evaluate=lambda params, state, batch: {{"loss": (params * batch[0] - batch[1]) ** 2}},
))
"""
RUN = ("run", "study.toml", "--store", "trials.db", "--slots", "4")


SEED = Search(make_study(), "sgd").point(7).seed  # of trial 7 of every optimizer


def write_code(folder: Path, data: str = "pass", loss: str = "pass", rule: str = "pass", load: str = "pass") -> None:
    """Write the study and its code, with faults: in the data of trial 7, in the loss, in the rule or in loading."""
    (folder / "study.toml").write_text(STUDY)
    (folder / "my_code.py").write_text(CODE.format(seed=SEED, data=data, loss=loss, rule=rule, load=load))


@pytest.fixture
def code(commands: Commands) -> Callable[..., None]:
    return functools.partial(write_code, commands.folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Pool:
    """The pool of a run without faults."""
    folder = tmp_path_factory.mktemp("whole")
    write_code(folder)
    Commands(folder, CACHE).run(*RUN)
    with registry.preserved(), user_code.preserved():
        return read_pool(folder / "study.toml", str(folder / "trials.db"))


FAULTS = [
    ("raise ValueError('no such file')", r"my_code.py, line \d+, ValueError: no such file"),
    ("sys.exit(0)", r"my_code.py, line \d+, SystemExit: 0"),
    ("return", "the training data ended after 15 of 20 batches"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=["raises", "exits", "ends"])
def test_data_that_fail_in_a_trial_spoil_only_that_trial(
    fault: str, reason: str, commands: Commands, tmp_path: Path, whole: Pool, code: Callable[..., None]
) -> None:
    """All others are trained and saved; after the code is fixed, only the missing trials are trained."""
    location = str(tmp_path / "trials.db")
    code(data=fault)
    runner = commands.fork(*RUN)
    assert runner.code() == 1, runner.err
    assert "Traceback" not in runner.err
    last = runner.err.splitlines()[-1]
    assert re.fullmatch(
        rf"levelfield: sgd: trial 7 failed: {reason}; momentum: trial 7 failed: {reason}; "
        r"all finished trials are saved in trials.db, and the next run trains the others",
        last,
    )
    before = stored(location)
    assert (len(before), {index for _, index in before}) == (18, set(range(10)) - {7})
    assert claimed(location) == 0
    code()
    fixed = commands.run(*RUN, "--stale", "keep")
    assert "failed" not in fixed.err
    assert before < stored(location)
    assert read_pool(tmp_path / "study.toml", location) == whole


def test_data_that_hang_end_the_run(commands: Commands, tmp_path: Path, code: Callable[..., None]) -> None:
    location = str(tmp_path / "trials.db")
    code(data="time.sleep(600)")
    runner = commands.fork(*RUN, LEVELFIELD_STALL_MINUTES="0.15")
    assert runner.code() == 1, runner.err
    (line,) = [line for line in runner.err.splitlines() if line.startswith("levelfield:")]
    assert re.search(r"seems to hang. It is at my_code.py, line \d+, in batches", line)
    assert f"{len(stored(location))} trials of this run are saved in trials.db." in line
    assert claimed(location) == 0
    assert commands.fork("status", *RUN[1:4]).code() == 0


@pytest.mark.parametrize(
    ("place", "late", "expected"),
    [("loss", False, 2), ("rule", False, 2), ("loss", True, 1), ("rule", True, 1), ("load", False, 1)],
)
def test_code_that_exits_is_not_mistaken_for_success(
    place: str, late: bool, expected: int, commands: Commands, code: Callable[..., None]
) -> None:
    """Exit code 2 if a check notices it before anything is written, otherwise 1."""
    code(**{place: "if os.path.exists('trials.db'): sys.exit(0)" if late else "sys.exit(0)"})
    runner = commands.fork(*RUN)
    assert runner.code() == expected, runner.err
    assert "Traceback" not in runner.err
    last = runner.err.splitlines()[-1]
    assert last.startswith("levelfield: ")
    assert "SystemExit: 0" in last
    code()
    commands.run(*RUN, "--stale", "keep")


def test_code_that_ends_the_process_loses_nothing(
    commands: Commands, tmp_path: Path, whole: Pool, code: Callable[..., None]
) -> None:
    code(data="os._exit(0)")
    commands.fork(*RUN).code()
    before = stored(str(tmp_path / "trials.db"))
    assert before
    code()
    commands.run(*RUN, "--stale", "keep")
    assert before < stored(str(tmp_path / "trials.db"))
    assert read_pool(tmp_path / "study.toml", str(tmp_path / "trials.db")) == whole


def little_memory() -> None:
    """Let more than two trials side by side run out of memory after the first evaluation."""
    _limit_slots(2)


def no_memory() -> None:
    _limit_slots(0)


def _limit_slots(most: int) -> None:
    import jax

    from levelfield.executors import _jax

    train = _jax.train

    def failing(compiled: Any, *arguments: Any) -> Iterator[Any]:
        for number, progress in enumerate(train(compiled, *arguments)):
            if compiled.slots > most and number == 1:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte.")
            yield progress

    _jax.train = failing


def test_a_run_that_is_short_of_memory_goes_on_with_fewer_slots(
    commands: Commands, tmp_path: Path, whole: Pool, code: Callable[..., None]
) -> None:
    code()
    runner = commands.run(*RUN, before=little_memory)
    assert "out of memory with 4 slots; continuing with 2" in runner.err
    assert read_pool(tmp_path / "study.toml", str(tmp_path / "trials.db")) == whole


def test_a_run_without_memory_ends_with_one_line(
    commands: Commands, tmp_path: Path, whole: Pool, code: Callable[..., None]
) -> None:
    code()
    runner = commands.fork(*RUN, before=no_memory)
    assert runner.code() == 1
    assert "Traceback" not in runner.err
    last = runner.err.splitlines()[-1]
    assert "a single trial with batch_size = 4 does not fit into memory; lower batch_size" in last
    assert claimed(str(tmp_path / "trials.db")) == 0
    commands.run(*RUN)
    assert read_pool(tmp_path / "study.toml", str(tmp_path / "trials.db")) == whole
