"""Libraries that only some data sets need, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any

from levelfield.errors import DataError


def require(module: str, user: str) -> Any:
    """Import a library; raise with what to install if it is missing."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        package = "pillow" if error.name == "PIL" else error.name
        raise DataError(f"{user} needs {package}: pip install 'levelfield[data]'") from None
