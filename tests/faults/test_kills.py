"""Runners that are killed at random moments: nothing is lost, doubled or different.

FAULTS_KILLS sets how many kills there are over all tests; `make faults` uses 1,000.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from databases import new_database
from processes import Commands, Running
from slow import slow_database
from stores import Pool, assert_complete, claimed, in_transaction, stored

KILLS = int(os.environ.get("FAULTS_KILLS", 4))
CASES = [("sqlite", 1), ("sqlite", 2), ("postgresql", 1), ("postgresql", 2)]


@dataclass
class Killer:
    """Keeps runners of the study alive on a store, and kills them."""

    commands: Commands
    location: str
    random: random.Random
    counts: Counter[str]
    runners: list[Running] = field(default_factory=list)

    def start(self) -> None:
        arguments = ("run", "study.toml", "--store", self.location, "--slots", "4")
        self.runners.append(self.commands.fork(*arguments, before=slow_database))

    def kill_one(self) -> bool:
        """Kill a runner while it starts, trains, or changes the store; return whether it was still running."""
        runner = self.random.choice(self.runners)
        phase = ("starting", "writing", "training", "writing")[self.counts.total() % 4]
        if not self._reached(phase, runner):
            return False
        before = stored(self.location)
        runner.send(signal.SIGKILL)
        assert runner.code() == -signal.SIGKILL
        self.runners.remove(runner)
        assert "Traceback" not in runner.err
        assert before <= stored(self.location), "a finished trial is lost"
        self.counts[phase] += 1
        return True

    def _reached(self, phase: str, runner: Running) -> bool:
        """Stop a runner at a random moment of a phase; return whether it was still running."""
        while phase != "starting" and runner.is_running and not claimed(self.location, runner.pid):
            time.sleep(0.02)
        time.sleep(self.random.uniform(0, 1.0 if phase == "starting" else 0.2))
        runner.send(signal.SIGSTOP)
        while runner.is_running and phase == "writing" and not self._is_writing(runner):
            runner.send(signal.SIGCONT)
            time.sleep(self.random.uniform(0, 0.01))
            runner.send(signal.SIGSTOP)
        return runner.is_running

    def _is_writing(self, runner: Running) -> bool:
        return in_transaction(self.location) and claimed(self.location, runner.pid) > 0

    def finish(self) -> None:
        for runner in self.runners:
            assert runner.code() == 0, runner.err
            assert "Traceback" not in runner.err
        self.runners.clear()


@pytest.mark.parametrize(("kind", "count"), CASES)
def test_killed_runners_lose_and_change_nothing(
    kind: str,
    count: int,
    commands: Commands,
    undisturbed: Pool,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    wanted, rounds, counts = KILLS // len(CASES), 0, Counter[str]()
    while counts.total() < wanted:
        assert rounds <= wanted, "runners are too fast to be killed, so the test shows nothing"
        location = str(tmp_path / f"{rounds}.db")
        if kind == "postgresql":
            location = new_database(request.getfixturevalue("postgres"))
        killer = Killer(commands, location, random.Random(f"{kind} {count} {rounds}"), counts)
        for _ in range(count):
            killer.start()
        while counts.total() < wanted and killer.kill_one():
            killer.start()
        killer.finish()
        assert_complete(tmp_path / "study.toml", location, undisturbed)
        rounds += 1
    print(f"{kind}, {count} at once, {rounds} rounds: {dict(counts)}")
