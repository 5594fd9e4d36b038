"""The fixture the property tests of every attention run on, and the checks they share.

Fixture F: float64, evaluation mode, B=2, H=2, n=64, d=32, q, k, v from N(0, 1), a fixed seed.
Results are compared on valid rows, by the largest absolute difference; the properties PI, CI, PE,
BI and CV are functions that return that difference, so that a test can ask for it to be 0 or not.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import luna
from luna import Attention

B, H, N, D = 2, 2, 64, 32
MASKS = ("full", "prefix", "scatter")


def build(
    name: str, *, n_heads: int = H, head_dim: int = D, max_len: int = 128, **options
) -> Attention:
    return luna.build(name, n_heads=n_heads, head_dim=head_dim, max_len=max_len, **options).eval()


def qkv(
    batch: int = B, heads: int = H, n: int = N, d: int = D, *, d_v: int | None = None, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(batch, heads, n, width, generator=generator, dtype=torch.float64)
        for width in (d, d, d_v or d)
    )
    return q, k, v


def mask_of(kind: str, batch: int = B, n: int = N) -> Tensor:
    """full; prefix, 50 and 40 tokens of 64 in turn; scatter, every third token masked."""
    position = torch.arange(n).expand(batch, n)
    if kind == "full":
        return torch.ones(batch, n, dtype=torch.bool)
    if kind == "scatter":
        return position % 3 != 0
    real = torch.tensor([n * (50, 40)[b % 2] // 64 for b in range(batch)])
    return position < real[:, None]


def extend(extra: int, mask: Tensor, *tensors: Tensor, value: float | None = None) -> list[Tensor]:
    """Append `extra` masked tokens of garbage, or of `value`: the mask first, then the tensors."""
    generator = torch.Generator().manual_seed(99)
    longer = [torch.cat([mask, mask.new_zeros(mask.shape[0], extra)], 1)]
    for t in tensors:
        shape = (*t.shape[:2], extra, t.shape[3])
        garbage = 10 * torch.randn(shape, generator=generator, dtype=t.dtype)
        longer.append(torch.cat([t, garbage if value is None else garbage.fill_(value)], 2))
    return longer


def difference(a: Tensor, b: Tensor, mask: Tensor | None = None) -> float:
    """Largest absolute difference on valid rows; NaN counts as infinite."""
    gap = (a - b).detach().abs().nan_to_num(nan=float("inf"))
    return float(gap.max() if mask is None else gap.masked_fill(~mask[:, None, :, None], 0).max())


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """The dense definition, with a boolean key mask."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    return scores.softmax(-1) @ v


# ---------------------------------------------------------------------- properties


def PI(attention: Attention, mask: Tensor, extra: int = 7) -> float:
    """Padding invariance: appended masked tokens change no valid row."""
    q, k, v = qkv()
    longer, *tensors = extend(extra, mask, q, k, v)
    return difference(attention(*tensors, longer)[:, :, :N], attention(q, k, v, mask), mask)


def CI(attention: Attention, mask: Tensor) -> float:
    """Content invariance: what masked positions hold changes no valid row."""
    tensors, others = qkv(), qkv(seed=1)
    keep = mask[:, None, :, None]
    changed = [torch.where(keep, t, 10 * o) for t, o in zip(tensors, others, strict=True)]
    return difference(attention(*changed, mask), attention(*tensors, mask), mask)


def PE(attention: Attention, mask: Tensor) -> float:
    """Permutation equivariance."""
    q, k, v = qkv()
    order = torch.randperm(N, generator=torch.Generator().manual_seed(5))
    moved = attention(q[:, :, order], k[:, :, order], v[:, :, order], mask[:, order])
    return difference(moved, attention(q, k, v, mask)[:, :, order], mask[:, order])


def BI(attention: Attention, mask: Tensor, axis: int = 0) -> float:
    """Batch independence: example 1 (or, with axis=1, head 1) does not reach the other one."""
    q, k, v = qkv()
    scale = torch.tensor([1.0, 4.0], dtype=q.dtype).view(*(2 if i == axis else 1 for i in range(4)))
    changed = attention(q * scale, k * scale, v * scale, mask)
    keep = mask[:1] if axis == 0 else mask
    return difference(changed.narrow(axis, 0, 1), attention(q, k, v, mask).narrow(axis, 0, 1), keep)


def CV(attention: Attention, mask: Tensor) -> float:
    """Constant value: if all values are c, so is every valid row of the output."""
    q, k, v = qkv()
    constant = v[:, :, :1].expand_as(v)
    return difference(attention(q, k, constant, mask), constant, mask)


# ---------------------------------------------------------------------- checks


def gradients_agree(
    attention: Attention, mask: Tensor | None, *, n: int = 6, x: Tensor | None = None
) -> bool:
    """Finite differences against autograd, for q, k, v and every parameter."""
    inputs = qkv(1 if mask is None else mask.shape[0], attention.n_heads, n, attention.head_dim)
    names = [name for name, _ in attention.named_parameters()]
    values = [p.detach().double() for _, p in attention.named_parameters()]

    def f(q: Tensor, k: Tensor, v: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(names, parameters, strict=True))
        return torch.func.functional_call(attention, named, (q, k, v, mask, x))

    given = [t.clone().requires_grad_() for t in (*inputs, *values)]
    return torch.autograd.gradcheck(f, given, atol=1e-7)


def amp_gap(attention: Attention, x: Tensor | None = None) -> float:
    """Inside a bfloat16 autocast region against float32 outside: 0 if autocast was off inside."""
    tensors = [t.bfloat16() for t in qkv()]
    exact = attention(*(t.float() for t in tensors), x=x)
    with torch.autocast("cpu", torch.bfloat16):
        half = attention(*tensors, x=x)
        single = attention(*(t.float() for t in tensors), x=x)
    assert half.dtype == torch.bfloat16
    return max(difference(single, exact), difference(half.float(), exact.bfloat16().float()))


class Sizes(TorchDispatchMode):
    """Records every tensor that an operator returns inside the block, backward included: its shape,
    and the most bytes that such tensors held at once. What an operator needs for itself while it
    runs is not seen: it depends on the algorithm that a library has chosen for this processor."""

    def __init__(self):
        super().__init__()
        self.shapes: list[torch.Size] = []
        self.peak = 0
        self._alive: dict[StorageWeakRef, int] = {}  # bytes of each storage

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        flat = out if isinstance(out, tuple | list) else (out,)
        tensors = [t for t in flat if isinstance(t, Tensor)]
        self.shapes += [t.shape for t in tensors]
        storages = [t.untyped_storage() for t in tensors]
        self._alive = {kept: size for kept, size in self._alive.items() if not kept.expired()}
        self._alive |= {StorageWeakRef(storage): storage.nbytes() for storage in storages}
        self.peak = max(self.peak, sum(self._alive.values()))
        return out

    @property
    def largest(self) -> int:
        """Elements of the largest of them."""
        return max(shape.numel() for shape in self.shapes)


def largest_tensor(attention: Attention, n: int, x: Tensor | None = None) -> int:
    """Elements of the largest tensor of one forward and backward pass; B = 1, a scattered mask."""
    tensors = [t.requires_grad_() for t in qkv(1, attention.n_heads, n, attention.head_dim)]
    with Sizes() as sizes:
        attention(*tensors, mask_of("scatter", 1, n), x).sum().backward()
    assert all(t.grad is not None for t in tensors)  # the backward pass was seen too
    return sizes.largest


def counted_flops(attention: Attention, n: int, d_v: int | None = None) -> int:
    """What torch's counter sees of a forward pass on one example: products and convolutions."""
    tensors = qkv(1, attention.n_heads, n, attention.head_dim, d_v=d_v)
    x = torch.zeros(1, n, attention.n_heads * attention.head_dim)
    with FlopCounterMode(display=False) as counter:
        attention(*tensors, x=x)
    return counter.get_total_flops()
