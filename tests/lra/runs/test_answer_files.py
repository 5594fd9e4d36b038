"""Files of answers that no run has written are refused by name, and unpacked no further than they
claim."""

from __future__ import annotations

import io
import lzma
import os
import resource
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra.base.errors import UserError
from lra.base.packed import unpack
from lra.metrics.target import Classes
from lra.runs.answers import read_answers, write_answers

N = 600  # questions
LARGE = 256 * 999_983  # bytes that unpack from a few hundred
RIGHT = Classes(10).store(torch.eye(10)[torch.arange(N) % 10], torch.arange(N) % 10)
GROUP = RIGHT.digests()["labels"]


def parts_of(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def changed(path: Path, method: int = zipfile.ZIP_LZMA, **arrays: Any) -> None:
    """Write some arrays of the file anew."""
    parts = parts_of(path)
    for name, values in arrays.items():
        content = io.BytesIO()
        np.lib.format.write_array(content, np.asarray(values), allow_pickle=False)
        parts[f"{GROUP}.{name}.npy"] = content.getvalue()
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in parts.items():
            archive.writestr(name, content)


def answers(dtype: Any) -> np.ndarray:
    return np.asarray(RIGHT.answers)[None].astype(dtype)


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def claims_less(path: Path, method: int) -> None:
    """Write a part that says it is 100 bytes, and is LARGE ones."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive, archive.open("a.npy", "w") as part:
        for _ in range(256):
            part.write(bytes(LARGE // 256))
    sizes = LARGE.to_bytes(4, "little")
    assert content.getvalue().count(sizes) == 2
    path.write_bytes(content.getvalue().replace(sizes, (100).to_bytes(4, "little")))


ATTACKS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "bzip2": (lambda p: changed(p, zipfile.ZIP_BZIP2), "by neither deflate nor LZMA"),
    "a bomb of bzip2": (lambda p: claims_less(p, zipfile.ZIP_BZIP2), "by neither deflate"),
    "a bomb of LZMA": (lambda p: claims_less(p, zipfile.ZIP_LZMA), "another checksum"),
    "a bomb of deflate": (lambda p: claims_less(p, zipfile.ZIP_DEFLATED), "another checksum"),
    "a pipe": (piped, "is not a file"),
    "an endless file": (endless, "is not a file"),
    "floats": (lambda p: changed(p, answers=answers(float)), "no classes"),
    "complex": (lambda p: changed(p, answers=answers(complex)), "no numbers"),
    "texts": (lambda p: changed(p, answers=answers("U3")), "no numbers"),
    "dates": (lambda p: changed(p, answers=answers("datetime64[s]")), "no numbers"),
    "records": (lambda p: changed(p, answers=answers([("a", int)])), "no numbers"),
    "negative": (lambda p: changed(p, answers=-1 - answers(int)), "no classes"),
    "labels as floats": (lambda p: changed(p, labels=RIGHT.labels.astype(float)), "no classes"),
    "log-probabilities": (lambda p: changed(p, log_p=answers(bool)), "no log-probability"),
    "another shape": (lambda p: changed(p, answers=answers(int)[:, 1:]), "one answer per label"),
    "no runs": (lambda p: changed(p, runs=[]), "one answer per label"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_no_run_has_written_is_refused(tmp_path: Path, name: str):
    path, (attack, why) = tmp_path / "answers.npz", ATTACKS[name]
    write_answers(path, {"run": RIGHT})
    attack(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=why) as error:
        read_answers(path, "run", RIGHT.digests())
    assert str(path) in str(error.value)
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert grown < LARGE / 4  # a dictionary of LZMA, and no more


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_parts_are_what_zipfile_reads(tmp_path: Path, method: int):
    path = tmp_path / "answers.npz"
    write_answers(path, {"run": RIGHT})
    changed(path, method)
    assert unpack(path, 2**20) == parts_of(path)
    with pytest.raises(ValueError, match="more bytes than any test set"):
        unpack(path, 100)


def test_a_dictionary_takes_no_more_memory_than_the_answers(tmp_path: Path):
    path = tmp_path / "answers.npz"
    write_answers(path, {"run": RIGHT})
    content = path.read_bytes()
    usual = lzma.LZMACompressor(lzma.FORMAT_ALONE).compress(b"")[1:5]  # of the same preset
    assert usual in content
    path.write_bytes(content.replace(usual, b"\xff\xff\xff\x7f"))
    with pytest.raises(UserError, match="in a way that no run writes"):
        read_answers(path, "run", RIGHT.digests())
