"""A study's own code: a Python file that registers workloads, rules and inclusions."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path

from levelfield.errors import LevelfieldError, StudyError
from levelfield.registry import is_running, registering

_run: dict[str, dict[str, str]] = {}  # file → digests of what was run: of itself and of the modules beside it
_folders: list[str] = []  # on Python's path for modules beside such files; the latest first
_beside: set[str] = set()  # names of the modules that were found there


def run_code(source: str) -> str:
    """Import the file, once as long as it stays the same; what it imports may lie beside it. The file's whole path."""
    path = Path(source).resolve()
    if not path.is_file():
        raise StudyError(f"code = {source!r}: no such file")
    name = str(path)
    if is_running(name) or (name in _run and all(_digest(file) == digest for file, digest in _run[name].items())):
        return name
    module_name = f"{path.stem}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if not (spec and spec.loader):
        raise StudyError(f"code = {source!r}: no Python file; its name has to end in .py")
    _lead(str(path.parent))
    before = set(sys.modules)
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    digests = {name: _digest(name)}
    _run.pop(name, None)
    try:
        with registering(name):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        if isinstance(error, LevelfieldError):
            raise StudyError(f"code = {source!r}: {error}") from None
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == name]
        where = f"line {lines[-1]}, " if lines else ""
        reason = " ".join(str(error).split())
        raise StudyError(f"code = {source!r}: {where}{type(error).__name__}: {reason}") from error
    else:
        _run[name] = digests
    finally:
        if name not in _run:
            del sys.modules[module_name]
        for each in sys.modules.keys() - before - {module_name}:
            if file := _lies_in(path.parent, each):
                _beside.add(each)
                digests[file] = _digest(file)
    return name


def code_digest(name: str) -> str:
    """Of a file that has been run, or still runs, and of the modules beside it, wherever they lie."""
    folder, digests = Path(name).parent, _run.get(name) or {name: _digest(name)}
    parts = sorted((str(Path(file).relative_to(folder)), digest) for file, digest in digests.items())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _lead(folder: str) -> None:
    """Let modules be found in a folder: after all that is installed, before those beside other code."""
    for each in _beside:  # of the same name, perhaps, or changed since
        sys.modules.pop(each, None)
    _beside.clear()
    importlib.invalidate_caches()
    if folder in _folders:
        _folders.remove(folder)
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.insert(len(sys.path) - len(_folders), folder)
        _folders.insert(0, folder)


def _lies_in(folder: Path, module: str) -> str | None:
    """The file of a module that is one of the folder's, or part of a package there."""
    top = Path(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "/")
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if folder in (top.parent, top.parent.parent if top.stem == "__init__" else None) else None


def _digest(file: str) -> str:
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
