"""Archives that are cut or damaged."""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.data import text
from lra.data.sources import archives, release

from .. import kit


def read(archive: Path) -> list[bytes]:
    with archives.opened(archive) as files:
        return [content.read() for _, content in files]


FILES = [(f"folder/{i}", b"content of %d" % i) for i in range(12)]


@pytest.mark.parametrize("packed", [True, False])
def test_every_cut_of_an_archive_is_noticed(packed: bool, tmp_path: Path) -> None:
    """tarfile takes a cut between two files, or a damaged header, for the end."""
    archive = kit.tar(tmp_path / "x.tar", FILES, packed=packed)
    content = archive.read_bytes()
    needed = len(content) if packed else len(content.rstrip(b"\0")) + 1024
    for cut in [*range(0, needed, 512 if not packed else 37), needed - 1]:
        archive.write_bytes(content[:cut])
        with pytest.raises(UserError, match=r"is not complete|is not a tar archive"):
            read(archive)
    if not packed:
        for at in range(0, len(content.rstrip(b"\0")), 1024):  # headers: contents are shorter
            changed = bytearray(content)
            changed[at] ^= 1
            archive.write_bytes(changed)
            with pytest.raises(UserError, match="is not a tar archive, or a damaged one"):
                read(archive)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE])
@pytest.mark.parametrize("packed", [True, False])
def test_a_size_that_is_only_claimed_is_not_believed(packed: bool, kind: bytes, tmp_path: Path):
    header = tarfile.TarInfo("x")
    header.size, header.type = 10**15, kind
    content = header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    (tmp_path / "x").write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(UserError, match="claims 1,000,000,000,000,000 bytes"):
        read(tmp_path / "x")


TSV = "lra_release/tsv_data"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([f"{TSV}/{'a/' * 1500}b"], "a name that is too long"),
        ([f"{TSV}/{'a' * 300}"], "File name too long"),
        ([f"{TSV}/a", f"{TSV}/./a"], "tsv_data/a comes twice"),
        ([f"{TSV}/a/b", f"{TSV}/a"], "tsv_data/a comes twice"),
    ],
)
def test_names_that_cannot_be_written_are_refused(names: list[str], message: str, tmp_path: Path):
    archive = kit.tar(tmp_path / "x.tar", [(name, b"x") for name in names])
    with pytest.raises(UserError, match=message):
        release.root(archive, "tsv_data", tmp_path / "data")


def test_a_small_archive_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(text, "MOST", 1000)
    members = [(f"aclImdb/train/neg/{i}_1.txt", b"x" * 400) for i in range(3)]
    with pytest.raises(UserError, match="holds more than 1,000 bytes of reviews"):
        text.read_reviews(kit.tar(tmp_path / "x.tar", members))
