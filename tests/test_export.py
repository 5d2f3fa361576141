"""Stored trials as a table."""

from __future__ import annotations

import numpy as np
import polars
from helpers import make_study

import levelfield as lf
from levelfield import export
from levelfield.export import write_trials


def test_an_export_says_what_the_store_holds(made, tmp_path, monkeypatch):
    """Compare with the trials one by one; the optimizers have different hyperparameters, and curves end early."""
    monkeypatch.setattr(export, "_CHUNK", 3)  # so that the last part is shorter
    study = make_study(steps=8, pool=3)
    generator = np.random.default_rng(0)
    pools = {
        name: [{"train_loss": generator.random(1 + (i % 4)).astype(np.float32)} for i in range(4)]
        for name in study.optimizers
    }
    comparison = made(study, pools, {"sgd": [1]}, store=tmp_path / "trials.db")
    expected = []
    with lf.Store.open(tmp_path / "trials.db") as store:
        for name in study.optimizers:
            for trial in store.trials(study.identity(name)):
                described = {
                    "optimizer": name,
                    "index": trial.point.index,
                    "status": trial.status.value,
                    "in_pool": trial.point.index in [pooled.point.index for pooled in comparison.outcome(name).pool],
                    "seed": trial.point.seed,
                    "seconds": trial.seconds,
                    "hp_learning_rate": trial.point.hyperparameters["learning_rate"],
                    "hp_momentum": trial.point.hyperparameters.get("momentum"),
                }
                expected += [
                    described | {"step": int(step), "train_loss": float(value)}
                    for step, value in zip(trial.curve.steps, trial.curve.values["train_loss"], strict=True)
                ]
        assert write_trials(study, store, tmp_path / "curves.parquet", curves=True) == len(expected)
        assert write_trials(study, store, tmp_path / "trials.csv") == 8
    frame = polars.read_parquet(tmp_path / "curves.parquet")
    order = ["optimizer", "index", "status", "in_pool", "seed", "seconds", "hp_learning_rate", "step", "train_loss"]
    assert frame.columns == [*order, "hp_momentum"]  # which only the second optimizer has
    assert frame.select(list(expected[0])).to_dicts() == expected
    kinds = {"optimizer": polars.String, "in_pool": polars.Boolean, "step": polars.Int64, "train_loss": polars.Float64}
    assert {name: frame.schema[name] for name in kinds} == kinds
    last = polars.read_csv(tmp_path / "trials.csv").group_by("optimizer", "index").agg(polars.col("step").last())
    assert dict(last.filter(optimizer="sgd").select("index", "step").iter_rows()) == {0: 2, 1: 4, 2: 6, 3: 8}
