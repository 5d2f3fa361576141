"""In CI, a test may be skipped only for an accepted reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = """
from skip_policy import SkipPolicy

def pytest_configure(config):
    config.pluginmanager.register(SkipPolicy(config))
"""


@pytest.mark.parametrize("arguments", [[], ["-n", "2"]], ids=["one process", "xdist"])
@pytest.mark.parametrize(
    ("module", "listed"),
    [
        ("import pytest\ndef test(): pytest.skip('there is no GPU')", None),
        ("import pytest\n@pytest.mark.xfail\ndef test(): assert False", None),
        ("def test(): pass", None),
        ("import pytest\ndef test(): pytest.skip('no browser')", "test_it.py::test: no browser"),
        ("import pytest\npytest.importorskip('absent_library')", "could not import 'absent_library'"),
    ],
    ids=["accepted", "expected failure", "passed", "test", "module"],
)
def test_an_unexpected_skip_fails_the_run_and_is_listed(tmp_path, module, listed, arguments):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(module)
    (tmp_path / "test_other.py").write_text("def test(): pass")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == (1 if listed else 0), done.stdout + done.stderr
    if listed:
        assert "skipped without an accepted reason" in done.stdout
        assert listed in done.stdout
