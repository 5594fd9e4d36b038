"""Rounds, memory, and the arithmetic on what they give."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.base.config import UserError
from lra.bench.measure import BenchCase, Benchmark, Calls, costs_of, measure_cases, run_alone
from lra.bench.result import BenchResult, BenchRow, ratio_by_round, table_lines, with_range
from lra.bench.train import PRODUCT, roofline

LIMITS = {"what": "attention", "device": "cpu", "threads": 1, "rounds": 2, "least": 1e-4}
MIB = 2**20


def filled(mib: int) -> int:
    return int(np.ones(mib * MIB, dtype=np.uint8)[-1])


def taking(mib: int, n: int, device: torch.device) -> Calls:
    if n > 20:
        raise UserError("too long")
    return {"forward": partial(filled, mib * n), "state_bytes": 7.0}


def test_a_process_of_its_own_measures_memory_and_has_a_limit():
    case = BenchCase(name="some", build=partial(taking, 1))
    if sys.platform == "linux":
        ((_, peak),) = run_alone(costs_of, case, 8, "cpu", mib=1000, threads=1).values()
        assert 8 * MIB <= peak <= 9 * MIB
        with pytest.raises(UserError, match="> 100 MiB"):
            run_alone(filled, 2000, mib=100, threads=1)
    with pytest.raises(UserError, match="killed"):
        run_alone(os._exit, 1, mib=1000, threads=1)


def test_cases_are_timed_in_turn_and_end_at_a_limit(in_this_process, monkeypatch):
    calls: list[tuple[str, int]] = []

    def build(name: str, n: int, device: torch.device) -> Calls:
        return taking(1, n, device) | {"forward": lambda: calls.append((name, n))}

    cases = [BenchCase(name=name, build=partial(build, name)) for name in ("a", "b")]
    benchmark = Benchmark(stem="s", title="t", notes=[], cases=cases, lengths=[30, 4, 8])
    rows = measure_cases(benchmark, Namespace(**LIMITS, seconds=9.0, mib=9.0))
    times = [row for row in rows if row.measure == "forward_seconds"]
    assert [(row.case, row.n, len(row.values)) for row in times] == [
        ("a", 4, 2), ("b", 4, 2), ("a", 8, 2), ("b", 8, 2),
    ]  # fmt: skip
    short = [name for name, n in calls if n == 4][4:]  # behind those that measure memory
    turns = [name for i, name in enumerate(short) if i == 0 or short[i - 1] != name]
    assert turns == ["a", "b", "a", "b"]
    assert {row.values[0] for row in rows if row.measure == "state_bytes"} == {7.0}
    assert [row.stopped for row in rows if row.n == 30] == ["too long"] * 2
    with pytest.raises(UserError, match="nothing was measured: > 0 s"):
        measure_cases(benchmark, Namespace(**LIMITS, seconds=0.0, mib=9.0))


def row(case: str, n: int, values: list[float], measure: str = "step_seconds") -> BenchRow:
    return BenchRow(group="train", case=case, n=n, measure=measure, values=values)


def test_ratios_are_taken_within_a_round():
    slow, fast = row("slow", 4, [2.0, 9.0, 3.0]), row("fast", 4, [1.0, 3.0, 2.0])
    assert ratio_by_round(slow, fast) == [2.0, 3.0, 1.5]
    assert with_range([2.0, 3.0, 1.5]) == "2 (1.5–3)"
    assert with_range([0.012345], 1e3) == "12.3"
    assert with_range([1234.5]) == "1,230"


def test_the_roofline_share_is_that_of_each_round():
    measured = [row("luna", 4, [1.0, 2.0]), row(PRODUCT, 4, [1.0, 4.0])]
    more = roofline({"luna": 10, PRODUCT: 40}, measured)
    assert {(r.case, r.measure): r.values for r in more} == {
        ("luna", "speed"): [10.0, 5.0],
        (PRODUCT, "speed"): [40.0, 10.0],
        ("luna", "share"): [0.25, 0.5],
    }


def test_a_result_is_read_as_it_was_written(tmp_path: Path):
    rows = [
        row("softmax", 4, [0.002, 0.004]), row("luna", 4, [0.001, 0.001]),
        row("luna", 8, [0.003, 0.003]), row("luna", 8, [3 * MIB], "step_bytes"),
        BenchRow(group="train", case="softmax", n=8, measure="any", stopped="> 9 s"),
    ]  # fmt: skip
    facts = {"benchmark": "lra bench train", "title": "T", "notes": ["A note."], "base": "softmax"}
    result = BenchResult(facts=facts, rows=rows)
    numbers, page = result.save(tmp_path / "new" / "train-torch2.13.0")
    assert BenchResult.load(numbers) == result
    assert table_lines(result) == [
        ["", "n = 4", "n = 8"],
        ["train, step time, ms"],
        ["luna", "1 (1–1)", "3 (3–3)"],
        ["softmax", "3 (2–4)", "> 9 s"],
        ["train, step time divided by that of softmax"],
        ["luna", "0.375 (0.25–0.5)", ""],
        ["train, step memory, MiB"],
        ["luna", "", "3"],
        ["softmax", "", "> 9 s"],
    ]
    text = page.read_text(encoding="utf-8")
    assert "- A note." in text
    assert "| luna | 0.375 (0.25–0.5) |  |" in text
    numbers.write_text(json.dumps([1]), encoding="utf-8")
    with pytest.raises(UserError, match="is not a file of numbers from `lra bench`"):
        BenchResult.load(numbers)
