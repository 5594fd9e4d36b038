"""Count the parameters and the FLOPs of a network by running it.

One example goes forward and backward on the meta device, where tensors have shapes and no contents,
under torch's own FLOP counter: products, a multiply-add being 2. `lra.compute.definitions` has what
is counted in another way, and what the code executes is recorded beside it.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import luna
from lra.base.config import Mask
from lra.compute.definitions import OPERATORS, definition
from lra.model import pretrain
from lra.model.backbone import EncoderBlock
from lra.model.network import Network
from lra.settings.compose import Run

PARTS = ("attention", "local", "projections", "mlp", "embedding", "head", "norms", "rest")
NAMESPACES = ("aten", "prim", "prims", "luna")  # of operators whose FLOPs are known
SLOT = ("attention", "local")  # the parts that the choice of an attention decides


@dataclass(frozen=True)
class PartCount:
    parameters: int = 0  # trainable
    buffers: int = 0  # stored elements that are not trained
    flops: int = 0  # per example, forward
    training_flops: int = 0  # forward and backward
    executed_flops: int = 0  # forward, as the code does it

    def __add__(self, other: PartCount) -> PartCount:
        return PartCount(**{key: n + getattr(other, key) for key, n in vars(self).items()})


@dataclass(frozen=True)
class Count:
    parts: dict[str, PartCount]

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
        """List for result.json the totals, those of the attention slots, and parts with work."""
        parts = {name: asdict(part) for name, part in self.parts.items() if part != PartCount()}
        slot = {f"attention_{key}": value for key, value in asdict(self.slot).items()}
        return asdict(self.total) | slot | {"parts": parts}


# ---------------------------------------------------------------------- a run

_counts: dict[tuple[Any, ...], Count] = {}  # the gate, the solver and the tables ask again


def count_run(run: Run, attention: dict[str, Any] | None = None, *, backward: bool = True) -> Count:
    """Count the network of `run`, or one with another attention; the FLOPs of training only with
    `backward`."""
    run = run if attention is None else replace(run, attention=attention)
    phase = run.pretrain.name if run.pretrain.is_the_run else None
    facts = repr((run.task, run.attention, run.model, run.protocol, phase))
    key = (luna.get(run.attention["name"]), facts)
    if (key, True) in _counts:
        return _counts[key, True]
    if (key, backward) not in _counts:
        _counts[key, backward] = _count_built(run, backward)
    return _counts[key, backward]


def _count_built(run: Run, backward: bool) -> Count:
    masked = run.protocol.data.mask is not Mask.none
    try:
        return count_network(build(run, "meta"), masked=masked, backward=backward)
    except (NotImplementedError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"attention '{run.attention['name']}' does not run on the meta device ({reason}): "
            "counted on the CPU",
            stacklevel=3,
        )
    return count_network(build(run, "cpu"), masked=masked, backward=backward)


def build(run: Run, device: str) -> Network:
    with torch.device(device):
        network = pretrain.build_network(run)
    return network.to(device)  # random draws are made on the CPU, whatever the default device


def count_network(network: Network, *, masked: bool = True, backward: bool = True) -> Count:
    """Count a network in training mode on its own device, at its full stored length."""
    device = next(network.parameters()).device
    shape = (1, 2, network.max_len) if network.dual else (1, network.max_len)
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
    roots = parts_of(network)
    with tally(network, roots) as flops:
        out = network.train()(ids, mask)
        if backward:
            out.sum().backward()
    sizes = _sizes(network, roots)
    return Count({part: PartCount(**sizes[part], **flops[part]) for part in PARTS})


def parts_of(network: Network) -> dict[nn.Module, str]:
    """Map the root module of each part to it; everything outside them is `rest`."""
    roots: dict[nn.Module, str] = {
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


def _sizes(network: nn.Module, roots: dict[nn.Module, str]) -> dict[str, dict[str, int]]:
    """Count parameters and buffers by part; a shared tensor counts once."""
    seen: set[int] = set()
    sizes = {part: Counter[str]() for part in PARTS}

    def visit(module: nn.Module, part: str) -> None:
        part = roots.get(module, part)
        for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if id(t) not in seen:
                seen.add(id(t))
                sizes[part]["parameters" if t.requires_grad else "buffers"] += t.numel()
        for child in module.children():
            visit(child, part)

    visit(network, "rest")
    return {part: dict(size) for part, size in sizes.items()}


# ---------------------------------------------------------------------- an attention alone


def slot_flops(slot: luna.Attention, *, masked: bool = True, value_dim: int | None = None) -> int:
    """Count the forward FLOPs of a slot on one example of full length."""
    slot, H, n, d = slot.to("meta"), slot.n_heads, slot.max_len, slot.head_dim
    q = torch.empty(1, H, n, d, device="meta")
    v = torch.empty(1, H, n, value_dim or d, device="meta")
    if formula := definition(slot):
        return formula(slot, q, q, v)
    x = torch.empty(1, n, H * d, device="meta") if slot.needs_x else None
    mask = torch.ones(1, n, dtype=torch.bool, device="meta") if masked else None
    with tally(slot, {slot: "attention"}) as flops:
        slot(q, q, v, mask, x)
    return flops["attention"]["flops"]


# ---------------------------------------------------------------------- FLOPs by part


class Tally(TorchDispatchMode):
    """Gives the FLOPs of every operator, which torch's counter counts, to the part that runs it."""

    def __init__(self, counter: FlopCounterMode, parts: dict[str, str], defined: set[str]):
        super().__init__()
        self.counter, self.tracker = counter, counter.mod_tracker
        self.part_of, self.defined = parts, defined  # by the tracker's names of modules
        self.flops = {part: Counter[str]() for part in PARTS}  # fields of each PartCount

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0  # a number read off a tensor without contents
        operator = func._overloadpacket
        if func.namespace not in NAMESPACES and operator not in flop_registry:
            warnings.warn(
                f"operator {operator} has no FLOP formula, so it counts 0: give it one "
                "with torch.utils.flop_counter.register_flop_formula",
                stacklevel=2,
            )
        before = self.counter.get_total_flops()
        out = func(*args, **(kwargs or {}))
        if flops := self.counter.get_total_flops() - before:
            self.note(flops)
        return out

    def note(self, flops: int) -> None:
        """Add work of the code; that of a module counted by its definition is only executed."""
        executed = 0 if self.tracker.is_bw else flops
        if not self.defined.isdisjoint(self.tracker.parents):
            self.flops[self.running()].update(executed_flops=executed)
        else:
            self.flops[self.running()].update(
                flops=executed, executed_flops=executed, training_flops=flops
            )

    def define(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """Add the work of a module counted by its definition; the backward pass computes every
        product twice, once per factor's gradient."""
        formula = definition(module)
        if formula and not self.tracker.is_bw:  # where activation checkpointing computes it again
            flops = formula(module, *inputs)
            self.flops[self.running()].update(flops=flops, training_flops=3 * flops)

    def running(self) -> str:
        """Find the part of the innermost running module that is the root of one."""
        names = [name for name in self.tracker.parents if name in self.part_of]
        return self.part_of[max(names, key=len)] if names else "rest"


@contextlib.contextmanager
def tally(root: nn.Module, roots: dict[nn.Module, str]) -> Iterator[dict[str, Counter[str]]]:
    """Count what runs inside the block, by part; `roots` maps modules of `root` to parts."""
    prefix = type(root).__name__  # how the tracker names the outermost module it meets
    names = {module: f"{prefix}.{name}".rstrip(".") for name, module in root.named_modules()}
    defined = [module for module in names if definition(module)]
    with FlopCounterMode(display=False, custom_mapping=OPERATORS) as counter:
        parts = {names[module]: part for module, part in roots.items()}
        mode = Tally(counter, parts, {names[module] for module in defined})
        hooks = [module.register_forward_pre_hook(mode.define) for module in defined]
        try:
            with mode:
                yield mode.flops
        finally:
            for hook in hooks:
                hook.remove()
