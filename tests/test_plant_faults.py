"""scripts/plant_faults.py: what is drawn, and where it stands in another revision."""

from __future__ import annotations

import importlib
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CODE = """
def scaled(x, n):
    if x > 0 and n:
        return x * n  # in bytes an α before a fault is longer
    α, x = 1, abs(x)
    return α + x
"""


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("plant_faults")


@pytest.fixture
def repository(tmp_path) -> Path:
    (tmp_path / "luna").mkdir()
    (tmp_path / "lra").mkdir()
    (tmp_path / "luna" / "base.py").write_text(CODE)
    return tmp_path


def test_draws_are_deterministic_and_compile(faults, tmp_path):
    for name in ("luna/base.py", "luna/attention/bigbird.py", "lra/compute/gate.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    statements = faults.product(tmp_path)
    drawn = faults.draw(tmp_path, statements, seed=3, count=60)
    assert drawn == faults.draw(tmp_path, statements, seed=3, count=60)
    assert len({(fault.path, fault.original) for fault in drawn}) == len(drawn) > 50
    for fault in drawn:
        compile(faults.place_of(fault, statements).planted(fault.replacement), fault.path, "exec")
        assert fault.replacement != fault.original


def test_a_statement_is_found_in_another_file(faults, repository):
    drawn = faults.draw(repository, faults.product(repository), seed=1, count=8)
    assert {fault.original for fault in drawn} >= {"if x > 0 and n", "return x * n"}
    (repository / "luna" / "base.py").rename(repository / "lra" / "moved.py")
    places = [faults.place_of(fault, faults.product(repository)) for fault in drawn]
    assert {place.path for place in places} == {"lra/moved.py"}
    (repository / "lra" / "moved.py").write_text(CODE.replace("x * n", "n * x"))
    gone = [f for f in drawn if faults.place_of(f, faults.product(repository)) is None]
    assert {fault.original for fault in gone} == {"return x * n"}


def test_tests_are_chosen_by_name(faults):
    commands = faults.commands_of("luna/attention/luna.py", ROOT)
    assert commands[0] == ("tests/luna/attention/test_luna.py",)
    assert commands[1][-1] == "([luna and not luna2021) and not (compile or memory)"
