"""Arrays are checked when a run begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import lra.data
from lra.base.config import UserError
from lra.data import intact
from lra.data.options import read
from lra.data.prepare import find_or_prepare


@pytest.fixture
def prepared(tmp_path: Path):
    options = read(lra.data.get("listops"), ["source=tiny"])
    return find_or_prepare(options, max_length=512, data_dir=tmp_path)


def test_untouched_arrays_are_hashed_once(prepared, monkeypatch: pytest.MonkeyPatch):
    hashed = []
    whole = intact.sha256
    monkeypatch.setattr(intact, "sha256", lambda path: hashed.append(path.name) or whole(path))
    intact.check(prepared)
    assert sorted(hashed) == sorted(f"{name}.npy" for name in prepared.facts["arrays"])
    intact.check(prepared)
    assert len(hashed) == len(prepared.facts["arrays"])
    path = prepared.folder / "test.labels.npy"
    os.utime(path, ns=(0, 0))
    intact.check(prepared)
    assert hashed[len(prepared.facts["arrays"]) :] == ["test.labels.npy"]


@pytest.mark.parametrize("known", [False, True])
def test_a_flipped_byte_stops_the_run_with_the_files_name(prepared, known: bool):
    if known:
        intact.check(prepared)
    path = prepared.folder / "train.ids.npy"
    times, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(UserError, match=r"train\.ids\.npy has changed .* prepare it again with"):
        intact.check(prepared)


def test_where_nothing_can_be_written_it_is_hashed_each_time(
    prepared, monkeypatch: pytest.MonkeyPatch
):
    def closed(*_):
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(intact, "write_json", closed)
    intact.check(prepared)
    intact.check(prepared)
