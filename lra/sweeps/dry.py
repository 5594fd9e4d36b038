"""`lra train -m ... hydra/launcher=slurm --dry`: the script that sbatch would get, and no job."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import hydra
from hydra.types import RunMode
from hydra.utils import instantiate

from lra.base.errors import UserError
from lra.settings.search_path import initialised
from lra.sweeps.check import check_sweep
from lra.sweeps.status import jobs

SLURM = "hydra_plugins.lra_launchers.SlurmLauncher"


def show_script(words: Sequence[str], *, multirun: bool) -> None:
    """Check every value, and print the script to stdout, the jobs to stderr. Nothing
    is written, and no SLURM is needed here."""
    with initialised():
        listed = list(jobs(words, multirun=multirun))
        if not listed:
            raise UserError("this sweep has no jobs: does a glob match nothing?")
        settings = hydra.compose("train", listed[0], return_hydra_config=True).hydra
        launcher = settings.launcher.get("_target_", "")
        if launcher != SLURM:
            raise UserError(
                "--dry prints the script of a sweep on SLURM: add hydra/launcher=slurm; "
                "`lra plan` says what a sweep without SLURM will cost"
            )
        if not (multirun or settings.mode is RunMode.MULTIRUN):
            raise UserError("without -m the run is done here, not by SLURM: add -m")
        check_sweep(words)
        script = instantiate(settings.launcher).script(len(listed))
    common = set.intersection(*map(set, listed)) if len(listed) > 1 else set()
    for i, job in enumerate(listed):
        print(f"#{i} {' '.join(word for word in job if word not in common)}", file=sys.stderr)
    print(
        f"{len(listed)} jobs, of which nothing is submitted; the files that this script reads are "
        "written when the same words are given without --dry",
        file=sys.stderr,
    )
    print(script)
