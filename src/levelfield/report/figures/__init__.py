"""The figures of a report, one module each, found by looking into this package.

A module says where its figure stands among the others (``PLACE``) and makes it (``figure``, which returns None if the
results have nothing to show). Files of the same name beside it are optional: a script (.js), which recomputes the
panels that are live, and HTML (.html), which the page shows below each part.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from altair.utils import schemapi

from levelfield.analysis.results import Results
from levelfield.report.figure import Figure, optimizer_names


def figures(results: Results, protocols: Sequence[Results] = ()) -> list[Figure]:
    """Return every figure that the results have trials for, in the order of the page.

    ``protocols``: the results whose tuning protocols are compared; by default, only these.
    """
    if not optimizer_names(results).shown:
        return []
    drawn = []
    with schemapi.debug_mode(False):  # which would validate every part of every chart
        for module in _modules():
            if figure := module.figure(results, protocols or [results]):
                name = module.__name__.rpartition(".")[2].replace("_", "-")
                drawn.append(replace(figure, name=name, script=_beside(module, ".js"), html=_beside(module, ".html")))
    return drawn


def _modules() -> list[ModuleType]:
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return sorted((importlib.import_module(f"{__name__}.{name}") for name in names), key=lambda module: module.PLACE)


def _beside(module: ModuleType, suffix: str) -> str:
    path = Path(str(module.__file__)).with_suffix(suffix)
    return path.read_text("utf-8") if path.exists() else ""
