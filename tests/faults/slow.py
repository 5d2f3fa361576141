"""Functions that a forked command calls before it begins."""

from __future__ import annotations

import time

import sqlalchemy as sa


def slow_database() -> None:
    """Let every statement take some milliseconds, so that a runner spends most of its time inside transactions."""
    sa.event.listen(sa.Engine, "after_cursor_execute", lambda *_: time.sleep(0.003))


def slow_training() -> None:
    """Let each stretch of training take a while, so that something can happen in the middle of a run."""
    from levelfield.training.program import Program

    advance = Program.advance

    def slowly(*arguments: object) -> object:
        time.sleep(0.05)
        return advance(*arguments)

    Program.advance = slowly
