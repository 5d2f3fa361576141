"""A small GPT that predicts the next character."""

from __future__ import annotations

from levelfield.models.transformer import GPT, LanguageModel
from levelfield.workloads.tolstoi_mini import CHARACTERS, WINDOW

NET = GPT(CHARACTERS, WINDOW, layers=2, width=32, heads=2)  # 28,192 parameters
MODEL = LanguageModel(NET)
init, loss, evaluate = MODEL.init, MODEL.loss, MODEL.evaluate
