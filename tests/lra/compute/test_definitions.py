"""Methods whose code does other work than their definition are counted by the definition."""

from __future__ import annotations

import pytest

from lra.compute.count import count_run

from ..conftest import composed
from .kit import HEADS, LAYERS, D, counted, short_run, with_attention


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("share", ["layer", "head"])
def test_lunas_mlps_count_the_same_however_they_are_evaluated(shared: bool, share: str):
    runs = (
        short_run("luna", shared_channels=shared, share=share, evaluate=how)
        for how in ("piecewise", "dense")
    )
    fast, dense = (count_run(run, backward=False).parts["attention"] for run in runs)
    assert (fast.flops, fast.elementwise) == (dense.flops, dense.elementwise)
    assert fast.executed_flops < dense.executed_flops < dense.flops


def test_luna_by_hand():
    """2 M d of projections, 4 w a scalar and channel of MLPs, for q and for k; 4 D e + 2 D of
    attention; the fast evaluation executes no MLP."""
    n, M, L, w = 256, 8, 8, 64
    part = counted("luna").parts["attention"]
    around = 2 * 2 * M * D + 4 * M * L * D + 2 * M * L
    assert part.flops == LAYERS * HEADS * n * (around + 2 * M * L * 4 * w)
    assert part.executed_flops == LAYERS * HEADS * n * around


def test_longformer_counts_its_band_and_executes_more():
    run = with_attention(composed("compute=report", "task=listops"), "longformer")
    part = count_run(run, backward=False).parts["attention"]
    assert part.flops == LAYERS * HEADS * 4 * 2048 * 512 * D
    assert part.executed_flops == part.flops * 5 // 4  # five chunks of 128 for a window of 512


def test_sinkhorn_is_work():
    n, R, T = 256, 32, 50
    part = counted("lotformer").parts["attention"]
    assert part.flops == LAYERS * HEADS * (8 * n * R * D + 10 * T * n * R)
    assert part.executed_flops == LAYERS * HEADS * 8 * n * R * D
    assert part.elementwise == LAYERS * HEADS * 8 * n * R


def test_informers_definition_is_what_it_executes():
    part = counted("informer").parts["attention"]
    assert part.flops == part.executed_flops


def test_turning_queries_and_keys_is_a_product():
    words = ("compute=report", "task=listops")
    turned, plain = (
        count_run(composed(*words, f"protocol.style.positions={p}"), backward=False).total
        for p in ("rope", "none")
    )
    assert turned.flops - plain.flops == LAYERS * HEADS * 2 * 4 * 2048 * D
    assert turned.executed_flops == plain.executed_flops
