"""Sine, cosine and arctangent, each the double that lies nearest to the true value.

Those of libm and NumPy differ in their last bit from CPU to CPU, and the last bit of a sine decides
whether a dash is drawn one pixel further. Here they are computed with integers and rounded once, so
they are the same everywhere. Single sums, products and quotients of doubles need no such care:
IEEE 754 defines their every bit.
"""

from __future__ import annotations

import functools
import math

BITS = 160  # behind the point: 48 digits, of which a double keeps 17
ONE = 1 << BITS


@functools.cache
def sine(angle: float) -> float:
    return _sine(_fixed(angle)) / ONE  # Python rounds a quotient of integers correctly


@functools.cache
def cosine(angle: float) -> float:
    return _series(_fixed(angle), 0) / ONE


@functools.cache
def arctan2(row: int, column: int) -> float:
    """The angle from the columns' axis to the point, in (-pi, pi]."""
    near = _fixed(math.atan2(row, column))  # right to 15 digits on any machine
    sin, cos = _sine(near), _series(near, 0)
    rest = (row * cos - column * sin) * ONE // (row * sin + column * cos)  # tan(rest) = rest, here
    return (near + rest) / ONE


def _fixed(x: float) -> int:
    return int(x * float(ONE))  # exact for what is 0 or above 2**-107: its last bit is above ONE's


def _sine(x: int) -> int:
    return x * _series(x, 1) >> BITS


def _series(x: int, k: int) -> int:
    """1 - x²/((k+1)(k+2)) + x⁴/((k+1)(k+2)(k+3)(k+4)) - ...: Taylor's series of cos x for k = 0,
    and of sin x / x for k = 1."""
    square, term, sign, total = x * x >> BITS, ONE, 1, 0
    while term:
        total += sign * term
        term = (term * square >> BITS) // ((k + 1) * (k + 2))
        sign, k = -sign, k + 2
    return total
