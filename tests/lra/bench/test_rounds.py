"""Rounds over all cases, each group in a process that may die."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass

import pytest

from lra.bench import rounds
from lra.bench.rows import BenchRow
from lra.bench.worker import BenchCase, BenchRules, Meter
from lra.config import UserError

RULES = BenchRules(rounds=2, threads=1)


@dataclass(frozen=True, kw_only=True)
class Dying(BenchCase):
    at: int  # the length at which the process is killed

    def costs(self, n: int, meter: Meter) -> dict[str, float]:
        if n == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"seconds": 1.0, "process": float(os.getpid())}


def cases(*names: str, **more: bool) -> list[BenchCase]:
    return [BenchCase(group="g", name=name, lengths=[8, 16], **more) for name in names]


def answer(members: list[BenchCase], *values: float, stopped: str | None = None) -> list[BenchRow]:
    return [
        BenchRow(group="g", case=case.name, n=n, measure="seconds", values=[*values],
                 stopped=stopped)
        for case in members for n in case.lengths
    ]  # fmt: skip


def test_a_process_that_dies_leaves_its_rows_and_a_reason(capsys: pytest.CaptureFixture[str]):
    members = [Dying(group="g", name="a", lengths=[1, 2, 3], at=2)]
    rows = {(row.n, row.measure): row for row in rounds.ask(members, Meter(RULES))}
    assert rows[1, "seconds"].values == [1.0]
    assert rows[1, "process"].values != [os.getpid()]
    assert [rows[n, "peak_bytes"].stopped for n in (2, 3)] == ["killed"] * 2
    assert capsys.readouterr().err == "a: killed at n = 2\n"


def test_a_process_that_does_not_answer_in_time_is_ended():
    rules = BenchRules(rounds=1, threads=1, timeout=0.01)
    rows = rounds.ask(cases("a"), Meter(rules))
    assert {row.stopped for row in rows} == {"no answer within 0.01 s"}
    assert {(row.n, row.measure) for row in rows} == {
        (n, measure) for n in (8, 16) for measure in ("seconds", "peak_bytes")
    }


@pytest.mark.parametrize(("alone", "processes"), [(False, [["a", "b"]]), (True, [["a"], ["b"]])])
def test_every_round_asks_all_cases_and_keeps_every_value(
    monkeypatch: pytest.MonkeyPatch, alone: bool, processes: list[list[str]]
):
    asked: list[list[str]] = []
    memory: list[bool] = []

    def ask(members: list[BenchCase], meter: Meter) -> list[BenchRow]:
        asked.append([case.name for case in members])
        memory.append(meter.memory)
        return answer(members, float(len(asked)))

    monkeypatch.setattr(rounds, "ask", ask)
    (_, first), (number, rows) = (
        (done, [(row.case, row.n, list(row.values)) for row in rows])
        for done, rows in rounds.rounds(cases("a", "b", alone=alone), RULES)
    )
    assert number == 2
    assert asked == processes * 2
    assert memory == [True] * len(processes) + [False] * len(processes)
    by_case = {"a": [1.0, 3.0], "b": [2.0, 4.0]} if alone else {"a": [1.0, 2.0], "b": [1.0, 2.0]}
    assert rows == [(case, n, by_case[case]) for case in "ab" for n in (8, 16)]
    assert [values for *_, values in first] == [values[:1] for *_, values in rows]


def test_what_stopped_is_not_measured_again(monkeypatch: pytest.MonkeyPatch):
    lengths: list[list[int]] = []

    def ask(members: list[BenchCase], meter: Meter) -> list[BenchRow]:
        lengths.append(list(members[0].lengths))
        rows = answer(members, 1.0)
        if meter.memory:
            rows[-1].values, rows[-1].stopped = [], "> 1 s"
        return rows

    monkeypatch.setattr(rounds, "ask", ask)
    *_, (_, rows) = rounds.rounds(cases("a"), RULES)
    assert lengths == [[8, 16], [8]]
    assert [(row.values, row.stopped) for row in rows] == [([1.0, 1.0], None), ([], "> 1 s")]


def test_a_benchmark_that_measures_nothing_says_why(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rounds, "ask", lambda members, meter: answer(members, stopped="killed"))
    with pytest.raises(UserError, match="nothing was measured: killed"):
        list(rounds.rounds(cases("a"), RULES))
