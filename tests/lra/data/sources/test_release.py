"""The release: found in either layout, unpacked only as far as needed and never elsewhere."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.data import retrieval
from lra.data.sources import archives, release

from .. import kit

Call = Callable[..., tuple[int, str, str]]

ROW = b"1.0\ta\tb\tone\ttwo\n"
INNER, OUTER = "lra_release/lra_release", "lra_release"
PAIRS = [(f"tsv_data/{name}", ROW) for name in retrieval.FILES.values()]


def below(top: str, members: kit.Members) -> list[tuple[str, bytes]]:
    return [(f"{top}/{name}", content) for name, content in members]


def listops(mark: bytes) -> list[tuple[str, bytes]]:
    return [(f"listops-1000/basic_{s}.tsv", mark) for s in ("train", "val", "test")]


PICTURES = [
    (f"pathfinder32/{d}/imgs/0/sample_{i}.png", b"png")
    for d in ("curv_baseline", "curv_contour_length_14")
    for i in range(4)
]
WHOLE = [
    *below(OUTER, listops(b"outer")),
    *below(INNER, listops(b"inner")),
    *below(INNER, PAIRS),
    *below(INNER, PICTURES),
    ("lra_release/README", b"read me"),
]


def test_what_is_not_there(tmp_path: Path, lra_data: Call) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", below(INNER, listops(b"x")))
    code, _, err = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 2
    assert f"{archive} holds no tsv_data; it holds listops-1000" in err
    empty = kit.tar(tmp_path / "empty.tar", [("README", b"")], packed=False)
    code, _, err = lra_data("prepare", "retrieval", f"path={empty}")
    assert code == 2
    assert f"{empty} holds no tsv_data; it holds no task" in err


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    root = release.root(archive, "tsv_data", tmp_path / "data")
    monkeypatch.setattr(archives, "opened", lambda path: pytest.fail("read again"))
    assert release.root(archive, "tsv_data", tmp_path / "data") == root


def header(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, link
    return made


TSV = f"{INNER}/tsv_data"
HARM = {
    "up": header(f"{TSV}/../../../../outside"),
    "up from the top": header("../outside"),
    "absolute": header("/tmp/outside"),
    "twice absolute": header("//tmp/outside"),
    "a link up": header(f"{TSV}/x", tarfile.SYMTYPE, "../../../../outside"),
    "a link to the root": header(f"{TSV}/x", tarfile.SYMTYPE, "/etc"),
    "a hard link up": header(f"{TSV}/x", tarfile.LNKTYPE, "../outside"),
    "a hard link to the root": header(f"{TSV}/x", tarfile.LNKTYPE, "/etc/passwd"),
    "a device": header(f"{TSV}/x", tarfile.CHRTYPE),
    "a disk": header(f"{TSV}/x", tarfile.BLKTYPE),
    "a pipe": header(f"{TSV}/x", tarfile.FIFOTYPE),
    "up in another task": header("lra_release/pathfinder32/../../../outside"),
}


@pytest.mark.parametrize("kind", HARM)
def test_an_archive_writes_nothing_outside(kind: str, tmp_path: Path) -> None:
    harm = (HARM[kind], b"")
    headers = [harm, *kit.headers(below(INNER, PAIRS)), harm]
    archive = kit.tar_of(tmp_path / "in" / "lra_release.gz", headers)
    before = kit.files(tmp_path)
    root = release.root(archive, "tsv_data", tmp_path / "data")
    assert kit.files(root) == sorted(f"{INNER}/{name}" for name, _ in PAIRS)
    made = sorted(f"{root.relative_to(tmp_path)}/{INNER}/{name}" for name, _ in PAIRS)
    assert kit.files(tmp_path) == sorted(before + made)


def test_links_within_the_archive_are_passed_over(tmp_path: Path) -> None:
    """A link to a folder within, and a file through it, would lead anywhere in two steps."""
    headers = [
        (header(f"{TSV}/a", tarfile.SYMTYPE, "."), b""),
        (header(f"{TSV}/b", tarfile.LNKTYPE, f"{TSV}/{retrieval.FILES['train']}"), b""),
        (header(f"{TSV}/folder", tarfile.DIRTYPE), b""),
        *kit.headers(below(INNER, PAIRS)),
    ]
    archive = kit.tar_of(tmp_path / "lra_release.gz", headers)
    root = release.root(archive, "tsv_data", tmp_path / "data")
    assert sorted(os.listdir(root / TSV)) == sorted(retrieval.FILES.values())  # noqa: PTH208


def test_missing_files_are_named(tmp_path: Path, lra_data: Call) -> None:
    folder = kit.unpack(tmp_path / "there", PAIRS[:2])
    code, _, err = lra_data("prepare", "retrieval", f"path={folder}")
    assert code == 2
    assert "the data are not complete: " in err
    assert f"{folder / PAIRS[2][0]} not found" in err
    _, _, err = lra_data("prepare", "retrieval", f"path={tmp_path}")
    assert f"{tmp_path} holds no new_aan_pairs.train.tsv" in err
    _, _, err = lra_data("prepare", "retrieval")
    assert "source=release needs path=" in err
