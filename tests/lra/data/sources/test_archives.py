"""Archives that are cut or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.data.sources import archives

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
