"""The lock files: everything that ``make`` installs, with versions and hashes, from no particular place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE, DEV = "requirements.lock", "requirements-dev.lock"
FILES = pytest.mark.parametrize("file", [CORE, DEV])
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def entries(file: str) -> dict[str, list[str]]:
    """Return each pinned requirement with its hashes."""
    lines = (ROOT / file).read_text().replace("\\\n", " ").splitlines()
    return {line.partition("--hash")[0].strip(): HASH.findall(line) for line in lines}


@FILES
def test_every_version_is_pinned_with_hashes(file):
    found = entries(file)
    assert len(found) > 50
    for pinned, hashes in found.items():
        assert re.fullmatch(r"===?[^,*]+", str(Requirement(pinned).specifier)), pinned
        assert hashes, pinned


@FILES
def test_no_place_is_named(file):
    """Nothing but requirements and hashes: no index, address or path."""
    rest = HASH.sub("", (ROOT / file).read_text())
    assert not re.search(r"--|://|/| @ |#|\bfile\b", rest)


@FILES
def test_what_the_project_needs_is_locked(file):
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["build-system"]["requires"]]
    if file == DEV:
        needed += PROJECT["project"]["optional-dependencies"]["dev"]
    locked = [Requirement(pinned) for pinned in entries(file)]
    for requirement in map(Requirement, needed):
        versions = [each for each in locked if canonicalize_name(each.name) == canonicalize_name(requirement.name)]
        assert versions, requirement
        for each in versions:
            assert requirement.specifier.contains(next(iter(each.specifier)).version), (requirement, each)


def test_the_development_set_contains_the_core():
    core, dev = entries(CORE), entries(DEV)
    assert {pinned: dev.get(pinned) for pinned in core} == core


def test_make_installs_what_is_locked():
    """Without hashes there are only this project and what the Makefile says about each."""
    lines = [line.strip() for line in (ROOT / "Makefile").read_text().splitlines() if "$(INSTALL)" in line]
    locked = [line for line in lines if "--require-hashes" in line]
    assert [line.split()[-1] for line in locked] == [CORE, DEV]
    assert {line.split()[-1].strip('"') for line in lines if line not in locked} == {".", "torch==2.13.0+cpu", "optuna"}
