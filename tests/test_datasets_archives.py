"""Archives that are not what they claim to be: links instead of files, and small files that unpack to large ones."""

from __future__ import annotations

import gzip
import io
import os
import struct
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from dataset_files import complete_or_absent

from levelfield.datasets import get, sources
from levelfield.datasets.lm1b import _TOP
from levelfield.errors import DataError

CIFAR, LM1B = "cifar-10-binary.tar.gz", f"{_TOP}.tar.gz"
FILES = {"cifar10": (CIFAR, "data_batch_1.bin"), "lm1b": (LM1B, "news.en.heldout-00000-of-00050")}
DATASETS = pytest.mark.parametrize("dataset", list(FILES))


def header(name: str, size: int = 0, kind: bytes = tarfile.REGTYPE, link: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.size, member.type, member.linkname = size, kind, link
    return member.tobuf(tarfile.GNU_FORMAT)


def bomb(path: Path, start: bytes, size: int = 3_000_000_000) -> Path:
    """Write a .gz file of a few megabytes that unpacks to gigabytes: some bytes, then zeros.

    A gzip file may have several parts, so the zeros are compressed once.
    """
    zeros = gzip.compress(bytes(100_000_000), 9)
    with path.open("wb") as file:
        file.write(gzip.compress(start))
        for _ in range(size // 100_000_000):
            file.write(zeros)
    assert path.stat().st_size < size / 500
    return path


def refused_in_little_memory(dataset: str, source: Path, cache_folder: Path, megabytes: int = 900) -> str:
    """Return the error of 'levelfield data get' in a process whose memory is limited."""
    limit = megabytes << 20
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))\n"
        "from levelfield.cli import main; main()"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, "data", "get", dataset, "--from", str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "LEVELFIELD_DATA": str(cache_folder)},
    )
    complete_or_absent(cache_folder)
    assert found.returncode == 2, found.stderr
    assert "Traceback" not in found.stderr
    return found.stderr.splitlines()[-1]


# Links


@DATASETS
@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("target", ["missing", "/etc/passwd"])
def test_only_regular_files_are_read_from_archives(source, cache_folder, dataset, kind, target):
    archive, name = FILES[dataset]
    (source / archive).write_bytes(gzip.compress(header(f"top/{name}", kind=kind, link=target) + bytes(1024)))
    with pytest.raises(DataError, match=f"{archive}: top/{name} is a link or a folder; expected a regular file"):
        get(dataset, source)
    complete_or_absent(cache_folder)


def test_other_links_do_not_matter(source):
    content = (
        header("README", kind=tarfile.SYMTYPE, link="missing") + header("top/wanted", 3) + b"abc".ljust(512, b"\0")
    )
    (source / "some.tar.gz").write_bytes(gzip.compress(content + bytes(1024)))
    with sources.tar_files(source / "some.tar.gz", "wanted".__eq__, largest=3, total=2000) as files:
        assert [(name, stream.read()) for name, stream in files] == [("wanted", b"abc")]


@pytest.mark.parametrize("folder", ["../../..", "/tmp"])
def test_files_keep_only_their_name(source, folder):
    content = header(f"{folder}/wanted", 3) + b"abc" + bytes(509 + 1024)
    (source / "some.tar.gz").write_bytes(gzip.compress(content))
    with sources.tar_files(source / "some.tar.gz", "wanted".__eq__, largest=3, total=2000) as files:
        assert [name for name, _ in files] == ["wanted"]


# Bombs


@pytest.mark.usefixtures("cache_folder")
@pytest.mark.parametrize(
    ("dataset", "file", "start", "said"),
    [
        ("fashion_mnist", "train-images-idx3-ubyte.gz", b"", "unpacks to more than 47,040,016 bytes"),
        ("cifar10", CIFAR, header("data_batch_1.bin", 3_000_000_000), "unpacks to more than 307,300,000 bytes"),
        ("cifar10", CIFAR, header("data_batch_1.bin", 200_000_000), "1.bin: unpacks to more than 153,650,000 bytes"),
        ("lm1b", LM1B, header("news.en-00001-of-00100", 3_000_000_000), "unpacks to more than 100,000,000 bytes"),
        # A long name, and a header with further fields: read as a whole before the file that they belong to.
        ("lm1b", LM1B, header("x", 3_000_000_000, tarfile.GNUTYPE_LONGNAME), "unpacks to more than 1,000,000 bytes"),
        ("lm1b", LM1B, header("x", 3_000_000_000, tarfile.XHDTYPE), "unpacks to more than 1,000,000 bytes"),
    ],
    ids=["gz", "archive", "member", "shard", "long name", "pax header"],
)
def test_a_small_file_that_unpacks_to_gigabytes_is_refused(source, cache_folder, dataset, file, start, said):
    bomb(source / file, start)
    error = refused_in_little_memory(dataset, source, cache_folder)
    assert file in error
    assert said in error


def test_an_archive_of_too_many_files_is_refused(source):
    with tarfile.open(source / "many.tar.gz", "w:gz") as tar:
        for i in range(1_001):
            tar.addfile(tarfile.TarInfo(f"{i}"))
    with (
        pytest.raises(DataError, match=r"many\.tar\.gz: contains more than 1,000 files"),
        sources.tar_files(source / "many.tar.gz", "wanted".__eq__, largest=1, total=10**9) as files,
    ):
        list(files)


def test_an_archive_of_nothing_but_long_names_is_refused(source):
    """Python reads each as part of the next one."""
    name = header("x", 1, tarfile.GNUTYPE_LONGNAME) + b"y".ljust(512, b"\0")
    (source / "names.tar.gz").write_bytes(gzip.compress(name * 5_000))
    with (
        pytest.raises(DataError, match=r"names\.tar\.gz: "),
        sources.tar_files(source / "names.tar.gz", "wanted".__eq__, largest=1, total=10**9) as files,
    ):
        list(files)


@pytest.mark.parametrize("change", [0, 1])
@pytest.mark.parametrize("packed", [gzip.compress, bytes], ids=["gz", "plain"])
def test_the_limit_of_a_file_is_exact(source, change, packed: Callable[[bytes], bytes]):
    path = source / ("file.gz" if packed is gzip.compress else "file")
    path.write_bytes(packed(bytes(1_000 + change)))
    if change and packed is gzip.compress:
        with pytest.raises(DataError, match="unpacks to more than 1,000 bytes"):
            sources.read(path, 1_000)
    else:
        assert sources.read(path, 1_000) == bytes(1_000 + change)


def test_a_list_of_classes_that_unpacks_to_gigabytes_is_refused(source, cache_folder):
    """MATLAB's files are compressed element by element."""
    from scipy.io import savemat

    for folder in ("train/n00000000", "val"):
        (source / folder).mkdir(parents=True)
    (source / "train/n00000000/a.JPEG").touch()
    (source / "val/ILSVRC2012_val_00000001.JPEG").touch()
    (source / "ILSVRC2012_validation_ground_truth.txt").write_text("1\n")
    stream = io.BytesIO()
    savemat(stream, {})
    compressor = zlib.compressobj(1)
    size = 1_000_000_000  # the matrix "synsets" of that many bytes: its name, then zeros
    flags = struct.pack("<IIII", 6, 8, 9, 0) + struct.pack("<IIII", 5, 8, 1, size) + struct.pack("<II", 1, 7)
    start = struct.pack("<II", 14, size + 64) + flags + b"synsets\0" + struct.pack("<II", 2, size)
    pieces = [compressor.compress(start), *(compressor.compress(bytes(10**7)) for _ in range(size // 10**7))]
    packed = b"".join([*pieces, compressor.flush()])
    (source / "meta.mat").write_bytes(stream.getvalue() + struct.pack("<II", 15, len(packed)) + packed)
    error = refused_in_little_memory("imagenet", source, cache_folder)
    assert "meta.mat: unpacks to more than 16,000,000 bytes" in error
