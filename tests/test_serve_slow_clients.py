"""Clients of ``serve`` that send or read too slowly are cut off, and others are still served."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import STUDY, ask, serving

import levelfield as lf
from levelfield.report import serve


@pytest.fixture
def study(tmp_path: Path) -> lf.Study:
    (tmp_path / "small.toml").write_text(STUDY)
    return lf.load_study(tmp_path / "small.toml")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store would be."""
    return tmp_path / "trials.db"


@contextmanager
def connected(url: str) -> Iterator[socket.socket]:
    host, port = url.split("/")[2].split(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((host, int(port)))
        client.settimeout(0.02)
        yield client


def seconds_until_cut(client: socket.socket, byte_by_byte: Callable[[], Any]) -> float:
    """How long the server lets a client go on that does a little every now and then."""
    begun = time.monotonic()
    while time.monotonic() < begun + 10:
        with suppress(TimeoutError):
            try:
                if byte_by_byte() == b"":
                    return time.monotonic() - begun
            except ConnectionError:
                return time.monotonic() - begun
        time.sleep(0.02)
    return math.inf


@pytest.mark.parametrize("start", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["request line", "headers"])
def test_a_client_that_sends_byte_by_byte_is_cut(study, store, monkeypatch, capfd, start):
    monkeypatch.setattr(serve.Server, "request_seconds", 0.3)

    def send_and_look() -> bytes:
        client.sendall(b"x")
        return client.recv(1)

    with serving(study, store) as url, connected(url) as client:
        client.sendall(start)
        assert 0.2 < seconds_until_cut(client, send_and_look) < 3
        assert ask(f"{url}state").status == 200
    assert capfd.readouterr() == ("", "")


def test_a_client_that_says_nothing_is_cut(study, store, monkeypatch):
    monkeypatch.setattr(serve.Server, "request_seconds", 0.3)
    with serving(study, store) as url, connected(url) as client:
        assert 0.2 < seconds_until_cut(client, lambda: client.recv(1)) < 3


def test_a_client_that_reads_byte_by_byte_is_cut(study, store, monkeypatch, capfd):
    """It holds the only connection until then."""
    monkeypatch.setattr(serve.Server, "connections", 1)
    monkeypatch.setattr(serve.Server, "answer_seconds", 0.5)
    monkeypatch.setattr(serve, "render", lambda *_, **__: "x" * 50_000_000)
    with serving(study, store) as url, connected(url) as client, ThreadPoolExecutor(1) as other:
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.settimeout(10)
        assert client.recv(1) == b"H"
        begun = time.monotonic()
        answer = other.submit(ask, f"{url}state")
        while not answer.done():
            client.recv(1)
            time.sleep(0.02)
        assert answer.result().status == 200
        assert 0.3 < time.monotonic() - begun < 5
    assert capfd.readouterr() == ("", "")


def test_the_time_to_draw_a_page_does_not_count(study, store, monkeypatch):
    def render(*_: Any, **__: Any) -> str:
        time.sleep(0.6)
        return "page"

    monkeypatch.setattr(serve.Server, "request_seconds", 0.3)
    monkeypatch.setattr(serve.Server, "answer_seconds", 0.3)
    monkeypatch.setattr(serve, "render", render)
    with serving(study, store) as url:
        assert ask(url).text == "page"


def test_connections_beyond_the_bound_wait(study, store, monkeypatch):
    monkeypatch.setattr(serve.Server, "connections", 2)
    monkeypatch.setattr(serve.Server, "request_seconds", 0.6)
    with serving(study, store) as url, ExitStack() as clients:
        before = threading.active_count()
        for _ in range(8):
            clients.enter_context(connected(url))
        with ThreadPoolExecutor(1) as other:
            begun = time.monotonic()
            answer = other.submit(ask, f"{url}state")
            while not answer.done():
                assert threading.active_count() <= before + 3  # the bound, and ``other``
                time.sleep(0.01)
        assert answer.result().status == 200
        assert 2 < time.monotonic() - begun < 20  # after the eight silent ones, two at a time
