"""The options of a task, from its file and from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import lra.data
from lra.data.options import overrides

Call = Callable[..., tuple[int, str, str]]


def test_overrides_are_what_differs_from_the_file() -> None:
    task = lra.data.get("listops")
    words = ["source=release", "brackets=drop", "path=/a b"]
    assert overrides(task, lra.data.configure("listops", words)) == words
    assert overrides(task, lra.data.configure("listops")) == []
    assert lra.data.configure("listops", ["p_leaf=8e-1"]).p_leaf == 0.8
    assert lra.data.configure("listops", ["source=release", "path=007"]).path == "007"


@pytest.mark.parametrize("line", ["seed: x", "sede: 1", "seed: ???", ": ["])
def test_a_task_s_file_that_is_wrong(
    line: str, fakes: None, tmp_path: Path, lra_data: Call
) -> None:
    file = tmp_path / "configs" / "task" / "numbers.yaml"
    file.write_text(
        file.read_text(encoding="utf-8") + line.replace("seed: ???", "source: ???") + "\n",
        encoding="utf-8",
    )
    code, _, err = lra_data("prepare", "numbers")
    assert code == 2
    assert str(file) in err
