"""The answers of a sweep's runs in one file, `<sweep>.npz` beside the records in `<sweep>.jsonl`.

Runs on the same test examples share their labels. Under the digest <d> of the labels there are
`<d>.labels` (n,), `<d>.runs` (runs,), `<d>.answers` and `<d>.log_p` (runs, n), and
`<d>.log_p_label` of all wrong answers, one run after the other. Labels and answers are exact. A
log-probability is one byte, round(SCALE * log(1 - log p)), in which a step is 10 % of 1 - log p; on
test sets of fewer than SMALL labels it is -log p itself.
"""

from __future__ import annotations

import io
import zipfile
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import UserError, readable
from lra.base.disk import write_atomically
from lra.runs.answers import Answers, hash_arrays, read_arrays

SMALL = 1000  # labels; of fewer, log-probabilities are exact: a step would move their mean
SCALE = 10  # finer steps are of no use to the loss (see _encoded); all bytes of answers cost space
VALUES = ("labels", "runs", "answers", "log_p", "log_p_label")


def write_packed(path: Path, answers: Mapping[str, Answers]) -> dict[str, str]:
    """Write the answers of runs by their names; return a digest of what the file has of each. The
    same answers always give the same bytes."""
    groups: dict[str, list[str]] = defaultdict(list)
    for run, of_run in answers.items():
        groups[of_run.labels_digest].append(run)
    rows = {run: _pack(of_run) for run, of_run in answers.items()}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for group, runs in sorted(groups.items()):
            classes, log_p, log_p_label = zip(*(rows[run] for run in runs), strict=True)
            arrays = (answers[runs[0]].labels, np.array(runs), np.stack(classes), np.stack(log_p),
                      np.concatenate(log_p_label))  # fmt: skip
            for name, values in zip(VALUES, arrays, strict=True):
                part = zipfile.ZipInfo(f"{group}.{name}.npy")  # its date is always 1980
                part.compress_type = zipfile.ZIP_LZMA
                with archive.open(part, "w") as file:
                    np.lib.format.write_array(file, values, allow_pickle=False)
    write_atomically(path, content.getvalue())
    return {run: hash_arrays(*row) for run, row in rows.items()}


def read_packed(path: Path, run: str, facts: Mapping[str, Any]) -> Answers:
    """Return the answers of one run; UserError if they are not those of its record."""
    status = path.stat()
    labels, *row = _read(path, status.st_mtime_ns, status.st_size).get(run, [np.empty(0)])
    if not row or hash_arrays(*row) != facts["packed"] or hash_arrays(labels) != facts["labels"]:
        raise UserError(f"{path} is damaged or not of the records beside it")
    answers, log_p, log_p_label = row
    return Answers(answers, labels, -_decoded(log_p), -_decoded(log_p_label))


@lru_cache(maxsize=16)
def _read(path: Path, *version: int) -> dict[str, list[np.ndarray]]:
    """Return labels and values by run, of this version of the file."""
    arrays, by_run = read_arrays(path), dict[str, list[np.ndarray]]()
    with readable(path, "export the runs again"):
        for group in {name.partition(".")[0] for name in arrays}:
            labels, runs, answers, log_p, log_p_label = (arrays[f"{group}.{v}"] for v in VALUES)
            ends = (answers != labels).sum(1).cumsum()
            if answers.shape != log_p.shape or len(log_p_label) != ends[-1]:
                raise UserError("it does not have one log-probability per answer")
            of_runs = zip(runs, answers, log_p, np.split(log_p_label, ends[:-1]), strict=True)
            by_run |= {str(run): [labels, *row] for run, *row in of_runs}
    return by_run


def _pack(answers: Answers) -> list[np.ndarray]:
    assert answers.log_p is not None
    wrong = ~answers.right
    of_label = answers.log_p.astype(np.float64)
    of_label[wrong] = answers.log_p_label
    n = len(answers.labels)
    codes = _encoded(of_label, n)
    log_p = codes.copy()
    log_p[wrong] = _encoded(answers.log_p[wrong], n)
    return [answers.answers, log_p, codes[wrong]]


def _encoded(log_p: np.ndarray, of_all: int) -> np.ndarray:
    """Errors of rounding add up where many values are the same, so some are rounded the other way,
    first those that were the nearest to it, until the mean, the loss of the run, is right. Values
    that were encoded before give the same codes again."""
    if of_all < SMALL:
        return -log_p.astype(np.float16)
    exact = -log_p.astype(np.float64)
    codes = np.rint(SCALE * np.log1p(exact)).clip(0, 255)
    errors = _decoded(codes) - exact
    step = -np.sign(errors.sum())
    order = np.argsort(step * errors, kind="stable")
    other = (codes + step).clip(0, 255)
    change = np.abs(_decoded(other) - _decoded(codes))[order]
    back = order[: np.searchsorted(np.cumsum(change) - change / 2, abs(errors.sum()))]
    codes[back] = other[back]
    return codes.astype(np.uint8)


def _decoded(codes: np.ndarray) -> np.ndarray:
    exact = codes.dtype == np.float16
    return codes if exact else np.expm1(codes.astype(np.float64) / SCALE)
