"""The text of the page, and the commands that write it."""

from __future__ import annotations

import html
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import vl_convert
from hypothesis import given
from hypothesis import strategies as st
from report_helpers import (
    ADAM,
    INFEASIBLE,
    MOMENTUM,
    SGD,
    Pools,
    constant_pools,
    random_pools,
    study_of,
)
from test_figures import texts

import levelfield as lf
from levelfield.report import vega
from levelfield.report.figure import packed
from levelfield.report.page import render
from levelfield.report.payload import script_json


@pytest.fixture(scope="module")
def pools() -> Pools:
    return random_pools()


@pytest.fixture(scope="module")
def comparison(made, pools) -> lf.Comparison:
    return made(study_of(), pools, INFEASIBLE)


# ---------------------------------------------------------------------------- text

CONTENT = st.recursive(
    st.one_of(st.text(), st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.none()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(content=CONTENT)
def test_data_survive_inside_a_script(content):
    text = script_json(content)
    assert json.loads(text) == content
    assert not set(text) & set("<>&\u2028\u2029")


def test_data_cannot_end_their_script():
    text = script_json({"</script>": "<!-- <script> ]]> &lt;"})
    assert json.loads(text) == {"</script>": "<!-- <script> ]]> &lt;"}
    assert "<" not in text
    with pytest.raises(ValueError, match="JSON"):
        script_json(math.nan)


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {"name": st.sampled_from("abc"), "value": st.none() | st.integers(), "best": st.booleans()}
        )
    )
)
def test_packed_rows_hold_the_rows(rows):
    compact = packed(rows)
    assert json.loads(script_json(compact)) == compact
    texts, columns = compact["texts"], compact["columns"]
    again = [
        {key: texts[key][value] if key in texts else value for key, value in zip(columns, row, strict=True)}
        for row in zip(*columns.values(), strict=True)
    ]
    assert again == rows


def test_the_study_in_the_page_is_a_study_file(comparison, made):
    optimizers = {"\"quoted\" 'name'": SGD, "a.b/c = 1": ADAM, "ünïcode ∑ 🦊\\": MOMENTUM}
    study = study_of(optimizers, name="<b>&amp;", description='He said "no" & left\n')
    for written in (comparison.study, study):
        shown = re.search(r"<pre[^>]*>(.*?)</pre>", render(made(written, {}).results), re.DOTALL)
        assert lf.Study(**tomllib.loads(html.unescape(shown[1]))).spec() == written.spec()


def test_a_study_file_has_a_line_for_each_hyperparameter():
    text = study_of({"a/b": ADAM}).to_toml()
    _, _, table = text.partition('[optimizers."a/b"]\n')
    assert sorted(table.splitlines()) == [
        '"learning_rate/epsilon" = { log = [0.01, 100.0] }',
        "beta2 = 0.999",
        "epsilon = { log = [0.001, 1000.0] }",
        "one_minus_beta1 = { choice = [0.1, 0.05, 0.3] }",
        'rule = "adam"',
    ]


def test_a_report_loads_no_jax(tmp_path, made):
    store = tmp_path / "trials.db"
    made(study_of(name="small"), random_pools(), INFEASIBLE, store=store)
    (tmp_path / "small.toml").write_text(study_of(name="small").to_toml())
    code = (
        "import sys, levelfield as lf; lf.Comparison.load(lf.load_study('small.toml'), 'trials.db')"
        ".write_report('report.html'); print(sorted({'jax', 'flax', 'optax', 'polars'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_vega_script_is_built_once(monkeypatch, tmp_path):
    built = []
    monkeypatch.setattr(vega.platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(vl_convert, "javascript_bundle", lambda snippet: built.append(snippet) or "the script")
    for _ in range(2):
        vega.vega_bundle.cache_clear()
        assert vega.vega_bundle() == "the script"
    assert len(built) == 1
    (tmp_path / "levelfield").rename(tmp_path / "moved")
    (tmp_path / "levelfield").write_text("not a folder")
    vega.vega_bundle.cache_clear()
    assert vega.vega_bundle() == "the script"
    vega.vega_bundle.cache_clear()


def test_most_of_a_small_page_is_its_scripts(comparison):
    page = render(comparison.results)
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert len(data) < 100_000
    assert len(page.encode()) < 1_500_000


def test_a_page_cannot_be_half_written(comparison, tmp_path):
    path = tmp_path / "made" / "report.html"
    assert comparison.write_report(path) == path
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    before = path.read_text()
    (tmp_path / "file").write_text("")
    with pytest.raises(lf.LevelfieldError, match=r"file/report.html: cannot be written"):
        comparison.write_report(tmp_path / "file" / "report.html")
    assert path.read_text() == before


# ---------------------------------------------------------------------------- commands


@pytest.fixture
def cli(monkeypatch, command, tmp_path, made) -> Callable[..., tuple[int, str, str]]:
    """Commands in a folder with two studies and their trials, a third without, and one of another workload."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(vl_convert, "vegalite_to_pdf", lambda spec: b"%PDF-")
    monkeypatch.setattr(vl_convert, "vegalite_to_png", lambda spec, ppi: b"PNG")
    ends = {"small": (0.2, 0.4), "other": (0.4, 0.2)}
    for i, (name, (sgd, adam)) in enumerate(ends.items()):
        study = study_of({"sgd": SGD, "adam": ADAM}, name=name, seed=i)
        Path(f"{name}.toml").write_text(study.to_toml())
        made(study, constant_pools({"sgd": sgd, "adam": adam}), store=tmp_path / f"levelfield-out/{name}/trials.db")
    Path("never.toml").write_text(study_of(name="never").to_toml())
    lone = lf.Study(workload="quadratic", steps=4, trials=1, optimizers={"sgd": SGD}, name="lone")
    Path("lone.toml").write_text(lone.to_toml())
    return command


def test_report_writes_figures_and_tables(cli):
    code, out, err = cli("report", "small.toml", "--figures", "paper/figures")
    assert code == 0
    written = {path.name for path in Path("paper/figures").iterdir()}
    assert {"outcomes.pdf", "outcomes.svg", "outcomes.png", "outcomes.tex", "spaces.tex", "audit.tex"} <= written
    assert {"hyperparameters-sgd.svg", "hyperparameters-adam.svg", "curves.svg", "pairs.svg"} <= written
    assert "protocols.svg" not in written
    assert [line for line in err.splitlines() if line.startswith("wrote ")] == [
        line for line in err.splitlines() if line
    ]
    assert len(err.splitlines()) == len(written)
    assert "report: levelfield-out/small/report.html" in out


def test_report_beside_another_study(cli):
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml", "--figures", "figures")
    assert code == 0
    page = Path("levelfield-out/small/report.html").read_text()
    assert "<li>sgd leads adam under “small” (100%) but trails it under “other” (0%).</li>" in page
    assert {"protocols.pdf", "protocols.svg", "protocols.png"} <= {path.name for path in Path("figures").iterdir()}
    assert {"small", "other", "sgd", "adam"} <= set(texts(Path("figures/protocols.svg").read_text()))
    assert not Path("levelfield-out/other/report.html").exists()


def test_report_beside_studies_of_one_store(cli, made, tmp_path):
    store = tmp_path / "all.db"
    for i, name in enumerate(("small", "other")):
        study = lf.load_study(f"{name}.toml")
        made(study, constant_pools({"sgd": 0.1 + i / 5, "adam": 0.2}), store=store)
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml", "--store", str(store))
    assert code == 0
    page = Path("levelfield-out/small/report.html").read_text()
    assert "sgd leads adam under “small” (100%) but trails it under “other” (0%)." in page


def test_a_study_beside_that_has_no_trials_in_the_store_is_refused(cli, made, tmp_path):
    made(lf.load_study("small.toml"), constant_pools({"sgd": 0.1, "adam": 0.2}), store=tmp_path / "all.db")
    Path("never.toml").write_text(study_of(name="never", seed=9).to_toml())
    code, _, err = cli("report", "small.toml", "--beside", "never.toml", "--store", str(tmp_path / "all.db"))
    assert code == 2
    hint = "'levelfield run never.toml' trains them"
    assert err == f"levelfield: --beside never.toml: the store has no trials of it; {hint}\n"


def test_a_study_beside_is_selected_by_the_same_metric(cli, monkeypatch):
    other = lf.load_study("other.toml").replace(select="valid_loss")
    Path("other.toml").write_text(other.to_toml())
    selected = []
    write = lf.Comparison.write_report

    def watched(comparison: lf.Comparison, path: Path, protocols: Sequence[lf.Comparison]) -> Path:
        selected.extend(other.outcome("sgd").select for other in protocols)
        return write(comparison, path, protocols)

    monkeypatch.setattr(lf.Comparison, "write_report", watched)
    code, _, _ = cli("report", "small.toml", "--beside", "other.toml")
    assert code == 0
    assert selected == ["valid_error", "valid_error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--beside", "lone.toml"], ["--beside lone.toml", "the same workload, fashion_mini", "it trains quadratic"]),
        (["--beside", "never.toml"], ["levelfield-out/never/trials.db", "no such store"]),
        (["--beside", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["--beside", "fashion_mni"], ["'fashion_mni'", "did you mean 'fashion_mini'?"]),
        (["--beside"], ["--beside", "argument"]),
        (["--figures", "small.toml"], ["small.toml", "cannot be written"]),
        (["--figures", "small.toml/inside"], ["small.toml/inside", "cannot be written"]),
    ],
)
def test_a_bad_report_is_refused_in_one_line(cli, arguments, words):
    code, _, err = cli("report", "small.toml", *arguments)
    assert code == 2
    assert len(err.strip().splitlines()) == 1, err
    for word in words:
        assert word in err
