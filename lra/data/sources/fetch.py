"""Download one file over HTTP: fail at once without a network, resume where it broke off."""

from __future__ import annotations

import os
import queue
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple

from lra.base.config import UserError
from lra.base.disk import disk_errors, require_space
from lra.data.progress import Progress
from lra.data.store import lock, sha256

ANSWER = 10.0  # seconds within which a server must answer or send more
RESOLVE = 3.0  # seconds more for the name look-up, which no timeout covers
TRIES = 3  # attempts in a row that may bring nothing, after one that brought something
PAUSE = 2.0  # seconds between them
CHUNK = 2**20


class ConnectionBroken(Exception):
    """The connection broke during a transfer."""


class Answer(NamedTuple):
    """What the server sends: bytes from `start` on, of `total` if it says."""

    body: HTTPResponse
    start: int
    total: int | None


def fetch(
    url: str, target: Path, *, instead: str, size: int | None = None, digest: str | None = None
) -> Path:
    """Download `url` to `target`, or take what lies there; `size` and `digest` (SHA-256) are what
    it must have. `instead` ends the message when it cannot be had: what else to do."""
    partial = target.with_name(f".{target.name}.partial")
    with lock(target, f"another process is downloading {target}; waiting for it"):
        if not target.exists():
            _receive(url, partial, instead)
            _check(partial, target, size, digest)
            with disk_errors(target.parent):
                partial.replace(target)
        else:
            _check(target, target, size, digest)
        with disk_errors(target.parent):
            _version(partial).unlink(missing_ok=True)
    return target


def _receive(url: str, partial: Path, instead: str) -> None:
    """Fill `partial`; broken transfers are resumed as long as each brings new bytes."""
    left = 1  # a server that never answered is reported at once
    while True:
        before = _have(partial)
        try:
            return _transfer(url, partial, instead)
        except ConnectionBroken as broken:
            left = TRIES if _have(partial) > before else left - 1
            have = f"{_have(partial) / CHUNK:,.0f} MiB are here"
            if left == 0:
                raise UserError(
                    f"{broken} ({have}, the same command goes on from there); {instead}"
                    if _have(partial)
                    else f"{broken}; {instead}"
                ) from broken
            print(f"{broken}, {have}; taking it up again")
            time.sleep(PAUSE)


def _transfer(url: str, partial: Path, instead: str) -> None:
    answer = _ask(url, partial, instead)
    if answer is None:
        return
    with answer.body, disk_errors(partial.parent):
        _room(answer, partial)
        left = None if answer.total is None else round((answer.total - answer.start) / CHUNK)
        name = partial.name.removeprefix(".").removesuffix(".partial")
        with (
            partial.open("r+b" if answer.start else "wb") as file,
            Progress(f"downloading {name}, MiB", left) as progress,
        ):
            file.seek(answer.start)
            for chunk in progress.track(iter(lambda: _read(answer.body, url), b"")):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if answer.total is not None and _have(partial) != answer.total:
        raise ConnectionBroken(f"{_host(url)} closed the connection")


def _ask(url: str, partial: Path, instead: str) -> Answer | None:
    """Ask for the bytes that are missing, None if none are; the server sends all of them when the
    file has changed since."""
    have, version = _have(partial), _version(partial)
    known = version.read_text(encoding="utf-8") if version.exists() else ""
    resume = {"Range": f"bytes={have}-", "If-Range": known} if have and known else {}
    request = urllib.request.Request(url, headers={"User-Agent": "luna-lra", **resume})
    try:
        body = _open(request)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{have}":
            return None
        raise UserError(
            f"{_host(url)} refuses {url}: HTTP {error.code} {error.reason}; {instead}"
        ) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ConnectionBroken(f"{_host(url)} cannot be reached ({reason})") from error
    start = have if body.status == 206 else 0
    length = body.headers.get("Content-Length")
    named = body.headers.get("ETag") or body.headers.get("Last-Modified") or ""
    with disk_errors(partial.parent):
        if not start:  # first of all, or a kill would leave these bytes under another's version
            partial.unlink(missing_ok=True)
        if named != known:  # a kill while it is written again would cost the part that is there
            version.write_text(named, encoding="utf-8")
    return Answer(body, start, None if length is None else start + int(length))


def _open(request: urllib.request.Request) -> HTTPResponse:
    """urlopen within a time limit that holds for the name look-up too."""
    answers: queue.SimpleQueue[HTTPResponse | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=ANSWER))
        except BaseException as error:
            answers.put(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        answer = answers.get(timeout=ANSWER + RESOLVE)
    except queue.Empty:
        raise TimeoutError(f"no answer in {ANSWER + RESOLVE:.0f} s") from None
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _read(body: HTTPResponse, url: str) -> bytes:
    try:
        return body.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise ConnectionBroken(f"{_host(url)} broke the connection") from error


def _room(answer: Answer, partial: Path) -> None:
    if answer.total is None:
        return
    there = f", {answer.start / 1e6:,.0f} MB of them are there" if answer.start else ""
    print(f"downloading {answer.total / 1e6:,.0f} MB to {partial.parent}{there}", flush=True)
    require_space(partial.parent, answer.total - answer.start)


def _check(found: Path, target: Path, size: int | None, digest: str | None) -> None:
    """Refuse, and remove where it is our own download, what is not the expected file."""
    wrong = ""
    if size is not None and found.stat().st_size != size:
        wrong = f"{size:,} bytes expected, {found.stat().st_size:,} found"
    elif digest is not None and (computed := sha256(found)) != digest:
        wrong = f"sha256 {digest} expected, {computed} found"
    if wrong and found == target:
        raise UserError(f"{target} is not the published file: {wrong}; remove it and try again")
    if wrong:
        found.unlink()
        raise UserError(f"what the server sent as {target.name} is not the file: {wrong}")


def _have(partial: Path) -> int:
    return partial.stat().st_size if partial.exists() else 0


def _version(partial: Path) -> Path:
    """Where the server's name for the file's content is kept, so that nothing else is resumed."""
    return partial.with_suffix(".version")


def _host(url: str) -> str:
    return urllib.parse.urlsplit(url).hostname or url
