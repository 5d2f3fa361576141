"""The page over a running study: what it shows and when it changes, whom it answers, and how it ends."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from serve_helpers import STUDY, ask, put, serving, state

import levelfield as lf
from levelfield.report import serve


@pytest.fixture
def study(tmp_path: Path) -> lf.Study:
    (tmp_path / "small.toml").write_text(STUDY)
    return lf.load_study(tmp_path / "small.toml")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Where the store will be."""
    return tmp_path / "trials.db"


@pytest.fixture
def url(study: lf.Study, store: Path) -> Iterator[str]:
    with serving(study, store) as found:
        yield found


@pytest.fixture
def drawn(monkeypatch) -> list[lf.Comparison]:
    """What has been drawn, by a renderer that takes its time and no more."""
    comparisons = []

    def render(comparison: lf.Comparison, *, version: str) -> str:
        assert version
        time.sleep(0.1)
        comparisons.append(comparison)
        return f"page {len(comparisons)}"

    monkeypatch.setattr(serve, "render", render)
    return comparisons


# What it shows


def test_the_page_is_there_before_the_store(url, store):
    assert state(url)["optimizers"] == [
        {"optimizer": "sgd", "feasible": 0, "infeasible": 0, "pool": 3},
        {"optimizer": "momentum", "feasible": 0, "infeasible": 0, "pool": 3},
    ]
    assert not state(url)["complete"]
    page = ask(url)
    assert page.status == 200
    assert "no feasible trial" in page.text
    assert not store.exists()  # it only reads


def test_the_page_fills_as_trials_arrive(url, study, store):
    before, empty = state(url), ask(url).text
    put(study, store, "sgd", {0: 0.1234, 1: None})
    after, page = state(url), ask(url).text
    assert after["version"] != before["version"]
    assert after["optimizers"][0] == {"optimizer": "sgd", "feasible": 1, "infeasible": 1, "pool": 3}
    assert after["optimizers"][1] == before["optimizers"][1]
    assert after["version"] in page  # what it says to be, so that it knows when there is more
    assert "0.1234" in page
    assert "0.1234" not in empty


def test_reruns_appear_in_the_page(url, study, store):
    put(study, store, "sgd", {0: 0.25, 1: 0.5})
    assert "new seeds" not in ask(url).text
    with lf.Store.open(store) as opened:
        again = lf.rerun_study(lf.Comparison.load(study, opened), ["sgd"], seeds=2)
    put(again, store, "sgd", {0: 0.375, 1: 0.125})
    assert "new seeds" in ask(url).text


def test_a_store_of_other_studies_counts_as_empty(url, study, store):
    before = state(url)
    put(study.replace(seed=7), store, "sgd", {0: 1.0})
    assert state(url) == before
    assert ask(url).status == 200


def test_the_version_changes_with_the_pools_and_only_then(url, study, store):
    versions = [state(url)["version"]]

    def changes(optimizer: str, losses: dict[int, float | None]) -> bool:
        put(study, store, optimizer, losses)
        versions.append(state(url)["version"])
        return versions[-1] not in versions[:-1]

    assert changes("sgd", {1: 1.0})
    assert not changes("sgd", {1: 2.0})  # it is there already, and stays as it is
    assert not changes("sgd", {5: 1.0})  # beyond the pool
    assert changes("sgd", {0: None})
    assert changes("momentum", {0: None})
    assert changes("sgd", {2: 1.0, 3: 1.0})
    assert not state(url)["complete"]
    assert changes("momentum", {1: 1.0, 2: 1.0, 3: 1.0})
    found = state(url)
    assert found["complete"]
    assert [(row["feasible"], row["infeasible"]) for row in found["optimizers"]] == [(3, 1), (3, 1)]
    assert state(url) == found


def test_the_state_reads_no_curves(url, study, store, monkeypatch, drawn):
    put(study, store, "sgd", {0: 1.0})
    monkeypatch.setattr(lf.Store, "trials", None)
    assert state(url)["optimizers"][0]["feasible"] == 1
    assert not drawn


# When it is drawn


def test_many_readers_cause_one_drawing(url, study, store, drawn):
    def read(n: int) -> set[str]:
        with ThreadPoolExecutor(n) as threads:
            return {answer.text for answer in threads.map(ask, [url] * n)}

    put(study, store, "sgd", {0: 1.0})
    assert read(16) == {"page 1"}
    assert read(4) == {"page 1"}
    put(study, store, "sgd", {1: 1.0})
    assert read(16) == {"page 2"}
    assert [len(each.trials["sgd"]) for each in drawn] == [1, 2]


def test_closing_waits_for_a_page_being_drawn(study, store, monkeypatch):
    begun, done = threading.Event(), threading.Event()

    def render(*_: Any, **__: Any) -> str:
        begun.set()
        time.sleep(0.1)
        done.set()
        return "page"

    monkeypatch.setattr(serve, "render", render)
    with ThreadPoolExecutor(1) as reader:
        with serving(study, store) as url:
            answer = reader.submit(ask, url)
            assert begun.wait(10)
        assert done.is_set()
        assert answer.result().text == "page"


def test_a_reader_who_leaves_is_no_error(url, drawn, capfd):
    address = re.search(r"//(.*):(\d+)/", url)
    with socket.create_connection((address[1], int(address[2]))) as left:
        left.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        left.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # hang up, not goodbye
    assert ask(url).text == "page 1"
    assert capfd.readouterr() == ("", "")


# Whom it answers, and how


@pytest.mark.parametrize(("path", "kind"), [("", "text/html"), ("state", "application/json"), ("x", "text/plain")])
def test_every_answer_carries_the_headers(url, path, kind):
    found = ask(url + path)
    assert found.headers["Content-Type"] == f"{kind}; charset=utf-8"
    assert found.headers["Cache-Control"] == "no-store"
    assert found.headers["X-Content-Type-Options"] == "nosniff"
    assert found.headers["Referrer-Policy"] == "no-referrer"
    assert found.headers["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert int(found.headers["Content-Length"]) == len(found.text.encode())
    head = ask(url + path, "HEAD")
    assert (head.status, head.text) == (found.status, "")
    assert head.headers["Content-Length"] == found.headers["Content-Length"]


@pytest.mark.parametrize("path", ["x", "state/", "../pyproject.toml", "index.html"])
def test_nothing_else_is_there(url, path):
    found = ask(url + path)
    assert found.status == 404
    assert len(found.text.splitlines()) == 1
    assert ask(f"{url}state?now").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "NONSENSE"])
def test_it_only_reads(url, method):
    found = ask(f"{url}state", method)
    assert found.status == 405
    assert found.headers["Allow"] == "GET, HEAD"
    assert found.headers["X-Content-Type-Options"] == "nosniff"


def test_broken_requests_are_refused(url, capfd):
    connection = http.client.HTTPConnection(url.split("/")[2])
    connection.putrequest("GET", "/" + "x" * 70_000)
    connection.endheaders()
    with connection.getresponse() as answer:
        assert answer.status == 414
        assert answer.read() == b"Request-URI Too Long\n"
    connection.close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "localhost:1", "[::1]", "[::1]:8765", "LOCALHOST:80"])
def test_a_server_for_this_machine_answers_to_its_names(url, name):
    assert ask(f"{url}state", Host=name).status == 200


@pytest.mark.parametrize(
    "name", ["", "evil.example", "evil.example:8765", "localhost.evil.example", "127.0.0.1.nip.io"]
)
@pytest.mark.parametrize("path", ["", "state"])
def test_a_server_for_this_machine_answers_to_no_other_name(url, path, name, drawn):
    found = ask(url + path, Host=name)
    assert found.status == 403
    assert len(found.text.splitlines()) == 1
    assert url in found.text
    assert not drawn


def test_a_server_for_all_answers_to_any_name(study, store):
    with serving(study, store, "0.0.0.0") as url:
        assert ask(f"{url}state", Host="the.machine.example").status == 200


def test_an_ipv6_server(study, store):
    try:
        with serving(study, store, "::1") as url:
            assert url.startswith("http://[::1]:")
            assert ask(f"{url}state").status == 200
            assert ask(f"{url}state", Host="evil.example").status == 403
    except lf.LevelfieldError:
        pytest.skip("this machine has no IPv6")


# What can go wrong


def test_a_broken_store_is_told_and_the_server_goes_on(url, study, store, capfd):
    put(study, store, "sgd", {0: 1.0})
    good = state(url)
    content = store.read_bytes()
    store.write_text("no database at all, " * 100)
    for path in ("", "state"):
        found = ask(url + path)
        assert found.status == 503
        assert found.text == "The store cannot be read now; see the server's log\n"
        logged = capfd.readouterr().err
        assert len(logged.splitlines()) == 1
        assert "trials.db" in logged
        assert "not a database" in logged
    store.write_bytes(content)
    assert state(url) == good
    assert ask(url).status == 200
    store.unlink()
    assert state(url)["optimizers"][0]["feasible"] == 0


def test_readers_are_not_told_what_the_error_says(url, monkeypatch, capfd):
    """It may name a database with its user and password."""

    def state(_: serve.Live) -> None:
        raise lf.errors.StoreError("postgresql://me:secret@db.example/trials: connection refused")

    monkeypatch.setattr(serve.Live, "state", state)
    for path in ("", "state"):
        found = ask(url + path)
        assert found.status == 503
        for word in ("secret", "db.example", "refused"):
            assert word not in found.text + str(found.headers)
    assert capfd.readouterr().err.count("db.example/trials: connection refused\n") == 2


def test_a_page_that_cannot_be_drawn_is_told(url, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(serve.Server, "handle_error", lambda *_: told.set())  # which prints the traceback
    monkeypatch.setattr(serve, "render", None)
    found = ask(url)
    assert found.status == 500
    assert len(found.text.splitlines()) == 1
    assert state(url)["complete"] is False
    assert told.wait(60)  # after the answer, in the server's thread


def test_a_port_in_use_is_told_in_one_line(command, url):
    port = url.split(":")[2].strip("/")
    code, out, err = command("serve", "small.toml", "--port", port)
    assert (code, out) == (2, "")
    assert err == f"levelfield: port {port} is in use; choose another one, or 0 for any free port\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "65536"], ["--port", "65535"]),
        (["--host", "192.0.2.1"], ["192.0.2.1", "cannot listen there"]),
        (["--host", "x" * 70], ["cannot listen there"]),
        (["--port", "0", "--store", "small.toml"], ["small.toml", "not a database"]),
        (["--port", "0", "--store", "mysql://x/y"], ["mysql://", "postgresql://"]),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(command, study, arguments, words):
    code, out, err = command("serve", "small.toml", *arguments)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    for word in words:
        assert word in err


@pytest.mark.parametrize(
    ("ending", "host"), [(signal.SIGINT, "127.0.0.1"), (signal.SIGTERM, "0.0.0.0")], ids=["Ctrl-C", "SIGTERM"]
)
def test_the_command_from_its_start_to_its_end(tmp_path, study, ending, host):
    arguments = ["serve", "small.toml", "--port", "0"]
    if host != "127.0.0.1":  # the default
        arguments += ["--host", host]
    process = subprocess.Popen(
        [sys.executable, "-c", "from levelfield.cli import main; main()", *arguments],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        said = re.fullmatch(rf"Serving small on (http://{host}:[1-9]\d*/) \(press Ctrl-C to stop\)\n", line)
        assert said, line
        assert state(said[1])["complete"] is False
        process.send_signal(ending)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert out == ""
    store, *warning = err.splitlines()
    assert store == (
        "levelfield-out/small/trials.db: no such store yet; the page is empty until 'levelfield run' creates it"
    )
    everybody = f"--host {host}: anyone who can reach this machine can read the report"
    assert warning == ([everybody] if host == "0.0.0.0" else [])
