"""What the five sparse methods have in common: lengths, masks, precision, memory, FLOPs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import luna
from luna import LunaError

from ..kit import MASKS, Sizes, build, difference, extend, mask_of, qkv

STRICT = [
    ("local", {"block": 16}),
    ("local", {"block": 24, "look_back": 1, "look_ahead": 2}),
    ("local", {"block": 7, "look_ahead": 1, "pattern": "strided"}),
    ("longformer", {"left": 5, "right": 3}),
    ("longformer", {"left": 2, "right": 30, "global_tokens": [0, 30]}),
    ("bigbird", {"block": 8, "random_blocks": 2}),
    ("bigbird", {"block": 5}),
    ("reformer", {"chunk": 8}),
    ("reformer", {"chunk": 7, "rounds": 3, "wrap": "round"}),
    ("informer", {"budget": 12}),
    ("informer", {"budget": 6, "divisor": "n"}),
]
OTHERS = [
    ("local", {"block": 16, "profile": "official"}),
    ("local", {"block": 24, "profile": "official", "pattern": "block"}),
    ("bigbird", {"block": 8, "random_blocks": 1, "profile": "published"}),
    ("bigbird", {"block": 4, "profile": "published"}),
    ("bigbird", {"block": 4, "profile": "official"}),
    ("bigbird", {"block": 5, "profile": "official"}),
    ("reformer", {"chunk": 8, "profile": "published"}),
    ("reformer", {"chunk": 7, "rounds": 3, "profile": "published"}),
    ("informer", {"budget": 12, "profile": "published"}),
    ("informer", {"budget": 12, "profile": "published", "masked": True}),
]
NAMES = ["local", "longformer", "bigbird", "reformer", "informer"]

every = pytest.mark.parametrize(("name", "options"), STRICT + OTHERS)
strict = pytest.mark.parametrize(("name", "options"), STRICT)


def fixed(name: str, **options) -> luna.Attention:
    """Built, with the random object of the published profiles held."""
    attention = build(name, **options)
    generator = torch.Generator().manual_seed(3)
    if name == "reformer" and attention.profile == "published":
        columns = sum(attention._factors(64)) // 2
        shape = (attention.n_heads, attention.head_dim, attention.rounds, columns)
        attention.rotations = torch.randn(shape, generator=generator, dtype=torch.float64)
    if name == "informer" and attention.profile == "published":
        attention.samples = torch.randint(64, (64, attention.counts(64)[0]), generator=generator)
    return attention


@every
@pytest.mark.parametrize("kind", ["none", *MASKS])
def test_forward_is_the_matrix_times_v(name: str, options: dict, kind: str):
    attention = fixed(name, **options)
    q, k, v = qkv(d_v=20)
    mask = None if kind == "none" else mask_of(kind)
    assert difference(attention(q, k, v, mask), attention.matrix(q, k, mask) @ v, mask) < 1e-12


@strict
@pytest.mark.parametrize("n", [1, 2, 3, 17, 33, 100])
def test_SHAPE_any_length_one_example_one_head(name: str, options: dict, n: int):
    attention = build(name, n_heads=1, **options)
    q, k, v = qkv(1, 1, n, d_v=3)
    mask = torch.arange(n)[None] % 4 != 1
    out = attention(q, k, v, mask)
    assert out.shape == (1, 1, n, 3)
    assert difference(out, attention.matrix(q, k, mask) @ v) < 1e-12
    assert difference(attention(q, k, v), attention.matrix(q, k) @ v) < 1e-12


@strict
def test_rows_of_one_block_do_not_mix_with_other_examples_or_heads(name: str, options: dict):
    attention = build(name, **options)
    q, k, v = qkv(n=50)
    out = attention(q, k, v)
    for b in range(2):
        assert difference(attention(q[b : b + 1], k[b : b + 1], v[b : b + 1])[0], out[b]) < 1e-12
    swapped = attention(q.flip(0), k.flip(0), v.flip(0))
    assert difference(swapped.flip(0), out) < 1e-12


@strict
def test_padding_examples_and_nan(name: str, options: dict):
    attention = build(name, **options)
    q, k, v = qkv(d_v=5)
    mask = mask_of("scatter")
    mask[1] = False
    poisoned = [t.masked_fill(~mask[:, None, :, None], float("nan")) for t in (q, k, v)]
    inputs = [t.requires_grad_() for t in poisoned]
    out = attention(*inputs, mask)
    out.square().sum().backward()
    assert torch.equal(out, attention(q, k, v, mask))
    assert not out.masked_select(~mask[:, None, :, None]).any()
    for t in inputs:
        assert t.grad is None or t.grad.isfinite().all()  # Reformer does not read k


@strict
def test_AMP_autocast_is_off_inside(name: str, options: dict):
    attention = build(name, **options)
    q, k, v = (t.bfloat16() for t in qkv())
    mask = mask_of("prefix")
    expected = attention(q.float(), k.float(), v.float(), mask)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(q.float(), k.float(), v.float(), mask), expected)
        assert torch.equal(attention(q, k, v, mask), expected.bfloat16())
        assert attention(30 * q, 30 * k, 30 * v, mask).isfinite().all()


@every
def test_GC_gradients(name: str, options: dict):
    small = {
        "local": {"block": 3},
        "longformer": {"left": 2, "right": 1},
        "bigbird": {"block": 2},
        "reformer": {"chunk": 3},
        "informer": {"budget": 2},
    }[name]
    attention = build(name, head_dim=4, max_len=40, **(options | small))
    q, k, v = qkv(2, 2, 12, 4, d_v=3, seed=1)
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, [1, 10, 11]] = False
    state = attention.get_extra_state()

    def f(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention.set_extra_state(state)  # the published profiles draw anew: the same each time
        return attention(q, k, v, mask)

    assert torch.autograd.gradcheck(f, [t.requires_grad_() for t in (q, k, v)])


@pytest.mark.parametrize(
    ("name", "options", "per_token"),
    [
        ("local", {"block": 32}, 64),
        ("local", {"block": 32, "look_back": 1, "look_ahead": 1}, 3 * 64),
        ("longformer", {"left": 31, "right": 32}, 8 * 64),
        ("longformer", {"left": 31, "right": 32, "global_tokens": [0, 9]}, 8 * 64),
        ("bigbird", {"block": 16}, 12 * 64),
        ("reformer", {"chunk": 32}, 3 * 64),
        ("informer", {"budget": 16}, 64),
    ],
)
def test_memory_is_linear_in_n(name: str, options: dict, per_token: int, monkeypatch):
    """The largest tensor, forward and backward: not n x n, and growing no faster than n."""
    monkeypatch.setattr("luna.attention.informer.GATHERED", 2**14)
    largest = []
    for n in (1024, 2048):
        attention = build(name, max_len=2048, n_heads=1, **options)
        inputs = [t.float().requires_grad_() for t in qkv(1, 1, n)]
        with Sizes() as sizes:
            attention(*inputs, mask_of("scatter", 1, n)).square().sum().backward()
        assert inputs[0].grad is not None
        assert not any(shape.count(n) > 1 for shape in sizes.shapes)
        largest.append(sizes.largest)
    assert largest[0] <= 1024 * per_token
    assert largest[1] <= 2.1 * largest[0]


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


@every
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


@strict
def test_padding_of_every_length_is_invisible(name: str, options: dict):
    """PI. Batch mates of other lengths only append padding, so what an example gives does not
    depend on them. Not so for what is tied to the length by its definition: strided blocks,
    BigBird's last block, a first chunk that looks at the last one, a sum that is divided by n."""
    tied = options.get("pattern") == "strided" or name == "bigbird"
    tied = tied or options.get("wrap") == "round" or options.get("divisor") == "n"
    attention = build(name, **options)
    q, k, v = qkv(n=40)
    gaps = []
    for kind in ("full", "scatter"):
        mask = mask_of(kind, n=40)
        before = attention(q, k, v, mask)
        for extra in (1, 5, 50):
            longer, *tensors = extend(extra, mask, q, k, v)
            gaps.append(difference(attention(*tensors, longer)[:, :, :40], before, mask))
    assert max(gaps) > 1e-3 if tied else max(gaps) < 1e-12


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
