"""Softplus and exp of the scalar MLPs' outputs, in machine code.

A function of the C library is called for one number at a time, which in single precision would cost
more than the rest of the attention. So there both are short series, whose loops the compiler puts
into vector registers; their errors are a few units in the last place:

    e^x        = 2^k e^r                      k = round(x / ln 2), |r| <= ln(2) / 2, Taylor to r^7
    log(1 + t) = 2 artanh(s), s = t / (2 + t)     0 <= t <= 1, so s <= 1/3, Taylor to s^13
"""

from __future__ import annotations

import functools
import math

import numpy as np

from luna.kernels import cpu
from luna.kernels.scalar_mlp import OUTPUTS
from luna.kernels.scalar_mlp.reference import CLAMP, THRESHOLD

SIGNED, RELU, SOFTPLUS, EXP = range(len(OUTPUTS))  # as numbers: their places in OUTPUTS

F = np.float32
ROUND = F(1.5 * 2**23)  # x + ROUND has no place for fractions
LOG2_E = F(1 / math.log(2))
LN2_HIGH = F(22713 / 2**15)  # few digits: its products with k are exact
LN2_LOW = F(math.log(2) - 22713 / 2**15)
LOWEST = F(-88)  # where e^x becomes 0: k = -127
TAYLOR = tuple(F(1 / math.factorial(i)) for i in range(7, -1, -1))
ARTANH = tuple(F(2 / i) for i in range(13, 0, -2))

exact = functools.partial(cpu.inner, reorder=False)  # rounding errors must stay where they are


@exact
def exponential(x, single):
    """e^x, in single precision for x <= 88."""
    if not single:
        return math.exp(x)
    x = LOWEST if x < LOWEST else x
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    power = TAYLOR[0]
    for coefficient in TAYLOR[1:]:
        power = power * r + coefficient
    bits = F(shifted).view(np.int32)  # which end with k
    exponent = (bits + np.int32(127)) << np.int32(23)
    return power * np.int32(exponent).view(np.float32)


@exact
def log1p(t, single):
    """log(1 + t) for 0 <= t <= 1."""
    if not single:
        return math.log1p(t)
    s = t / (F(2) + t)
    square = s * s
    total = ARTANH[0]
    for coefficient in ARTANH[1:]:
        total = total * square + coefficient
    return total * s


@exact
def put_outputs(y, slope, output):
    """Replace MLP outputs y by exp or softplus of them, and write the derivatives to `slope`."""
    one = y.dtype.type(1)
    zero = y.dtype.type(0)
    single = one + y.dtype.type(2**-30) == one  # known to the compiler
    if output == EXP:
        top = y.dtype.type(CLAMP)
        for i in range(len(y)):
            x = y[i]
            value = exponential(top if x > top else x, single)
            y[i] = value
            slope[i] = zero if x > top else value
    else:
        top = y.dtype.type(THRESHOLD)
        for i in range(len(y)):
            x = y[i]
            t = exponential(-abs(x), single)
            value = (x if x > zero else zero) + log1p(t, single)
            y[i] = x if x > top else value
            slope[i] = one if x > top else (t if x < zero else one) / (one + t)
