"""War and Peace, character by character, as DeepOBS prepares it; and reading text that may not be what it should."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt

from levelfield.datasets.cache import Writer
from levelfield.datasets.sources import Dataset, Remote, Say, check, find
from levelfield.errors import DataError

_PREPARED = "input.txt"  # DeepOBS's name for the text without what the publisher wrote around it
_PUBLISHED = "war-and-peace.txt"
_CHECKSUM = "md5:bd1e094502d466b56a711e00b3f71b14"


def read_war_and_peace(source: Path, *, verify: bool = True) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """The text as tokens, and the code point of each token.

    ``source`` holds DeepOBS's input.txt, or the book from which it is cut. Line ends stay as they are.
    """
    path = find(source, (_PREPARED, _PUBLISHED), ("tolstoi",))
    content = path.read_bytes()
    if path.name == _PUBLISHED:
        content = without_frame(content)
    text = decode(path, content)
    if verify:
        check(path, content, _CHECKSUM)
    return tokenize(path, text)


def without_frame(content: bytes) -> bytes:
    """The book as DeepOBS cuts it: without preamble, table of contents and licence."""
    lines = io.BytesIO(content).readlines()
    del lines[:29]
    del lines[4:775]
    del lines[63849:64207]
    return b"".join(lines)


def tokenize(path: Path, text: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint32]]:
    """Characters numbered by falling count; of two as frequent ones, the one that comes first in the text."""
    points = np.frombuffer(text.encode("utf-32-le"), "<u4")
    found, first, ids, counts = np.unique(points, return_index=True, return_inverse=True, return_counts=True)
    if not 0 < len(found) <= 256:
        raise DataError(f"{path}: {len(found)} different characters; a text of 1 to 256 is expected")
    order = np.lexsort((first, -counts))
    rank = np.empty(len(order), np.uint8)
    rank[order] = np.arange(len(order))
    return rank[ids], found[order].astype(np.uint32)


def decode(path: Path, content: bytes, start: int = 0) -> str:
    """Content as text; ``start`` is where in the file it begins."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: no valid UTF-8 at byte {start + error.start}") from None


def _write(source: Path, writer: Writer, sample: bool, say: Say) -> None:
    say(f"reading {source}")
    tokens, vocabulary = read_war_and_peace(source)
    writer.about["source"] = {_PREPARED: _CHECKSUM}
    writer.add("tokens", tokens)
    writer.add("vocabulary", vocabulary)


WAR_AND_PEACE = Dataset(
    summary="Tolstoy's novel in English, character by character: 3,266,185 characters, 83 different ones",
    write=_write,
    # Where DeepOBS takes it from. No checksum is published: that of the text cut from it decides.
    remotes=(
        Remote(f"https://github.com/AllenDowney/fluent-python-notebooks/raw/master/attic/sequences/{_PUBLISHED}", None),
    ),
)
