"""`hydra/launcher=laptop`, `slurm`, `local` and `ray`, which survive the death of a worker.

Those of joblib and submitit, as released, end the whole sweep with a traceback when the worker of
one job dies. Here that job counts as failed, and the sweep ends with its summary. The released
hydra-ray-launcher 1.2.2 ends all jobs too, and cannot be installed beside joblib 1.6, for one needs
cloudpickle below 3, the other 3. Hydra looks for launchers in packages named `hydra_plugins`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

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

log = logging.getLogger(__name__)
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

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
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

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        if not job_overrides:
            return []
        executor, state = self._executor(), Singleton.get_state()
        log.info("submitit '%s' starts %d jobs: %s", self._EXECUTOR, len(job_overrides),
                 executor.folder)  # fmt: skip
        jobs = list(enumerate(job_overrides, initial_job_idx))
        arguments = [(list(w), "hydra.sweep.dir", n, f"job_{n}", state) for n, w in jobs]
        tasks = executor.map_array(self, *zip(*arguments, strict=True))
        return [self._result(task, *job) for task, job in zip(tasks, jobs, strict=True)]

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


class RayLauncher(Launcher):
    """`init` holds arguments of ray.init, `remote` those of ray.remote for each job."""

    def __init__(self, init: DictConfig, remote: DictConfig) -> None:
        self.init: Any = OmegaConf.to_container(init, resolve=True)
        self.remote: Any = OmegaConf.to_container(remote, resolve=True)

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context, self.task_function = hydra_context, task_function
        self.config = config

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        if find_spec("ray") is None:
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
                f"cannot connect to the Ray cluster ({error}): is it running, and do both machines "
                "have the same RAY_AUTH_MODE and ~/.ray/auth_token? docs/clusters.md has the recipe"
            ) from error
        check_resources(ray.nodes(), self.remote)
        remote = ray.remote(**self.remote)(_run_job)
        shared = self.hydra_context, self.task_function, Singleton.get_state(), str(Path.cwd())
        jobs = [self._config(*job) for job in enumerate(job_overrides, initial_job_idx)]
        tasks = [remote.options(name=job.hydra.job.id).remote(job, *shared) for job in jobs]
        try:
            return [_result(task, job) for task, job in zip(tasks, jobs, strict=True)]
        except BaseException:  # Ctrl-C: a cancelled job makes its run write a checkpoint
            for task in tasks:
                ray.cancel(task)
            ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
            raise

    def _config(self, number: int, words: Sequence[str]) -> DictConfig:
        job = self.hydra_context.config_loader.load_sweep_config(self.config, list(words))
        with open_dict(job):
            job.hydra.job.update(id=f"{job.hydra.job.name}_{number}", num=number)
        return job


def _run_job(
    job: DictConfig, context: HydraContext, task: TaskFunction, state: dict[Any, Any], folder: str
) -> JobReturn:
    """Run one job in a worker, as Hydra's own launchers do."""
    os.chdir(folder)  # shared by all machines; relative paths start there
    setup_globals()
    Singleton.set_state(state)
    HydraConfig.instance().set_config(job)
    return run_job(
        task_function=task,
        config=job,
        hydra_context=context,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _result(task: Any, job: DictConfig) -> JobReturn:
    """Wait for a job; it counts as failed if its worker or machine died."""
    import ray

    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        words = list(job.hydra.overrides.task)
        reason = f"lost by Ray: {first_line(getattr(error, 'cause', None) or error)}"
        return result_of_dead_worker(job.hydra.sweep.dir, job.hydra.job.num, words, reason)


def check_resources(nodes: Sequence[dict[str, Any]], remote: dict[str, Any]) -> None:
    """UserError if no machine can take a job, because Ray would wait for ever."""
    asked = {"GPU": remote.get("num_gpus") or 0, "CPU": remote.get("num_cpus") or 0}
    alive = [node["Resources"] for node in nodes if node["Alive"]]
    if not any(all(has.get(what, 0) >= n for what, n in asked.items()) for has in alive):
        raise UserError(
            f"no machine of this Ray cluster has the {asked['GPU']:g} GPU and {asked['CPU']:g} CPU "
            "of one job: set hydra.launcher.remote.num_gpus and num_cpus"
        )
