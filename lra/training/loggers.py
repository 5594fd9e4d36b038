"""Loggers besides metrics.csv: `logger=wandb`, or several, `logger=[wandb,tensorboard]`."""

from __future__ import annotations

import importlib.util
import logging
import os
from pathlib import Path

from pytorch_lightning.loggers import Logger

from lra.base.config import UserError, WandbMode, first_line
from lra.data.store import lock
from lra.runs.folder import RunFolder
from lra.settings.compose import Run


def build_loggers(run: Run, folder: RunFolder) -> list[Logger]:
    builders = {"wandb": _wandb, "tensorboard": _tensorboard, "mlflow": _mlflow}
    return [
        build(run, folder) for name, build in builders.items() if vars(run.logger)[name] is not None
    ]


def _title(run: Run) -> str:
    return f"{run.task.name}-{run.attention['name']}-seed{run.seed}"


def _key(folder: RunFolder) -> str:
    """Return the name by which a tracker finds a resumed run again."""
    return f"{folder.name}-{folder.path.name}"


def _wandb(run: Run, folder: RunFolder) -> Logger:
    import wandb
    from pytorch_lightning.loggers import WandbLogger

    options = run.logger.wandb
    assert options is not None
    logger = WandbLogger(
        project=options.project,
        name=_title(run),
        id=_key(folder),
        save_dir=folder.path,
        offline=options.mode is WandbMode.offline,
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


def _tensorboard(_: Run, folder: RunFolder) -> Logger:
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

    options, key = run.logger.mlflow, _key(folder)
    assert options is not None
    # Two runs that make the store, or the experiment, at the same time would fail.
    waiting = "another run is opening MLflow's store; waiting for it"
    try:
        with lock(Path(run.runs_dir) / "mlflow", waiting):
            client = MlflowClient(tracking_uri=options.store)
            experiment = client.get_experiment_by_name(options.experiment)
            ids = [] if experiment is None else [experiment.experiment_id]
            earlier = client.search_runs(ids, f"tags.run = '{key}'") if ids else []
            logger = MLFlowLogger(
                experiment_name=options.experiment,
                run_name=_title(run),
                tracking_uri=options.store,
                tags={"run": key},
                run_id=earlier[0].info.run_id if earlier else None,
            )
            logger.log_hyperparams(run.experiment.settings() | {"seed": run.seed})  # starts it
    except MlflowException as error:
        raise UserError(f"MLflow cannot use {options.store}: {first_line(error)}") from error
    return logger


def _require(module: str, name: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UserError(
            f"logger={module} needs {name}, which is not installed: "
            f"pip install 'luna-lra[{module}]'"
        )
