"""A slow server of one release archive, in a process of its own: downloads last long enough to be
hit, and each must ask for exactly the bytes that are missing."""

from __future__ import annotations

import io
import os
import random
import tarfile
import time
from pathlib import Path
from typing import Any

from tests.lra.data.sources.test_fetch import Handler, Server

from .forks import Fork

SIZE = 2_600_000  # bytes of noise: three reads of fetch.CHUNK
PIECE, PAUSE = 2**16, 0.01  # bytes, and seconds after them
UNFAIR = "unfair"  # file of the requests for other bytes than the missing ones


def archive() -> bytes:
    content, noise = io.BytesIO(), random.Random(0).randbytes(SIZE)
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as tar:
        member = tarfile.TarInfo("lra_release/lra_release/listops-1000/basic_test.tsv")
        member.size = len(noise)
        tar.addfile(member, io.BytesIO(noise))
    return content.getvalue()


def serve(home: Path, log: Path) -> str:
    """The address of the archive, for downloads to home/data. The server ends with this process."""
    os.environ["no_proxy"] = "127.0.0.1"
    server = Server()
    server.content = archive()
    server.RequestHandlerClass = _handler(home)
    Fork(lambda: server.serve_forever(0.01), log)
    server.socket.close()  # the fork has it
    return server.url


def _handler(home: Path) -> type[Handler]:
    partial = home / "data" / ".lra_release.gz.partial"

    class Watching(Handler):
        def do_GET(self) -> None:
            have = partial.stat().st_size if partial.exists() else 0
            asked, fair = self.headers.get("Range"), f"bytes={have}-" if have else None
            if asked != fair:
                with (home / UNFAIR).open("a", encoding="utf-8") as file:
                    file.write(f"asked for {asked}, {have} bytes are there\n")
            self.wfile = _Slow(self.wfile)
            super().do_GET()

    return Watching


class _Slow(io.RawIOBase):
    def __init__(self, out: Any):
        self._out = out

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        for start in range(0, len(content), PIECE):
            self._out.write(content[start : start + PIECE])
            time.sleep(PAUSE)
        return len(content)
