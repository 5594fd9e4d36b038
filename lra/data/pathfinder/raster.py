"""Pixels and angles, all decided by integers: lines, discs, shrinking, dilation, stamps; and sine,
cosine and arctangent, each the double that lies nearest to the true value.

Lines and the Lanczos filter are those of Pillow 13, pixel for pixel, but belong to no library's
version and to no CPU. The last bit of a sine decides whether a dash is drawn one pixel further, and
differs from CPU to CPU in libm and NumPy. Single sums, products and quotients of doubles need no
such care: IEEE 754 defines their every bit. Points are (row, column).
"""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import numpy as np

Point = tuple[int, int]
LANCZOS = 3  # support of the kernel, in pixels of the smaller image
WEIGHT_BITS = 22  # of the kernel's weights behind the point
HALF = Fraction(1, 2)
BITS = 160  # of a sine behind the point: 48 digits, of which a double keeps 17
ONE = 1 << BITS


def disc(radius: int) -> np.ndarray:
    """(2r+1, 2r+1) bool."""
    y, x = np.ogrid[-radius : radius + 1, -radius : radius + 1]
    return x * x + y * y <= radius * radius


def line(half: int, to: Point, width: int) -> np.ndarray:
    """(2*half+1, 2*half+1) bool: from the centre to a point `to` away from it."""
    canvas = np.zeros((2 * half + 1, 2 * half + 1), bool)
    if width == 1:  # Bresenham: one pixel per step of the longer coordinate
        steps = max(map(abs, to))
        step = np.arange(steps + 1)
        row, column = (np.sign(c) * ((2 * abs(c) * step + steps) // (2 * steps)) for c in to)
        canvas[half + row, half + column] = True
        return canvas
    corners = _corners(to, width)
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    for row in range(min(corners)[0], max(corners)[0] + 1):
        crossed = [
            left + Fraction((row - top) * (right - left), bottom - top)
            for (top, left), (bottom, right) in edges
            if top != bottom and min(top, bottom) <= row <= max(top, bottom)
        ]
        ends = math.floor(min(crossed) + HALF), math.ceil(max(crossed) - HALF)
        canvas[half + row, half + min(ends) : half + max(ends) + 1] = True
    return canvas


def _corners(to: Point, width: int) -> list[Point]:
    """The parallelogram of a line of some width; an even one is wider on one side."""
    row, column = to
    square = row * row + column * column

    def aside(distance: int, c: int) -> int:
        """distance * c / length, to the nearest integer."""
        doubled = math.isqrt(4 * (distance * c) ** 2 // square)
        return int(math.copysign((doubled + 1) // 2, c))

    near, far = (width - 1) // 2, width // 2
    one = aside(far, column), -aside(near, row)
    other = -aside(near, column), aside(far, row)
    return [one, (row + one[0], column + one[1]), (row + other[0], column + other[1]), other]


def scale8(array: np.ndarray) -> np.ndarray:
    """min ... max onto 0 ... 255 (SciPy's old bytescale); 8-bit arrays stay as they are."""
    if array.dtype == np.uint8:
        return array
    low, high = float(array.min()), float(array.max())
    scaled = (array - low) * (255.0 / ((high - low) or 1.0))
    return (scaled.clip(0, 255) + 0.5).astype(np.uint8)


def shrink(array: np.ndarray, shape: Point) -> np.ndarray:
    """Lanczos to (rows, columns), on 8 bits and rounded between its passes, as Pillow does."""
    pixels = scale8(array).astype(np.int64)
    for size, smaller in zip(pixels.shape[::-1], shape[::-1], strict=True):
        pixels = pixels @ _lanczos(size, smaller).T + (1 << WEIGHT_BITS - 1) >> WEIGHT_BITS
        pixels = pixels.clip(0, 255).T  # rows first, then columns
    return pixels.astype(np.uint8)


@functools.cache
def _lanczos(size: int, smaller: int) -> np.ndarray:
    """(smaller, size) int64: what each pixel adds to each of the smaller image, in fixed point."""
    scale = size / smaller
    kernel = np.zeros((smaller, size), np.int64)
    for i in range(smaller):
        centre = (i + 0.5) * scale
        first = max(int(centre - LANCZOS * scale + 0.5), 0)
        last = min(int(centre + LANCZOS * scale + 0.5), size)
        weights = [_windowed_sinc((x + 0.5 - centre) / scale) for x in range(first, last)]
        unit = (1 << WEIGHT_BITS) / math.fsum(weights)
        kernel[i, first:last] = [round(weight * unit) for weight in weights]
    return kernel


def _windowed_sinc(x: float) -> float:
    """sinc(x) sinc(x / 3)"""
    if x == 0 or abs(x) >= LANCZOS:
        return float(x == 0)
    return sine(math.pi * x) * sine(math.pi * x / LANCZOS) * LANCZOS / (math.pi * x) / (math.pi * x)


def dilate(array: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """OpenCV's grey dilation: the kernel unreflected and anchored at its centre, -inf outside."""
    ry, rx = kernel.shape[0] // 2, kernel.shape[1] // 2
    rows, columns = array.shape
    padded = np.pad(array.astype(np.float64), ((ry, ry), (rx, rx)), constant_values=-np.inf)
    out = np.full(array.shape, -np.inf)
    for i, j in np.argwhere(kernel):
        np.maximum(out, padded[i : i + rows, j : j + columns], out=out)
    return out


def covers(blocked: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Where a shape of these (k, 2) offsets would touch a blocked cell; outside nothing blocks."""
    reach = int(np.abs(cells).max())
    padded = np.pad(blocked, reach)
    rows, columns = blocked.shape
    out = np.zeros_like(blocked)
    for row, column in (cells + reach).tolist():
        out |= padded[row : row + rows, column : column + columns]
    return out


def stamp(layer: np.ndarray, mark: np.ndarray, at: Point) -> None:
    """Compose a square mark, centred on `at`, into a square layer by maximum, cropped."""
    half = len(mark) // 2
    inside = tuple(slice(max(c - half, 0), c + half + 1) for c in at)
    part = tuple(slice(max(half - c, 0), half + len(layer) - c) for c in at)
    np.maximum(layer[inside], mark[part], out=layer[inside])


# ---------------------------------------------------------------------- angles


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
