"""levelfield: compare deep-learning optimizers on a level playing field.

    import levelfield as lf
    study = lf.load_study("study.toml")
    comparison = lf.compare(study, store="trials.db")
    comparison.table()

Names are imported on first use, so importing levelfield itself loads no JAX.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from levelfield.analysis.best_of import Estimate, best_of
    from levelfield.analysis.intervals import Interval, beats, interval, separated
    from levelfield.analysis.outcomes import Outcome
    from levelfield.comparison import Comparison, Summary, compare, ladder, refine, rerun_study, summary
    from levelfield.data import Data, Pass, Stream
    from levelfield.datasets import register_dataset
    from levelfield.datasets.sources import Dataset
    from levelfield.errors import LevelfieldError
    from levelfield.executors.base import Executor
    from levelfield.hyperparameters import Hyperparameter
    from levelfield.rules import Rule, optimizer, register_rule
    from levelfield.run import coverage
    from levelfield.store import Store
    from levelfield.study import Study, load_study
    from levelfield.suggestions import suggestion
    from levelfield.taxonomy.inclusions import Inclusion, register_inclusion
    from levelfield.taxonomy.order import inclusions
    from levelfield.taxonomy.simulation import simulate
    from levelfield.taxonomy.verify import verify
    from levelfield.training_code import Trainable, TrialRun, trainable
    from levelfield.trial import Target
    from levelfield.usual import departures
    from levelfield.workload import BaseWorkload, Workload
    from levelfield.workloads import register_workload

_MODULES = {
    "BaseWorkload": "workload",
    "Comparison": "comparison",
    "Data": "data",
    "Dataset": "datasets.sources",
    "Estimate": "analysis.best_of",
    "Executor": "executors.base",
    "Hyperparameter": "hyperparameters",
    "Interval": "analysis.intervals",
    "Inclusion": "taxonomy.inclusions",
    "LevelfieldError": "errors",
    "Outcome": "analysis.outcomes",
    "Pass": "data",
    "Rule": "rules",
    "Store": "store",
    "Stream": "data",
    "Study": "study",
    "Summary": "comparison",
    "Target": "trial",
    "Trainable": "training_code",
    "TrialRun": "training_code",
    "Workload": "workload",
    "beats": "analysis.intervals",
    "best_of": "analysis.best_of",
    "compare": "comparison",
    "coverage": "run",
    "departures": "usual",
    "inclusions": "taxonomy.order",
    "interval": "analysis.intervals",
    "ladder": "comparison",
    "load_study": "study",
    "optimizer": "rules",
    "refine": "comparison",
    "register_dataset": "datasets",
    "register_inclusion": "taxonomy.inclusions",
    "register_rule": "rules",
    "register_workload": "workloads",
    "rerun_study": "comparison",
    "separated": "analysis.intervals",
    "simulate": "taxonomy.simulation",
    "suggestion": "suggestions",
    "summary": "comparison",
    "trainable": "training_code",
    "verify": "taxonomy.verify",
}

__all__ = [
    "BaseWorkload",
    "Comparison",
    "Data",
    "Dataset",
    "Estimate",
    "Executor",
    "Hyperparameter",
    "Inclusion",
    "Interval",
    "LevelfieldError",
    "Outcome",
    "Pass",
    "Rule",
    "Store",
    "Stream",
    "Study",
    "Summary",
    "Target",
    "Trainable",
    "TrialRun",
    "Workload",
    "beats",
    "best_of",
    "compare",
    "coverage",
    "departures",
    "inclusions",
    "interval",
    "ladder",
    "load_study",
    "optimizer",
    "refine",
    "register_dataset",
    "register_inclusion",
    "register_rule",
    "register_workload",
    "rerun_study",
    "separated",
    "simulate",
    "suggestion",
    "summary",
    "trainable",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'levelfield' has no attribute {name!r}")
    return getattr(importlib.import_module(f"levelfield.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
