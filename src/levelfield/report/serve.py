"""The page over a running study: a small server that only reads, and draws anew when there are new trials."""

from __future__ import annotations

import errno
import ipaddress
import json
import re
import socket
import socketserver
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, cast

from levelfield.errors import NoStore, StoreError, UsageError
from levelfield.pool import PoolCount, pool_window
from levelfield.report.page import render
from levelfield.run import read
from levelfield.store import Store
from levelfield.study import Study, digest

_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # Vega compiles its expressions, hence 'unsafe-eval'. All that the page may ask for is this server's state.
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


class Live:
    """What a store holds of a study at this moment."""

    def __init__(self, study: Study, location: str) -> None:
        self.study = study
        self._location = location
        self._identities = {name: study.identity(name) for name in study.optimizers}
        self._text = study.to_toml()
        self._drawing = threading.Lock()
        self._drawn: tuple[tuple[str, int], str] | None = None  # what it was drawn from, and the page

    def _open(self) -> Store:
        """The store as it is now; an empty one while there is none."""
        try:
            return Store.open(self._location, create=False)
        except NoStore:
            return Store.open("sqlite://")

    def state(self) -> dict[str, Any]:
        """How full the pools are, and a version that changes when their trials do. Reads no curves."""
        counts: dict[str, PoolCount] = {}
        pools = []
        with self._open() as store:
            for name, identity in self._identities.items():
                statuses = store.statuses(identity)
                counts[name] = PoolCount.of(statuses, self.study.pool, self.study.points(name))
                pools.append({i: statuses[i] for i in pool_window(statuses, self.study.pool) if i in statuses})
        return {
            "version": digest([self._text, pools]),
            "complete": all(count.full for count in counts.values()),
            "optimizers": [
                {"optimizer": name, "feasible": count.feasible, "infeasible": count.infeasible, "pool": count.n}
                for name, count in counts.items()
            ],
        }

    def page(self) -> str:
        """The report of what there is. Those who ask while it is being drawn wait, and get the same."""
        with self._drawing:
            # The version is read first: trials that arrive in between are drawn now, and again, never missed.
            version = self.state()["version"]
            with self._open() as store:
                source = version, store.count()  # reruns and the like are no part of the pools, but of the page
                if self._drawn is None or self._drawn[0] != source:
                    self._drawn = source, render(read(self.study, store), version=version)
            return self._drawn[1]


class Server(ThreadingHTTPServer):
    """Listens as soon as it is made; ``serve_forever`` answers."""

    request_queue_size = 64

    def __init__(self, live: Live, host: str, port: int) -> None:
        self.live = live
        try:
            self.address_family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__(cast(Any, address), _Handler)
        except (OSError, UnicodeError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; choose another one, or 0 for any free port") from None
            raise UsageError(f"{host}:{port}: cannot be listened on ({getattr(error, 'strerror', error)})") from None
        bound = str(self.server_address[0])
        self.loopback = ipaddress.ip_address(bound).is_loopback
        self.host = f"[{bound}]" if ":" in bound else bound
        self.url = f"http://{self.host}:{self.server_address[1]}/"

    def server_bind(self) -> None:
        """HTTPServer's own asks for the machine's name, too: slow where DNS is, and of no use here."""
        socketserver.TCPServer.server_bind(self)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # a reader who has left is no error
            super().handle_error(request, client_address)

    def is_meant(self, host: str) -> bool:
        """Whether a request was sent here knowingly.

        A web site whose name resolves to this machine (DNS rebinding) would be let into a server that only this
        machine can reach; its own name, in the Host header, gives it away.
        """
        name = re.sub(r":\d*$", "", host.lower())
        return not self.loopback or name in ("127.0.0.1", "localhost", "[::1]", self.host)


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "levelfield", ""
    timeout = 60  # seconds, for those who connect and then say nothing

    def do_GET(self) -> None:
        try:
            answer = self._look(self.path.partition("?")[0])
        except StoreError as error:
            answer = HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n", "text/plain"
        except Exception:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, "Internal error; see the server log\n")
            raise
        self._answer(*answer)

    def _look(self, path: str) -> tuple[HTTPStatus, str, str]:
        if not self.server.is_meant(self.headers.get("Host", "")):
            line = f"this server is {self.server.url}, and answers to no other name\n"
            return HTTPStatus.FORBIDDEN, line, "text/plain"
        if path == "/":
            return HTTPStatus.OK, self.server.live.page(), "text/html"
        if path == "/state":
            return HTTPStatus.OK, json.dumps(self.server.live.state()), "application/json"
        return HTTPStatus.NOT_FOUND, "nothing is here: / is the page, /state how far the study is\n", "text/plain"

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server refuses by itself: broken requests, and methods for which there is no do_METHOD."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            code, message = HTTPStatus.METHOD_NOT_ALLOWED, "this server only reads: GET and HEAD"
        self._answer(HTTPStatus(code), f"{message or HTTPStatus(code).phrase}\n")

    def _answer(self, status: HTTPStatus, content: str, kind: str = "text/plain") -> None:
        body = content.encode()
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
        """The terminal is for what matters: a page that looks every few seconds does not."""
