"""War and Peace, character by character, as DeepOBS prepares it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from levelfield.datasets.cache import Writer
from levelfield.datasets.sources import Dataset, Remote, Report, decode_utf8, find, verify_checksum
from levelfield.errors import DataError

_PREPARED = "input.txt"  # DeepOBS's name for the text without the publisher's additions
_PUBLISHED = "war-and-peace.txt"
_CHECKSUM = "md5:bd1e094502d466b56a711e00b3f71b14"


def read_war_and_peace(source: Path, *, verify: bool = True) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Return the text as tokens, and the code point of each token.

    ``source`` contains DeepOBS's input.txt or the book that it is cut from. Line endings stay as they are.
    """
    path = find(source, (_PREPARED, _PUBLISHED), ("tolstoi",))
    content = path.read_bytes()
    if path.name == _PUBLISHED:
        content = novel_alone(content)
    text = decode_utf8(path, content)
    if verify:
        verify_checksum(path, content, _CHECKSUM)
    return tokenize(path, text)


def novel_alone(content: bytes) -> bytes:
    """Cut the book as DeepOBS does: without preamble, table of contents and license."""
    lines = io.BytesIO(content).readlines()
    del lines[:29]
    del lines[4:775]
    del lines[63849:64207]
    return b"".join(lines)


def tokenize(path: Path, text: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Number characters by decreasing frequency; if two are equally frequent, the one that occurs first comes first."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    characters, first, ids, counts = np.unique(points, return_index=True, return_inverse=True, return_counts=True)
    if not 0 < len(characters) <= 256:
        raise DataError(f"{path}: {len(characters)} different characters; expected 1 to 256")
    order = np.lexsort((first, -counts))
    rank = np.empty(len(order), np.uint8)
    rank[order] = np.arange(len(order))
    return rank[ids], characters[order].astype(np.uint32)


def _write(source: Path, writer: Writer, sample: bool, report: Report) -> None:
    report(f"reading {source}")
    tokens, vocabulary = read_war_and_peace(source)
    writer.about["source"] = {_PREPARED: _CHECKSUM}
    writer.add("tokens", tokens)
    writer.add("vocabulary", vocabulary)


DATASET = Dataset(
    summary="Tolstoy's novel in English, character by character: 3,266,185 characters, 83 different ones",
    write=_write,
    # The source of DeepOBS. It publishes no checksum; the text that is cut from the file is verified instead.
    remotes=(
        Remote(f"https://github.com/AllenDowney/fluent-python-notebooks/raw/master/attic/sequences/{_PUBLISHED}", None),
    ),
)
