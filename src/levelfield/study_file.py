"""Study files: TOML text to plain content and back. ``levelfield.study`` says what the content means."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from levelfield.errors import StudyError, UnknownName


def read_study(source: str | Path) -> dict[str, Any]:
    """Read a TOML file, or a built-in study by name. The study's name is the file's unless the file gives one."""
    path = Path(source)
    try:
        is_file = path.is_file()
    except OSError as error:
        raise StudyError(f"{source}: cannot read the file ({error.strerror})") from None
    if path.suffix == ".toml" or is_file:
        if not is_file:
            raise StudyError(f"{source}: no such file")
        text, name = _read(path), path.stem
    elif str(source) in (known := built_in_studies()):
        text, name = known[str(source)].read_text("utf-8"), str(source)
    elif Path(f"{source}.toml").is_file():
        raise StudyError(f"unknown study {str(source)!r}; did you mean the file {source}.toml?")
    else:
        expected = "the path to a .toml file or a built-in study ('levelfield studies' lists them)"
        raise UnknownName.of("study", str(source), known, expected)
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{source}: not valid TOML: {error}") from None
    if isinstance(content.get("code"), str):
        content["code"] = str(path.parent / content["code"])
    if "command" in content and isinstance(content.get("folder", ""), str):
        content["folder"] = str((path.parent / content.get("folder", "")).resolve())
    return {"name": name} | content


def built_in_studies() -> dict[str, Any]:
    """Return the file of each study that comes with levelfield, by name."""
    folder = resources.files("levelfield") / "studies"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8-sig")  # some editors start a file with a byte-order mark
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not valid TOML: not UTF-8 ({error.reason} at byte {error.start})") from None
    except OSError as error:
        raise StudyError(f"{path}: cannot read the file ({error.strerror})") from None


def to_toml(content: Mapping[str, Any]) -> str:
    """Write a study's content with one line for each hyperparameter.

    A schedule that all optimizers share is written once.
    """
    content = dict(content)
    tables, changes = content.pop("optimizers"), content.pop("refined", [])
    schedules = [table["schedule"] for table in tables.values()]
    shared = schedules[0] if schedules.count(schedules[0]) == len(schedules) else None
    lines = _lines(content)
    if shared:
        tables = {name: without_schedule(table) for name, table in tables.items()}
        lines += ["", "[schedule]", *_lines(shared)]
    for name, table in tables.items():
        lines += ["", f"[optimizers.{_key(name)}]", *_lines(table)]
    for change in changes:
        lines += ["", "[[refined]]", *_lines(change)]
    return "\n".join(lines) + "\n"


def optimizer_toml(name: str, table: Mapping[str, Any]) -> str:
    """Write the table of an optimizer."""
    return f"[optimizers.{_key(name)}]\n{table_toml(table)}"


def table_toml(table: Mapping[str, Any]) -> str:
    """Write the lines of a table, without its header."""
    return "".join(f"{line}\n" for line in _lines(table))


def without_schedule(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "schedule"}


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items()]


def _key(key: str) -> str:
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _value(value: Any) -> str:
    """Write a value on one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(_lines(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, float) and 1e6 <= abs(value) < math.inf:
        short = str(Decimal(repr(value)).normalize())  # 1E+10 for 10000000000.0
        if "E+" in short:
            return short.replace("E+", "e")
    return tomli_w.dumps({"x": value}).removeprefix("x = ").removesuffix("\n")
