"""Count the parameters and the work of a network by running it.

One example goes forward and backward on the meta device, where tensors have shapes and no contents.
Every operation on the way (`lra.compute.ops` has its cost) is added to the part of the network that
runs it. FLOPs count products, a multiply-add being 2; element-wise work is counted separately, in
elements. A module whose code does other work than its definition is counted by the definition
(`lra.compute.definitions`); what the code executes is recorded beside it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.module_tracker import ModuleTracker

from lra import pretrain
from lra.compute.definitions import DEFINITIONS
from lra.compute.ops import OpWork, moved, rule
from lra.config import Mask
from lra.model.backbone import EncoderBlock
from lra.model.network import Network
from lra.settings import Run

PARTS = ("attention", "local", "projections", "mlp", "embedding", "head", "norms", "rest")
SLOT = ("attention", "local")  # the parts that the choice of an attention decides
NEGLIGIBLE = 1e-3  # share of all elements that operations of unknown cost may read and write


class Uncounted(UserWarning):
    """Operations whose cost is unknown did more than a negligible share of the work."""


@dataclass
class PartCount:
    """Size and work of one part of the network; work is per example."""

    parameters: int = 0  # trainable
    buffers: int = 0  # stored elements that are not trained
    flops: int = 0  # forward
    training_flops: int = 0  # forward and backward
    elementwise: int = 0  # forward, in elements
    executed_flops: int = 0  # forward, as the code does it

    def __add__(self, other: PartCount) -> PartCount:
        return PartCount(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )


@dataclass(frozen=True)
class Count:
    parts: dict[str, PartCount]
    # Operations of unknown cost, each with its share of the elements read and written.
    uncounted: dict[str, float] = field(default_factory=dict)

    @property
    def total(self) -> PartCount:
        return sum(self.parts.values(), PartCount())

    @property
    def slot(self) -> PartCount:
        return sum((self.parts[name] for name in SLOT), PartCount())

    @property
    def parameters(self) -> int:
        return self.total.parameters

    @property
    def flops(self) -> int:
        return self.total.flops

    def record(self) -> dict[str, Any]:
        """For result.json: totals, totals of the attention slots, and every part with work."""
        parts = {name: asdict(part) for name, part in self.parts.items() if part != PartCount()}
        slot = {f"attention_{key}": value for key, value in asdict(self.slot).items()}
        return asdict(self.total) | slot | {"parts": parts}


def count_run(run: Run, attention: dict[str, Any] | None = None, *, backward: bool = True) -> Count:
    """Count the network that `run` would train, or the same with another attention."""
    masked = run.protocol.data.mask is not Mask.none
    try:
        network = build(run, attention, "meta")
        return count(network, masked=masked, backward=backward)
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        name = (attention or run.attention)["name"]
        warnings.warn(
            f"attention '{name}' does not run on the meta device ({reason}): counted on the CPU",
            stacklevel=2,
        )
    return count(build(run, attention, "cpu"), masked=masked, backward=backward)


_counted: dict[str, Count] = {}


def count_once(run: Run, attention: dict[str, Any]) -> Count:
    """The forward count of a reference or a backbone, cached: the gate and every search need it."""
    key = repr((run.task.name, attention, run.model, run.protocol))
    if key not in _counted:
        _counted[key] = count_run(run, attention, backward=False)
    return _counted[key]


def build(run: Run, attention: dict[str, Any] | None, device: str) -> Network:
    run = run if attention is None else replace(run, attention=attention)
    with torch.device(device):
        network = pretrain.build_network(run)
    return network.to(device)  # random draws are made on the CPU, whatever the default device


def count(network: Network, *, masked: bool = True, backward: bool = True) -> Count:
    """Count a network in training mode on its own device, at its full stored length."""
    device = next(network.parameters()).device
    shape = (1, 2, network.max_len) if network.dual else (1, network.max_len)
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
    parts = parts_of(network)
    with tally(network, parts) as seen:
        out = network.train()(ids, mask)
        if backward:
            out.sum().backward()
    _count_tensors(network, parts, seen.parts)
    uncounted = seen.uncounted()
    if sum(uncounted.values()) > NEGLIGIBLE:
        names = ", ".join(f"{name} ({share:.1%})" for name, share in uncounted.items())
        warnings.warn(
            f"operations of unknown cost moved more than {NEGLIGIBLE:.1%} of all elements: "
            f"{names}; teach lra/compute/ops.py what they cost",
            Uncounted,
            stacklevel=2,
        )
    return Count(seen.parts, uncounted)


def parts_of(network: Network) -> dict[nn.Module, str]:
    """The root module of each part; everything outside them is `rest`."""
    roots: dict[nn.Module, str] = {
        network: "rest",
        network.embedding: "embedding",
        network.head: "head",
        network.encoder.norm: "norms",
    }
    for block in cast(Iterable[EncoderBlock], network.encoder.blocks):
        layer = block.attention
        roots |= {block.norm1: "norms", block.norm2: "norms", block.mlp: "mlp"}
        roots |= {layer.qkv: "projections", layer.out: "projections"}
        roots[layer.attention] = "attention"
        if layer.local is not None:
            roots[layer.local] = "local"
    return roots


def _count_tensors(
    root: nn.Module, roots: dict[nn.Module, str], parts: dict[str, PartCount]
) -> None:
    """Add up parameters and buffers of each part; a shared tensor counts once."""
    seen: set[int] = set()

    def visit(module: nn.Module, part: str) -> None:
        part = roots.get(module, part)
        tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        for t in tensors:
            if id(t) not in seen:
                seen.add(id(t))
                kind = "parameters" if t.requires_grad else "buffers"
                setattr(parts[part], kind, getattr(parts[part], kind) + t.numel())
        for child in module.children():
            visit(child, part)

    visit(root, "rest")


# ---------------------------------------------------------------------- the tally


class Tally(TorchDispatchMode):
    """Adds the cost of every operation to the part that is running."""

    def __init__(self, tracker: ModuleTracker, parts: dict[str, str], defined: set[str]):
        super().__init__()
        self.tracker = tracker
        self.part_of, self.defined = parts, defined  # keyed by the tracker's module names
        self.parts = {name: PartCount() for name in PARTS}
        self.moved = 0
        self.unknown: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0  # a number read off a tensor without contents
        out = func(*args, **kwargs)
        count, elements = rule(func), 0 if func.is_view else moved(args, out)
        by_code = not self.defined.isdisjoint(self.tracker.parents)
        self.moved += elements
        if count is not None:
            self.note(count(args, kwargs, out), by_code)
        elif not by_code:
            name = str(func._overloadpacket)
            self.unknown[name] = self.unknown.get(name, 0) + elements
        return out

    def note(self, work: OpWork, by_code: bool) -> None:
        """Add work; `by_code` is that of a module counted by its definition: only executed."""
        part, forward = self.parts[self.running()], not self.tracker.is_bw
        if forward:
            part.executed_flops += work.flops
        if not by_code:
            part.training_flops += work.flops
            if forward:
                part.flops += work.flops
                part.elementwise += work.elements

    def define(self, part: str, work: OpWork) -> None:
        """Add the work of a module counted by its definition; the backward pass computes every
        product twice, once per factor's gradient."""
        self.parts[part].flops += work.flops
        self.parts[part].elementwise += work.elements
        self.parts[part].training_flops += 3 * work.flops

    def running(self) -> str:
        """The part of the innermost running module that is the root of a part."""
        names = [name for name in self.tracker.parents if name in self.part_of]
        return self.part_of[max(names, key=len)] if names else "rest"

    def uncounted(self) -> dict[str, float]:
        return {name: n / max(self.moved, 1) for name, n in self.unknown.items()}


@contextlib.contextmanager
def tally(root: nn.Module, roots: dict[nn.Module, str]) -> Iterator[Tally]:
    """Count what runs inside the block; `roots` maps modules of `root` to names of parts."""
    prefix = type(root).__name__  # how the tracker names the outermost module it meets
    names = {module: f"{prefix}.{name}".rstrip(".") for name, module in root.named_modules()}
    parts = {names[module]: part for module, part in roots.items()}
    defined = {module: f for module in names if (f := definition(module))}
    with ModuleTracker() as tracker:
        counter = Tally(tracker, parts, {names[module] for module in defined})
        hooks = [m.register_forward_pre_hook(_definer(counter, f)) for m, f in defined.items()]
        try:
            with counter:
                yield counter
        finally:
            for hook in hooks:
                hook.remove()


def definition(module: nn.Module) -> Callable[..., OpWork] | None:
    return next((f for cls, f in DEFINITIONS.items() if isinstance(module, cls)), None)


def _definer(counter: Tally, formula: Callable[..., OpWork]) -> Callable[..., None]:
    def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if counter.tracker.is_bw:  # activation checkpointing computes it again
            return
        counter.define(counter.running(), formula(module, *inputs))

    return hook
