"""Data sets: reading publishers' files, refusing broken ones, a cache that is whole or absent, streams."""

from __future__ import annotations

import functools
import gzip
import hashlib
import http.server
import io
import os
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from levelfield import datasets
from levelfield.datasets import (
    arrays,
    cache,
    get,
    imagenet,
    images,
    lm1b,
    names,
    sources,
    stream_imagenet,
    stream_lm1b,
    text,
)
from levelfield.datasets.splits import split
from levelfield.errors import DataError, UnknownName, UsageError

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
SAMPLES = Path(__file__).parent.parent.parent / "shared/data/imagenet-samples"


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path):
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def real(name: str) -> Path:
    """A folder of real data, as get-data lays them out; skips where there is none."""
    folder = Path(os.environ.get("LEVELFIELD_TEST_DATA", "/nonexistent")) / name
    if not folder.is_dir() and name == "fashion-mnist":
        folder = DEBIAN
    if not folder.is_dir() and name == "imagenet-samples":
        folder = SAMPLES
    if not folder.is_dir():
        pytest.skip(f"no real data: LEVELFIELD_TEST_DATA names no folder with {name}")
    return folder


def whole_or_absent(cache_folder: Path) -> None:
    """Nothing but locks, downloads and complete data sets."""
    for path in cache_folder.iterdir():
        assert path.name.endswith(".lock") or path.name == "downloads" or (path / "about.json").exists(), path


# Made-up files


def idx(array: np.ndarray, magic: bytes | None = None) -> bytes:
    header = magic or bytes([0, 0, 8, array.ndim])
    return header + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def fashion_mnist(folder: Path, n: int = 6) -> Path:
    random = np.random.default_rng(0)
    for part in ("train", "t10k"):
        pixels = random.integers(0, 256, (n, 28, 28), np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.arange(n, dtype=np.uint8))))
    return folder


def cifar(folder: Path, kind: images.Cifar, n: int = 4) -> Path:
    """Pixels that tell their place: red is the row, green the column, blue the image."""
    place = folder / kind.folder
    place.mkdir()
    row, column = np.mgrid[:32, :32]
    for file in (*kind.train, *kind.test):
        records = [
            bytes([i + 10] * (kind.labels - 1) + [i])
            + np.stack([row, column, np.full((32, 32), i)]).astype(np.uint8).tobytes()
            for i in range(n)
        ]
        (place / file).write_bytes(b"".join(records))
    return folder


def pack(folder: Path, archive: Path, top: str) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, top)
    return archive


CIFARS = [(images.read_cifar10, images._CIFAR10), (images.read_cifar100, images._CIFAR100)]


class TestFashionMNIST:
    def test_reads_four_files_packed_or_not(self, source):
        found = images.read_fashion_mnist(fashion_mnist(source), verify=False)
        assert {name: array.shape for name, array in found.items()} == {
            "train_images": (6, 28, 28),
            "train_labels": (6,),
            "test_images": (6, 28, 28),
            "test_labels": (6,),
        }
        for path in list(source.iterdir()):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        unpacked = images.read_fashion_mnist(source, verify=False)
        assert all(np.array_equal(found[name], unpacked[name]) for name in found)

    def test_finds_the_folder_below(self, source):
        (source / "fashion-mnist").mkdir()
        fashion_mnist(source / "fashion-mnist")
        assert len(images.read_fashion_mnist(source, verify=False)["train_labels"]) == 6

    @pytest.mark.parametrize(
        ("file", "damage", "message"),
        [
            ("train-images-idx3-ubyte.gz", lambda packed: packed[:-20], "truncated"),
            ("train-images-idx3-ubyte.gz", lambda packed: b"no gzip at all", "no gzip file"),
            ("train-images-idx3-ubyte.gz", lambda packed: packed[:50] + b"xxxx" + packed[54:], "damaged"),
            ("train-images-idx3-ubyte.gz", lambda packed: gzip.compress(b""), "empty"),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(b"\0\0\x08\x03\0\0"),
                "truncated in its header",
            ),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(gzip.decompress(packed)[:-1]),
                "truncated .4719 bytes, its header says 4720",
            ),
            ("train-images-idx3-ubyte.gz", lambda packed: gzip.compress(gzip.decompress(packed) + b"x"), "too long"),
            (
                "train-images-idx3-ubyte.gz",
                lambda packed: gzip.compress(idx(np.zeros((6, 32, 32), np.uint8))),
                "shape .32, 32., expected .28, 28.",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                lambda packed: gzip.compress(idx(np.zeros(6, np.uint8), b"\0\0\x0d\x01")),
                "begins with 00000d01, an idx file of this kind with 00000801",
            ),
            (
                "t10k-labels-idx1-ubyte.gz",
                lambda packed: gzip.compress(idx(np.array([0, 1, 10], np.uint8))),
                "label 10 of example 2 is out of range 0 to 9",
            ),
        ],
    )
    def test_refuses_broken_files_by_name(self, source, file, damage, message):
        path = fashion_mnist(source) / file
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(DataError, match=f"{file}: .*{message}"):
            images.read_fashion_mnist(source, verify=False)

    def test_refuses_other_images(self, source):
        with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not the published content"):
            get("fashion_mnist", fashion_mnist(source))

    def test_refuses_a_missing_file_and_unequal_numbers(self, source):
        (fashion_mnist(source) / "t10k-labels-idx1-ubyte.gz").unlink()
        with pytest.raises(DataError, match=r"source: holds no t10k-labels-idx1-ubyte\.gz nor t10k-labels-idx1-ubyte"):
            images.read_fashion_mnist(source, verify=False)
        (source / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.zeros(5, np.uint8))))
        with pytest.raises(DataError, match="6 test images, but 5 labels"):
            images.read_fashion_mnist(source, verify=False)

    def test_debians_package_is_found_by_itself(self, source, monkeypatch, cache_folder):
        """Its checksum decides as for any other: made-up files are refused, so they were looked at."""
        here = datasets._DATASETS["fashion_mnist"]._replace(installed=(fashion_mnist(source),))
        monkeypatch.setitem(datasets._DATASETS, "fashion_mnist", here)
        with pytest.raises(DataError, match=f"{source}/train-images-idx3-ubyte.gz: not the published"):
            get("fashion_mnist")
        whole_or_absent(cache_folder)

    def test_real(self):
        get("fashion_mnist", real("fashion-mnist"))
        found = arrays("fashion_mnist")
        assert found["train_images"].shape == (60_000, 28, 28)
        assert found["test_images"].shape == (10_000, 28, 28)
        assert all(array.dtype == np.uint8 for array in found.values())
        assert found["train_labels"][:5].tolist() == [9, 0, 0, 3, 0]
        assert np.bincount(found["train_labels"]).tolist() == [6000] * 10
        assert np.bincount(found["test_labels"]).tolist() == [1000] * 10


class TestCifar:
    @pytest.mark.parametrize(("read", "kind"), CIFARS)
    def test_pixels_and_labels_are_in_place(self, source, read, kind):
        found = read(cifar(source, kind), verify=False)
        assert found["train_images"].shape == (4 * len(kind.train), 32, 32, 3)
        assert found["test_images"][3, 5, 7].tolist() == [5, 7, 3]
        assert found["test_labels"].tolist() == [0, 1, 2, 3]
        assert found["train_labels"].tolist() == [0, 1, 2, 3] * len(kind.train)
        assert found["train_images"].flags.c_contiguous

    @pytest.mark.parametrize(("read", "kind"), CIFARS)
    def test_the_source_is_the_folder_the_archive_or_a_parent(self, source, read, kind):
        folder = cifar(source, kind) / kind.folder
        expected = read(source, verify=False)
        archive = pack(folder, source / kind.archive, kind.folder)
        for place in (folder, source, archive):
            found = read(place, verify=False)
            assert all(np.array_equal(expected[name], found[name]) for name in expected)
        shutil.rmtree(folder)
        assert np.array_equal(read(source, verify=False)["test_labels"], expected["test_labels"])

    @pytest.mark.parametrize(("read", "kind"), CIFARS)
    def test_refuses_broken_files_by_name(self, source, read, kind):
        file = next(iter(kind.test))
        path = cifar(source, kind) / kind.folder / file
        content = path.read_bytes()
        with pytest.raises(DataError, match=f"{next(iter(kind.train))}: not the published content .md5 "):
            read(source)
        path.write_bytes(content[:-1])
        with pytest.raises(DataError, match=f"{file}: truncated"):
            read(source, verify=False)
        path.write_bytes(b"")
        with pytest.raises(DataError, match=f"{file}: truncated"):
            read(source, verify=False)
        path.write_bytes(bytes([0] * (kind.labels - 1) + [kind.classes]) + content[kind.labels :])
        with pytest.raises(DataError, match=f"{file}: label {kind.classes} of example 0 is out of range"):
            read(source, verify=False)
        path.unlink()
        with pytest.raises(DataError, match=f"{kind.folder}: holds no {file}"):
            read(source, verify=False)

    def test_refuses_broken_archives_by_name(self, source):
        kind = images._CIFAR10
        folder = cifar(source, kind) / kind.folder
        archive = source / kind.archive
        (folder / "test_batch.bin").unlink()
        pack(folder, archive, kind.folder)
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: holds no test_batch\.bin"):
            images.read_cifar10(archive, verify=False)
        content = archive.read_bytes()
        archive.write_bytes(content[: len(content) // 2])
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: truncated"):
            images.read_cifar10(archive, verify=False)
        archive.write_bytes(b"no archive")
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: damaged, or no tar file \([^\n]*\)$"):
            images.read_cifar10(archive, verify=False)

    def test_refuses_a_folder_without_them(self, source):
        with pytest.raises(
            DataError, match=r"holds neither cifar-10-batches-bin/data_batch_1\.bin nor cifar-10-binary"
        ):
            get("cifar10", source)
        with pytest.raises(DataError, match="nowhere: no such file or folder"):
            get("cifar10", source / "nowhere")

    def test_real_10(self, source):
        folder = real("cifar-10")
        get("cifar10", folder)
        found = arrays("cifar10")
        assert found["train_images"].shape == (50_000, 32, 32, 3)
        assert found["train_labels"][:5].tolist() == [6, 9, 9, 4, 1]
        assert found["train_images"][0, 0, 0].tolist() == [59, 62, 63]
        assert np.bincount(found["train_labels"]).tolist() == [5000] * 10
        assert np.bincount(found["test_labels"]).tolist() == [1000] * 10

    def test_real_100(self):
        get("cifar100", real("cifar-100"))
        found = arrays("cifar100")
        assert found["train_labels"][:5].tolist() == [19, 29, 0, 11, 1]
        assert np.bincount(found["train_labels"]).tolist() == [500] * 100
        assert np.bincount(found["test_labels"]).tolist() == [100] * 100


class TestWarAndPeace:
    def test_ids_follow_falling_counts_then_first_appearance(self, source):
        (source / "input.txt").write_bytes("bé\r\nbaéb".encode())
        tokens, vocabulary = text.read_war_and_peace(source, verify=False)
        assert "".join(map(chr, vocabulary)) == "bé\r\na"
        assert tokens.tolist() == [0, 1, 2, 3, 0, 4, 1, 0]
        assert tokens.dtype == np.uint8

    def test_refuses_what_is_no_utf8_naming_the_byte(self, source):
        (source / "input.txt").write_bytes(b"war\xff")
        with pytest.raises(DataError, match=r"input\.txt: no valid UTF-8 at byte 3"):
            get("war_and_peace", source)

    def test_refuses_other_texts(self, source):
        (source / "input.txt").write_text("Anna Karenina")
        with pytest.raises(DataError, match=r"input\.txt: not the published content"):
            get("war_and_peace", source)
        (source / "input.txt").write_text("".join(map(chr, range(300))))
        with pytest.raises(DataError, match="300 different characters"):
            text.read_war_and_peace(source, verify=False)
        (source / "input.txt").unlink()
        with pytest.raises(DataError, match=r"source: holds no input\.txt"):
            get("war_and_peace", source)

    def test_real(self):
        get("war_and_peace", real("tolstoi"))
        found = arrays("war_and_peace")
        tokens, vocabulary = found["tokens"], found["vocabulary"]
        assert len(tokens) == 3_266_185
        assert len(vocabulary) == 83
        assert len(tokens) - int(0.2 * len(tokens)) == 2_612_948  # what DeepOBS trains on
        assert ord("\r") in vocabulary
        assert "".join(map(chr, vocabulary[tokens[:13]])) == "WAR AND PEACE"
        assert (np.diff(np.bincount(tokens)) <= 0).all()

    def test_real_book_is_cut_as_deepobs_does(self, source):
        lines = io.BytesIO((real("tolstoi") / "input.txt").read_bytes()).readlines()
        frame = [b"frame\r\n"]
        book = frame * 29 + lines[:4] + frame * 771 + lines[4:] + frame * 358
        (source / "war-and-peace.txt").write_bytes(b"".join(book))
        get("war_and_peace", source)
        assert len(arrays("war_and_peace")["tokens"]) == 3_266_185


def shards(folder: Path, held_out: int, train: int = 0, lines: int = 40) -> Path:
    """Made-up sentences of made-up words, in files named and placed as the benchmark's are."""
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
    """As ``get``, with a vocabulary small enough for a made-up text."""
    with cache.locked(name), cache.writing(name) as writer:
        lm1b.write_lm1b(source, writer, True, lambda line: None, vocabulary=500)


class TestLM1B:
    def test_refuses_what_is_incomplete_naming_it(self, source, cache_folder):
        with pytest.raises(DataError, match=r"holds neither .*/news\.en-00001-of-00100 nor 1-billion-word"):
            get("lm1b", source)
        shards(source, held_out=2, train=97)
        with pytest.raises(DataError, match=r"news\.en-00098-of-00100 and 1 more files of the benchmark missing"):
            get("lm1b", source)
        shutil.rmtree(source / lm1b._TRAINING)
        with pytest.raises(DataError, match="2 held-out files are too few for a sample"):
            get("lm1b", source, sample=True)
        whole_or_absent(cache_folder)

    def test_the_whole_benchmark_splits_by_file(self, source):
        said = []
        get("lm1b", shards(source, held_out=3, train=99, lines=2), say=said.append)
        found = arrays("lm1b")
        assert len(found["train_offsets"]) == 2 * 99 + 1
        assert "train: news.en-00099-of-00100 (99 of 99)" in said
        assert "valid: news.en.heldout-00000-of-00050 (1 of 1)" in said
        assert "test: news.en.heldout-00001-of-00050 (1 of 1)" in said
        about = datasets.about("lm1b")
        assert about["sample"] is False
        path = source / lm1b._TRAINING / "news.en-00042-of-00100"
        assert about["source"][path.name] == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"

    def test_rows_hold_the_sentences(self, source):
        write_small(shards(source, held_out=4))
        found = arrays("lm1b")
        lines = (source / lm1b._HELD_OUT / "news.en.heldout-00000-of-00050").read_text().splitlines()
        assert len(found["valid_offsets"]) == len(lines) + 1
        assert found["valid_offsets"][-1] == len(found["valid_tokens"])
        assert found["valid_tokens"].dtype == np.uint16
        rows = lm1b.sentences(found, "valid", 100, range(len(lines)))
        assert rows.shape == (len(lines), 101)
        assert (rows[:, 0] == lm1b.BOS).all()
        decode = lm1b.tokenizer(cache.folder("lm1b")).decode
        for row, line in zip(rows, lines, strict=True):
            sentence, rest = np.split(row[1:], np.flatnonzero(row[1:] == lm1b.EOS)[:1])
            assert decode(sentence.tolist()).strip() == line
            assert (rest[1:] == lm1b.PAD).all()

    def test_a_long_sentence_is_cut(self, source):
        write_small(shards(source, held_out=4))
        found = arrays("lm1b")
        longest = int(np.diff(found["valid_offsets"]).argmax())
        full, cut = (lm1b.sentences(found, "valid", length, [longest])[0] for length in (100, 5))
        assert cut.tolist() == full[:6].tolist()
        assert lm1b.EOS not in cut

    def test_training_files_are_taken_where_they_are(self, source):
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
        found = arrays("lm1b")
        assert len(found["valid_offsets"]) == 2  # empty lines are none
        assert found["valid_tokens"].min() > lm1b.UNK

    def test_refuses_what_is_no_utf8_naming_file_and_byte(self, source, cache_folder):
        path = shards(source, held_out=4) / lm1b._HELD_OUT / "news.en.heldout-00001-of-00050"
        path.write_bytes(b"fine\nwrong \xe9\n")
        with pytest.raises(DataError, match=r"heldout-00001-of-00050: no valid UTF-8 at byte 11"):
            write_small(source)
        whole_or_absent(cache_folder)

    def test_refuses_an_empty_shard(self, source):
        (shards(source, held_out=4) / lm1b._HELD_OUT / "news.en.heldout-00001-of-00050").write_text("\n")
        with pytest.raises(DataError, match="heldout-00001-of-00050: holds no sentence"):
            write_small(source)

    def test_refuses_another_vocabulary(self, source):
        write_small(shards(source, held_out=4))
        path = cache.folder("lm1b") / "tokenizer.json"
        lm1b.train_vocabulary(["some other text"], 280).save(str(path))
        with pytest.raises(DataError, match=r"tokenizer\.json: a vocabulary of 2\d\d tokens, .* in 500"):
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
        found = {
            subprocess.run(
                [sys.executable, "-c", code, str(source)],
                env=os.environ | {"RAYON_NUM_THREADS": threads},
                check=True,
                capture_output=True,
                text=True,
            ).stdout
            for threads in ("1", "3")
        }
        assert len(found) == 1

    def test_stream(self, source):
        write_small(shards(source, held_out=4))
        found = arrays("lm1b")
        stream = stream_lm1b(found, 16)
        assert stream.examples == 80
        assert stream.example.shape == (17,)
        first, again, other = (list(islice(stream.batches(seed, 8), 20)) for seed in (5, 5, 6))
        assert all(batch.shape == (8, 17) for batch in first)
        assert np.array_equal(first, again)
        assert not np.array_equal(first, other)
        epochs = np.concatenate(first).reshape(2, 80, 17)  # each holds every sentence once, in another order
        everything = sorted(map(tuple, lm1b.sentences(found, "train", 16, range(80))))
        assert [sorted(map(tuple, epoch)) for epoch in epochs] == [everything] * 2
        assert not np.array_equal(*epochs)

    def test_real_sample(self):
        folder = real("lm1b")
        with pytest.raises(DataError, match=r"news\.en-00001-of-00100 and 99 more files of the benchmark missing"):
            get("lm1b", folder)
        get("lm1b", folder, sample=True)
        found = arrays("lm1b")
        assert datasets.about("lm1b")["vocabulary"] == lm1b.VOCABULARY
        assert len(found["valid_offsets"]) == 6075 + 1
        assert found["train_tokens"].max() < lm1b.VOCABULARY
        line = (folder / "news.en.heldout-00000-of-00050").read_text("utf-8").splitlines()[0]
        tokens = found["valid_tokens"][: found["valid_offsets"][1]].tolist()
        tokenizer = lm1b.tokenizer(cache.folder("lm1b"))
        assert tokenizer.decode(tokens).strip() == line
        assert tokenizer.encode(line).ids == tokens
        assert next(stream_lm1b(found, 128).batches(0, 32)).shape == (32, 129)


def photographs() -> list[Path]:
    return sorted(real("imagenet-samples").glob("*.JPEG"))


def arranged(root: Path, per_class: int = 2) -> Path:
    """The samples as classes of the training set, and one of each class in the validation set, flat."""
    (root / "val").mkdir(parents=True)
    for i, path in enumerate(photographs()):
        folder = root / "train" / f"n{i // per_class:08}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.name)
        if i % per_class == 0:
            shutil.copy(path, root / "val" / f"ILSVRC2012_val_{i // per_class + 1:08}.JPEG")
    return root


def development_kit(root: Path, numbers: list[int]) -> None:
    """Class i has the number numbers[i], which is not its place among the sorted wnids."""
    from scipy.io import savemat

    classes = np.zeros(len(numbers), [("ILSVRC2012_ID", "O"), ("WNID", "O"), ("num_children", "O")])
    for i, number in enumerate(numbers):
        classes[i] = (number, f"n{i:08}", 0)
    savemat(root / "meta.mat", {"synsets": classes})
    (root / imagenet._TRUTH).write_text("".join(f"{number}\n" for number in numbers))


class TestImageNet:
    def test_index_by_class_folders(self, source):
        arranged(source)
        for path in (source / "val").iterdir():
            folder = source / "val" / f"n{int(path.stem[-8:]) - 1:08}"
            folder.mkdir()
            path.rename(folder / path.name)
        get("imagenet", source, sample=True)
        found = arrays("imagenet")
        assert found["train_labels"].tolist() == [i // 2 for i in range(16)]
        assert found["valid_labels"].tolist() == list(range(8))
        assert found["wnids"].tolist() == [f"n{i:08}".encode() for i in range(8)]
        for path in (*found["train_paths"], *found["valid_paths"]):
            assert Path(os.fsdecode(found["root"][0]), os.fsdecode(path)).is_file()

    def test_index_of_flat_validation_images(self, source):
        """The development kit numbers classes in an order of its own."""
        development_kit(arranged(source), [7, 3, 1, 8, 2, 5, 4, 6])
        found = imagenet.index_imagenet(source, sample=True)
        assert found["valid_labels"].tolist() == list(range(8))

    def test_refuses_what_is_incomplete_naming_it(self, source, cache_folder):
        with pytest.raises(DataError, match=r"imagenet cannot be downloaded: run .*--from DIR"):
            get("imagenet")
        with pytest.raises(DataError, match="source: holds no folder train"):
            get("imagenet", source)
        (source / "train").mkdir()
        with pytest.raises(DataError, match="train: holds no folder named by a wnid"):
            get("imagenet", source)
        (source / "train/n00000001").mkdir()
        with pytest.raises(DataError, match="n00000001: holds no image"):
            get("imagenet", source)
        (source / "train/n00000001/a.JPEG").touch()
        with pytest.raises(DataError, match="source: holds no folder val"):
            get("imagenet", source)
        (source / "val").mkdir()
        with pytest.raises(DataError, match="val: holds no image"):
            get("imagenet", source)
        (source / "val/n00000002").mkdir()
        (source / "val/n00000002/a.JPEG").touch()
        with pytest.raises(DataError, match=r"val/n00000002: no such class in .*train"):
            get("imagenet", source)
        (source / "val/n00000002").rename(source / "val/n00000001")
        with pytest.raises(DataError, match="source: 1 classes, expected 1000"):
            get("imagenet", source)
        whole_or_absent(cache_folder)

    def test_refuses_a_wrong_development_kit(self, source):
        (source / "train/n00000000").mkdir(parents=True)
        (source / "train/n00000000/a.JPEG").touch()
        (source / "val").mkdir()
        (source / "val/ILSVRC2012_val_00000002.JPEG").touch()
        with pytest.raises(DataError, match=f"holds no {imagenet._TRUTH}"):
            imagenet.index_imagenet(source, sample=True)
        (source / imagenet._TRUTH).write_text("1\n")
        with pytest.raises(DataError, match=r"holds no meta\.mat"):
            imagenet.index_imagenet(source, sample=True)
        development_kit(source, [1])
        with pytest.raises(DataError, match=r"1 lines, none for val/ILSVRC2012_val_00000002\.JPEG"):
            imagenet.index_imagenet(source, sample=True)
        (source / imagenet._TRUTH).write_text("1\n1001\n")
        with pytest.raises(DataError, match="line 2: no class has the number '1001'"):
            imagenet.index_imagenet(source, sample=True)
        (source / "meta.mat").write_bytes(b"no matrix")
        with pytest.raises(DataError, match=r"meta\.mat: not the development kit's list"):
            imagenet.index_imagenet(source, sample=True)
        development_kit(source, [1])
        (source / "val/ILSVRC2012_val_00000002.JPEG").rename(source / "val/other.JPEG")
        with pytest.raises(DataError, match=r"val/other\.JPEG: not named ILSVRC2012_val"):
            imagenet.index_imagenet(source, sample=True)

    def test_another_folder_is_indexed_anew(self, source, tmp_path):
        development_kit(arranged(source), list(range(1, 9)))
        get("imagenet", source, sample=True)
        moved = source.rename(tmp_path / "moved")
        assert arrays("imagenet")["root"][0] == os.fsencode(source)
        with pytest.raises(DataError, match=r"train/n00000000/.*JPEG: no such file; run 'levelfield data get imagenet"):
            imagenet.evaluation_images(arrays("imagenet"), "train", [0])
        get("imagenet", moved, sample=True)
        assert arrays("imagenet")["root"][0] == os.fsencode(moved)

    def test_decoding_scales_the_shorter_side_and_crops(self, tmp_path):
        from PIL import Image

        ramp = np.tile(np.arange(600, dtype=np.float32) / 600 * 255, (300, 1)).astype(np.uint8)
        path = tmp_path / "ramp.png"
        for turn in (ramp, ramp.T):
            Image.fromarray(turn).save(path)  # grey: three equal channels
            for place, left, right in ((0.0, 0, 127), (0.5, 64, 191), (1.0, 127, 255)):
                found = imagenet.decode(path, 256, place)
                found = found if turn is ramp else found.swapaxes(0, 1)
                assert found.shape == (256, 256, 3)
                assert found.dtype == np.uint8
                assert (found == found[:1, :, :1]).all()
                assert abs(int(found[0, 0, 0]) - left) <= 2
                assert abs(int(found[0, -1, 0]) - right) <= 2
            assert imagenet.decode(path, 224).shape == (224, 224, 3)

    def test_images_of_other_colours_become_rgb(self, tmp_path):
        from PIL import Image

        for mode in ("L", "CMYK", "RGB"):
            Image.new(mode, (1200, 900)).save(tmp_path / "image.JPEG")
            assert imagenet.decode(tmp_path / "image.JPEG", 256).shape == (256, 256, 3)

    def test_evaluation_crops_the_middle(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        get("imagenet", source, sample=True)
        found, labels = imagenet.evaluation_images(arrays("imagenet"), "valid", [1, 4])
        assert found.shape == (2, 224, 224, 3)
        assert labels.tolist() == [1, 4]
        path = source / "val/ILSVRC2012_val_00000002.JPEG"
        middle = imagenet.decode(path, 256)[16:-16, 16:-16].astype(int)
        assert np.abs(found[0] - middle).mean() < 1

    def test_stream(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        get("imagenet", source, sample=True)
        stream = stream_imagenet(arrays("imagenet"), threads=2)
        assert stream.examples == 16
        assert stream.example[0].shape == (256, 256, 3)
        first, again, other = (list(islice(stream.batches(seed, 8), 4)) for seed in (1, 1, 2))
        for (pixels, labels), (pixels_again, labels_again) in zip(first, again, strict=True):
            assert pixels.shape == (8, 256, 256, 3)
            assert pixels.dtype == np.uint8
            assert np.array_equal(pixels, pixels_again)
            assert np.array_equal(labels, labels_again)
        assert not np.array_equal(first[0][0], other[0][0])
        for epoch in (first[:2], first[2:]):
            assert sorted(np.concatenate([labels for _, labels in epoch])) == [i // 2 for i in range(16)]

    def test_what_does_not_decode_is_skipped_and_said_once(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        for path in sorted((source / "train").glob("*/*"))[3:5]:
            path.write_bytes(path.read_bytes()[:2000])
        get("imagenet", source, sample=True)
        found = arrays("imagenet")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            batches = list(islice(stream_imagenet(found).batches(0, 16), 3))
        assert sorted(batches[0][1]) == [0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
        named = [str(warning.message) for warning in said if "does not decode" in str(warning.message)]
        assert len(named) == 2
        assert any("2 so far" in message for message in named)
        with pytest.raises(DataError, match=r"JPEG: does not decode"):
            imagenet.evaluation_images(found, "train", range(16))

    def test_many_in_a_row_are_refused(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        for path in (source / "train").glob("*/*"):
            path.write_bytes(b"no image")
        get("imagenet", source, sample=True)
        batches = stream_imagenet(arrays("imagenet")).batches(0, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(DataError, match=r"does not decode .*, nor do the 9 before it"):
                next(batches)


class TestCache:
    def test_names_are_known(self):
        assert names() == ["fashion_mnist", "cifar10", "cifar100", "war_and_peace", "lm1b", "imagenet"]
        for function in (arrays, get, datasets.about, datasets.summary):
            with pytest.raises(UnknownName, match="no data set is called 'cifar11'; did you mean 'cifar10"):
                function("cifar11")
        assert all(datasets.summary(name) for name in names())

    def test_what_is_absent_is_said_with_the_remedy(self):
        assert datasets.about("cifar10") is None
        with pytest.raises(DataError) as error:
            arrays("cifar10")
        assert str(error.value) == (
            "cifar10 is not on this machine: run 'levelfield data get cifar10', or with --from DIR if its files are"
        )
        assert isinstance(error.value, UsageError)

    def test_the_systems_folder_for_caches_is_the_default(self, monkeypatch, tmp_path):
        monkeypatch.delenv("LEVELFIELD_DATA")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.root() == tmp_path / "levelfield"

    def test_arrays_are_mapped_and_read_only(self, toy):
        get("toy")
        found = arrays("toy")
        assert isinstance(found["numbers"], np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            found["numbers"][0] = 1
        with pytest.raises(TypeError):
            found["numbers"] = 1

    def test_getting_twice_reads_once(self, toy):
        assert get("toy") == get("toy") == cache.folder("toy")
        assert toy.reads == 1

    def test_getting_at_the_same_time_reads_once(self, toy):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(get, ["toy"] * 4))
        assert toy.reads == 1

    def test_another_format_is_read_anew(self, toy, monkeypatch, cache_folder):
        get("toy")
        monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
        with pytest.raises(DataError, match="toy is not on this machine"):
            arrays("toy")
        get("toy")
        assert toy.reads == 2
        assert arrays("toy")["numbers"].tolist() == [0, 1, 2]
        whole_or_absent(cache_folder)

    def test_a_sample_gives_way_to_the_whole(self, toy):
        toy.sample = True
        get("toy", sample=True)
        toy.sample = False
        get("toy", sample=True)
        assert toy.reads == 1
        get("toy")
        get("toy", sample=True)
        assert toy.reads == 2
        assert datasets.about("toy")["sample"] is False

    @pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, DataError, OSError])
    def test_failing_in_the_middle_leaves_nothing(self, toy, cache_folder, error):
        toy.fail = error("in the middle")
        with pytest.raises(DataError if error is OSError else error, match="in the middle"):
            get("toy")
        whole_or_absent(cache_folder)
        assert not (cache_folder / "toy").exists()
        toy.fail = None
        get("toy")
        assert arrays("toy")["grown"].tolist() == [1, 2, 3]

    def test_failing_in_the_middle_keeps_what_was_there(self, toy, monkeypatch):
        get("toy")
        content = (cache.folder("toy") / "about.json").read_text()
        monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
        toy.fail = RuntimeError("in the middle")
        with pytest.raises(RuntimeError):
            get("toy")
        assert (cache.folder("toy") / "about.json").read_text() == content

    def test_killed_in_the_middle(self, cache_folder):
        code = (
            "import os, signal, numpy as np\n"
            "from levelfield.datasets import cache\n"
            "with cache.locked('toy'), cache.writing('toy') as writer:\n"
            "    writer.add('numbers', np.arange(3))\n"
            "    os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        assert (cache_folder / ".toy.new.partial/numbers.npy").exists()
        assert cache.about("toy") is None
        with cache.locked("toy"):
            whole_or_absent(cache_folder)

    def test_damage_is_named(self, toy):
        path = get("toy") / "numbers.npy"
        content = path.read_bytes()
        for damaged in (content[:-1], content[:20], b""):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=r"numbers\.npy: missing or damaged; 'levelfield data get toy' gets"):
                arrays("toy")
        path.unlink()
        with pytest.raises(DataError, match=r"numbers\.npy: missing or damaged"):
            arrays("toy")

    @pytest.mark.parametrize("about", ["{", "[]", '{"format": 1}', '{"format": 1, "arrays": [], "sample": false}'])
    def test_damage_is_mended_by_getting_the_data_anew(self, toy, about):
        path = get("toy") / "about.json"
        for damage in (lambda: path.write_text(about), lambda: (path.parent / "numbers.npy").unlink()):
            damage()
            with pytest.raises(DataError, match=r"(about\.json|numbers\.npy): missing or damaged"):
                arrays("toy")
            get("toy")
            assert arrays("toy")["grown"].tolist() == [1, 2, 3]
        assert toy.reads == 3

    def test_what_is_there_is_told_to_be_there(self, toy, cache_folder, tmp_path):
        """And somebody else's cache need not be writable."""
        get("toy")
        said: list[str] = []
        (cache_folder / ".toy.lock").unlink()
        get("toy", tmp_path, say=said.append)
        assert said == [f"toy is in the cache: {tmp_path} is not read"]
        assert not (cache_folder / ".toy.lock").exists()

    def test_a_place_that_cannot_be_written_is_named(self, toy, monkeypatch, tmp_path):
        (tmp_path / "file").touch()
        monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "file/cache"))
        with pytest.raises(DataError, match=r"file/cache: Not a directory"):
            get("toy")

    def test_a_missing_library_is_named(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "tokenizers", None)
        with pytest.raises(DataError, match=r"lm1b needs tokenizers: pip install 'levelfield\[data\]'"):
            lm1b.train_vocabulary([], 500)

    def test_importing_loads_no_heavy_library(self):
        code = "import levelfield.datasets, sys; print(*sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert not set(done.stdout.split()) & {"jax", "grain", "pooch", "PIL", "tokenizers", "scipy", "requests"}


class Toy:
    """A data set of made-up numbers."""

    def __init__(self) -> None:
        self.reads, self.sample, self.fail = 0, False, None

    def write(self, source, writer, sample, say):
        self.reads += 1
        writer.about["sample"] = self.sample
        writer.add("numbers", np.arange(3))
        grown = writer.growing("grown", np.uint16)
        grown.append([1])
        if self.fail:
            raise self.fail
        grown.append([2, 3])
        if source.is_dir() and (source / "file.bin").exists():
            writer.add("bytes", np.frombuffer((source / "file.bin").read_bytes(), np.uint8))


@pytest.fixture
def toy(monkeypatch, tmp_path):
    toy = Toy()
    monkeypatch.setitem(datasets._DATASETS, "toy", sources.Dataset("", toy.write, installed=(tmp_path,)))
    return toy


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A publisher on this machine: a folder and its address. ``asked`` lists the requests."""
    folder, asked = tmp_path / "published", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            asked.append(self.path)

    publisher = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=publisher.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # between attempts
    publisher.folder, publisher.asked = folder, asked
    publisher.url = f"http://127.0.0.1:{publisher.server_port}/file.bin"
    yield publisher
    publisher.shutdown()
    publisher.server_close()


class TestDownload:
    CONTENT = b"what was published"
    MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"

    def remote(self, monkeypatch, toy, url, checksum) -> None:
        remotes = (sources.Remote(url, checksum),)
        monkeypatch.setitem(datasets._DATASETS, "toy", sources.Dataset("", toy.write, remotes))

    @pytest.mark.parametrize("checksum", [MD5, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", None])
    def test_downloads_reads_and_tidies_up(self, server, toy, monkeypatch, cache_folder, checksum):
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        self.remote(monkeypatch, toy, server.url, checksum)
        said = []
        get("toy", say=said.append)
        assert arrays("toy")["bytes"].tobytes() == self.CONTENT
        assert said == [f"downloading {server.url}"]
        assert not list((cache_folder / "downloads").iterdir())

    def test_a_download_outlives_a_failure(self, server, toy, monkeypatch):
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        self.remote(monkeypatch, toy, server.url, self.MD5)
        toy.fail = RuntimeError("later")
        with pytest.raises(RuntimeError):
            get("toy")
        toy.fail = None
        get("toy")
        assert server.asked == ["/file.bin"] * len(server.asked)
        assert len(server.asked) == 1

    def test_what_cannot_be_told_from_a_wrong_one_is_fetched_anew(self, server, toy, monkeypatch):
        (server.folder / "file.bin").write_bytes(b"for a while, something else")
        self.remote(monkeypatch, toy, server.url, None)
        toy.fail = DataError("not the published content")
        with pytest.raises(DataError):
            get("toy")
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        toy.fail = None
        get("toy")
        assert arrays("toy")["bytes"].tobytes() == self.CONTENT

    def test_refuses_a_wrong_checksum(self, server, toy, monkeypatch, cache_folder):
        (server.folder / "file.bin").write_bytes(b"something else")
        self.remote(monkeypatch, toy, server.url, self.MD5)
        with pytest.raises(DataError, match=f"{server.url}: cannot be downloaded .its checksum is not the published"):
            get("toy")
        assert not list((cache_folder / "downloads/toy").iterdir())
        whole_or_absent(cache_folder)

    def test_says_what_went_wrong_and_the_other_way(self, server, toy, monkeypatch):
        self.remote(monkeypatch, toy, server.url, self.MD5)
        with pytest.raises(DataError, match=r"\(HTTP status 404\); .* run 'levelfield data get toy --from DIR'"):
            get("toy")
        self.remote(monkeypatch, toy, "http://127.0.0.1:9/file.bin", self.MD5)
        with pytest.raises(DataError, match=r"\(ConnectionError\)"):
            get("toy")

    def test_a_large_file_tells_its_progress(self):
        said = []
        progress = sources._Progress("file.bin", said.append)
        progress.total = 200_000_000
        for _ in range(4):
            progress.update(25_000_000)
        assert said == ["file.bin: 10%", "file.bin: 20%", "file.bin: 30%", "file.bin: 50%"]

    def test_addresses_and_checksums_are_well_formed(self):
        for dataset in datasets._DATASETS.values():
            for remote in dataset.remotes:
                assert remote.url.startswith("http")
                if remote.checksum:
                    algorithm, value = remote.checksum.split(":")
                    assert len(bytes.fromhex(value)) == {"md5": 16, "sha256": 32}[algorithm]


class TestSplit:
    def test_parts_are_sorted_and_share_nothing(self):
        train, valid = split(60_000, 5_000)
        assert len(train) == 55_000
        assert len(valid) == 5_000
        assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(60_000))
        assert (np.diff(train) > 0).all()
        assert (np.diff(valid) > 0).all()

    def test_never_changes(self):
        digests = [
            hashlib.sha256(split(n, 5_000)[1].astype("<i8").tobytes()).hexdigest()[:16] for n in (60_000, 50_000)
        ]
        assert digests == ["fad9124d3d916a65", "74eddee00a0b1c95"]

    def test_edges(self):
        assert [len(part) for part in split(5, 0)] == [5, 0]
        assert [len(part) for part in split(5, 5)] == [0, 5]
        for held_out in (-1, 6):
            with pytest.raises(UsageError, match=f"held_out = {held_out}: expected a number from 0 to 5"):
                split(5, held_out)
