"""Training does not depend on its output: pipes that are closed, disks that are full, streams that are missing."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import struct
import subprocess
import sys
import termios
import threading
from pathlib import Path

import pytest

from levelfield.cli.output import _Lasting

STUDY = """
workload = "wilson"
steps = 200
eval_interval = 50
trials = 2
pool = 4

[optimizers.sgd]
learning_rate = { log = [1e-3, 1e-1] }
"""
TRIALS = 4
FULL = "levelfield: cannot write to stdout (No space left on device)\n"


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (tmp_path / "study.toml").write_text(STUDY)
    cache = tmp_path_factory.getbasetemp() / "cache"
    (tmp_path / "levelfield").write_text(
        f'#!/bin/sh\nJAX_COMPILATION_CACHE_DIR={cache} exec {sys.executable} -m levelfield "$@"\n'
    )
    (tmp_path / "levelfield").chmod(0o755)
    return tmp_path


def shell(folder: Path, command: str) -> tuple[int, str, str]:
    """Run a command of a shell; the exit code of a pipeline is that of levelfield."""
    found = subprocess.run(
        ["bash", "-c", f"{command}; exit ${{PIPESTATUS[0]}}"], cwd=folder, capture_output=True, text=True, timeout=120
    )
    return found.returncode, found.stdout, found.stderr


def stored(folder: Path) -> int:
    connection = sqlite3.connect(folder / "trials.db")
    try:
        return connection.execute("SELECT count(*) FROM trials").fetchone()[0]
    finally:
        connection.close()


@pytest.mark.parametrize("redirection", ["2>&1 | head -1", "2>/dev/full | true", ">&- 2>&-"])
def test_training_goes_on_without_its_output(folder, redirection):
    code, out, err = shell(folder, f"./levelfield run study.toml --store trials.db {redirection}")
    assert stored(folder) == TRIALS
    assert code == 0
    assert len(out.splitlines()) == redirection.count("head")
    assert err == ""


def test_a_run_whose_result_cannot_be_written_says_so(folder):
    code, out, err = shell(folder, "./levelfield run study.toml --store trials.db >/dev/full")
    assert stored(folder) == TRIALS
    assert (code, out) == (1, "")
    assert "4/4 feasible" in err
    assert "Traceback" not in err
    assert err.endswith("\n" + FULL)


@pytest.mark.parametrize("command", ["studies", "workloads --json", "--help"])
def test_results_that_cannot_be_written_are_an_error(folder, command):
    assert shell(folder, f"./levelfield {command} | true") == (0, "", "")
    assert shell(folder, f"./levelfield {command} >/dev/full") == (1, "", FULL)


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", "2>&1 | true", ">/dev/full 2>&1"])
def test_the_code_of_a_failure_stays(folder, redirection):
    assert shell(folder, f"./levelfield run missing.toml {redirection}") == (2, "", "")


def test_a_file_does_not_take_the_place_of_a_closed_stream(folder):
    code = (
        "from levelfield.cli.output import lasting_streams\n"
        "with lasting_streams(), open('file', 'w') as file: file.write(str(file.fileno()))"
    )
    assert shell(folder, f'{sys.executable} -c "{code}" <&- >&- 2>&-') == (0, "", "")
    assert int((folder / "file").read_text()) > 2


def test_a_pipe_that_another_program_made_non_blocking():
    """More than it can hold is written, and all of it arrives."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    content = os.urandom(1_000_000)
    with open(reading, "rb") as reader, _Lasting(writing, "w") as output:

        def write() -> None:
            left = content
            while left:
                left = left[output.write(left) :]
            output.close()

        thread = threading.Thread(target=write)
        thread.start()
        assert reader.read() == content
        thread.join()
    assert output.error is None


# Sentences

SENTENCES = """
from levelfield.cli.output import tell
tell("word " * 40)
tell("  " + "word " * 40)
tell("word " * 40, "  label ")
"""


def test_sentences_fit_the_terminal():
    controller, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    subprocess.run([sys.executable, "-c", SENTENCES], stdout=terminal, env=environment, check=True)
    os.close(terminal)
    lines = os.read(controller, 10_000).decode().splitlines()
    os.close(controller)
    assert 45 <= max(map(len, lines)) <= 50
    starts = [len(line) - len(line.lstrip()) for line in lines]
    plain, indented, labeled = starts[:4], starts[4:9], starts[9:]
    assert set(plain) == {0}
    assert indented == [2, 4, 4, 4, 4]
    assert labeled == [2, *[len("  label ")] * (len(labeled) - 1)]


def test_sentences_in_a_pipe_do_not_depend_on_the_terminal():
    environment = os.environ | {"COLUMNS": "50"}
    told = subprocess.run(
        [sys.executable, "-c", SENTENCES], capture_output=True, text=True, env=environment, check=True
    ).stdout
    assert 110 <= max(map(len, told.splitlines())) <= 120
