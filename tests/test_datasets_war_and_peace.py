"""War and Peace: cutting and tokenizing the text."""

from __future__ import annotations

import io

import numpy as np
import pytest
from dataset_files import real

from levelfield.datasets import arrays, get
from levelfield.datasets.war_and_peace import read_war_and_peace
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


class TestWarAndPeace:
    def test_ids_follow_decreasing_counts_then_first_appearance(self, source):
        (source / "input.txt").write_bytes("bé\r\nbaéb".encode())
        tokens, vocabulary = read_war_and_peace(source, verify=False)
        assert "".join(map(chr, vocabulary)) == "bé\r\na"
        assert tokens.tolist() == [0, 1, 2, 3, 0, 4, 1, 0]
        assert tokens.dtype == np.uint8

    def test_names_the_byte_of_invalid_utf8(self, source):
        (source / "input.txt").write_bytes(b"war\xff")
        with pytest.raises(DataError, match=r"input\.txt: invalid UTF-8 at byte 3"):
            get("war_and_peace", source)

    def test_refuses_other_texts(self, source):
        (source / "input.txt").write_text("Anna Karenina")
        with pytest.raises(DataError, match=r"input\.txt: not the published content"):
            get("war_and_peace", source)
        (source / "input.txt").write_text("".join(map(chr, range(300))))
        with pytest.raises(DataError, match="300 different characters"):
            read_war_and_peace(source, verify=False)
        (source / "input.txt").unlink()
        with pytest.raises(DataError, match=r"source: contains no input\.txt"):
            get("war_and_peace", source)

    def test_real(self):
        get("war_and_peace", real("tolstoi"))
        stored = arrays("war_and_peace")
        tokens, vocabulary = stored["tokens"], stored["vocabulary"]
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
