"""Every benchmark once, at tiny sizes, and what its numbers mean."""

from __future__ import annotations

import json
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.errors import UserError
from lra.bench.measure import Benchmark, Calls, first_calls, measure_cases
from lra.bench.result import BenchResult, BenchRow, page, with_range
from lra.bench.roof import shares
from lra.bench.train import PRODUCT, roofline
from lra.cli import main
from luna.kernels import cpu

from ..conftest import SMALL

MIB = 2**20
COMMANDS = {
    "attention": [
        "attention",
        "--methods",
        "luna",
        "softmax",
        "softmax@published",
        "s4d",
        "--lengths",
        "16",
        "32",
    ],
    "causal": [
        "attention",
        "--causal",
        "--methods",
        "luna",
        "softmax",
        "s4d",
        "informer",
        "--lengths",
        "16",
    ],
    "luna": ["luna", "--lengths", "16", "--batch", "1"],
    "roof": ["roof", "--lengths", "16", "--batch", "1"],
    "train": [
        "train",
        *SMALL,
        "protocol.data.pad_to=64",
        "protocol.data.max_length=64",
        "--methods",
        "luna",
        "linear",
    ],
}
BOTH = {"forward_seconds", "forward_bytes", "train_seconds", "train_bytes"}
MEASURES = {
    "attention": BOTH,
    "causal": BOTH | {"token_seconds", "token_bytes", "state_bytes"},
    "luna": BOTH,
    "roof": BOTH | {"products_share", "copy_share"} | ({"tiles_share"} if cpu.AVAILABLE else set()),
    "train": {"step_seconds", "step_bytes", "share"},
    "convert": {"forward_seconds", "forward_bytes", "generate_seconds", "generate_bytes"},
}


def bench(words: list[str], out: Path) -> dict:
    assert main(["bench", *words, "--rounds", "1", "--write", str(out)]) == 0
    (file,) = out.glob("*.json")
    assert {path.suffix for path in out.iterdir()} == {".json", ".md", ".png", ".pdf"}
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("lra.bench.measure.LEAST", 1e-4)
    monkeypatch.setattr("lra.bench.train.SIDES", {"cpu": 32})


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_measures_and_writes(name: str, quick, tmp_path, capsys):
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


def test_a_converted_model_is_measured(quick, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr("lra.bench.cases.MODELS", {"gpt2": (1, 2, 16), "minilm": (1, 2, 16)})
    for geometry in ("minilm", "gpt2"):
        words = ["convert", "--geometry", geometry, "--methods", "luna", "--lengths", "16"]
        facts = bench(words, tmp_path / geometry)
        assert {row["case"] for row in facts["rows"]} == {"softmax", "luna"}
    assert {row["measure"] for row in facts["rows"]} == MEASURES["convert"]


def test_the_peak_of_a_call_is_measured():
    def call() -> None:
        np.ones(8 * MIB, dtype=np.uint8)  # freed again

    _, peak = first_calls(call, "cpu")
    # only Linux says; a part may be memory that was freed before and kept
    assert peak != peak or 7 * MIB <= peak <= 9 * MIB


def test_cases_are_timed_in_turn_and_end_at_a_limit(quick, monkeypatch):
    calls: list[tuple[str, int]] = []

    def build(name: str, n: int, device: torch.device) -> Calls:
        if n > 20:
            raise UserError("too long")
        return {"forward": lambda: calls.append((name, n)), "state_bytes": float(MIB * n)}

    cases = {name: partial(build, name) for name in ("a", "b")}
    benchmark = Benchmark(stem="s", title="t", notes=[], cases=cases)
    options = Namespace(what="attention", device="cpu", threads=1, rounds=2, lengths=[30, 4, 8])
    monkeypatch.setattr("lra.bench.measure.MIB", 1000.0)
    rows = measure_cases(benchmark, options)
    times = [row for row in rows if row.measure == "forward_seconds"]
    assert [(row.case, row.n, len(row.values)) for row in times] == [
        ("a", 4, 2),
        ("b", 4, 2),
        ("a", 8, 2),
        ("b", 8, 2),
    ]
    short = [name for name, n in calls if n == 4][4:]  # behind those that measure memory
    turns = [name for i, name in enumerate(short) if i == 0 or short[i - 1] != name]
    assert turns == ["a", "b", "a", "b"]
    assert [row.stopped for row in rows if row.n == 30] == ["too long"] * 2
    monkeypatch.setattr("lra.bench.measure.MIB", 15.0)
    less = measure_cases(benchmark, options)
    assert {row.stopped for row in less if row.n == 8} == {"> 15 MiB"}  # 4 MiB x (8 / 4)²
    monkeypatch.setattr("lra.bench.measure.SECONDS", 0.0)
    with pytest.raises(UserError, match="nothing was measured: > 0 s"):
        measure_cases(benchmark, options)


def test_shares_of_a_roof_are_of_the_methods_own_products_and_of_one_round():
    times = {"linear": [4.0, 8.0], "luna": [8.0, 8.0], "products of linear": [2.0, 2.0]}
    times["copy"] = [1.0, 1.0]
    rows = [row(case, 16, values, "train_seconds") for case, values in times.items()]
    found = {(row.case, row.measure): row.values for row in shares(rows)}
    assert found == {
        ("linear", "products_share"): [0.5, 0.25],
        ("linear", "copy_share"): [0.25, 0.125],
        ("luna", "copy_share"): [0.125, 0.125],
    }


def row(case: str, n: int, values: list[float], measure: str = "step_seconds") -> BenchRow:
    return BenchRow(group="train", case=case, n=n, measure=measure, values=values)


def test_ratios_are_taken_within_a_round():
    rows = [row("slow", 4, [2.0, 9.0, 3.0]), row("fast", 4, [1.0, 3.0, 2.0])]
    facts = {"benchmark": "lra bench train", "title": "T", "notes": [], "base": "fast"}
    assert "| slow | 2 (1.5–3) |" in page(BenchResult(facts=facts, rows=rows)).splitlines()
    assert [with_range([12.345]), with_range([1234.5])] == ["12.3", "1,230"]


def test_the_roofline_share_is_that_of_each_round():
    measured = [row("luna", 4, [1.0, 2.0]), row(PRODUCT, 4, [1.0, 4.0])]
    more = roofline({"luna": 10, PRODUCT: 40}, measured)
    assert {(r.case, r.measure): r.values for r in more} == {("luna", "share"): [0.25, 0.5]}


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    rows = [
        row("softmax", 4, [0.002, 0.004]),
        row("luna", 4, [0.001, 0.001]),
        row("luna", 8, [0.003, 0.003]),
        row("luna", 8, [3 * MIB], "step_bytes"),
        BenchRow(group="train", case="softmax", n=8, measure="any", stopped="> 9 s"),
    ]
    facts = {"benchmark": "lra bench train", "title": "T", "notes": ["A note."], "base": "softmax"}
    result = BenchResult(facts=facts, rows=rows)
    numbers, text = result.save(tmp_path / "new" / "train-torch2.13.0")
    assert BenchResult.load(numbers) == result
    assert text.read_text(encoding="utf-8") == page(result)
    for line in ("- A note.", "| softmax | 3 (2–4) | > 9 s |", "| luna | 0.375 (0.25–0.5) |  |"):
        assert line in page(result).splitlines()
    numbers.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(UserError, match="give the numbers of `lra bench`"):
        BenchResult.load(numbers)
