"""The store: every finished trial with its curve, hyperparameters, seed, timing and provenance.

SQLite by default, PostgreSQL if several machines write; both have the same schema. A trial is written once, when it has
finished, in one transaction with everything that belongs to it, so killing the process never leaves part of a trial.
Several runners share the work on a study: each claims the points that it is going to train (``claims``).
"""

from levelfield.store.claims import Runner, Worker
from levelfield.store.database import without_password
from levelfield.store.schema import SCHEMA_VERSION
from levelfield.store.store import Damage, Store

__all__ = ["SCHEMA_VERSION", "Damage", "Runner", "Store", "Worker", "without_password"]
