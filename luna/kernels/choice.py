"""Which of several equal evaluations of an attention runs on a GPU: each is checked, then timed.

On a CPU rules decide, because results there must not depend on a clock. On a GPU the evaluations
are tried at the first call of a class of shapes: each computes outputs and gradients of random
tensors. One that fails, or differs from the definition in float64, is left out with a warning; the
fastest of the others is kept, in memory and on disk. Rules decide here too under LUNA_CHOICE=off
and under torch.use_deterministic_algorithms(True).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from luna.base import LunaError, autocast_off

if TYPE_CHECKING:
    from luna.linear import KernelAttention

SWITCH, FOLDER = "LUNA_CHOICE", "LUNA_CHOICE_DIR"  # environment variables
DEVICES = {"cuda"}  # types of device where evaluations are tried
CHECKED = 2**13  # tokens of all heads, at most, that are compared with the definition in float64
TOLERANCE = {  # of norms, relative
    torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2,
}  # fmt: skip
SLACK = 10.0  # times the definition's own error in the precision of the call is allowed as well
CALLS, ENOUGH = 3, 0.1  # timed calls of an evaluation, or fewer if they take these seconds
BUDGET = 1.5  # seconds for all calls at full size; what does not fit in is judged by its part

Key = tuple[Any, ...]


class Size(NamedTuple):
    """The shapes of a call: q, k (B, H, n, d), v (B, H, n, e)."""

    B: int
    H: int
    n: int
    d: int
    e: int
    masked: bool
    gradients: bool
    dtype: torch.dtype

    @classmethod
    def of(cls, q: Tensor, v: Tensor, mask: Tensor | None) -> Size:
        (B, H, n, d), masked = q.shape, mask is not None
        return cls(B, H, n, d, v.shape[3], masked, torch.is_grad_enabled(), q.dtype)

    @property
    def key(self) -> Key:
        """The class of shapes: batch and length count by their next power of two."""
        return (self.B - 1).bit_length(), (self.n - 1).bit_length(), self.H, *self[3:]

    @property
    def checked(self) -> Size:
        """The part that is compared with the definition."""
        n = min(self.n, max(1, CHECKED // self.H))
        return self._replace(B=max(1, min(self.B, CHECKED // (self.H * n))), n=n, gradients=True)


def active(device: torch.device) -> bool:
    """Whether evaluations are tried at this call. A graph that is traced or captured cannot."""
    if torch.compiler.is_compiling() or device.type not in DEVICES:
        return False
    rules = os.environ.get(SWITCH) == "off" or torch.are_deterministic_algorithms_enabled()
    return not (rules or (device.type == "cuda" and torch.cuda.is_current_stream_capturing()))


def choose(method: KernelAttention, size: Size, device: torch.device) -> str:
    """The fastest right evaluation, from the disk if it was chosen before."""
    note = _Note(_facts(device) | {"method": method.described(), "shapes": repr(size.key)})
    if "way" not in note.content:
        try:
            with torch.inference_mode(False), torch.enable_grad(), autocast_off(device):
                note.content["way"] = _try_all(method, size, device, note)
        except torch.OutOfMemoryError:  # not even the definition fits beside what is there
            return method.usual_way(device.type, size.n)
        note.write()
        if device.type == "cuda":  # the record's peak is that of the run
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    return note.content["way"]


def _try_all(method: KernelAttention, size: Size, device: torch.device, note: _Note) -> str:
    definition, *others = method.ways(device.type)
    part = size.checked
    small, whole = Tensors(part, device), Tensors(size, device)
    exact = _results(method, definition, small, torch.float64)
    own = _results(method, definition, small, size.dtype)
    least = TOLERANCE[size.dtype]
    allowed = [max(least, SLACK * error) for error in _errors(own, exact)]
    expected: list[Tensor] = []
    seconds: dict[str, float] = {}
    note.content["seconds"] = seconds  # anew: a trial that was cut short had its own
    left, times_larger = BUDGET, size.B * size.n / (part.B * part.n)
    for way in (definition, *others):
        if way in note.left_out:
            continue
        note.write({"trying": [way, platform.node(), os.getpid()]})
        on_part = functools.partial(_results, method, way, small, size.dtype)
        at_full_size = functools.partial(_results, method, way, whole, size.dtype)
        try:
            _compare(own if way == definition else on_part(), exact, allowed)
            (part_seconds,) = _time(on_part, device, 1)
            if 2 * part_seconds * times_larger > left:  # to be checked and timed
                seconds[way] = part_seconds * times_larger
                continue
            found = at_full_size()
            _compare(found, expected or found, allowed)
            expected = expected or found
            times = _time(at_full_size, device, CALLS)
            left -= times[0] + sum(times)
            seconds[way] = min(times)
        except torch.OutOfMemoryError:
            note.left_out[way] = "out of memory"  # nothing is wrong with it
        except Exception as error:
            note.leave_out(method.name, way, f"{type(error).__name__}: {error}")
            _wait(device, broken_by=way)
    return min(seconds, key=seconds.__getitem__) if seconds else definition


def _compare(found: Sequence[Tensor], right: Sequence[Tensor], allowed: Sequence[float]) -> None:
    errors = _errors(found, right)
    if any(not e <= limit for e, limit in zip(errors, allowed, strict=False)):
        listed = ", ".join(f"{e:.1e}" for e in errors)
        raise ArithmeticError(f"it differs from the definition by {listed} (relative)")


def _time(call: Callable[[], object], device: torch.device, calls: int) -> list[float]:
    """Seconds of some calls, fewer if they take long."""
    times: list[float] = []
    while len(times) < calls and sum(times) < ENOUGH:
        _wait(device)
        start = time.perf_counter()
        call()
        _wait(device)
        times.append(time.perf_counter() - start)
    return times


class Tensors:
    """Random q, k, v in the layout of a backbone, weights of the outputs, and a mask that ends the
    last example early. No generator of the run is used."""

    def __init__(self, size: Size, device: torch.device):
        generator = torch.Generator(device).manual_seed(0)
        self.values = [
            torch.randn(size.B, size.n, size.H, width, device=device, generator=generator)
            for width in (size.d, size.d, size.e, size.e)
        ]
        self.gradients, self.mask = size.gradients, None
        if size.masked:
            self.mask = torch.ones(size.B, size.n, dtype=torch.bool, device=device)
            self.mask[-1, size.n // 2 + 1 :] = False


class _By(nn.Module):
    def __init__(self, method: Any):
        super().__init__()
        self.method = method

    def forward(self, way: str, *tensors: Tensor | None) -> Tensor:
        return self.method.attend_by(way, *tensors)


def _results(method: Any, way: str, tensors: Tensors, dtype: torch.dtype) -> list[Tensor]:
    """Outputs at real tokens and, if asked for, the gradients of q, k, v and the parameters."""
    module = _By(method)
    state = {
        name: t.detach().to(dtype if t.is_floating_point() else t.dtype, copy=True)
        for name, t in itertools.chain(module.named_parameters(), module.named_buffers())
    }
    *qkv, weights = (t.to(dtype).transpose(1, 2) for t in tensors.values)
    trained = [state[name] for name, p in module.named_parameters() if p.requires_grad]
    leaves = [t.requires_grad_(tensors.gradients) for t in (*(t.detach() for t in qkv), *trained)]
    if tensors.mask is not None:
        weights = weights * tensors.mask[:, None, :, None]
    with torch.set_grad_enabled(tensors.gradients):
        out = torch.func.functional_call(module, state, (way, *leaves[:3], tensors.mask))
    if not tensors.gradients:
        return [out * weights]
    found = torch.autograd.grad(out, leaves, weights, materialize_grads=True)
    return [(out * weights).detach(), *found]


def _errors(found: Sequence[Tensor], right: Sequence[Tensor]) -> list[float]:
    """Norms of the differences; a gradient that nearly vanishes is compared with the others."""
    norms = [t.double().norm() for t in right]
    floor = 1e-6 * max(norms, default=torch.zeros(()))
    return [
        float((ours.double() - theirs).norm() / norm.maximum(floor).clamp_min(1e-300))
        for ours, theirs, norm in zip(found, right, norms, strict=bool(right))
    ]


def _wait(device: torch.device, broken_by: str | None = None) -> None:
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        if broken_by is None:
            raise
        raise LunaError(
            f"trying the evaluation '{broken_by}' broke the connection to the GPU ({error}): start "
            f"again, and it is left out; or set {SWITCH}=off"
        ) from error


# ---------------------------------------------------------------------- what is kept on disk


@functools.cache
def _facts(device: torch.device) -> dict[str, str]:
    """What a choice depends on besides method and shapes."""
    here, driver = Path(__file__).parent, Path("/proc/driver/nvidia/version")
    texts = [*sorted(here.rglob("*.py")), here.parent / "linear.py"]
    facts = {
        "kernels": hashlib.sha256(b"".join(p.read_bytes() for p in texts)).hexdigest()[:12],
        "torch": str(torch.__version__),
        "device": platform.processor() or device.type,
        "matmul": torch.get_float32_matmul_precision(),
    }
    if device.type == "cuda":
        facts["device"] = torch.cuda.get_device_name(device)
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        facts["triton"] = importlib.metadata.version("triton")
    with contextlib.suppress(OSError):
        facts["driver"] = driver.read_text(encoding="utf-8").splitlines()[0]
    return facts


def folder() -> Path:
    """Where choices are kept, one readable file each."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "luna-lra" / "choices")


class _Note:
    """One choice, on disk if that can be written. It says which evaluation is being tried, so that
    the next process leaves out one that ended this process."""

    def __init__(self, facts: dict[str, str]):
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
        self.path: Path | None = None
        self.content: dict[str, Any] = {"where": facts, "seconds": {}, "left_out": {}}
        with contextlib.suppress(OSError, RuntimeError, ValueError):  # unwritable, no home, torn
            self.path = folder() / f"{name}.json"
            self.content |= json.loads(self.path.read_text(encoding="utf-8"))
        way, *process = self.content.pop("trying", None) or [None]
        if way and _has_ended(*process):
            self.leave_out(facts["method"], way, "a process ended while it tried this")

    @property
    def left_out(self) -> dict[str, str]:
        return self.content["left_out"]

    def leave_out(self, method: str, way: str, why: str) -> None:
        self.left_out[way] = why
        self.write()
        logging.getLogger("luna").warning(
            "%s: its evaluation '%s' is left out on this device, because %s; please report this "
            "with the file %s, which also keeps it left out",
            *(method, way, why, self.path),
        )

    def write(self, more: dict[str, Any] | None = None) -> None:
        if self.path is None:
            return
        text = json.dumps(self.content | (more or {}), indent=1)
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path)


def _has_ended(node: str, pid: int) -> bool:
    # A number of this process itself is from an earlier container.
    alive = Path(f"/proc/{pid}").exists() and pid != os.getpid()
    return node == platform.node() and not alive
