"""Which general properties the public codes break, and which hold when a method's random object is
held fixed: as one table. ✓ must hold under every mask, ✗ must visibly fail under one.

    padding    appended padding changes no valid row     content   nor does what padding holds
    order      permuting tokens permutes outputs         batch     examples do not reach each other
    constant   constant values come out unchanged

The strict profiles of all methods are held to their own declarations by test_conformance.py. Here a
row says what the two runs that are compared have in common: a random object that belongs to tokens
moves with them where the row ends in "moved".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from luna import Attention

from .kit import MASKS, D, H, N, build, difference, extend, mask_of, qkv

TABLE = """
row                                 padding content order batch constant
nystrom published                   ✗       ✓       ✗     ✗     ✗
nystrom published, exact inverse    ✗       ✓       ✗     ✓     ✓
nystrom strict, exact inverse       ✓       ✓       ✗     ✓     ✓
skyformer published, moved          ✓       ✓       ✓     ✗     ✗
skyformer strict, moved             ✓       ✓       ✓     ✓     ✗
linformer published                 ✓       ✓       ✗     ✓     ✗
linformer official                  ✗       ✗       ✗     ✓     ✗
linformer, columns moved            ✓       ✓       ✓     ✓     ✗
informer published                  ✗       ✗       ✗     ✓     ✓
informer strict, moved              ✓       ✓       ✓     ✓     ✓
reformer published                  ✗       ✓       ✗     ✓     ✓
bigbird published                   ✗       ✓       ✗     ✓     ✓
bigbird strict, short blocks        ✗       ✓       ✗     ✓     ✓
"""

EXTRA = 16  # appended tokens: a multiple of every chunk, block and segment below
HELD, FAILS = 1e-10, 1e-4


# ------------------------------------------------------- the rows: a module for n tokens, whose
# place in the sequence is order[i], with its random object held fixed

Make = Callable[[int, Tensor], Attention]


def plain(name: str, **options: object) -> Make:
    """Nothing drawn, or drawn from the module's own seed and tied to positions."""
    return lambda n, order: build(name, **options)


def landmarks(moved: bool, **options: object) -> Make:
    """Six queries and six keys, all of them valid under every mask."""
    queries = torch.tensor([1, 4, 7, 11, 20, 31])
    keys = torch.tensor([2, 5, 13, 22, 25, 37])

    def make(n: int, order: Tensor) -> Attention:
        where = order.argsort() if moved else torch.arange(n)
        attention = build("skyformer", landmarks=12, **options)
        attention.landmark_ids = torch.cat([where[queries], n + where[keys]])
        return attention

    return make


def projections(moved: bool, **options: object) -> Make:
    def make(n: int, order: Tensor) -> Attention:
        torch.manual_seed(0)
        attention = build("linformer", k=16, init="paper", **options).double()
        if moved:
            with torch.no_grad():
                attention.E[..., :n] = attention.E[..., order]
        return attention

    return make


def samples(moved: bool, **options: object) -> Make:
    """15 of the first tokens, for each token."""
    table = torch.randint(N, (N + EXTRA, 15), generator=torch.Generator().manual_seed(3))

    def make(n: int, order: Tensor) -> Attention:
        attention = build("informer", budget=12, **options)
        attention.samples = order.argsort()[table[order]] if moved else table[:n]
        return attention

    return make


def rotations(**options: object) -> Make:
    drawn = torch.randn(H, D, 2, 8, generator=torch.Generator().manual_seed(3)).double()

    def make(n: int, order: Tensor) -> Attention:
        attention = build("reformer", chunk=8, buckets=16, **options)
        attention.rotations = drawn
        return attention

    return make


PUBLISHED = {"profile": "published"}
ROWS: dict[str, Make] = {
    "nystrom published": plain("nystrom", landmarks=16, **PUBLISHED),
    "nystrom published, exact inverse": plain(
        "nystrom", landmarks=16, inverse_steps=None, **PUBLISHED
    ),
    "nystrom strict, exact inverse": plain("nystrom", landmarks=16, inverse_steps=None),
    "skyformer published, moved": landmarks(True, inverse_steps=2, **PUBLISHED),
    "skyformer strict, moved": landmarks(True, inverse_steps=2),
    "linformer published": projections(False, **PUBLISHED),
    "linformer official": projections(False, profile="official"),
    "linformer, columns moved": projections(True),
    "informer published": samples(False, **PUBLISHED),
    "informer strict, moved": samples(True),
    "reformer published": rotations(**PUBLISHED),
    "bigbird published": plain("bigbird", block=4, **PUBLISHED),
    "bigbird strict, short blocks": plain("bigbird", block=4),
}


# ---------------------------------------------------------------------- the columns


def padding(make: Make, mask: Tensor) -> float:
    q, k, v = qkv()
    longer, *tensors = extend(EXTRA, mask, q, k, v)
    n = N + EXTRA
    after = make(n, torch.arange(n))(*tensors, longer)[:, :, :N]
    return difference(after, make(N, torch.arange(N))(q, k, v, mask), mask)


def content(make: Make, mask: Tensor) -> float:
    keep, attention = mask[:, None, :, None], make(N, torch.arange(N))
    tensors = qkv()
    changed = [torch.where(keep, t, 10 * o) for t, o in zip(tensors, qkv(seed=1), strict=True)]
    return difference(attention(*changed, mask), attention(*tensors, mask), mask)


def order(make: Make, mask: Tensor) -> float:
    tensors = qkv()
    places = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    moved = make(N, places)(*(t[:, :, places] for t in tensors), mask[:, places])
    out = make(N, torch.arange(N))(*tensors, mask)
    return difference(moved, out[:, :, places], mask[:, places])


def batch(make: Make, mask: Tensor) -> float:
    """Example 1 becomes a large one, and one of uneven norms."""
    tensors, attention = qkv(), make(N, torch.arange(N))
    large = torch.tensor([1.0, 4.0], dtype=torch.float64).view(2, 1, 1, 1)
    uneven = torch.ones(2, 1, N, 1, dtype=torch.float64)
    uneven[1, :, ::2] = 0.05
    out, *changed = (
        attention(*(t * scale for t in tensors), mask)[:1] for scale in (1, large, uneven)
    )
    return max(difference(other, out, mask[:1]) for other in changed)


def constant(make: Make, mask: Tensor) -> float:
    q, k, v = qkv()
    same = v[:, :, :1].expand_as(v)
    return difference(make(N, torch.arange(N))(q, k, same, mask), same, mask)


COLUMNS = {f.__name__: f for f in (padding, content, order, batch, constant)}
HEAD, *LINES = TABLE.strip().splitlines()
CELLS = [
    (line[: HEAD.index("padding")].strip(), column, mark == "✓")
    for line in LINES
    for column, mark in zip(COLUMNS, line[HEAD.index("padding") :].split(), strict=True)
]


def test_the_table_is_whole() -> None:
    assert HEAD.split()[1:] == list(COLUMNS)
    assert [line[: HEAD.index("padding")].strip() for line in LINES] == list(ROWS)
    assert set("".join(line[HEAD.index("padding") :] for line in LINES)) == set("✓✗ ")


@pytest.mark.parametrize(("row", "column", "holds"), CELLS)
def test_cell(row: str, column: str, holds: bool) -> None:
    gaps = {kind: COLUMNS[column](ROWS[row], mask_of(kind)) for kind in MASKS}
    if holds:
        assert max(gaps.values()) < HELD, gaps
    else:
        assert max(gaps.values()) > FAILS, gaps
