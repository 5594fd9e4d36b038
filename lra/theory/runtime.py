"""C6: the exponents of n in time and memory, from the file of `lra bench attention`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import luna
from lra.bench.rows import TAIL, BenchResult, fastest, slope

MEASURES = ("forward_seconds", "train_seconds", "peak_bytes")


def measure(file: Path) -> dict[str, Any]:
    result = BenchResult.load(file)
    costs: dict[str, dict[str, dict[int, float]]] = {measure: {} for measure in MEASURES}
    slopes: dict[str, dict[str, float]] = {measure: {} for measure in MEASURES}
    for measure in MEASURES:
        for case, rows in result.select("attention", measure).items():
            found = {n: fastest(row) for n, row in rows.items() if row.values}
            exponent = slope(found)
            if exponent is not None:
                costs[measure][case], slopes[measure][case] = found, exponent
    linear = {case: luna.get(facts["attention"]).linear_in_n
              for (_, case), facts in result.cases.items() if case in slopes["train_seconds"]}  # fmt: skip
    steps = slopes["train_seconds"]
    near = [case for case in linear if linear[case] and abs(steps[case] - 1) <= 0.1]
    others = {case: round(steps[case], 2) for case in linear if linear[case] and case not in near}
    named = ", ".join(f"{case} {value:.2f}" for case, value in sorted(others.items()))
    return {
        "holds": abs(steps["luna"] - 1) <= 0.1 and abs(steps["softmax"] - 2) <= 0.1,
        "verdict": f"forward + backward at the {TAIL} longest lengths: luna n^{steps['luna']:.2f}, "
        f"softmax n^{steps['softmax']:.2f}; {len(near)} of {sum(linear.values())} linear methods lie "
        f"within 1 ± 0.1, the others: {named or 'none'}",
        "file": file.name, "machine": result.facts["machine"], "linear": linear,
        "slopes": slopes, "costs": costs,
    }  # fmt: skip
