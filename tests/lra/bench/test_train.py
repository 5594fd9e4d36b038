"""`lra bench train`: what the framework adds."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from lra.bench import train as bench
from lra.bench.worker import BenchMeter, BenchRules
from lra.data.loader import Loader

from ..conftest import SMALL
from .results import result_of


@pytest.fixture
def words(tmp_path: Path) -> Sequence[str]:
    return [*SMALL, f"data_dir={tmp_path}", "trainer.progress=off", "compute=off"]


def test_the_bare_loop_and_the_framework_train_on_the_same_batches(
    words: Sequence[str], monkeypatch: pytest.MonkeyPatch
):
    seen: list[list[int]] = []
    stream = Loader.__iter__

    def spy(self: Loader):
        for batch in stream(self):
            seen[-1].append(int(batch.ids.sum()))
            yield batch

    monkeypatch.setattr(Loader, "__iter__", spy)
    meter = BenchMeter(BenchRules(rounds=1, threads=1))
    for name in bench.LOOPS:
        seen.append([])
        case = bench.LoopCase(group="training", name=name, words=words, steps=3)
        assert 0 < case.costs(0, meter)["seconds"] < 100
    assert len(seen[0]) == 4  # the first warms up
    assert seen[0] == seen[1] == seen[2]
    parts = bench.PartsCase(group="parts", name="bare loop", words=words, steps=2).costs(0, meter)
    assert list(parts) == ["forward_seconds", "backward_seconds", "optimiser_seconds"]
    assert all(0 < seconds < 100 for seconds in parts.values())


@pytest.mark.parametrize("threads", [None, 1, 2])
def test_the_threads_are_those_of_the_run(words: Sequence[str], threads: int | None):
    given = [] if threads is None else [f"trainer.threads={threads}"]
    options = Namespace(overrides=[*words, *given], steps=1, rounds=1)
    expected = threads or torch.get_num_threads()
    assert bench.benchmark(options).rules.threads == expected


def test_a_run_that_does_not_start_says_which(words: Sequence[str], monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    case = bench.StartCase(group="start", name="start", words=words)
    with pytest.raises(bench.UserError, match="the run did not reach its first step: /bin/false"):
        case.costs(0, BenchMeter(BenchRules(rounds=1, threads=1)))


def test_overhead_is_what_the_framework_takes_beyond_the_bare_loop():
    found = result_of({
        ("training", bench.BARE, 0, "seconds"): [0.1, 0.2, 0.1],
        ("training", bench.FRAMEWORK, 0, "seconds"): [0.11, 0.24, 0.105],
        ("training", bench.LOADING, 0, "seconds"): [0.001, 0.001, 0.002],
        ("start", bench.START, 0, "seconds"): [7.0, 9.0, 8.0],
        ("parts", bench.BARE, 0, "backward_seconds"): [0.05, 0.06, 0.05],
    })  # fmt: skip
    table, parts = bench.tables(found)
    assert parts.lines == [["backward", "50.00 (50.00 .. 60.00)"]]
    assert table.lines == [
        ["step, bare loop, ms", "100.00 (100.00 .. 200.00)"],
        ["step, framework, ms", "110.00 (105.00 .. 240.00)"],
        ["framework overhead", "+10.0% (+5.0% .. +20.0%)"],
        ["data loading, share of a step", "1.00% (0.50% .. 2.00%)"],
        ["start to first step, s", "8.0 (7.0 .. 9.0)"],
    ]
