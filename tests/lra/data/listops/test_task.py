"""The task: official files with their traps, the quirk, the way from arrays to files and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lra.data
from lra.base.config import UserError
from lra.data.arrays import SPLITS, Prepared
from lra.data.listops import files as tsv
from lra.data.listops.task import TINY_SIZES
from lra.data.prepare import prepare
from lra.data.task import TINY

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
        (
            source("1\t1", header="Source\tLabel"),
            "line 1: a header with one column Source",
        ),
        (source("1\t1", header="Target"), "line 1: a header with one column Source"),
        (
            source("1\t1\t1", header="Source\tTarget\tSource"),
            "line 1: a header with one column Sou",
        ),
        (source("7\t7", "1\t1", header="7\t7"), "found '7', '7'"),
        (b"", "line 1: a header with one column Source"),
        (source(), "has no rows below its header"),
        (source("7\t7", "\t3"), "line 3: not an expression, it is empty"),
        (source("7\t7", "( )\t3"), "line 3: not an expression, it is empty"),
        (source("7\t7", "", "7\t7"), "line 3: 2 fields expected, 0 found"),
        (source("7\t7", "7"), "line 3: 2 fields expected, 1 found"),
        (source("7\t7\t7"), "line 2: 2 fields expected, 3 found"),
        (source("7\t10"), "line 2: Target must be a digit, found '10'"),
        (source("7\t"), "line 2: Target must be a digit, found ''"),
        (source("7\t-1"), "line 2: Target must be a digit, found '-1'"),
        (source("7\t7.0"), "line 2: Target must be a digit, found '7.0'"),
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


def test_the_last_split_is_read_as_closely_as_the_first(tmp_path: Path, lra_data: Call) -> None:
    folder = official(tmp_path / "tsv", source("7\t7"))
    (folder / "basic_test.tsv").write_bytes(source("7\t7", "7\tx"))
    code, _, err = lra_data("prepare", "listops", "source=release", f"path={folder}")
    assert code == 2
    assert f"{folder / 'basic_test.tsv'}, line 3" in err


def test_over_long_expressions_are_cut_and_counted(tmp_path: Path, lra_data: Call) -> None:
    long = f"[MAX {' '.join(['4'] * 30)} ]"
    folder = official(tmp_path / "tsv", source(f"{long}\t4", "[MAX 5 5 ]\t5", f"{long}\t4"))
    words = ("listops", "source=release", f"path={folder}")
    code, out, _ = lra_data("prepare", *words, "--max-length", "10")
    assert code == 0
    assert "3 examples, lengths 4 to 10, median 10" in out
    assert "2 cut to 10" in out
    options = lra.data.configure("listops", words[1:])
    cut = prepare(options, max_length=10, data_dir=tmp_path / "data")
    assert rows(cut, "train") == [([11] + [5] * 9, 4), ([11, 6, 6, 15], 5), ([11] + [5] * 9, 4)]
    assert cut.facts["splits"]["train"]["truncated"] == 2
    assert cut.summary()["truncated"] == {"train": 2, "val": 0, "test": 0}
    # nothing is cut at the protocol's own length, and the two lie beside each other
    whole = prepare(options, max_length=32, data_dir=tmp_path / "data")
    assert whole.facts["splits"]["train"]["truncated"] == 0
    assert whole.folder != cut.folder
    code, _, err = lra_data("export", *words, "--max-length", "10", "--to", str(tmp_path / "out"))
    assert code == 2
    assert "were cut at 10 tokens and cannot be written whole" in err


# ---------------------------------------------------------------------- where the files lie


LAYOUTS = (".", "listops-1000", "lra_release/listops-1000", "lra_release/lra_release/listops-1000")


@pytest.mark.parametrize("place", LAYOUTS)
def test_folders_of_both_archive_layouts(place: str, tmp_path: Path) -> None:
    folder = official(tmp_path / place, source("7\t7"))
    expected = {s: folder / f"basic_{s}.tsv" for s in SPLITS}
    assert {s: f.resolve() for s, f in tsv.find_files(tmp_path).items()} == expected


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


def test_a_prefix_names_its_files(tmp_path: Path) -> None:
    folder = official(tmp_path, source("7\t7"), prefix="mine")
    assert tsv.find_files(folder / "mine") == {s: folder / f"mine_{s}.tsv" for s in SPLITS}
    official(tmp_path, source("7\t7"))
    assert tsv.find_files(folder)["val"] == folder / "basic_val.tsv"  # the official name


def test_missing_files_are_named(tmp_path: Path, lra_data: Call) -> None:
    folder = official(tmp_path / "tsv", source("7\t7"))
    (folder / "basic_val.tsv").unlink()
    words = ("prepare", "listops", "source=release")
    code, _, err = lra_data(*words, f"path={folder}")
    assert code == 2
    assert f"{folder / 'basic_val.tsv'} not found" in err
    code, _, err = lra_data(*words, f"path={tmp_path}")
    assert code == 2
    assert f"{tmp_path} holds no basic_train.tsv" in err
    code, _, err = lra_data(*words)
    assert code == 2
    assert "source=release needs path=" in err


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


def test_the_miniature_is_the_official_format(tiny: Prepared) -> None:
    for split, size in TINY_SIZES.items():
        content = (TINY / "listops" / f"basic_{split}.tsv").read_bytes()
        assert content.startswith(b"Source\tTarget\r\n")
        assert content.count(b"\r\n") == content.count(b"\n") == size + 1
        assert len(tiny.split(split)) == size
    assert sum(f.stat().st_size for f in (TINY / "listops").iterdir()) < 40_000
    assert tiny.facts["duplicates"] == dict.fromkeys(tiny.facts["duplicates"], 0)
    assert all(len(set(tiny.split(s).labels.tolist())) == 10 for s in SPLITS)


def test_generated_data_are_exported_and_read_back(tmp_path: Path, lra_data: Call) -> None:
    shape = ("n_train=300", "n_val=40", "n_test=30", "min_length=20", "max_length=200", "seed=3")
    code, out, _ = lra_data("prepare", "listops", *shape)
    assert code == 0
    assert "re-generated, not the released files" in out
    target = tmp_path / "export"
    code, out, _ = lra_data("export", "listops", *shape, "--to", str(target))
    assert code == 0
    assert out.split() == [str(target / f"basic_{s}.tsv") for s in SPLITS]
    assert (target / "basic_val.tsv").read_bytes().count(b"\r\n") == 41

    options = lra.data.configure("listops", shape)
    ours = prepare(options, max_length=199, data_dir=tmp_path / "data")
    options = lra.data.configure("listops", ["source=release", f"path={target}"])
    back = prepare(options, max_length=199, data_dir=tmp_path / "data")
    assert back.facts["arrays"] == ours.facts["arrays"]  # hashes of every array
    assert back.fingerprint != ours.fingerprint  # and yet another source
    assert [len(back.split(s)) for s in SPLITS] == [300, 40, 30]

    code, _, err = lra_data("export", "listops", *shape, "--to", str(target))
    assert code == 2
    assert "is there already" in err
    assert lra_data("export", "listops", *shape, "--to", str(target), "--force")[0] == 0


def test_dropped_brackets_are_the_only_thing_dropped(tiny: Prepared, tmp_path: Path) -> None:
    options = lra.data.configure("listops", ["source=tiny", "brackets=drop"])
    dropped = prepare(options, max_length=2000, data_dir=tmp_path / "data")
    for split in SPLITS:
        without = [([i for i in ids if i != 15], label) for ids, label in rows(tiny, split)]
        assert rows(dropped, split) == without
    assert dropped.facts["splits"]["train"]["ids"] == [1, 14]
    assert dropped.folder != tiny.folder
    with pytest.raises(UserError, match="brackets=keep"):
        lra.data.get("listops").export(dropped, tmp_path / "out")
    generated = ["n_train=50", "n_val=5", "n_test=5", "max_length=700"]
    kept = prepare(lra.data.configure("listops", generated), max_length=699, data_dir=tmp_path)
    options = lra.data.configure("listops", [*generated, "brackets=drop"])
    dropped = prepare(options, max_length=699, data_dir=tmp_path)
    without = [([i for i in ids if i != 15], label) for ids, label in rows(kept, "val")]
    assert rows(dropped, "val") == without


def test_the_protocol_s_length_decides_only_where_it_cuts() -> None:
    """Expressions end at 1999 tokens: preparing at 2000 and at 2048 is the same preparation."""
    task, options = lra.data.get("listops"), lra.data.configure("listops")
    assert [task.width(options, n) for n in (1000, 1999, 2000, 2048)] == [1000, 1999, 1999, 1999]


def test_verify_evaluates_expressions(tmp_path: Path, lra_data: Call) -> None:
    """A wrong label in the source is well-formed: only the value of the expression tells."""
    folder = official(tmp_path / "tsv", source("[MAX 1 2 ]\t2", "[SM 8 8 ]\t7", "3\t3"))
    words = ("listops", "source=release", f"path={folder}")
    assert lra_data("prepare", *words)[0] == 0
    code, out, err = lra_data("verify", *words)
    assert code == 2
    assert "differs  train: 3 expressions evaluated to their labels: example 1 does not" in out
    assert "ok       val: 3 expressions evaluated to their labels: all do" in out
    assert "4 of the lines above differ" in err  # and three sizes that the release has otherwise
