"""Files of the answers of runs to every test example (lra/metrics/answers.py).

A file has those of one run or many: `answers.npz` in a run's folder, `<sweep>.npz` beside the
records in `<sweep>.jsonl`. Runs on the same test examples share their labels. Under the digest <d>
of the labels there are `<d>.labels` (n,), `<d>.runs` (runs,) and `<d>.answers` (runs, n); labels
and answers may be rows of several numbers. Of classes there are also `<d>.log_p` (runs, n) and
`<d>.log_p_label` of all wrong answers, one run after the other. Labels and answers are exact. A
log-probability is one byte, round(SCALE * log(1 - log p)), in which a step is 10 % of 1 - log p; on
test sets of fewer than SMALL labels it is -log p itself.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.disk import write_atomically
from lra.base.errors import UserError, readable
from lra.base.packed import unpack
from lra.metrics.answers import Answers

LARGEST = 2**28  # bytes of unpacked answers: a small file can pack any number
JOINED = "log_p_label"  # one run after the other; of all else a row per run


def write_answers(
    path: Path, answers: Mapping[str, Answers], before: Mapping[str, Answers] | None = None
) -> None:
    """Write the answers of runs by their names, and those of `before` too, which may be of the same
    runs. The same answers always give the same bytes."""
    groups = defaultdict[str, list[tuple[str, Answers]]](list)
    for run, of_run in [*answers.items(), *(before or {}).items()]:
        groups[of_run.digests()["labels"]].append((run, of_run))
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for group, runs in sorted(groups.items()):
            for name, values in _arrays(*map(list, zip(*runs, strict=True))):
                part = zipfile.ZipInfo(f"{group}.{name}.npy")  # its date is always 1980
                part.compress_type = zipfile.ZIP_LZMA
                with archive.open(part, "w") as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
    write_atomically(path, content.getvalue())


def _arrays(runs: list[str], several: list[Answers]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the arrays of runs with the same labels, by name."""
    parts = [dict(answers.arrays()) for answers in several]
    yield "labels", parts[0].pop("labels")  # which all of them share
    yield "runs", np.array(runs)
    for name in parts[0]:
        join = np.concatenate if name == JOINED else np.stack
        yield name, join([part[name] for part in parts])


def read_answers(path: Path, run: str, digests: Mapping[str, Any]) -> Answers:
    """Read the answers of one run; UserError if they are not those of its record."""
    with readable(path, "export the runs again, or train this one again"):
        for answers in _read(path, *version_of(path.stat())).get(run, ()):
            if answers.digests().items() <= digests.items():
                return answers
        raise UserError("these are not the answers of the record beside it")


def version_of(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


@lru_cache(maxsize=16)
def _read(path: Path, *version: int) -> dict[str, list[Answers]]:
    """Read the answers of every run in this version of the file; of one that was being replaced,
    when the process died, both."""
    by_run = defaultdict[str, list[Answers]](list)
    arrays = {
        name.removesuffix(".npy"): np.lib.format.read_array(io.BytesIO(part), allow_pickle=False)
        for name, part in unpack(path, LARGEST).items()
    }
    for group in {name.partition(".")[0] for name in arrays}:
        prefix = f"{group}."
        found = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
        for run, of_run in _of_group(**found):
            by_run[run].append(of_run)
    return dict(by_run)


def _of_group(
    labels: np.ndarray,
    runs: np.ndarray,
    answers: np.ndarray,
    log_p: np.ndarray | None = None,
    log_p_label: np.ndarray | None = None,
) -> Iterator[tuple[str, Answers]]:
    """Take the answers of every run of a group apart, and refuse what no run can have given."""
    names = [str(run) for run in runs]
    if {answers.dtype.kind, labels.dtype.kind} - {*"biuf"}:
        raise UserError("its answers or labels are no numbers")
    if answers.shape != (len(names), *labels.shape):
        raise UserError("it does not have one answer per label")
    if log_p is None or log_p_label is None:
        if answers.dtype.kind != "f" or not np.isfinite(answers).all():
            raise UserError("it holds what is no finite number")
        yield from ((run, Answers(a, labels)) for run, a in zip(names, answers, strict=True))
        return
    if {answers.dtype.kind, labels.dtype.kind} - {*"iu"} or min(answers.min(), labels.min()) < 0:
        raise UserError("its answers or labels are no classes")
    if {log_p.dtype.kind, log_p_label.dtype.kind} - {*"uf"}:
        raise UserError("it holds what is no log-probability of an answer")
    wrong = answers != labels
    if answers.shape != log_p.shape or len(log_p_label) != wrong.sum():
        raise UserError("it does not have one log-probability per answer")
    steps = 0 if log_p.dtype == np.float16 else 2  # by which both may have been rounded
    less_likely = log_p_label + float(steps) >= log_p[wrong]
    if not (log_p >= 0).all() or not less_likely.all():  # NaN is neither
        raise UserError("it holds what is no log-probability of an answer")
    of_labels = np.split(log_p_label, wrong.sum(1).cumsum()[:-1])
    parts = zip(names, answers, log_p, of_labels, strict=True)
    yield from ((run, Answers(a, labels, p, p_label)) for run, a, p, p_label in parts)
