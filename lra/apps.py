"""`lra train` and `lra convert`: the commands whose words Hydra reads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lra import search_path, sweep
from lra.compose import check, guard
from lra.config import CONFIGS

CONFIG_PATHS = {"train": CONFIGS, "convert": CONFIGS / "convert"}


def start(app: str, words: Sequence[str]) -> None:
    """Run one of them with these words; without any, print what it can do."""
    typed = sys.argv

    def task(cfg: DictConfig) -> float | None:
        if app == "train" and HydraConfig.get().mode is RunMode.MULTIRUN:
            return sweep.job(cfg)
        sys.argv = typed  # with which Lightning starts the other processes of DDP
        if code := guard(lambda: TASKS[app](cfg)):
            raise SystemExit(code)
        return None

    main = hydra.main(version_base="1.3", config_path=str(CONFIG_PATHS[app]), config_name=app)
    search_path.install()
    sys.argv = [f"lra {app}", *(words or ["--help"])]  # as Hydra's usage names the command
    try:
        main(task)()
    finally:
        sys.argv = typed


def _train(cfg: DictConfig) -> None:
    run = check(cfg)  # before anything heavy is imported
    from lra.run import train

    train(run)


def _convert(cfg: DictConfig) -> None:
    from lra.conversion import check, convert

    convert(check(cfg))


TASKS = {"train": _train, "convert": _convert}


def complete(words: Sequence[str], commands: Iterable[str]) -> None:
    """Hydra's shell completion for the words of `lra train` and `lra convert`; before them, the
    names of the commands. The shell asks with `lra -sc query=...` and the line typed so far."""
    line = os.environ.get("COMP_LINE", "")
    command = re.match(r"\s*(\S+)\s+(train|convert)\s+", line)
    if command is not None:
        os.environ["COMP_LINE"] = f"{command[1]} {line[command.end() :]}"
        start(command[2], words)
    elif any(word.startswith("query=") for word in words):
        print(" ".join(commands))
    else:
        start("train", words)
