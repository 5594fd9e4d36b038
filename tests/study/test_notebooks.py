"""The notebooks run from top to end, as they are committed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lra
from lra.data import registry

from ..lra.pages import SMALL

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Cell by cell in one namespace, with runs of the demo's size and a tenth of their rounds; they
    use nothing of Jupyter but that it shows figures."""
    pytest.importorskip("matplotlib").use("Agg")
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.TASKS, "added", {})
    small, compose = SMALL["train experiment=demo"].split(), lra.compose
    monkeypatch.setattr(lra, "compose", lambda words: compose([*words, *small]))
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    names: dict[str, object] = {"__name__": "notebook"}
    for number, source in enumerate(code, 1):
        fewer = re.sub(r"range\((\d+)0\)", r"range(\1)", source)
        exec(compile(fewer, f"{path.name}, code cell {number}", "exec"), names)


def test_notebooks_are_committed_with_their_outputs():
    """A reader of the repository sees what they print and draw, and no error."""
    for path in ROOT.glob("notebooks/*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [out for cell in cells for out in cell.get("outputs", [])]
        assert outputs, path
        assert not [out for out in outputs if out["output_type"] == "error"]
        assert any("image/png" in out.get("data", {}) for out in outputs)
