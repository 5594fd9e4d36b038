"""What the kernels are compiled for: sizes, and the feature map as functions that they call."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from luna.kernels.checked import INTERPRETED
from luna.tensors import HALF


@dataclass(frozen=True, eq=False)
class FeatureMap:
    """A feature map as functions in Triton. `maps` are the pointers of its parameters, `results`
    those of what backward leaves of them, `sums` what a program adds up of that in registers, and
    `kept` what backward needs of a block: tuples, of what a map has.

        features(x, real, maps, g, s)                        phi (BLOCK, D), 0 at padding; kept
        begin(results, b, g, unit, sizes, s)                 the results of this program; sums
        backward(dphi, phi, kept, x, real, maps, results, sums, g, s)   dx (BLOCK, dP); sums
        end(results, unit, sums, s)                          writes the sums
    """

    features: Any
    begin: Any
    backward: Any
    end: Any

    def code(self) -> str:
        """A hash of all of their source, for Triton's cache on disk: it does not see functions that
        are reached through an object."""
        if INTERPRETED:
            return ""
        return "-".join(getattr(self, field.name).cache_key for field in fields(self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Shape:
    """Sizes and options. Widths are filled up to powers of two, and to 16 where a product sums over
    them. There are M L features; the index of one within a tile is m LP + l. A block's features and
    their gradient are in registers.

    One object for each shape, made once: Triton hashes and compares it at every launch, which takes
    longer than the launch where 20 numbers are compared."""

    map: FeatureMap
    M: tl.constexpr  # groups of features
    L: tl.constexpr  # features of each
    d: tl.constexpr  # width of q, k
    e: tl.constexpr  # width of v
    groups: tl.constexpr  # sets of parameters: 1, or one for each head
    signed: tl.constexpr  # the sums of weights may be negative
    absolute: tl.constexpr  # they are sums of |phi(q)| . |phi(k)|
    causal: tl.constexpr
    eps: tl.constexpr
    divided: tl.constexpr  # by the sum of weights; else the weighted sum of values is returned
    BLOCK: tl.constexpr  # tokens of a block
    MP: tl.constexpr  # M, L, M L, d and e, filled up
    LP: tl.constexpr
    D: tl.constexpr
    dP: tl.constexpr
    eP: tl.constexpr
    dtype: tl.constexpr  # of everything computed
    precision: tl.constexpr  # of the products that sum over tokens, features and values
    precise: tl.constexpr  # of those with parameters, which stay whole where TF32 is asked for
    rounded: tl.constexpr  # outputs are in half precision
    ordered: tl.constexpr  # every sum is taken in a fixed order
    warps: int

    @property
    def cache_key(self) -> str:
        """What stands for this object in the name of a compiled kernel on disk."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "map"}
        return f"{values} {self.map.code()}"


def precisions(v: Tensor) -> dict[str, Any]:
    """The fields of a Shape that say how exact sums are, as v's type and torch's settings have it:
    plain values, to be the key of a cache."""
    half = v.dtype in HALF and not INTERPRETED  # the interpreter knows no bf16x3
    # Half precision is exact in bfloat16 or two of them, so its products need no TF32.
    precise = "bf16x3" if half else "tf32x3"
    tf32 = torch.backends.cuda.matmul.fp32_precision == "tf32"
    return {
        "precision": "tf32" if tf32 else precise,
        "precise": precise,
        "rounded": v.dtype in HALF,
        "ordered": torch.are_deterministic_algorithms_enabled(),
    }


def sizes_of(M: int, L: int, d: int, e: int, *, ordered: bool, causal_in_half: bool) -> dict:
    """The fields of a Shape that follow from its widths; blocks as measured on an H100."""
    MP = triton.next_power_of_2(M)
    LP = max(triton.next_power_of_2(L), 16 // MP)
    D = MP * LP
    if D > 64:
        block = 16  # registers would spill by the kilobyte
    else:
        # Triton 3.6 compiles the causal kernels wrongly with bf16x3 and 64 tokens: addresses
        # outside.
        block = 32 if ordered or causal_in_half else 64
    widths = {"MP": MP, "LP": LP, "D": D, "BLOCK": block}
    widths |= {"M": M, "L": L, "d": d, "e": e}
    widths |= {
        f"{name}P": max(16, triton.next_power_of_2(size)) for name, size in (("d", d), ("e", e))
    }
    return {name: tl.constexpr(size) for name, size in widths.items()} | {
        "warps": 4 if D <= 128 else 8
    }
