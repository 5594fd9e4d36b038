"""Checks of prepared data: against their manifest, by counting again, against the committed
statistics; and of a task, by preparing it twice."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.data import registry
from lra.data.arrays import IN_WORDS, MANIFEST, SPLITS, Prepared, Split, read_manifest
from lra.data.prepare import load_prepared, prepare
from lra.data.statistics import statistics
from lra.data.store import sha256
from lra.data.task import Task, TaskOptions

EXPECTED = Path(__file__).parent / "expected"
FAR = 3  # a mean beyond it, a spread beyond it or its inverse: not what a network gives at first


class Check(NamedTuple):
    status: str  # ok | differs | unknown | warning
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
        prepared = load_prepared(folder)
        counted = statistics({s: prepared.split(s) for s in SPLITS})
        yield _compare("labels, lengths, ids and duplicates, counted again", counted, facts)
        yield from _committed(prepared)
    yield from (_check_file(wanted, "unknown") for wanted in manifest["made"]["inputs"])


def check_task(options: TaskOptions, max_length: int) -> Iterator[Check]:
    """Check what any task must satisfy. It is prepared twice below a temporary folder, so a large
    one needs options that make it small."""
    task = registry.of(options)
    length = max_length or task.max_length
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        made, again = (
            prepare(options, max_length=length, data_dir=folder, workers=workers)
            for workers, folder in ((1, first), (2, second))
        )
        same = "ok" if made.fingerprint == again.fingerprint else "differs"
        yield Check(same, "prepared twice, by one worker and by two: the same data")
        yield from verify(made.folder)
        for name in SPLITS:
            yield _check_labels(name, made.facts["splits"][name])
            yield _check_texts(task, made.split(name))
        yield from _check_scale(task, made.facts["splits"]["train"])


def expected(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the committed parts of what the manifest of data with these facts must say."""
    file = EXPECTED / f"{facts['task']}.{facts['source']}.json"
    entries = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    return [entry["expect"] for entry in entries if not list(_differences(entry["when"], facts))]


def _check_file(wanted: dict[str, Any], if_missing: str) -> Check:
    path = Path(wanted["path"])
    if not path.exists():
        return Check(if_missing, f"{path}: not there any more")
    if (size := path.stat().st_size) != wanted["bytes"]:
        return Check("differs", f"{path}: {wanted['bytes']:,} bytes expected, {size:,} found")
    if (digest := sha256(path)) != wanted["sha256"]:
        return Check("differs", f"{path}: sha256 {wanted['sha256']} expected, {digest} found")
    return Check("ok", f"{path.name}  {size:,} bytes, sha256 {digest[:16]}")


def _committed(prepared: Prepared) -> Iterator[Check]:
    """Compare with the fingerprint and statistics committed for these options, if there are any."""
    facts = {"fingerprint": prepared.fingerprint, **prepared.facts}
    what = f"statistics committed for {facts['task']} from source={facts['source']}"
    applying = expected(facts)
    if not applying:
        yield Check("unknown", f"{what}: none for these options")
    for committed in applying:
        yield _compare(f"{what}, {', '.join(committed)}", committed, facts)


def _compare(what: str, wanted: dict[str, Any], actual: dict[str, Any]) -> Check:
    wrong = [
        f"{where} is {json.dumps(other)}, not {json.dumps(one)}"
        for where, one, other in _differences(wanted, actual)
    ]
    return Check("differs" if wrong else "ok", "; ".join([what, *wrong]))


def _differences(wanted: Any, actual: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Find where `actual` is not what `wanted` says; of a dict only the keys of `wanted` count."""
    if isinstance(wanted, dict) and isinstance(actual, dict):
        for key, value in wanted.items():
            yield from _differences(value, actual.get(key), f"{where} {key}".strip())
    elif wanted != actual:
        yield where, wanted, actual


def _check_labels(name: str, facts: dict[str, Any]) -> Check:
    """Check that there is something to be learned: the labels of a split are not all the same."""
    shown = IN_WORDS[name]
    if targets := facts.get("targets"):
        varied = all(a < b for a, b in zip(targets["least"], targets["largest"], strict=True))
        return Check("ok" if varied else "differs", f"{shown}: the targets are not all the same")
    if with_label := facts.get("with_label"):
        varied = any(0 < count < facts["examples"] for count in with_label)
        return Check("ok" if varied else "differs", f"{shown}: some examples have other labels")
    varied = max(facts["labels"]) < sum(facts["labels"])
    return Check("ok" if varied else "differs", f"{shown}: more than one label occurs")


def _check_scale(task: Task, train: dict[str, Any]) -> Iterator[Check]:
    """Warn of numbers that are far from what a network gives at first, which trains slowly."""
    as_given = np.any(task.centre) or np.any(np.array(task.spread) != 1)
    if "targets" not in train or as_given:
        return
    mean, spread = (np.array(train["targets"][key]) for key in ("mean", "spread"))
    if (np.abs(mean) > FAR).any() or (spread > FAR).any() or (spread < 1 / FAR).any():
        means, spreads = (", ".join(f"{x:.3g}" for x in values) for values in (mean, spread))
        yield Check(
            "warning",
            f"the targets have mean {means} and spread {spreads}: set centre and spread of the "
            "task",
        )


def _check_texts(task: Task, split: Split) -> Check:
    """Check that the text of an example is read as its ids again, where the task reads texts."""
    shown = IN_WORDS[split.name]
    reads_texts = task.grid is None and not task.channels
    for i in range(0, len(split), 1 + len(split) // 200) if reads_texts else ():
        one = np.array([i])
        rows = split.ids(one).reshape(-1, split.width)
        for ids, n in zip(rows, split.lengths(one).ravel(), strict=True):
            text = task.decode(ids[:n])
            with contextlib.suppress(UserError):  # it reads no texts, or not this one
                if "\\x" not in text and not np.array_equal(task.tokenize(text), ids[:n]):
                    return Check("differs", f"{shown}: the text of example {i} has other ids")
    return Check("ok", f"{shown}: texts are read as the ids they show")
