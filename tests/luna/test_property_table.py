"""Which generic properties the methods of the Skyformer comparison have, as one table: what is
marked ✓ must hold under every mask, what is marked ✗ must visibly fail under one.

    PI  appended padding changes no valid row        CI  nor does what padding holds
    PE  permuting tokens permutes outputs            BI  an example does not reach another one
    CV  constant values come out unchanged

A row says what is held fixed between the two runs that are compared: a random object that belongs
to tokens ("drawn") moves with them where the row ends in "moved".
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from luna import Attention

from .kit import MASKS, D, H, N, build, difference, extend, mask_of, qkv

TABLE = """
row                                 PI  CI  PE  BI  CV
softmax                             ✓   ✓   ✓   ✓   ✓
kernelized                          ✓   ✓   ✓   ✓   ✗
nystrom published                   ✗   ✓   ✗   ✗   ✗
nystrom published, exact inverse    ✗   ✓   ✗   ✓   ✓
nystrom strict                      ✓   ✓   ✗   ✓   ✗
nystrom strict, exact inverse       ✓   ✓   ✗   ✓   ✓
skyformer published, moved          ✓   ✓   ✓   ✗   ✗
skyformer strict, moved             ✓   ✓   ✓   ✓   ✗
skyformer strict                    ✓   ✓   ✗   ✓   ✗
linformer                           ✓   ✓   ✗   ✓   ✗
linformer, columns moved            ✓   ✓   ✓   ✓   ✗
informer published                  ✗   ✗   ✗   ✓   ✓
informer strict                     ✓   ✓   ✗   ✓   ✓
informer strict, moved              ✓   ✓   ✓   ✓   ✓
reformer published                  ✗   ✓   ✗   ✓   ✓
reformer strict                     ✓   ✓   ✗   ✓   ✓
bigbird published                   ✗   ✓   ✗   ✓   ✓
bigbird strict                      ✗   ✓   ✗   ✓   ✓
longformer                          ✓   ✓   ✗   ✓   ✓
local                               ✓   ✓   ✗   ✓   ✓
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


def projections(moved: bool) -> Make:
    def make(n: int, order: Tensor) -> Attention:
        torch.manual_seed(0)
        attention = build("linformer", k=16, init="paper").double()
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
    "softmax": plain("softmax"),
    "kernelized": plain("kernelized"),
    "nystrom published": plain("nystrom", landmarks=16, **PUBLISHED),
    "nystrom published, exact inverse": plain(
        "nystrom", landmarks=16, inverse_steps=None, **PUBLISHED
    ),
    "nystrom strict": plain("nystrom", landmarks=16),
    "nystrom strict, exact inverse": plain("nystrom", landmarks=16, inverse_steps=None),
    "skyformer published, moved": landmarks(True, inverse_steps=2, **PUBLISHED),
    "skyformer strict, moved": landmarks(True, inverse_steps=2),
    "skyformer strict": landmarks(False, inverse_steps=2),
    "linformer": projections(False),
    "linformer, columns moved": projections(True),
    "informer published": samples(False, **PUBLISHED),
    "informer strict": samples(False),
    "informer strict, moved": samples(True),
    "reformer published": rotations(**PUBLISHED),
    "reformer strict": rotations(),
    "bigbird published": plain("bigbird", block=4, **PUBLISHED),
    "bigbird strict": plain("bigbird", block=4),
    "longformer": plain("longformer", left=3, right=4),
    "local": plain("local", block=8, look_back=1),
}


# ---------------------------------------------------------------------- the columns


def PI(make: Make, mask: Tensor) -> float:
    q, k, v = qkv()
    longer, *tensors = extend(EXTRA, mask, q, k, v)
    n = N + EXTRA
    after = make(n, torch.arange(n))(*tensors, longer)[:, :, :N]
    return difference(after, make(N, torch.arange(N))(q, k, v, mask), mask)


def CI(make: Make, mask: Tensor) -> float:
    keep, attention = mask[:, None, :, None], make(N, torch.arange(N))
    tensors = qkv()
    changed = [torch.where(keep, t, 10 * o) for t, o in zip(tensors, qkv(seed=1), strict=True)]
    return difference(attention(*changed, mask), attention(*tensors, mask), mask)


def PE(make: Make, mask: Tensor) -> float:
    tensors = qkv()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    moved = make(N, order)(*(t[:, :, order] for t in tensors), mask[:, order])
    out = make(N, torch.arange(N))(*tensors, mask)
    return difference(moved, out[:, :, order], mask[:, order])


def BI(make: Make, mask: Tensor) -> float:
    """Example 1 becomes a large one, and one of uneven norms."""
    tensors, attention = qkv(), make(N, torch.arange(N))
    large = torch.tensor([1.0, 4.0], dtype=torch.float64).view(2, 1, 1, 1)
    uneven = torch.ones(2, 1, N, 1, dtype=torch.float64)
    uneven[1, :, ::2] = 0.05
    out, *changed = (
        attention(*(t * scale for t in tensors), mask)[:1] for scale in (1, large, uneven)
    )
    return max(difference(other, out, mask[:1]) for other in changed)


def CV(make: Make, mask: Tensor) -> float:
    q, k, v = qkv()
    constant = v[:, :, :1].expand_as(v)
    return difference(make(N, torch.arange(N))(q, k, constant, mask), constant, mask)


COLUMNS = {"PI": PI, "CI": CI, "PE": PE, "BI": BI, "CV": CV}
HEAD, *LINES = TABLE.strip().splitlines()
CELLS = [
    (line[: HEAD.index("PI")].strip(), column, mark == "✓")
    for line in LINES
    for column, mark in zip(COLUMNS, line[HEAD.index("PI") :].split(), strict=True)
]


def test_the_table_is_whole() -> None:
    assert HEAD.split()[1:] == list(COLUMNS)
    assert [line[: HEAD.index("PI")].strip() for line in LINES] == list(ROWS)
    assert set("".join(line[HEAD.index("PI") :] for line in LINES)) == set("✓✗ ")


@pytest.mark.parametrize(("row", "column", "holds"), CELLS)
def test_cell(row: str, column: str, holds: bool) -> None:
    gaps = {kind: COLUMNS[column](ROWS[row], mask_of(kind)) for kind in MASKS}
    if holds:
        assert max(gaps.values()) < HELD, gaps
    else:
        assert max(gaps.values()) > FAILS, gaps
