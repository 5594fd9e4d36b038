"""Count the parameters and the FLOPs of a network by running it.

One example goes forward and backward on the meta device, where tensors have shapes and no contents,
under torch's own FLOP counter: products, a multiply-add being 2. `lra.compute.definitions` has what
is counted in another way, and what the code executes is recorded beside it.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, flop_registry

import luna
from lra.base.config import Mask
from lra.base.versions import methods_of
from lra.compute.compiler import without_compiler
from lra.compute.definitions import OPERATORS, decays, definition
from lra.model.backbone import EncoderBlock
from lra.model.build import build_network
from lra.model.network import Network
from lra.settings.experiment import Experiment
from lra.settings.presets import AROUND
from lra.settings.run import Run

PARTS = ("attention", "local", "projections", "mlp", "embedding", "head", "norms", "rest")
NAMESPACES = ("aten", "prim", "prims", "luna")  # of operators whose FLOPs are known
T = TypeVar("T")


@dataclass(frozen=True)
class PartCount:
    parameters: int = 0  # trainable
    buffers: int = 0  # stored elements that are not trained
    flops: int = 0  # per example, forward
    executed_flops: int = 0  # forward, as the code does it

    def __add__(self, other: PartCount) -> PartCount:
        return PartCount(**{key: n + getattr(other, key) for key, n in vars(self).items()})


@dataclass(frozen=True)
class Count(PartCount):
    """The sum over the parts of a network, and each of them. Only the whole network has FLOPs of
    training: torch's counter cannot always say which module a backward operator belongs to."""

    training_flops: int = 0  # forward and backward; 0 if the backward pass was not counted
    elementwise: int = 0  # products of states with decays, forward; in no FLOPs
    parts: dict[str, PartCount] = field(default_factory=dict)

    @property
    def slot(self) -> PartCount:
        return self.parts["attention"] + self.parts["local"]

    def record(self) -> dict[str, Any]:
        """List for result.json the totals, those of the attention slots, and parts with work."""
        slot = {f"attention_{key}": value for key, value in asdict(self.slot).items()}
        parts = {name: asdict(part) for name, part in self.parts.items() if part != PartCount()}
        return asdict(self) | slot | {"parts": parts}


_counts: dict[tuple[Any, ...], Count] = {}  # the gate, the solver and the tables ask again


def count_run(
    run: Run | Experiment, attention: dict[str, Any] | None = None, *, backward: bool = True
) -> Count:
    """Count the network of `run`, or one with another attention."""
    run = run if attention is None else replace(run, attention=attention)
    phase = run.pretrain.name if run.pretrain.is_the_run else None
    usual = {key: option.default for key, option in luna.options(run.attention["name"]).items()}
    options = usual | AROUND | run.attention  # a budget's method names none of these
    of_network = {k: v for k, v in vars(run.protocol).items() if k not in ("recipe", "evaluation")}
    facts = repr((run.task, sorted(options.items()), run.model, of_network, phase))
    masked = run.protocol.data.mask is not Mask.none
    key = (luna.get(run.attention["name"]), facts, backward)
    if key not in _counts:
        with without_compiler():
            count = partial(count_network, masked=masked, backward=backward)
            _counts[key] = _measured(run, count)
    return _counts[key]


def _measured(run: Run | Experiment, measure: Callable[[Network], T]) -> T:
    """Of a network without weights, which is fast. A method whose shapes depend on values cannot
    run so (torch raises one of these two): its network is built."""
    try:
        return measure(build(run, "meta"))
    except (NotImplementedError, RuntimeError):
        return measure(build(run, "cpu"))


def build(run: Run | Experiment, device: str) -> Network:
    with torch.device(device):
        network = build_network(run)
    return network.to(device)  # random draws are made on the CPU, whatever the default device


def count_network(network: Network, *, masked: bool = True, backward: bool = True) -> Count:
    """Count a network in training mode on its own device, at its full stored length."""
    device = next(network.parameters()).device
    shape = (1, 2, network.max_len) if network.dual else (1, network.max_len)
    ids = torch.zeros(shape, dtype=torch.long, device=device)
    if network.channels:
        ids = torch.zeros(*shape, network.channels, device=device)
    mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
    work = run_counted(network, lambda: network.train()(ids, mask), backward=backward)
    parts = {part: Counter[str]() for part in PARTS}
    seen: set[int] = set()
    for root, part in parts_of(network):
        parts[part].update(flops=work.forward[root], executed_flops=work.executed[root])
        for t in (*root.parameters(), *root.buffers()):
            if id(t) not in seen:  # a shared tensor counts once
                seen.add(id(t))
                parts[part]["parameters" if t.requires_grad else "buffers"] += t.numel()
    for name in ("flops", "executed_flops"):  # the rest is the network without its parts
        parts["rest"][name] -= sum(parts[part][name] for part in PARTS if part != "rest")
    counts = {part: PartCount(**numbers) for part, numbers in parts.items()}
    total = sum(counts.values(), PartCount())
    training_flops = work.both[network] if backward else 0
    return Count(
        **vars(total),
        training_flops=training_flops,
        elementwise=work.elementwise,
        parts=counts,
    )


def parts_of(network: Network) -> Iterator[tuple[nn.Module, str]]:
    """Yield the modules that each part consists of, and last the whole network as the `rest`."""
    yield from ((network.embedding, "embedding"), (network.head, "head"))
    if network.encoder.norm is not None:
        yield network.encoder.norm, "norms"
    for block in cast(Iterable[EncoderBlock], network.encoder.blocks):
        yield block.norm1, "norms"
        if block.mlp is not None and block.norm2 is not None:
            yield from ((block.norm2, "norms"), (block.mlp, "mlp"))
        yield from block.attention.parts()
    yield network, "rest"


def slot_flops(slot: luna.Attention | luna.Mixer, *, masked: bool = True) -> int:
    """Count the forward FLOPs of an attention alone, or of a mixer with its projections, on one
    example of full length."""
    slot, n = slot.to("meta"), slot.max_len
    mask = torch.ones(1, n, dtype=torch.bool, device="meta") if masked else None
    if isinstance(slot, luna.Mixer):
        x = torch.empty(1, n, slot.d_model, device="meta")
        if formula := definition(slot):
            return formula(slot, x)
        return run_counted(slot, lambda: slot(x, mask), backward=False).forward[slot]
    q = torch.empty(1, slot.n_heads, n, slot.head_dim, device="meta")
    if formula := definition(slot):
        return formula(slot, q, q, q)
    hidden = None
    if slot.traits().needs_x:
        hidden = torch.empty(1, n, slot.n_heads * slot.head_dim, device="meta")
    return run_counted(slot, lambda: slot(q, q, q, mask, hidden), backward=False).forward[slot]


def unseen_work(run: Run | Experiment) -> float:
    """Elements that the slot of a plug-in computes one by one in a forward pass, for each FLOP that
    is counted of it: a recurrence without products has many. 0 where it declares its `flops`."""
    methods = [luna.get(name) for name in methods_of(run.attention)]
    if all(cls.__module__.startswith("luna.") or hasattr(cls, "flops") for cls in methods):
        return 0.0
    return _measured(run, elements_per_flop)


def elements_per_flop(network: Network) -> float:
    """Elements that are computed one by one, for each FLOP, in a slot of every method."""
    slots = [module for module, part in parts_of(network) if part == "attention"]
    firsts: dict[type, Any] = {type(slot): slot for slot in reversed(slots)}
    counted = sum(slot_flops(slot) for slot in firsts.values())
    with ElementMode() as elements:
        for slot in firsts.values():
            slot_flops(slot)
    return elements.number / max(counted, 1)


# ---------------------------------------------------------------------- FLOPs of modules


class ElementMode(TorchDispatchMode):
    """Counts the elements that operators compute one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.pointwise in func.tags and isinstance(out, Tensor):
            self.number += out.numel()
        return out


class MetaMode(TorchDispatchMode):
    """Lets code read numbers off tensors without contents, and warns of operators that count 0."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            return 0
        if func.namespace not in NAMESPACES and func._overloadpacket not in flop_registry:
            warnings.warn(
                f"operator {func._overloadpacket} has no FLOP formula, so it counts 0: give it one "
                "with torch.utils.flop_counter.register_flop_formula",
                stacklevel=2,
            )
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Work:
    """FLOPs by module: of the forward pass, and of both passes; as the code does them, and with
    definitions in place of what the code does in the modules that have one. Beside them, products
    of states with decays, of all modules together in a forward pass."""

    executed: dict[nn.Module, int]
    forward: dict[nn.Module, int]
    both: dict[nn.Module, int]
    elementwise: int


def run_counted(root: nn.Module, forward: Callable[[], Tensor], *, backward: bool) -> Work:
    prefix = type(root).__name__  # how torch's counter names the outermost module that runs
    names = {module: f"{prefix}.{name}".rstrip(".") for name, module in root.named_modules()}
    formulas = {module: formula for module in names if (formula := definition(module))}
    for outer in list(formulas):  # a definition is all of the FLOPs inside, other definitions too
        for inner in outer.modules():
            if inner is not outer:
                formulas.pop(inner, None)
    fading = {module: formula for module in names if (formula := decays(module))}
    defined, beside = dict.fromkeys(formulas, 0), dict.fromkeys(fading, 0)

    def define(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        defined[module] += formulas[module](module, *inputs)

    def fade(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        beside[module] += fading[module](module, *inputs)

    def by_module() -> dict[nn.Module, int]:
        counts = counter.get_flop_counts()
        return {module: sum(counts.get(name, {}).values()) for module, name in names.items()}

    hooks = [module.register_forward_pre_hook(define) for module in formulas]
    hooks += [module.register_forward_pre_hook(fade) for module in fading]
    with FlopCounterMode(display=False, custom_mapping=OPERATORS) as counter, MetaMode():
        out = forward()
        ahead = by_module()
        for hook in hooks:  # activation checkpointing runs modules again in the backward pass
            hook.remove()
        if backward:
            out.sum().backward()
    both = by_module()

    def replaced(code: dict[nn.Module, int], passes: int) -> dict[nn.Module, int]:
        changes = {m: passes * defined[m] - code[m] for m in defined}
        return {
            m: n + sum(changes.get(inside, 0) for inside in m.modules()) for m, n in code.items()
        }

    # The backward pass computes every product twice, once per factor's gradient.
    return Work(ahead, replaced(ahead, 1), replaced(both, 3), sum(beside.values()))
