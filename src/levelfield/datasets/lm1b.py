"""The One Billion Word Benchmark: its sentences as tokens of a subword vocabulary trained on it."""

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
from levelfield.datasets.sources import Dataset, Remote, Say, find, need, opened, places
from levelfield.datasets.text import decode
from levelfield.errors import DataError

PAD, BOS, EOS, UNK = range(4)
VOCABULARY = 32_000
_SPECIAL = ["<pad>", "<bos>", "<eos>", "<unk>"]
_LINES = 1_000_000  # what the vocabulary is trained on: the first lines of the training text
_CHUNK = 10_000  # sentences written at once
_WORDS = 2_000_000  # words whose tokens are remembered

_TOP = "1-billion-word-language-modeling-benchmark-r13output"
_TRAINING, _HELD_OUT = "training-monolingual.tokenized.shuffled", "heldout-monolingual.tokenized.shuffled"
_TRAIN = [f"news.en-{i:05}-of-00100" for i in range(1, 100)]
_VALID, _TEST = (f"news.en.heldout-{i:05}-of-00050" for i in (0, 1))
_SHARD = re.compile(r"news\.en(\.heldout)?-\d{5}-of-\d{5}")
_TOKENIZER = "tokenizer.json"

Arrays = Mapping[str, npt.NDArray[Any]]


def stream_lm1b(arrays: Arrays, length: int) -> Stream:
    """Training sentences in an order of the seed's own, each epoch in another: rows as ``sentences`` gives them.

    Nothing is held in memory but the batches that are read ahead.
    """
    count = len(arrays["train_offsets"]) - 1

    def batches(seed: int, batch_size: int) -> Iterator[npt.NDArray[np.int32]]:
        grain = need("grain", "lm1b")
        order = grain.MapDataset.range(count).seed(seed).shuffle().repeat().batch(batch_size)
        rows = order.map(lambda indices: sentences(arrays, "train", length, indices))
        return iter(rows.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=4)))

    return Stream(count, sentences(arrays, "train", length, [0])[0], batches)


def sentences(arrays: Arrays, split: str, length: int, indices: Iterable[int]) -> npt.NDArray[np.int32]:
    """Sentences, one a row of ``length`` + 1 tokens: BOS, the sentence, EOS, PAD … PAD; a longer sentence is cut.

    All but the last token are a model's input, all but the first its target.
    """
    tokens, offsets = np.asarray(arrays[f"{split}_tokens"]), np.asarray(arrays[f"{split}_offsets"])
    indices = np.asarray(indices)
    rows = np.full((len(indices), length + 1), PAD, np.int32)
    rows[:, 0] = BOS
    for row, start, end in zip(rows, offsets[indices].tolist(), offsets[indices + 1].tolist(), strict=True):
        size = min(end - start, length)
        row[1 : 1 + size] = tokens[start : start + size]
        row[1 + size : 2 + size] = EOS  # nothing where the sentence was cut
    return rows


def tokenizer(folder: Path) -> Any:
    """The vocabulary in a folder of the cache, as a ``tokenizers.Tokenizer``: it decodes tokens, and encodes text."""
    return need("tokenizers", "lm1b").Tokenizer.from_file(str(folder / _TOKENIZER))


def train_vocabulary(lines: Iterable[str], size: int) -> Any:
    """Byte-level byte-pair encoding of words: it can write every text, and the same lines give the same one."""
    library = need("tokenizers", "lm1b")
    trained = library.Tokenizer(library.models.BPE())
    # The benchmark's words and signs stand apart: blanks alone divide them.
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
    trained.encode_special_tokens = True  # a text that holds "<pad>" holds five characters
    return trained


def write_lm1b(source: Path, writer: Writer, sample: bool, say: Say, vocabulary: int = VOCABULARY) -> None:
    """Shard after shard: the vocabulary from the first training sentences, then the tokens of all."""
    shards = _shards(_unpacked(source, writer, say), sample)
    say("training the vocabulary")
    lines = chain.from_iterable(read_lines(path) for path in shards["train"])
    trained = train_vocabulary(islice(lines, _LINES), vocabulary)
    trained.save(str(writer.folder / _TOKENIZER))
    words = _Words(trained)
    for split, paths in shards.items():
        tokens, offsets = writer.growing(f"{split}_tokens", np.uint16), writer.growing(f"{split}_offsets", np.int64)
        offsets.append([0])
        for i, path in enumerate(paths):
            say(f"{split}: {path.name} ({i + 1} of {len(paths)})")
            digest = hashlib.sha256()
            found = read_lines(path, digest)
            while chunk := [b"".join(map(words.__getitem__, line.split())) for line in islice(found, _CHUNK)]:
                offsets.append(tokens.length + np.cumsum([len(each) // 2 for each in chunk]))
                tokens.append(np.frombuffer(b"".join(chunk), np.uint16))
            writer.about["source"][path.name] = f"sha256:{digest.hexdigest()}"
        if not tokens.length:
            raise DataError(f"{paths[0]}: holds no sentence")
    writer.about |= {"sample": sample, "vocabulary": trained.get_vocab_size()}


class _Words(dict[str, bytes]):
    """A word's tokens, which do not depend on its neighbours: remembering them is faster than encoding sentences."""

    def __init__(self, trained: Any) -> None:
        self._trained = trained

    def __missing__(self, word: str) -> bytes:
        tokens = np.array(self._trained.encode(word, add_special_tokens=False).ids, np.uint16).tobytes()
        if len(self) < _WORDS:
            self[word] = tokens
        return tokens


def read_lines(path: Path, digest: Any = None) -> Iterator[str]:
    """The lines of a file that are not empty."""
    position = 0
    with path.open("rb") as file:
        for line in file:
            if digest:
                digest.update(line)
            if stripped := decode(path, line, position).strip():
                yield stripped
            position += len(line)


def _unpacked(source: Path, writer: Writer, say: Say) -> Path:
    """A folder with the shards: the source, or what its archive holds."""
    archive = f"{_TOP}.tar.gz"
    if source.is_dir() and any(_SHARD.fullmatch(path.name) for place in _places(source) for path in place.iterdir()):
        return source
    try:
        path = find(source, [archive], ["lm1b"])
    except DataError:
        if not source.exists():
            raise
        raise DataError(f"{source}: holds neither {_TRAINING}/{_TRAIN[0]} nor {archive}") from None
    say(f"unpacking {path}")
    with opened(path) as tar:
        for member in tar:
            name = Path(member.name).name
            content = tar.extractfile(member) if _SHARD.fullmatch(name) else None
            if content:
                with (writer.scratch() / name).open("wb") as file:
                    shutil.copyfileobj(content, file, 1 << 20)
    return writer.scratch()


def _places(source: Path) -> list[Path]:
    tops = places(source, (_TOP, "lm1b", f"lm1b/{_TOP}"))
    return [place for top in tops for place in places(top, (_TRAINING, _HELD_OUT))]


def _shards(source: Path, sample: bool) -> dict[str, list[Path]]:
    """The files of each split. A sample may lack any: held-out ones then stand in for the others."""
    found = {path.name: path for place in _places(source) for path in place.iterdir() if _SHARD.fullmatch(path.name)}
    if not sample:
        if missing := [name for name in (*_TRAIN, _VALID, _TEST) if name not in found]:
            others = f" and {len(missing) - 1} more files" if len(missing) > 1 else ""
            raise DataError(f"{source}: {missing[0]}{others} of the benchmark missing")
        return {"train": [found[name] for name in _TRAIN], "valid": [found[_VALID]], "test": [found[_TEST]]}
    train = [found[name] for name in _TRAIN if name in found]
    held_out = [found[name] for name in sorted(found) if "heldout" in name]
    if len(held_out) < 2 + (not train):
        raise DataError(f"{source}: {len(held_out)} held-out files are too few for a sample")
    return {"train": train or held_out[2:], "valid": held_out[:1], "test": held_out[1:2]}


def _check(folder: Path, about: Mapping[str, Any]) -> None:
    """Tokens mean nothing with another vocabulary than theirs."""
    path = folder / _TOKENIZER
    try:
        size = len(json.loads(path.read_bytes())["model"]["vocab"])
    except (OSError, ValueError, KeyError, TypeError):
        raise damaged(path, "lm1b") from None
    if size != about["vocabulary"]:
        raise DataError(f"{path}: a vocabulary of {size} tokens, but the text was written in {about['vocabulary']}")


LM1B = Dataset(
    summary="sentences of news in English, shuffled; tokens of a vocabulary of 32,000",
    write=write_lm1b,
    remotes=(
        Remote(
            f"http://www.statmt.org/lm-benchmark/{_TOP}.tar.gz",
            "sha256:01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
        ),
    ),
    check=_check,
)
