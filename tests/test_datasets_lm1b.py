"""LM1B: the vocabulary, tokenized sentences, streams."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from dataset_files import complete_or_absent, pack, real

from levelfield import datasets
from levelfield.datasets import arrays, cache, get, lm1b
from levelfield.datasets.lm1b import stream_lm1b
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


def shards(folder: Path, held_out: int, train: int = 0, lines: int = 40) -> Path:
    """Write made-up sentences of made-up words, in files named and arranged as in the benchmark."""
    random = np.random.default_rng(0)
    words = ["".join(chr(97 + i) for i in random.integers(0, 26, 5)) for _ in range(200)]
    for part, files in (
        (lm1b._TRAINING, [f"news.en-{i:05}-of-00100" for i in range(1, train + 1)]),
        (lm1b._HELD_OUT, [f"news.en.heldout-{i:05}-of-00050" for i in range(held_out)]),
    ):
        (folder / part).mkdir()
        for file in files:
            chosen = [" ".join(random.choice(words, random.integers(1, 12))) for _ in range(lines)]
            (folder / part / file).write_text("\n".join(chosen) + "\n")
    return folder


def write_small(source: Path, name: str = "lm1b") -> None:
    """Do what ``get`` does, with a vocabulary small enough for a made-up text."""
    with cache.locked(name), cache.writing(name) as writer:
        lm1b.write_lm1b(source, writer, True, lambda line: None, vocabulary=500)


class TestLM1B:
    def test_names_what_is_missing(self, source, cache_folder):
        with pytest.raises(DataError, match=r"contains neither .*/news\.en-00001-of-00100 nor 1-billion-word"):
            get("lm1b", source)
        shards(source, held_out=2, train=97)
        with pytest.raises(DataError, match=r"news\.en-00098-of-00100 and 1 more files of the benchmark are missing"):
            get("lm1b", source)
        shutil.rmtree(source / lm1b._TRAINING)
        with pytest.raises(DataError, match="2 held-out files; a sample needs at least 3"):
            get("lm1b", source, sample=True)
        complete_or_absent(cache_folder)

    def test_the_whole_benchmark_splits_by_file(self, source):
        lines = []
        get("lm1b", shards(source, held_out=3, train=99, lines=2), report=lines.append)
        stored = arrays("lm1b")
        assert len(stored["train_offsets"]) == 2 * 99 + 1
        assert "train: news.en-00099-of-00100 (99 of 99)" in lines
        assert "valid: news.en.heldout-00000-of-00050 (1 of 1)" in lines
        assert "test: news.en.heldout-00001-of-00050 (1 of 1)" in lines
        about = datasets.about("lm1b")
        assert about["sample"] is False
        path = source / lm1b._TRAINING / "news.en-00042-of-00100"
        assert about["source"][path.name] == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"

    def test_rows_hold_the_sentences(self, source):
        write_small(shards(source, held_out=4))
        stored = arrays("lm1b")
        lines = (source / lm1b._HELD_OUT / "news.en.heldout-00000-of-00050").read_text().splitlines()
        assert len(stored["valid_offsets"]) == len(lines) + 1
        assert stored["valid_offsets"][-1] == len(stored["valid_tokens"])
        assert stored["valid_tokens"].dtype == np.uint16
        rows = lm1b.sentences(stored, "valid", 100, range(len(lines)))
        assert rows.shape == (len(lines), 101)
        assert (rows[:, 0] == lm1b.BOS).all()
        decode = lm1b.tokenizer(cache.folder("lm1b")).decode
        for row, line in zip(rows, lines, strict=True):
            sentence, rest = np.split(row[1:], np.flatnonzero(row[1:] == lm1b.EOS)[:1])
            assert decode(sentence.tolist()).strip() == line
            assert (rest[1:] == lm1b.PAD).all()

    def test_a_long_sentence_is_cut(self, source):
        write_small(shards(source, held_out=4))
        stored = arrays("lm1b")
        longest = int(np.diff(stored["valid_offsets"]).argmax())
        full, cut = (lm1b.sentences(stored, "valid", length, [longest])[0] for length in (100, 5))
        assert cut.tolist() == full[:6].tolist()
        assert lm1b.EOS not in cut

    def test_training_files_are_used_if_present(self, source):
        write_small(shards(source, held_out=2, train=3))
        assert len(arrays("lm1b")["train_offsets"]) == 3 * 40 + 1

    def test_from_the_archive(self, source, tmp_path):
        write_small(shards(source, held_out=4))
        expected = {name: np.array(array) for name, array in arrays("lm1b").items()}
        archive = pack(source, tmp_path / f"{lm1b._TOP}.tar.gz", lm1b._TOP)
        write_small(archive)
        assert all(np.array_equal(expected[name], array) for name, array in arrays("lm1b").items())
        assert not (cache.folder("lm1b") / "scratch").exists()

    def test_special_tokens_in_the_text_are_text(self, source):
        path = shards(source, held_out=4) / lm1b._HELD_OUT / "news.en.heldout-00000-of-00050"
        path.write_text("a <pad> b <eos>\n\n  \n")
        write_small(source)
        stored = arrays("lm1b")
        assert len(stored["valid_offsets"]) == 2  # empty lines do not count
        assert stored["valid_tokens"].min() > lm1b.UNK

    def test_names_file_and_byte_of_invalid_utf8(self, source, cache_folder):
        path = shards(source, held_out=4) / lm1b._HELD_OUT / "news.en.heldout-00001-of-00050"
        path.write_bytes(b"fine\nwrong \xe9\n")
        with pytest.raises(DataError, match=r"heldout-00001-of-00050: invalid UTF-8 at byte 11"):
            write_small(source)
        complete_or_absent(cache_folder)

    def test_refuses_an_empty_shard(self, source):
        (shards(source, held_out=4) / lm1b._HELD_OUT / "news.en.heldout-00001-of-00050").write_text("\n")
        with pytest.raises(DataError, match="heldout-00001-of-00050: contains no sentence"):
            write_small(source)

    def test_refuses_another_vocabulary(self, source):
        write_small(shards(source, held_out=4))
        path = cache.folder("lm1b") / "tokenizer.json"
        lm1b.train_vocabulary(["some other text"], 280).save(str(path))
        with pytest.raises(DataError, match=r"tokenizer\.json: a vocabulary of 2\d\d tokens; expected 500"):
            arrays("lm1b")
        path.write_text("{}")
        with pytest.raises(DataError, match=r"tokenizer\.json: missing or damaged"):
            arrays("lm1b")

    def test_the_vocabulary_does_not_depend_on_the_number_of_threads(self, source):
        shards(source, held_out=4)
        code = (
            "import sys, hashlib; from pathlib import Path; from levelfield.datasets import lm1b\n"
            "lines = [line for path in sorted(Path(sys.argv[1]).rglob('news*')) for line in lm1b.read_lines(path)]\n"
            "print(hashlib.sha256(lm1b.train_vocabulary(lines, 600).to_str().encode()).hexdigest())"
        )
        digests = {
            subprocess.run(
                [sys.executable, "-c", code, str(source)],
                env=os.environ | {"RAYON_NUM_THREADS": threads},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for threads in ("1", "3")
        }
        assert len(digests) == 1

    def test_stream(self, source):
        write_small(shards(source, held_out=4))
        stored = arrays("lm1b")
        stream = stream_lm1b(stored, 16)
        assert stream.examples == 80
        assert stream.example.shape == (17,)
        first, again, other = (list(islice(stream.batches(seed, 8), 20)) for seed in (5, 5, 6))
        assert all(batch.shape == (8, 17) for batch in first)
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
        epochs = np.concatenate(first).reshape(2, 80, 17)  # each holds every sentence once, in another order
        everything = sorted(map(tuple, lm1b.sentences(stored, "train", 16, range(80))))
        assert [sorted(map(tuple, epoch)) for epoch in epochs] == [everything] * 2
        assert not np.array_equal(*epochs)

    def test_real_sample(self):
        folder = real("lm1b")
        with pytest.raises(DataError, match=r"news\.en-00001-of-00100 and 99 more files of the benchmark are missing"):
            get("lm1b", folder)
        get("lm1b", folder, sample=True)
        stored = arrays("lm1b")
        assert datasets.about("lm1b")["vocabulary"] == lm1b.VOCABULARY
        assert len(stored["valid_offsets"]) == 6075 + 1
        assert stored["train_tokens"].max() < lm1b.VOCABULARY
        line = (folder / "news.en.heldout-00000-of-00050").read_text("utf-8").splitlines()[0]
        tokens = stored["valid_tokens"][: stored["valid_offsets"][1]].tolist()
        tokenizer = lm1b.tokenizer(cache.folder("lm1b"))
        assert tokenizer.decode(tokens).strip() == line
        assert tokenizer.encode(line).ids == tokens
        assert next(stream_lm1b(stored, 128).batches(0, 32)).shape == (32, 129)
