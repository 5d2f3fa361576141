"""ImageNet: the index, decoding, streams."""

from __future__ import annotations

import os
import shutil
import warnings
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from dataset_files import complete_or_absent, real

from levelfield.datasets import arrays, get, imagenet
from levelfield.datasets.imagenet import stream_imagenet
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


def photographs() -> list[Path]:
    return sorted(real("imagenet-samples").glob("*.JPEG"))


def arranged(root: Path, per_class: int = 2) -> Path:
    """Arrange the samples as classes of a training set, and one per class as a flat validation set."""
    (root / "val").mkdir(parents=True)
    for i, path in enumerate(photographs()):
        folder = root / "train" / f"n{i // per_class:08}"
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.name)
        if i % per_class == 0:
            shutil.copy(path, root / "val" / f"ILSVRC2012_val_{i // per_class + 1:08}.JPEG")
    return root


def development_kit(root: Path, numbers: list[int]) -> None:
    """Give class i the number numbers[i], which is not its position among the sorted wnids."""
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
        stored = arrays("imagenet")
        assert stored["train_labels"].tolist() == [i // 2 for i in range(16)]
        assert stored["valid_labels"].tolist() == list(range(8))
        assert stored["wnids"].tolist() == [f"n{i:08}".encode() for i in range(8)]
        for path in (*stored["train_paths"], *stored["valid_paths"]):
            assert Path(os.fsdecode(stored["root"][0]), os.fsdecode(path)).is_file()

    def test_index_of_flat_validation_images(self, source):
        """The development kit numbers classes in a different order."""
        development_kit(arranged(source), [7, 3, 1, 8, 2, 5, 4, 6])
        stored = imagenet.index_imagenet(source, sample=True)
        assert stored["valid_labels"].tolist() == list(range(8))

    def test_names_what_is_missing(self, source, cache_folder):
        with pytest.raises(
            DataError,
            match=r"imagenet cannot be downloaded automatically: download its files yourself and",
        ):
            get("imagenet")
        with pytest.raises(DataError, match="source: contains no folder train"):
            get("imagenet", source)
        (source / "train").mkdir()
        with pytest.raises(DataError, match="train: contains no folder named by a wnid"):
            get("imagenet", source)
        (source / "train/n00000001").mkdir()
        with pytest.raises(DataError, match="n00000001: contains no image"):
            get("imagenet", source)
        (source / "train/n00000001/a.JPEG").touch()
        with pytest.raises(DataError, match="source: contains no folder val"):
            get("imagenet", source)
        (source / "val").mkdir()
        with pytest.raises(DataError, match="val: contains no image"):
            get("imagenet", source)
        (source / "val/n00000002").mkdir()
        (source / "val/n00000002/a.JPEG").touch()
        with pytest.raises(DataError, match=r"val/n00000002: no such class in .*train"):
            get("imagenet", source)
        (source / "val/n00000002").rename(source / "val/n00000001")
        with pytest.raises(DataError, match="source: 1 classes; expected 1000"):
            get("imagenet", source)
        complete_or_absent(cache_folder)

    def test_refuses_a_wrong_development_kit(self, source):
        (source / "train/n00000000").mkdir(parents=True)
        (source / "train/n00000000/a.JPEG").touch()
        (source / "val").mkdir()
        (source / "val/ILSVRC2012_val_00000002.JPEG").touch()
        with pytest.raises(DataError, match=f"contains no {imagenet._TRUTH}"):
            imagenet.index_imagenet(source, sample=True)
        (source / imagenet._TRUTH).write_text("1\n")
        with pytest.raises(DataError, match=r"contains no meta\.mat"):
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

    def test_another_folder_is_indexed_again(self, source, tmp_path):
        development_kit(arranged(source), list(range(1, 9)))
        get("imagenet", source, sample=True)
        moved = source.rename(tmp_path / "moved")
        assert arrays("imagenet")["root"][0] == os.fsencode(source)
        with pytest.raises(
            DataError, match=r"train/n00000000/.*JPEG: no such file; if it moved, import its folder with 'levelfield"
        ):
            imagenet.evaluation_images(arrays("imagenet"), "train", [0])
        get("imagenet", moved, sample=True)
        assert arrays("imagenet")["root"][0] == os.fsencode(moved)

    def test_decoding_scales_the_shorter_side_and_crops(self, tmp_path):
        from PIL import Image

        ramp = np.tile(np.arange(600, dtype=np.float32) / 600 * 255, (300, 1)).astype(np.uint8)
        path = tmp_path / "ramp.png"
        for turn in (ramp, ramp.T):
            Image.fromarray(turn).save(path)  # grayscale: three equal channels
            for place, left, right in ((0.0, 0, 127), (0.5, 64, 191), (1.0, 127, 255)):
                stored = imagenet.decode(path, 256, place)
                stored = stored if turn is ramp else stored.swapaxes(0, 1)
                assert stored.shape == (256, 256, 3)
                assert stored.dtype == np.uint8
                assert (stored == stored[:1, :, :1]).all()
                assert abs(int(stored[0, 0, 0]) - left) <= 2
                assert abs(int(stored[0, -1, 0]) - right) <= 2
            assert imagenet.decode(path, 224).shape == (224, 224, 3)

    def test_images_of_other_color_modes_become_rgb(self, tmp_path):
        from PIL import Image

        for mode in ("L", "CMYK", "RGB"):
            Image.new(mode, (1200, 900)).save(tmp_path / "image.JPEG")
            assert imagenet.decode(tmp_path / "image.JPEG", 256).shape == (256, 256, 3)

    def test_evaluation_crops_the_center(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        get("imagenet", source, sample=True)
        stored, labels = imagenet.evaluation_images(arrays("imagenet"), "valid", [1, 4])
        assert stored.shape == (2, 224, 224, 3)
        assert labels.tolist() == [1, 4]
        path = source / "val/ILSVRC2012_val_00000002.JPEG"
        middle = imagenet.decode(path, 256)[16:-16, 16:-16].astype(int)
        assert np.abs(stored[0] - middle).mean() < 1

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

    def test_images_that_cannot_be_decoded_are_skipped_with_one_warning(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        for path in sorted((source / "train").glob("*/*"))[3:5]:
            path.write_bytes(path.read_bytes()[:2000])
        get("imagenet", source, sample=True)
        stored = arrays("imagenet")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = list(islice(stream_imagenet(stored).batches(0, 16), 3))
        assert sorted(batches[0][1]) == [0, 0, 1, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
        messages = [str(warning.message) for warning in caught if "cannot be decoded" in str(warning.message)]
        assert len(messages) == 2
        assert any("2 so far" in message for message in messages)
        with pytest.raises(DataError, match=r"JPEG: cannot be decoded"):
            imagenet.evaluation_images(stored, "train", range(16))

    def test_many_in_a_row_are_refused(self, source):
        development_kit(arranged(source), list(range(1, 9)))
        for path in (source / "train").glob("*/*"):
            path.write_bytes(b"no image")
        get("imagenet", source, sample=True)
        batches = stream_imagenet(arrays("imagenet")).batches(0, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(DataError, match=r"cannot be decoded .*, and neither can the 9 images before it"):
                next(batches)
