"""Norms over a batch, blocks with the norm behind or without an MLP, dropout of whole channels."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import lra
from lra.base.config import Norm, NormPlace
from lra.base.errors import UserError
from lra.model.norms import BatchNorm
from luna.dropout import Dropout

from .kit import CLEAN, TINY, example, network

BATCH = replace(CLEAN, norm=Norm.batch)


def pair(width: int = 5) -> tuple[BatchNorm, nn.BatchNorm1d]:
    """Ours and torch's, with the same weights, which are not those of the start."""
    ours, theirs = BatchNorm(width, eps=1e-5).double(), nn.BatchNorm1d(width).double()
    with torch.no_grad():
        for name in ("weight", "bias"):
            drawn = torch.randn(width, dtype=torch.float64)
            getattr(ours, name).copy_(drawn)
            getattr(theirs, name).copy_(drawn)
    return ours, theirs


@pytest.mark.parametrize("padded", [False, True])
def test_statistics_are_of_the_real_tokens(padded: bool):
    """Those of torch on the real tokens alone: outputs, gradients, running averages of two
    batches, and what evaluation makes of them. Padding holds numbers that would move them."""
    torch.manual_seed(0)
    ours, theirs = pair()
    for _ in range(2):
        x = (3 + 2 * torch.randn(4, 7, 5, dtype=torch.float64)).requires_grad_()
        mask = torch.arange(7) < torch.tensor([7, 3, 1, 0])[:, None]
        with torch.no_grad():
            x[~mask] = 1e3
        seen = mask if padded else torch.ones_like(mask)
        out, expected = ours(x, mask if padded else None), theirs(x[seen])
        torch.testing.assert_close(out[seen], expected, rtol=1e-9, atol=1e-9)
        grads = []
        for y in (out[seen], expected):
            inputs = (x, *(ours if y is not expected else theirs).parameters())
            grads.append(torch.autograd.grad((y * y.detach().cos()).sum(), inputs))
        for a, b in zip(*grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-9)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(ours, name), getattr(theirs, name))
    ours.eval(), theirs.eval()
    torch.testing.assert_close(ours(x, mask)[mask], theirs(x[mask]))


def statistics(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: b.clone() for name, b in net.named_buffers() if "running" in name}


def test_what_padding_holds_moves_no_logit():
    torch.manual_seed(1)
    net = network(BATCH).train()
    ids, mask = example([24, 9, 1])
    kept = copy.deepcopy(net.state_dict())
    logits, after = net(ids, mask), statistics(net)
    net.load_state_dict(kept)
    torch.testing.assert_close(net(ids.masked_fill(~mask, 5), mask), logits)
    torch.testing.assert_close(statistics(net), after)
    assert not torch.equal(kept["encoder.norm.running_var"], after["encoder.norm.running_var"])


def test_evaluation_moves_no_statistic_and_looks_at_no_other_example():
    net = network(BATCH).train()
    ids, mask = example([24, 9, 1])
    net(ids, mask)
    net.eval()
    before = statistics(net)
    together = net(ids, mask)
    alone = torch.cat([net(ids[i : i + 1], mask[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone)
    assert all(torch.equal(v, before[k]) for k, v in statistics(net).items())


@pytest.mark.parametrize("place", list(NormPlace))
@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize("kind", list(Norm))
def test_places_of_norms(place: NormPlace, mlp: bool, kind: Norm):
    """The sums written out, with torch's own norms, without padding."""
    torch.manual_seed(2)
    net = network(replace(CLEAN, norm=kind, norm_place=place, mlp=mlp)).train()
    ids, _ = example([24, 24, 24])

    def normed(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
        axes = (0, 1) if kind is Norm.batch else -1
        mean, var = x.mean(axes, keepdim=True), x.var(axes, keepdim=True, correction=0)
        return (x - mean) / (var + 1e-5).sqrt() * module.weight + module.bias

    x, _ = net.embedding(ids, None)
    for block in net.encoder.blocks:
        if place is NormPlace.before:
            x = x + block.attention(normed(block.norm1, x), None)
            x = x + block.mlp(normed(block.norm2, x)) if mlp else x
        else:
            x = normed(block.norm1, x + block.attention(x, None))
            x = normed(block.norm2, x + block.mlp(x)) if mlp else x
    if place is NormPlace.before:
        x = normed(net.encoder.norm, x)
    names = [name for name, _ in net.named_parameters()]
    assert any("mlp" in name for name in names) is mlp
    assert ("encoder.norm.weight" in names) is (place is NormPlace.before)
    torch.testing.assert_close(net.encoder(net.embedding(ids, None)[0], None), x)


def test_a_head_can_be_one_linear_map():
    net = network(replace(CLEAN, hidden_layers=0))
    assert [p.shape for p in net.head.parameters()] == [(3, TINY.d_model), (3,)]


def test_tied_dropout_drops_a_channel_of_all_tokens():
    torch.manual_seed(3)
    x = torch.randn(200, 6, 40)
    dropped = Dropout(0.25, tied=True).train()(x)
    gone = (dropped == 0).all(1)
    assert torch.equal(gone, (dropped == 0).any(1))
    assert gone.float().mean() == pytest.approx(0.25, abs=0.02)
    torch.testing.assert_close(dropped[~gone[:, None].expand_as(x)], x[dropped != 0] / 0.75)
    assert not torch.equal(gone[0], gone[1])
    assert Dropout(0.25, tied=True).eval()(x) is x


def test_dropout_can_leave_the_embedding_alone():
    model = replace(TINY, dropout=0.5)
    net = network(replace(CLEAN, embedding_dropout=False, tied_dropout=True), model=model)
    places = {name: (m.p, m.tied) for name, m in net.named_modules() if isinstance(m, Dropout)}
    assert places.pop("embedding.dropout")[0] == 0
    assert set(places.values()) == {(0.5, True)}


def test_processes_would_have_statistics_of_their_own():
    words = ["task=listops", "attention=linear", "protocol.style.norm=batch"]
    lra.compose(words)
    with pytest.raises(UserError, match="layer where 2 processes train"):
        lra.compose([*words, "trainer.devices=2"])
