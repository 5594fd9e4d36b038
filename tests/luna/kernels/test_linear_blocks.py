"""Linear attention in blocks against all features at once: outputs and every gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

from luna import linear
from luna.kernels import linear_blocks
from luna.linear import KernelAttention

from .. import kit
from ..kit import Sizes, shaken
from .kit import assert_close, assert_equal, leaves, scattered, with_gradients

causally = pytest.mark.parametrize("causal", [False, True])
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


def build(name: str, **options: Any) -> KernelAttention:
    attention = shaken(name, head_dim=8, max_len=2048, **options)
    assert isinstance(attention, KernelAttention)
    return attention


def tensors(n: int, B: int = 2) -> list[Tensor]:
    return leaves(*kit.qkv(B, 2, n, 8, d_v=5, seed=n))


def attended(attention: KernelAttention, qkv: list[Tensor], mask: Tensor | None = None):
    return with_gradients(attention(*qkv, mask), [*qkv, *attention.parameters()])


def assert_blocks_change_nothing(
    attention: KernelAttention, call: Callable[[], Iterable[Tensor]]
) -> None:
    assert attention.tokenwise
    in_blocks, attention.tokenwise = list(call()), False
    assert_close(in_blocks, list(call()), 1e-12)
    attention.tokenwise = True


@causally
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
@pytest.mark.parametrize("n", [1, 37])
def test_methods(name: str, options: dict[str, Any], n: int, causal: bool):
    attention, qkv = build(name, causal=causal, **options), tensors(n)
    for mask in (None, scattered(n)):
        assert_blocks_change_nothing(attention, lambda: attended(attention, qkv, mask))  # noqa: B023


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
    attention, mask, clean = build("t2r"), scattered(37), tensors(37)
    dirty = leaves(*(t.masked_fill(~mask[:, None, :, None], torch.nan) for t in clean))
    assert_equal(*(attended(attention, qkv, mask) for qkv in (clean, dirty)))


@causally
def test_parameters_given_for_one_call_get_the_gradients(causal: bool):
    """The features of backward are those of forward's parameters, not of the module's."""
    attention, qkv = build("hedgehog", causal=causal), tensors(20)
    others = {name: leaves(2 * p)[0] for name, p in attention.named_parameters()}

    def call() -> list[Tensor]:
        out = torch.func.functional_call(attention, others, tuple(qkv))
        return with_gradients(out, [*qkv, *others.values()])

    assert_blocks_change_nothing(attention, call)


def test_a_parameter_changed_before_backward_is_noticed():
    attention = build("t2r")
    out = attention(*tensors(20))
    with torch.no_grad():
        attention.map.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@causally
def test_backward_inside_autocast_keeps_its_precision(causal: bool):
    attention, qkv = build("t2r", causal=causal).float(), leaves(*tensors(20), dtype=torch.float32)
    gradients = []
    for inside in (True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=inside):
            gradients.append(torch.autograd.grad(attention(*qkv).square().sum(), qkv))
    assert_equal(*gradients)


def test_frozen_parameters():
    attention, qkv = build("t2r"), tensors(20)
    attention.map.weight.requires_grad_(False)
    inputs = [*qkv, attention.map.bias]
    assert_blocks_change_nothing(attention, lambda: with_gradients(attention(*qkv), inputs))


@causally
def test_features_of_all_tokens_are_never_there(causal: bool):
    n, D = 1024, 128
    attention, qkv = build("t2r", r=D, causal=causal), tensors(n, B=1)
    with Sizes() as sizes:
        attention(*qkv).sum().backward()
    assert sizes.largest < 2 * n * D / 4


def test_compiled_models_take_all_features():
    attention, qkv = build("linear"), tensors(20)
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_close(attended(compiled, qkv), attended(attention, qkv), 1e-12)


@causally
@pytest.mark.parametrize("name", ["linear", "t2r"])
def test_second_derivatives(name: str, causal: bool):
    """Also where q, k and v are one tensor, which is itself a function of another."""
    attention, x = build(name, causal=causal), tensors(37)[0]
    inputs = [x, *attention.parameters()]

    def call() -> list[Tensor]:
        y = x.tanh()
        loss = (x + attention(y, y, y, scattered(37))).square().sum()
        slopes = torch.autograd.grad(loss, inputs, create_graph=True)
        return [*slopes, *torch.autograd.grad(sum(s.sum() for s in slopes), inputs)]

    assert_blocks_change_nothing(attention, call)
