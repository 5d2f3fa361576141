"""A small server for the page of a running study. It only reads, and renders again when there are new trials."""

from __future__ import annotations

import errno
import io
import ipaddress
import json
import re
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from levelfield.errors import NoStore, StoreError, UsageError
from levelfield.pool import PoolCount, pool_window
from levelfield.reading import read
from levelfield.report.page import render
from levelfield.store import Store
from levelfield.study import Study, digest

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Vega compiles its expressions, hence 'unsafe-eval'. The page may only send requests to this server.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Live:
    """The current state of a study in a store."""

    def __init__(self, study: Study, location: str, overrides: Mapping[str, str] | None = None) -> None:
        self.study = study
        self._overrides = overrides or {}  # what differs from the study's own settings, for the title
        self._location = location
        self._identities = {name: study.identity(name) for name in study.optimizers}
        self._text = study.to_toml()
        self.rendering = threading.Lock()
        self._rendered: tuple[tuple[str, int], str] | None = None  # what it was rendered from, and the page

    def _open(self) -> Store:
        """Open the store, or an empty one if it does not exist yet."""
        try:
            return Store.open(self._location, create=False)
        except NoStore:
            return Store.open("sqlite://")

    def state(self) -> dict[str, Any]:
        """Return how full the pools are, and a version that changes with their trials. Reads no curves."""
        counts: dict[str, PoolCount] = {}
        pools, failed = [], []
        with self._open() as store:
            for name, identity in self._identities.items():
                statuses = store.statuses(identity)
                counts[name] = PoolCount.of(statuses, self.study.pool, self.study.points(name))
                pools.append({i: statuses[i] for i in pool_window(statuses, self.study.pool) if i in statuses})
                failed.append([(failure.index, failure.attempts) for failure in store.failures(identity)])
        return {
            "version": digest([self._text, pools, failed]),
            "complete": all(count.full for count in counts.values()),
            "optimizers": [
                {"optimizer": name, "feasible": count.feasible, "infeasible": count.infeasible, "pool": count.n}
                for name, count in counts.items()
            ],
        }

    def page(self) -> str:
        """Return the page. Requests that arrive while it is being rendered wait for it."""
        with self.rendering:
            # The version is read first, so that trials that arrive in between are rendered twice rather than missed.
            version = self.state()["version"]
            with self._open() as store:
                source = version, store.count()  # reruns change the page, but not the pools
                if self._rendered is None or self._rendered[0] != source:
                    results = replace(read(self.study, store), overrides=self._overrides)
                    self._rendered = source, render(results, version=version)
            return self._rendered[1]


class Server(ThreadingHTTPServer):
    """Listens from the start; ``serve_forever`` answers.

    Slow clients are cut off: a request and its answer must each be transferred within a number of seconds. At most
    ``connections`` are open at once; others wait.
    """

    request_queue_size = 64
    request_seconds = 10.0
    answer_seconds = 120.0
    connections = 32

    def __init__(self, live: Live, host: str, port: int) -> None:
        self.live = live
        self._free = threading.BoundedSemaphore(self.connections)
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__(cast(Any, address), _Handler)
        except (OSError, UnicodeError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; choose another one, or 0 for any free port") from None
            reason = getattr(error, "strerror", error)
            raise UsageError(
                f"{host}:{port}: cannot listen there ({reason}); expected an address of this machine"
            ) from None
        bound = str(self.server_address[0])
        self.loopback = ipaddress.ip_address(bound).is_loopback
        self.host = f"[{bound}]" if ":" in bound else bound
        self.url = f"http://{self.host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """Bind without HTTPServer's look-up of the machine's name, which can be slow and is not needed."""
        socketserver.TCPServer.server_bind(self)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, as soon as there may be another one."""
        self._free.acquire()
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # readers may leave
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        """Stop listening, and wait for a page that is being rendered."""
        super().server_close()
        with self.live.rendering:
            pass

    def is_addressed(self, host: str) -> bool:
        """Return whether the Host header of a request names this server.

        A web site whose name resolves to this machine (DNS rebinding) must not read from a server that only this
        machine can reach.
        """
        name = re.sub(r":\d*$", "", host.lower())
        return not self.loopback or name in ("127.0.0.1", "localhost", "[::1]", self.host)


class _TimedReader(io.RawIOBase):
    """The bytes that arrive at a socket within a time limit. A socket's own timeout starts again with each byte."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end = connection, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """Answers one request. http.server closes the connection when a TimeoutError is raised."""

    server: Server
    server_version, sys_version = "levelfield", ""

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_TimedReader(self.connection, self.server.request_seconds))

    def do_GET(self) -> None:
        try:
            answer = self._respond(self.path.partition("?")[0])
        except StoreError as error:
            print(f"levelfield: {error}", file=sys.stderr, flush=True)  # not for readers: it names files and servers
            text = "The store cannot be read now; see the server's log\n"
            answer = HTTPStatus.SERVICE_UNAVAILABLE, text, "text/plain"
        except Exception:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error; see the server log\n")
            raise
        self._answer(*answer)

    def _respond(self, path: str) -> tuple[HTTPStatus, str, str]:
        if not self.server.is_addressed(self.headers.get("Host", "")):
            return HTTPStatus.FORBIDDEN, f"Unknown host; use {self.server.url}\n", "text/plain"
        if path == "/":
            return HTTPStatus.OK, self.server.live.page(), "text/html"
        if path == "/state":
            return HTTPStatus.OK, json.dumps(self.server.live.state()), "application/json"
        return HTTPStatus.NOT_FOUND, "Not found; / is the report, /state the progress\n", "text/plain"

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what http.server refuses: broken requests, and methods without a do_METHOD."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "Only GET and HEAD are supported"
        self._answer(HTTPStatus(code), f"{message or HTTPStatus(code).phrase}\n")

    def _answer(self, status: HTTPStatus, content: str, kind: str = "text/plain") -> None:
        body = content.encode()
        self.connection.settimeout(self.server.answer_seconds)  # for all of sendall, not for each byte
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the page asks every few seconds."""
