"""Says where the kernels for GPUs run, and compares each with its reference before it is used."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, for tests

LEFT_OUT: set[str] = set()  # kernels that were found wrong, until the process ends
_compared: set[tuple[Any, ...]] = set()  # kernels, options and classes of shapes


def on_gpu(device: str) -> bool:
    """Say whether Triton's kernels run on a type of device."""
    return TRITON and (device == "cuda" or INTERPRETED)


def is_right(
    name: str,
    kernel: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    tensors: Sequence[Tensor],
    *options: Any,
) -> bool:
    """Say whether a kernel may be used. At the first call with such shapes and options (sizes above
    64 count by their next power of two) kernel(*tensors) and its gradients are held to the
    reference in float64. Allowed are ten times the rounding error of the reference itself, and
    3 sqrt(epsilon), 1e-3 in float32. While torch.compile traces nothing can be compared."""
    dtype = tensors[0].dtype
    sizes = (tuple(1 << (s - 1).bit_length() if s > 64 else s for s in t.shape) for t in tensors)
    key = (name, *options, dtype, *sizes)
    if name in LEFT_OUT or torch.compiler.is_compiling() or key in _compared:
        return name not in LEFT_OUT
    _compared.add(key)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            right = _with_gradients(reference, tensors, torch.float64)
            rounded, results = (_with_gradients(f, tensors, dtype) for f in (reference, kernel))
        norms = torch.stack([t.norm() for t in right])
        if not bool(norms.isfinite().all()):  # the inputs hold NaN, and prove nothing
            _compared.discard(key)
            return True
        norms = norms.maximum(1e-6 * norms.max()).clamp_min(1e-300)  # some nearly vanish
        rounding, errors = (
            torch.stack([(a - b).norm() for a, b in zip(those, right, strict=True)])
            for those in (rounded, results)
        )
        allowed = (10 * rounding).maximum(3 * torch.finfo(dtype).eps ** 0.5 * norms)
        if bool((errors <= allowed).all()):
            return True
        why = "it differs from its reference by " + ", ".join(f"{e:.1e}" for e in errors / norms)
    except torch.OutOfMemoryError:  # the comparison takes more memory than the kernel
        return True
    except Exception as error:
        why = f"it ends with {type(error).__name__}: {error}"
    LEFT_OUT.add(name)
    logging.getLogger("luna").warning(
        "the kernel '%s' is not used in this process, because %s; please report this", name, why
    )
    return False


def _with_gradients(
    function: Callable[..., Tensor], tensors: Sequence[Tensor], dtype: torch.dtype
) -> list[Tensor]:
    """The output and the gradients of all floating-point tensors, in float64."""
    copies = [
        t.detach().to(dtype, copy=True).requires_grad_() if t.is_floating_point() else t.clone()
        for t in tensors
    ]
    out = function(*copies)
    weights = torch.arange(out.numel(), device=out.device).cos().view(out.shape).to(dtype)
    gradients = torch.autograd.grad(out, [t for t in copies if t.requires_grad], weights)
    return [t.detach().double() for t in (out, *gradients)]
