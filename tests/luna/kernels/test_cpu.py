"""Where machine code is kept, and when it is made anew."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from luna.kernels import cpu

from .kit import numba

pytestmark = numba


@pytest.fixture(autouse=True)
def _uncached():
    cpu.cache_folder.cache_clear()
    yield
    cpu.cache_folder.cache_clear()


def test_every_source_and_processor_has_its_own_machine_code(tmp_path: Path, monkeypatch):
    """numba itself notices a change in a kernel's own file, not in one it calls."""
    source = tmp_path / "kernels" / "deep" / "inner.py"
    source.parent.mkdir(parents=True)
    folders = []
    for text in ("CELLS = 4096", "CELLS = 16384", "CELLS = 4096"):
        source.write_text(text, encoding="utf-8")
        cpu.cache_folder.cache_clear()
        folders.append(cpu.cache_folder(tmp_path / "kernels"))
    assert folders[0] == folders[2] != folders[1]
    monkeypatch.setattr("numba.core.config.CPU_NAME", "another")  # as NUMBA_CPU_NAME does
    cpu.cache_folder.cache_clear()
    assert cpu.cache_folder(tmp_path / "kernels") != folders[0]


def test_kernels_are_kept_there():
    from luna.kernels.linear_numba.passes import keys_kernel

    folder = cpu.cache_folder(Path(cpu.__file__).parent)
    assert folder in Path(keys_kernel._cache.cache_path).parents  # type: ignore[attr-defined]


def test_kernels_run_where_machine_code_cannot_be_kept(tmp_path: Path, monkeypatch, caplog):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))  # no folder, and root cannot make it one
    assert cpu.jit(lambda x: 2 * x)(3) == 6
    assert f"none of these folders can be written: {file}; set NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("openmp", [True, False])
def test_tasks_are_done_once_each_and_errors_come_back(openmp: bool, monkeypatch):
    """On torch's own threads, and where those cannot be had."""
    if openmp and cpu._openmp() is None:
        pytest.skip("torch uses another library for its threads")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    if not openmp:
        monkeypatch.setattr(cpu, "_openmp", lambda: None)
    for tasks in (1, 2, 50):
        done: list[int] = []
        cpu.run(lambda first, last, into: into.extend(range(first, last)), tasks, done)
        assert sorted(done) == list(range(tasks))

    def fail(first: int, last: int) -> None:
        if last == 50:
            raise ValueError("task 49")

    with pytest.raises(ValueError, match="task 49"):
        cpu.run(fail, 50)
