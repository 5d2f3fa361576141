"""Custom code of studies: a Python file that registers workloads, rules and inclusions."""

from __future__ import annotations

import ast
import atexit
import hashlib
import importlib
import importlib.util
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType

from levelfield.errors import LevelfieldError, StudyError, one_line
from levelfield.registry import is_running, registering

_loaded: dict[str, dict[str, str]] = {}  # code file → digests of the file and of its neighbors when it was run
_running: dict[str, dict[str, str]] = {}  # the same for code files that are being run
_folders: list[str] = []  # the folders of code files that were added to sys.path, the latest first
_neighbors: set[str] = set()  # names of the modules, imported or run, that lie in such a folder


def run_code(source: str) -> str:
    """Run a code file, unless it has been run and nothing has changed since; return its full path.

    The file may import modules that lie next to it. Once the file has been run, it may be deleted.
    """
    path = Path(source).resolve()
    file = str(path)
    if not path.is_file():
        if file in _loaded:
            return file
        raise StudyError(f"code = {source!r}: no such file")
    if is_running(file) or (file in _loaded and _is_unchanged(file)):
        return file
    if path.suffix != ".py":
        raise StudyError(f"code = {source!r}: expected a Python file, with a name that ends in .py")
    _search_first(str(path.parent))
    module_name = _module_name(path)
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec
    assert spec.loader
    before = set(sys.modules)
    sys.modules[module_name] = module = importlib.util.module_from_spec(spec)
    digests = _running[file] = _digests(path)
    _loaded.pop(file, None)
    try:
        with registering(file), redirect_stdout(sys.stderr):  # standard output has results, which may be JSON
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failure(source, file, error) from (None if isinstance(error, LevelfieldError) else error)
    else:
        _loaded[file] = digests
    finally:
        del _running[file]
        if file not in _loaded:
            del sys.modules[module_name]
        if module_name == path.stem:
            _neighbors.add(module_name)
        for name in sys.modules.keys() - before - {module_name}:
            if neighbor := _file_in(path.parent, name):
                _neighbors.add(name)
                digests[neighbor] = _digest(neighbor)
    return file


def code_digest(*files: str) -> str:
    """Return a digest of code files and of the modules next to them that they import; "" if there are no files.

    It does not depend on where the files lie, nor on what has been imported before.
    """
    return _joined({file: _loaded.get(file) or _running.get(file) or _digests(Path(file)) for file in files})


def present_digest(*files: str) -> str:
    """Return a digest of code files, and of the modules next to them, as they are now, whatever has been run."""
    return _joined({file: _digests(Path(file)) for file in files})


def _joined(files: Mapping[str, Mapping[str, str]]) -> str:
    parts: list[tuple[str, str]] = []
    for file, digests in files.items():
        folder = Path(file).parent
        parts += [(str(Path(name).relative_to(folder)), digest) for name, digest in digests.items()]
    return hashlib.sha256(repr(sorted(parts)).encode()).hexdigest()[:24] if files else ""


def code_files(file: str) -> dict[str, bytes]:
    """Return the content of a code file and of the modules next to it that it imports, by path in its folder."""
    if not Path(file).is_file():
        raise StudyError(f"code = {file!r}: no such file; other machines need it")
    folder, names = Path(file).parent, _loaded.get(file) or _digests(Path(file))
    return {str(Path(name).relative_to(folder)): Path(name).read_bytes() for name in names if Path(name).is_file()}


def place_code(file: str, files: Mapping[str, bytes]) -> str:
    """Return where a code file of another machine can be run; ``files`` is what ``code_files`` returned there.

    That is its own place if the same files lie there, or else a temporary folder.
    """
    here = {name: Path(file).parent / name for name in files}
    if all(path.is_file() and path.read_bytes() == files[name] for name, path in here.items()):
        return file
    folder = Path(tempfile.mkdtemp(prefix="levelfield-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return str(folder / Path(file).name)


def is_other_version(code: str, current: str) -> bool:
    """Return whether a trial's version of the code is known to differ from the current one."""
    return bool(code and current and code != current)


@contextmanager
def preserved() -> Iterator[None]:
    """Restore on exit which code has been run. Tests use it to leave nothing behind."""
    loaded, folders, path = _loaded.copy(), _folders.copy(), sys.path.copy()
    try:
        yield
    finally:
        _loaded.clear()
        _loaded.update(loaded)
        _folders[:], sys.path[:] = folders, path


def _failure(source: str, file: str, error: BaseException) -> StudyError:
    """Return the error of a code file in one line, with the line where it failed."""
    if isinstance(error, LevelfieldError):
        return StudyError(f"code = {source!r}: {error}")
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    where = f"line {lines[-1]}, " if lines else ""
    relative = isinstance(error, ImportError) and "relative import" in str(error)
    remedy = "; import a module next to the code file by its name, without a dot" if relative else ""
    return StudyError(f"code = {source!r}: {where}{one_line(error)}{remedy}")


def failure_line(error: BaseException) -> str:
    """Return an error of a trial in one line, with the place in custom code where it was raised, if it was there."""
    if isinstance(error, LevelfieldError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_custom(frame.filename)]
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}, " if frames else ""
    return f"{where}{one_line(error)}"


def failure_details(error: BaseException) -> str:
    """Return the traceback of an error; "" if it is one of levelfield's own, whose line says everything."""
    return "" if isinstance(error, LevelfieldError) else "".join(traceback.format_exception(error))


def place(frame: FrameType) -> str:
    """Return where a running thread is: the innermost line of custom code, or of any code if there is none."""
    frames = traceback.extract_stack(frame)
    inner = [summary for summary in frames if _is_custom(summary.filename)] or frames
    return f"{Path(inner[-1].filename).name}, line {inner[-1].lineno}, in {inner[-1].name}"


def _is_custom(file: str) -> bool:
    return any(file == known or Path(known).parent in Path(file).parents for known in _loaded)


def _search_first(folder: str) -> None:
    """Make the modules of a folder importable: after everything installed, before those of other code's folders."""
    for name in _neighbors:  # another folder may have modules of the same names, or these may have changed
        sys.modules.pop(name, None)
    _neighbors.clear()
    importlib.invalidate_caches()
    if folder in _folders:
        _folders.remove(folder)
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.insert(len(sys.path) - len(_folders), folder)
        _folders.insert(0, folder)


def _module_name(path: Path) -> str:
    """Return the name by which processes that custom code starts can import it, unless another module has that name."""
    if path.stem.isidentifier() and path.stem not in sys.modules:
        found = importlib.util.find_spec(path.stem)
        if found and found.origin == str(path):
            return path.stem
    return f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _imported_files(path: Path) -> set[str]:
    """Return a file and the files of its folder that it imports, directly or not, even inside of functions.

    Reads the import statements instead of running them, so that modules that are already imported count, too.
    """
    files: set[str] = set()
    unread = [path]
    while unread:
        current = unread.pop()
        if str(current) in files or not current.is_file():
            continue
        files.add(str(current))
        try:
            tree = ast.parse(current.read_bytes())
        except (SyntaxError, ValueError):  # running the file reports it
            continue
        for node in ast.walk(tree):
            for base, module in _imports(node, current, path.parent):
                places = [base.joinpath(*module[:length]) for length in range(1, len(module) + 1)]
                unread += [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py")]
    return files


def _imports(node: ast.AST, file: Path, folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield where an import statement starts to look, and the parts of each module's name."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield folder, alias.name.split(".")
    elif isinstance(node, ast.ImportFrom):
        base = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else folder
        if base.is_relative_to(folder):
            for alias in node.names:  # an imported name may be a module
                yield base, [*(node.module or "").split("."), alias.name] if node.module else [alias.name]


def _file_in(folder: Path, module: str) -> str | None:
    """Return a module's file if the module, or the package that it is part of, lies in the folder."""
    top = Path(getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or "/")
    file = getattr(sys.modules.get(module), "__file__", None)
    return file if folder in (top.parent, top.parent.parent if top.stem == "__init__" else None) else None


def _digests(path: Path) -> dict[str, str]:
    return {name: _digest(name) for name in _imported_files(path)}


def _is_unchanged(file: str) -> bool:
    return all(_digest(name) == digest for name, digest in _loaded[file].items())


def _digest(file: str) -> str:
    path = Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
