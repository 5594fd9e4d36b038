"""Downloads from a server on this machine that breaks off, refuses, and changes its mind."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.data.sources import archives, fetch, release

from .. import kit

Call = Callable[..., tuple[int, str, str]]


class Server(ThreadingHTTPServer):
    """A file, and how it is to be served."""

    content = archives.GZIP + os.urandom(3_000_000)
    breaks: tuple[int, ...] = ()  # bytes after which each answer breaks off, in turn
    refuses: int | None = None
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is nothing to print about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/long-range-arena/lra_release.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.refuses:
            self.send_error(server.refuses)
            return
        start = 0
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(server.content)}")
                self.end_headers()
                return
            self.send_response(206)
        else:
            self.send_response(200)
        body = server.content[start:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            cut, *rest = server.breaks
            server.breaks = tuple(rest)
            body = body[:cut]
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(fetch, "PAUSE", 0.01)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


def test_the_archive_is_fetched(server: Server, tmp_path: Path, lra_data: Call) -> None:
    code, out, _ = lra_data("download", "release", "--url", server.url)
    target = tmp_path / "data" / "lra_release.gz"
    assert code == 0
    assert out == (
        f"downloading 3 MB to {tmp_path / 'data'}\n"
        f"{target}: use it with source=release path={target}\n"
    )
    assert target.read_bytes() == server.content
    assert kit.files(tmp_path / "data") == ["lra_release.gz"]
    assert lra_data("download", "release", "--url", server.url)[0] == 0
    assert server.asked == [None]  # it is there


def test_a_broken_download_is_taken_up_again(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.breaks = (2_000_000, 500_000)
    target = release.download(tmp_path, server.url)
    assert target.read_bytes() == server.content
    assert server.asked == [None, "bytes=2000000-", "bytes=2500000-"]
    said = capsys.readouterr().out
    assert "127.0.0.1 cannot be reached (it closed the connection); taking it up again" in said
    assert f"downloading 3 MB to {tmp_path}, 2 MB of them are there" in said
    assert kit.files(tmp_path) == ["lra_release.gz"]


def test_a_server_that_cannot_resume(server: Server, tmp_path: Path) -> None:
    server.ranges, server.breaks = False, (2_000_000,)
    assert release.download(tmp_path, server.url).read_bytes() == server.content


def test_a_download_that_was_complete_but_not_yet_named(server: Server, tmp_path: Path) -> None:
    (tmp_path / ".lra_release.gz.partial").write_bytes(server.content)
    assert release.download(tmp_path, server.url).read_bytes() == server.content
    assert server.asked == ["bytes=3000002-"]


def test_a_server_that_goes_away_for_good(server: Server, tmp_path: Path) -> None:
    server.breaks = (1_100_000, 0, 0, 0, 0, 0)
    with pytest.raises(UserError) as error:
        release.download(tmp_path, server.url)
    assert len(server.asked) == 1 + fetch.TRIES
    assert str(error.value).startswith(
        "127.0.0.1 cannot be reached (it closed the connection); 1 MB are here, the same command"
    )


def test_a_server_that_refuses(server: Server, tmp_path: Path, lra_data: Call) -> None:
    server.refuses = 403
    status, _, err = lra_data("download", "release", "--url", server.url)
    assert status == 2
    assert err == (
        f"error: 127.0.0.1 refuses {server.url}: HTTP 403 Forbidden; if you get the archive "
        "elsewhere, use it with source=release path=<the archive>\n"
    )
    assert kit.files(tmp_path) == []


def test_no_server_is_reported_at_once(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/x.gz"
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        release.download(tmp_path, url)
    assert time.monotonic() - start < 30
    assert re.match(r"127\.0\.0\.1 cannot be reached \(.*refused\)", str(error.value))


def test_a_page_in_place_of_the_archive(server: Server, tmp_path: Path) -> None:
    server.content = b"<html>please log in</html>"
    with pytest.raises(UserError, match="is not a gzip archive: remove it"):
        release.download(tmp_path, server.url)


def test_what_is_fetched_is_held_to_its_size_and_hash(server: Server, tmp_path: Path) -> None:
    for expected, complaint in (
        ({"size": 7}, "7 bytes expected, 3,000,002 found"),
        ({"digest": "0" * 64}, f"sha256 {'0' * 64} expected, "),
    ):
        with pytest.raises(UserError) as error:
            fetch.fetch(server.url, tmp_path / "x", instead="", **expected)
        assert f"{tmp_path / 'x'} is not the published file: {complaint}" in str(error.value)
