"""The tables of a store."""

from __future__ import annotations

import sqlalchemy as sa

SCHEMA_VERSION = 4  # 1 had neither claims nor digests, 2 no failures, 3 no step times

metadata = sa.MetaData()
meta = sa.Table(
    "levelfield",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
# One row for all trials with the same definition, whatever study they were run for.
optimizers = sa.Table(
    "optimizers",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("definition", sa.Text, nullable=False),  # JSON
    sa.Column("metrics", sa.Text, nullable=False),  # JSON: name → direction
)
provenance = sa.Table(
    "provenance",
    metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("content", sa.Text, nullable=False),  # JSON: versions, device, precision, …
)
trials = sa.Table(
    "trials",
    metadata,
    sa.Column("optimizer", sa.ForeignKey("optimizers.id"), primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True),
    sa.Column("status", sa.String(16), nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("hyperparameters", sa.Text, nullable=False),  # JSON
    sa.Column("steps", sa.LargeBinary, nullable=False),  # int64, little-endian: the steps of the curve
    sa.Column("curve", sa.LargeBinary, nullable=False),  # float32, little-endian: metrics by name × steps
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("provenance", sa.ForeignKey("provenance.id"), nullable=False),
    sa.Column("digest", sa.String(32)),  # of the rest of the row; trials of schema 1 have none
    sa.Index("trials_status", "optimizer", "status", "index"),
)

# The points that runs want and that have no trial yet. A row goes when its trial is stored.
claims = sa.Table(
    "claims",
    metadata,
    sa.Column("optimizer", sa.String(64), primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True),
    sa.Column("runner", sa.String(32), index=True),  # who trains it; NULL if nobody does
)
_FREE = claims.c.runner.is_(None)
sa.Index("claims_free", claims.c.optimizer, claims.c.index, postgresql_where=_FREE, sqlite_where=_FREE)
# How many points of an optimizer have been put into ``claims``: all of these have a claim or a trial.
queues = sa.Table(
    "queues",
    metadata,
    sa.Column("optimizer", sa.String(64), primary_key=True),
    sa.Column("end", sa.Integer, nullable=False),
)
runners = sa.Table(
    "runners",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("process", sa.String(255), nullable=False),  # distinguishes processes with the same id
    sa.Column("started", sa.Double, nullable=False),  # this and the next: seconds since the epoch, database's clock
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("lease", sa.Double, nullable=False),  # seconds after ``seen`` for which the runner keeps its claims
)
# The trials that have failed and not finished since. A row goes when its trial is stored.
failures = sa.Table(
    "failures",
    metadata,
    sa.Column("optimizer", sa.String(64), primary_key=True),
    sa.Column("index", sa.Integer, primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),  # of the last failure, like the rest
    sa.Column("details", sa.Text, nullable=False),
    sa.Column("attempts", sa.Integer, nullable=False),  # how many times it has failed
    sa.Column("time", sa.Double, nullable=False),  # seconds since the epoch
    sa.Column("host", sa.String(255), nullable=False),
)
# What a step of an optimizer takes on a device: the measurement with the most stretches of training.
step_times = sa.Table(
    "step_times",
    metadata,
    sa.Column("optimizer", sa.String(64), primary_key=True),
    sa.Column("device", sa.String(255), primary_key=True),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("slots", sa.Integer, nullable=False),
    sa.Column("stretches", sa.Integer, nullable=False),
    sa.Column("spread", sa.Double, nullable=False),
)
