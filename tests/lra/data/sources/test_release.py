"""The release: found in either layout, unpacked only as far as needed and never elsewhere."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import lra.data
from lra.data import retrieval
from lra.data.prepare import prepare
from lra.data.sources import archives, release
from lra.data.verify import verify

from .. import kit

Call = Callable[..., tuple[int, str, str]]


ROW = b"1.0\ta\tb\tone\ttwo\n"


INNER, OUTER = "lra_release/lra_release", "lra_release"


PAIRS = [(f"tsv_data/{name}", ROW) for name in retrieval.FILES.values()]


def below(top: str, members: kit.Members) -> list[tuple[str, bytes]]:
    return [(f"{top}/{name}", content) for name, content in members]


def listops(mark: bytes) -> list[tuple[str, bytes]]:
    return [(f"listops-1000/basic_{s}.tsv", mark) for s in ("train", "val", "test")]


PICTURES = [(f"pathfinder32/{d}/imgs/0/sample_{i}.png", b"png")
            for d in ("curv_baseline", "curv_contour_length_14") for i in range(4)]  # fmt: skip


WHOLE = [
    *below(OUTER, listops(b"outer")),
    *below(INNER, listops(b"inner")),
    *below(INNER, PAIRS),
    *below(INNER, PICTURES),
    ("lra_release/README", b"read me"),
]


@pytest.mark.parametrize("packed", [True, False])
def test_an_archive_under_its_misleading_name(packed: bool, tmp_path: Path, lra_data: Call) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE, packed=packed)
    code, out, _ = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 0
    assert "retrieval is prepared" in out
    # only what is needed
    (home,) = (tmp_path / "data" / "release").glob("[!.]*/tsv_data")
    assert kit.files(home) == sorted(f"{INNER}/{name}" for name, _ in PAIRS)


def test_damage_is_found_in_the_archive_and_in_what_was_unpacked(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    options = lra.data.configure("retrieval", [f"path={archive}"])
    made = prepare(options, max_length=100, data_dir=tmp_path / "data")
    (home,) = (tmp_path / "data" / "release").glob("[!.]*/tsv_data")
    unpacked = home / INNER / PAIRS[1][0]
    for file in (archive, unpacked):
        content = file.read_bytes()
        file.write_bytes(content[:-1] + b"x")
        wrong = [line.text for line in verify(made.folder) if line.status == "differs"]
        assert [text for text in wrong if text.startswith(f"{file}: sha256 ")]
        file.write_bytes(content)


def test_the_inner_copy_is_read_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unpacked = kit.unpack(tmp_path / "folder", WHOLE)
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    for path in (unpacked, archive):
        root = release.root(path, "listops-1000", tmp_path / "data")
        (first, *_) = release.folders(root, "listops-1000")
        assert (first / "basic_val.tsv").read_bytes() == b"inner"
    assert (
        f"{INNER}/listops-1000 is read, lra_release/listops-1000 is not: the release holds two"
    ) in capsys.readouterr().out
    assert not (root / OUTER / "listops-1000").exists()


def test_a_part_of_a_task(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    wanted = "pathfinder32/curv_contour_length_14"
    root = release.root(archive, wanted, tmp_path / "data")
    assert kit.files(root) == [f"{INNER}/{wanted}/imgs/0/sample_{i}.png" for i in range(4)]


@pytest.mark.parametrize("top", [".", OUTER, INNER])
def test_archives_of_any_layout(top: str, tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "mine.tar.gz", below(top, PAIRS))
    root = release.root(archive, "tsv_data", tmp_path / "data")
    assert (retrieval.find_files(root)["train"]).read_bytes() == ROW


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
    monkeypatch.setattr(archives, "members", lambda path: pytest.fail("read again"))
    assert release.root(archive, "tsv_data", tmp_path / "data") == root


def test_another_archive_of_the_same_name(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    first = release.root(archive, "tsv_data", tmp_path / "data")
    kit.tar(archive, below(INNER, [(name, ROW * 2) for name, _ in PAIRS]))
    second = release.root(archive, "tsv_data", tmp_path / "data")
    assert first != second
    assert retrieval.find_files(second)["test"].read_bytes() == ROW * 2


def test_a_failure_half_way_leaves_nothing_to_be_mistaken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    release.root(archive, "listops-1000", tmp_path / "data")
    (home,) = (tmp_path / "data" / "release").glob("[!.]*")
    before = kit.files(home)
    monkeypatch.setattr(archives.Member, "chunks", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        release.root(archive, "tsv_data", tmp_path / "data")
    assert kit.files(home) == before


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


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda c: c[: len(c) // 2], "is not complete, it ends too early: download it again"),
        (lambda c: b"<html>403</html>" * 100, "is not a tar archive, or a damaged one"),
        (lambda c: b"", "is not a tar archive, or a damaged one"),
    ],
    ids=["half", "a page", "empty"],
)
def test_files_that_are_not_archives(
    damage: Callable[[bytes], bytes], complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    archive = kit.tar(tmp_path / "lra_release.gz", WHOLE)
    archive.write_bytes(damage(archive.read_bytes()))
    code, _, err = lra_data("prepare", "retrieval", f"path={archive}")
    assert code == 2
    assert err.startswith(f"error: {archive} {complaint}")
    assert kit.files(tmp_path / "data") == []
