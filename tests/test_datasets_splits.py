"""Validation sets that are held out from training sets."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from levelfield.datasets.splits import split
from levelfield.errors import UsageError


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
