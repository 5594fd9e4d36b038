"""BigBird: the multiset of key blocks, the three graphs, the public implementation."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

import luna

from ..kit import assert_defined, build, difference, mask_of, qkv


def multiset(i: int, N: int, drawn: list[int]) -> list[int]:
    """The key blocks of query block i, one entry for each time they count."""
    if i in (0, N - 1):
        return list(range(N))
    return [*{0, i - 1, i, i + 1, N - 1}, *(j for j in drawn if j >= 0)]


def dense(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, graph: Tensor, b: int) -> Tensor:
    """The definition, row by row: one softmax over the keys of the multiset of blocks."""
    _, H, n, d = q.shape
    N = -(-n // b)
    out = torch.zeros_like(v)
    for h in range(H):
        for i in range(n):
            blocks = multiset(i // b, N, graph[h, i // b].tolist())
            keys = torch.tensor([t for j in blocks for t in range(j * b, min(n, (j + 1) * b))])
            scores = (q[:, h, i, None] * k[:, h, keys]).sum(-1) / d**0.5
            if mask is not None:
                scores = scores - 1e4 * ~mask[:, keys]
            out[:, h, i] = (scores.softmax(-1).unsqueeze(-1) * v[:, h, keys]).sum(1)
    return out


@pytest.mark.parametrize("profile", ["strict", "published"])
@pytest.mark.parametrize(("n", "block", "R"), [(64, 4, 3), (61, 4, 2), (40, 8, 2)])
def test_is_dense_softmax_with_multiplicities(profile: str, n: int, block: int, R: int):
    attention = build("bigbird", block=block, random_blocks=R, profile=profile)
    graph = attention.random_graph(n + -n % block, torch.device("cpu"))
    assert_defined(attention, partial(dense, graph=graph, b=block), n=n)


# ---------------------------------------------------------------------- the strict graph


@pytest.mark.parametrize("N", [1, 3, 5, 6, 8, 16, 31, 32])
def test_strict_graph_draws_without_replacement_outside_the_set(N: int):
    attention = build("bigbird", block=4, random_blocks=3, n_heads=3)
    graph = attention.random_graph(4 * N, torch.device("cpu"))
    for h in range(3):
        for i in range(1, N - 1):
            drawn = [j for j in graph[h, i].tolist() if j >= 0]
            others = set(range(N)) - {0, i - 1, i, i + 1, N - 1}
            assert len(set(drawn)) == len(drawn) == min(3, len(others))
            assert set(drawn) <= others


def test_strict_graph_is_uniform_over_its_candidates_and_survives_a_cast():
    attention = build("bigbird", block=4, random_blocks=3, n_heads=4000, head_dim=1)
    graph = attention.random_graph(64, torch.device("cpu"))  # N = 16 out of 32
    share = torch.bincount(graph[:, 7].flatten(), minlength=16) / 4000
    expected = torch.full((16,), 3 / 11)
    expected[[0, 6, 7, 8, 15]] = 0
    assert (share - expected).abs().max() < 0.03
    assert not torch.equal(graph[0], graph[1])
    assert torch.equal(attention.bfloat16().random_graph(64, torch.device("cpu")), graph)


# ---------------------------------------------------------------------- the public codes' graphs


def published(n: int, **options) -> np.ndarray:
    attention = build("bigbird", profile="published", max_len=n, **options)
    return attention.random_graph(n, torch.device("cpu")).numpy()


def test_published_graph_at_4096_reaches_1024_tokens():
    graph = published(4096, n_heads=200)
    for i in range(1, 63):
        assert set(graph[:, i].flatten()) == {j for j in range(1, 16) if abs(j - i) > 1}
    assert np.array_equal(published(4096), graph[:2])  # heads are drawn one after the other


def test_published_graph_takes_what_targets_there_are():
    graph = published(6 * 64)
    assert [sorted(set(graph[0, i]) - {-1}) for i in range(1, 5)] == [[3], [4], [1], [2]]


def test_official_graph_keeps_the_last_rows_out_of_windows():
    attention = build("bigbird", profile="official", max_len=2048, n_heads=300)
    graph = attention.random_graph(1024 + 64, torch.device("cpu"))  # filled up: N = 17
    assert set(graph[:, 14].flatten().tolist()) == set(range(1, 12))
    assert set(graph[:, 15].flatten().tolist()) == set(range(1, 13))
    assert set(graph[:, 5].flatten().tolist()) == set(range(1, 16)) - {4, 5, 6}


def test_official_filling_is_a_whole_block_of_zeros_that_count():
    q, k, v = qkv()
    attention = build("bigbird", block=8, random_blocks=1, profile="official")
    zeros = q.new_zeros(2, 2, 8, 32)
    filled = [torch.cat([t, zeros], 2) for t in (q, k, v)]
    graph = attention.random_graph(72, q.device)
    expected = dense(*filled, None, graph, 8)[:, :, :64]
    assert difference(attention(q, k, v), expected) < 1e-12
    mask = mask_of("scatter")
    real = torch.cat([mask, mask.new_ones(2, 8)], 1)
    expected = dense(*filled, real, graph, 8)[:, :, :64]
    assert difference(attention(q, k, v, mask), expected, mask) < 1e-12


@pytest.mark.parametrize(("n", "block"), [(192, 16), (1024, 64), (1024, 32)])
def test_published_equals_hugging_face(n: int, block: int):
    """In training mode: in evaluation the newer versions of that code take a graph of zeros."""
    hf = pytest.importorskip("transformers.models.big_bird.modeling_big_bird")
    from transformers import BigBirdConfig

    config = BigBirdConfig(
        hidden_size=16, num_attention_heads=2, block_size=block, max_position_embeddings=n
    )
    torch.manual_seed(0)
    state = np.random.get_state()  # noqa: NPY002
    layer = hf.BigBirdBlockSparseAttention(config, seed=42).double().train()
    x = torch.randn(2, n, 16, dtype=torch.float64)
    mask = mask_of("prefix", n=n)
    mask[1] = mask_of("scatter", n=n)[1]
    masks = hf.BigBirdModel.create_masks_for_block_sparse_attn(mask.double(), block)
    blocked, band, rows, columns = masks
    with torch.no_grad():
        expected = layer(
            x,
            band_mask=band,
            from_mask=rows,
            to_mask=columns,
            from_blocked_mask=blocked,
            to_blocked_mask=blocked,
        )[0]
        q, k, v = (
            linear(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for linear in (layer.query, layer.key, layer.value)
        )
        attention = luna.build(
            "bigbird", n_heads=2, head_dim=8, max_len=n, block=block, profile="published", seed=7
        )
        out = attention(q, k, v, mask)
    np.random.set_state(state)  # noqa: NPY002  (that code seeds the global generator)
    assert difference(out, expected.unflatten(-1, (2, 8)).transpose(1, 2), mask) < 1e-10
