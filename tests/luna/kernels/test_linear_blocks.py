"""Linear attention in blocks against all features at once: outputs and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna import linear
from luna.kernels import linear_blocks
from luna.linear import KernelAttention

from ..kit import Sizes

F64 = torch.float64
CASES: list[tuple[str, dict[str, Any]]] = [
    ("linear", {}),
    ("linear", {"profile": "published"}),
    ("performer_relu", {}),
    ("t2r", {"r": 7}),
    ("rff", {"P": 5}),
    ("hedgehog", {}),
    ("hedgehog", {"normalisation": "softmax_joint", "tie_qk": True, "share_heads": True}),
    ("cosformer", {}),
]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(linear, "LONG", 1)
    monkeypatch.setattr(linear_blocks, "BLOCK", 16)
    monkeypatch.setattr(linear_blocks, "CAUSAL_BLOCK", 8)


def build(name: str, *, causal: bool = False, **options: Any) -> KernelAttention:
    torch.manual_seed(0)
    attention = luna.build(
        name, n_heads=2, head_dim=8, max_len=2048, causal=causal, **options
    ).double()
    with torch.no_grad():
        for p in attention.parameters():
            p.add_(0.1 * torch.randn_like(p))
    assert isinstance(attention, KernelAttention)
    return attention


def tensors(n: int, B: int = 2) -> list[Tensor]:
    torch.manual_seed(n)
    sizes = [(B, 2, n, 8), (B, 2, n, 8), (B, 2, n, 5)]
    return [torch.randn(s, dtype=F64, requires_grad=True) for s in sizes]


def masks(n: int) -> Tensor:
    """Some tokens of the first example, none of the last."""
    mask = torch.rand(2, n, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[-1] = False
    return mask


def with_gradients(attention: KernelAttention, given: list[Tensor], mask: Tensor | None):
    out = attention(*given, mask)
    weights = torch.cos(torch.arange(out.numel(), dtype=F64)).view(out.shape)
    return [out, *torch.autograd.grad(out, [*given, *attention.parameters()], weights)]


def at_once(attention: KernelAttention, *given: Any) -> list[Tensor]:
    blocks, attention.tokenwise = attention.tokenwise, False
    try:
        return with_gradients(attention, *given)
    finally:
        attention.tokenwise = blocks


def assert_close(ours: list[Tensor], theirs: list[Tensor], tolerance: float = 1e-12) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).detach().abs().max() <= tolerance * b.detach().abs().max().clamp_min(1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@pytest.mark.parametrize("n", [1, 37])
def test_methods(name: str, options: dict[str, Any], n: int, causal: bool):
    attention = build(name, causal=causal, **options)
    assert attention.tokenwise
    for mask in (None, masks(n)):
        given = tensors(n)
        assert_close(with_gradients(attention, given, mask), at_once(attention, given, mask))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("linear", {"profile": "official"}),  # attends padding
        ("performer", {}),  # subtracts the largest exponent of all keys
        ("hedgehog", {"normalisation": "exp"}),
        ("luna", {"ch_rms": True}),
    ],
    ids=str,
)
def test_maps_that_look_at_other_tokens_are_not_cut(name: str, options: dict[str, Any]):
    assert not build(name, **options).tokenwise


def test_padding_is_not_read():
    n, mask = 37, masks(37)
    attention, clean = build("t2r"), tensors(37)
    pad = ~mask[:, None, :, None]
    dirty = [t.detach().masked_fill(pad, torch.nan).requires_grad_() for t in clean]
    found = [with_gradients(attention, given, mask) for given in (clean, dirty)]
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)
    assert found[1][0].shape == (2, 2, n, 5)


@pytest.mark.parametrize("causal", [False, True])
def test_parameters_given_for_one_call_get_the_gradients(causal: bool):
    """The features of backward are those of forward's parameters, not of the module's."""
    attention, given = build("hedgehog", causal=causal), tensors(20)
    other = {name: (2 * p).detach().requires_grad_() for name, p in attention.named_parameters()}
    found = []
    for blocks in (True, False):
        attention.tokenwise = blocks
        out = torch.func.functional_call(attention, other, tuple(given))
        found.append(torch.autograd.grad(out.square().sum(), [*given, *other.values()]))
    assert_close(*map(list, found))


def test_a_parameter_changed_before_backward_is_noticed():
    attention, given = build("t2r"), tensors(20)
    out = attention(*given)
    with torch.no_grad():
        attention.map.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.parametrize("causal", [False, True])
def test_backward_inside_autocast_keeps_its_precision(causal: bool):
    attention, given = build("t2r", causal=causal).float(), [t.float() for t in tensors(20)]
    found = []
    for inside in (True, False):
        leaves = [t.detach().requires_grad_() for t in given]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            found.append(torch.autograd.grad(attention(*leaves).square().sum(), leaves))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


def test_frozen_parameters():
    attention, given = build("t2r"), tensors(20)
    attention.map.weight.requires_grad_(False)
    assert attention.map.bias is not None
    leaves = [*given, attention.map.bias]
    found = []
    for blocks in (True, False):
        attention.tokenwise = blocks
        found.append(list(torch.autograd.grad(attention(*given).square().sum(), leaves)))
    assert_close(*found)


@pytest.mark.parametrize("causal", [False, True])
def test_features_of_all_tokens_are_never_there(causal: bool):
    n, D = 1024, 64
    attention, given = build("t2r", r=D, causal=causal), tensors(n, B=1)
    with Sizes() as sizes:
        attention(*given).sum().backward()
    assert sizes.largest < 2 * n * D / 4


def test_compiled_models_take_all_features():
    attention, given = build("linear"), tensors(20)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(with_gradients(compiled, given, None), with_gradients(attention, given, None))


@pytest.mark.parametrize("name", ["linear", "t2r", "based"])
@pytest.mark.parametrize("causal", [False, True])
def test_second_derivatives(name: str, causal: bool):
    """Also where q, k and v are one tensor, which is itself a function of another."""
    attention, x = build(name, causal=causal), torch.randn(2, 2, 37, 8, dtype=F64)
    leaves = [x.requires_grad_(), *attention.parameters()]
    found = []
    for blocks in (True, False):
        attention.tokenwise = blocks
        y = x.tanh()
        loss = (x + attention(y, y, y, masks(37))).square().sum()
        slopes = torch.autograd.grad(loss, leaves, create_graph=True)
        found.append([*slopes, *torch.autograd.grad(sum(s.sum() for s in slopes), leaves)])
    assert_close(*found)
