"""Which tests may be skipped in CI. Everything else that tests need must be installed there.

With the environment variable CI set, a skip for any other reason fails the run and is listed. Works with xdist.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

ACCEPTED = (
    r"no GPU",
    r"no network",
    r"no IPv6",
    r"no real data",  # data sets of gigabytes, which CI does not download
    r"levelfield data get",
)


class SkipPolicy:
    """A pytest plugin that fails a run in which something was skipped without an accepted reason."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.unexpected: set[str] = set()

    def _look_at(self, report: Any) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(re.search(pattern, reason) for pattern in ACCEPTED):
            self.unexpected.add(f"{report.nodeid}: {reason.removeprefix('Skipped: ')}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._look_at(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._look_at(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add what an xdist worker has seen: it keeps skipped modules to itself."""
        self.unexpected.update(getattr(node, "workeroutput", {}).get("unexpected_skips", ()))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput["unexpected_skips"] = sorted(self.unexpected)
        elif self.unexpected and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.unexpected:
            terminalreporter.section("skipped without an accepted reason; install what is missing", red=True)
            for line in sorted(self.unexpected):
                terminalreporter.write_line(line)
