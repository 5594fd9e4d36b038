"""The task: official files with their traps, the quirk, the way from arrays to files and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lra.data
from lra.data.arrays import SPLITS, Prepared
from lra.data.prepare import prepare

from .. import kit

ROWS = [("( ( ( [MAX 1 ) 2 ) ] )", 2), ("7", 7), ("( ( ( [SM 9 ) 4 ) ] )", 3)]
IDS = [[11, 2, 3, 15], [8], [14, 10, 5, 15]]

Call = Callable[..., tuple[int, str, str]]


def source(*rows: str, header: str = "Source\tTarget", end: str = "\r\n") -> bytes:
    return "".join(line + end for line in (header, *rows)).encode()


def official(folder: Path, train: bytes, prefix: str = "basic") -> Path:
    """Three files, two of them good."""
    folder.mkdir(parents=True, exist_ok=True)
    good = source(*(f"{text}\t{value}" for text, value in ROWS))
    for split in SPLITS:
        (folder / f"{prefix}_{split}.tsv").write_bytes(train if split == "train" else good)
    return folder


def rows(prepared: Prepared, split: str) -> list[tuple[list[int], int]]:
    part = prepared.split(split)
    every = np.arange(len(part))
    lengths = part.lengths(every)
    ids = [row[:n].tolist() for row, n in zip(part.ids(every), lengths, strict=True)]
    return list(zip(ids, part.labels.tolist(), strict=True))


# ---------------------------------------------------------------------- files as they come


@pytest.mark.parametrize(
    "content",
    [
        source(*(f"{text}\t{value}" for text, value in ROWS)),
        source(*(f"{text}\t{value}" for text, value in ROWS), end="\n"),
        source(*(f"{text}\t{value}" for text, value in ROWS)).removesuffix(b"\r\n"),
        b"\xef\xbb\xbf" + source(*(f"{text}\t{value}" for text, value in ROWS)),
        source(*(f'"{text}"\t"{value}"' for text, value in ROWS), header='"Source"\t"Target"'),
        source(*(f"{value}\t{text}" for text, value in ROWS), header="Target\tSource"),
        source(*(f"x\t{t}\ty\t{v}" for t, v in ROWS), header="Id\tSource\tNote\tTarget"),
        source(*(f"{t.replace('( ', '').replace(' )', '')}\t{v}" for t, v in ROWS)),
    ],
    ids="crlf lf cut bom quoted swapped more-columns plain".split(),  # noqa: SIM905
)
def test_files_that_say_the_same(content: bytes, tmp_path: Path) -> None:
    folder = official(tmp_path / "tsv", content)
    options = lra.data.configure("listops", ["source=release", f"path={folder}"])
    prepared = prepare(options, max_length=2000, data_dir=tmp_path / "data")
    assert rows(prepared, "train") == list(zip(IDS, [2, 7, 3], strict=True))
    assert rows(prepared, "train") == rows(prepared, "test")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (source("1\t1", header="Source\tLabel"), "line 2: columns Source and Target"),
        (source("1\t1", header="Target"), "line 2: columns Source and Target"),
        (source("7\t7", "1\t1", header="7\t7"), "line 2: columns Source and Target"),
        (b"", "has no rows below its header"),
        (source(), "has no rows below its header"),
        (source("7\t7", "\t3"), "line 3: not an expression, it is empty"),
        (source("7\t7", "7"), "line 3: columns Source and Target, and one field for each"),
        (source("7\t7\t7"), "line 2: columns Source and Target, and one field for each"),
        (source("7\t10"), "line 2: Target must be a digit, found '10'"),
        (source("7\t"), "line 2: Target must be a digit, found ''"),
        (source("7\t²"), "line 2: Target must be a digit, found '²'"),
        (source("7\t7", "( ( ( [FIRST 1 ) 2 ) ] )\t1"), "line 3: unknown symbol '[FIRST'"),
        (source("[MAX 1 2 X\t1"), "line 2: unknown symbol 'X'"),
        (source("( ( [MAX 1 ) 2 )\t2"), "line 2: not an expression, 1 brackets are never closed"),
        (source("[MAX 1 ] 2\t2"), "line 2: not an expression, it goes on after its last bracket"),
        (source("7\t7").replace(b"7\t", b"\xff\t"), "not text"),
    ],
)
def test_files_that_are_wrong(
    content: bytes, complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    folder = official(tmp_path / "tsv", content)
    code, out, err = lra_data("prepare", "listops", "source=release", f"path={folder}")
    assert code == 2
    assert err.startswith(f"error: {folder / 'basic_train.tsv'}")
    assert complaint in err
    assert out == ""
    assert [p.suffix for p in (tmp_path / "data").rglob("*") if p.is_file()] == [".lock"]


def test_over_long_expressions_are_cut_and_counted(tmp_path: Path, lra_data: Call) -> None:
    long = f"[MAX {' '.join(['4'] * 30)} ]"
    folder = official(tmp_path / "tsv", source(f"{long}\t4", "[MAX 5 5 ]\t5", f"{long}\t4"))
    words = ("listops", "source=release", f"path={folder}")
    _, out, _ = lra_data("prepare", *words, "--max-length", "10")
    assert "3 examples, lengths 4 to 10, median 10" in out
    assert "2 cut to 10" in out
    options = lra.data.configure("listops", words[1:])
    cut = prepare(options, max_length=10, data_dir=tmp_path / "data")
    assert rows(cut, "train") == [([11] + [5] * 9, 4), ([11, 6, 6, 15], 5), ([11] + [5] * 9, 4)]
    assert cut.summary()["truncated"] == {"train": 2, "val": 0, "test": 0}


# ---------------------------------------------------------------------- where the files lie


LAYOUTS = (".", "listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")


@pytest.mark.parametrize("archived", [True, False])
def test_of_two_copies_in_the_release_the_inner_is_read(
    archived: bool, tmp_path: Path, lra_data: Call
) -> None:
    outer, inner = LAYOUTS[2:]
    for place, digit in ((outer, "7"), (inner, "8")):
        official(tmp_path / "folder" / place, source(f"{digit}\t{digit}"))
    path = tmp_path / "folder"
    if archived:
        members = [
            (file.relative_to(path).as_posix(), file.read_bytes()) for file in path.rglob("*.tsv")
        ]
        path = kit.tar(tmp_path / "lra_release.gz", members)
    words = ("listops", "source=release", f"path={path}")
    code, out, _ = lra_data("prepare", *words)
    assert code == 0
    message = f"{inner} is read, {outer} is not: the release holds two copies"
    assert (message in out) == archived
    options = lra.data.configure("listops", words[1:])
    prepared = prepare(options, max_length=2000, data_dir=tmp_path / "data")
    assert rows(prepared, "train") == [([9], 8)]
    files = {Path(item["path"]) for item in prepared.manifest["made"]["inputs"]}
    unpacked = {file for file in files if file.suffix == ".tsv"}
    assert len(unpacked) == 3
    assert all(inner in file.as_posix() for file in unpacked)
    assert (path in files) == archived
    # what was unpacked is watched over too
    (train,) = (file for file in unpacked if "train" in file.name)
    train.write_bytes(source("7\t7"))
    assert f"{train}: sha256" in lra_data("verify", *words)[1]


def test_other_files_do_not_pass_for_those_prepared(tmp_path: Path, lra_data: Call) -> None:
    words = ("prepare", "listops", "source=release")
    first = official(tmp_path / "first", source("7\t7"))
    second = official(tmp_path / "second", source("8\t8"))
    assert lra_data(*words, f"path={first}")[0] == 0
    assert "was prepared already" in lra_data(*words, f"path={first}")[1]
    assert "was prepared already" in lra_data(*words)[1]  # the files may be gone by now
    code, _, err = lra_data(*words, f"path={second}")
    assert code == 2
    assert f"{second / 'basic_train.tsv'} is not one of them" in err
    code, out, _ = lra_data(*words, f"path={second}", "--force")
    assert code == 0
    assert "is prepared" in out


# ---------------------------------------------------------------------- sources


def test_dropped_brackets_are_the_only_thing_dropped(tiny: Prepared, tmp_path: Path) -> None:
    options = lra.data.configure("listops", ["source=tiny", "brackets=drop"])
    dropped = prepare(options, max_length=2000, data_dir=tmp_path / "data")
    for split in SPLITS:
        without = [([i for i in ids if i != 15], label) for ids, label in rows(tiny, split)]
        assert rows(dropped, split) == without
    assert dropped.facts["splits"]["train"]["ids"] == [1, 14]
    assert dropped.folder != tiny.folder


def test_the_protocol_s_length_decides_only_where_it_cuts() -> None:
    """Expressions end at 1999 tokens: preparing at 2000 and at 2048 is the same preparation."""
    task, options = lra.data.get("listops"), lra.data.configure("listops")
    assert [task.width(options, n) for n in (1000, 1999, 2000, 2048)] == [1000, 1999, 1999, 1999]
