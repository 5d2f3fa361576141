"""What the tests of ``serve`` share: a small study, trials that nobody trained, a server in a thread, a reader."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPMessage
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np

import levelfield as lf
from levelfield.report import serve
from levelfield.search import Search
from levelfield.trial import Curve, Status, Trial
from levelfield.workloads import get_workload

STUDY = """
workload = "quadratic"
steps = 4
eval_interval = 2
trials = 2
pool = 3

[optimizers.sgd]
learning_rate = { log = [1e-2, 1e0] }

[optimizers.momentum]
learning_rate = { log = [1e-2, 1e0] }
one_minus_momentum = { log = [1e-2, 1e0] }
"""
PROVENANCE = {"devices": 0, "device": "none", "backend": "none", "precision": "none", "versions": {}}


def put(study: lf.Study, store: Path, optimizer: str, losses: dict[int, float | None]) -> None:
    """Index → final loss of trials that nobody trained; None: infeasible."""
    metrics = get_workload(study.workload).metrics
    trials = []
    for index, loss in losses.items():
        values = np.array([9.0, np.inf if loss is None else loss], np.float32)
        status = Status.INFEASIBLE if loss is None else Status.FEASIBLE
        curve = Curve(np.array([2, 4]), dict.fromkeys(metrics, values))
        trials.append(Trial(Search(study, optimizer).point(index), status, curve))
    with lf.Store.open(store) as opened:
        opened.add(study.identity(optimizer), study.definition(optimizer), metrics, trials, PROVENANCE)


class Answer(NamedTuple):
    status: int
    text: str
    headers: HTTPMessage


def ask(url: str, method: str = "GET", **headers: str) -> Answer:
    try:
        with urlopen(Request(url, method=method, headers=headers), timeout=30) as answer:
            return Answer(answer.status, answer.read().decode(), answer.headers)
    except HTTPError as error:
        with error:
            return Answer(error.code, error.read().decode(), error.headers)


@contextmanager
def serving(study: lf.Study, store: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """The URL of a server in a thread."""
    with serve.Server(serve.Live(study, str(store)), host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.url
        finally:
            server.shutdown()
            thread.join()


def state(url: str) -> dict[str, Any]:
    return json.loads(ask(f"{url}state").text)
