"""`hydra/launcher=laptop`, `slurm`, `local` and `ray`, which survive the death of a worker.

As released they end the whole sweep with a traceback when the worker of one job dies, and Ray's
cannot be installed beside joblib 1.6. Here that job counts as failed, and the sweep ends with its
summary. Hydra looks for launchers in packages named `hydra_plugins`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from omegaconf import DictConfig, OmegaConf

from lra.base.config import UserError, first_line
from lra.sweeps.sweep import GRACE, result_of_dead_worker

try:
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher
except ImportError:  # the extra is missing: nothing uses this launcher, but Hydra imports it
    JoblibLauncher = Launcher
try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:
    BaseSubmititLauncher = Launcher

IDLE = 10  # seconds after which a worker of joblib without a job ends
Overrides = Sequence[Sequence[str]]
# Environment of Ray, which reads it on import; variables that are already set win.
RAY_ENVIRONMENT = {
    "RAY_DEDUP_LOGS": "0",  # 1 hides lines of jobs that fail alike
    "RAY_COLOR_PREFIX": "0",  # 1 writes escape codes, into files too
    "RAY_USAGE_STATS_ENABLED": "0",  # 1 reports to its makers
    "RAY_worker_niceness": "0",  # the default, 15, starves runs on a machine with other work
}


class LaptopLauncher(JoblibLauncher):
    """When one worker dies, joblib ends the others too, and their runs write a checkpoint."""

    def __init__(self, **options: Any) -> None:
        # Nobody tells a worker without a job that the sweep was killed.
        super().__init__(**options, idle_worker_timeout=IDLE)

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        try:
            return super().launch(job_overrides, initial_job_idx)
        except TerminatedWorkerError:
            reason = "a worker of joblib died, which ends all others; the same command resumes"
            jobs = enumerate(job_overrides, initial_job_idx)
            return [result_of_dead_worker(self.config, *job, reason) for job in jobs]


class SubmititLauncher(BaseSubmititLauncher):
    """Waits for every job, also after another one has failed."""

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        from submitit.core.core import Job
        from submitit.core.utils import UncompletedJobError

        if self._EXECUTOR == "slurm" and shutil.which("srun") is None:
            raise UserError(
                "no SLURM on this machine (there is no srun): run the command on a login node, or "
                "use hydra/launcher=local"
            )
        wait, jobs = Job.results, iter(enumerate(job_overrides, initial_job_idx))

        def results(task: Any) -> list[Any]:
            job = next(jobs)  # Hydra asks for the results of all jobs in their order
            try:
                return wait(task)
            except UncompletedJobError:
                reason = f"job {task.job_id} left no result ({task.state}): {task.paths.stderr}"
                return [result_of_dead_worker(self.config, *job, reason)]

        with patch.object(Job, "results", results):
            return super().launch(job_overrides, initial_job_idx) if job_overrides else []


class SlurmLauncher(SubmititLauncher):
    _EXECUTOR = "slurm"


class LocalLauncher(SubmititLauncher):
    _EXECUTOR = "local"


class RayLauncher(Launcher):
    """`init` holds arguments of ray.init, `remote` those of ray.remote for each job."""

    def __init__(self, init: DictConfig, remote: DictConfig) -> None:
        self.init: Any = OmegaConf.to_container(init, resolve=True)
        self.remote: Any = OmegaConf.to_container(remote, resolve=True)

    def setup(self, *, hydra_context: Any, task_function: Any, config: DictConfig) -> None:
        self.config, self.job = config, (hydra_context, config, task_function)

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        if find_spec("ray") is None or find_spec("hydra_plugins.hydra_joblib_launcher") is None:
            raise UserError("Ray is not installed: pip install 'luna-lra[ray]'")
        os.environ.update(RAY_ENVIRONMENT | os.environ)
        import ray

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        try:
            if not ray.is_initialized():  # a search launches several times
                ray.init(**self.init)
        except ConnectionError as error:
            raise UserError(
                f"cannot connect to the Ray cluster ({error}): docs/clusters.md has the recipe"
            ) from error
        remote = ray.remote(**self.remote)(_run_job)
        jobs = list(enumerate(job_overrides, initial_job_idx))
        shared = (*self.job, Singleton.get_state())
        tasks = [
            remote.options(name=f"train_{job[0]}").remote(Path.cwd(), *job, *shared) for job in jobs
        ]
        try:
            return [self._result(task, job) for task, job in zip(tasks, jobs, strict=True)]
        except BaseException:  # Ctrl-C: a cancelled job makes its run write a checkpoint
            for task in tasks:
                ray.cancel(task)
            ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
            raise

    def _result(self, task: Any, job: tuple[int, Sequence[str]]) -> JobReturn:
        """Wait for a job; it counts as failed if its worker or machine died."""
        import ray

        try:
            return ray.get(task)
        except ray.exceptions.RayError as error:
            reason = f"lost by Ray: {first_line(getattr(error, 'cause', None) or error)}"
            return result_of_dead_worker(self.config, *job, reason)


def _run_job(folder: Path, *job: Any) -> JobReturn:
    from hydra_plugins.hydra_joblib_launcher._core import execute_job

    os.chdir(folder)  # shared by all machines; relative paths start there
    return execute_job(*job)
