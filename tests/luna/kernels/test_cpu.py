"""Where machine code is kept, and when it is made anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from luna.kernels import cpu

pytestmark = pytest.mark.skipif(
    not cpu.AVAILABLE, reason="needs numba: pip install 'luna-lra[fast]'"
)


@pytest.fixture
def uncached() -> Iterator[None]:
    cpu.cache_folder.cache_clear()
    yield
    cpu.cache_folder.cache_clear()


def test_machine_code_is_as_old_as_the_oldest_kernel_file(tmp_path: Path, uncached: None):
    """numba itself notices a change in a kernel's own file, not in one it calls."""
    source = tmp_path / "kernels" / "deep" / "inner.py"
    source.parent.mkdir(parents=True)
    folders = []
    for text in ("CELLS = 4096", "CELLS = 16384", "CELLS = 4096"):
        source.write_text(text, encoding="utf-8")
        cpu.cache_folder.cache_clear()
        folders.append(cpu.cache_folder(tmp_path / "kernels"))
    assert folders[0] == folders[2] != folders[1]
    from luna.kernels.luna_attention.compiled import project

    own = cpu.cache_folder(Path(cpu.__file__).parent)
    assert own in Path(project._cache.cache_path).parents  # type: ignore[attr-defined]


def test_each_kind_of_processor_has_machine_code_of_its_own(
    tmp_path: Path, uncached: None, monkeypatch: pytest.MonkeyPatch
):
    own = cpu.cache_folder(tmp_path)
    monkeypatch.setattr("numba.core.config.CPU_NAME", "another")  # as NUMBA_CPU_NAME does
    cpu.cache_folder.cache_clear()
    assert cpu.cache_folder(tmp_path) != own


def test_kernels_run_where_machine_code_cannot_be_kept(
    tmp_path: Path,
    uncached: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(file))  # no folder, and root cannot make it one
    assert cpu.jit(lambda x: 2 * x)(3) == 6
    assert f"none of these folders can be written: {file}; set NUMBA_CACHE_DIR" in caplog.text


@pytest.mark.parametrize("openmp", [True, False])
def test_tasks_are_done_once_each_and_errors_come_back(
    openmp: bool, monkeypatch: pytest.MonkeyPatch
):
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
