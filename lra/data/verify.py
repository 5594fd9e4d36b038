"""Checks of prepared data: against their manifest, by counting again, and against the committed
statistics.

When a run begins, `check_arrays` hashes files once on every machine, and again when a file's size
or time has changed. A byte that rots later is found by `lra data verify`, which hashes everything.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lra.base.config import UserError
from lra.base.disk import read_json, write_json
from lra.data import registry
from lra.data.arrays import MANIFEST, SPLITS, Prepared, read_manifest, remedy
from lra.data.prepare import load_prepared
from lra.data.store import read_errors, sha256
from lra.data.writer import statistics

EXPECTED = Path(__file__).parent / "expected"
LARGE = 2**30  # bytes from which hashing takes long enough to be announced


class Check(NamedTuple):
    status: str  # ok | differs | unknown
    text: str


def verify(folder: Path) -> Iterator[Check]:
    """Give one line per check. What depends on a damaged file is not checked further."""
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        yield Check("differs", str(error))
        return
    yield Check("ok", f"{MANIFEST}  fingerprint {manifest['fingerprint']}")
    facts = manifest["facts"]
    arrays = [
        _check_file({**wanted, "path": folder / f"{name}.npy"}, "differs")
        for name, wanted in facts["arrays"].items()
    ]
    yield from arrays
    if all(line.status == "ok" for line in arrays):
        prepared, task = load_prepared(folder), registry.of_facts(facts)
        yield from _recount(prepared)
        for split in SPLITS:
            for holds, text in task.audit(prepared.split(split)):
                yield Check("ok" if holds else "differs", text)
        yield from _expected(prepared)
    yield from (_check_file(wanted, "unknown") for wanted in manifest["made"]["inputs"])


def expected(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the committed parts of what the manifest of data with these facts must say."""
    file = EXPECTED / f"{facts['task']}.{facts['source']}.json"
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [entry["expect"] for entry in entries if not list(_differences(entry["when"], facts))]


def check_arrays(prepared: Prepared) -> None:
    """Raise a UserError that names the first array which is not what the manifest says."""
    memory = _memory(prepared)
    checked = read_json(memory) or {}
    seen: dict[str, Any] = {}
    for name, facts in prepared.facts["arrays"].items():
        path = prepared.folder / f"{name}.npy"
        with read_errors(path):
            seen[name] = [facts["sha256"], path.stat().st_mtime_ns]
        if checked.get(name) == seen[name]:
            continue
        if facts["bytes"] > LARGE:
            print(f"checking {path} once on this machine ({facts['bytes'] / 1e9:.1f} GB)")
        if sha256(path) != facts["sha256"]:
            raise UserError(
                f"{path} has changed since it was prepared: its content is not that of the "
                f"fingerprint {prepared.fingerprint}; {remedy(prepared.manifest)}"
            )
    if seen != checked:
        with contextlib.suppress(OSError):  # without this memory the files are hashed every time
            write_json(memory, seen)


def _memory(prepared: Prepared) -> Path:
    """Name the file that remembers what was checked on this machine: beside the arrays or, where
    nobody may write there, in the folder for temporary files."""
    place = json.dumps([str(prepared.folder.resolve()), platform.node()])
    name = f".checked-{hashlib.sha256(place.encode()).hexdigest()[:8]}.json"
    writable = os.access(prepared.folder, os.W_OK)
    return (prepared.folder if writable else Path(tempfile.gettempdir())) / name


def _check_file(wanted: dict[str, Any], if_missing: str) -> Check:
    path = Path(wanted["path"])
    if not path.exists():
        return Check(if_missing, f"{path}: not there any more")
    size = path.stat().st_size
    if size != wanted["bytes"]:
        return Check("differs", f"{path}: {wanted['bytes']:,} bytes expected, {size:,} found")
    if (digest := sha256(path)) != wanted["sha256"]:
        return Check("differs", f"{path}: sha256 {wanted['sha256']} expected, {digest} found")
    return Check("ok", f"{path.name}  {size:,} bytes, sha256 {digest[:16]}")


def _recount(prepared: Prepared) -> Iterator[Check]:
    """Count labels, lengths, ids and duplicates again in the arrays."""
    counted = statistics({s: prepared.split(s) for s in SPLITS})
    for split in SPLITS:
        for key, value in counted["splits"][split].items():
            yield _compare(f"{split}: {key}", prepared.facts["splits"][split][key], value)
    yield _compare("duplicates", prepared.facts["duplicates"], counted["duplicates"])


def _compare(what: str, wanted: Any, counted: Any) -> Check:
    if wanted != counted:
        return Check("differs", f"{what}: {_brief(wanted)} expected, {_brief(counted)} found")
    return Check("ok", f"{what}: {_brief(counted)}")


def _expected(prepared: Prepared) -> Iterator[Check]:
    """Compare with the fingerprint and statistics committed for these options, if there are any."""
    facts = {"fingerprint": prepared.fingerprint, **prepared.facts}
    what = f"statistics committed for {facts['task']} from source={facts['source']}"
    applying = expected(facts)
    if not applying:
        yield Check("unknown", f"{what}: none for these options")
    for committed in applying:
        wrong = list(_differences(committed, facts))
        if not wrong:
            yield Check("ok", f"{what}: {', '.join(committed)}")
        for where, wanted, actual in wrong:
            yield _compare(f"{what}: {where}", wanted, actual)


def _differences(wanted: Any, actual: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Find where `actual` is not what `wanted` says; of a dict only the keys of `wanted` count."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        for key, value in wanted.items():
            yield from _differences(value, actual.get(key), f"{where} {key}".strip())
    elif wanted != actual:
        yield where, wanted, actual


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_brief(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(map(_brief, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
