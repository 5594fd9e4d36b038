"""Files that grow row by row and are read row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from lra.data.arrays import Rows
from lra.data.writer import ArrayFile


def test_the_header_is_written_last_and_fits(tmp_path: Path) -> None:
    file = ArrayFile(tmp_path / "x.npy", (3,), np.dtype(np.uint16))
    for i in range(100_000 // 3):
        file.append(np.array([i % 7, 1]))
    facts = file.close()
    stored = np.load(tmp_path / "x.npy")
    assert stored.shape == (33_333, 3) == tuple(facts["shape"])
    assert stored[:, 0].tolist() == [i % 7 for i in range(33_333)]
    assert (stored[:, 1] == 1).all()
    assert not stored[:, 2].any()


def test_rows_read_only_what_is_asked_for(tmp_path: Path) -> None:
    values = np.arange(60, dtype=np.uint16).reshape(6, 10)
    np.save(tmp_path / "x.npy", values)
    rows = Rows(tmp_path / "x.npy")
    index = np.array([5, 0, 0, 3])
    for columns in (1, 7, 10):
        assert (rows.take(index, columns) == values[index, :columns]).all()
    assert rows.take(np.array([], np.int64), 4).shape == (0, 4)
