"""What happens in a process that measures: stopwatch, memory, order, limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lra.bench.worker import BenchCase, BenchMeter, BenchRules, measure

ORDER: list[str] = []  # what was measured


def meter(**rules: Any) -> BenchMeter:
    return BenchMeter(BenchRules(rounds=1, threads=1, **rules))


@dataclass(frozen=True, kw_only=True)
class Fake(BenchCase):
    """Costs n squared, in seconds, in bytes and in FLOPs."""

    fails: int = 0  # at this length
    counted: bool = True

    def flops(self, n: int) -> int:
        return self.counted * n**2

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        ORDER.append(f"{self.name}{n}")
        if n == self.fails:
            raise RuntimeError("no memory\nfor this")
        return {"seconds": float(n**2), "peak_bytes": n**2}


@pytest.fixture(autouse=True)
def _nothing_measured() -> None:
    ORDER.clear()


@pytest.fixture
def durations(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def take(*seconds: float) -> None:
        given = iter(seconds)
        monkeypatch.setattr(BenchMeter, "_once", lambda self, call: call() or next(given))

    return take


def test_calls_take_turns_and_the_first_of_each_is_left_out(durations: Callable[..., None]):
    calls = {name: lambda name=name: ORDER.append(name) for name in "ab"}
    durations(0.1, 0.1, 3.0, 5.0, 4.0, 2.0)
    assert meter(least=0.2).seconds(calls) == {"a": 3.0, "b": 2.0}
    assert "".join(ORDER) == "ababab"


@pytest.mark.parametrize(
    ("seconds", "rules", "expected"),
    [
        ([0.05, *[4.0] * 9, 3.0], {"least": 0.5}, 3.0),  # repeated until that has passed
        ([9.0], {}, 9.0),  # dear: once is enough
        ([9.0, 3.0], {"dear": math.inf, "least": 0.0, "calls": 1}, 3.0),
        ([9.0, 3.0, 7.0, 5.0], {"dear": 99.0, "calls": 3, "summary": sum}, 15.0),
    ],
)
def test_how_often_a_call_is_timed(
    seconds: list[float], rules: dict[str, Any], expected: float, durations: Callable[..., None]
):
    durations(*seconds)
    assert meter(**rules).seconds({"a": lambda: None}) == {"a": expected}


def test_memory_is_what_a_call_adds_and_what_it_leaves_behind():
    before, kept = torch.ones(1000), []

    def call() -> None:
        kept.append(torch.zeros(500))
        (before + 1).sum()

    assert 1500 * 4 <= meter().peak_bytes(call)["peak_bytes"] < 1700 * 4
    assert BenchMeter(meter().rules, memory=False).peak_bytes(call) == {}


def test_cases_take_turns_at_each_length_and_the_first_measurement_warms_up():
    cases = [Fake(group="g", name="a", lengths=[4, 2]), Fake(group="g", name="b", lengths=[4])]
    rows = list(measure(cases, meter()))
    assert ORDER == ["a2", "a2", "a4", "b4", "b4"]
    assert [(row.case, row.n, row.measure, row.values) for row in rows] == [
        (case, n, measure, [n**2])
        for case, n in (("a", 2), ("a", 4), ("b", 4))
        for measure in ("seconds", "peak_bytes", "flops")
    ]


@pytest.mark.parametrize(
    ("limit", "reason"), [({"seconds": 3.0}, "> 3 s"), ({"mib": 3 / 2**20}, "> 2.86102e-06 MiB")]
)
def test_a_case_stops_before_a_length_that_would_break_a_limit(limit: dict, reason: str):
    """The first length is measured, because nothing is known before it."""
    rows = list(measure([Fake(group="g", name="a", lengths=[1, 2, 4])], meter(**limit)))
    assert ORDER == ["a1", "a1"]
    assert [(row.n, row.stopped) for row in rows if row.stopped] == [(2, reason), (4, reason)]
    assert [row.values for row in rows if row.measure == "flops"] == [[1], [4], [16]]
    unknown = [Fake(group="g", name="a", lengths=[1, 2], counted=False)]
    assert not [row for row in measure(unknown, meter(**limit)) if row.stopped]


def test_a_case_that_fails_says_why_and_the_others_go_on(capsys: pytest.CaptureFixture[str]):
    cases = [Fake(group="g", name="a", lengths=[1, 2, 3], fails=2),
             Fake(group="g", name="b", lengths=[1, 2, 3])]  # fmt: skip
    rows = list(measure(cases, meter()))
    reason = "RuntimeError: no memory"
    assert [(r.case, r.n, r.stopped) for r in rows if r.stopped] == [
        ("a", 2, reason),
        ("a", 3, reason),
    ]
    assert ORDER == ["a1", "a1", "b1", "b1", "a2", "b2", "b3"]
    assert capsys.readouterr().err == f"a: {reason}\n"
