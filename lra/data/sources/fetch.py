"""Download one file over HTTP: fail soon without a network, resume where it broke off."""

from __future__ import annotations

import os
import time
import urllib.parse
import urllib.request
from http.client import HTTPException
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


def fetch(
    url: str, target: Path, *, instead: str, size: int | None = None, digest: str | None = None
) -> Path:
    """Download `url` to `target`, or take what lies there; `size` and `digest` (SHA-256) are what
    it must have. `instead` ends the message when it cannot be had: what else to do."""
    partial = target.with_name(f".{target.name}.partial")
    waiting = f"another process is downloading {target}; waiting for it"
    with lock(target, waiting), disk_errors(target.parent):
        if not target.exists():
            _receive(url, partial, instead)
            partial.replace(target)
        wrong = ""
        if size is not None and target.stat().st_size != size:
            wrong = f"{size:,} bytes expected, {target.stat().st_size:,} found"
        elif digest is not None and (computed := sha256(target)) != digest:
            wrong = f"sha256 {digest} expected, {computed} found"
        if wrong:
            raise UserError(f"{target} is not the published file: {wrong}; remove it and try again")
    return target


def _receive(url: str, partial: Path, instead: str) -> None:
    """Fill `partial`; broken transfers are resumed as long as each brings new bytes."""
    host, left = urllib.parse.urlsplit(url).hostname, 1  # an absent server is reported at once
    while True:
        before = _size(partial)
        try:
            return _transfer(url, partial)
        except HTTPError as error:
            if error.code == 416 and before:  # nothing is missing
                return
            raise UserError(
                f"{host} refuses {url}: HTTP {error.code} {error.reason}; {instead}"
            ) from error
        except (OSError, HTTPException) as error:
            broken = f"{host} cannot be reached ({getattr(error, 'reason', None) or error})"
            left = TRIES if _size(partial) > before else left - 1
            if left == 0:
                here = f"{_size(partial) / 1e6:,.0f} MB are here, the same command goes on"
                raise UserError(f"{broken}; {here if _size(partial) else instead}") from error
            print(f"{broken}; taking it up again")
            time.sleep(PAUSE)


def _transfer(url: str, partial: Path) -> None:
    """Ask for the bytes that are missing, and append them; a server may send all of them."""
    start = _size(partial)
    resume = {"Range": f"bytes={start}-"} if start else {}
    request = urllib.request.Request(url, headers={"User-Agent": "luna-lra", **resume})
    with urllib.request.urlopen(request, timeout=ANSWER) as body, disk_errors(partial.parent):
        start = start if body.status == 206 else 0
        total = start + int(body.headers.get("Content-Length", 0))
        there = f", {start / 1e6:,.0f} MB of them are there" if start else ""
        print(f"downloading {total / 1e6:,.0f} MB to {partial.parent}{there}", flush=True)
        require_space(partial.parent, total - start)
        with partial.open("ab" if start else "wb") as file:
            chunks, left = iter(lambda: body.read(CHUNK), b""), round((total - start) / CHUNK)
            for chunk in track(chunks, f"downloading {partial.stem[1:]}, MiB", left):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    if _size(partial) < total:
        raise ConnectionError("it closed the connection")


def _size(partial: Path) -> int:
    return partial.stat().st_size if partial.exists() else 0
