"""Sources that cannot be read: one line names the file, the column and the row, and says what to do."""

from __future__ import annotations

import json

import polars
import pytest

from levelfield.errors import LevelfieldError, UsageError
from levelfield.imports import FORMATS, load_layout, read_source

HEADER = "optimizer,lr,seed,step,train_loss\n"

# What is wrong with a table, and what the message must hold.
TABLES = {
    "text where a number belongs": (
        HEADER + "sgd,0.1,1,1,2.0\nsgd,0.1,1,2,oops\n",
        "column 'train_loss', row 2",
        "'oops'",
    ),
    "text among hyperparameters": (HEADER + "sgd,0.1,1,1,2.0\nsgd,high,1,1,2.0\n", "column 'lr', row 2", "'high'"),
    "text as a step": (HEADER + "sgd,0.1,1,first,2.0\n", "column 'step', row 1", "expected an integer, got 'first'"),
    "half a step": (HEADER + "sgd,0.1,1,1.5,2.0\n", "column 'step', row 1", "expected an integer, got '1.5'"),
    "no step": (HEADER + "sgd,0.1,1,1,2.0\nsgd,0.1,1,,1.0\n", "column 'step', row 2", "expected a value"),
    "a negative step": (HEADER + "sgd,0.1,1,-5,2.0\n", "row 1 has step -5", "expected steps from 0"),
    "no optimizer in a row": (HEADER + ",0.1,1,1,2.0\n", "column 'optimizer', row 1", "expected a value"),
    "a seed that is no number": (HEADER + "sgd,0.1,x,1,2.0\n", "column 'seed', row 1", "'x'"),
    "a learning rate that is not finite": (HEADER + "sgd,inf,1,1,2.0\n", "row 1", "'lr' is inf"),
    "steps that go backward": (
        HEADER + "sgd,0.1,1,2,2.0\nsgd,0.1,1,1,1.0\n",
        "row 2: step 1 comes after step 2",
        "row 1",
    ),
    "a step twice": (HEADER + "sgd,0.1,1,1,2.0\nsgd,0.2,1,1,2.0\nsgd,0.1,1,1,9.0\n", "rows 1 and 3", "trial=COLUMN"),
    "a trial twice": (
        "optimizer,lr,train_loss\nsgd,0.1,2\nsgd,0.2,2\nsgd,0.1,3\n",
        "row 1 and row 3",
        "--map seed=COLUMN or trial=COLUMN",
    ),
    "a seed twice": (
        "run_id,optimizer,lr,seed,train_loss\na,sgd,0.1,7,2\nb,sgd,0.2,7,2\nc,sgd,0.1,7,3\n",
        "trial a and trial c have the same optimizer, hyperparameters, and seed 7",
        "--map ignore=COLUMN",
    ),
    "a name without a letter": (
        "optimizer,hp_η,train_loss\nsgd,0.1,2\n",
        "a hyperparameter is called 'η'",
        "--map hyperparameters.NAME=COLUMN",
    ),
    "no letters in a metric's name": (
        "optimizer,lr,metrics.損失\nsgd,0.1,2\n",
        "a metric is called '損失'",
        "--map metrics.NAME=COLUMN",
    ),
    "a hyperparameter that changes": (
        "run_id,optimizer,lr,step,train_loss\na,sgd,0.1,1,2\na,sgd,0.05,2,1\nb,sgd,0.1,1,2\n",
        "lr changes within a trial, from 0.1 in row 1 to 0.05 in row 2",
        "trial=COLUMN",
    ),
    "no metric": ("optimizer,lr\nsgd,0.1\n", "no column has a metric's name", "--map metrics=COLUMN,…"),
    "no hyperparameter": (
        "optimizer,train_loss\nsgd,0.1\n",
        "no column has a hyperparameter's name",
        "if there are none",
    ),
    "no optimizer": ("lr,train_loss\n0.1,1\n", "no column names the optimizer", "--map optimizer_name=NAME"),
    "a column that may be a hyperparameter": (
        "optimizer,lr,width,train_loss\nsgd,0.1,8,1\nsgd,0.1,16,2\n",
        "cannot tell whether these columns are hyperparameters: width",
        "--map ignore=COLUMN,…",
    ),
    "an unknown status": ("optimizer,lr,status,train_loss\nsgd,0.1,meh,1\n", "row 1: unknown status 'meh'", "finished"),
    "nothing but failures": (
        "optimizer,lr,status,train_loss\nsgd,0.1,crashed,1\n",
        "no trial has finished",
        "1 failed",
    ),
    "two columns of one name": ("optimizer,lr,lr,train_loss\nsgd,0.1,0.2,1\n", "two columns are called 'lr'", "rename"),
    "two columns of one name but for a space": (
        "optimizer,lr, lr,train_loss\nsgd,0.1,0.2,1\n",
        "two columns are called 'lr'",
        "rename",
    ),
    "a row for each metric": (
        "optimizer,lr,step,metric,value\nsgd,0.1,1,val_loss,2\nsgd,0.1,1,train_loss,1\n",
        "which 'metric' names",
        "expected a column for each metric",
    ),
    "half a dictionary": (
        'name,config,summary\na,{lr: 0.1},"{""val_loss"": 1}"\n',
        "config, row 1",
        "expected a dictionary",
    ),
    "two metrics of one name": (
        "optimizer,lr,val/loss,val_loss\nsgd,0.1,1,2\n",
        "'val/loss' and 'val_loss' would both be called val_loss",
        "--map ignore=COLUMN",
    ),
    "too many fields in a row": ("optimizer,lr,train_loss\nsgd,0.1,1,2\n", "not a valid csv file", "more fields"),
    "a header alone": ("optimizer,lr,train_loss\n", "the file has no rows", "one for each trial"),
    "nothing": ("", "the file is empty", "a header"),
    "binary data": ("optim\0izer\n1\n", "not a CSV file", "binary"),
}


def message(source: object, layout: object = None, **options: str) -> str:
    with pytest.raises(LevelfieldError) as error:
        read_source(source, layout, **options)
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("case", TABLES)
def test_bad_tables(tmp_path, case):
    text, *parts = TABLES[case]
    path = tmp_path / "sweep.csv"
    path.write_text(text)
    said = message(path)
    assert said.startswith(str(path))
    for part in parts:
        assert part in said


def test_steps_that_go_backward_only_within_a_trial(tmp_path):
    """The rows that the message names are those of the file, although trials are mixed in it."""
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "sgd,0.1,1,2,2\nsgd,0.2,1,1,2\nsgd,0.2,1,2,2\nsgd,0.1,1,1,1\n")
    assert "row 4: step 1 comes after step 2 of the same trial (row 1)" in message(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.parquet", b"PAR1 and nothing else", "not a valid parquet file"),
        ("t.jsonl", b'{"lr": 0.1}\n{"lr": \n', "line 2: not valid JSON"),
        ("t.jsonl", b"[1, 2]\n", "line 1: expected a JSON object, got list"),
        ("t.jsonl", b"[" * 100_000, "line 1: not valid JSON (too deeply nested)"),
        ("t.jsonl", b'{"a":' * 40 + b"1" + b"}" * 40, "nested more than 20 levels deep"),
        ("t.jsonl", b"\n", "the file is empty"),
        ("t.jsonl.xz", b"not compressed", "t.jsonl.xz: "),
        ("t.json", b'{"hp": 1}', "expected a list of trials"),
        ("t.json", b'[{"hp": {"lr": 0.1}, "train": {"loss": ["a"]}}]', 'trial 1: expected {"hp"'),
        ("t.json", b'[{"hp": {"lr": 0.1}, "train": {"loss": [1]}}]', "trial 1: expected 51 losses of each split"),
        ("t.pkl", b"\x80\x04N.", "cannot tell what this is"),
        ("t.db", b"SQLite format 3\0" + b"x" * 100, "t.db: cannot read the Optuna storage"),
    ],
)
def test_damaged_files(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    assert said in message(tmp_path / name)


def test_damaged_lists(tmp_path):
    path = tmp_path / "t.jsonl"
    layout = {"optimizer_name": "sgd", "hyperparameters": "lr", "metrics": ["a_loss", "b_loss"]}
    for a, b, said in [
        ([[1, 2.0]], [[1, 2.0], [2, 3.0]], "row 1: a_loss has fewer values than other lists in that row"),
        ([[1, 2.0]], [[2, 2.0]], "row 1: a_loss and b_loss have different steps"),
        ([[1, 2.0]], [[1]], "row 1: b_loss: expected pairs of step and value"),
    ]:
        path.write_text(json.dumps({"lr": 0.1, "a_loss": a, "b_loss": b}))
        assert said in message(path, layout)


def test_columns_that_are_not_there(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text(HEADER + "sgd,0.1,1,1,2.0\n")
    for layout, said in [
        ({"step": "stp"}, "no column 'stp'; did you mean 'step'?"),
        ({"hyperparameters": ["lr", "momentum"]}, "no column 'momentum'"),
        ({"metrics": {"train_loss": "tran_loss"}}, "no column 'tran_loss'; did you mean 'train_loss'?"),
        ({"hyperparameters": ["config/*"]}, "no column starts with 'config/'"),
        ({"ignore": ["x"]}, "no column 'x'"),
        ({"select": "valid_loss"}, "unknown metric 'valid_loss' of sweep; did you mean 'train_loss'?"),
        ({"directions": {"val": "minimize"}}, "unknown metric 'val' of sweep"),
        ({"studies": ["a"]}, "studies has no meaning for this kind of source"),
    ]:
        assert said in message(path, layout)


def test_bad_layouts(tmp_path):
    for content, said in [
        ({"optimiser": "x"}, "unknown key 'optimiser'; did you mean 'optimizer'?"),
        ({"step": 3}, "step = 3: expected a text"),
        ({"hyperparameters": [1]}, "hyperparameters = [1]: expected a list of names"),
        ({"metrics": {"a": 1}}, "metrics.a = 1: expected a text"),
        ({"directions": {"a": "down"}}, "directions.a = 'down': expected minimize or maximize"),
        ({"directions": "down"}, "directions = 'down': expected a table"),
        ({"sampling": "lucky"}, "sampling = 'lucky'; expected one of: random"),
        ({"optimizer": "a", "optimizer_name": "b"}, "not both"),
    ]:
        assert said in message(tmp_path, content)
    for options, said in [(["step"], "expected KEY=VALUE"), (["stp=x"], "unknown key 'stp'")]:
        with pytest.raises(UsageError, match=said):
            load_layout(options=options)
    (tmp_path / "bad.toml").write_text("a = ")
    for name, said in [("bad.toml", "bad.toml: not valid TOML"), ("missing.toml", "cannot read the file")]:
        with pytest.raises(UsageError, match=said):
            load_layout(tmp_path / name)


def test_sources_that_cannot_be_told(tmp_path):
    assert "no such file or folder" in message(tmp_path / "missing.csv")
    assert "cannot tell what this is; expected a table" in message(tmp_path)
    assert "unknown format 'csv'" in message(tmp_path, format="csv")


@pytest.mark.parametrize("format", FORMATS)
def test_a_format_that_a_source_does_not_have(tmp_path, format):
    (tmp_path / "notes.md").write_text("Some notes, and a comma")
    for source in (tmp_path, tmp_path / "notes.md"):
        assert str(source) in message(source, format=format)


def test_a_table_with_an_unusual_name(tmp_path):
    (tmp_path / "results.txt").write_text(HEADER + "sgd,0.1,1,1,2.0\n")
    assert "cannot tell what this is" in message(tmp_path / "results.txt")
    (record,) = read_source(tmp_path / "results.txt", format="table").records
    assert record.hyperparameters == {"lr": 0.1}


def test_a_parquet_file_with_other_kinds_of_columns(tmp_path):
    path = tmp_path / "t.parquet"
    frame = polars.DataFrame({"optimizer": ["sgd"], "hp_lr": [b"0.1"], "train_loss": [1.0]})
    frame.write_parquet(path)
    assert "column 'hp_lr': expected one value in each row" in message(path)
