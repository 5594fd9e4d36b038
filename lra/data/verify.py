"""Checks of prepared data: against their manifest, by counting again, and against the committed
statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lra import data
from lra.base.config import UserError
from lra.data.arrays import SPLITS, Prepared, read_manifest, statistics
from lra.data.prepare import load
from lra.data.store import sha256

EXPECTED = Path(__file__).parent / "expected"


class Check(NamedTuple):
    status: str  # ok | differs | unknown
    text: str


def verify(folder: Path) -> Iterator[Check]:
    """One line per check. What depends on a damaged file is not checked further."""
    try:
        manifest = read_manifest(folder)
    except UserError as error:
        yield Check("differs", str(error))
        return
    yield Check("ok", f"manifest.json  fingerprint {manifest['fingerprint']}")
    arrays = list(_arrays(folder, manifest["facts"]["arrays"]))
    yield from arrays
    inputs = list(_inputs(manifest["made"]["inputs"]))
    if all(line.status == "ok" for line in arrays):
        prepared, task = load(folder), data.of_facts(manifest["facts"])
        yield from _recount(prepared)
        for split in SPLITS:
            for holds, text in task.audit(prepared.split(split)):
                yield Check("ok" if holds else "differs", text)
        yield from _expected(prepared)
        if all(line.status == "ok" for line in inputs):
            for holds, text in task.reread(prepared):
                yield Check("ok" if holds else "differs", text)
    yield from inputs


def expected(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The committed statistics of data with these facts: parts of what their manifest must say."""
    file = EXPECTED / f"{facts['task']}.{facts['source']}.json"
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [entry["expect"] for entry in entries if not list(_differences(entry["when"], facts))]


def _arrays(folder: Path, arrays: dict[str, Any]) -> Iterator[Check]:
    for name, facts in arrays.items():
        path = folder / f"{name}.npy"
        if path.exists():
            yield _same(path, facts)
        else:
            yield Check("differs", f"{path}: {facts['bytes']:,} bytes expected, no file found")
    known = {"manifest.json", *(f"{name}.npy" for name in arrays)}
    for stranger in sorted({p.name for p in folder.iterdir() if p.name[0] != "."} - known):
        yield Check("unknown", f"{folder / stranger}: not in the manifest")


def _same(path: Path, facts: dict[str, Any]) -> Check:
    size = path.stat().st_size
    if size != facts["bytes"]:
        return Check("differs", f"{path}: {facts['bytes']:,} bytes expected, {size:,} found")
    found = sha256(path)
    if found != facts["sha256"]:
        return Check("differs", f"{path}: sha256 {facts['sha256']} expected, {found} found")
    return Check("ok", f"{path.name}  {size:,} bytes, sha256 {found[:16]}")


def _recount(prepared: Prepared) -> Iterator[Check]:
    """Counts, labels, lengths, ids and duplicates, counted again in the arrays."""
    found = statistics({s: prepared.split(s) for s in SPLITS})
    for split in SPLITS:
        for key, value in found["splits"][split].items():
            yield _compare(f"{split}: {key}", prepared.facts["splits"][split][key], value)
        lowest, highest = found["splits"][split]["ids"]
        if not 0 <= lowest <= highest < prepared.layout.vocab:
            yield Check("differs", f"{split}: ids {lowest} to {highest} of {prepared.layout.vocab}")
    yield _compare("duplicates", prepared.facts["duplicates"], found["duplicates"])


def _compare(what: str, expected: Any, found: Any) -> Check:
    if expected != found:
        return Check("differs", f"{what}: {_brief(expected)} expected, {_brief(found)} found")
    return Check("ok", f"{what}: {_brief(found)}")


def _expected(prepared: Prepared) -> Iterator[Check]:
    """Compare with the fingerprint and statistics committed for these options, if there are any."""
    facts = {"fingerprint": prepared.fingerprint, **prepared.facts}
    what = f"statistics committed for {facts['task']} from source={facts['source']}"
    applying = expected(facts)
    if not applying:
        yield Check("unknown", f"{what}: none for these options")
    for known in applying:
        wrong = list(_differences(known, facts))
        if not wrong:
            yield Check("ok", f"{what}: {', '.join(known)}")
        for where, wanted, found in wrong:
            difference = f"{where}: {_brief(wanted)} expected, {_brief(found)} found"
            yield Check("differs", f"{what}: {difference}")


def _differences(expected: Any, found: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Where `found` is not what `expected` says; of a dict only the keys that `expected` has are
    looked at."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key, value in expected.items():
            yield from _differences(value, found.get(key), f"{where} {key}".strip())
    elif expected != found:
        yield where, expected, found


def _inputs(inputs: list[dict[str, Any]]) -> Iterator[Check]:
    """The files that the arrays were made from, if they still exist."""
    for facts in inputs:
        path = Path(facts["path"])
        if path.exists():
            yield _same(path, facts)
        else:
            yield Check("unknown", f"{path}: not there any more")


def _brief(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_brief(part)}" for key, part in value.items())
    if isinstance(value, list):
        return " ".join(map(_brief, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
