"""The cost of single operations, and that no method runs one of unknown cost."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import luna
from lra.compute.count import count_run, tally
from lra.compute.ops import OpWork

from .kit import short_run


def flops_of(call: Callable[[], object]) -> OpWork:
    """What a few operations cost, outside of any network."""
    root = nn.Identity()
    with tally(root, {root: "rest"}) as seen:
        call()
    assert not seen.unknown
    return OpWork(seen.parts["rest"].flops, seen.parts["rest"].elementwise)


def test_operations_that_torchs_counter_misses():
    x = torch.zeros(3, 64, 64, device="meta")
    vector = torch.zeros(64, device="meta")
    assert flops_of(lambda: torch.mv(x[0], vector)).flops == 2 * 64 * 64
    assert flops_of(lambda: torch.dot(vector, vector)).flops == 2 * 64
    assert flops_of(lambda: torch.fft.fft(x.to(torch.complex64))).flops == 3 * 64 * 5 * 64 * 6
    assert flops_of(lambda: torch.fft.rfft(x)).flops == 3 * 64 * 5 * 64 * 6 // 2
    assert flops_of(lambda: torch.fft.irfft(torch.fft.rfft(x))).flops == 2 * (3 * 64 * 5 * 64 * 3)
    complex_ = x.to(torch.complex64)
    assert flops_of(lambda: complex_ @ complex_).flops == 4 * 3 * 2 * 64**3
    assert flops_of(lambda: torch.linalg.pinv(x)).flops == 3 * (21 + 2) * 64**3
    assert flops_of(lambda: torch.linalg.qr(x)).flops == 3 * 4 * 64**3 // 3
    assert flops_of(lambda: x.sort()).elements == 3 * 64 * 64 * 6
    assert flops_of(lambda: torch.searchsorted(vector, x)).elements == 3 * 64 * 64 * 6
    assert flops_of(lambda: x.softmax(-1)) == OpWork(0, 5 * 3 * 64 * 64)
    assert flops_of(lambda: x.sum(-1)) == OpWork(0, 3 * 64 * 64)
    assert flops_of(lambda: x.cumsum(1)) == OpWork(0, 3 * 64 * 64)
    assert flops_of(lambda: (x + 1).exp()) == OpWork(0, 2 * 3 * 64 * 64)
    assert flops_of(lambda: torch.cat([x, x.mT]).contiguous()[1:].clone()) == OpWork(0, 0)


@pytest.mark.parametrize("attention", luna.names())
@pytest.mark.parametrize("profile", ["strict", "published", "official"])
def test_no_method_runs_an_operation_of_unknown_cost(attention: str, profile: str):
    run = short_run(attention, f"protocol.profile={profile}", "model.n_layers=1", n=128)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and it runs on meta, whatever it reads off its tensors
        found = count_run(run)
    assert found.uncounted == {}
