"""Loggers besides metrics.csv: `logger=wandb`, or several, `logger=[wandb,tensorboard]`."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

from pytorch_lightning.loggers import Logger

from lra.base.config import UserError, WandbMode, first_line
from lra.data.store import lock
from lra.runs.folder import RunFolder, settings
from lra.settings.compose import Run


def build(run: Run, folder: RunFolder) -> list[Logger]:
    loggers = []  # lra.training.callbacks.Metrics writes metrics.csv in any case
    if run.logger.wandb is not None:
        loggers.append(_wandb(run, folder))
    if run.logger.tensorboard is not None:
        loggers.append(_tensorboard(folder))
    if run.logger.mlflow is not None:
        loggers.append(_mlflow(run, folder))
    return loggers


def _title(run: Run) -> str:
    return f"{run.task.name}-{run.attention['name']}-seed{run.seed}"


def _place(folder: RunFolder) -> str:
    """What a tracker knows the run by: a resumed run goes on in its own record."""
    return f"{folder.name}-{folder.path.name}"


def _wandb(run: Run, folder: RunFolder) -> Logger:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    options = run.logger.wandb
    assert options is not None
    logger = WandbLogger(
        project=options.project,
        name=_title(run),
        id=_place(folder),
        save_dir=folder.path,
        offline=options.mode is WandbMode.offline,
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
    _require("tensorboard", "TensorBoard")
    from pytorch_lightning.loggers import TensorBoardLogger

    return TensorBoardLogger(folder.path, name="", version="tensorboard")


def _mlflow(run: Run, folder: RunFolder) -> Logger:
    _require("mlflow", "MLflow")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on import
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow import MlflowClient, MlflowException
    from pytorch_lightning.loggers import MLFlowLogger

    options, place = run.logger.mlflow, _place(folder)
    assert options is not None
    # Two runs that make the store, or the experiment, at the same time would fail.
    waiting = "another run is opening MLflow's store; waiting for it"
    try:
        with lock(Path(run.runs_dir) / "mlflow", waiting):
            client = MlflowClient(tracking_uri=options.store)
            experiment = client.get_experiment_by_name(options.experiment)
            ids = [] if experiment is None else [experiment.experiment_id]
            earlier = client.search_runs(ids, f"tags.run = '{place}'") if ids else []
            logger = MLFlowLogger(
                experiment_name=options.experiment,
                run_name=_title(run),
                tracking_uri=options.store,
                tags={"run": place},
                run_id=earlier[0].info.run_id if earlier else None,
            )
            logger.log_hyperparams(settings(run) | {"seed": run.seed})  # starts it
    except MlflowException as error:
        raise UserError(f"MLflow cannot use {options.store}: {first_line(error)}") from error
    return logger


def _require(module: str, name: str) -> None:
    """UserError unless the package of the extra of this name is installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"logger={module} needs {name}, which is not installed: "
            f"pip install 'luna-lra[{module}]'"
        )
