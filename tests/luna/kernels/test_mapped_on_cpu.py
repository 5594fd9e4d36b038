"""Linear attention in machine code on a CPU, against all features: outputs and every gradient.

The operator takes float64, in which it is held to the definition; the methods give it float32.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna.kernels import cpu, mapped
from luna.kernels.checked import INTERPRETED
from luna.kernels.mapped.reference import plain

from ..kit import Sizes
from ..kit import qkv as drawn
from .kit import (
    F32,
    F64,
    assert_close,
    assert_equal,
    assert_padding_is_never_read,
    assert_threads_change_nothing,
    leaves,
    numba,
    scattered,
    with_gradients,
)

pytestmark = [
    numba,
    pytest.mark.skipif(INTERPRETED, reason="Triton's kernels take these tensors"),
]
MAPS = {"elu": {}, "relu": {"r": 12}}
METHODS = {"elu": "linear", "relu": "t2r"}
maps = pytest.mark.parametrize("name", list(MAPS))
OPTIONS: dict[str, Any] = {"causal": False, "eps": 1e-6, "divided": True}


def build(name: str, *, H: int = 2, d: int = 8, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_heads": H, "head_dim": d, "max_len": 8192}
    return luna.build(METHODS[name], **sizes, **MAPS[name] | options)


def tensors(
    n: int, *, B: int = 2, H: int = 2, d: int = 8, e: int = 5, dtype: torch.dtype = F64
) -> list[Tensor]:
    return leaves(*drawn(B, H, n, d, d_v=e, seed=n), dtype=dtype)


def parameters_of(name: str, H: int, d: int) -> list[Tensor]:
    return leaves(*build(name, H=H, d=d).map_parameters(), dtype=F64)


def by_kernels(
    name: str, qkv: list[Tensor], mask: Tensor | None, parameters: list[Tensor], **options: Any
) -> tuple[list[Tensor], Tensor]:
    out, c = mapped.mapped_attention(name, *qkv, mask, *parameters, **OPTIONS | options)
    return with_gradients(out, [*qkv, *parameters]), c


def assert_is_the_definition(
    name: str, qkv: list[Tensor], mask: Tensor | None, **options: Any
) -> None:
    B, H, n, d = qkv[0].shape
    parameters = parameters_of(name, H, d)
    real = torch.ones(B, n, dtype=torch.bool) if mask is None else mask
    out, c = plain(name, *qkv, real, *parameters, **OPTIONS | options)
    expected = with_gradients(out, [*qkv, *parameters])
    results, sums = by_kernels(name, qkv, mask, parameters, **options)
    assert_close([*results, sums], [*expected, c], 1e-12)


@maps
@pytest.mark.parametrize("n", [1, 63, 64, 65, 130, 1024, 1025, 2100])
def test_lengths(name: str, n: int):
    """Around a block of 64 tokens, around a segment of 1024, and of several segments."""
    for mask in (None, scattered(n)):
        assert_is_the_definition(name, tensors(n), mask)


@maps
@pytest.mark.parametrize(
    ("B", "H", "d", "e"), [(1, 1, 1, 1), (3, 2, 16, 16), (2, 3, 40, 17), (1, 2, 64, 33)]
)
def test_widths(name: str, B: int, H: int, d: int, e: int):
    """Below a vector, of whole vectors, which are used where they lie, and in between."""
    for mask in (None, scattered(100, B)):
        assert_is_the_definition(name, tensors(100, B=B, H=H, d=d, e=e), mask)


@maps
@pytest.mark.parametrize("n", [70, 128])
def test_layouts(name: str, n: int):
    """Heads cut out of one projection, columns that lie apart, batches that lie further apart than
    they are long, one batch for all, and a gradient of stride 0."""
    whole = tensors(n, d=16, e=16)
    packed = torch.stack([t.transpose(1, 2) for t in whole], 2).detach()  # (B, n, 3, H, d)
    of_model = leaves(*packed.permute(2, 0, 3, 1, 4))
    apart = leaves(*(t.mT.contiguous().mT for t in whole))
    far = leaves(*(torch.cat([t, t], 2)[:, :, :n] for t in whole))
    for qkv in (of_model, apart, far, [*whole[:2], of_model[2]]):
        assert_is_the_definition(name, qkv, scattered(n))
    one = leaves(*(t[:1] for t in whole))
    assert_is_the_definition(name, [t.expand(2, -1, -1, -1) for t in one], scattered(n))
    parameters, sums = parameters_of(name, 2, 16), []
    for qkv in (of_model, whole):
        out, _ = mapped.mapped_attention(name, *qkv, None, *parameters, **OPTIONS)
        sums.append(torch.autograd.grad(out.sum(), qkv))
    assert_close(*sums, 1e-12)


@maps
def test_another_divisor(name: str):
    assert_is_the_definition(name, tensors(130), scattered(130), divided=False)


@maps
@pytest.mark.parametrize("eps", [1e3, 0.5])
def test_sums_of_weights_are_kept_at_eps_and_have_no_gradient_there(name: str, eps: float):
    """For all queries, and for some."""
    qkv = tensors(70)
    with torch.no_grad():
        qkv[0][:, :, ::2] -= 8
    assert_is_the_definition(name, qkv, scattered(70), eps=eps)


@maps
def test_nothing_is_read_at_padding_or_before_it_is_written(name: str, monkeypatch: Any):
    """Not even NaN or an infinity, and rows of whole vectors neither."""
    attention = build(name, d=16).to(F32)
    clean = tensors(70, d=16, e=16)
    like = torch.empty(0, dtype=F32)
    assert_padding_is_never_read(attention, clean, like, 0, monkeypatch)


@maps
def test_nan_and_infinities_go_where_they_go_by_the_definition(name: str):
    """To the same numbers of the output, and of every gradient to no fewer; never to another
    example, which the same thread computes in the same buffers."""
    attention, definition = build(name).float(), build(name).double()
    for which in range(3):
        for value in (torch.nan, torch.inf, -torch.inf):
            results = []
            for method, dtype in ((attention, F32), (definition, F64)):
                qkv = tensors(70, dtype=dtype)
                with torch.no_grad():
                    qkv[which][0, 1, 7, 2] = value
                results.append(with_gradients(method(*qkv), [*qkv, *method.parameters()]))
            ours, theirs = results
            assert torch.equal(ours[0].isfinite(), theirs[0].isfinite())
            for a, b in zip(ours, theirs, strict=True):
                assert (~a.isfinite() | b.isfinite()).all()
            assert all(t[1].isfinite().all() for t in ours[:4])


def test_the_exponential_is_exact_to_a_few_units_in_the_last_place():
    from luna.kernels.linear_numba.buffers import padded
    from luna.kernels.mapped.numba_maps import map_elu

    x = torch.cat([torch.linspace(-87, 20, 10_007), torch.tensor([0.0, -0.0, -100, -torch.inf])])
    x = torch.cat([x, torch.tensor([torch.inf, torch.nan])])
    width = padded(x.numpy().dtype, len(x))
    rows, phi = torch.zeros(1, width), torch.empty(1, width)
    rows[0, : len(x)] = x
    cpu.jit(lambda *given: map_elu(*given))(rows.view(-1).numpy(), 0, width, phi.numpy(), 1)
    expected = torch.where(x > 0, x.double() + 1, x.double().exp())
    close = {"rtol": 3e-7, "atol": 1e-37, "equal_nan": True}
    torch.testing.assert_close(phi[0, : len(x)].double(), expected, **close)


@maps
def test_errors_are_no_larger_than_with_all_features(name: str, monkeypatch: Any):
    """In float32, of the output and every gradient."""
    n = 2048
    exact = tensors(n, d=32, e=32)
    parameters = parameters_of(name, 2, 32)
    real = torch.ones(2, n, dtype=torch.bool)
    out, _ = plain(name, *exact, real, *parameters, **OPTIONS)
    expected = with_gradients(out, [*exact, *parameters])
    single, weights = leaves(*exact, dtype=F32), leaves(*parameters, dtype=F32)
    ours, _ = by_kernels(name, single, None, weights)
    out, _ = plain(name, *single, real, *weights, **OPTIONS)
    theirs = with_gradients(out, [*single, *weights])
    for a, b, right in zip(ours, theirs, expected, strict=True):
        assert (a - right).norm() <= 1.5 * (b - right).norm()


@maps
def test_methods_take_the_kernels_in_single_precision_alone(name: str, monkeypatch: Any):
    calls: list[torch.dtype] = []
    before = mapped.mapped_attention

    def counted(name: str, q: Tensor, *rest: Any, **options: Any) -> Any:
        calls.append(q.dtype)
        return before(name, q, *rest, **options)

    monkeypatch.setattr(mapped, "mapped_attention", counted)
    for dtype in (torch.bfloat16, torch.float16, F32, F64):
        for causal in (False, True):
            qkv = tensors(20, dtype=dtype)
            out = build(name, causal=causal).to(F64 if dtype == F64 else F32)(*qkv)
            assert out.dtype == dtype
    assert calls == [F32] * 3
    assert build(name).evaluation("cpu") == "fused"
    assert build(name, causal=True).evaluation("cpu") is None
    monkeypatch.setattr(cpu, "AVAILABLE", False)
    assert build(name).evaluation("cpu") is None


@pytest.mark.parametrize("options", [{"profile": "published"}, {"profile": "official"}], ids=str)
def test_other_profiles_take_all_features(options: dict[str, Any]):
    assert build("elu", **options).evaluation("cpu") is None


@maps
def test_threads_change_nothing(name: str):
    attention, qkv, mask = build(name), tensors(3000, dtype=F32), scattered(3000)
    assert_threads_change_nothing(
        lambda: with_gradients(attention(*qkv, mask), [*qkv, *attention.parameters()])
    )


@maps
def test_nothing_is_left_of_an_earlier_call(name: str):
    """A thread keeps its buffers."""
    attention, qkv, mask = build(name), tensors(70, dtype=F32), scattered(70)
    inputs = [*qkv, *attention.parameters()]
    first = with_gradients(attention(*qkv, mask), inputs)
    for broken in (torch.nan, torch.inf):
        poisoned = leaves(*(torch.full_like(t, broken) for t in qkv))
        with_gradients(attention(*poisoned), poisoned)
    assert_equal(first, with_gradients(attention(*qkv, mask), inputs))


@maps
def test_a_direct_call_and_the_operator_are_one(name: str, monkeypatch: Any):
    """Also where inputs are views of one projection, and where nobody reads the output."""
    attention, mask = build(name), scattered(70)
    (x,) = leaves(torch.stack(tensors(70, e=8), 1).transpose(2, 3), dtype=F32)
    results = []
    for unseen in (True, False):
        monkeypatch.setattr(mapped.operator, "is_unseen", lambda *_, unseen=unseen: unseen)
        views = x.transpose(2, 3).unbind(1)
        results += [
            with_gradients(attention(*qkv, mask), [x, *attention.parameters()])
            for qkv in (views, [t.contiguous() for t in views])
        ]
    for other in results[1:]:
        assert_equal(results[0], other)


@maps
def test_second_derivatives(name: str):
    """Also where q, k and v are one tensor, which is itself a function of another."""
    attention, results = build(name), []
    for dtype in (F32, F64):
        (x,) = leaves(tensors(37, e=8)[0], dtype=dtype)
        attention.to(dtype)
        y = x.tanh()
        loss = (x + attention(y, y, y, scattered(37))).square().sum()
        inputs = [x, *attention.parameters()]
        slopes = torch.autograd.grad(loss, inputs, create_graph=True)
        second = torch.autograd.grad(sum(s.sum() for s in slopes), inputs)
        results.append([t.detach().double() for t in (*slopes, *second)])
    assert_close(*results, 1e-4)


@maps
def test_compiled_models_take_the_operator(name: str):
    attention, qkv, mask = build(name), tensors(70, dtype=F32), scattered(70)
    inputs = [*qkv, *attention.parameters()]
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    assert_equal(*(with_gradients(f(*qkv, mask), inputs) for f in (compiled, attention)))


def test_the_operator_is_sound():
    qkv, parameters = tensors(20), parameters_of("relu", 2, 8)
    call = (*qkv, scattered(20), parameters, "relu", False, 1e-6, True)
    torch.library.opcheck(mapped.operator.attention, call)


def test_no_tensor_of_the_size_of_the_features():
    n, D = 2048, 128
    attention, qkv = build("relu", H=1, r=D), tensors(n, B=1, H=1, dtype=F32)
    with Sizes() as sizes:
        attention(*qkv).sum().backward()
    assert sizes.largest < n * D / 4


def test_the_fraction_of_dead_rows_is_the_same():
    fractions = []
    for dtype in (F32, F64):
        attention = build("relu", r=1).to(dtype).eval()
        attention(*tensors(100, dtype=dtype), scattered(100))
        fractions.append(attention.dead_fraction)
    assert fractions[0] == fractions[1] > 0
