"""Downloads from publishers."""

from __future__ import annotations

import functools
import hashlib
import http.server
import threading

import pytest
from dataset_files import complete_or_absent

from levelfield.datasets import arrays, get, get_dataset, names, register_dataset, sources
from levelfield.errors import DataError

pytestmark = pytest.mark.usefixtures("cache_folder")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A publisher on this machine: a folder and its address. ``requests`` lists what was asked for."""
    folder, requests = tmp_path / "published", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments):
            requests.append(self.path)

    publisher = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=folder))
    threading.Thread(target=publisher.serve_forever, daemon=True).start()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time.sleep", lambda seconds: None)  # between attempts
    publisher.folder, publisher.requests = folder, requests
    publisher.url = f"http://127.0.0.1:{publisher.server_port}/file.bin"
    yield publisher
    publisher.shutdown()
    publisher.server_close()


class TestDownload:
    CONTENT = b"what was published"
    MD5 = f"md5:{hashlib.md5(CONTENT).hexdigest()}"

    def remote(self, toy, url, checksum) -> None:
        register_dataset("toy", sources.Dataset("", toy.write, (sources.Remote(url, checksum),)))

    @pytest.mark.parametrize("checksum", [MD5, f"sha256:{hashlib.sha256(CONTENT).hexdigest()}", None])
    def test_downloads_reads_and_cleans_up(self, server, toy, cache_folder, checksum):
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        self.remote(toy, server.url, checksum)
        lines = []
        get("toy", report=lines.append)
        assert arrays("toy")["bytes"].tobytes() == self.CONTENT
        assert lines == [f"downloading {server.url}"]
        assert not list((cache_folder / "downloads").iterdir())

    def test_a_download_survives_a_failure(self, server, toy):
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        self.remote(toy, server.url, self.MD5)
        toy.fail = RuntimeError("later")
        with pytest.raises(RuntimeError):
            get("toy")
        toy.fail = None
        get("toy")
        assert server.requests == ["/file.bin"]

    def test_a_file_without_a_checksum_is_downloaded_again(self, server, toy):
        (server.folder / "file.bin").write_bytes(b"for a while, something else")
        self.remote(toy, server.url, None)
        toy.fail = DataError("not the published content")
        with pytest.raises(DataError):
            get("toy")
        (server.folder / "file.bin").write_bytes(self.CONTENT)
        toy.fail = None
        get("toy")
        assert arrays("toy")["bytes"].tobytes() == self.CONTENT

    def test_refuses_a_wrong_checksum(self, server, toy, cache_folder):
        (server.folder / "file.bin").write_bytes(b"something else")
        self.remote(toy, server.url, self.MD5)
        with pytest.raises(DataError, match=f"{server.url}: download failed .its checksum is not the published"):
            get("toy")
        assert not list((cache_folder / "downloads/toy").iterdir())
        complete_or_absent(cache_folder)

    def test_says_what_failed_and_what_to_do(self, server, toy):
        self.remote(toy, server.url, self.MD5)
        with pytest.raises(DataError, match=r"\(HTTP status 404\); .* 'levelfield data get toy'"):
            get("toy")
        self.remote(toy, "http://127.0.0.1:9/file.bin", self.MD5)
        with pytest.raises(DataError, match=r"\(ConnectionError\)"):
            get("toy")

    def test_a_large_file_reports_its_progress(self):
        lines = []
        progress = sources._Progress("file.bin", lines.append)
        progress.total = 200_000_000
        for _ in range(4):
            progress.update(25_000_000)
        assert lines == ["file.bin: 10%", "file.bin: 20%", "file.bin: 30%", "file.bin: 50%"]

    def test_addresses_and_checksums_are_well_formed(self):
        for name in names():
            for remote in get_dataset(name).remotes:
                assert remote.url.startswith("http")
                if remote.checksum:
                    algorithm, value = remote.checksum.split(":")
                    assert len(bytes.fromhex(value)) == {"md5": 16, "sha256": 32}[algorithm]
