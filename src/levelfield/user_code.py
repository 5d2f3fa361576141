"""A study's own code: a Python file that registers workloads, rules and inclusions."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path

from levelfield.errors import LevelfieldError, StudyError

_run: set[str] = set()


def run_code(source: str) -> str:
    """Import the file, once in a process; what it imports may lie beside it. The file's whole path."""
    path = str(Path(source).resolve())
    if path in _run:
        return path
    if not Path(path).is_file():
        raise StudyError(f"code = {source!r}: no such file")
    name = f"{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if not (spec and spec.loader):
        raise StudyError(f"code = {source!r}: no Python file; its name has to end in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).parent))
    try:
        spec.loader.exec_module(module)
    except LevelfieldError as error:
        raise StudyError(f"code = {source!r}: {error}") from None
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        where = f"line {lines[-1]}, " if lines else ""
        reason = " ".join(str(error).split())
        raise StudyError(f"code = {source!r}: {where}{type(error).__name__}: {reason}") from error
    finally:
        sys.path.remove(str(Path(path).parent))
    _run.add(path)
    return path
