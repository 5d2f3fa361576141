"""The cache of data sets: complete or absent, whatever interrupts the writing."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dataset_files import complete_or_absent

from levelfield import datasets
from levelfield.datasets import arrays, cache, get, lm1b
from levelfield.errors import DataError, UsageError

pytestmark = pytest.mark.usefixtures("cache_folder")


class TestCache:
    def test_a_missing_data_set_says_how_to_get_it(self):
        assert datasets.about("cifar10") is None
        with pytest.raises(DataError) as error:
            arrays("cifar10")
        assert str(error.value) == ("cifar10 is not on this machine: run 'levelfield data get cifar10'")
        assert isinstance(error.value, UsageError)

    def test_the_default_is_the_systems_cache_folder(self, monkeypatch, tmp_path):
        monkeypatch.delenv("LEVELFIELD_DATA")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert cache.root() == tmp_path / "levelfield"

    def test_arrays_are_mapped_and_read_only(self, toy):
        get("toy")
        stored = arrays("toy")
        assert isinstance(stored["numbers"], np.memmap)
        with pytest.raises(ValueError, match="read-only"):
            stored["numbers"][0] = 1
        with pytest.raises(TypeError):
            stored["numbers"] = 1

    def test_getting_twice_reads_once(self, toy):
        assert get("toy") == get("toy") == cache.folder("toy")
        assert toy.reads == 1

    def test_getting_at_the_same_time_reads_once(self, toy):
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(get, ["toy"] * 4))
        assert toy.reads == 1

    def test_a_platform_without_file_locks_still_works(self, toy, monkeypatch):
        monkeypatch.setattr(cache, "fcntl", None)
        get("toy")
        assert arrays("toy")["numbers"].tolist() == [0, 1, 2]

    def test_another_format_is_read_again(self, toy, monkeypatch, cache_folder):
        get("toy")
        monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
        with pytest.raises(DataError, match="toy is not on this machine"):
            arrays("toy")
        get("toy")
        assert toy.reads == 2
        assert arrays("toy")["numbers"].tolist() == [0, 1, 2]
        complete_or_absent(cache_folder)

    def test_the_whole_replaces_a_sample(self, toy):
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
        complete_or_absent(cache_folder)
        assert not (cache_folder / "toy").exists()
        toy.fail = None
        get("toy")
        assert arrays("toy")["grown"].tolist() == [1, 2, 3]

    def test_failing_in_the_middle_keeps_the_old_content(self, toy, monkeypatch):
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
            complete_or_absent(cache_folder)

    def test_damage_is_named(self, toy):
        path = get("toy") / "numbers.npy"
        content = path.read_bytes()
        for damaged in (content[:-1], content[:20], b""):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=r"numbers\.npy: missing or damaged; run 'levelfield data get toy'"):
                arrays("toy")
        path.unlink()
        with pytest.raises(DataError, match=r"numbers\.npy: missing or damaged"):
            arrays("toy")

    @pytest.mark.parametrize("about", ["{", "[]", '{"format": 1}', '{"format": 1, "arrays": [], "sample": false}'])
    def test_damage_is_repaired_by_getting_the_data_again(self, toy, about):
        path = get("toy") / "about.json"
        for damage in (lambda: path.write_text(about), lambda: (path.parent / "numbers.npy").unlink()):
            damage()
            with pytest.raises(DataError, match=r"(about\.json|numbers\.npy): missing or damaged"):
                arrays("toy")
            get("toy")
            assert arrays("toy")["grown"].tolist() == [1, 2, 3]
        assert toy.reads == 3

    def test_a_cached_data_set_is_reported(self, toy, cache_folder, tmp_path):
        """A shared cache does not have to be writable."""
        get("toy")
        lines: list[str] = []
        (cache_folder / ".toy.lock").unlink()
        get("toy", tmp_path, report=lines.append)
        assert lines == [f"toy is already in the cache; {tmp_path} is not read"]
        assert not (cache_folder / ".toy.lock").exists()

    def test_a_cache_that_cannot_be_written_is_named(self, toy, monkeypatch, tmp_path):
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
