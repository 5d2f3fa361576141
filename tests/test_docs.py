"""The docs and examples are correct: their code runs, their studies are valid, and their commands exist."""

from __future__ import annotations

import re
import runpy
import tomllib

import pytest
from helpers import REPOSITORY

import levelfield as lf
from levelfield import packages
from levelfield.cli import app
from levelfield.datasets import get_dataset
from levelfield.errors import UnknownName
from levelfield.rules import get_rule
from levelfield.workloads import get_workload


def blocks(document: str, language: str) -> list[str]:
    return re.findall(
        rf"^```{language}\n(.*?)^```", (REPOSITORY / document).read_text("utf-8"), re.MULTILINE | re.DOTALL
    )


@pytest.mark.parametrize(
    "document",
    ["README.md", "docs/statistics.md", "docs/taxonomy.md", "docs/report.md", "docs/search.md", "docs/optimizers.md"],
)
def test_python_in_documents_runs(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert blocks(document, "python")
    for code in blocks(document, "python"):
        exec(compile(code, document, "exec"), {})


def test_the_documented_study_is_valid():
    text, _ = blocks("docs/studies.md", "toml")
    study = lf.Study(**tomllib.loads(text))
    assert list(study.optimizers) == ["momentum", "adam_default", "adamw"]


def test_the_study_in_the_readme_is_valid():
    (text,) = blocks("README.md", "toml")
    assert list(lf.Study(**tomllib.loads(text)).optimizers) == ["momentum", "adamw"]


def test_the_documented_options_and_schedule_are_valid():
    options, schedule = (tomllib.loads(text) for text in blocks("docs/optimizers.md", "toml"))
    study = lf.Study(**options, **schedule)
    assert study.optimizer("momentum").schedule == "cosine"
    assert len(study.optimizer("momentum").space.free) == 6


def test_the_documented_entry_points_are_those_that_are_looked_for(monkeypatch):
    """A package with the documented pyproject.toml declares a rule, a workload and a data set."""
    _, text = blocks("docs/studies.md", "toml")
    asked = []
    monkeypatch.setattr(packages, "declared", lambda group: asked.append(group) or {})
    for find in (get_rule, get_workload, get_dataset):
        with pytest.raises(UnknownName):
            find("my_item")
    assert set(asked) == tomllib.loads(text)["project"]["entry-points"].keys()


def test_the_documented_hyperparameters_are_the_rules():
    table = re.findall(
        r"^\| ([a-z, ]+) \| ([a-z0-9_, ]+) \|$", (REPOSITORY / "docs/studies.md").read_text(), re.MULTILINE
    )
    documented = {rule: set(names.split(", ")) for rules, names in table for rule in rules.split(", ")}
    for name in ("sgd", "momentum", "nesterov", "rmsprop", "rmsterov", "adam", "nadam"):
        assert documented[name] == set(get_rule(name).hyperparameters)


def test_every_command_is_in_the_readme():
    (commands,) = [block for block in blocks("README.md", "sh") if "levelfield" in block]
    named = {word for line in commands.splitlines() for word in re.findall(r"[a-z]+", line.split("#")[0])}
    for command in app.registered_commands:
        assert (command.name or command.callback.__name__) in named


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """Run the test in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("path", sorted((REPOSITORY / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_example_studies_are_valid(path, request):
    if path.stem.startswith("torch"):
        request.getfixturevalue("torch")  # their code imports it
    assert lf.load_study(path).description


@pytest.mark.usefixtures("fresh")
def test_the_custom_optimizer_example_runs(capsys):
    runpy.run_path(str(REPOSITORY / "examples/custom_optimizer.py"), run_name="__main__")
    assert "trials each" in capsys.readouterr().out


@pytest.mark.usefixtures("fresh")
def test_the_custom_workload_example_runs(command):
    study = str(REPOSITORY / "examples/custom_workload.toml")
    code, out, err = command("compare", study, "--steps", "100", "--pool", "5")
    assert code == 0, err
    assert "best median valid_accuracy" in out


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("name", "package"), [("torch_training", "torch"), ("sklearn_training", "sklearn")])
def test_the_examples_of_training_code_run(name, package, command):
    """In short: one trial of each optimizer, for a few steps."""
    pytest.importorskip(package)
    study = str(REPOSITORY / f"examples/{name}.toml")
    code, out, err = command("compare", study, "--steps", "100", "--pool", "1", "--trials", "1", "--slots", "1")
    assert code == 0, err
    assert "valid_error" in out
    assert out.count("1 of 1") == len(lf.load_study(study).optimizers)


def test_the_tutorial_of_training_code_works_as_it_stands(tmp_path, monkeypatch, command):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    for language, name in [("python", "train.py"), ("toml", "study.toml")]:
        (tmp_path / name).write_text(blocks("docs/training-code.md", language)[0])
    code, out, err = command("compare", "study.toml", "--pool", "3", "--slots", "1")
    assert code == 0, err
    assert out.count("3 of 3") == 2
    assert list(tmp_path.glob("levelfield-out/study/*.html"))


@pytest.mark.usefixtures("fresh")
def test_the_example_of_an_import_runs(command):
    table, study = (str(REPOSITORY / f"examples/random_search.{ending}") for ending in ("csv", "toml"))
    code, out, err = command("import", table, "--study", study)
    assert code == 0, err
    assert "sgd: 40 trials\nadam: 40 trials\n" in out
    code, out, err = command("report", study)
    assert code == 0, err
    assert "were drawn at random" in out
    assert "40 of 40" in out


def test_the_example_of_an_import_writes_its_table(tmp_path):
    """The first trials are those of the table beside it; versions of scikit-learn may differ a little."""
    pytest.importorskip("sklearn")
    example = runpy.run_path(str(REPOSITORY / "examples/random_search.py"))
    example["main"](tmp_path / "first.csv", trials=2)
    header, *rows = (tmp_path / "first.csv").read_text().splitlines()
    published, *known = (REPOSITORY / "examples/random_search.csv").read_text().splitlines()
    assert header == published
    settings = [row.split(",")[:-2] for row in rows]
    assert settings == [row.split(",")[:-2] for row in known[:4]]


def test_links_are_valid():
    links = 0
    for document in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md"), REPOSITORY / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text("utf-8")):
            links += 1
            assert (document.parent / target).exists(), f"{document.name}: {target}"
    assert links > 5


def test_every_promise_of_security_names_its_test():
    text = (REPOSITORY / "docs/security.md").read_text("utf-8")
    promises = text.partition("## What levelfield does")[2].partition("\n## ")[0]
    points = promises.split("\n- ")[1:]
    assert len(points) > 8
    for point in points:
        tests = re.findall(r"`(tests/[\w/]+\.py)`", point)
        assert tests, point
        for test in tests:
            assert (REPOSITORY / test).exists(), test


def test_no_placeholder_is_left():
    assert "@@" not in (REPOSITORY / "README.md").read_text("utf-8")
