"""Preparing: identity, all or nothing, one process at a time, waiting."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import lra.data
from lra.data import prepare as preparing
from lra.data.arrays import Prepared
from lra.data.prepare import find_prepared, load_prepared, prepare
from lra.data.store import lock

from . import kit

Call = Callable[..., tuple[int, str, str]]


SMALL = ("n_train=300", "n_val=20", "n_test=20", "min_length=20", "max_length=200")


def test_the_fingerprint_knows_the_data_and_not_the_circumstances(tmp_path: Path) -> None:
    def made(where: str, *settings: str, n: int = 199) -> Prepared:
        options = lra.data.configure("listops", [*SMALL, *settings])
        return prepare(options, max_length=n, data_dir=tmp_path / where)

    first = made("a")
    assert made("b").fingerprint == first.fingerprint
    assert made("b").folder.name == first.folder.name
    changed = [
        made("a", "seed=1"),
        made("a", "n_val=21"),
        made("a", "brackets=drop"),
        made("a", n=99),
    ]
    assert len({p.fingerprint for p in [first, *changed]}) == 5
    assert len({p.folder for p in [first, *changed]}) == 5


def test_a_failure_half_way_leaves_nothing(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    monkeypatch.setattr(preparing, "statistics", lambda splits: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(options, max_length=59, data_dir=tmp_path / "new")
    assert kit.leftovers(tmp_path / "new") == []
    assert find_prepared(options, max_length=59, data_dir=tmp_path / "new") is None
    with pytest.raises(ZeroDivisionError):  # and what was there stays
        prepare(options, max_length=59, data_dir=tmp_path / "data", force=True)
    assert load_prepared(tiny.folder).fingerprint == tiny.fingerprint
    assert kit.leftovers(tmp_path / "data") == []


def test_the_second_waits_for_the_first(tmp_path: Path) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    folder = tmp_path / "listops" / preparing.identity(lra.data.get("listops"), options, 2000)
    said = io.StringIO()  # `capsys.readouterr` would lose what is printed while it reads
    with ThreadPoolExecutor() as pool, contextlib.redirect_stdout(said):
        with lock(folder, "never"):
            second = pool.submit(prepare, options, max_length=2000, data_dir=tmp_path)
            deadline = time.monotonic() + 60
            while "\n" not in said.getvalue() and time.monotonic() < deadline:
                time.sleep(0.01)
            waiting = said.getvalue()
            assert waiting == f"another process is preparing listops in {folder}; waiting for it\n"
            assert not folder.exists()
        assert second.result(timeout=60).folder == folder
