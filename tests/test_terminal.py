"""Results in the terminal: nothing is cut, however narrow it is."""

from __future__ import annotations

import io

import pytest
from helpers import make_study
from rich.console import Console

import levelfield as lf
from levelfield.cli.terminal import print_comparison
from levelfield.formatting import format_hyperparameters

ADAM = {
    "rule": "adam",
    "learning_rate": {"log": [1e-5, 1e-1]},
    "one_minus_beta1": {"log": [1e-3, 1e0]},
    "one_minus_beta2": {"log": [1e-4, 1e0]},
    "epsilon": {"log": [1e-10, 1e0]},
}


@pytest.fixture
def comparison(made) -> lf.Comparison:
    """Wide intervals, long names, a target, and five hyperparameters."""
    study = make_study(
        {"adam_with_a_long_name": ADAM, "sgd": {"learning_rate": {"log": [1e-3, 1e-1]}}},
        workload="fashion_mini",
        target={"metric": "valid_error", "value": 0.3},
    )
    errors = {"adam_with_a_long_name": [0.1234, 0.2345, 0.3456, 0.4567], "sgd": [0.2111, 0.3222, 0.4333, 0.5444]}
    metrics = [f"{split}_{name}" for split in ("train", "valid", "test") for name in ("loss", "error")]
    pools = {
        name: [{metric: [0.9, error] for metric in metrics} for error in values] for name, values in errors.items()
    }
    return made(study, pools)


def printed(comparison: lf.Comparison, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    print_comparison(comparison.results, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 200])  # two of them without room for the mean
def test_intervals_and_hyperparameters_are_whole(comparison, width):
    text = printed(comparison, width)
    words = " ".join(text.split())
    assert "…" not in text
    for outcome in comparison.results.outcomes.values():
        best, interval = outcome.best(2), outcome.interval(2)
        if width > 80:
            assert f"{100 * best.low:.2f}% – {100 * best.high:.2f}%" in text
        assert f"≤ {100 * interval.high:.2f}%" in text
        assert format_hyperparameters(outcome.best_trial.point.hyperparameters) in words
    for heading in ("valid_error", "test_error", "reached", "feasible"):
        assert heading in text


def test_on_80_columns_hyperparameters_are_below_the_table(comparison):
    text = printed(comparison, 80)
    assert max(map(len, text.splitlines())) <= 80
    table, _, below = text.partition("Best hyperparameters:")
    assert "learning_rate" not in table
    for name in comparison.study.optimizers:
        assert f"  {name}: learning_rate" in below


def test_a_narrow_terminal_leaves_out_the_mean_and_nothing_else(comparison):
    wide, narrow = printed(comparison, 120), printed(comparison, 80)
    assert ("┏" in wide, "┏" in narrow) == (True, False)
    headings = [text.splitlines()[1:4] for text in (narrow, printed(comparison, 100))]
    words = [" ".join(" ".join(lines).split()).split() for lines in headings]
    assert sorted(words[1]) == sorted([*words[0], "mean", "valid_error", "5–95%"])


def test_a_pipe_is_not_narrow(comparison):
    """A pipe has no width, so the width of the terminal that starts it must not matter."""
    console = Console(file=io.StringIO(), width=40)
    print_comparison(comparison.results, console)
    assert max(map(len, console.file.getvalue().splitlines())) > 80
