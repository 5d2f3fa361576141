"""A small GPT that predicts the next character."""

from __future__ import annotations

from levelfield.models.transformer import GPT, LanguageModel
from levelfield.workloads.tolstoi_mini import CHARACTERS, WINDOW

# 28,192 parameters. With initial weights of nanoGPT's size, a network as narrow as this hardly learns.
NET = GPT(CHARACTERS, WINDOW, layers=2, width=32, heads=2, spread=32**-0.5)
MODEL = LanguageModel(NET)
init, loss, evaluate = MODEL.init, MODEL.loss, MODEL.evaluate
