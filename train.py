"""Train one attention on one Long Range Arena task.

python train.py task=listops attention=luna
"""

from __future__ import annotations

import sys

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lra import sweep
from lra.compose import check, guard


@hydra.main(version_base="1.3", config_path="configs", config_name="train")
def main(cfg: DictConfig) -> float | None:
    if HydraConfig.get().mode is RunMode.MULTIRUN:
        return sweep.job(cfg)

    def train() -> None:
        run = check(cfg)  # before anything heavy is imported
        from lra.run import train

        train(run)

    if code := guard(train):
        raise SystemExit(code)
    return None


if __name__ == "__main__":
    sys.exit(guard(main))
