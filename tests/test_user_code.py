"""Custom code of studies: run once, again after changes, and stored trials keep its digest."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import levelfield as lf
from levelfield import rules, user_code
from levelfield.derive.follow import followings
from levelfield.errors import StaleTrials, StudyError

OWN = """
import levelfield as lf
from beside import rate

lf.register_rule("own", lambda learning_rate: rate(learning_rate), {"learning_rate": lf.Hyperparameter(low=0.0)})
"""
OWN_STUDY = 'code = "own.py"\nworkload = "quadratic"\nsteps = 10\ntrials = 1\n[optimizers.own]\nlearning_rate = 0.1\n'


@pytest.fixture
def own(tmp_path) -> Path:
    """A study file with custom code, and a module that the code imports, in one folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "beside.py").write_text("import optax\nrate = optax.sgd\n")
    (folder / "own.py").write_text(OWN)
    (folder / "study.toml").write_text(OWN_STUDY)
    return folder / "study.toml"


def test_code_is_run_once_before_the_study_is_read(own):
    study = lf.load_study(own)
    assert study.optimizer("own").rule.name == "own"
    rule = study.optimizer("own").rule
    assert study.replace(steps=20).optimizer("own").rule is rule
    assert lf.load_study(own).identity("own") == study.identity("own")
    assert lf.Study(**study.spec()).identity("own") == study.identity("own")


def test_changed_code_is_run_again(own):
    study = lf.load_study(own)
    (own.parent / "own.py").write_text(OWN.replace("low=0.0)}", "low=0.0)}, version=2"))
    again = lf.load_study(own)
    assert (study.optimizer("own").rule.version, again.optimizer("own").rule.version) == (1, 2)
    assert again.identity("own") != study.identity("own")


def test_code_is_run_again_after_a_neighboring_module_has_changed(own):
    lf.load_study(own)
    before = rules.get_rule("own").build(0.5)
    (own.parent / "beside.py").write_text("import optax\nrate = lambda learning_rate: optax.sgd(2 * learning_rate)\n")
    lf.load_study(own)
    steps = [tx.update(1.0, tx.init(1.0))[0] for tx in (before, rules.get_rule("own").build(0.5))]
    assert steps == [-0.5, -1.0]


def test_code_imports_the_modules_of_its_own_folder(own, tmp_path):
    """Two folders have a module of the same name; a module can also be imported later."""
    lf.load_study(own)
    other = tmp_path / "other"
    other.mkdir()
    (other / "beside.py").write_text("rate = 'the other'\n")
    (other / "late.py").write_text("value = True\n")
    (other / "own.py").write_text(
        "import beside\nrate = beside.rate\ndef later():\n    import late\n    return late.value\n"
    )
    user_code.run_code(str(other / "own.py"))
    (module,) = [module for module in sys.modules.values() if getattr(module, "__file__", "") == str(other / "own.py")]
    assert module.rate == "the other"
    assert module.later()
    assert rules.get_rule("own").build(0.5).init  # the first file's rule still works


CHANGED = "import optax\nrate = lambda learning_rate: optax.sgd(2 * learning_rate)\n"


def test_a_change_of_a_neighboring_module_makes_trials_stale(own, store):
    lf.compare(lf.load_study(own), store)
    (own.parent / "beside.py").write_text(CHANGED)
    with pytest.raises(StaleTrials, match=r"^1 of 1 stored trials of own were trained with a different version of own"):
        lf.compare(lf.load_study(own), store)


def digest_of(own: Path) -> str:
    return user_code.code_digest(str(lf.load_study(own).code))


def test_the_digest_depends_on_all_imported_neighbors_and_on_nothing_else(own):
    """Imported inside of a function, from a package, relatively, or before."""
    package = own.parent / "parts"
    (package / "deep").mkdir(parents=True)
    for name in ("__init__.py", "one.py", "two.py", "deep/three.py", "unused.py"):
        (package / name).write_text("value = 0\n")
    (own.parent / "late.py").write_text("import parts.deep.three\n")
    (package / "one.py").write_text("from . import two\n")
    (own.parent / "own.py").write_text(OWN + "from parts import one\ndef later():\n    import late\n")
    digests = [digest_of(own)]
    for name in ("beside.py", "late.py", "parts/__init__.py", "parts/one.py", "parts/two.py", "parts/deep/three.py"):
        with (own.parent / name).open("a") as file:
            file.write("# changed\n")
        digests.append(digest_of(own))
    assert len(set(digests)) == 7
    (package / "unused.py").write_text("value = 1\n")
    assert digest_of(own) == digests[-1]


def test_the_digest_does_not_depend_on_what_has_been_imported(own):
    """A script may import the module before the study does."""
    show = "from levelfield import user_code as u; print(u.code_digest(u.run_code('own.py')))"

    def digest_after(start: str) -> str:
        command = [sys.executable, "-c", start + show]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd=own.parent).stdout.strip()

    assert digest_after("import beside; ") == digest_after("") == digest_of(own)


def test_followed_trials_store_the_digest_of_the_code(own, store):
    """They are trained for a study of their own, with the same code."""
    text = OWN_STUDY.replace("[optimizers.own]", "[optimizers.sgd]\nlearning_rate = 0.1\n[optimizers.momentum]") + (
        "momentum = { uniform = [0, 0.5] }\n"
    )
    own.write_text(text)
    study = lf.load_study(own)
    (pair,) = lf.compare(study, store, seed_inclusions=True).followed
    (following,) = followings(lf.Comparison.load(study, store).results)
    entries = store.provenance(following.study.identity(pair.general))
    assert [entry["code"] for entry in entries] == [user_code.code_digest(study.code)]


def test_code_can_run_its_own_study(own):
    """Like a script that ends in a comparison. Its trials are those that a command would train."""
    folder = str(own.parent)
    (own.parent / "own.py").write_text(OWN + f"lf.compare(lf.load_study('{own}'), '{folder}/trials.db')")
    study = lf.load_study(own)
    with lf.Store.open(own.parent / "trials.db") as store:
        assert set(store.codes(study.identity("own")).values()) == {study.code_version("own")}


def test_interrupted_code_is_run_again(own):
    wait = "import pathlib\nif not pathlib.Path(__file__).with_name('go').exists():\n    raise KeyboardInterrupt\n"
    (own.parent / "own.py").write_text(wait + OWN)
    with pytest.raises(KeyboardInterrupt):
        lf.load_study(own)
    (own.parent / "go").touch()
    assert lf.load_study(own).optimizer("own")


def test_code_can_be_fixed_after_it_has_failed(own):
    (own.parent / "own.py").write_text(OWN + "1 / 0")
    with pytest.raises(StudyError, match="ZeroDivisionError"):
        lf.load_study(own)
    (own.parent / "own.py").write_text(OWN)
    assert lf.load_study(own).optimizer("own")


def test_two_files_cannot_register_the_same_name(own, tmp_path):
    lf.load_study(own)
    other = tmp_path / "other"
    shutil.copytree(own.parent, other)
    with pytest.raises(StudyError, match=r"rule 'own' is already registered by .*project/own\.py"):
        lf.load_study(other / "study.toml")


def test_a_study_with_code_can_be_written_anywhere(own, tmp_path):
    study = lf.load_study(own)
    elsewhere = tmp_path / "deep" / "down"
    elsewhere.mkdir(parents=True)
    (tmp_path / "link").symlink_to(elsewhere)
    (tmp_path / "link" / "new.toml").write_text(study.to_toml(tmp_path / "link"))
    assert lf.load_study(elsewhere / "new.toml").code == study.code == str(own.parent / "own.py")
    assert 'code = "own.py"' in study.to_toml()  # reports do not show local paths


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (None, ["own.py", "no such file"]),
        ("x = 1\nraise ValueError('no\\nluck')", ["own.py", "line 2", "ValueError: no luck"]),
        ("x = (", ["own.py", "SyntaxError"]),
        ("import nothing_of_this_name", ["own.py", "line 1", "nothing_of_this_name"]),
        ("raise SystemExit(0)", ["own.py", "line 1", "SystemExit"]),
        ("import levelfield as lf\nlf.register_rule('adam', None, {})", ["own.py", "adam"]),
        ("", ["optimizers.own", "unknown rule 'own'"]),
    ],
)
def test_failing_code_is_reported_in_one_line(own, code, words):
    if code is None:
        (own.parent / "own.py").unlink()
    else:
        (own.parent / "own.py").write_text(code)
    with pytest.raises(StudyError) as caught:
        lf.load_study(own)
    assert "\n" not in str(caught.value)
    for word in ["study.toml", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize("code", ["3", "[]", "true"])
def test_code_that_is_not_a_string_is_rejected(own, code):
    own.write_text(OWN_STUDY.replace('"own.py"', code))
    with pytest.raises(StudyError, match=r"code = .*expected a string"):
        lf.load_study(own)


def test_another_version_of_a_rule_has_different_trials(own):
    study = lf.load_study(own)
    rules.register_rule("own", lambda **_: None, {"learning_rate": lf.Hyperparameter(low=0.0)})
    assert lf.load_study(own).identity("own") == study.identity("own")
    rules.register_rule("own", lambda **_: None, {"learning_rate": lf.Hyperparameter(low=0.0)}, version=2)
    assert lf.load_study(own).identity("own") != study.identity("own")
