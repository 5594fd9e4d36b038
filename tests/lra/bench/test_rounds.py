"""Rounds over all cases, each group in a process that may die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from lra.base.config import UserError
from lra.bench import rounds
from lra.bench.rows import ANY, BenchRow
from lra.bench.worker import BenchCase, BenchMeter, BenchRules, rows_of

RULES = BenchRules(rounds=2, threads=1)
CASES = [BenchCase(group="g", name=name, lengths=[8, 16]) for name in "ab"]


@dataclass(frozen=True, kw_only=True)
class Dying(BenchCase):
    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        if n == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"seconds": 1.0, "process": float(os.getpid())}


def test_a_process_that_dies_leaves_its_rows_and_a_reason(capsys: pytest.CaptureFixture[str]):
    rows = rounds.ask([Dying(group="g", name="a", lengths=[1, 2, 3])], BenchMeter(RULES))
    assert [(row.n, row.measure, row.stopped) for row in rows] == [
        (1, "seconds", None), (1, "process", None), (2, ANY, "killed"), (3, ANY, "killed"),
    ]  # fmt: skip
    assert rows[1].values != [os.getpid()]
    assert capsys.readouterr().err == "a: killed at n = 2\n"


def test_a_process_that_does_not_answer_in_time_is_ended():
    for rules in (BenchRules(rounds=1, threads=1, timeout=0.01),
                  BenchRules(rounds=1, threads=1, seconds=0.01 / rounds.PATIENCE)):  # fmt: skip
        rows = rounds.ask(CASES, BenchMeter(rules))
        assert {row.stopped for row in rows} == {"no answer within 0.01 s"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """The cases and lengths of every process, and whether it measures memory. Its costs are the
    number of the process; "b" fails at 16."""
    found: list[tuple[str, bool]] = []

    def ask(cases: list[BenchCase], meter: BenchMeter) -> Iterator[BenchRow]:
        words = " ".join(f"{case.name}{n}" for case in cases for n in case.lengths)
        found.append((words, meter.memory))
        for case in cases:
            for n in case.lengths:
                fails = (case.name, n) == ("b", 16)
                costs = {} if fails else {"seconds": float(len(found)), "flops": 7}
                yield from rows_of(case, n, costs, "killed" if fails else None)

    monkeypatch.setattr(rounds, "ask", ask)
    return found


def test_every_round_asks_again_for_what_did_not_stop(asked: list[tuple[str, bool]]):
    done = []
    for number, rows in rounds.rounds(CASES, RULES):
        done.append((number, {(r.case, r.n): list(r.values) for r in rows if r.measure != "flops"}))
        assert all(row.values == [7] for row in rows if row.measure == "flops")
    assert asked == [("a8 a16 b8 b16", True), ("a8 a16 b8", False)]
    assert done == [
        (1, {("a", 8): [1.0], ("a", 16): [1.0], ("b", 8): [1.0], ("b", 16): []}),
        (2, {("a", 8): [1.0, 2.0], ("a", 16): [1.0, 2.0], ("b", 8): [1.0, 2.0], ("b", 16): []}),
    ]


def test_a_case_may_have_a_process_of_its_own(asked: list[tuple[str, bool]]):
    alone = [BenchCase(group="g", name=name, lengths=[8], alone=True) for name in "ab"]
    list(rounds.rounds(alone, RULES))
    assert [words for words, _ in asked] == ["a8", "b8", "a8", "b8"]


def test_a_benchmark_that_measures_nothing_says_why(asked: list[tuple[str, bool]]):
    with pytest.raises(UserError, match="nothing was measured: killed"):
        list(rounds.rounds([BenchCase(group="g", name="b", lengths=[16])], RULES))
