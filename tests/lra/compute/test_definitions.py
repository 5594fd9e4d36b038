"""Methods whose code does other work than their definition are counted by the definition."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lra.compute.count import count_run
from lra.compute.definitions import OPERATORS

from ..conftest import composed
from .kit import HEADS, LAYERS, D, counted, short_run, with_attention


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("share", ["layer", "head"])
def test_lunas_mlps_count_the_same_however_they_are_evaluated(shared: bool, share: str):
    runs = (
        short_run("luna", shared_channels=shared, share=share, evaluate=how)
        for how in ("piecewise", "dense")
    )
    fast, dense = (count_run(run).parts["attention"] for run in runs)
    assert fast.flops == dense.flops
    assert fast.executed_flops < dense.executed_flops < dense.flops


def test_sinkhorn_in_the_log_domain_is_no_product_for_torch():
    part = counted("lotformer").parts["attention"]
    assert part.executed_flops == LAYERS * HEADS * 256 * 8 * 32 * D
    assert part.flops - part.executed_flops == LAYERS * HEADS * 256 * 10 * 50 * 32


def test_longformer_counts_its_band_and_executes_more():
    run = with_attention(composed("compute=report", "task=listops"), "longformer")
    part = count_run(run).parts["attention"]
    assert part.flops == LAYERS * HEADS * 4 * 2048 * 512 * D
    assert part.executed_flops == part.flops * 5 // 4  # five chunks of 128 for a window of 512
    informer = counted("informer").parts["attention"]
    assert informer.flops == informer.executed_flops


def test_turning_queries_and_keys_is_a_product():
    words = ("compute=report", "task=listops")
    turned, plain = (
        count_run(composed(*words, f"protocol.style.positions={p}")) for p in ("rope", "none")
    )
    assert turned.flops - plain.flops == LAYERS * HEADS * 2 * 4 * 2048 * D
    assert turned.executed_flops == plain.executed_flops


def test_operators_that_torch_counts_as_nothing():
    x, vector = torch.rand(3, 64, 64), torch.rand(64)
    calls = {
        lambda: torch.mv(x[0], vector): 2 * 64 * 64,
        lambda: torch.dot(vector, vector): 2 * 64,
        lambda: torch.fft.fft(x.to(torch.complex64)): 3 * 64 * 5 * 64 * 6,
        lambda: torch.fft.rfft(x): 3 * 64 * 5 * 64 * 6 // 2,
        lambda: torch.fft.irfft(torch.fft.rfft(x)): 2 * (3 * 64 * 5 * 64 * 3),
        lambda: torch.linalg.pinv(x): 3 * (21 + 2) * 64**3,
        lambda: torch.linalg.solve(x, x): 3 * 64**3 * 2 // 3 + 2 * 3 * 64**3,
        lambda: torch.linalg.inv(x): 3 * 2 * 64**3,
        lambda: torch.linalg.solve_triangular(x, x[..., :5], upper=True): 3 * 5 * 64**2,
        lambda: x @ x: 3 * 2 * 64**3,
        lambda: x.to(torch.complex64) @ x.to(torch.complex64): 3 * 8 * 64**3,
        lambda: x[0].to(torch.complex64) @ x[1].to(torch.complex64): 8 * 64**3,
        lambda: torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist"): 3 * 3 * 64**3,
    }
    for call, flops in calls.items():
        with FlopCounterMode(display=False, custom_mapping=OPERATORS) as counter:
            call()
        assert counter.get_total_flops() == flops
