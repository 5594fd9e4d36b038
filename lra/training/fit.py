"""The steps that training and its phase one share: network, data, Lightning's Trainer, the fit."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
import yaml

from lra import data
from lra.base.config import Clip, UserError
from lra.base.disk import write_atomically
from lra.data.arrays import Prepared
from lra.data.device import DeviceLoader, fits
from lra.data.loader import Loader
from lra.model import pretrain
from lra.runs.folder import RunFolder, writing
from lra.settings.compose import Run
from lra.settings.experiment import plain
from lra.training.callbacks import AtomicCheckpointIO, Checkpoints, Compiled, Metrics, RandomState
from lra.training.checkpoints import load_checkpoint
from lra.training.loggers import build_loggers
from lra.training.module import LRAModule
from lra.training.progress import ProgressReport

# A FutureWarning of Lightning's own under torch 2.13, and its adverts.
warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
warnings.filterwarnings("ignore", message=r".*sync_dist=True")  # sums over processes come logged
for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)

TF32 = "tf32"  # trainer.precision: float32 whose matrix products round their factors to 10 bits


class LRAData(pl.LightningDataModule):
    """Loads the three splits by the protocol's rules; processes share a global batch evenly.

    Lightning saves the state of the training loader. That of the dev loader is saved here, because
    a protocol may evaluate the next block of an endless dev stream."""

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
        trainer = self.trainer
        return (trainer.global_rank, trainer.world_size) if trainer else (0, 1)


def build(run: Run) -> LRAModule:
    """Build the run's network, initialised from its seed, inside its LightningModule."""
    torch.manual_seed(run.seed)
    task = data.of(run.task)
    network = pretrain.build_network(run)
    title = f"{task.name}/{run.attention['name']}"
    return LRAModule(network, run.protocol.recipe, task.classes, title)


def check_device(run: Run) -> None:
    """Refuse float16 and TF32 on a CPU: Lightning would silently train in bfloat16, and torch in
    whatever the processor has, which is another run."""
    on_cpu = run.trainer.accelerator == "cpu" or (
        run.trainer.accelerator == "auto" and not torch.accelerator.is_available()
    )
    if on_cpu and run.trainer.precision.startswith(("16", TF32)):
        raise UserError(
            f"precision {run.trainer.precision} needs a GPU: use trainer.precision=32-true or "
            "bf16-mixed on a CPU (it is part of the run's identity)"
        )


def begin(run: Run, folder: RunFolder) -> None:
    """Write the run's settings into its folder, and that it is running."""
    facts = {"settings": run.experiment.settings(), "seed": run.seed} | folder.code_facts()
    config = yaml.safe_dump(plain(facts), sort_keys=False)
    with writing(folder.config):
        write_atomically(folder.config, config.encode())
    folder.set_status("running")


def fit(
    run: Run, module: LRAModule, loaders: LRAData, folder: RunFolder, deadline: float
) -> tuple[pl.Trainer, Checkpoints]:
    """Train to the last step, from the last checkpoint if there is one."""
    recipe, evaluation = run.protocol.recipe, run.protocol.evaluation
    checkpoints = Checkpoints(
        folder,
        every=run.trainer.checkpoint_every,
        evaluate_every=evaluation.every,
        select_after=int(evaluation.select_after * recipe.steps),
        deadline=deadline,
    )
    trainer = trainer_for(run, folder, checkpoints)
    resume = folder.last if folder.last.exists() else None
    if resume:
        step = load_checkpoint(resume, folder.name)["global_step"]
        print(f"resuming at step {step}/{recipe.steps}")
    trainer.fit(module, loaders, ckpt_path=resume)
    return trainer, checkpoints


def trainer_for(run: Run, folder: RunFolder, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    """Make Lightning's Trainer of the run's settings; `changes` override its arguments."""
    recipe, precision = run.protocol.recipe, run.trainer.precision
    # Set for float32 too: an earlier run of this process may have allowed TF32, and cuDNN uses it
    # unless it is forbidden.
    torch.set_float32_matmul_precision("high" if precision == TF32 else "highest")
    torch.backends.cudnn.allow_tf32 = precision == TF32
    precision = "32-true" if precision == TF32 else precision
    clipped = recipe.clip is not Clip.none
    arguments: dict[str, Any] = {
        "accelerator": run.trainer.accelerator,
        "devices": run.trainer.devices,
        "num_nodes": run.trainer.num_nodes,
        "strategy": run.trainer.strategy,
        "precision": precision,
        "max_steps": recipe.steps,
        "max_epochs": -1,  # unlimited: the loader is one stream of exactly `steps` batches
        "val_check_interval": run.protocol.evaluation.every,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "gradient_clip_val": recipe.clip_at if clipped else None,
        "gradient_clip_algorithm": recipe.clip.name if clipped else None,
        "callbacks": [
            RandomState(run.seed),
            Compiled(run.trainer.compile),
            Metrics(folder.metrics, every=run.trainer.log_every),
            *callbacks,
            # Last, because printing into a broken pipe raises, and Checkpoints must save before.
            ProgressReport(folder, style=run.trainer.progress, every=run.trainer.print_every),
        ],
        "logger": build_loggers(run, folder) or False,
        "log_every_n_steps": 1,  # Lightning logs nothing itself, but warns of longer intervals
        "plugins": [AtomicCheckpointIO()],
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
    }
    return pl.Trainer(**arguments | changes)


def is_main_process() -> bool:
    return int(os.environ.get("LOCAL_RANK", 0)) == 0 and int(os.environ.get("SLURM_PROCID", 0)) == 0
