"""The options of a task, from its file and from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import lra.data
from lra.base import groups
from lra.data.options import overrides
from lra.settings.compose import task_settings

Call = Callable[..., tuple[int, str, str]]


def test_overrides_are_what_differs_from_the_file() -> None:
    task = lra.data.get("listops")
    words = ["source=release", "brackets=drop", "path=/a b"]
    assert overrides(task, lra.data.configure("listops", words)) == words
    assert overrides(task, lra.data.configure("listops")) == []
    assert lra.data.configure("listops", ["p_leaf=8e-1"]).p_leaf == 0.8
    assert lra.data.configure("listops", ["source=release", "path=007"]).path == "007"


@pytest.mark.parametrize("name", lra.data.builtin_tasks())
def test_the_files_of_configs_repeat_the_defaults(name: str) -> None:
    settings, length = task_settings(name, "luna")
    task = lra.data.get(name)
    defaults = OmegaConf.structured(task.Options(name=name, source=next(iter(task.sources))))
    assert settings == OmegaConf.to_container(defaults, enum_to_str=True)
    assert lra.data.get(name).max_length in (length, 0)


@pytest.mark.parametrize("line", ["seed: x", "sede: 1", "source: ???", ": ["])
def test_a_task_s_file_that_is_wrong(
    line: str, tmp_path: Path, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "retrieval.yaml").write_text(
        f"name: retrieval\nsource: tiny\n{line}\n", encoding="utf-8"
    )
    monkeypatch.setenv(groups.VARIABLE, str(tmp_path))
    code, _, err = lra_data("prepare", "retrieval")
    assert code == 2
    assert len(err.splitlines()) == 1
