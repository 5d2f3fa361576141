"""What tests of several modules need: a tiny study, a study file, and where things are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import levelfield as lf

REPOSITORY = Path(__file__).resolve().parent.parent
FIXTURES = REPOSITORY / "tests/fixtures"

# The studies of fixtures/old_store.sqlite. The built-in ones of these names have changed since.
OLD_STUDIES = {name: str(FIXTURES / f"old_studies/{name}.toml") for name in ("wilson", "quadratic")}

SGD = {"rule": "sgd", "learning_rate": {"log": [1e-3, 1e-1]}}
MOMENTUM = {
    "rule": "momentum",
    "learning_rate": {"log": [1e-3, 1e-1]},
    "one_minus_momentum": {"log": [1e-2, 1e0]},
}


def make_study(optimizers: Mapping[str, Any] | None = None, **changes: Any) -> lf.Study:
    """Return a tiny study on the quadratic, by default of sgd and momentum; ``changes`` are fields of a study file."""
    content = {"workload": "quadratic", "steps": 4, "eval_interval": 2, "trials": 2, "pool": 4}
    tables = {"sgd": SGD, "momentum": MOMENTUM} if optimizers is None else dict(optimizers)
    return lf.Study(**content | {"optimizers": tables} | changes)


# The study file of the design: a schedule for all, a decoupled space, a fixed rule with its protocol.
STUDY_FILE = """
workload = "fashion_mini"
steps = 10_000
trials = 100        # K
pool = 500          # N
target = { metric = "valid_error", value = 0.066 }

[schedule]          # tuned with every optimizer
kind = "linear"
decay_steps = { uniform = [0.5, 1.0] }      # × steps
decay_factor = { choice = [1e-3, 1e-2, 1e-1] }

[optimizers.momentum]
learning_rate = { log = [1e-3, 1e-1] }
one_minus_momentum = { log = [1e-3, 1e0] }

[optimizers.adam]
"learning_rate/epsilon" = { log = [1e-1, 1e1] }   # decoupled; rmsprop: "learning_rate/sqrt(epsilon)"
one_minus_beta1 = { log = [1e-3, 1e0] }
one_minus_beta2 = { log = [1e-4, 1e0] }
epsilon = { log = [1e-6, 1e-2] }

[optimizers.adam_default]
rule = "adam"
protocol = "learning rate only"
learning_rate = { log = [1e-5, 1e-1] }
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-8
"""
