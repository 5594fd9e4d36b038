"""The LightningDataModule that serves prepared arrays."""

from __future__ import annotations

from functools import partial

import pytorch_lightning as pl
import torch

from lra.data.arrays import Prepared
from lra.data.device import DeviceLoader, fits
from lra.data.loader import Loader
from lra.model.pretrain import InputLoader, inputs
from lra.settings.compose import Run


class LRAData(pl.LightningDataModule):
    """Loaders of the three splits by the protocol's rules; processes share a global batch evenly.

    Lightning saves the state of the training loader. The state of the dev loader is saved here,
    because a protocol may evaluate the next block of an endless dev stream.
    """

    def __init__(self, run: Run, prepared: Prepared):
        super().__init__()
        self.run, self.prepared = run, prepared
        self._dev: Loader | None = None
        self._dev_state: dict[str, int] = {"delivered": 0}

    def train_dataloader(self) -> Loader:
        return self._loader("train", steps=self.run.protocol.recipe.steps)

    def val_dataloader(self) -> Loader:
        self._dev = self._loader("val", limit=self.run.protocol.evaluation.dev_batches)
        self._dev.load_state_dict(self._dev_state)
        return self._dev

    def test_dataloader(self) -> Loader:
        return self._loader("test")

    def state_dict(self) -> dict[str, int]:
        return self._dev.state_dict() if self._dev else self._dev_state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._dev_state = state

    def _loader(self, split: str, *, steps: int | None = None, limit: int = -1) -> Loader:
        protocol, (rank, world) = self.run.protocol, self._share()
        examples, trainer = self.prepared.split(split), self.trainer
        device = trainer.strategy.root_device if trainer else torch.device("cpu")
        kind = partial(DeviceLoader, device=device) if fits(examples, device) else Loader
        return kind(
            examples,
            protocol.recipe.batch,
            rules=protocol.data,
            seed=self.run.seed,
            steps=steps,
            limit=limit,
            drop_last=protocol.evaluation.drop_last,
            rank=rank,
            world=world,
        )

    def _share(self) -> tuple[int, int]:
        """(rank, world): which part of a global batch is this process's."""
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)


class InputData(LRAData):
    """The same for phase one, which is evaluated on training inputs held out from it."""

    def _loader(self, split: str, *, steps: int | None = None, limit: int = -1) -> Loader:
        rank, world = self._share()
        sequences = inputs(self.prepared, held_out=split != "train")
        return InputLoader(sequences, self.run, steps=steps, rank=rank, world=world)
