"""`hydra/launcher=laptop`, `slurm` and `local`: the launchers of joblib and submitit, which here
survive the death of a worker.

As released, they end the whole sweep with a traceback when the worker of one job dies. Here that
job counts as failed, and the sweep ends with its summary.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher

from lra.base.config import UserError, first_line
from lra.sweeps.sweep import result_of_dead_worker

try:
    from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher
except ImportError:  # the extra is missing: nothing uses this launcher, but Hydra imports it
    JoblibLauncher = Launcher
try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import BaseSubmititLauncher
except ImportError:
    BaseSubmititLauncher = Launcher

log = logging.getLogger(__name__)


class LaptopLauncher(JoblibLauncher):
    """When one worker dies, joblib ends the others too, and their runs write a checkpoint."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        from joblib.externals.loky.process_executor import TerminatedWorkerError

        try:
            return super().launch(job_overrides, initial_job_idx)
        except TerminatedWorkerError:
            reason = "a worker of joblib died, which ends all others; the same command resumes"
            folder = self.config.hydra.sweep.dir
            jobs = enumerate(job_overrides, initial_job_idx)
            return [result_of_dead_worker(folder, number, words, reason) for number, words in jobs]


class SubmititLauncher(BaseSubmititLauncher):
    """Waits for every job, also after another one has failed."""

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        if not job_overrides:
            return []
        jobs = list(enumerate(job_overrides, initial_job_idx))
        executor = self._executor()
        log.info("submitit '%s' starts %d jobs: %s", self._EXECUTOR, len(jobs), executor.folder)
        state = Singleton.get_state()
        arguments = [
            (list(words), "hydra.sweep.dir", number, f"job_{number}", state)
            for number, words in jobs
        ]
        submitted = executor.map_array(self, *zip(*arguments, strict=True))
        return [self._result(task, *job) for task, job in zip(submitted, jobs, strict=True)]

    def _executor(self) -> Any:
        import submitit
        from hydra_plugins.hydra_submitit_launcher.config import BaseQueueConf

        common = BaseQueueConf.__dataclass_fields__  # the others are this executor's own
        params = {k if k in common else f"{self._EXECUTOR}_{k}": v for k, v in self.params.items()}
        init = {"folder": params.pop("submitit_folder")}
        init |= {k: params.pop(k) for k in list(params) if k.endswith("_max_num_timeout")}
        try:
            executor = submitit.AutoExecutor(cluster=self._EXECUTOR, **init)
        except RuntimeError as error:
            raise UserError(
                f"no SLURM on this machine ({first_line(error)}): run the command on a login node, "
                "or use hydra/launcher=local"
            ) from error
        executor.update_parameters(**params)
        return executor

    def _result(self, task: Any, number: int, words: Sequence[str]) -> JobReturn:
        from submitit.core.utils import UncompletedJobError

        try:
            return task.result()
        except UncompletedJobError:
            reason = f"job {task.job_id} left no result ({task.state}): {task.paths.stderr}"
            return result_of_dead_worker(self.config.hydra.sweep.dir, number, words, reason)


class SlurmLauncher(SubmititLauncher):
    _EXECUTOR = "slurm"


class LocalLauncher(SubmititLauncher):
    _EXECUTOR = "local"
