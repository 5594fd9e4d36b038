"""What Lightning's Trainer gets of a run: its batches, device and precision, callbacks, and loggers
beside metrics.csv, whose classes and arguments are in configs/logger/."""

from __future__ import annotations

import logging
import os
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers import Logger, WandbLogger

from lra.base import hydras
from lra.base.config import Clip, Compile
from lra.base.errors import UserError, first_line
from lra.data.arrays import Prepared
from lra.data.device import DeviceLoader, fits
from lra.data.loader import Loader
from lra.data.store import lock
from lra.model import pretrain
from lra.runs.folder import RunFolder
from lra.settings.run import Run
from lra.training.callbacks import build_callbacks
from lra.training.checkpoints import AtomicCheckpointIO
from lra.training.progress import Metrics, ProgressReport
from lra.training.trackio import TrackioLogger

# Lightning's own under torch 2.13; sums of several processes come logged; TF32 is a setting.
# A callback that moves no result may be left out when a run is resumed.
EXPECTED = (
    r".*isinstance\(treespec, LeafSpec\)",
    r".*sync_dist=True",
    "TensorFloat32 tensor",
    "Be aware that when using `ckpt_path`",
)
for message in EXPECTED:
    warnings.filterwarnings("ignore", message=message)
for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on its import

MODES = {Compile.default: None, Compile.graphs: "reduce-overhead"}  # of torch.compile
DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}
TF32 = "tf32"  # trainer.precision: float32 whose matrix products round their factors to 10 bits


def check_device(run: Run) -> None:
    """Refuse a GPU that is not there, and float16 and TF32 on a CPU: Lightning would silently train
    in bfloat16, and torch in whatever the processor has, which is another run."""
    accelerator, devices = run.trainer.accelerator, run.trainer.devices
    there = torch.accelerator.device_count()
    listed = isinstance(devices, list)  # GPUs by their numbers
    needed = max(devices) + 1 if listed else devices
    on_cpu = not listed and (accelerator == "cpu" or (accelerator == "auto" and not there))
    if not on_cpu and needed > there:
        raise UserError(
            f"trainer.accelerator={accelerator} with trainer.devices={devices} needs {needed} "
            f"GPU{'s' * (needed > 1)}, torch can use {there}: trainer=cpu, or fewer devices"
        )
    if on_cpu and needed > (cores := os.cpu_count() or 1):
        raise UserError(f"trainer.devices={devices} is more than the {cores} cores of this machine")
    if on_cpu and run.trainer.precision.startswith(("16", TF32)):
        raise UserError(
            f"precision {run.trainer.precision} needs a GPU: use trainer.precision=32-true or "
            "bf16-mixed on a CPU (it is part of the run's identity)"
        )


def trainer_for(folder: RunFolder, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    """Make Lightning's Trainer of a run's settings; `changes` override its arguments."""
    run, recipe = folder.run, folder.run.protocol.recipe
    tf32 = run.trainer.precision == TF32
    # Set for float32 too: an earlier run of this process may have allowed TF32, and cuDNN uses it
    # unless it is forbidden.
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    clipped = recipe.clip is not Clip.none
    arguments = {
        "accelerator": run.trainer.accelerator,
        "devices": run.trainer.devices,
        "num_nodes": run.trainer.num_nodes,
        "strategy": run.trainer.strategy,
        "precision": "32-true" if tf32 else run.trainer.precision,
        "max_steps": recipe.steps,
        "max_epochs": -1,  # unlimited: the loader is one stream of exactly `steps` batches
        "val_check_interval": run.protocol.evaluation.every,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "limit_test_batches": run.debug.test_batches if run.debug else None,
        "gradient_clip_val": recipe.clip_at if clipped else None,
        "gradient_clip_algorithm": recipe.clip.name if clipped else None,
        "callbacks": [
            Compiled(run.trainer.compile),
            # Before Checkpoints, which must save what they have seen.
            *build_callbacks(run, str(folder.path)),
            Metrics(folder),
            *callbacks,
            # Last, because printing into a broken pipe raises, and Checkpoints must save before.
            ProgressReport(folder),
        ],
        "logger": build_loggers(folder) or False,
        "log_every_n_steps": 1,  # Lightning logs nothing itself, but warns of longer intervals
        "plugins": [AtomicCheckpointIO(folder.id)],
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
    }
    return pl.Trainer(**arguments | changes)


def build_loggers(folder: RunFolder) -> list[Logger]:
    run = folder.run
    title = f"{run.task.name}-{run.attention['name']}-seed{run.seed}"
    facts = {"folder": folder.path, "title": title, "id": folder.id}
    loggers: list[Logger] = []
    for name, options in run.logger.items():
        if not options:  # metrics.csv is always written
            continue
        words = {k: v.format(**facts) if isinstance(v, str) else v for k, v in options.items()}
        try:
            # Two runs that make one store at the same time would fail.
            with lock(Path(run.runs_dir) / "loggers", "another run is starting its loggers"):
                loggers.append(hydras.instantiate(words))
                loggers[-1].log_hyperparams(run.experiment.settings() | {"seed": run.seed})
        except Exception as error:  # its package, its key, or an answer of its server is missing
            raise UserError(
                f"logger={name} cannot start ({first_line(error.__cause__ or error)}): "
                "docs/install.md says what it needs"
            ) from error
    return loggers


def finish_loggers(loggers: list[Logger], scores: dict[str, Any]) -> None:
    """Log the scores of a test, and end the record of the run."""
    for logger in loggers:
        values = {f"test_{measure}": scores[measure] for measure in ("loss", "score")}
        logger.log_metrics(values, step=scores["step"])
        logger.finalize("success")
        if isinstance(logger, WandbLogger):  # or the next run of this process would be added to it
            logger.experiment.finish()
        if isinstance(logger, TrackioLogger):
            logger.finish()


class Compiled(pl.Callback):
    """Compiles the network at the first batch. On a GPU an ordinary forward pass comes first: there
    alone kernels are compared with their references (luna/kernels/checked.py)."""

    def __init__(self, how: Compile):
        self.how, self.done = how, how is Compile.off

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, _: int) -> None:
        if not self.done:
            self.done = True
            if module.device.type == "cuda":
                module.network.eval()  # where nothing is drawn, and no statistic moves
                with trainer.precision_plugin.forward_context():
                    module.network(batch.ids, batch.mask)
                module.network.train()
            module.network.compile(mode=MODES[self.how])
        if self.how is Compile.graphs:
            torch.compiler.cudagraph_mark_step_begin()  # the last step's outputs are not needed


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
        rank, world, device = 0, 1, torch.device("cpu")
        if self.trainer:
            rank, world = self.trainer.global_rank, self.trainer.world_size
            device = self.trainer.strategy.root_device
        if self.run.pretrain.is_the_run:  # of its training inputs, some are held out as dev split
            sequences = pretrain.inputs(self.prepared, held_out=split != "train")
            return pretrain.InputLoader(sequences, self.run, steps=steps, rank=rank, world=world)
        protocol, examples = self.run.protocol, self.prepared.split(split)
        if split == "train" and self.run.debug and self.run.debug.train_batches:
            examples = examples.first(self.run.debug.train_batches * protocol.recipe.batch)
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
