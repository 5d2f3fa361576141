"""The One Billion Word Benchmark (Chelba et al. 2013), as tokens of a subword vocabulary that is trained on it."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from levelfield.data import Stream
from levelfield.datasets.cache import Writer, damaged
from levelfield.datasets.libraries import require
from levelfield.datasets.sources import Dataset, Remote, Report, decode_utf8, find, folders_at, tar_files
from levelfield.errors import DataError

PAD, BOS, EOS, UNK = range(4)
VOCABULARY = 32_000
_SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
_VOCABULARY_LINES = 1_000_000  # the vocabulary is trained on the first lines of the training text
_CHUNK = 10_000  # sentences that are written at once
_CACHED_WORDS = 2_000_000

_TOP = "1-billion-word-language-modeling-benchmark-r13output"
_TRAINING, _HELD_OUT = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
_TRAIN = [f"news.en-{i:05}-of-00100" for i in range(1, 100)]
_VALID, _TEST = (f"news.en.heldout-{i:05}-of-00050" for i in (0, 1))
_SHARD = re.compile(r"news\.en(\.heldout)?-\d{5}-of-\d{5}")
_TOKENIZER = "tokenizer.json"
_LARGEST_SHARD, _LARGEST_ARCHIVE = 100_000_000, 8_000_000_000  # bytes, unpacked; about twice what is published

Arrays = Mapping[str, npt.NDArray[Any]]


def stream_lm1b(arrays: Arrays, length: int) -> Stream:
    """Stream training sentences as rows like those of ``sentences``, in an order that depends on seed and epoch.

    Only the batches that are read ahead are held in memory.
    """
    count = len(arrays["train_offsets"]) - 1

    def batches(seed: int, batch_size: int) -> Iterator[npt.NDArray[np.int32]]:
        grain = require("grain", "lm1b")
        order = grain.MapDataset.range(count).seed(seed).shuffle().repeat().batch(batch_size)
        rows = order.map(lambda indices: sentences(arrays, "train", length, indices))
        return iter(rows.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))

    return Stream(count, sentences(arrays, "train", length, [0])[0], batches)


def sentences(arrays: Arrays, split: str, length: int, indices: Iterable[int]) -> npt.NDArray[np.int32]:
    """Return sentences as rows of ``length`` + 1 tokens: BOS, the sentence, EOS, padding. Longer sentences are cut.

    All tokens but the last are a model's input, all but the first its target.
    """
    tokens, offsets = np.asarray(arrays[f"{split}_tokens"]), np.asarray(arrays[f"{split}_offsets"])
    indices = np.asarray(indices)
    rows = np.full((len(indices), length + 1), PAD, np.int32)
    rows[:, 0] = BOS
    for row, start, end in zip(rows, offsets[indices].tolist(), offsets[indices + 1].tolist(), strict=True):
        size = min(end - start, length)
        row[1 : 1 + size] = tokens[start : start + size]
        row[1 + size : 2 + size] = EOS  # an empty slice if the sentence was cut
    return rows


def tokenizer(folder: Path) -> Any:
    """Return the vocabulary in a folder of the cache as a ``tokenizers.Tokenizer``, which encodes and decodes text."""
    return require("tokenizers", "lm1b").Tokenizer.from_file(str(folder / _TOKENIZER))


def train_vocabulary(lines: Iterable[str], size: int) -> Any:
    """Train a byte-level byte-pair encoding of words. It can encode any text and depends on the lines alone."""
    library = require("tokenizers", "lm1b")
    trained = library.Tokenizer(library.models.BPE())
    # The benchmark puts blanks between words and punctuation: split at blanks alone.
    trained.pre_tokenizer = library.pre_tokenizers.Sequence(
        [library.pre_tokenizers.WhitespaceSplit(), library.pre_tokenizers.ByteLevel(use_regex=False)]
    )
    trained.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=_SPECIAL,
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    trained.train_from_iterator(lines, trainer)
    trained.encode_special_tokens = True  # "<pad>" in a text is five characters
    return trained


def write_lm1b(source: Path, writer: Writer, sample: bool, report: Report, vocabulary: int = VOCABULARY) -> None:
    """Train the vocabulary on the first training sentences, then tokenize all shards one by one."""
    shards = _shards(_unpacked(source, writer, report), sample)
    report("training the vocabulary")
    text = chain.from_iterable(read_lines(path) for path in shards["train"])
    trained = train_vocabulary(islice(text, _VOCABULARY_LINES), vocabulary)
    trained.save(str(writer.folder / _TOKENIZER))
    words = _Words(trained)
    for split, paths in shards.items():
        tokens, offsets = writer.growing(f"{split}_tokens", np.uint16), writer.growing(f"{split}_offsets", np.int64)
        offsets.append([0])
        for i, path in enumerate(paths):
            report(f"{split}: {path.name} ({i + 1} of {len(paths)})")
            digest = hashlib.sha256()
            lines = read_lines(path, digest)
            while chunk := [b"".join(map(words.__getitem__, line.split())) for line in islice(lines, _CHUNK)]:
                offsets.append(tokens.length + np.cumsum([len(sentence) // 2 for sentence in chunk]))
                tokens.append(np.frombuffer(b"".join(chunk), np.uint16))
            writer.about["source"][path.name] = f"sha256:{digest.hexdigest()}"
        if not tokens.length:
            raise DataError(f"{paths[0]}: contains no sentence")
    writer.about |= {"sample": sample, "vocabulary": trained.get_vocab_size()}


class _Words(dict[str, bytes]):
    """Cache of the tokens of words, which do not depend on their neighbors: faster than encoding sentences."""

    def __init__(self, trained: Any) -> None:
        self._trained = trained

    def __missing__(self, word: str) -> bytes:
        tokens = np.array(self._trained.encode(word, add_special_tokens=False).ids, np.uint16).tobytes()
        if len(self) < _CACHED_WORDS:
            self[word] = tokens
        return tokens


def read_lines(path: Path, digest: Any = None) -> Iterator[str]:
    """Yield the lines of a file that are not empty, and update a digest with all of them."""
    position = 0
    with path.open("rb") as file:
        for line in file:
            if digest:
                digest.update(line)
            if stripped := decode_utf8(path, line, position).strip():
                yield stripped
            position += len(line)


def _unpacked(source: Path, writer: Writer, report: Report) -> Path:
    """Return a folder with the shards: the source, or where its archive is unpacked."""
    archive = f"{_TOP}.tar.gz"
    if source.is_dir() and any(_SHARD.fullmatch(path.name) for folder in _folders(source) for path in folder.iterdir()):
        return source
    try:
        path = find(source, [archive], ["lm1b"])
    except DataError:
        if not source.exists():
            raise
        raise DataError(f"{source}: contains neither {_TRAINING}/{_TRAIN[0]} nor {archive}") from None
    report(f"unpacking {path}")
    with tar_files(path, _SHARD.fullmatch, largest=_LARGEST_SHARD, total=_LARGEST_ARCHIVE) as files:
        for name, content in files:
            with (writer.scratch() / name).open("wb") as file:
                shutil.copyfileobj(content, file, 1 << 20)
    return writer.scratch()


def _folders(source: Path) -> list[Path]:
    """Return the folders that may contain shards."""
    tops = folders_at(source, (_TOP, "lm1b", f"lm1b/{_TOP}"))
    return [folder for top in tops for folder in folders_at(top, (_TRAINING, _HELD_OUT))]


def _shards(source: Path, sample: bool) -> dict[str, list[Path]]:
    """Return the files of each split. A sample may lack some: held-out ones then replace the training files."""
    paths = {path.name: path for folder in _folders(source) for path in folder.iterdir()}
    shards = {name: path for name, path in paths.items() if _SHARD.fullmatch(name)}
    if not sample:
        if missing := [name for name in (*_TRAIN, _VALID, _TEST) if name not in shards]:
            others = f" and {len(missing) - 1} more files of the benchmark are" if len(missing) > 1 else " is"
            raise DataError(f"{source}: {missing[0]}{others} missing")
        return {"train": [shards[name] for name in _TRAIN], "valid": [shards[_VALID]], "test": [shards[_TEST]]}
    train = [shards[name] for name in _TRAIN if name in shards]
    held_out = [shards[name] for name in sorted(shards) if "heldout" in name]
    needed = 2 if train else 3
    if len(held_out) < needed:
        raise DataError(f"{source}: {len(held_out)} held-out files; a sample needs at least {needed}")
    return {"train": train or held_out[2:], "valid": held_out[:1], "test": held_out[1:2]}


def _check(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise if the vocabulary is not the one that the tokens were written with."""
    path = folder / _TOKENIZER
    try:
        size = len(json.loads(path.read_bytes())["model"]["vocab"])
    except (OSError, ValueError, KeyError, TypeError):
        raise damaged(path, "lm1b") from None
    if size != about["vocabulary"]:
        raise DataError(f"{path}: a vocabulary of {size} tokens; expected {about['vocabulary']}, as in the text")


DATASET = Dataset(
    summary="English news sentences in random order, as tokens of a vocabulary of 32,000",
    write=write_lm1b,
    remotes=(
        Remote(
            f"http://www.statmt.org/lm-benchmark/{_TOP}.tar.gz",
            "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        ),
    ),
    check=_check,
)
