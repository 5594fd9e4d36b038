"""Codes of early records whose numbers are those of the first declared versions: numerics.yaml of a
folder of results.

Records hold declared versions (lra/base/versions.py) since November 2026, and a hash of their code
before. A hash that stands here is known to give the numbers of version 1 of its method and of all
parts, to the bit; runs of a hash that does not are told apart by it.

luna: [790bbb11, e6a68fe1]
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from lra.base.errors import readable, refuse_steering
from lra.base.yaml_data import read_yaml
from lra.runs.facts import Name

FILE, RECORDS = "numerics.yaml", "records"  # side by side in a folder of results


def first_versions(path: Path) -> frozenset[str]:
    """The codes that the file beside the records of this path lists."""
    for folder in path.absolute().parents:
        if folder.name == RECORDS and (file := folder.with_name(FILE)).exists():
            status = file.stat()
            return _read(file, status.st_mtime_ns, status.st_size)
    return frozenset()


@lru_cache(maxsize=16)
def _read(path: Path, *version: int) -> frozenset[str]:
    with readable(path, "each attention has a list of hashes of code"):
        listed = read_yaml(path) or {}
        refuse_steering(listed)
        codes = TypeAdapter(dict[Name, list[Name]]).validate_python(listed, strict=True)
        return frozenset(code for of_method in codes.values() for code in of_method)
