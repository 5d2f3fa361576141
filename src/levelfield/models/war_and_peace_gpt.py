"""The GPT that nanoGPT trains on characters."""

from __future__ import annotations

import functools

from levelfield.kernels import pallas
from levelfield.models import batched_transformer
from levelfield.models.transformer import GPT, LanguageModel
from levelfield.workload import Evaluate, Gradients, Precision
from levelfield.workloads.war_and_peace_gpt import CHARACTERS, WINDOW

NET = GPT(CHARACTERS, WINDOW, layers=6, width=384, heads=6, dropout=0.2)
MODEL = LanguageModel(NET)
init, loss, evaluate = MODEL.init, MODEL.loss, MODEL.evaluate


def batched(precision: Precision) -> Gradients | None:
    """Return the gradients of many trials at once on this device's kernels, or None without any."""
    dtype = pallas.kernel_type(precision)
    return dtype and batched_transformer.gradients(NET, dtype)


def batched_evaluate(precision: Precision) -> Evaluate | None:
    """Return ``evaluate`` for all slots at once on this device's kernels, or None without any."""
    return functools.partial(batched_transformer.evaluate, NET) if pallas.kernel_type(precision) else None
