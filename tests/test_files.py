"""Files that are either complete or not there: also if the disk is full."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from helpers import make_study

import levelfield as lf
from levelfield.errors import UsageError
from levelfield.export import write_trials
from levelfield.files import replacing
from levelfield.report import page
from levelfield.search import Search


@contextmanager
def full_disk(size: int = 1_000) -> Iterator[None]:
    """Let no file grow beyond a few bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def comparison(made, tmp_path) -> lf.Comparison:
    curves = [{"train_loss": np.linspace(1, 0.1 + 0.01 * i, 400)} for i in range(8)]
    study = make_study(steps=800, pool=8)
    return made(study, dict.fromkeys(study.optimizers, curves), store=tmp_path / "trials.db")


def test_a_complete_file_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "new" / "file.txt"
    for text in ("first", "second"):
        with replacing(path) as temporary:
            temporary.write_text(text)
            assert temporary.parent == path.parent  # the same file system, or it could not be renamed
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["file.txt"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half of the n")
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_a_file_that_cannot_be_renamed_is_removed(tmp_path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError), replacing(tmp_path / "taken") as temporary:
        temporary.write_text("new")
    assert os.listdir(tmp_path) == ["taken"]


def test_it_has_the_permissions_of_any_new_file(tmp_path):
    (tmp_path / "other").touch()
    with replacing(tmp_path / "file") as temporary:
        temporary.touch()
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_file_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with replacing(tmp_path / "link") as temporary:
        temporary.write_text("new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def export(suffix: str) -> Callable[[lf.Comparison, Path], Path]:
    def write(comparison: lf.Comparison, folder: Path) -> Path:
        with lf.Store.open(folder.parent / "trials.db", create=False) as store:
            write_trials(comparison.study, store, folder / f"trials{suffix}", curves=True)
        return folder / f"trials{suffix}"

    return write


WRITERS = {
    "report": lambda comparison, folder: comparison.write_report(folder / "report.html"),
    "parquet": export(".parquet"),
    "csv": export(".csv"),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_spares_the_last_good_file(comparison, tmp_path, name):
    write, folder = WRITERS[name], tmp_path / "out"
    path = write(comparison, folder)
    good = path.read_bytes()
    assert len(good) > 1_000
    with full_disk(), pytest.raises(UsageError, match="File too large"):
        write(comparison, folder)
    assert path.read_bytes() == good
    assert os.listdir(folder) == [path.name]


def test_a_full_disk_leaves_no_part_of_a_figure(comparison, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "figures", lambda results, protocols: [])  # tables and texts remain
    with full_disk(100), pytest.raises(UsageError, match="File too large"):
        comparison.write_figures(tmp_path / "figures")
    assert os.listdir(tmp_path / "figures") == []


def test_a_full_disk_leaves_no_part_of_a_refined_study(command, made, tmp_path):
    study = make_study(pool=40, optimizers={"sgd": {"rule": "sgd", "learning_rate": {"log": [1e-3, 1e-1]}}})
    (tmp_path / "study.toml").write_text(study.to_toml())
    study = lf.load_study(tmp_path / "study.toml")
    rates = [Search(study, "sgd").point(i).hyperparameters["learning_rate"] for i in range(40)]
    curves = [{"train_loss": [9, -np.log10(rate)]} for rate in rates]  # the higher the better: to be widened
    made(study, {"sgd": curves}, store=tmp_path / "trials.db")
    arguments = ["refine", "study.toml", "--store", "trials.db", "-o", "new.toml"]
    before = sorted(os.listdir(tmp_path))
    with full_disk(400):  # stdout and stderr are files as well
        code, _, err = command(*arguments)
    assert code == 2
    assert "new.toml: cannot write the file (File too large)" in err
    assert sorted(os.listdir(tmp_path)) == before
    assert command(*arguments)[0] == 0
    assert lf.load_study("new.toml").optimizer("sgd").space != study.optimizer("sgd").space
