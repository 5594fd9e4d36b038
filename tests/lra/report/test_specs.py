"""The YAML files of a folder of results, of somebody else: refused at once, and not waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.base.errors import UserError
from lra.data.rules import FILE
from lra.report import specs
from lra.report.rules import read_rules

BOMB = "- &a0 [x, x]\n" + "".join(f"- &a{i} [{f'*a{i - 1}, ' * 10}]\n" for i in range(1, 12))
READERS: dict[str, Callable[[Path], Any]] = {
    "tables.yaml": specs.specs,
    FILE: read_rules,
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="is not a file"):
        READERS[name](tmp_path)


@pytest.mark.parametrize("name", ["tables.yaml"])
@pytest.mark.parametrize("content", [BOMB, "- &a [*a]\n"])
def test_aliases_of_aliases_are_refused_at_once(tmp_path: Path, name: str, content: str):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="stands for no text or number"):
        READERS[name](tmp_path)
