"""`lra bench roof`: linear attention beside what its processor can do, measured in the same rounds.

Forward and backward of an attention with D features take six products of 2 n D e operations a
head, and move 11 tensors of the size of q (forward q, k, v, o; backward those but o, do, dq, dk,
dv). Three cases do that and nothing else:

    products   the six, by torch's library on whole tensors
    tiles      as many, by the tiles of luna/kernels/linear_numba on a block that stays in cache
    copy       the traffic alone

A method's share is the time of such a case divided by its own, within a round.
"""

from __future__ import annotations

from argparse import Namespace
from functools import partial

import numpy as np
import torch

from lra.bench.cases import HEADS, WIDTH, attention_calls
from lra.bench.measure import Benchmark, Calls
from lra.bench.result import BenchRow
from luna.kernels import cpu

FEATURES = {"linear": WIDTH, "luna": 64}  # D of the methods that have a roof here
BLOCK = 64  # tokens
TENSORS = 11


def roof_benchmark(options: Namespace) -> Benchmark:
    bounds = {"products": product_calls} | ({"tiles": tile_calls} if cpu.AVAILABLE else {})
    methods = {
        name: partial(attention_calls, name, batch=options.batch) for name in [*FEATURES, "softmax"]
    }
    roofs = {
        f"{bound} of {name}": partial(calls, features, options.batch)
        for bound, calls in bounds.items()
        for name, features in FEATURES.items()
    }
    return Benchmark(
        stem="roof",
        title="Linear attention and what the processor can do",
        notes=[
            f"batch {options.batch}, {HEADS} heads of {WIDTH}, float32, no mask",
            "products of, tiles of: the six matrix products of a method alone, by torch's library "
            "and by register tiles in cache; copy: its traffic alone",
            "share: the time of such a case divided by the method's, in the same round",
        ],
        cases=methods | roofs | {"copy": partial(copy_calls, options.batch)},
        base="softmax",
        derive=shares,
    )


def product_calls(features: int, batch: int, n: int, device: torch.device) -> Calls:
    phi = torch.randn(batch * HEADS, n, features, device=device)
    v, N = torch.randn(2, batch * HEADS, n, WIDTH, device=device)
    S = torch.randn(batch * HEADS, features, WIDTH, device=device)
    dphi = torch.empty_like(phi)

    def six() -> None:
        for _ in range(2):
            torch.bmm(phi.mT, v, out=S)
            torch.bmm(phi, S, out=N)
            torch.bmm(v, S.mT, out=dphi)

    return {"train": six}


def tile_calls(features: int, batch: int, n: int, device: torch.device) -> Calls:
    from lra.bench.tiles import repeated

    A = np.ones((BLOCK, features), np.float32)
    B, C = np.ones((features, WIDTH), np.float32), np.empty((BLOCK, WIDTH), np.float32)
    times = 6 * batch * HEADS * -(-n // BLOCK)
    return {"train": lambda: repeated(A, B, C, times)}


def copy_calls(batch: int, n: int, device: torch.device) -> Calls:
    """Reading and writing half of the tensors each."""
    one = torch.ones(TENSORS * batch * HEADS * n * WIDTH // 2, device=device)
    other = torch.ones_like(one)
    return {"train": lambda: other.copy_(one)}


def shares(rows: list[BenchRow]) -> list[BenchRow]:
    """Rows of each method's share of the cases that are its own, and of the copy."""
    seconds = {(row.case, row.n): row.values for row in rows if row.measure == "train_seconds"}
    found = []
    for (case, n), values in seconds.items():
        bound, _, name = case.partition(" of ")
        for method in FEATURES if case == "copy" else [name] if name else []:
            if own := seconds.get((method, n)):
                share = np.divide(values, own).tolist()
                found.append(
                    BenchRow(group="roof", case=method, n=n, measure=f"{bound}_share", values=share)
                )
    return found
