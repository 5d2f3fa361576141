"""Write the tables of docs/optimizers.md, which say what the code says; a test compares them.

python tools/optimizer_tables.py
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from levelfield.hyperparameters import Hyperparameter
from levelfield.optax_optimizers import optax_optimizers, refusal
from levelfield.rules import Rule, get_rule
from levelfield.schedules import SCHEDULES
from levelfield.suggestions import suggestion
from levelfield.taxonomy.inclusions import inclusions_between, known_inclusions
from levelfield.training.parts import parts
from levelfield.training.step import Job
from levelfield.workload import Workload
from levelfield.workloads import get_workload, workload_names

DOCUMENT = Path(__file__).resolve().parent.parent / "docs/optimizers.md"
OWN = ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam", "soap", "cautious_adamw")


def optimizers() -> str:
    trained = [get_rule(f"optax.{name}") for name in optax_optimizers() if not refusal(name)]
    return table(COLUMNS, [get_rule(name) for name in OWN] + trained)


def refused() -> str:
    columns = {"optimizer": lambda name: f"optax.{name}", "why it cannot be trained": refusal}
    return table(columns, filter(refusal, optax_optimizers()))


def searched(rule: Rule) -> str:
    return _listed({name: about for name, about in rule.hyperparameters.items() if _is_searched(about)})


def fixed(rule: Rule) -> str:
    others = {name: about for name, about in rule.hyperparameters.items() if not _is_searched(about)}
    return _listed({name: about for name, about in others.items() if about.kind != "object"})


def included(rule: Rule) -> str:
    """Return the rules that a rule includes, directly or through others, and in which limits."""
    by_limit: dict[str, list[str]] = {}
    for special in dict.fromkeys(inclusion.special for inclusion in known_inclusions()):
        if special != rule.name and (ways := inclusions_between(special, rule.name)):
            by_limit.setdefault("" if ways[0].exact else f" ({ways[0].how})", []).append(special)
    return "; ".join(", ".join(specials) + limit for limit, specials in by_limit.items())


def suggested(rule: Rule) -> str:
    """Return the search space to start from, wherever it is used."""
    return str(suggestion(rule.name))


# Header → what it says about a rule.
COLUMNS: dict[str, Callable[[Rule], str]] = {
    "optimizer": lambda rule: rule.name,
    "can be searched (default)": searched,
    "can be set (default)": fixed,
    "suggested space": suggested,
    "includes": included,
}


def _is_searched(about: Hyperparameter) -> bool:
    return about.numeric and about.traced


def _listed(hyperparameters: Mapping[str, Hyperparameter]) -> str:
    """Return names with their defaults, if they have one."""
    return ", ".join(f"{name}{_default(about)}" for name, about in hyperparameters.items())


def _default(about: Hyperparameter) -> str:
    if about.required or about.default is None:
        return ""
    shown = str(about.default) if isinstance(about.default, bool | str) else f"{about.default:g}"
    return f" ({shown.lower()})"


def schedules() -> str:
    columns: dict[str, Callable[[str], str]] = {
        "kind": lambda kind: kind,
        "numbers (default)": lambda kind: _listed(
            {name: about for name, about in SCHEDULES[kind].items() if name != "warmup_steps"}
        ),
        "learning rate at step t": FORMULAS.__getitem__,
    }
    return table(columns, SCHEDULES)


# x is the share of the decay that is over: t / (decay_steps · S), at most 1.
FORMULAS = {
    "constant": "η",
    "linear": "η · (1 − (1 − decay_factor) · x)",
    "step": "η · decay_factor ^ ⌊t / (decay_every · S)⌋, with decay_every · S rounded to whole steps",
    "cosine": "η · (decay_factor + (1 − decay_factor) · (1 + cos πx) / 2)",
    "polynomial": "η · (decay_factor + (1 − decay_factor) · (1 − x) ^ power)",
    "wsd": "η · (1 − (1 − decay_factor) · y) with y = max(0, 1 − (S − t) / (decay_steps · S))",
    "inverse_sqrt": "η / √(1 + t / (timescale · S))",
    "one_cycle": "up to R = rise_steps · S: η · (start_factor + (1 − start_factor) · (1 − cos(πt / R)) / 2); "
    "then η · (decay_factor + (1 − decay_factor) · (1 + cos(π(t − R) / (S − R))) / 2)",
}


def muon() -> str:
    """Return which parameters of each workload Muon updates."""
    columns: dict[str, Callable[[Workload], str]] = {
        "workload": lambda workload: workload.name,
        "Muon": lambda workload: _kinds(updated_by_muon(workload)),
        "also Muon with `reshape = true`": lambda workload: _kinds(
            updated_by_muon(workload, reshape=True) - updated_by_muon(workload)
        ),
        "AdamW": lambda workload: _kinds(_of_muon(workload, True)["adam"]),
    }
    workloads = [get_workload(name) for name in workload_names()]
    shown = [one for one in workloads if isinstance(one, Workload) and _of_muon(one, True)["muon"]]
    return table(columns, shown)


def updated_by_muon(workload: Workload, reshape: bool = False) -> set[str]:
    return set(_of_muon(workload, reshape)["muon"])


@functools.cache
def _of_muon(workload: Workload, reshape: bool) -> dict[str, dict[str, tuple[int, ...]]]:
    static = (("reshape", reshape),)
    rule = get_rule("optax.contrib.muon")
    return parts(Job(workload, rule, "constant", 1, workload.batch_size or 1, 1, ("learning_rate",), static))


def _kinds(names: Iterable[str]) -> str:
    """Return names that differ only in their numbers as one, with how often it occurs.

    >>> _kinds(["Conv_0/bias", "Conv_1/bias", "Dense_0/bias"])
    'Conv_\\*/bias (2), Dense_0/bias'
    """
    counts, example = Counter[str](), {}
    for name in sorted(names):
        kind = re.sub(r"\d+", r"\\*", name)
        counts[kind] += 1
        example[kind] = name
    return ", ".join(f"{kind} ({count})" if count > 1 else example[kind] for kind, count in counts.items())


def table(columns: Mapping[str, Callable[[Any], str]], rows: Iterable[Any]) -> str:
    lines = [list(columns), ["---"] * len(columns), *([cell(row) for cell in columns.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in lines)


TABLES = {"optimizers": optimizers, "refused": refused, "schedules": schedules, "muon": muon}


def written(document: str) -> str:
    """Return the document with the tables of this code between its markers."""
    for name, make in TABLES.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, _, rest = document.partition(begin)
        document = f"{before}{begin}\n{make()}\n{end}{rest.partition(end)[2]}"
    return document


if __name__ == "__main__":
    DOCUMENT.write_text(written(DOCUMENT.read_text("utf-8")), "utf-8")
