"""Every benchmark once, at tiny sizes: its table, page, numbers and figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from lra.cli import main

from ..conftest import SMALL

BENCH = Path(__file__).resolve().parents[3] / "results" / "bench"
COMMANDS = {
    "attention": ["attention", "--methods", "luna", "softmax", "softmax@published", "--lengths",
                  "16", "32"],
    "causal": ["attention", "--causal", "--methods", "luna", "softmax", "informer", "--lengths",
               "16", "--passes", "forward"],
    "luna": ["luna", "--lengths", "16", "--batch", "1"],
    "train": ["train", *SMALL, "protocol.data.pad_to=64", "protocol.data.max_length=64",
              "--methods", "luna", "linear"],
}  # fmt: skip
MEASURES = {
    "attention": {"forward_seconds", "forward_bytes", "train_seconds", "train_bytes"},
    "causal": {"forward_seconds", "forward_bytes", "token_seconds", "token_bytes", "state_bytes"},
    "luna": {"train_seconds", "train_bytes"},
    "train": {"step_seconds", "step_bytes", "speed", "share"},
    "convert": {"forward_seconds", "forward_bytes", "generate_seconds", "generate_bytes"},
}


def bench(words: list[str], out: Path) -> dict:
    assert main(["bench", *words, "--rounds", "1", "--write", str(out)]) == 0
    (file,) = out.glob("*.json")
    assert {path.suffix for path in out.iterdir()} == {".json", ".md", ".png", ".pdf"}
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_measures_and_writes(name: str, in_this_process, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lra.bench.train.SIDES", {"cpu": 32})
    facts = bench(COMMANDS[name], tmp_path)
    rows = [row for row in facts["rows"] if row["values"]]
    assert {row["measure"] for row in rows} == MEASURES[name]
    assert all(value >= 0 for row in rows for value in row["values"])
    assert facts["machine"]["threads"] == 1
    assert "torch" in facts["versions"]
    stopped = {row["case"] for row in facts["rows"] if row["stopped"]}
    assert stopped <= {"luna, triton", "informer"}  # needs a GPU; has no causal form
    printed = capsys.readouterr().out
    assert "divided by that of" in printed
    assert "luna" in printed


def test_a_converted_model_is_measured(in_this_process, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("lra.bench.convert.MODELS", {"gpt2": (1, 2, 16), "minilm": (1, 2, 16)})
    for geometry in ("minilm", "gpt2"):
        words = ["convert", "--geometry", geometry, "--methods", "luna", "--lengths", "16"]
        facts = bench(words, tmp_path / geometry)
        assert {row["case"] for row in facts["rows"]} == {"softmax", "luna"}
    assert {row["measure"] for row in facts["rows"]} == MEASURES["convert"]


def test_older_files_are_drawn_again(tmp_path: Path, capsys):
    files = [next(BENCH.glob(f"{name}-*.json")) for name in ("attention", "luna", "train")]
    assert main(["figures", "scaling", *map(str, files), "--out", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
