"""What a step takes where it cannot be measured, from steps of finished runs (lra/reference).

A device gets through a step in a + F / f + B / b seconds: F the FLOPs of the products, B the bytes
that are written, both counted; a, f and b are fitted to its known steps. A method is slower or
faster than that by a factor of its own: its mean over all its known steps, on any device. How far
such estimates are off is tried on the known steps, each without what is known of this method on
this device.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from lra.base.errors import UserError, nearest
from lra.reference.times import Times, Work, known

FEWEST = 3  # known steps of a device, fewer than which say nothing of it


@dataclass(frozen=True)
class Step:
    """A known step."""

    work: Work
    times: Times

    @property
    def device(self) -> str:
        return self.times.place


@cache
def steps() -> tuple[Step, ...]:
    return tuple(Step(work, times) for work, found in known().items() for times in found)


def devices() -> list[str]:
    """Those of which enough is known."""
    names = [step.device for step in steps()]
    return sorted(name for name in {*names} if names.count(name) >= FEWEST)


def tasks_on(device: str) -> str:
    """The tasks of its known steps."""
    return ", ".join(sorted({step.work.task for step in steps() if step.device == device}))


def device_named(word: str) -> str:
    """The device that a word names, `h100`; UserError where none or several do."""
    there = devices()
    found = [name for name in there if word.lower() in name.lower()]
    if len(found) != 1:
        which = f"names several: {'; '.join(found)}" if found else "is not known"
        raise UserError(f"--device {word} {which}{'' if found else nearest(word, there)}")
    return found[0]


def seconds_of(
    method: str, gflops: float, gbytes: float, device: str, among: Sequence[Step] = ()
) -> float:
    """What a step of a method takes on a device of which steps are known."""
    among = among or steps()
    return _predict(gflops, gbytes, _fit(device, among)) * _factor(method, among)


def _predict(gflops: float, gbytes: float, costs: np.ndarray) -> float:
    return float(np.array([1.0, gflops, gbytes]) @ costs)


def _fit(device: str, among: Sequence[Step]) -> np.ndarray:
    """a, 1 / f and 1 / b: none negative, with the least squares of relative errors."""
    own = [step for step in among if step.device == device]
    taken = np.array([step.times.median for step in own])
    counted = np.array([[1.0, step.times.gflops, step.times.gbytes] for step in own])
    best, least = np.zeros(3), math.inf
    for used in itertools.chain.from_iterable(
        itertools.combinations(range(3), n) for n in (1, 2, 3)
    ):
        columns = counted[:, list(used)] / taken[:, None]
        found = np.linalg.lstsq(columns, np.ones(len(own)), rcond=None)[0]
        error = float(np.square(columns @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = np.zeros(3), error
            best[list(used)] = found
    return best


def _factor(method: str, among: Sequence[Step]) -> float:
    """How much slower a method is than its counts say; 1 where no step of it is known."""
    ratios = [
        math.log(step.times.median / _predict(step.times.gflops, step.times.gbytes, costs))
        for device in {step.device for step in among if step.work.attention == method}
        if sum(step.device == device for step in among) >= FEWEST
        for costs in [_fit(device, among)]
        for step in among
        if step.device == device and step.work.attention == method
    ]
    return math.exp(statistics.fmean(ratios)) if ratios else 1.0


@cache
def error_on(device: str) -> float:
    """A factor that nine of ten known steps are within, each estimated as if this method had never
    been on this device."""
    off = [
        abs(math.log(without(step) / step.times.median))
        for step in steps()
        if step.device == device
    ]
    return math.exp(float(np.quantile(off, 0.9, method="higher")))


def without(step: Step) -> float:
    """Estimate a known step from all others but those of its method on its device."""
    others = [
        other
        for other in steps()
        if (other.device, other.work.attention) != (step.device, step.work.attention)
    ]
    times = step.times
    return seconds_of(step.work.attention, times.gflops, times.gbytes, step.device, others)
