"""Results: files, and the arithmetic on rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lra.base.config import UserError
from lra.bench.rows import ANY, BenchResult, break_even, ratio_by_round, ratios, slope

from .results import result_of

LENGTHS = (128, 256, 512, 1024)


def test_a_file_gives_back_what_was_saved(tmp_path: Path):
    found = result_of({("g", "a", 8, "seconds"): [0.5, 0.25], ("g", "a", 16, "seconds"): "> 1 s"})
    found.save(tmp_path / "found.json")
    assert BenchResult.load(tmp_path / "found.json") == found
    other = tmp_path / "other.json"
    other.write_text('{"benchmark": "something else"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"other\.json is not a file of numbers from `lra bench`"):
        BenchResult.load(other)


def test_rows_are_selected_in_the_order_of_cases_and_lengths():
    found = result_of({
        ("g", "b", 16, "seconds"): [1.0], ("g", "b", 8, "seconds"): [2.0],
        ("g", "a", 8, "seconds"): [3.0], ("g", "a", 8, "peak_bytes"): [4],
        ("g", "a", 8, ANY): "killed", ("g", "a", 16, ANY): "> 1 s",
        ("h", "a", 8, "seconds"): [5.0],
    }).select("g", "seconds")  # fmt: skip
    shown = [
        (case, n, row.values or row.stopped)
        for case, rows in found.items()
        for n, row in rows.items()
    ]
    assert shown == [("b", 8, [2.0]), ("b", 16, [1.0]), ("a", 8, [3.0]), ("a", 16, "> 1 s")]


def test_a_ratio_is_of_the_fastest_rounds_and_only_where_both_were_measured():
    found = result_of({
        ("g", "base", 8, "seconds"): [2.0, 8.0], ("g", "base", 16, "seconds"): [4.0],
        ("g", "base", 32, "seconds"): "killed",
        ("g", "own", 8, "seconds"): [9.0, 6.0], ("g", "own", 16, "seconds"): "> 1 s",
        ("g", "own", 32, "seconds"): [7.0],
    }).select("g", "seconds")  # fmt: skip
    assert ratios(found, "own", "base") == {8: 3.0}
    # A busy machine slows both sides of one round; a case that stopped has fewer rounds.
    assert ratio_by_round(found["own"][8], found["base"][8]) == [4.5, 0.75]
    assert ratio_by_round(found["own"][8], found["base"][16]) == [2.25]


@pytest.mark.parametrize("power", [0.5, 1, 2])
def test_slope_is_the_exponent_at_the_long_end(power: float):
    costs = {2**i: 5e-3 * 2 ** (i * power) for i in range(4, 10)}
    assert slope(costs | {16: 1e9}) == pytest.approx(power)
    assert slope({16: 1.0, 32: 1.0}) is None


@pytest.mark.parametrize(
    ("cost", "text", "n"),
    [
        (lambda n: 300 * n, "≈ 300", 300),
        (lambda n: 100 * n, "≤ 128", None),
        (lambda n: 1024 * n, "> 1,024", None),  # as much is not less
        # Less once, by accident, and then not: the last crossing counts.
        (lambda n: {128: 1, 256: 2 * 256**2}.get(n, 300 * n), "≈ 380", 378),
    ],
)
def test_break_even_is_where_the_lines_cross(cost: Callable, text: str, n: float | None):
    """n² against n: straight lines in the logarithms, so that the crossing is exact."""
    shown, crossing = break_even({n: cost(n) / n**2 for n in LENGTHS})
    assert shown == text
    assert crossing == (n and pytest.approx(n, rel=0.01))
