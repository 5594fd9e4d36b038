"""What a job of a cluster asks for: the machines, processes and GPUs of its run's trainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from lra.base.errors import UserError

# Groups whose choice may set a trainer; a sweep over others asks for the same.
DECIDE = ("trainer", "experiment", "debug")
UNSET = {"nodes": 1, "tasks_per_node": 1, "gpus_per_node": None}  # as the launcher has them


def gpus_of(accelerator: str, devices: Any, there: bool) -> int:
    """Count the GPUs that a trainer uses on a machine of a cluster that has some, or none."""
    if accelerator not in ("gpu", "cuda") and not (accelerator == "auto" and there):
        return 0
    return devices if isinstance(devices, int) else len(devices)


def of_slurm(trainer: Any) -> dict[str, int | None]:
    """SLURM starts a process for each device; Lightning finds them by SLURM's variables."""
    devices = trainer.devices if isinstance(trainer.devices, int) else len(trainer.devices)
    gpus = gpus_of(trainer.accelerator, trainer.devices, there=True)
    return {"nodes": trainer.num_nodes, "tasks_per_node": devices, "gpus_per_node": gpus or None}


def of_jobs(jobs: Iterable[Sequence[str]], trainer_of: Callable[[list[str]], Any]) -> Any:
    """What all jobs of an array ask for; UserError if they differ."""
    asked: dict[tuple[str, ...], dict[str, int | None]] = {}
    for words in jobs:
        key = tuple(word for word in words if word.lstrip("+~").startswith(DECIDE))
        if key not in asked:
            asked[key] = of_slurm(trainer_of([*words]))
    first, *others = asked.values()
    if any(other != first for other in others):
        raise UserError(
            "jobs of one array have the same machines and GPUs, and trainer.devices or "
            "trainer.num_nodes differ in this sweep: start one sweep for each"
        )
    return first


def refuse_contradictions(
    asked: Mapping[str, int | None], launcher: Mapping[str, Any], words: Iterable[str]
) -> None:
    """UserError for what is set by hand and is not what the trainer uses: a job would wait for
    processes that nobody starts, or leave cards idle."""
    typed = {word.lstrip("+").partition("=")[0] for word in words}
    for name, usual in UNSET.items():
        given, key = launcher.get(name), f"hydra.launcher.{name}"
        by_hand = key in typed or given != usual
        if by_hand and (given or None) != (asked[name] or None):
            raise UserError(f"{key}={given} contradicts {_why(asked, name)}: leave it out")
    gres = str(launcher.get("gres") or "")
    if cards := re.fullmatch(r"gpu(?::[\w.-]+?)?(?::(\d+))?", gres):
        given = int(cards[1] or 1)
        if given != (asked["gpus_per_node"] or 0):
            raise UserError(
                f"hydra.launcher.gres={gres} contradicts {_why(asked, 'gpus_per_node')}: correct it"
            )


def _why(asked: Mapping[str, int | None], name: str) -> str:
    setting = "trainer.num_nodes" if name == "nodes" else "trainer.devices and trainer.accelerator"
    return f"{setting}, by which it is {asked[name] or 0}"
