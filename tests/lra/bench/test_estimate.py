"""Steps that were never measured, from those that were."""

from __future__ import annotations

import math

import pytest

from lra.bench import estimate
from lra.bench.estimate import Step, seconds_of
from lra.reference.times import Times, Work

PAIRS = [  # a method, a device where it is known, and how far its estimate without it may be off
    ("luna", "H100", 1.3),
    ("softmax", "H100", 1.6),
    ("linear", "AMD EPYC", 2.0),
]


@pytest.mark.parametrize(("method", "device", "factor"), PAIRS)
def test_three_known_pairs(method: str, device: str, factor: float):
    """As if this method had never been on this device."""
    pair = [s for s in estimate.steps() if s.work.attention == method and device in s.device]
    off = [math.log(estimate.without(step) / step.times.median) for step in pair]
    assert pair
    assert math.exp(abs(sum(off) / len(off))) < factor


def test_the_error_that_is_told_is_that_of_nine_of_ten():
    for device in estimate.devices():
        own = [step for step in estimate.steps() if step.device == device]
        told = estimate.error_on(device)
        off = [abs(math.log(estimate.without(step) / step.times.median)) for step in own]
        # One step decides what is told, and lies on it but for rounding.
        within = sum(math.exp(error) <= told * 1.0001 for error in off)
        assert within >= 0.9 * len(own)
        assert told < 5, device


def made(method: str, device: str, gflops: float, gbytes: float, seconds: float) -> Step:
    times = Times(device, 1, 1, seconds, seconds, seconds, gflops, gbytes)
    return Step(Work("t", "p", method, 1, 1, 1), times)


def test_what_it_is_fitted_to_it_finds():
    """0.1 s, a GFLOP in 2 s, a GB in 3 s; `slow` takes four times as long, everywhere."""
    sizes = [(1, 2), (5, 1), (2, 9), (7, 7)]
    among = [made("usual", "A", f, b, 0.1 + 2 * f + 3 * b) for f, b in sizes]
    among += [made("usual", "B", f, b, 0.01 * f) for f, b in sizes]
    place = "A, 1 thread"
    assert seconds_of("usual", 10, 10, place, among) == pytest.approx(50.1)
    assert seconds_of("unknown", 10, 10, place, among) == pytest.approx(50.1)
    assert seconds_of("usual", 10, 10, "B, 1 thread", among) == pytest.approx(0.1)
    among.append(made("slow", "C", 1, 1, 7.0))  # a device of which too little is known
    assert seconds_of("slow", 10, 10, place, among) == pytest.approx(50.1)


def test_a_method_is_as_slow_as_elsewhere():
    sizes = [(1, 2), (5, 1), (2, 9), (7, 7), (3, 3), (8, 1), (1, 8)]
    among = [made("usual", "A", f, b, 2 * f) for f, b in sizes]
    among += [made("usual", "B", f, b, 0.01 * f) for f, b in sizes]
    without = seconds_of("slow", 10, 10, "A, 1 thread", among)
    found = seconds_of("slow", 10, 10, "A, 1 thread", [*among, made("slow", "B", 4, 4, 0.16)])
    assert 2 < found / without < 4.2
