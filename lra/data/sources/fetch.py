"""Download one file over HTTP: fail soon without a network, resume where it broke off."""

from __future__ import annotations

import os
import time
import urllib.parse
import urllib.request
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError

from lra.base.config import UserError
from lra.base.disk import disk_errors, require_space
from lra.data.parallel import track
from lra.data.store import lock, sha256

ANSWER = 10.0  # seconds within which a server must answer or send more
TRIES = 3  # attempts in a row that may bring nothing, after one that brought something
PAUSE = 2.0  # seconds between them
CHUNK = 2**20


class ConnectionBroken(Exception):
    """The connection broke, or never came about."""


def fetch(
    url: str, target: Path, *, instead: str, size: int | None = None, digest: str | None = None
) -> Path:
    """Download `url` to `target`, or take what lies there; `size` and `digest` (SHA-256) are what
    it must have. `instead` ends the message when it cannot be had: what else to do."""
    partial = target.with_name(f".{target.name}.partial")
    with lock(target, f"another process is downloading {target}; waiting for it"):
        if target.exists():
            if wrong := _difference(target, size, digest):
                raise UserError(
                    f"{target} is not the published file: {wrong}; remove it and try again"
                )
        else:
            _receive(url, partial, instead)
            if wrong := _difference(partial, size, digest):
                partial.unlink()
                raise UserError(f"what the server sent as {target.name} is not the file: {wrong}")
            with disk_errors(target.parent):
                partial.replace(target)
        with disk_errors(target.parent):
            _version(partial).unlink(missing_ok=True)
    return target


def _receive(url: str, partial: Path, instead: str) -> None:
    """Fill `partial`; broken transfers are resumed as long as each brings new bytes."""
    left = 1  # a server that never answered is reported at once
    while True:
        before = _size(partial)
        try:
            return _transfer(url, partial)
        except HTTPError as error:
            host = urllib.parse.urlsplit(url).hostname
            raise UserError(
                f"{host} refuses {url}: HTTP {error.code} {error.reason}; {instead}"
            ) from error
        except ConnectionBroken as broken:
            left = TRIES if _size(partial) > before else left - 1
            here = f"{_size(partial) / CHUNK:,.0f} MiB are here"
            if left == 0:
                more = f" ({here}, the same command goes on from there)" if _size(partial) else ""
                raise UserError(f"{broken}{more}; {instead}") from broken
            print(f"{broken}, {here}; taking it up again")
            time.sleep(PAUSE)


def _transfer(url: str, partial: Path) -> None:
    """Ask for the bytes that are missing, and append them. The server sends all of them when the
    file has changed since."""
    host, start, version = urllib.parse.urlsplit(url).hostname, _size(partial), _version(partial)
    name = version.read_text(encoding="utf-8") if version.exists() else ""
    resume = {"Range": f"bytes={start}-", "If-Range": name} if start and name else {}
    request = urllib.request.Request(url, headers={"User-Agent": "luna-lra", **resume})
    try:
        body = urllib.request.urlopen(request, timeout=ANSWER)
    except HTTPError as error:
        if error.code == 416 and error.headers.get("Content-Range") == f"bytes */{start}":
            return  # it is complete
        raise
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise ConnectionBroken(f"{host} cannot be reached ({reason})") from error
    sent = body.headers.get("ETag") or body.headers.get("Last-Modified") or ""
    with body, disk_errors(partial.parent):
        if body.status != 206:  # before the name, or a kill would leave these bytes under it
            partial.unlink(missing_ok=True)
        if sent != name:  # a kill while it is written again would cost the part that is there
            version.write_text(sent, encoding="utf-8")
        start = _size(partial)
        total = start + int(body.headers.get("Content-Length", 0))
        there = f", {start / 1e6:,.0f} MB of them are there" if start else ""
        print(f"downloading {total / 1e6:,.0f} MB to {partial.parent}{there}", flush=True)
        require_space(partial.parent, total - start)
        with partial.open("ab") as file:
            chunks = iter(lambda: _read(body, host), b"")
            left = round((total - start) / CHUNK)
            for chunk in track(chunks, f"downloading {partial.stem[1:]}, MiB", left):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if _size(partial) < total:
        raise ConnectionBroken(f"{host} closed the connection")


def _read(body: HTTPResponse, host: str | None) -> bytes:
    try:
        return body.read(CHUNK)
    except (OSError, HTTPException) as error:
        raise ConnectionBroken(f"{host} broke the connection") from error


def _difference(path: Path, size: int | None, digest: str | None) -> str:
    if size is not None and path.stat().st_size != size:
        return f"{size:,} bytes expected, {path.stat().st_size:,} found"
    if digest is not None and (computed := sha256(path)) != digest:
        return f"sha256 {digest} expected, {computed} found"
    return ""


def _size(partial: Path) -> int:
    return partial.stat().st_size if partial.exists() else 0


def _version(partial: Path) -> Path:
    """Name the file with the server's name for the content, so that nothing else is resumed."""
    return partial.with_suffix(".version")
