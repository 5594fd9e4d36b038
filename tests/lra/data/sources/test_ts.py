"""The reader of .ts files: what it reads, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lra.base.errors import UserError
from lra.data.sources.ts import read_ts

HEAD = """# a comment

@problemName Try
@timeStamps false
@univariate false
@dimensions 2
@equalLength false
@classLabel true Low high other
@data
"""
TWO = HEAD + "1,2.5,?:-1e-3, 5 ,6:high\n\n7,NaN:8,9:LOW\n# the last one\n0:1: other\n"


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read(tmp_path: Path):
    """aeon 1.6 reads the same, but refuses empty lines and comments among the series, and keeps the
    space before a class."""
    found = read_ts(written(tmp_path / "a.ts", TWO))
    gone = np.nan
    wanted = [[[1, -1e-3], [2.5, 5], [gone, 6]], [[7, 8], [gone, 9]], [[0, 1]]]
    for x, y in zip(found.values, wanted, strict=True):
        np.testing.assert_array_equal(x, y)
    assert found.labels == ["high", "low", "other"]
    assert found.classes == ["low", "high", "other"]


def test_a_header_may_say_next_to_nothing(tmp_path: Path):
    found = read_ts(written(tmp_path / "a.ts", "@classLabel true 1 2\r\n@data\r\n1,2:2\r\n3:1"))
    assert [x.tolist() for x in found.values] == [[[1], [2]], [[3]]]
    assert found.labels == ["2", "1"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("@timeStamps false", "@timeStamps true", "time stamps"),
        ("@dimensions 2", "@dimensions 3", "dimensions as each other or its header"),
        ("@dimensions 2", "", "dimensions as each other"),
        ("@equalLength false", "@equalLength true", "not equally long"),
        (" other\n@data", "\n@data", "names low, high, but not the class other"),
        ("@classLabel true Low high other", "@classLabel false", "is not there to name"),
        ("@data", "@date", "no line @data"),
        ("8,9", "8", "line 12 is no dimensions of one length"),
        ("8,9", "8,", "could not convert"),
        ("8,9", "8,9;", "could not convert"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(old: str, new: str, said: str, tmp_path: Path):
    text = TWO.replace(old, new)
    text = text.replace("0:1: other", "0: other") if new == "" else text
    path = written(tmp_path / "a.ts", text)
    with pytest.raises(UserError, match=said) as error:
        read_ts(path)
    assert str(path) in str(error.value)
