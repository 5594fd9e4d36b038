"""What happens in a process that measures: stopwatch, memory, order, limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from lra.bench.worker import BenchCase, BenchRules, Meter, measure

ORDER: list[tuple[str, int]] = []  # what was measured


def rules(**more: Any) -> BenchRules:
    return BenchRules(rounds=1, threads=1, **more)


@dataclass(frozen=True, kw_only=True)
class Fake(BenchCase):
    """Costs n squared, in seconds, in bytes and in FLOPs; 0 FLOPs are unknown."""

    fails: int = 0  # at this length
    known: bool = True

    def flops(self, n: int) -> int:
        return self.known * n**2

    def costs(self, n: int, meter: Meter) -> dict[str, float]:
        ORDER.append((self.name, n))
        if n == self.fails:
            raise RuntimeError("no memory\nfor this")
        return {"seconds": float(n**2)} | ({"peak_bytes": n**2} if meter.memory else {})


@pytest.fixture(autouse=True)
def _nothing_measured() -> None:
    ORDER.clear()


def watch(monkeypatch: pytest.MonkeyPatch, durations: list[float]) -> None:
    given = iter(durations)
    monkeypatch.setattr(Meter, "_once", lambda self, call: call() or next(given))


def test_calls_take_turns_and_the_first_of_each_is_left_out(monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    watch(monkeypatch, [0.1, 0.1, 3.0, 5.0, 4.0, 2.0])
    assert Meter(rules(least=0.2)).seconds(calls) == {"a": 3.0, "b": 2.0}
    assert "".join(order) == "ababab"


def test_a_call_is_repeated_until_it_took_long_enough_and_a_dear_one_counts_at_once(
    monkeypatch: pytest.MonkeyPatch,
):
    calls = {"a": lambda: None}
    for durations, more, expected in (
        ([0.05, *[4.0] * 9, 3.0], {"least": 0.5}, 3.0),
        ([9.0], {}, 9.0),  # over `dear`
        ([9.0, 3.0], {"dear": float("inf"), "least": 0.0, "calls": 1}, 3.0),
        ([9.0, 3.0, 7.0, 5.0], {"dear": 99.0, "calls": 3, "summary": sum}, 15.0),
    ):
        watch(monkeypatch, durations)
        assert Meter(rules(**more)).seconds(calls) == {"a": expected}


def test_memory_is_what_a_call_adds_and_what_it_leaves_behind():
    before, kept = torch.ones(1000), []

    def call() -> None:
        kept.append(torch.zeros(500))
        (before + 1).sum()

    assert 1500 * 4 <= Meter(rules()).peak_bytes(call)["peak_bytes"] < 1700 * 4
    assert Meter(rules(), memory=False).peak_bytes(call) == {}


def test_cases_take_turns_at_each_length_and_the_first_measurement_warms_up():
    cases = [Fake(group="g", name="a", lengths=[4, 2]), Fake(group="g", name="b", lengths=[4])]
    rows = list(measure(cases, Meter(rules())))
    assert ORDER == [("a", 2), ("a", 2), ("a", 4), ("b", 4), ("b", 4)]
    assert [(row.case, row.n, row.measure, row.values) for row in rows] == [
        (case, n, measure, [n**2])
        for case, n in (("a", 2), ("a", 4), ("b", 4))
        for measure in ("flops", "seconds", "peak_bytes")
    ]


@pytest.mark.parametrize(
    ("limit", "reason"), [({"seconds": 3.0}, "> 3 s"), ({"mib": 3 / 2**20}, "> 2.86102e-06 MiB")]
)
def test_a_case_stops_before_a_length_that_would_break_a_limit(limit: dict, reason: str):
    """The first length is measured, because nothing is known before it."""
    (case,) = [Fake(group="g", name="a", lengths=[1, 2, 4])]
    rows = list(measure([case], Meter(rules(**limit))))
    assert ORDER == [("a", 1), ("a", 1)]
    assert {(row.n, row.stopped) for row in rows if row.measure != "flops"} == {
        (1, None), (2, reason), (4, reason),
    }  # fmt: skip
    assert [row.values for row in rows if row.measure == "flops"] == [[1], [4], [16]]
    unknown = [Fake(group="g", name="a", lengths=[1, 2], known=False)]
    assert all(row.values for row in measure(unknown, Meter(rules(**limit))))


def test_a_case_that_fails_says_why_and_the_others_go_on(capsys: pytest.CaptureFixture[str]):
    cases = [Fake(group="g", name="a", lengths=[1, 2, 3], fails=2),
             Fake(group="g", name="b", lengths=[1, 2, 3])]  # fmt: skip
    rows = [row for row in measure(cases, Meter(rules())) if row.measure == "seconds"]
    reason = "RuntimeError: no memory"
    assert [row.stopped for row in rows if row.case == "a"] == [None, reason, reason]
    assert all(row.values for row in rows if row.case == "b")
    assert ORDER.count(("a", 3)) == 0
    assert capsys.readouterr().err == f"a: {reason}\n"
