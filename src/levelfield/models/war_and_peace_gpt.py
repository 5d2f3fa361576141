"""The GPT that nanoGPT trains on characters."""

from __future__ import annotations

from levelfield.models.transformer import GPT, LanguageModel
from levelfield.workloads.war_and_peace_gpt import CHARACTERS, WINDOW

NET = GPT(CHARACTERS, WINDOW, layers=6, width=384, heads=6, dropout=0.2)
MODEL = LanguageModel(NET)
init, loss, evaluate = MODEL.init, MODEL.loss, MODEL.evaluate
