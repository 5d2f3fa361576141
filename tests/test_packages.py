"""Rules, workloads and data sets of installed packages: found by name, imported only if asked for, recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from helpers import make_study

import levelfield as lf
from levelfield import datasets
from levelfield.errors import StudyError, UnknownName
from levelfield.executors._jax import JaxExecutor, job
from levelfield.report.methods import methods
from levelfield.report.page import render
from levelfield.rules import get_rule
from levelfield.training.checkpoints import CheckpointFolder
from levelfield.training.program import program
from levelfield.workloads import get_workload

Command = Callable[..., tuple[int, str, str]]
Install = Callable[..., None]

RULES = """
import optax
import levelfield as lf

def plain(learning_rate, momentum=0.9, *, nesterov: bool = False, steps: int = 3, mask=None, **others):
    return optax.sgd(learning_rate, momentum, nesterov)

full = lf.Rule("anything", {"learning_rate": lf.Hyperparameter(low=0.0), "b1": lf.Hyperparameter(0, 1)},
               lambda learning_rate, b1: optax.sgd(learning_rate, b1), version=3)

class Holder:
    inner = full
"""
WORKLOAD = """
from dataclasses import replace
from levelfield.workloads import get_workload

workload = replace(get_workload("quadratic"), name="some_name", dataset="toy_numbers")
"""
DATASET = """
import numpy as np
import levelfield as lf

def write(source, writer, sample, report):
    writer.add("numbers", np.arange(3))

numbers = lf.Dataset("made-up numbers", write)
"""
FAILING = """
raise ValueError("not here\\nnor now")
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package of these modules, as a folder that Python searches; forget its modules after the test."""
    before = set(sys.modules)

    def write(
        package: str,
        modules: Mapping[str, str],
        entry_points: Mapping[str, Mapping[str, str]] | None = None,
        version: str = "1.2",
    ) -> None:
        site = tmp_path / f"site-{package}-{version}"
        about = site / f"{package.replace('-', '_')}-{version}.dist-info"
        about.mkdir(parents=True)
        for module, text in modules.items():
            path = site.joinpath(*module.split(".")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (about / "top_level.txt").write_text("\n".join({module.partition(".")[0] for module in modules}))
        groups = [
            "\n".join([f"[levelfield.{group}]", *(f"{name} = {target}" for name, target in names.items())])
            for group, names in (entry_points or {}).items()
        ]
        (about / "entry_points.txt").write_text("\n\n".join(groups))
        monkeypatch.syspath_prepend(site)

    yield write
    for name in sys.modules.keys() - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def final_losses(study: lf.Study) -> dict[str, list[float]]:
    comparison = lf.compare(study, store="sqlite://", slots=2)
    return {name: comparison.outcome(name).values("train_loss").tolist() for name in study.optimizers}


def test_a_function_of_a_package_is_a_rule(install: Install) -> None:
    """It trains as the optax optimizer that it returns. Its hyperparameters are those of its signature."""
    install("my-rules", {"my_rules": RULES}, {"rules": {"my_sgd": "my_rules:plain"}})
    declared = get_rule("my_sgd").hyperparameters
    assert {name: (each.kind, each.required, each.traced) for name, each in declared.items()} == {
        "learning_rate": ("number", True, True),
        "momentum": ("number", False, True),
        "nesterov": ("switch", False, False),
        "steps": ("integer", False, False),
        "mask": ("object", False, False),
    }
    assert declared["momentum"].default == 0.9
    values = {"learning_rate": 0.01, "momentum": 0.5, "nesterov": True}
    names = {"ours": "my_sgd", "path": "my_rules:plain", "theirs": "optax.sgd"}
    losses = final_losses(make_study({name: {"rule": rule, **values} for name, rule in names.items()}))
    assert losses["ours"] == losses["path"] == losses["theirs"]


@pytest.mark.parametrize("name", ["my_full", "my_rules:full", "my_rules:Holder.inner", "my_pack.deep:full"])
def test_a_rule_of_a_package_keeps_what_it_declares(name: str, install: Install) -> None:
    install("my-rules", {"my_rules": RULES}, {"rules": {"my_full": "my_rules:full [extra]"}})
    install("my-pack", {"my_pack.__init__": "", "my_pack.deep": RULES})
    rule = get_rule(name)
    assert (rule.name, rule.version) == (name, 3)
    assert rule.hyperparameters["b1"].high == 1
    assert rule.hyperparameters["b1"].usual_range == (0.0, 0.995)  # as those of registered rules
    assert get_rule(name) is rule
    assert lf.optimizer(name, learning_rate=0.1, b1=0.5)
    study = make_study({"x": {"rule": name, "learning_rate": 0.1, "b1": 0.5}})
    assert (study.definition("x")["rule"], study.definition("x")["rule_version"]) == (name, 3)
    assert lf.Study(**study.spec()).identity("x") == study.identity("x")


def test_only_what_is_asked_for_is_imported(install: Install, command: Command) -> None:
    groups = {
        "rules": {"good": "my_rules:plain", "bad": "my_failing:rule"},
        "workloads": {"bad_workload": "my_failing:workload"},
        "datasets": {"bad_numbers": "my_failing:numbers"},
    }
    install("my-rules", {"my_rules": RULES, "my_failing": FAILING}, groups)
    assert get_rule("adam").built_in
    assert not {"my_rules", "my_failing"} & sys.modules.keys()
    assert get_rule("good").name == "good"
    code, out, err = command("workloads")
    assert code == 0, err
    assert out.splitlines()[-1] == "bad_workload: a workload of my-rules 1.2"
    rows = json.loads(command("workloads", "--json")[1])
    assert rows[-1] == {"workload": "bad_workload", "package": "my-rules 1.2"}
    code, out, err = command("data", "list")
    assert code == 0, err
    assert out.splitlines()[-1].split(maxsplit=2) == ["bad_numbers", "–", "a data set of my-rules 1.2"]
    assert "my_failing" not in sys.modules


def test_a_workload_and_its_data_are_found(install: Install, command: Command, cache_folder: Path) -> None:
    groups = {"workloads": {"my_workload": "my_work:workload"}, "datasets": {"toy_numbers": "my_data:numbers"}}
    install("my-work", {"my_work": WORKLOAD, "my_data": DATASET}, groups)
    workload = get_workload("my_workload")
    assert workload.name == "my_workload"
    assert get_workload("my_workload") is workload
    study = make_study(workload="my_workload")
    assert final_losses(study) == final_losses(make_study())
    assert get_workload("my_work:workload").name == "my_work:workload"
    assert datasets.about("toy_numbers") is None
    code, out, err = command("data", "get", "toy_numbers", "--from", ".")
    assert code == 0, err
    assert datasets.arrays("toy_numbers")["numbers"].tolist() == [0, 1, 2]
    assert str(cache_folder) in out


def test_names_of_packages_are_suggested(install: Install) -> None:
    groups = {kind: {f"my_{kind}": "my_failing:x"} for kind in ("rules", "workloads", "datasets")}
    install("my-rules", {"my_failing": FAILING}, groups)
    for find, name in ((get_rule, "my_rules"), (get_workload, "my_workloads"), (datasets.get_dataset, "my_datasets")):
        with pytest.raises(UnknownName, match=f"did you mean '{name}'"):
            find(f"{name}_")


def test_registered_names_come_first(install: Install) -> None:
    """The study's own code says what it means."""
    install("my-rules", {"my_failing": FAILING}, {"rules": {"own": "my_failing:rule"}})
    rule = lf.register_rule("own", lambda learning_rate: None, {"learning_rate": lf.Hyperparameter()})
    assert get_rule("own") is rule


ERRORS = {
    "no_such_package:rule": "no module 'no_such_package' is installed; install its package, or correct the name",
    "my_rules.deep:rule": "no module 'my_rules.deep' is installed; install its package, or correct the name",
    "my_rules:plane": "my_rules has no 'plane'; did you mean 'plain'?",
    "my_rules:zzz": "my_rules has no 'zzz'",
    "my_failing:rule": "my_failing cannot be imported: my_failing.py, line 2, ValueError: not here nor now",
    "my_exit:rule": "my_exit cannot be imported: my_exit.py, line 1, SystemExit: 0",
    "my_needs:rule": "my_needs cannot be imported: my_needs.py, line 1, ModuleNotFoundError: No module named 'absent'",
    "my_rules:optax": "my_rules:optax is a module; expected an lf.Rule, or a function that takes learning_rate and "
    "returns an optax transformation",
    "my_rules:Holder": "my_rules:Holder is the class Holder; expected an lf.Rule, or a function that takes "
    "learning_rate and returns an optax transformation",
    "my_bad:rule": "rule 'x': b = 3: expected a Hyperparameter(low=…, high=…)",
}


def install_faults(install: Install, entry_points: Mapping[str, Mapping[str, str]] | None = None) -> None:
    modules = {
        "my_rules": RULES,
        "my_failing": FAILING,
        "my_exit": "raise SystemExit(0)",
        "my_needs": "import absent",
        "my_bad": "import levelfield as lf\nrule = lf.Rule('x', {'b': 3}, print)",
    }
    install("my-faults", modules, entry_points)


@pytest.mark.parametrize("target", [name for name in ERRORS if name != "my_bad:rule"])
def test_what_is_wrong_is_said_in_one_line(target: str, install: Install) -> None:
    install_faults(install)
    with pytest.raises(StudyError) as error:
        make_study({"x": {"rule": target, "learning_rate": 0.1}})
    assert str(error.value) == f"optimizers.x: rule {target!r}: {ERRORS[target]}"


def test_an_error_of_an_entry_point_names_the_package(install: Install) -> None:
    targets = {f"rule{number}": target for number, target in enumerate(ERRORS)}
    install_faults(install, {"rules": targets | {"no_name": "my_rules"}})
    for name, target in targets.items():
        with pytest.raises(StudyError) as error:
            get_rule(name)
        assert ERRORS[target] in str(error.value)
        if "expected an lf.Rule" not in ERRORS[target]:
            assert str(error.value).startswith(f"rule {name!r} of my-faults 1.2: ")
    with pytest.raises(StudyError, match=r"^rule 'no_name' of my-faults 1.2: its entry point is 'my_rules'; expected "):
        get_rule("no_name")


@pytest.mark.parametrize(
    ("kind", "expected", "find"),
    [("workload", "an lf.Workload", get_workload), ("data set", "an lf.Dataset", datasets.get_dataset)],
)
def test_a_package_must_have_what_it_declares(
    kind: str, expected: str, find: Callable[[str], object], install: Install
) -> None:
    groups = {"workloads": {"wrong": "my_rules:full"}, "datasets": {"wrong": "my_rules:full"}}
    install("my-rules", {"my_rules": RULES}, groups)
    with pytest.raises(StudyError) as error:
        find("wrong")
    assert str(error.value) == f"{kind} 'wrong': my_rules:full is a Rule; expected {expected}"


@pytest.mark.parametrize(
    ("group", "kind", "name", "find"),
    [
        ("rules", "rule", "adam", get_rule),
        ("workloads", "workload", "quadratic", get_workload),
        ("datasets", "data set", "cifar10", datasets.get_dataset),
    ],
)
def test_a_package_cannot_replace_what_is_built_in(
    group: str, kind: str, name: str, find: Callable[[str], object], install: Install
) -> None:
    install("my-rules", {"my_failing": FAILING}, {group: {name: "my_failing:x"}})
    with pytest.raises(StudyError) as error:
        find(name)
    assert str(error.value) == (
        f"{kind} {name!r} is built into levelfield, and my-rules 1.2 declares another one; uninstall that package, or "
        f"choose another name for its entry point"
    )


def test_two_packages_with_the_same_name_are_told_apart(install: Install, command: Command) -> None:
    for number in (1, 2):
        groups = {"rules": {"same": f"rules{number}:plain"}, "workloads": {"same": f"rules{number}:x"}}
        install(f"pack-{number}", {f"rules{number}": RULES}, groups, version=f"{number}.0")
    with pytest.raises(StudyError) as error:
        get_rule("same")
    assert str(error.value) == (
        "rule 'same' is declared by several packages, pack-2 2.0 and pack-1 1.0; say which one: 'rules2:plain' or "
        "'rules1:plain'"
    )
    assert get_rule("rules1:plain").name == "rules1:plain"
    assert command("workloads")[1].splitlines()[-1] == "same: a workload of pack-2 2.0 and pack-1 1.0"


def test_the_versions_of_packages_are_recorded_with_the_trials(install: Install, store: lf.Store) -> None:
    groups = {"rules": {"mine": "my_rules:plain"}, "workloads": {"my_workload": "my_work:workload"}}
    install("my-rules", {"my_rules": RULES}, groups)
    install("my-work", {"my_work": WORKLOAD}, version="0.3+local")
    install("my-data", {"my_data": DATASET}, {"datasets": {"toy_numbers": "my_data:numbers"}}, version="7")
    optimizers = {"mine": {"learning_rate": 0.1}, "sgd": {"learning_rate": 0.1}}
    comparison = lf.compare(make_study(optimizers, workload="my_work:workload"), store)
    (entry,) = comparison.provenance
    assert entry["packages"] == {"my-data": "7", "my-rules": "1.2", "my-work": "0.3+local"}
    assert "my-data 7, my-rules 1.2, my-work 0.3+local on " in render(comparison.results)
    assert "my-data 7, my-rules 1.2, my-work 0.3+local on " in methods(comparison.results)["methods.md"]
    (entry,) = lf.compare(make_study({"sgd": {"learning_rate": 0.2}}), store).provenance
    assert "packages" not in entry


def test_the_version_of_a_module_without_a_package_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: lf.Store
) -> None:
    (tmp_path / "loose_rules.py").write_text("__version__ = '5'\n" + RULES)
    monkeypatch.syspath_prepend(tmp_path)
    study = make_study({"x": {"rule": "loose_rules:plain", "learning_rate": 0.1}})
    assert lf.compare(study, store).provenance[0]["packages"] == {"loose_rules": "5"}


def test_a_checkpoint_of_another_version_is_not_continued(install: Install, tmp_path: Path) -> None:
    install("my-rules", {"my_rules": RULES}, {"rules": {"mine": "my_rules:plain"}})
    study = make_study({"mine": {"learning_rate": 0.1}, "sgd": {"learning_rate": 0.1}})
    executor = JaxExecutor(1, CheckpointFolder(tmp_path))
    origins = {}
    for name in study.optimizers:
        checkpoints = executor._checkpoints(study, name, program(job(study, name), 1))
        assert checkpoints
        origins[name] = checkpoints._origin
    assert origins["mine"]["my-rules"] == "1.2"
    assert "my-rules" not in origins["sgd"]
