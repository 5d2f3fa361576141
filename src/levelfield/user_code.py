"""A study's own code: a Python file that registers workloads, rules and inclusions."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
from pathlib import Path

from levelfield.errors import LevelfieldError, StudyError

_run: dict[str, str] = {}  # file → digest of what was run
_running: list[str] = []
_owners: dict[tuple[str, str], str] = {}  # (kind, name) → the file that registered it


def run_code(source: str) -> str:
    """Import the file, once as long as it stays the same; what it imports may lie beside it. The file's whole path."""
    path = Path(source).resolve()
    if not path.is_file():
        raise StudyError(f"code = {source!r}: no such file")
    name, digest = str(path), hashlib.sha256(path.read_bytes()).hexdigest()
    if _run.get(name) == digest:
        return name
    module_name = f"{path.stem}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if not (spec and spec.loader):
        raise StudyError(f"code = {source!r}: no Python file; its name has to end in .py")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    _run[name] = digest
    _running.append(name)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del _run[name], sys.modules[module_name]
        if isinstance(error, LevelfieldError):
            raise StudyError(f"code = {source!r}: {error}") from None
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        where = f"line {lines[-1]}, " if lines else ""
        reason = " ".join(str(error).split())
        raise StudyError(f"code = {source!r}: {where}{type(error).__name__}: {reason}") from error
    finally:
        _running.pop()
    return name


def claim(kind: str, name: str) -> None:
    """Refuse a name that another file has registered: studies look it up when they train.

    The same file, or a notebook's cell that is run once more, may register it again.
    """
    file = _running[-1] if _running else ""
    other = _owners.get((kind, name), "")
    if file and other and file != other:
        raise StudyError(f"a {kind} called {name!r} is registered by {other}, too: choose another name")
    _owners[kind, name] = file
