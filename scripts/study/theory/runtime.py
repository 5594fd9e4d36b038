"""C6: the exponents of n in time and memory, from a committed file of `lra bench attention`."""

from pathlib import Path

import matplotlib.pyplot as plt
from kernels import main, slope

from lra.bench.result import BenchResult

BENCH = Path(__file__).parents[3] / "results/bench/attention-amd-epyc-1thread-torch2.13.0.json"


def runtime():
    slopes = {"train_seconds": {}, "forward_seconds": {}, "peak_bytes": {}}
    for _, measure, values in BenchResult.load(BENCH).tables():
        for case, least in values.groupby("n").min().items():  # a disturbed call is only slower
            if measure in slopes and least.count() >= 3:
                points = least.dropna().iloc[-3:]
                slopes[measure][case] = slope(points.index, points)
    names = sorted(slopes["train_seconds"], key=slopes["train_seconds"].get)
    figure, axes = plt.subplots(figsize=(7, 4.6))
    for measure, marker in zip(slopes, "os^", strict=True):
        exponents = [slopes[measure].get(name, float("nan")) for name in names]
        axes.plot(exponents, names, marker, fillstyle="none", label=measure)
    axes.axvspan(0.9, 1.1, color="0.92")
    axes.axvspan(1.9, 2.1, color="0.92")
    axes.set(xlabel="exponent of n (grey: 1 ± 0.1 and 2 ± 0.1)")
    return {"file": BENCH.name, "slopes": slopes}, figure


if __name__ == "__main__":
    main(__doc__, {"C6": (runtime, {})})
