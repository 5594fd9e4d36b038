"""Downloads from a server on this machine that breaks off, refuses, or sends something else."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.data.sources.tfds import fetch

from .. import kit

CONTENT = os.urandom(3_000_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Server(ThreadingHTTPServer):
    """A file, and how it is to be served."""

    content = CONTENT
    refuses: int | None = None
    asked = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/x.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked += 1
        if self.server.refuses:
            self.send_error(self.server.refuses)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    for _ in range(2):
        fetch(server.url, tmp_path / "x", instead="", size=len(CONTENT), digest=DIGEST)
    assert (tmp_path / "x").read_bytes() == CONTENT
    assert kit.files(tmp_path) == ["x"]
    assert server.asked == 1


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"refuses": 403}, "cannot be reached (Forbidden); look elsewhere"),
        ({"content": CONTENT[:2_000_000]}, "is not the published file: 3,000,000 bytes expected"),
        ({"content": bytes(len(CONTENT))}, f"is not the published file: sha256 {DIGEST} expected"),
        ({"url": "http://127.0.0.1:1/x"}, "refused); look elsewhere"),
    ],
)
def test_anything_else_is_not_taken(
    change: dict[str, object], complaint: str, server: Server, tmp_path: Path
) -> None:
    for name, value in change.items():
        if name != "url":
            setattr(server, name, value)
    url = str(change.get("url", server.url))
    with pytest.raises(UserError) as error:
        fetch(url, tmp_path / "x", instead="look elsewhere", size=len(CONTENT), digest=DIGEST)
    assert complaint in str(error.value)
    assert not (tmp_path / "x").exists()
