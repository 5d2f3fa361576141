"""The GPT that nanoGPT trains on characters."""

from __future__ import annotations

from levelfield.kernels import pallas
from levelfield.models.batched_transformer import gradients
from levelfield.models.transformer import GPT, LanguageModel
from levelfield.workload import Gradients, Precision
from levelfield.workloads.war_and_peace_gpt import CHARACTERS, WINDOW

NET = GPT(CHARACTERS, WINDOW, layers=6, width=384, heads=6, dropout=0.2)
MODEL = LanguageModel(NET)
init, loss, evaluate = MODEL.init, MODEL.loss, MODEL.evaluate


def batched(precision: Precision) -> Gradients | None:
    """Return the gradients of many trials at once on this device's kernels, or None without any."""
    dtype = pallas.kernel_type(precision)
    return dtype and gradients(NET, dtype)
