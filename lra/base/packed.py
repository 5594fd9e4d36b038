"""The parts of a zip archive of somebody else, unpacked to the size that it claims and no further.

zipfile itself unpacks a part whole before it cuts it: 400 bytes can take gigabytes.
"""

from __future__ import annotations

import copy
import lzma
import zipfile
import zlib
from pathlib import Path

from lra.base.disk import plain_file

LARGEST_DICTIONARY = 2**26  # bytes that LZMA may look back


def unpack(path: Path, largest: int) -> dict[str, bytes]:
    """Read every part; ValueError if all together are larger, or damaged, or packed otherwise than
    by deflate or LZMA."""
    with zipfile.ZipFile(plain_file(path)) as archive:
        parts = archive.infolist()
        if sum(part.file_size for part in parts) > largest:
            raise ValueError("it unpacks to more bytes than any test set has")
        return {part.filename: _unpacked(archive, part) for part in parts}


def _unpacked(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bytes:
    raw = copy.copy(part)
    raw.compress_type, raw.file_size = zipfile.ZIP_STORED, part.compress_size
    raw.CRC = None  # type: ignore[assignment]  # that of what is unpacked
    content = packed = archive.read(raw)
    if part.compress_type == zipfile.ZIP_DEFLATED:
        unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
        content = unpacker.decompress(packed, part.file_size + 1)
    elif part.compress_type == zipfile.ZIP_LZMA:
        content = _lzma_of(packed[:9]).decompress(packed[9:], part.file_size + 1)
    elif part.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{part.filename} is packed by neither deflate nor LZMA")
    if len(content) != part.file_size or zlib.crc32(content) != part.CRC:
        raise ValueError(f"{part.filename} has another checksum")
    return content


def _lzma_of(head: bytes) -> lzma.LZMADecompressor:
    """Read how a part is packed: two bytes of a version, two of the size of what follows, one of
    lc, lp and pb together, four of the size of the dictionary."""
    size, numbers = int.from_bytes(head[2:4], "little"), head[4]
    dictionary = int.from_bytes(head[5:9], "little")
    if size != 5 or dictionary > LARGEST_DICTIONARY:
        raise ValueError("it is packed in a way that no run writes")
    how = {"id": lzma.FILTER_LZMA1, "dict_size": dictionary}
    how |= {"lc": numbers % 9, "lp": numbers // 9 % 5, "pb": numbers // 45}
    return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[how])


def refuse_packed(path: Path) -> None:
    """ValueError for an archive with a part that is packed at all, or is not what its checksum
    says; torch stores the parts of a checkpoint as they are, and reads past their checksums."""
    with zipfile.ZipFile(plain_file(path)) as archive:
        parts = archive.infolist()
        stored = {part.compress_type for part in parts} <= {zipfile.ZIP_STORED}
        if not stored or sum(part.file_size for part in parts) > path.stat().st_size:
            raise ValueError("it has packed parts")
        if (part := archive.testzip()) is not None:
            raise ValueError(f"{part} has another checksum")
