"""`lra bench luna`: its cases, and the ratios of its page."""

from __future__ import annotations

import pickle
from argparse import Namespace
from typing import Any

import pytest

from lra.bench import luna as bench
from lra.bench.rows import BenchResult
from lra.bench.worker import BenchRules, Meter
from lra.config import UserError
from luna.kernels import cpu

from .results import result_of

OPTIONS = Namespace(lengths=(1024, 4096), batch=8, rounds=3, threads=1)


@pytest.fixture(autouse=True)
def numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs it is not measured here."""
    monkeypatch.setattr(cpu, "AVAILABLE", True)


def small(group: str) -> dict[str, Any]:
    cases = bench.benchmark(Namespace(lengths=(8,), batch=1, rounds=1, threads=1)).cases
    return {case.name: case for case in cases if case.group == group}


@pytest.fixture
def found() -> BenchResult:
    """Costs fall by one from case to case of a group. The machine is ten times slower in the first
    of three rounds, and twice in the last."""
    costs = {}
    cases = bench.benchmark(OPTIONS).cases
    for group in dict.fromkeys(case.group for case in cases):
        members = [case for case in cases if case.group == group]
        for i, case in enumerate(members):
            cost = float(len(members) - i)
            for n in case.lengths:
                costs[group, case.name, n, case.measures[0]] = [10 * cost, cost, 2 * cost]
                if "peak_bytes" in case.measures:
                    costs[group, case.name, n, "peak_bytes"] = [cost * 2**20]
    settings = vars(OPTIONS) | {"heads": 2, "head_dim": 32, "M": 8, "L": 8}
    return result_of(costs, benchmark="lra bench luna", settings=settings)


def test_the_listing_and_linear_attention_are_what_luna_is_compared_with():
    attentions = small("attention")
    luna = {"M": 8, "L": 8, "hidden": 64}
    assert {name: case.options for name, case in attentions.items() if case.method == "luna"} == {
        "luna": luna,
        bench.LISTING: luna | {"evaluate": "dense"},
        "luna, piecewise": luna | {"evaluate": "piecewise"},
        "luna, compiled": luna | {"evaluate": "compiled"},
    }
    wide = attentions["linear, D = 64"]
    assert (wide.method, wide.head_dim, wide.value_dim) == ("linear", 8 * 8, 32)
    steps = small("step, image")
    assert "attention.evaluate=dense" in steps[bench.LISTING].words
    assert "protocol.recipe.batch=2" in steps["luna"].words
    assert list(steps["luna"].lengths) == [1024]


def test_cases_and_rules_can_be_sent_to_another_process():
    sent = bench.benchmark(OPTIONS)
    assert pickle.loads(pickle.dumps((sent.cases, sent.rules))) == (sent.cases, sent.rules)


def test_maps_and_attentions_are_measured():
    meter = Meter(BenchRules(rounds=1, threads=1, calls=1, least=0.0))
    maps = small("feature map")
    assert [case.evaluate for case in maps.values()] == ["dense", "piecewise", *["compiled"] * 5]
    assert set(maps["dense, hidden 64"].costs(8, meter)) == {"train_seconds"}
    listing = small("attention")[bench.LISTING]
    assert set(listing.costs(8, meter)) == {"train_seconds", "peak_bytes"}


def test_the_first_call_is_left_out_even_where_it_is_dear(monkeypatch: pytest.MonkeyPatch):
    durations = iter([9.0, 5.0])
    monkeypatch.setattr(Meter, "_once", lambda self, call: next(durations))
    meter = Meter(bench.benchmark(OPTIONS).rules)
    assert meter.seconds({"seconds": lambda: None}) == {"seconds": 5.0}


def test_every_target_stands_beside_what_was_measured(found: BenchResult):
    """Ratios within a round are the same in all three."""
    shown = {what: (target, measured) for what, target, measured in bench.targets(found)}
    n = "feature map, n = 4096"
    assert shown[f"{n}: listing / compiled"] == (">= 30", "1.75 (1.75 .. 1.75)")  # cases 7 and 4
    assert shown[f"{n}: slowest / fastest of hidden 16 .. 512"] == ("<= 1.3", "5.00")
    assert shown["n = 4096: luna / linear, D = 64"] == ("<= 1.15", "1.50 (1.50 .. 1.50)")
    assert shown["n = 4096: luna / linear"] == ("", "1.20 (1.20 .. 1.20)")
    assert shown["n = 4096: softmax / luna"] == (">= 3", "0.50 (0.50 .. 0.50)")
    assert shown["n = 1024: softmax / luna"][0] == ">= 1"
    assert shown["n = 1024: listing / luna"] == ("", "1.17 (1.17 .. 1.17)")
    assert shown["step, text: listing / luna"] == (">= 8", "1.33 (1.33 .. 1.33)")
    assert shown["step, image: peak memory, luna / linear"] == ("<= 1.2", "1.50")
    ratios, *tables = bench.tables(found)
    assert len(ratios.lines) == len(shown) == 14
    assert [table.title for table in tables[:3]] == [
        "Feature map: time of forward + backward, ms",
        "Attention: time of forward + backward, ms",
        "Attention: peak memory, MiB",
    ]
    assert tables[1].lines[0] == ["`luna, the listing`", "14,000", "14,000"]  # medians


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
