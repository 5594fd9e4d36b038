"""`lra bench luna`: the arithmetic of its ratios and its page; the measuring is not timed here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from lra.bench import luna as bench
from lra.config import UserError
from luna.kernels import cpu

SETTINGS = bench.Settings(lengths=(1024, 4096), rounds=3, threads=1, batch=2)


def rows() -> list[dict[str, Any]]:
    """Every name takes its own whole number of seconds, thrice: alone, and beside a busy machine
    that slows two rounds by 10 and by 2."""
    found = []
    names = {
        "feature map": ["dense, hidden 64", "piecewise, hidden 64"]
        + [f"compiled, hidden {width}" for width in (16, 64, 512)],
        "attention": ["luna, the listing", "luna", "linear", "linear, D = 64", "softmax, fused"],
        "step, image": ["luna, the listing", "luna", "linear"],
        "step, text": ["luna, the listing", "luna", "linear"],
    }
    for what, group in names.items():
        for n in SETTINGS.lengths if what == "attention" else (4096,):
            for i, name in enumerate(group):
                seconds = float(len(group) - i)
                found.append({
                    "what": what, "n": n, "name": name, "peak_mib": 10 * seconds,
                    "seconds": [10 * seconds, seconds, 2 * seconds],
                })  # fmt: skip
    return found


def test_ratios_are_of_the_same_round():
    """A busy round slows both sides of a ratio and leaves it as it is."""
    found = rows()
    found[1]["seconds"][0] *= 3  # piecewise, in the first round
    fast, slow = "compiled, hidden 64", "piecewise, hidden 64"
    assert bench.ratio(found, slow, fast, what="feature map") == (2.0, 2.0, 6.0)
    assert bench.ratio(found, "luna", "linear", what="attention", n=1024)[0] == pytest.approx(4 / 3)


def test_every_target_is_told_beside_what_was_measured():
    told = {what: (target, measured) for what, target, measured in bench.targets(rows(), SETTINGS)}
    hidden = "feature map, n = 4096"
    assert told[f"{hidden}: listing / compiled"] == (">= 30", "2.50 (2.50 .. 2.50)")
    assert told[f"{hidden}: slowest / fastest of hidden 16 .. 512"] == ("<= 1.3", "3.00")
    assert told["n = 4096: luna / linear, D = 64"] == ("<= 1.15", "2.00 (2.00 .. 2.00)")
    assert told["n = 4096: softmax / luna"] == (">= 3", "0.25 (0.25 .. 0.25)")
    assert told["n = 1024: softmax / luna"][0] == ">= 1"
    assert told["step, text: peak memory, luna / linear"] == ("<= 1.2", "2.00")
    versions = {"torch": "1", "numba": "2", "python": "3"}
    facts = {"machine": {"device": "a CPU"}, "date": "today", "versions": versions}
    page = bench._page(rows(), facts, SETTINGS)
    assert "| n = 4096: listing / luna |  | 1.25 (1.25 .. 1.25) |" in page
    assert page.count("\n| attention | 4096 |") == 5


def test_the_picture_is_the_same_for_the_same_numbers(tmp_path):
    from lra.bench.luna_figure import draw

    facts = {
        "settings": asdict(SETTINGS),
        "machine": {"device": "a CPU", "kind": "cpu", "threads": 2},
        "versions": {"torch": "1"},
        "date": "2026-01-01",
    }
    for name in ("first", "second"):
        draw(rows(), facts, tmp_path / name)
    assert (tmp_path / "first.png").stat().st_size > 10_000
    svg = (tmp_path / "first.svg").read_bytes()
    assert svg == (tmp_path / "second.svg").read_bytes()
    assert b"softmax, fused" in svg
    assert b"a CPU, 2 threads" in svg


def test_calls_are_interleaved_and_each_first_one_is_left_out():
    order: list[str] = []
    times = bench.interleave({name: lambda name=name: order.append(name) for name in "ab"}, 2)
    assert order == list("aabbaabb")
    assert [len(t) for t in times.values()] == [2, 2]


def test_mistakes_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path):
    with pytest.raises(UserError, match="--rounds must be at least 1, got 0"):
        bench.Settings(lengths=(8,), rounds=0, threads=1, batch=1)
    with pytest.raises(UserError, match="--lengths must be at least 1"):
        bench.Settings(lengths=(0,), rounds=1, threads=1, batch=1)
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    with pytest.raises(UserError, match=r"pip install 'luna-lra\[fast\]'"):
        bench.bench(SETTINGS, tmp_path)
