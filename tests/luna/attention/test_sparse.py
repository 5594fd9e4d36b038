"""What the five sparse methods have in common: FLOPs, limits of their options, random draws."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import luna
from luna import LunaError

from ..kit import build, qkv

SIZES = [
    ("local", {"block": 16}),
    ("local", {"block": 24, "look_back": 1, "look_ahead": 2}),
    ("local", {"block": 16, "profile": "official"}),
    ("longformer", {"left": 5, "right": 3}),
    ("longformer", {"left": 2, "right": 30, "global_tokens": [0, 30]}),
    ("bigbird", {"block": 8, "random_blocks": 2}),
    ("bigbird", {"block": 4, "profile": "published"}),
    ("bigbird", {"block": 5, "profile": "official"}),
    ("reformer", {"chunk": 8}),
    ("reformer", {"chunk": 7, "rounds": 3, "wrap": "round"}),
    ("reformer", {"chunk": 7, "rounds": 3, "profile": "published"}),
    ("informer", {"budget": 12}),
    ("informer", {"budget": 12, "profile": "published", "masked": True}),
]
NAMES = ["local", "longformer", "bigbird", "reformer", "informer"]


def formulas(n: int, d: int = 32) -> dict[str, int]:
    """FLOPs per head in the settings of the Long Range Arena, products only."""
    b, w, c, r, R = 64, 512, 64, 2, 3
    buckets = {1024: 32, 2048: 64, 4096: 128}[n]
    U = {1024: 133, 2048: 136, 4096: 144}[n]
    return {
        "local": 4 * n * b * d,
        "longformer": 4 * n * w * d,
        "bigbird": 8 * b * n * d + 8 * b * (4 + R) * b * d + 4 * (n - 4 * b) * (5 + R) * b * d,
        "reformer": 8 * r * n * c * d + n * d * r * buckets,
        "informer": 2 * n * U * d + 4 * U * n * d + n * d,
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1024, 2048, 4096])
def test_flops_at_the_lengths_of_the_arena(name: str, n: int):
    for profile in ("strict", "published"):
        attention = luna.build(name, n_heads=3, head_dim=32, max_len=n, profile=profile)
        assert attention.flops(n) == 3 * formulas(n)[name]


@pytest.mark.parametrize(("name", "options"), SIZES)
@pytest.mark.parametrize(("n", "d_v"), [(640, 32), (100, 20), (7, 32)])
def test_flops_are_what_torch_counts(name: str, options: dict, n: int, d_v: int):
    """On the meta device, where fused attention is counted as its two products. The mean of
    Informer's inactive rows is no product; Longformer cuts its band out of larger chunks."""
    attention = build(name, max_len=640, **options).to("meta")
    q, k, v = (t.to("meta") for t in qkv(1, 2, n, d_v=d_v))
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v)
    counted = counter.get_total_flops()
    if name == "informer":
        counted += 2 * n * d_v
    if name == "longformer":
        c, back, ahead = attention._chunks(n)
        G = sum(g < n for g in attention.global_tokens)
        rows, keys = -(-n // c) * c, (back + 1 + ahead) * c + G
        band = 2 * 2 * (rows * keys - n * (min(attention.left + 1 + attention.right, n) + G))
        counted -= band * (32 + d_v)
    assert attention.flops(n, d_v) == counted


def test_longformer_computes_at_most_a_third_more_than_its_band():
    for window in (64, 128, 512, 1024):
        attention = build("longformer", max_len=4096, left=window // 2 - 1, right=window // 2)
        c, back, ahead = attention._chunks(4096)
        assert (back + 1 + ahead) * c <= window * 4 / 3


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("local", {"block": 0}, "local.block must be at least 1"),
        ("local", {"look_back": -1}, "must be at least 0"),
        ("local", {"look_ahead": 1, "profile": "official"}, "must be 0 under profile official"),
        ("longformer", {"left": -1}, "must be at least 0"),
        ("longformer", {"global_tokens": [128]}, "positions from 0 to 127"),
        ("longformer", {"global_tokens": [-1]}, "positions from 0 to 127"),
        ("bigbird", {"block": 0}, "bigbird.block must be at least 1"),
        ("bigbird", {"random_blocks": -1}, "bigbird.random_blocks must be at least 0"),
        ("reformer", {"chunk": 0}, "reformer.chunk must be at least 1"),
        ("reformer", {"rounds": 0}, "reformer.rounds must be at least 1"),
        ("reformer", {"buckets": 7}, "reformer.buckets must be even"),
        ("informer", {"budget": 0}, "informer.budget must be at least 1"),
        ("informer", {"masked": False}, "informer.masked must be true under profile strict"),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict, message: str):
    with pytest.raises(LunaError, match=message):
        build(name, **options)


@pytest.mark.parametrize("name", ["reformer", "informer"])
def test_draws_are_new_in_training_and_the_same_in_evaluation(name: str):
    options = {"chunk": 8} if name == "reformer" else {"budget": 6}
    q, k, v = qkv()
    strict, published = build(name, **options), build(name, profile="published", **options)
    assert torch.equal(strict(q, k, v), strict(q, k, v))
    assert torch.equal(strict(q, k, v), build(name, **options)(q, k, v))
    assert not torch.equal(strict(q, k, v), build(name, seed=1, **options)(q, k, v))
    assert not torch.equal(published(q, k, v), published(q, k, v))

    evaluated = strict(q, k, v)
    strict.train()
    assert not torch.equal(strict(q, k, v), strict(q, k, v))
    resumed = build(name, seed=5, **options).train()
    resumed.load_state_dict(strict.state_dict())
    for _ in range(2):
        assert torch.equal(resumed(q, k, v), strict(q, k, v))
    assert torch.equal(strict.eval()(q, k, v), evaluated)
    assert torch.equal(resumed.eval()(q, k, v), evaluated)  # the model's own, not the seed's
