"""Pairs of papers: rows as the official reader takes them, each text stored once, memory that does
not grow with the rows."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lra.data
from lra.data import retrieval
from lra.data.arrays import Prepared
from lra.data.prepare import prepare

from . import kit

Call = Callable[..., tuple[int, str, str]]
GOOD = b"1.0\tA\tB\tfirst text\tsecond text\n0.0\tA\tC\tfirst text\tthird\n"


def official(folder: Path, train: bytes = GOOD) -> Path:
    """Three files, two of them good."""
    return kit.unpack(
        folder, [(name, train if s == "train" else GOOD) for s, name in retrieval.FILES.items()]
    )


def prepared(path: Path, data_dir: Path, length: int = 4000) -> Prepared:
    options = lra.data.configure("retrieval", [f"path={path}"])
    return prepare(options, max_length=length, data_dir=data_dir)


# ---------------------------------------------------------------------- rows


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (b"1.0\t1\t2\ta b\tc d\n", (b"a b", b"c d", 1)),
        (b"0\t1\t2\ta\tb\n", (b"a", b"b", 0)),
        (b"1\t1\t2\ta\tb\r\n", (b"a", b"b", 1)),
        (b"1e0\t\t\ta\tb", (b"a", b"b", 1)),  # the ids are not used
        (b'0.0\t1\t2\t"a" said\t"b\n', (b'"a" said', b'"b', 0)),  # quotes are bytes
        (b"1.0\t1\t2\tcaf\xe9 \xff\t\xe2\x98\xba\n", (b"caf\xe9 \xff", b"\xe2\x98\xba", 1)),
        (b"1.0\t1\t2\t a \t\x0b\n", (b" a ", b"\x0b", 1)),  # nothing is stripped
        (b"1.0\t1\t2\ta\rb\tc,d\n", (b"a\rb", b"c,d", 1)),
    ],
)
def test_a_row(row: bytes, expected: tuple[bytes, bytes, int], tmp_path: Path) -> None:
    made = prepared(official(tmp_path / "tsv", GOOD + row), tmp_path / "data")
    assert kit.texts(made, "train")[-1] == expected


def test_which_file_is_which_split(tmp_path: Path) -> None:
    folder = official(tmp_path / "tsv")
    (folder / "new_aan_pairs.eval.tsv").write_bytes(b"1.0\ta\tb\tdev one\tdev two\n")
    (folder / "new_aan_pairs.test.tsv").write_bytes(b"0.0\ta\tb\ttest one\ttest two\n")
    made = prepared(folder, tmp_path / "data")
    assert kit.texts(made, "train") == [
        (b"first text", b"second text", 1),
        (b"first text", b"third", 0),
    ]
    assert kit.texts(made, "val") == [(b"dev one", b"dev two", 1)]
    assert kit.texts(made, "test") == [(b"test one", b"test two", 0)]


def test_the_first_10_000_bytes_count_whatever_the_length(tmp_path: Path) -> None:
    texts = [bytes([97 + i]) * n for i, n in enumerate((3999, 4000, 4001, 9999, 10_000, 10_001))]
    content = b"".join(b"1.0\ta\tb\t%s\tx\n" % text for text in texts)
    folder = official(tmp_path / "tsv", content)
    made = prepared(folder, tmp_path / "a", 4000)
    assert [len(one) for one, _, _ in kit.texts(made, "train")] == [3999] + [4000] * 5
    assert made.facts["splits"]["train"]["truncated"] == 4
    made = prepared(folder, tmp_path / "b", 20_000)
    assert made.facts["width"] == 10_000
    assert [len(one) for one, _, _ in kit.texts(made, "train")] == [3999, 4000, 4001, 9999] + [
        10_000
    ] * 2
    assert made.facts["splits"]["train"]["truncated"] == 1


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD + b"1.0\t1\t2\ta\n", "line 3: 5 fields expected, 4 found"),
        (GOOD + b"1.0\t1\t2\ta\tb\tc\n" + GOOD, "line 3: 5 fields expected, 6 found"),
        (GOOD + b"\n" + GOOD, "line 3: 5 fields expected, 1 found"),
        (GOOD + b"1.0\t1\t2\ta\t\n", "line 3: a text is empty"),
        (b"label\tid1\tid2\ttext1\ttext2\n" + GOOD, "line 1: the label must be 0 or 1, found b'l"),
        (GOOD + b"2.0\t1\t2\ta\tb\n", "line 3: the label must be 0 or 1, found b'2.0'"),
        (GOOD + b"nan\t1\t2\ta\tb\n", "line 3: the label must be 0 or 1, found b'nan'"),
        (b"", "is empty"),
    ],
)
def test_rows_that_are_wrong(
    content: bytes, complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    file = official(tmp_path / "tsv", content) / retrieval.FILES["train"]
    code, _, err = lra_data("prepare", "retrieval", f"path={tmp_path / 'tsv'}")
    assert code == 2
    assert err.startswith(f"error: {file}")
    assert complaint in err
    assert list((tmp_path / "data").rglob("*.npy")) == []


# ---------------------------------------------------------------------- places


def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    """Ten times the rows over the same papers: what is kept is a number for each pair."""
    rng = np.random.default_rng(0)
    papers = [rng.integers(97, 123, 8000, np.uint8).tobytes() for _ in range(50)]

    def peak(count: int) -> int:
        pairs = rng.integers(0, len(papers), (count, 2))
        content = b"".join(b"1\ta\tb\t%s\t%s\n" % (papers[a], papers[b]) for a, b in pairs)
        folder = official(tmp_path / f"tsv-{count}", content)
        tracemalloc.start()
        prepared(folder, tmp_path / f"data-{count}", 1000)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(200), peak(2000)  # 3 and 32 MB of text
    assert many - few < 2**21
