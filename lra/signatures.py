"""Signatures of exported records by ssh keys: `<record>.json.sig` beside the record.

`ssh-keygen` makes and checks them (its `-Y` mode). A signature says who vouches for a record, not
that the record is right.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra.config import UserError

NAMESPACE = "luna-lra"
SIGNERS = "signers"  # in a results folder: the keys whose signatures its tables show


def sign(places: Sequence[str], key: str) -> int:
    """Sign every record; returns how many."""
    files = list(_records(places))
    for file in files:
        signature(file).unlink(missing_ok=True)
        done = _ssh_keygen("-Y", "sign", "-f", key, "-n", NAMESPACE, str(file))
        if done.returncode:
            raise UserError(f"{file} cannot be signed with {key}: {done.stderr.strip()}")
    return len(files)


def verify(places: Sequence[str], signers: Path) -> Iterator[tuple[Path, str | None]]:
    """Every record with the name of its signer, None without a valid signature."""
    for file in _records(places):
        yield file, signer(file, signers)


def signer(record: Path, signers: Path) -> str | None:
    """Who signed this content, among the names and keys in `signers`."""
    if not signature(record).exists():
        return None
    where = ["-s", str(signature(record)), "-f", str(signers)]
    found = _ssh_keygen("-Y", "find-principals", *where)
    for name in found.stdout.split():
        valid = _ssh_keygen("-Y", "verify", "-n", NAMESPACE, "-I", name, *where, given=record)
        if valid.returncode == 0:
            return name
    return None


def signature(record: Path) -> Path:
    return record.with_name(f"{record.name}.sig")


def _records(places: Sequence[str]) -> Iterator[Path]:
    for place in map(Path, places):
        files = sorted(place.rglob("*-seed-*.json")) if place.is_dir() else [place]
        if not files or not all(file.is_file() for file in files):
            raise UserError(f"{place} holds no exported record: lra records export makes them")
        yield from files


def _ssh_keygen(*words: str, given: Path | None = None) -> subprocess.CompletedProcess[str]:
    content = given.read_text(encoding="utf-8") if given else None
    try:
        return subprocess.run(
            ["ssh-keygen", *words], input=content, capture_output=True, text=True, check=False
        )
    except FileNotFoundError as error:
        raise UserError("signatures need ssh-keygen (OpenSSH 8.2 or later)") from error
