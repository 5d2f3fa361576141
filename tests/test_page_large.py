"""The page of pools that are too large to draw: fewer points, and the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from page_helpers import (
    OPTIMIZERS,
    answer,
    ask,
    expected_table,
    four_optimizers,
    live_charts,
    live_rows,
    narrow,
    outcome_table,
    ranking,
    trials_key,
)

import levelfield as lf
from levelfield.report import figure, payload
from levelfield.report.compression import ROUNDED_DIGITS, compressed, rounded
from levelfield.report.figures import hyperparameters

DRAWN = 12
RANGES = [
    {},
    {"momentum": {"learning_rate": (0.02, 2)}},
    {"sgd": {"learning_rate": (None, 0.5), "decay_factor": [1 / 3]}, "adam": {"epsilon": (0.1, None)}},
    {"nesterov": {"decay_steps": (2, 4)}, "adam": {"one_minus_beta1": [0.1, 0.3], "learning_rate/epsilon": (0.1, 30)}},
]


@pytest.fixture
def few_drawn(monkeypatch) -> None:
    for module in (figure, payload, hyperparameters):
        monkeypatch.setattr(module, "MOST_DRAWN", DRAWN)
    monkeypatch.setitem(payload.CONSTANTS, "mostDrawn", DRAWN)


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    return four_optimizers(made)


@pytest.fixture
def page(opened, comparison, few_drawn) -> Any:
    return opened(comparison)


def numbers(table: dict[str, dict[str, list[str]]]) -> dict[str, dict[str, list[str]]]:
    return {
        name: {key: texts for key, texts in cells.items() if key != "hyperparameters"} for name, cells in table.items()
    }


@pytest.mark.parametrize("ranges", RANGES)
def test_its_numbers_count_every_trial(page, comparison, ranges):
    narrow(page, comparison.study, ranges)
    for k, select, report in ((5, "valid_error", "test_error"), (2, "train_loss", "train_error")):
        ask(page, k=k, select=select, report=report)
        view = answer(comparison, k, select, ranges)
        assert numbers(outcome_table(page)) == numbers(expected_table(view, report))
        assert list(outcome_table(page)) == ranking(view)


def test_it_draws_the_first_trials_and_the_best(page, comparison):
    assert f"the first {DRAWN} and the best by each metric are drawn" in page.locator("#hyperparameters").text_content()
    drawn, expected = live_charts(page), live_rows(comparison)
    for number, name in enumerate(OPTIMIZERS):
        outcome = comparison.outcome(name)
        best = {outcome.at(select=metric).best_trial.point.index for metric in outcome.metrics}
        rows = drawn[trials_key(number, 0)]
        assert {row["trial"] for row in rows} == {*range(DRAWN), *best}
        for ours, theirs in zip(rows, expected[trials_key(number, 0)], strict=True):
            places = [key for key in theirs if key.startswith("x")]
            assert {key: ours[key] for key in ours if key not in places} == {
                key: theirs[key] for key in theirs if key not in places
            }
            np.testing.assert_allclose([ours[key] for key in places], [theirs[key] for key in places], rtol=1e-4)


def test_the_best_hyperparameters_are_known(page, comparison):
    for select in ("valid_error", "train_loss"):
        ask(page, select=select)
        shown = {name: cells["hyperparameters"] for name, cells in outcome_table(page).items()}
        table = expected_table(answer(comparison, select=select), "test_error")
        assert shown == {name: cells["hyperparameters"] for name, cells in table.items()}


def test_the_best_of_a_part_is_described_by_its_coordinates(page, comparison):
    ranges = {"momentum": {"learning_rate": (0.5, None)}}
    narrow(page, comparison.study, ranges)
    best = answer(comparison, ranges=ranges).outcome("momentum").best_trial
    shown = outcome_table(page)["momentum"]["hyperparameters"][0]
    values = dict(part.rsplit(" ", 1) for part in shown.split(", "))
    assert list(values) == ["decay_factor", "decay_steps", "learning_rate", "1 − momentum"]
    assert float(values["learning_rate"]) == pytest.approx(best.point.hyperparameters["learning_rate"], rel=1e-3)
    assert float(values["1 − momentum"]) == pytest.approx(1 - best.point.hyperparameters["momentum"], rel=1e-3)


def test_rounded_numbers_have_the_digits_that_the_page_allows_for():
    values = np.concatenate([np.geomspace(1e-30, 1e30, 10_001), [0.0, -1 / 3, np.nan]]).astype(np.float32)
    error = np.abs(rounded(values) - values)
    assert np.isnan(error).tolist() == np.isnan(values).tolist()
    assert np.nanmax(error[values != 0] / np.abs(values[values != 0])) < 0.5 * 10.0 ** (1 - ROUNDED_DIGITS)
    assert len(compressed(rounded(values))["data"]) < 0.7 * len(compressed(values)["data"])
