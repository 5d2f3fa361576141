"""Failed trials: kept until they finish, so that what went wrong can be looked up. No statistic counts them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Sequence

import sqlalchemy as sa

from levelfield.store.database import Database
from levelfield.store.schema import failures, trials
from levelfield.trial import FailedTrial, Failure

LONGEST_DETAILS = 20_000  # characters
_LONGEST_REASON = 1_000
# Control characters, which a terminal would obey, and halves of characters, which a database refuses.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def add(connection: sa.Connection, database: Database, optimizer: str, failed: Sequence[Failure]) -> None:
    """Add failures. A later failure of the same trial replaces the earlier one and adds an attempt."""
    insert = database.insert(failures)
    new = {name: insert.excluded[name] for name in ("reason", "details", "time", "host")}
    again = insert.on_conflict_do_update(
        index_elements=["optimizer", "index"], set_=new | {"attempts": failures.c.attempts + 1}
    )
    here = {"optimizer": optimizer, "attempts": 1, "time": time.time(), "host": socket.gethostname()}
    connection.execute(again, [here | _content(failure) for failure in failed])


def _content(failure: Failure) -> dict[str, int | str]:
    reason = _printable(" ".join(failure.reason.split()))[:_LONGEST_REASON]
    # What went wrong is at the end of a traceback, and of a worker's output.
    details = _printable(failure.details.replace("\r\n", "\n").strip("\n"))[-LONGEST_DETAILS:]
    return {"index": failure.point.index, "reason": reason, "details": details}


def _printable(text: str) -> str:
    return _UNPRINTABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def remove(connection: sa.Connection, optimizer: str, indices: Sequence[int]) -> None:
    connection.execute(sa.delete(failures).where(failures.c.optimizer == optimizer, failures.c.index.in_(indices)))


def read(connection: sa.Connection, optimizer: str) -> list[FailedTrial]:
    """Return the failures of an optimizer by index, except for trials that another runner has finished."""
    columns = [column for column in failures.c if column is not failures.c.optimizer]
    finished = sa.select(trials.c.index).where(trials.c.optimizer == optimizer).scalar_subquery()
    query = sa.select(*columns).where(failures.c.optimizer == optimizer, failures.c.index.not_in(finished))
    return [
        FailedTrial(index, _printable(reason), _printable(details), *rest)
        for index, reason, details, *rest in connection.execute(query.order_by(failures.c.index))
    ]
