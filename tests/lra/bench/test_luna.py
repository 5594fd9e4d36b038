"""`lra bench luna`: its cases, and the ratios of its page."""

from __future__ import annotations

import math
import pickle
from argparse import Namespace
from typing import Any

import pytest

from lra.base.config import UserError
from lra.bench import luna as bench
from lra.bench.rows import BenchResult
from lra.bench.worker import BenchMeter, BenchRules
from luna.kernels import cpu

from .results import Costs, result_of

OPTIONS = Namespace(lengths=(1024, 4096), batch=1, rounds=3, threads=1)


@pytest.fixture(scope="module")
def sent() -> bench.Benchmark:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu, "AVAILABLE", True)  # what needs numba is not measured here
        return bench.benchmark(OPTIONS)


@pytest.fixture
def found(sent: bench.Benchmark) -> BenchResult:
    """Costs fall by one from case to case of a group. The machine is ten times slower in the first
    of three rounds, and twice in the last."""
    costs: Costs = {}
    for group in dict.fromkeys(case.group for case in sent.cases):
        members = [case for case in sent.cases if case.group == group]
        time = "seconds" if group.startswith("step") else "train_seconds"
        for cost, case in zip(range(len(members), 0, -1), members, strict=True):
            for n in case.lengths:
                costs[group, case.name, n, time] = [10.0 * cost, 1.0 * cost, 2.0 * cost]
                costs[group, case.name, n, "peak_bytes"] = [cost * 2**20]
    return result_of(costs, settings=vars(OPTIONS))


def test_what_luna_is_compared_with(sent: bench.Benchmark):
    assert pickle.loads(pickle.dumps((sent.cases, sent.rules))) == (sent.cases, sent.rules)
    cases: dict[tuple[str, str], Any] = {(case.group, case.name): case for case in sent.cases}
    luna = cases["attention", "luna"].options
    assert luna == {"M": 8, "L": 8, "hidden": 64}
    for name, evaluate in ((bench.LISTING, "dense"), ("luna, piecewise", "piecewise"),
                           ("luna, compiled", "compiled")):  # fmt: skip
        assert cases["attention", name].options == luna | {"evaluate": evaluate}
    assert cases["attention", "luna, exp"].options == luna | {"nonneg": "exp"}
    wide = cases["attention", "linear, D = 64"]
    assert (wide.method, wide.head_dim, wide.value_dim) == ("linear", 8 * 8, 32)
    maps = [case for (group, _), case in cases.items() if group == "feature map"]
    assert [(case.evaluate, case.hidden) for case in maps] == [
        ("dense", 64), ("piecewise", 64), *(("compiled", w) for w in (16, 64, 128, 256, 512)),
    ]  # fmt: skip
    assert "attention.evaluate=dense" in cases["step, image", bench.LISTING].words
    assert "attention.evaluate=dense" not in cases["step, image", "luna"].words
    assert list(cases["step, image", "luna"].lengths) == [1024]

    meter = BenchMeter(BenchRules(rounds=1, threads=1, calls=1, least=0.0, dear=math.inf))
    assert set(maps[0].costs(8, meter)) == {"train_seconds"}
    assert set(cases["attention", bench.LISTING].costs(8, meter)) == {"train_seconds", "peak_bytes"}


def test_the_first_call_is_left_out_even_where_it_is_dear(
    sent: bench.Benchmark, monkeypatch: pytest.MonkeyPatch
):
    durations = iter([9.0, 5.0])
    monkeypatch.setattr(BenchMeter, "_once", lambda self, call: next(durations))
    assert BenchMeter(sent.rules).seconds({"seconds": lambda: None}) == {"seconds": 5.0}


def test_every_target_stands_beside_what_was_measured(found: BenchResult):
    """Ratios within a round are the same in all three."""
    shown = {what: (target, measured) for what, target, measured in bench.targets(found)}
    expected = {
        "feature map, n = 4096: listing / compiled": (">= 30", "1.75 (1.75 .. 1.75)"),  # 7 and 4
        "feature map, n = 4096: slowest / fastest of hidden 16 .. 512": ("<= 1.3", "5.00"),
        "n = 4096: luna / linear, D = 64": ("<= 1.15", "1.33 (1.33 .. 1.33)"),
        "n = 4096: luna / linear": ("", "1.14 (1.14 .. 1.14)"),
        "n = 4096: softmax / luna": (">= 3", "0.62 (0.62 .. 0.62)"),
        "n = 1024: softmax / luna": (">= 1", "0.62 (0.62 .. 0.62)"),
        "n = 1024: listing / luna": ("", "1.12 (1.12 .. 1.12)"),
        "n = 4096: luna, exp / luna": ("<= 1.3", "0.12 (0.12 .. 0.12)"),
        "n = 4096: peak memory, luna, softplus / linear, D = 64": ("<= 1.2", "0.33"),
        "step, text: listing / luna": (">= 8", "1.33 (1.33 .. 1.33)"),
        "step, image: peak memory, luna / linear": ("<= 1.2", "1.50"),
    }
    assert expected.items() <= shown.items()
    ratios, maps, attentions, *_ = bench.tables(found)
    assert len(ratios.lines) == len(shown) == 22
    assert maps.title == "Feature map: time of forward + backward, ms"
    assert attentions.lines[0] == ["`luna, the listing`", "18,000", "18,000"]  # medians


def test_a_case_that_failed_leaves_its_ratios_out(found: BenchResult):
    for row in found.rows:
        if row.case in ("linear", "compiled, hidden 64"):
            row.values, row.stopped = [], "killed"
    shown = {what: measured for what, _, measured in bench.targets(found)}
    assert shown["n = 4096: luna / linear"] == "–"
    assert shown["feature map, n = 4096: slowest / fastest of hidden 16 .. 512"] == "5.00"


def test_without_numba_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with pytest.raises(UserError, match=r"pip install 'luna-lra\[fast\]'"):
        bench.benchmark(OPTIONS)
