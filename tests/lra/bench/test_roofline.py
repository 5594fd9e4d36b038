"""How far a training step is from what the device can do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn

from lra.bench import roofline
from lra.bench.train import DeviceCase
from lra.bench.worker import BenchMeter, BenchRules
from lra.compute.count import count_run
from lra.settings.compose import compose

from ..conftest import SMALL
from .results import result_of


class HalfASecond:
    """A meter by whose clock every call takes half a second."""

    device = torch.device("cpu")

    def seconds(self, calls: dict[str, Any]) -> dict[str, float]:
        self.results = [call() for call in calls.values()]
        return dict.fromkeys(calls, 0.5)


def test_rates_are_per_second(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(roofline.SIDES, "cpu", 8)
    clock = HalfASecond()
    meter = cast(BenchMeter, clock)
    assert roofline.product_rate(meter, torch.bfloat16) == 2 * 8**3 * 2
    assert (clock.results[0].shape, clock.results[0].dtype) == ((8, 8), torch.bfloat16)
    assert roofline.copy_rate(meter, 64) == 2 * 64 * 2  # reads 64 bytes and writes 64
    assert clock.results[0].nbytes == 64


def test_what_backward_needs_is_kept_once_and_parameters_are_not_counted():
    network = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    x = torch.randn(5, 4)
    assert roofline.kept_bytes(network, x) == 4 * (5 * 4 + 5 * 3)  # x, and relu's result for two


def test_the_flops_of_a_step_are_those_that_the_code_does():
    small = ["task=image", "model.n_layers=1", "protocol.data.pad_to=64", "compute=off",
             "protocol.data.max_length=64"]  # fmt: skip
    plain = count_run(compose([*small, "attention=linear"]))
    assert roofline.step_flops(plain, 3) == 3 * plain.total.training_flops
    fast = count_run(compose([*small, "attention=luna"]))
    H, projected = 2, 2 * 64 * 8  # heads; n M scalars of queries and of keys
    networks = H * projected * 2 * (8 * 64 + 8 * 64)  # L = 8, hidden 64, both layers
    left = fast.total.training_flops - 3 * networks
    assert roofline.step_flops(fast, 1) == pytest.approx(left, rel=1e-3)  # the table's own are few


def event(start: int, length: int, where: str = "CUDA", annotation: bool = False) -> Any:
    return SimpleNamespace(
        start_ns=lambda: start, duration_ns=lambda: length,
        device_type=lambda: SimpleNamespace(name=where), is_user_annotation=lambda: annotation,
    )  # fmt: skip


def test_a_gpu_works_while_any_kernel_runs():
    inside, after, overlapping = event(12, 3), event(40, 5), event(15, 10)
    others = event(0, 100, "CPU"), event(0, 100, annotation=True)
    assert roofline.covered([after, event(10, 10), inside, overlapping, *others]) == 15 + 5


def test_a_step_is_measured_with_what_limits_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(roofline.SIDES, "cpu", 64)
    monkeypatch.setattr(roofline, "COPIED", 2**16)
    words: Sequence[str] = [*SMALL, f"data_dir={tmp_path}", "trainer.progress=off"]
    case = DeviceCase(group="device", name="framework", words=words, steps=3,
                      facts={"step_flops": 10**9})  # fmt: skip
    costs = case.costs(0, BenchMeter(BenchRules(rounds=1, threads=1)))
    assert 0 < costs["busy_seconds"] <= 1.05 * costs["seconds"] < 100  # one thread
    assert costs["product_seconds"] == 10**9 / costs["product_rate"]
    moved = costs["copy_seconds"] * costs["copy_rate"]
    run = compose(words)
    least = 10 * 4 * count_run(run).parameters
    one = 2 * run.protocol.recipe.batch * 100 * run.model.d_model * 4  # an input of 100 tokens
    assert least + one < moved < least + 1000 * one


def test_shares_are_taken_within_a_round_and_the_longer_limit_counts():
    rounds = {"seconds": [0.1, 0.2], "busy_seconds": [0.05, 0.15], "product_seconds": [0.02, 0.01],
              "copy_seconds": [0.01, 0.05], "product_rate": [5e10, 6e10],
              "copy_rate": [1e10, 2e10]}  # fmt: skip
    found = result_of(
        {("device", "framework", 0, measure): values for measure, values in rounds.items()},
        cases=[{"group": "device", "case": "framework", "step_flops": 10**9}],
    )
    (table,) = roofline.tables(found, "device", "framework")
    assert dict(table.lines) == {
        "step, ms": "150.00 (100.00 .. 200.00)",
        "the device works, share of a step": "62% (50% .. 75%)",
        "matrix products of a step, GFLOPs": "1",
        "these per second, GFLOP/s": "7.5 (5.0 .. 10.0)",
        "a large product, GFLOP/s": "55.0 (50.0 .. 60.0)",
        "a large copy, GB/s": "15.0 (10.0 .. 20.0)",
        "limit of the products, ms": "15.00 (10.00 .. 20.00)",
        "limit of the memory, ms": "30.00 (10.00 .. 50.00)",
        "the longer limit / step": "22% (20% .. 25%)",
    }
