"""Tuning protocols side by side: in one study, and in several."""

from __future__ import annotations

import itertools

import altair
import pytest
import vl_convert
from report_helpers import (
    ADAM,
    FIXED_ADAM,
    INFEASIBLE,
    MOMENTUM,
    SGD,
    K,
    Pools,
    constant_pools,
    random_pools,
    study_of,
)
from test_figures import marks, texts

import levelfield as lf
from levelfield.analysis.protocols import by_protocol, flips
from levelfield.report.figure import Figure
from levelfield.report.figures import figures
from levelfield.report.page import file_spec, render


@pytest.fixture(scope="module")
def pools() -> Pools:
    return random_pools()


@pytest.fixture(scope="module")
def comparison(made, pools) -> lf.Comparison:
    return made(study_of(), pools, INFEASIBLE)


def protocol_figure(comparison: lf.Comparison, protocols: list[lf.Comparison] | None = None) -> Figure:
    drawn = figures(comparison.results, [other.results for other in protocols or []])
    (figure,) = (figure for figure in drawn if figure.name == "protocols")
    return figure


ENDS = {"sgd rate": 0.2, "adam rate": 0.4, "sgd all": 0.3, "adam all": 0.1, "momentum all": 0.15}


@pytest.fixture(scope="module")
def protocols(made) -> lf.Comparison:
    """With the learning rate alone, sgd leads adam; with everything tuned it is the other way round."""
    optimizers = {
        "sgd rate": SGD | {"protocol": "rate"},
        "adam rate": FIXED_ADAM | {"protocol": "rate"},
        "sgd all": SGD | {"protocol": "all", "learning_rate": {"log": [1e-4, 1e1]}},
        "adam all": ADAM | {"protocol": "all"},
        "momentum all": MOMENTUM | {"protocol": "all"},
    }
    return made(study_of(optimizers), constant_pools(ENDS))


def test_protocols_side_by_side(protocols):
    columns = by_protocol([protocols.results])
    names = {label: {rule: entry.outcome.name for rule, entry in column.items()} for label, column in columns.items()}
    assert names == {
        "rate": {"sgd": "sgd rate", "adam": "adam rate"},
        "all": {"sgd": "sgd all", "adam": "adam all", "momentum": "momentum all"},
    }
    assert {entry.k for column in columns.values() for entry in column.values()} == {K}


def test_a_flip_is_told(protocols):
    (flip,) = flips(by_protocol([protocols.results]))
    assert (flip.ours, flip.theirs, flip.before, flip.after) == ("sgd", "adam", "rate", "all")
    sentence = "sgd leads adam under “rate” (100%) but trails it under “all” (0%)."
    assert str(flip) == sentence
    assert f"<li>{sentence}</li>" in render(protocols.results)


def test_without_a_flip_none_is_told(made):
    optimizers = {
        "sgd rate": SGD | {"protocol": "rate"},
        "adam rate": FIXED_ADAM | {"protocol": "rate"},
        "adam all": ADAM | {"protocol": "all"},
        "sgd all": SGD | {"protocol": "all", "learning_rate": {"log": [1e-4, 1e1]}},
    }
    # In one protocol adam leads; in the other they tie, so that nobody leads.
    comparison = made(
        study_of(optimizers), constant_pools({"sgd rate": 0.4, "adam rate": 0.2, "adam all": 0.3, "sgd all": 0.3})
    )
    assert flips(by_protocol([comparison.results])) == []
    assert "No two rules change rank between the protocols by more than chance." in render(comparison.results)


def test_the_figure_of_protocols(protocols):
    figure = protocol_figure(protocols)
    select, report = figure.panels
    assert (select.metric, report.metric) == ("valid_error", "test_error")
    rows = {(row["ruleName"], row["protocolName"]): row for row in select.rows}
    assert len(rows) == len(select.rows) == 5
    for (rule, protocol), row in rows.items():
        assert row["name"] == f"{rule} {protocol}"
        assert row["mean"] == pytest.approx(ENDS[row["name"]], rel=1e-6)
        assert row["k"] == K
    (part,) = figure.parts
    altair.Chart.from_dict(file_spec(part, figure.columns), validate=True)
    svg = vl_convert.vegalite_to_svg(file_spec(part, figure.columns))
    assert marks(svg, "mark-symbol") == 2 * 5
    words = texts(svg)
    for name in ("rate", "all", "sgd", "adam", "momentum"):  # columns, and the rules in a legend
        assert name in words


def test_one_protocol_is_no_figure(comparison):
    assert "protocols" not in {figure.name for figure in figures(comparison.results)}
    assert "Tuning protocols" not in render(comparison.results)


@pytest.fixture(scope="module")
def three(made) -> list[lf.Comparison]:
    """Three studies of the same rules; the leader changes twice."""
    ends = {"first": (0.2, 0.4), "second": (0.4, 0.2), "third": (0.1, 0.3)}
    schedules = [{"kind": "constant"}, {"kind": "linear", "decay_steps": 1.0, "decay_factor": 0.1}]
    return [
        made(
            study_of({"sgd": SGD, "adam": ADAM}, name=name, trials=1 + i, schedule=schedules[i % 2]),
            constant_pools({"sgd": sgd, "adam": adam}),
        )
        for i, (name, (sgd, adam)) in enumerate(ends.items())
    ]


def test_studies_beside_each_other(three):
    first, *_ = three
    columns = by_protocol([comparison.results for comparison in three])
    assert [(label, list(column)) for label, column in columns.items()] == [
        (label, ["sgd", "adam"]) for label in ("first", "second", "third")
    ]
    assert [column["sgd"].k for column in columns.values()] == [1, 2, 3]
    assert [str(flip) for flip in flips(columns)] == [
        "sgd leads adam under “first” (100%) but trails it under “second” (0%).",
        "adam leads sgd under “second” (100%) but trails it under “third” (0%).",
    ]
    figure = protocol_figure(first, three)
    assert [(row["protocolName"], row["ruleName"]) for row in figure.panels[0].rows] == list(
        itertools.product(["first", "second", "third"], ["sgd", "adam"])
    )
    page = render(first.results, [comparison.results for comparison in three])
    assert page.count("but trails it under") == 2


def test_two_optimizers_of_a_rule_go_by_their_names(made):
    comparison = made(
        study_of({"fast": SGD, "slow": SGD | {"learning_rate": {"log": [1e-5, 1e-4]}}, "adam": ADAM}),
        constant_pools({"fast": 0.1, "slow": 0.3, "adam": 0.2}),
    )
    assert by_protocol([comparison.results]).keys() == {"study"}
    assert list(by_protocol([comparison.results])["study"]) == ["fast", "slow", "adam"]


def test_studies_of_the_same_name_do_not_hide_each_other(made):
    one, other = (
        made(study_of({"sgd": SGD, "adam": ADAM}, seed=i), constant_pools({"sgd": 0.1 + i, "adam": 0.2 + i}))
        for i in (0, 1)
    )
    columns = by_protocol([one.results, other.results])
    assert list(columns) == ["study", "study (study)"]
    means = [entry.outcome.best(K).mean for column in columns.values() for entry in column.values()]
    assert means == pytest.approx([0.1, 0.2, 1.1, 1.2])


def test_studies_beside_each_other_may_have_protocols_of_the_same_name(made):
    """As the paper's final and initial spaces have: there are two, not one that hides the other."""
    tables = {"sgd": SGD | {"protocol": "everything"}, "adam": ADAM | {"protocol": "everything"}}
    both = [
        made(study_of(tables, seed=i, name=name), constant_pools({"sgd": 0.1 + i, "adam": 0.2 - i / 5}))
        for i, name in enumerate(("final", "initial"))
    ]
    assert list(by_protocol([comparison.results for comparison in both])) == ["everything", "everything (initial)"]
    (flip,) = flips(by_protocol([comparison.results for comparison in both]))
    assert (flip.before, flip.after) == ("everything", "everything (initial)")


def test_an_optimizer_without_trials_is_in_no_figure_of_protocols(made):
    comparison = made(
        study_of({name: SGD | {"rule": "sgd", "protocol": name} for name in "ab"} | {"momentum": MOMENTUM}),
        constant_pools({"a": 0.1, "b": 0.2}),
    )
    figure = protocol_figure(comparison)
    assert [row["ruleName"] for row in figure.panels[0].rows] == ["sgd", "sgd"]
    assert flips(by_protocol([comparison.results])) == []
