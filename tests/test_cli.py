"""The commands as users see them: results, exit codes, and one clear line for invalid input."""

from __future__ import annotations

import importlib.metadata
import json
import re
import sqlite3
from pathlib import Path

import polars
import pytest

from levelfield.cli import app
from levelfield.cli.common import Overrides

COMMANDS = [command.name or command.callback.__name__ for command in app.registered_commands]
SMALL = """
workload = "quadratic"
steps = 60
eval_interval = 20
trials = 2
pool = 4
target = { metric = "train_loss", value = 0.5 }

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.adam]
"learning_rate/epsilon" = { log = [1e-1, 1e1] }
one_minus_beta1 = { log = [1e-2, 1e0] }
beta2 = 0.99
epsilon = { log = [1e-3, 1e0] }
"""


@pytest.fixture
def cli(command, tmp_path):
    """Run commands in a folder with a small study."""
    (tmp_path / "small.toml").write_text(SMALL)
    return command


def test_compare_prints_a_table_and_sentences_and_writes_a_report(cli, tmp_path):
    code, out, err = cli("compare", "small.toml")
    assert code == 0
    assert "best of 2 trials by train_loss" in out
    assert "With 2 trials each" in out
    assert "4/4 feasible" in err
    page = (tmp_path / "levelfield-out/small/report.html").read_text()
    assert "vegaEmbed" in page
    assert "https://cdn" not in page


def test_comparing_again_prints_the_same(cli):
    _, first, _ = cli("compare", "small.toml", "--json")
    before = json.loads(first)
    _, second, _ = cli("compare", "small.toml", "--json")
    assert json.loads(second) == before
    assert before["complete"] is True
    assert [row["optimizer"] for row in before["rows"]] == ["sgd", "adam"]


def test_options_override_the_study(cli):
    code, out, _ = cli("run", "small.toml", "--pool=3", "--trials=1", "--steps=40", "--optimizers=adam", "--json")
    status = json.loads(out)
    assert code == 0
    assert [(row["optimizer"], row["feasible"]) for row in status["optimizers"]] == [("adam", 3)]


def test_a_larger_pool_extends_the_smaller_one(cli):
    cli("run", "small.toml", "--optimizers", "sgd")
    cli("export", "small.toml", "-o", "before.csv")
    cli("run", "small.toml", "--optimizers", "sgd", "--pool", "7")
    cli("export", "small.toml", "-o", "after.csv")
    before, after = polars.read_csv("before.csv"), polars.read_csv("after.csv")
    assert len(after) > len(before)
    same = after.head(len(before)).drop("in_pool")
    assert same.equals(before.drop("in_pool"))


def test_status_shows_the_progress_of_a_study(cli):
    cli("run", "small.toml", "--optimizers", "sgd")
    code, out, _ = cli("status", "small.toml", "--json")
    status = json.loads(out)
    assert code == 0
    assert status["complete"] is False
    assert [row["feasible"] for row in status["optimizers"]] == [4, 0]


def test_the_report_of_an_unfinished_study_says_what_is_missing(cli):
    cli("run", "small.toml", "--optimizers", "sgd")
    code, out, _ = cli("report", "small.toml")
    assert code == 0
    assert "adam has no feasible trials yet" in out


def test_report_writes_figures(cli, tmp_path):
    cli("run", "small.toml")
    code, _, _ = cli("report", "small.toml", "--figures", "figures")
    assert code == 0
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"outcomes.pdf", "outcomes.svg", "outcomes.png", "curves.pdf", "hyperparameters-adam.pdf"} <= written


def test_an_empty_export_is_rejected(cli):
    cli("run", "small.toml")
    code, _, err = cli("export", "small.toml", "--seed", "99", "-o", "none.csv")
    assert code == 2
    assert "the store has no trials of this study with these settings" in err
    assert not Path("none.csv").exists()


@pytest.mark.parametrize("name", ["trials.csv", "trials.parquet"])
def test_an_export_has_every_trial(cli, name):
    cli("run", "small.toml")
    assert cli("export", "small.toml", "-o", name)[0] == 0
    frame = polars.read_csv(name) if name.endswith("csv") else polars.read_parquet(name)
    assert frame.filter(polars.col("in_pool")).group_by("optimizer").len()["len"].to_list() == [4, 4]
    assert {"hp_learning_rate", "hp_beta1", "train_loss", "seed", "seconds"} <= set(frame.columns)
    assert cli("export", "small.toml", "-o", name, "--curves", "--force")[0] == 0
    frame = polars.read_csv(name) if name.endswith("csv") else polars.read_parquet(name)
    assert sorted(frame["step"].unique()) == [20, 40, 60]


def test_an_export_overwrites_nothing_unless_forced(cli):
    cli("run", "small.toml")
    Path("mine.csv").write_text("mine")
    code, _, err = cli("export", "small.toml", "-o", "mine.csv")
    assert code == 2
    assert err == "levelfield: mine.csv exists; choose another name with -o, or add --force to overwrite it\n"
    assert Path("mine.csv").read_text() == "mine"
    assert cli("export", "small.toml", "-o", "mine.csv", "--force")[0] == 0
    assert len(polars.read_csv("mine.csv")) == 8


def test_overrides_do_not_replace_the_report_of_the_full_study(cli, tmp_path):
    folder = tmp_path / "levelfield-out/small"
    _, out, _ = cli("compare", "small.toml", "--json")
    assert json.loads(out)["overrides"] == {}
    full = (folder / "report.html").read_bytes()
    code, out, err = cli("compare", "small.toml", "--trials", "1", "--optimizers", "adam")
    assert code == 0, err
    page = folder / "report-trials1-optimizers-adam.html"
    assert out.startswith("small with trials = 1, optimizers = adam: best of 1 trial by train_loss")
    assert f"report: {page.relative_to(tmp_path)}" in out
    for tag in ("h1", "title"):
        assert f"<{tag}>small with trials = 1, optimizers = adam" in page.read_text("utf-8")
    code, out, err = cli("report", "small.toml", "--pool", "3", "--json")
    assert code == 0, err
    printed = json.loads(out)
    assert (printed["study"], printed["overrides"]) == ("small", {"pool": "3"})
    assert Path(printed["report"]).name == "report-pool3.html"
    assert (folder / "report.html").read_bytes() == full
    _, out, _ = cli("report", "small.toml", "--trials", "2", "--optimizers", "sgd,adam", "--json")  # as in the file
    assert Path(json.loads(out)["report"]).name == "report.html"
    _, out, _ = cli("status", "small.toml", "--pool", "3")
    assert out.startswith("small with pool = 3\n")


def test_the_page_of_a_ladder_with_overrides_has_its_own_name(cli, tmp_path):
    code, out, err = cli("ladder", "small.toml", "--pool", "2", "--optimizers", "adam", "--json")
    assert code == 0, err
    page = tmp_path / "levelfield-out/small/ladder-pool2-optimizers-adam.html"
    assert json.loads(out)["report"] == str(page.relative_to(tmp_path))
    assert "<h1>small with pool = 2, optimizers = adam</h1>" in page.read_text("utf-8")


@pytest.mark.parametrize(
    ("settings", "scale", "shared", "expected"),
    [
        ({}, None, True, "report"),
        ({}, 0.5, False, "report"),
        ({}, 0.5, True, "report-scale0.5"),
        ({"trials": "3", "optimizers": "adam, sgd"}, None, False, "report-trials3-optimizers-adam-sgd"),
        ({"optimizers": "a b"}, None, False, r"report-optimizers-a_b-[0-9a-f]{6}"),
        ({"optimizers": "adam-sgd"}, None, False, r"report-optimizers-adam_sgd-[0-9a-f]{6}"),
        ({"optimizers": "../é"}, None, False, r"report-optimizers-.._.-[0-9a-f]{6}"),
        ({"optimizers": ", ".join(["optimizer"] * 50)}, None, False, r"report-optimizers-.{62}-[0-9a-f]{6}"),
    ],
)
def test_names_of_reports(settings, scale, shared, expected):
    path = Overrides(settings, scale).page(Path("out"), "report", shared_folder=shared)
    assert path.parent == Path("out")
    assert re.fullmatch(expected, path.name.removesuffix(".html")), path.name


def test_check_shows_the_cost_of_a_study(cli):
    code, out, _ = cli("check", "small.toml")
    assert code == 0
    assert "2 optimizers × 4 trials × 60 steps = 480 trial-steps" in out
    code, out, _ = cli("check", "small.toml", "--json", "--measure")
    assert json.loads(out)["trial_steps_per_second"] > 0


def test_check_shows_a_precision_that_is_not_the_default(cli):
    assert ", precision bfloat16, evaluated every" in cli("check", "small.toml", "--precision", "bfloat16")[1]
    assert "precision" not in cli("check", "small.toml")[1]


@pytest.mark.parametrize("listing", ["studies", "workloads"])
def test_lists(cli, listing):
    code, out, _ = cli(listing)
    assert code == 0
    for name in ("fashion_mini", "tolstoi_mini", "quadratic", "wilson"):
        assert name in out
    assert len(json.loads(cli(listing, "--json")[1])) >= 4


def test_data_sets_are_listed_with_their_presence(cli, monkeypatch, tmp_path):
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "nothing"))
    code, out, _ = cli("data", "list")
    assert code == 0
    assert "cifar10" in out
    assert not any(row["here"] for row in json.loads(cli("data", "list", "--json")[1]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("data", "get", "cifr10"), "did you mean 'cifar10'"),
        (("data", "get", "imagenet"), "--from DIR"),
        (("data", "get", "cifar10", "--from", "nowhere"), "nowhere"),
        (("compare", "fashion_mnist", "--scale", "0.001"), "run 'levelfield data get fashion_mnist'"),
        (("compare", "quadratic", "--scale", "0"), "scale = 0"),
    ],
)
def test_missing_data_and_invalid_scales_are_reported_in_one_line(cli, monkeypatch, tmp_path, arguments, words):
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "nothing"))
    code, out, err = cli(*arguments)
    assert code == 2
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert not out
    assert not (tmp_path / "levelfield-out").exists()


def test_a_study_can_be_checked_without_its_data(cli, monkeypatch, tmp_path):
    """What needs the data is left out, and the output says so."""
    monkeypatch.setenv("LEVELFIELD_DATA", str(tmp_path / "nothing"))
    code, out, _ = cli("check", "fashion_mnist")
    assert code == 0
    assert "trial-steps" in out
    assert "not evaluated" in out
    assert "--gradient-scale" in out


def test_a_dry_run_is_labeled_everywhere(cli, tmp_path):
    code, out, _ = cli("compare", "small.toml", "--scale", "0.5")
    assert code == 0
    assert "small_0.5x" in out
    assert "Scaled to 0.5" in out
    assert "Scaled to 0.5" in (tmp_path / "levelfield-out/small_0.5x/report.html").read_text("utf-8")


def edited(old: str, new: str) -> str:
    assert old in SMALL
    return SMALL.replace(old, new)


INVALID_STUDIES = {
    "unknown workload": (edited('"quadratic"', '"quadratc"'), ["'quadratc'", "did you mean 'quadratic'?"]),
    "unknown rule": (edited("[optimizers.adam]", '[optimizers.adam]\nrule = "adma"'), ["'adma'", "'adam'"]),
    "unknown hyperparameter": (edited("beta2 =", "beta_2 ="), ["optimizers.adam", "'beta_2'", "'beta2'"]),
    "unknown field": (edited("steps =", "step ="), ["'step'", "'steps'"]),
    "fixed and ratio": (edited("beta2 =", "learning_rate = 0.1\nbeta2 ="), ["learning_rate", "twice"]),
    "reversed log": (edited("[1e-2, 1e0] }\n\n[opt", "[1e0, 1e-2] }\n\n[opt"), ["[1, 0.01]", "reversed"]),
    "non-positive log": (edited("[1e-3, 1e0] }", "[0, 1e0] }"), ["epsilon", "[0, 1]", "expected positive numbers"]),
    "1-x outside": (
        edited("one_minus_beta1 = { log = [1e-2, 1e0] }", "one_minus_beta1 = { log = [1e-2, 1e1] }"),
        ["one_minus_beta1", "(0, 1]"],
    ),
    "K > N": (edited("trials = 2", "trials = 5"), ["trials = 5", "pool = 4"]),
    "K < 1": (edited("trials = 2", "trials = 0"), ["trials = 0", "expected an integer of at least 1"]),
    "TOML": (edited("steps = 60", "steps = = 60"), ["line 3, column 9"]),
    "unknown metric": (edited('"train_loss"', '"train_los"'), ["'train_los'", "'train_loss'"]),
    "missing": (edited("beta2 = 0.99\n", ""), ["beta2 is missing", "adam"]),
}


def assert_rejected(cli, tmp_path, arguments, words):
    """A command fails in one line with these words, and leaves no file."""
    before = set(tmp_path.rglob("*"))
    code, out, err = cli(*arguments)
    assert code == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    for word in words:
        assert word in err
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", INVALID_STUDIES)
def test_an_invalid_study_is_rejected_in_one_line(cli, tmp_path, case):
    text, words = INVALID_STUDIES[case]
    Path("bad.toml").write_text(text)
    assert_rejected(cli, tmp_path, ["compare", "bad.toml"], words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "fashion_mni"], ["'fashion_mni'", "did you mean 'fashion_mini'?"]),
        (["compare", "nowhere.toml"], ["nowhere.toml", "no such file"]),
        (["compare", "small.toml", "--optimizers", "adm"], ["'adm'", "'adam'"]),
        (["compare", "small.toml", "--trails", "3"], ["--trails", "--trials"]),
        (["compare", "small.toml", "--trials", "many"], ["--trials", "expected an integer, got 'many'"]),
        (["compare", "small.toml", "--trials", "9"], ["trials = 9", "pool = 4"]),
        (["compare", "small.toml", "--scale", "half"], ["'--scale': expected a number\n"]),
        (["rerun", "small.toml", "--seeds", "two"], ["'--seeds': expected an integer\n"]),
        (["rerun", "small.toml", "--seeds", "0"], ["'--seeds': expected at least 1\n"]),
        (["serve", "small.toml", "--port", "70000"], ["'--port': expected at most 65535\n"]),
        (["compare", "small.toml", "--precision", "fp8"], ["'--precision': 'fp8' is not one of 'float32'"]),
        (["compare", "small.toml", "--slots", "none"], ["--slots none", "auto"]),
        (["compare", "small.toml", "--executor", "locl"], ["'locl'", "'local'"]),
        (["compare", "small.toml", "--store", "mysql://x/y"], ["mysql://", "postgresql://"]),
        (["compare", "small.toml", "--store", "small.toml"], ["small.toml", "file is not a database"]),
        (["compare", "small.toml", "--store", "small.toml/trials.db"], ["small.toml"]),
        (["compre"], ["'compre'", "'compare'"]),
        (["status", "small.toml"], ["no such store"]),
        (["export", "small.toml", "-o", "trials.xlsx"], [".xlsx", ".parquet"]),
    ],
)
def test_an_invalid_command_line_is_rejected_in_one_line(cli, tmp_path, arguments, words):
    assert_rejected(cli, tmp_path, arguments, words)


def test_a_store_with_a_newer_schema_is_rejected(cli):
    cli("run", "small.toml", "--store", "trials.db")
    with sqlite3.connect("trials.db") as connection:
        connection.execute("UPDATE levelfield SET value = '99'")
    code, _, err = cli("run", "small.toml", "--store", "trials.db")
    assert code == 2
    assert "99" in err
    assert "upgrade" in err


def test_an_infeasible_space_is_reported_after_the_others_have_run(cli):
    Path("hot.toml").write_text(edited("learning_rate = { log = [1e-2, 1e0] }", "learning_rate = { log = [1e8, 1e9] }"))
    code, out, err = cli("compare", "hot.toml", "--steps", "100")
    assert code == 1
    assert "sgd: none of 20 trials is feasible" in err
    assert "learning_rate" in err
    assert "adam" in out


def test_names_with_brackets_are_shown_unchanged(command):
    """rich would take them for markup."""
    Path("odd.toml").write_text(
        'name = "[b]odd"\nworkload = "quadratic"\nsteps = 4\ntrials = 1\n'
        '[optimizers."sgd [fast]"]\nrule = "sgd"\nlearning_rate = 0.1\n'
        '[optimizers."mom [/b]"]\nrule = "sgd"\nlearning_rate = 0.2\n'
    )
    code, out, err = command("compare", "odd.toml")
    assert code == 0, err
    for shown in (out, err):
        assert "sgd [fast]" in shown
        assert "mom [/b]" in shown
    assert "[b]odd: best of 1 trial by train_loss" in out


def test_version(command):
    code, out, _ = command("--version")
    assert code == 0
    assert out == f"levelfield {importlib.metadata.version('levelfield')}\n"


def test_steps_in_scientific_notation(cli):
    code, out, _ = cli("check", "small.toml", "--steps", "1e3")
    assert code == 0
    assert "1,000 steps" in out
    code, _, err = cli("check", "small.toml", "--steps", "1.5")
    assert code == 2
    assert "expected an integer, got '1.5'" in err


def test_trials_without_a_pool(cli):
    """The pool is five times the trials unless the file has one."""
    Path("no_pool.toml").write_text(edited("pool = 4\n", ""))
    code, out, err = cli("check", "no_pool.toml", "--trials", "3")
    assert code == 0, err
    assert "2 optimizers × 15 trials × 60 steps" in out


def test_a_measured_time_includes_compilation(cli):
    code, out, _ = cli("check", "small.toml", "--measure", "--json")
    assert code == 0
    facts = json.loads(out)
    training = facts["trial_steps"] / facts["trial_steps_per_second"]
    assert facts["compilation_seconds"] > 0
    assert 3600 * facts["hours"] == pytest.approx(training + facts["compilation_seconds"])
    assert "of it compilation)" in " ".join(cli("check", "small.toml", "--measure")[1].split())


@pytest.mark.parametrize("command_name", [None, "data", "data get", *sorted(COMMANDS)])
def test_help(command, command_name):
    code, out, _ = command(*(command_name or "").split(), "--help")
    assert code == 0
    assert "--help" in out
    assert "None" not in out


def test_the_list_of_commands_says_what_each_does_on_one_line(command, monkeypatch):
    """typer cuts off longer descriptions."""
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("--help")[1].partition("Commands:\n")[2].splitlines()
    assert len(lines) > len(COMMANDS)
    assert not [line for line in lines if line.endswith("...")]


def test_odd_names_are_compared_and_reported(command, tmp_path):
    """The page's scripts must not take them for their own names."""
    tables = "".join(
        f'[optimizers."{name}"]\nrule = "sgd"\nlearning_rate = {{ log = [1e-2, 1e0] }}\n'
        for name in ("constructor", "__proto__", "@metric")
    )
    Path("odd.toml").write_text(f'workload = "quadratic"\nsteps = 4\ntrials = 2\n{tables}')
    code, out, err = command("compare", "odd.toml", "--json")
    assert code == 0, err
    assert [row["optimizer"] for row in json.loads(out)["rows"]] == ["constructor", "__proto__", "@metric"]
    assert "__proto__" in (tmp_path / "levelfield-out/odd/report.html").read_text("utf-8")
