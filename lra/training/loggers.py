"""Loggers besides metrics.csv: `logger=wandb`, or several, `logger=[wandb,tensorboard]`."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path

from pytorch_lightning.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lra.base.config import UserError, first_line
from lra.data.store import lock
from lra.runs.folder import RunFolder
from lra.settings.compose import Run


def build_loggers(run: Run, folder: RunFolder) -> list[Logger]:
    names = [name for name in BUILDERS if vars(run.logger)[name] is not None]
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise UserError(
                f"logger={name} needs {name}, which is not installed: "
                f"pip install 'luna-lra[{name}]'"
            )
    return [BUILDERS[name](run, folder) for name in names]


def finish_loggers(loggers: list[Logger], scores: dict[str, float], step: int) -> None:
    """Log the last scores of a run, and end its record."""
    for logger in loggers:
        logger.log_metrics(scores, step=step)
        logger.finalize("success")
        if isinstance(logger, WandbLogger):  # or the next run of this process would be added to it
            logger.experiment.finish()


def _tensorboard(run: Run, folder: RunFolder) -> Logger:
    return TensorBoardLogger(folder.path, name="", version="tensorboard")


def _wandb(run: Run, folder: RunFolder) -> Logger:
    import wandb

    options = run.logger.wandb
    assert options is not None
    logger = WandbLogger(
        project=options.project,
        mode=options.mode.name,
        name=_title(run),
        id=_key(folder),
        save_dir=folder.path,
        config=run.experiment.settings() | {"seed": run.seed},
        settings=wandb.Settings(init_timeout=15),
    )
    try:
        logger.experiment  # noqa: B018  (starts it, so a missing key shows before the first step)
    except wandb.errors.Error as error:  # no key, or no answer from its server
        raise UserError(
            f"wandb: {first_line(error)}: run `wandb login`, or use logger.wandb.mode=offline"
        ) from error
    return logger


def _mlflow(run: Run, folder: RunFolder) -> Logger:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read on import
    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    from mlflow import MlflowClient, MlflowException

    options = run.logger.mlflow
    assert options is not None
    # Two runs that make the store, or the experiment, at the same time would fail.
    waiting = "another run is opening MLflow's store; waiting for it"
    try:
        with lock(Path(run.runs_dir) / "mlflow", waiting):
            client = MlflowClient(tracking_uri=options.store)
            experiment = client.get_experiment_by_name(options.experiment)
            ids = [experiment.experiment_id] if experiment else []
            earlier = client.search_runs(ids, f"tags.run = '{_key(folder)}'") if ids else []
            logger = MLFlowLogger(
                experiment_name=options.experiment,
                run_name=_title(run),
                tracking_uri=options.store,
                tags={"run": _key(folder)},
                run_id=earlier[0].info.run_id if earlier else None,
            )
            logger.log_hyperparams(run.experiment.settings() | {"seed": run.seed})  # starts it
    except MlflowException as error:
        raise UserError(f"MLflow cannot use {options.store}: {first_line(error)}") from error
    return logger


BUILDERS: dict[str, Callable[[Run, RunFolder], Logger]] = {
    "wandb": _wandb,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
}


def _title(run: Run) -> str:
    return f"{run.task.name}-{run.attention['name']}-seed{run.seed}"


def _key(folder: RunFolder) -> str:
    """Return the name by which a tracker finds a resumed run again."""
    return f"{folder.name}-{folder.path.name}"
