"""Poolings and classifiers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from lra.base.config import ClsMask, Pooling
from lra.model.heads import POOLINGS

from .kit import CLEAN, OFFICIAL, affine, example, network, shake


def test_poolings():
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]]])
    mask = torch.tensor([[True, False, True]])
    assert POOLINGS[Pooling.masked_mean](x, mask).tolist() == [[3.0, 1.5]]
    one = torch.tensor([[False, True, False]])
    assert POOLINGS[Pooling.masked_mean](x, one).tolist() == [[3.0, 6.0]]
    assert POOLINGS[Pooling.masked_mean](x, None).tolist() == [[3.0, 3.0]]
    assert POOLINGS[Pooling.masked_mean](x, torch.zeros_like(mask)).tolist() == [[0.0, 0.0]]
    assert POOLINGS[Pooling.mean](x, mask).tolist() == [[3.0, 3.0]]
    assert POOLINGS[Pooling.cls](x, mask).tolist() == [[1.0, 2.0]]
    assert POOLINGS[Pooling.first](x, mask).tolist() == [[1.0, 2.0]]
    assert set(POOLINGS) == set(Pooling)


@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
@pytest.mark.parametrize("style", [CLEAN, replace(OFFICIAL, cls_mask=ClsMask.real)])
def test_longer_padding_changes_no_logit(attention, style):
    net = shake(network(style, attention=attention, length=64))
    ids, mask = example([20, 9, 1], 20)
    longer, garbage = (F.pad(ids, (0, 44), value=v) for v in (0, 7))
    longer_mask = F.pad(mask, (0, 44))
    expected = net(ids, mask)
    for padded in (longer, garbage):
        torch.testing.assert_close(net(padded, longer_mask), expected, rtol=0, atol=1e-10)


def test_an_all_padded_example_pools_to_zero():
    net = shake(network())
    ids, mask = example([24, 0])
    logits = net(ids, mask)
    logits.sum().backward()
    state = net.state_dict()
    at_zero = affine(state["head.0.bias"].relu(), state, "head.2")
    torch.testing.assert_close(logits[1], at_zero, rtol=0, atol=1e-12)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)
