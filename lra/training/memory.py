"""What saves memory and moves no number: a batch in pieces (module.py), and activations that the
backward pass computes again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra.base.config import Compile
from lra.base.errors import UserError
from lra.settings.run import Run
from luna.method import Seeded

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_memory_savers(run: Run, network: nn.Module) -> None:
    """UserError for a network whose numbers they would move, and for what they do not fit."""
    setting = "trainer.micro_batch" if run.in_pieces else "trainer.checkpointing"
    for name in normed_over_batch(network):
        raise UserError(
            f"{setting}: {name} normalises over the batch, so it would give other numbers; "
            "set it to null or false, or choose an attention without such a norm"
        )
    if run.in_pieces and run.trainer.strategy in ("fsdp", "ddp_static_graph"):
        raise UserError(
            f"trainer.micro_batch does not fit trainer.strategy={run.trainer.strategy}, which "
            "counts one backward pass in a step: use ddp"
        )
    if run.in_pieces and run.trainer.compile is Compile.graphs:
        raise UserError(
            "trainer.micro_batch passes several times through the network in one step, which CUDA "
            "graphs overwrite: use trainer.compile=default"
        )
    if run.trainer.checkpointing and run.trainer.compile is not Compile.off:
        raise UserError(
            "trainer.checkpointing computes activations again by hooks that torch.compile does not "
            "see: add trainer.compile=off"
        )


def normed_over_batch(network: nn.Module) -> list[str]:
    """Name what normalises over the batch: of a part of it, or a second time, it does otherwise."""
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, NORMS) or getattr(module, "over_batch", False)
    ]


def recomputed(block: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """The output of a block whose activations are computed again when they are needed, from the
    same random state: torch looks after its own generators, and a method may have more."""
    if not (block.training and x.requires_grad):
        return block(x, mask)
    seeded = [module for module in block.modules() if isinstance(module, Seeded)]
    state: list[dict[str, Tensor]] = []

    @contextmanager
    def first() -> Iterator[None]:
        state[:] = [module.get_extra_state() for module in seeded]
        yield

    @contextmanager
    def again() -> Iterator[None]:
        after = [module.get_extra_state() for module in seeded]
        _set(seeded, state)
        yield
        _set(seeded, after)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return first(), again()

    return checkpoint(block, x, mask, use_reentrant=False, context_fn=contexts)


def _set(modules: list[Seeded], states: list[dict[str, Tensor]]) -> None:
    for module, state in zip(modules, states, strict=True):
        module.set_extra_state(state)
