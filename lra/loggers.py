"""Loggers beside metrics.csv, by name."""

from __future__ import annotations

import importlib.util
from typing import Any

from lra.compose import Run
from lra.config import UserError, nearest
from lra.runs import RunFolder, settings


def build(run: Run, folder: RunFolder) -> list[Any]:
    if run.logger.name not in LOGGERS:
        raise UserError(f"unknown logger '{run.logger.name}'{nearest(run.logger.name, LOGGERS)}")
    return LOGGERS[run.logger.name](run, folder)


def _csv(run: Run, folder: RunFolder) -> list[Any]:
    return []  # metrics.csv is written by lra.callbacks.Metrics whatever the logger


def _wandb(run: Run, folder: RunFolder) -> list[Any]:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    if run.logger.mode not in ("offline", "online"):
        raise UserError(
            f"logger.mode={run.logger.mode} is out of range: it must be offline or online"
        )
    logger = WandbLogger(
        project=run.logger.project,
        name=f"{run.task.name}-{run.attention['name']}-seed{run.seed}",
        id=f"{folder.identity}-{run.seed}",  # a resumed run goes on in its own record
        save_dir=folder.path,
        offline=run.logger.mode == "offline",
        config=settings(run) | {"seed": run.seed},
        settings=wandb.Settings(init_timeout=15),
    )
    try:
        logger.experiment  # noqa: B018  (starts it: a missing key shows now, not in the first step)
    except wandb.errors.UsageError as error:
        raise UserError(
            "wandb has no API key: run `wandb login`, set WANDB_API_KEY, or use logger.mode=offline"
        ) from error
    except wandb.errors.CommError as error:
        raise UserError(
            f"wandb's server does not answer ({error}); use logger.mode=offline"
        ) from error
    return [logger]


def _tensorboard(run: Run, folder: RunFolder) -> list[Any]:
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs TensorBoard: pip install -c constraints.txt -e .[tensorboard]"
        )
    from pytorch_lightning.loggers import TensorBoardLogger

    return [TensorBoardLogger(folder.path, name="", version="tensorboard")]


LOGGERS = {"csv": _csv, "wandb": _wandb, "tensorboard": _tensorboard}
