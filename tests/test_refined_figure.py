"""The figure of how search ranges changed: its rows follow the log of a refinement."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import altair
import pytest
import vl_convert
from report_helpers import EVALUATIONS, METRICS, POOL, study_of

import levelfield as lf
from levelfield.formatting import format_range
from levelfield.report import charts
from levelfield.report.figure import Figure, Panel
from levelfield.report.figures import figures
from levelfield.report.methods import methods
from levelfield.report.page import file_spec, render
from levelfield.space import dimension

STUDIES = ["mine", "mine_refined", "mine_refined2"]
RATES = [{"log": [1e-5, 1e-3]}, {"log": [1e-4, 1e-2]}, {"log": [1e-3, 1e-1]}]
SCHEDULE = {"kind": "linear", "decay_steps": {"integer": [2, 9]}, "decay_factor": {"choice": [1e-3, 1e-2, 1e-1]}}
OPTIMIZERS = {
    "sgd": {"learning_rate": {"log": [1e-3, 1e1]}},
    "momentum": {"learning_rate": RATES[2], "momentum": {"uniform": [0.5, 0.9]}},
    "adam": {
        "learning_rate/epsilon": {"log": [1e-2, 1e2]},
        "one_minus_beta1": {"log": [1e-2, 1e0]},
        "beta2": 0.999,
        "epsilon": {"log": [1e-3, 1e3]},
        "schedule": SCHEDULE,
    },
}


def change(study: str, optimizer: str, axis: str, before: Any, after: Any, **more: Any) -> dict[str, Any]:
    content = {"study": study, "optimizer": optimizer, "axis": axis, "before": before, "after": after}
    return content | {"verdict": "at the upper border", "trials": 64} | more


LOG = [
    change(
        "mine",
        "momentum",
        "learning_rate",
        RATES[0],
        RATES[1],
        outside={"log": [1e-5, 1e-1]},
        outside_trials=16,
        evidence="The best trial was <outside>.",
    ),
    change("mine", "momentum", "momentum", {"uniform": [0.1, 0.5]}, {"uniform": [0.5, 0.9]}, outside_trials=0),
    change(
        "mine",
        "adam",
        "decay_factor",
        {"choice": [1e-2, 1e-1]},
        SCHEDULE["decay_factor"],
        outside={"choice": [1e-4, 1e-3, 1e-2, 1e-1]},
        outside_trials=8,
    ),
    change("mine_refined", "gone", "learning_rate", {"log": [1e-9, 1e9]}, {"log": [1e-9, 1e8]}, outside_trials=999),
    change("mine_refined", "adam", "decay_steps", {"integer": [1, 4]}, SCHEDULE["decay_steps"]),
    change("mine_refined2", "momentum", "learning_rate", RATES[1], RATES[2], verdict="wide", trials=1200),
]


def refined(made: Any, log: list[dict[str, Any]], **changes: Any) -> lf.Comparison:
    study = study_of(**{"name": "mine_refined3", "optimizers": OPTIMIZERS, "refined": log} | changes)
    pool = [dict.fromkeys(METRICS, [0.9 - 0.01 * i] * EVALUATIONS) for i in range(POOL)]
    return made(study, dict.fromkeys(study.optimizers, pool))


def figure_of(comparison: lf.Comparison) -> Figure | None:
    return next((figure for figure in figures(comparison.results) if figure.name == "refinement"), None)


def panels_of(figure: Figure) -> dict[tuple[str, str], Panel]:
    """Return the panels by optimizer and the title of their axis."""
    return {(part.title, x_axis(panel)["title"]): panel for part in figure.parts for panel in part.panels}


def x_axis(panel: Panel) -> dict[str, Any]:
    return panel.spec()["layer"][0]["encoding"]["x"]


def spans(panel: Panel, inside: bool = True) -> list[list[tuple[float, float]]]:
    """Return what is drawn in each round, from top to bottom."""
    rounds = 1 + max(row["round"] for row in panel.rows)
    return [
        [(row["low"], row["high"]) for row in panel.rows if row["round"] == i and row["inside"] is inside]
        for i in range(rounds)
    ]


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    return refined(made, LOG)


@pytest.fixture(scope="module")
def figure(comparison) -> Figure:
    return figure_of(comparison)


@pytest.fixture(scope="module")
def panels(figure) -> dict[tuple[str, str], Panel]:
    return panels_of(figure)


# ---------------------------------------------------------------------------- rows


def test_each_changed_range_has_a_panel_grouped_by_optimizer(figure, panels):
    assert [part.title for part in figure.parts] == ["momentum", "adam"]
    assert [part.name for part in figure.parts] == ["momentum", "adam"]
    assert [part.color for part in figure.parts] == [charts.color(1), charts.color(2)]
    assert list(panels) == [
        ("momentum", "learning_rate"),
        ("momentum", "momentum"),
        ("adam", "decay_factor"),
        ("adam", "decay_steps"),
    ]


def test_ranges_follow_the_log(panels):
    """Undoing the changes, last to first, leads from the study's range to that of each round."""
    for (optimizer, key), panel in panels.items():
        ranges = [study_of(optimizers=OPTIMIZERS).optimizer(optimizer).space.spec()[key]]
        for study in reversed(STUDIES):
            undone = {
                (entry["study"], entry["optimizer"], entry["axis"]): entry["before"]
                for entry in LOG
                if entry["after"] == ranges[0]
            }
            ranges.insert(0, undone.get((study, optimizer, key), ranges[0]))
        texts = {row["round"]: row["range"] for row in panel.rows}
        assert [texts[i] for i in range(4)] == [format_range(dimension(spec)) for spec in ranges]
        if key != "decay_factor":
            assert spans(panel) == [[tuple(next(iter(spec.values())))] for spec in ranges]


def test_a_range_that_was_changed_twice(panels):
    panel = panels["momentum", "learning_rate"]
    assert spans(panel) == [[(1e-5, 1e-3)], [(1e-4, 1e-2)], [(1e-4, 1e-2)], [(1e-3, 1e-1)]]
    assert spans(panel, inside=False) == [[(1e-5, 1e-1)], [], [], []]
    inside = [row for row in panel.rows if row["inside"]]
    assert [row["label"] for row in inside] == ["initial", "round 2", "round 3", "final"]
    assert [row["study"] for row in inside] == [*STUDIES, "mine_refined3"]
    assert [row["verdict"] for row in inside] == ["at the upper border", "not changed", "wide", "–"]
    assert [row["trials"] for row in inside] == ["64", "–", "1,200", str(POOL)]
    assert [row["outside"] for row in inside] == ["16 in log [1e-05, 0.1]", "–", "–", "–"]
    assert [row["evidence"] for row in inside] == ["The best trial was <outside>.", "–", "–", "–"]


def test_without_trials_outside_nothing_is_drawn_there(panels, made):
    for key in [("momentum", "momentum"), ("adam", "decay_steps")]:
        assert spans(panels[key], inside=False) == [[]] * 4
    captions = [figure_of(refined(made, log)).caption for log in (LOG, LOG[1:2])]
    assert ["Thin bars" in caption for caption in captions] == [True, False]


def test_choices_are_ticks_at_their_values(panels):
    panel = panels["adam", "decay_factor"]
    values = [1e-4, 1e-3, 1e-2, 1e-1]  # on the axis
    drawn = [[values[low] for low, high in listed if low == high] for listed in spans(panel)]
    assert drawn == [[1e-2, 1e-1], *[[1e-3, 1e-2, 1e-1]] * 3]
    assert spans(panel, inside=False) == [[(i, i) for i in range(4)], [], [], []]
    assert x_axis(panel)["scale"]["domain"] == [0, 1, 2, 3]


def test_axes_hold_every_range_and_have_its_scale(panels):
    for key, kind, low, high in (
        (("momentum", "learning_rate"), "log", 1e-5, 1e-1),
        (("momentum", "momentum"), None, 0.1, 0.9),
        (("adam", "decay_steps"), None, 1, 9),
    ):
        scale = x_axis(panels[key])["scale"]
        assert scale.get("type") == kind
        first, last = scale["domain"]
        assert first < low < high < last
    assert x_axis(panels["adam", "decay_steps"])["axis"]["tickMinStep"] == 1
    assert "tickMinStep" not in x_axis(panels["momentum", "momentum"])["axis"]


def test_a_study_that_kept_its_name_still_has_two_rounds(made):
    log = [
        change("mine", "momentum", "learning_rate", RATES[0], RATES[1]),
        change("mine", "momentum", "learning_rate", RATES[1], RATES[2]),
    ]
    (panel,) = figure_of(refined(made, log)).panels
    assert spans(panel) == [[tuple(spec["log"])] for spec in RATES]


def test_a_range_that_was_edited_by_hand_is_the_study_s(made):
    log = [change("mine", "momentum", "learning_rate", RATES[0], RATES[1])]
    (panel,) = figure_of(refined(made, log)).panels
    assert spans(panel) == [[(1e-5, 1e-3)], [(1e-3, 1e-1)]]


def test_an_axis_that_the_study_no_longer_has_ends_earlier(made):
    log = [change("mine", "momentum", "one_minus_momentum", {"log": [1e-3, 1e-2]}, {"log": [1e-2, 1e-1]})]
    (panel,) = figure_of(refined(made, log)).panels
    assert spans(panel) == [[(1e-3, 1e-2)]]


def test_kinds_may_change(made):
    log = [
        change("mine", "sgd", "learning_rate", {"choice": [1e-2, 1e-1]}, {"uniform": [0.5, 2]}),
        change("mine_refined", "sgd", "learning_rate", {"uniform": [0.5, 2]}, OPTIMIZERS["sgd"]["learning_rate"]),
        change("mine", "momentum", "momentum", 0.5, 0.9),
        change("mine", "adam", "nesterov", {"choice": ["a", "b", True]}, "a"),
    ]
    panels = panels_of(figure_of(refined(made, log)))
    rate = panels["sgd", "learning_rate"]
    assert spans(rate)[:2] == [[(1e-2, 1e-2), (1e-1, 1e-1)], [(0.5, 2)]]
    assert spans(rate)[-1] == [(1e-3, 1e1)]
    assert x_axis(rate)["scale"]["type"] == "log"
    assert spans(panels["momentum", "momentum"])[-1] == [(0.5, 0.9)]
    assert spans(panels["adam", "nesterov"])[2] == [(0, 0), (1, 1), (2, 2)]


def test_an_unknown_optimizer_in_the_log_is_ignored(comparison, made):
    gone = [entry for entry in LOG if entry["optimizer"] == "gone"]
    assert figure_of(refined(made, gone)) is None
    assert "gone" not in json.dumps([panel.rows for panel in figure_of(comparison).panels])
    assert "earlier searches" not in methods(refined(made, gone).results)["methods.md"]


# ---------------------------------------------------------------------------- files


def test_specifications_are_valid_and_drawn(figure):
    marks = {}
    for part in figure.parts:
        spec = file_spec(part, figure.columns)
        altair.Chart.from_dict(spec, validate=True)
        root = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec))
        texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
        assert {"initial", "round 2", "round 3", "final"} <= texts
        groups = [group for group in root.iter() if "role-mark" in group.get("class", "")]
        marks[part.title] = {
            kind: sum(len(group) for group in groups if f"mark-{kind} " in group.get("class"))
            for kind in ("rule", "rect")
        }
    assert marks == {"momentum": {"rule": 4 + 1 + 4, "rect": 0}, "adam": {"rule": 4, "rect": 4 + 2 + 3 * 3}}


def test_the_methods_count_trials_outside_once(made):
    twice = [LOG[0], LOG[1] | {"outside": {"uniform": [0.1, 0.9]}, "outside_trials": 16}, *LOG[2:]]
    for log, words in (
        (LOG, "after 24 trials outside the ranges"),
        (twice, "after 24 trials outside the ranges"),  # the same trials of one round
        (LOG[-1:], ""),
    ):
        text = methods(refined(made, log).results)["methods.md"]
        count = len({(entry["optimizer"], entry["axis"]) for entry in log} - {("gone", "learning_rate")})
        (sentence,) = re.findall(r"[^.]*had been changed after earlier searches[^.]*\.", text)
        assert sentence.split()[0] == str(count)
        assert words in sentence
        assert ("outside" in sentence) == bool(words)


# ---------------------------------------------------------------------------- the page


def test_the_page_has_the_figure_only_if_the_study_was_refined(comparison, made):
    assert 'id="refinement"' in render(comparison.results)
    assert 'id="refinement"' not in render(refined(made, []).results)


def test_the_page_draws_the_paths_and_lists_the_log(comparison, opened):
    page = opened(comparison)
    page.evaluate("window.page.showAll()")
    section = page.locator("#refinement")
    assert page.locator("nav a", has_text="How the search ranges changed").get_attribute("href") == "#refinement"
    assert section.locator("[data-panel]").count() == 4
    rules = section.locator("[data-panel]").first.locator(".mark-rule.role-mark line")
    assert rules.count() == 4 + 1
    stayed = section.locator("p", has_text="stayed the same").text_content()
    assert stayed == (
        "Ranges that stayed the same: sgd: learning_rate; adam: epsilon, learning_rate/epsilon, one_minus_beta1."
    )
    section.locator("summary").click()
    rows = section.locator("tbody tr")
    known = [entry for entry in LOG if entry["optimizer"] in OPTIMIZERS]
    assert rows.count() == len(known)
    for row, entry in zip(rows.all(), known, strict=True):
        text = re.sub(r"\s+", " ", row.text_content())
        before, after = (format_range(dimension(entry[key])) for key in ("before", "after"))
        for word in (entry["study"], entry["optimizer"], entry["axis"], f"{before} → {after}", entry["verdict"]):
            assert word in text
        assert entry.get("evidence", "") in text
        assert ("16 in log [1e-05, 0.1]" in text) == (entry.get("outside_trials") == 16)


@pytest.mark.parametrize("width", [320, 390, 770, 1000])
def test_it_fits_a_narrow_screen(comparison, opened, width):
    page = opened(comparison, viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('#refinement details').forEach(details => { details.open = true; })")
    page.evaluate("window.page.showAll()")
    section = page.locator("#refinement")
    assert section.locator("table").is_visible()
    assert section.evaluate("section => section.scrollWidth - section.clientWidth") <= 0
