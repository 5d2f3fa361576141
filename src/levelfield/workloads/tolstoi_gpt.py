"""Next-character prediction on War and Peace with a small GPT, on the excerpt of tolstoi_mini."""

from __future__ import annotations

from levelfield.workload import CLASSIFICATION, Workload, imported
from levelfield.workloads.tolstoi_mini import EVALUATED, WINDOW, load

WORKLOAD = Workload(
    name="tolstoi_gpt",
    summary="next character of War and Peace (excerpt of 192,000 characters), small GPT",
    kind="text",
    batch_size=8,
    eval_interval=250,
    metrics=CLASSIFICATION,
    select="valid_loss",  # in nats per character
    examples={"valid": EVALUATED * WINDOW, "test": EVALUATED * WINDOW},
    load=load,
    **imported("levelfield.models.tolstoi_gpt", "init", "loss", "evaluate"),
    slots_per_core=2,
)
