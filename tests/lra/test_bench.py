"""`lra bench attention`: a row for every length whatever happens, right slopes, right memory."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from lra.bench import attention as bench
from lra.bench import rounds, worker
from lra.bench.plain import PLAIN, WHOLE
from lra.bench.sheet import _ratios, markdown, slope
from lra.cli import main
from lra.figures.labels import spread


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SMALL = ["--lengths", "16", "64", "32", "--heads", "1", "--head-dim", "8", "--repeats", "1"]


def request(**more: Any) -> dict[str, Any]:
    return {
        "method": "softmax", "profile": "published", "lengths": [64, 128, 256], "batch": 1,
        "heads": 2, "head_dim": 8, "device": "cpu", "threads": 1, "seconds": 10.0, "mib": 4096.0,
        "memory": True,
    } | more  # fmt: skip


FACTS = {
    "settings": request(repeats=1), "versions": {"torch": "t", "python": "p", "luna-lra": "l"},
    "machine": {"kind": "cpu", "device": "d", "threads": 1, "system": "s"},
    "git": {"revision": None, "dirty": None}, "date": "today",
}  # fmt: skip


def test_the_command_writes_every_table_and_picture(tmp_path: Path, capsys) -> None:
    words = ["--methods", "uniform", "softmax@published", *SMALL, "--out", str(tmp_path)]
    assert main(["bench", "attention", *words]) == 0
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(written) == {".csv", ".json", ".md", ".png", ".svg"}
    assert f"torch{torch.__version__.partition('+')[0]}" in written[".csv"].name

    facts = json.loads(written[".json"].read_text())
    assert facts["machine"]["threads"] == 1
    assert facts["versions"]["torch"] == torch.__version__
    with written[".csv"].open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["method"], r["profile"], int(r["n"])) for r in rows] == [
        (*method, n) for method in (("uniform", "strict"), ("softmax", "published"))
        for n in (16, 32, 64)
    ]  # fmt: skip
    for row in rows:
        assert float(row["train_ms"]) > 0
        assert float(row["forward_ms"]) > 0
        assert float(row["peak_mib"]) > 0
        assert float(row["spread"]) >= 1
        attention = luna.build(row["method"], n_heads=1, head_dim=8, max_len=64)
        assert float(row["mflops"]) == pytest.approx(attention.flops(int(row["n"])) / 1e6)
    text = written[".md"].read_text()
    assert facts["machine"]["device"] in text
    assert text.count("`softmax (published)`") == 4 + 1  # four tables and the header
    assert f"written to {written['.svg']}" in capsys.readouterr().out


def test_peak_memory_is_that_of_the_matrices() -> None:
    """Softmax written out holds its scores and weights, and in the backward pass their gradients:
    between two and four n x n tensors of float32 for each head."""
    rows = list(worker.measure(request()))
    assert [row["stopped"] for row in rows] == [None] * 3
    last = rows[-1]["peak_bytes"]
    matrix = 2 * 256 * 256 * 4
    assert 2 * matrix < last < 4.5 * matrix
    assert slope([64, 128, 256], [row["peak_bytes"] for row in rows]) == pytest.approx(2, abs=0.3)


@pytest.mark.parametrize(
    ("limit", "said"), [({"seconds": 1e-6}, "> 1e-06 s"), ({"mib": 0.2}, "> 0.2 MiB")]
)
def test_a_method_stops_at_a_limit_and_says_which(limit: dict[str, float], said: str) -> None:
    """The first length is measured, as nothing is known before it; after a stop nothing is."""
    rows = list(worker.measure(request(**limit)))
    assert rows[0]["stopped"] is None
    assert [row["stopped"] for row in rows[-2:]] == [said] * 2
    assert all(row["flops"] > 0 for row in rows)
    assert all(("train_seconds" in row) is (row["stopped"] is None) for row in rows)
    labelled = [row | {"method": "softmax", "profile": "published"} for row in rows]
    tables = markdown(labelled, FACTS).split("## ")[1:]
    for table in tables[:3]:
        assert table.count(said) == 2
    assert said not in tables[3]  # FLOPs are known for every length


def test_a_process_that_dies_leaves_a_reason_in_every_cell(monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    settings = bench.Settings(
        lengths=[8, 16], repeats=1, threads=1, batch=1, heads=1, head_dim=8, device="cpu",
        seconds=1, mib=1,
    )  # fmt: skip
    todo = {("softmax", "strict"): [8, 16]}
    rows = [row for _, row in bench._run(settings, todo, memory=True)]
    assert [(row["n"], row["stopped"]) for row in rows] == [(8, "failed"), (16, "failed")]
    assert "softmax: failed at n=8" in capsys.readouterr().err


def test_later_rounds_keep_the_fastest_and_the_slowest() -> None:
    first = {"train_seconds": 2.0, "forward_seconds": 1.0, "slowest_seconds": 2.0, "peak_bytes": 7,
             "stopped": None}  # fmt: skip
    second = first | {"train_seconds": 3.0, "forward_seconds": 0.5, "slowest_seconds": 3.0}
    merged = rounds.faster(first, second)
    assert (merged["train_seconds"], merged["forward_seconds"]) == (2.0, 0.5)
    assert merged["slowest_seconds"] == 3.0
    assert rounds.faster(first, {"stopped": "killed"}) == first


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_slope_is_the_exponent_at_the_long_end(power: float) -> None:
    lengths = [2**i for i in range(4, 10)]
    values = [5e-3 * n**power for n in lengths]
    assert slope(lengths, [1e9, *values[1:]]) == pytest.approx(power)
    assert slope(lengths, [*values[:-1], None]) == pytest.approx(power)
    assert slope(lengths, [1.0, 1.0, *[None] * 4]) is None


def test_every_fast_and_slow_call_is_timed_at_its_fastest(monkeypatch) -> None:
    for durations, expected in (([9.0, 0.05, 0.01], 9.0), ([0.5, 0.05, 0.01], 0.01)):
        given = iter(durations)
        monkeypatch.setattr(worker, "_once", lambda call, device, given=given: next(given))
        calls = {"a": lambda: None}
        assert worker.fastest(calls, torch.device("cpu")) == {"a": expected}


def test_labels_are_apart_and_in_order() -> None:
    places = [0.1, 0.5, 0.5, 0.505, 0.9]
    moved = spread(places, 0.02)
    gaps = [b - a for a, b in pairwise(moved)]
    assert min(gaps) >= 0.02 - 1e-12
    assert (moved[0], moved[-1]) == (0.1, 0.9)
    assert sum(moved[1:4]) == pytest.approx(sum(places[1:4]))
    assert spread([0.0, 0.0, 1.0, 1.0], 0.2, within=(0, 1)) == pytest.approx([0, 0.2, 0.8, 1])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "softmacks"], "unknown attention 'softmacks'; did you mean softmax?"),
        (["--methods", "luna@published"], "attention 'luna' does not differ under profile"),
        (["--repeats", "0"], "--repeats must be greater than 0, got 0"),
        (["--lengths", "0"], "--lengths must be at least 1, got 0"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capsys) -> None:
    assert main(["bench", "attention", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("name", sorted(PLAIN))
def test_the_plain_version_is_the_same_method(name: str) -> None:
    """So that their times may be compared; and one more oracle for the library's own."""
    n = 2 * WHOLE
    torch.manual_seed(0)
    attention = luna.build(name, n_heads=2, head_dim=32, max_len=n).eval().double()
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn_like(p))
    q, k, v = (torch.randn(1, 2, n, 32, dtype=torch.float64) for _ in range(3))
    x = torch.randn(1, n, 64, dtype=torch.float64)
    with default_dtype(torch.float64):
        plain = PLAIN[name](attention, q, k, v, x)
    torch.testing.assert_close(attention(q, k, v, None, x), plain, rtol=1e-9, atol=1e-9)


def test_plain_versions_are_timed_in_turn_where_blocks_divide_the_length() -> None:
    rows = list(worker.measure(request(method="local", profile="strict", lengths=[128, 256])))
    assert ["plain_seconds" in row for row in rows] == [False, True]
    labelled = [row | {"method": "local", "profile": "strict"} for row in rows]
    *_, line = _ratios(labelled)
    assert line in markdown(labelled, FACTS)
    assert line == f"| `local` | – | {rows[1]['train_seconds'] / rows[1]['plain_seconds']:.2f} |"


def test_gradients_of_inputs_and_parameters_are_counted() -> None:
    """What is there before the call is not counted; what it leaves behind is."""
    before = torch.ones(1000)
    kept: list[Tensor] = []

    def call() -> None:
        kept.append(torch.zeros(500))
        (before + 1).sum()

    assert 1500 * 4 <= worker.peak_bytes(call, torch.device("cpu")) < 1700 * 4
