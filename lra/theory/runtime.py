"""C6: the exponents of n in time and memory, from the file of `lra bench attention`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import luna
from lra.bench.rows import TAIL, BenchResult, fastest, slope


def measure(file: Path) -> dict[str, Any]:
    result = BenchResult.load(file)
    slopes: dict[str, dict[str, float]] = {}
    for measure in ("forward_seconds", "train_seconds", "peak_bytes"):
        costs = result.select("attention", measure).items()
        found = {case: slope({n: fastest(row) for n, row in rows.items() if row.values})
                 for case, rows in costs}  # fmt: skip
        slopes[measure] = {case: exponent for case, exponent in found.items() if exponent}
    steps = slopes["train_seconds"]
    linear = {case: luna.get(facts["attention"]).linear_in_n
              for (_, case), facts in result.cases.items() if case in steps}  # fmt: skip
    far = {case: steps[case] for case in linear if linear[case] and abs(steps[case] - 1) > 0.1}
    others = ", ".join(f"{case} {value:.2f}" for case, value in sorted(far.items()))
    return {
        "holds": abs(steps["luna"] - 1) <= 0.1 and abs(steps["softmax"] - 2) <= 0.1,
        "verdict": f"forward + backward at the {TAIL} longest lengths: luna n^{steps['luna']:.2f}, "
        f"softmax n^{steps['softmax']:.2f}; {sum(linear.values()) - len(far)} of "
        f"{sum(linear.values())} linear methods lie within 1 ± 0.1, the others: {others or 'none'}",
        "file": file.name,
        "machine": result.facts["machine"],
        "linear": linear,
        "slopes": slopes,
    }
