"""`lra train -m ... hydra/launcher=slurm --dry`: the script that sbatch would get, and no job.

The jobs are submitted as without `--dry`, but to an sbatch of ours, which starts nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hydra
from hydra.types import RunMode
from omegaconf import DictConfig

from lra.base import hydras
from lra.base.errors import UserError
from lra.settings.search_path import initialised
from lra.sweeps.check import check_sweep
from lra.sweeps.resources import of_jobs
from lra.sweeps.status import jobs

SLURM = "hydra_plugins.lra_launchers.SlurmLauncher"
# sbatch keeps where the script is that it is given, and answers as SLURM does. srun only has to be
# there. Both know no other program, because they are alone on PATH.
PROGRAMS = {
    "sbatch": '#!/bin/sh\necho "$1" > "${0%/*}/given"\necho Submitted batch job 1\n',
    "srun": "#!/bin/sh\n",
}


def show_script(words: Sequence[str], *, multirun: bool) -> None:
    """Check every value, and print the script to stdout, the jobs to stderr. Nothing stays, and no
    SLURM is needed here."""
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
        asked = of_jobs(listed, lambda job: hydra.compose("train", job).trainer)
        script = script_of(settings.launcher, listed, (asked, settings.overrides.hydra))
    common = set.intersection(*map(set, listed)) if len(listed) > 1 else set()
    for i, job in enumerate(listed):
        print(f"#{i} {' '.join(word for word in job if word not in common)}", file=sys.stderr)
    print(
        f"{len(listed)} jobs, of which nothing is submitted; the files that this script reads are "
        "written when the same words are given without --dry",
        file=sys.stderr,
    )
    print(script)


def script_of(
    launcher: DictConfig, jobs: Sequence[Sequence[str]], asked: tuple[Any, Sequence[str]]
) -> str:
    """Submit jobs to our sbatch, and return the script that it was given.

    submitit writes into a temporary folder, at the path that its files would have: into
    `/tmp/x/home/me/runs` for `/home/me/runs`. So the true path is quoted in the script as it would
    be, and `/tmp/x` is taken out.
    """
    from submitit.helpers import environment_variables

    place = Path(launcher.submitit_folder).expanduser().absolute()
    with TemporaryDirectory() as folder:
        programs = Path(folder, "bin")
        programs.mkdir()
        for name, text in PROGRAMS.items():
            program = programs / name
            program.write_text(text, encoding="utf-8")
            program.chmod(0o755)
            if not os.access(program, os.X_OK):
                raise UserError(f"{folder} may hold no programs: set TMPDIR to a folder that may")
        # Nothing else on PATH: a true sbatch must not be found behind ours.
        with environment_variables(PATH=programs):
            place_there = {"submitit_folder": f"{folder}{place}"}
            made = hydras.instantiate(launcher, **place_there)
            made.ask_for(*asked)
            made.submit([*enumerate(jobs)])
        given = Path((programs / "given").read_text(encoding="utf-8").rstrip("\n"))
        return given.read_text(encoding="utf-8").replace(folder, "")
