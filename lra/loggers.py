"""Loggers besides metrics.csv: `logger=wandb`, or several, `logger=[wandb,tensorboard]`."""

from __future__ import annotations

import importlib.util

from pytorch_lightning.loggers import Logger

from lra.config import UserError, WandbMode
from lra.runs import RunFolder, settings
from lra.settings import Run


def build(run: Run, folder: RunFolder) -> list[Logger]:
    loggers = []  # lra.callbacks.Metrics writes metrics.csv in any case
    if run.logger.wandb is not None:
        loggers.append(_wandb(run, folder))
    if run.logger.tensorboard is not None:
        loggers.append(_tensorboard(folder))
    return loggers


def _wandb(run: Run, folder: RunFolder) -> Logger:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    chosen = run.logger.wandb
    assert chosen is not None
    logger = WandbLogger(
        project=chosen.project,
        name=f"{run.task.name}-{run.attention['name']}-seed{run.seed}",
        id=f"{folder.name}-{folder.path.name}",  # a resumed run goes on in its own record
        save_dir=folder.path,
        offline=chosen.mode is WandbMode.offline,
        config=settings(run) | {"seed": run.seed},
        settings=wandb.Settings(init_timeout=15),
    )
    try:
        logger.experiment  # noqa: B018  (starts it, so a missing key shows before the first step)
    except wandb.errors.UsageError as error:
        raise UserError(
            "wandb has no API key: run `wandb login`, set WANDB_API_KEY, or use "
            "logger.wandb.mode=offline"
        ) from error
    except wandb.errors.CommError as error:
        raise UserError(
            f"wandb's server does not answer ({error}); use logger.wandb.mode=offline"
        ) from error
    return logger


def _tensorboard(folder: RunFolder) -> Logger:
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs TensorBoard, which is not installed: "
            "pip install 'luna-lra[tensorboard]'"
        )
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(folder.path, name="", version="tensorboard")
