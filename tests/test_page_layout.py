"""The page in a browser: contents, tables that sort and fold, colors, paper and narrow screens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page_helpers import (
    EVALUATIONS,
    METRICS,
    MOMENTUM,
    OPTIMIZERS,
    POOL,
    SETTLED,
    answer,
    ask,
    four_optimizers,
    little_study,
    narrow,
    outcome_table,
    pools_of,
    ranking,
    study_of,
)

import levelfield as lf

NARROW, WIDE = {"width": 390, "height": 800}, {"width": 1440, "height": 900}


@pytest.fixture(scope="module")
def comparison(made) -> lf.Comparison:
    return four_optimizers(made)


@pytest.fixture(scope="module")
def report(comparison, tmp_path_factory) -> Path:
    return comparison.write_report(tmp_path_factory.mktemp("layout") / "report.html")


@pytest.fixture
def page(opened, report) -> Any:
    return opened(report)


# ---------------------------------------------------------------------------- contents


def test_the_contents_list_every_section(page):
    headings = {text.strip() for text in page.locator("h2").all_text_contents()}
    assert len(headings) > 10
    links = page.evaluate("[...document.querySelectorAll('nav a')].map(link => [link.textContent, link.hash])")
    assert {title for title, _ in links} == headings | {"Results"}
    for _, anchor in links:
        assert page.locator(anchor).count() == 1


def test_the_contents_stay_in_sight_and_mark_the_section(opened, report):
    page = opened(report, viewport=WIDE)
    link = page.locator("nav a", has_text="Search spaces")
    link.click()
    page.wait_for_function("document.querySelector('nav a[aria-current]')?.hash === '#spaces'")
    assert link.is_visible()
    top = link.bounding_box()["y"]
    assert 0 <= top < WIDE["height"]
    assert page.locator("#spaces h2").bounding_box()["y"] >= page.locator("#controls").bounding_box()["height"]


def test_the_contents_unfold_on_a_narrow_screen(opened, report):
    page = opened(report, viewport=NARROW)
    link = page.locator("nav a", has_text="Cost")
    assert not link.is_visible()
    page.locator("nav summary").click()
    link.click()
    assert not link.is_visible()
    page.wait_for_function("Math.abs(document.querySelector('#cost').getBoundingClientRect().top) < 200")
    assert page.locator("nav summary").bounding_box()["y"] == 0


# ---------------------------------------------------------------------------- sorting


def sorted_by(page: Any) -> tuple[str, str]:
    (heading,) = page.locator("#outcome-table th[aria-sort]").all()
    return heading.get_attribute("data-column"), heading.get_attribute("aria-sort")


def click_heading(page: Any, column: str) -> None:
    page.evaluate("window.scrollTo(0, 0)")
    page.locator(f'#outcome-table th[data-column="{column}"] button').click()


def test_rows_come_in_the_order_of_the_ranking(page, comparison):
    assert list(outcome_table(page)) == ranking(comparison) != list(OPTIMIZERS)
    assert sorted_by(page) == ("select", "ascending")
    ask(page, k=1, select="train_loss")
    assert list(outcome_table(page)) == ranking(answer(comparison, 1, "train_loss"))


def test_a_heading_sorts_and_sorts_back(page, comparison):
    click_heading(page, "optimizer")
    assert list(outcome_table(page)) == sorted(OPTIMIZERS)
    assert sorted_by(page) == ("optimizer", "ascending")
    click_heading(page, "optimizer")
    assert list(outcome_table(page)) == sorted(OPTIMIZERS, reverse=True)
    assert sorted_by(page) == ("optimizer", "descending")

    tests = {name: comparison.outcome(name).best(comparison.study.trials, "test_error").mean for name in OPTIMIZERS}
    click_heading(page, "report")
    assert list(outcome_table(page)) == sorted(tests, key=tests.get)

    click_heading(page, "select")
    assert list(outcome_table(page)) == ranking(comparison)
    click_heading(page, "select")
    assert list(outcome_table(page)) == ranking(comparison)[::-1]


def test_a_chosen_order_holds_for_other_questions(page, comparison):
    click_heading(page, "steps")
    ask(page, k=2, select="valid_loss")
    view = answer(comparison, 2, "valid_loss")
    steps = {name: view.outcome(name).steps_interval(2).median for name in ranking(view)}
    assert np.isinf(steps["momentum"])  # which never reaches the target
    assert list(outcome_table(page)) == sorted(steps, key=steps.get)
    assert sorted_by(page) == ("steps", "ascending")


def test_rows_without_a_value_come_last(page, comparison):
    narrow(page, comparison.study, {"adam": {"learning_rate/epsilon": (3.0001, 3.0002)}})
    for _ in range(2):
        click_heading(page, "select")
        page.evaluate(SETTLED)
        assert list(outcome_table(page))[-1] == "adam"


# ---------------------------------------------------------------------------- folding


def test_searches_and_spaces_are_folded_by_optimizer(opened, made):
    """Only the searches with a problem are unfolded."""
    pools = pools_of(["sgd", "momentum"], POOL)
    for i, trial in enumerate(pools["sgd"]):  # has converged, to much the same everywhere
        trial |= {metric: np.array([0.9] + [0.3 + 0.001 * (i % 7)] * (EVALUATIONS - 1)) for metric in METRICS}
    optimizers = {"sgd": {"learning_rate": 0.1}, "momentum": MOMENTUM}
    comparison = made(little_study(optimizers), pools)
    unsound = {boundary.optimizer for boundary in comparison.boundaries() if not boundary.settled}
    unsound |= {check.optimizer for check in comparison.health() if not check.healthy}
    assert unsound == {"momentum"}
    page = opened(comparison)
    for section, unfolded in (("#searches", unsound), ("#spaces", set())):
        folds = page.evaluate(
            """section => [...document.querySelectorAll(`${section} details`)].map(details =>
            [details.querySelector("summary").textContent.trim().split(" ")[0], details.open])""",
            section,
        )
        assert dict(folds) == {name: name in unfolded for name in optimizers}


# ---------------------------------------------------------------------------- how it looks


def luminance(page: Any, selector: str, style: str) -> float:
    """Return 0 for black, 1 for white."""
    numbers = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{style}.match(/[\\d.]+/g)")
    return sum(map(float, numbers[:3])) / (3 * 255)


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_colors_follow_the_reader_s(opened, report, scheme, dark):
    page = opened(report, color_scheme=scheme)
    page.evaluate("window.page.showAll()")
    texts = [luminance(page, selector, "color") for selector in ("body", "#outcome-table td", "nav a")]
    texts.append(luminance(page, "[data-panel] .role-axis-label text", "fill"))
    assert all((text > 0.6) == dark for text in texts)
    assert (luminance(page, "html", "backgroundColor") < 0.4) == dark


def test_on_paper_there_is_nothing_to_press(page):
    assert page.locator("#controls").is_visible()
    page.emulate_media(media="print")
    assert page.locator("#controls").is_hidden()
    assert page.locator("nav").is_hidden()
    assert page.locator("#outcome-table").is_visible()


@pytest.mark.parametrize("width", [320, 390, 800, 870, 1125])
def test_it_fits_a_narrow_screen(opened, report, comparison, width):
    page = opened(report, viewport={"width": width, "height": 800})
    ask(page, k=3, select="train_loss")
    narrow(page, comparison.study, {"momentum": {"learning_rate": (0.02, 2)}})  # opens what is folded
    page.evaluate("window.page.showAll()")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_phone_each_row_is_a_card(opened, report):
    page = opened(report, viewport=NARROW)
    cell = page.locator("#outcome-table tbody td[data-column=select]").first
    assert (
        page.evaluate("cell => getComputedStyle(cell, '::before').content", cell.element_handle())
        == '"median valid_error (90% CI)"'
    )
    ask(page, select="train_loss")
    assert (
        page.evaluate("cell => getComputedStyle(cell, '::before').content", cell.element_handle())
        == '"median train_loss (90% CI)"'
    )
    widths = page.evaluate("""() => [...document.querySelectorAll("#outcome-table tbody td:not([hidden]) .main")].map(
        text => text.getBoundingClientRect().width)""")
    assert min(widths) > 0
    assert page.locator("#outcome-table tbody td.long").first.bounding_box()["width"] > 300
    page.locator("#outcome-table thead button", has_text="optimizer").click()
    assert list(outcome_table(page)) == sorted(OPTIMIZERS)


def test_a_large_study_is_a_page_of_a_few_megabytes(made, tmp_path):
    optimizers = {f"{name}{i}": table | {"rule": name} for name, table in OPTIMIZERS.items() for i in range(2)}
    optimizers = dict(list(optimizers.items())[2:])
    generator = np.random.default_rng(0)
    ends = generator.random((6, 500, 6, 1)) * np.linspace(2, 1, 100)
    pools = {
        name: [dict(zip(METRICS, trial, strict=True)) for trial in pool]
        for name, pool in zip(optimizers, ends, strict=True)
    }
    comparison = made(study_of(optimizers, steps=1000, pool=500, trials=100), pools)
    assert comparison.complete
    assert comparison.write_report(tmp_path / "report.html").stat().st_size <= 3e6
