"""`hydra/launcher=laptop`, `slurm`, `local` and `ray`, which survive the death of a worker.

As released they end the whole sweep with a traceback when the worker of one job dies, and Ray's
cannot be installed beside joblib 1.6. Here that job counts as failed, and the sweep ends with its
summary. Hydra looks for launchers in packages named `hydra_plugins`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, configure_log, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from lra.base.errors import UserError, first_line
from lra.sweeps.resources import gpus_of, of_jobs, refuse_contradictions
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
IDLE = 10  # seconds after which a worker of joblib without a job ends
Overrides = Sequence[Sequence[str]]
Job = tuple[int, Sequence[str]]  # its number in the sweep, and its overrides
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
    """One job of submitit per run. The released launcher gives up all jobs when one leaves no
    result, so submitting and waiting are ours. What a job does, and its settings, are as released.
    """

    cluster: str  # as submitit calls it

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        jobs = list(enumerate(job_overrides, initial_job_idx))
        if not jobs:  # submitit would warn
            return []
        sweep = self.config.hydra.sweep
        folder = Path(sweep.dir)
        folder.mkdir(parents=True, exist_ok=True)
        if "mode" in sweep:
            folder.chmod(int(str(sweep.mode), 8))
        tasks = self.submit(jobs)
        log.info(f"{len(jobs)} jobs of submitit ({self.cluster}), sweep output dir: {folder}")
        for number, words in jobs:
            log.info(f"\t#{number} : {' '.join(filter_overrides(words))}")
        return [self._result(task, job) for task, job in zip(tasks, jobs, strict=True)]

    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        """Hand jobs over, to SLURM as one array; return submitit's view of each."""
        from submitit import AutoExecutor
        from submitit.core.utils import FailedJobError

        # With the cluster's name before it submitit takes a setting for this cluster.
        settings = {f"{self.cluster}_{key}": value for key, value in self.params.items()}
        folder = settings.pop(f"{self.cluster}_submitit_folder")
        limit = f"{self.cluster}_max_num_timeout"  # of the executor, not of a job
        made_with = {limit: settings.pop(limit)} if limit in settings else {}
        executor = AutoExecutor(folder, cluster=self.cluster, **made_with)
        executor.update_parameters(**settings)
        state = Singleton.get_state()
        arguments = [
            (list(words), "hydra.sweep.dir", number, f"job_id_for_{number}", state)
            for number, words in jobs
        ]
        try:
            return executor.map_array(self, *zip(*arguments, strict=True))
        except FailedJobError as error:
            raise UserError(f"no job was submitted: {first_line(error)}") from error

    def _result(self, task: Any, job: Job) -> JobReturn:
        """Wait for a job; it counts as failed if it was cancelled or its machine died."""
        from submitit.core.utils import UncompletedJobError

        try:
            return task.results()[0]  # of its first process, where a job has several
        except UncompletedJobError:
            reason = f"job {task.job_id} left no result ({task.state}): {task.paths.stderr}"
            return result_of_dead_worker(self.config, *job, reason)


class SlurmLauncher(SubmititLauncher):
    cluster = "slurm"

    def submit(self, jobs: Sequence[Job]) -> list[Any]:
        if shutil.which("srun") is None:
            raise UserError(
                "no SLURM on this machine (there is no srun): run the command on a login node, "
                "use hydra/launcher=local, or add --dry to see the script"
            )
        if self.config is not None:  # else --dry has asked for them
            self.ask_for(*self.asked(jobs))
        return super().submit(jobs)

    def asked(self, jobs: Sequence[Job]) -> tuple[Any, Sequence[str]]:
        """What their trainers ask for, and the words for Hydra."""
        load = self.hydra_context.config_loader.load_sweep_config
        asked = of_jobs((w for _, w in jobs), lambda words: load(self.config, words).trainer)
        return asked, self.config.hydra.overrides.hydra

    def ask_for(self, asked: dict[str, int | None], words: Sequence[str]) -> None:
        """Ask for a process and a card for each device of the trainer, unless `gres` names the
        cards. Where one process of several fails, SLURM ends the others."""
        refuse_contradictions(asked, self.params, words)
        self.params |= asked
        if self.params.get("gres"):
            self.params["gpus_per_node"] = None
        if asked["nodes"] != 1 or asked["tasks_per_node"] != 1:
            self.params["srun_args"] = ["--kill-on-bad-exit=1"]


class LocalLauncher(SubmititLauncher):
    cluster = "local"


class RayLauncher(Launcher):
    """`init` holds arguments of ray.init, `remote` those of ray.remote for each job. With `wait` a
    machine that is large enough may join the cluster later."""

    def __init__(self, init: DictConfig, remote: DictConfig, wait: bool = False) -> None:
        self.init: Any = OmegaConf.to_container(init, resolve=True)
        self.remote: Any = OmegaConf.to_container(remote, resolve=True)
        self.wait = wait

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.context, self.function = config, hydra_context, task_function

    def launch(self, job_overrides: Overrides, initial_job_idx: int) -> Sequence[JobReturn]:
        if find_spec("ray") is None:
            raise UserError("Ray is not installed: pip install 'luna-lra[ray]'")
        os.environ.update(RAY_ENVIRONMENT | os.environ)
        import ray

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        if not ray.is_initialized():  # a search launches several times
            self._connect()
        jobs = list(enumerate(job_overrides, initial_job_idx))
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        options = [self._options(words, machines) for _, words in jobs]
        if not self.wait:
            for of_job in options:
                refuse_too_large(of_job, machines)
        shared = (self.context, self.config, self.function, Singleton.get_state())
        tasks = [
            ray.remote(**of_job)(_run_job)
            .options(name=f"train_{number}")
            .remote(Path.cwd(), number, words, *shared)
            for (number, words), of_job in zip(jobs, options, strict=True)
        ]
        try:
            return [self._result(task, job) for task, job in zip(tasks, jobs, strict=True)]
        except BaseException:  # Ctrl-C: a cancelled job makes its run write a checkpoint
            for task in tasks:
                ray.cancel(task)
            ray.wait(tasks, num_returns=len(tasks), timeout=GRACE)
            raise

    def _connect(self) -> None:
        """Join the cluster that `init` names, or that of this machine; else start one, with a token
        of its own: Ray would leave one in the user's home."""
        import ray

        address, others = self.init.get("address"), {**self.init}
        try:
            if address is None:
                with contextlib.suppress(ConnectionError):
                    ray.init(**others | {"address": "auto"})
                    return
                others["address"] = address = "local"
            named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & {*os.environ}
            kept = Path("~/.ray/auth_token").expanduser().exists()
            if address == "local" and not (named or kept):
                os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
            ray.init(**others)
        except ConnectionError as error:
            raise UserError(
                f"cannot connect to the Ray cluster ({error}): docs/clusters.md has the recipe"
            ) from error

    def _options(self, words: Sequence[str], machines: Sequence[dict[str, float]]) -> Any:
        """Give the arguments of ray.remote for a job: as many GPUs as its trainer uses, unless
        `remote` has a number."""
        if self.remote.get("num_gpus") is not None:
            return self.remote
        loader = self.context.config_loader
        trainer = loader.load_sweep_config(self.config, list(words)).trainer
        if trainer.num_nodes != 1:
            raise UserError(
                f"trainer.num_nodes={trainer.num_nodes}: Ray gives a run to one machine; use "
                "trainer.devices, or hydra/launcher=slurm"
            )
        there = any(machine.get("GPU") for machine in machines)
        return self.remote | {"num_gpus": gpus_of(trainer.accelerator, trainer.devices, there)}

    def _result(self, task: Any, job: Job) -> JobReturn:
        """Wait for a job; it counts as failed if its worker or machine died."""
        import ray

        try:
            return ray.get(task)
        except ray.exceptions.RayError as error:
            reason = f"lost by Ray: {first_line(getattr(error, 'cause', None) or error)}"
            return result_of_dead_worker(self.config, *job, reason)


def refuse_too_large(options: dict[str, Any], machines: Sequence[dict[str, float]]) -> None:
    """UserError for a job that fits on no machine of the cluster: Ray would wait for ever."""
    named = {"GPU": "num_gpus", "CPU": "num_cpus", "memory": "memory"}  # as Ray calls what it has
    needed = {name: options.get(key) or 0 for name, key in named.items()}
    needed |= options.get("resources") or {}
    needed = {name: amount for name, amount in needed.items() if amount}
    if any(all(machine.get(n, 0) >= x for n, x in needed.items()) for machine in machines):
        return
    most = {name: max((m.get(name, 0) for m in machines), default=0) for name in needed}
    short = {name: amount for name, amount in most.items() if amount < needed[name]}
    asked, there = (
        " and ".join(f"{amount:g} {name}" for name, amount in amounts.items())
        for amounts in (needed, short)
    )
    raise UserError(
        f"a run asks Ray for {asked}, but no machine of the cluster has "
        f"{f'more than {there}' if short else 'all of that'}: use trainer=cpu or a smaller "
        "hydra.launcher.remote, or add a machine (hydra.launcher.wait=true waits for one)"
    )


def _run_job(
    folder: Path,
    number: int,
    words: Sequence[str],
    context: HydraContext,
    config: DictConfig,
    function: TaskFunction,
    state: dict[Any, Any],
) -> JobReturn:
    """Be one job of a sweep in another process, as Hydra's own launchers are: with the settings
    that the sweep's config and the words of this job make."""
    os.chdir(folder)  # shared by all machines; relative paths start there
    setup_globals()
    Singleton.set_state(state)
    settings = context.config_loader.load_sweep_config(config, list(words))
    with open_dict(settings):
        settings.hydra.job.id = f"{settings.hydra.job.name}_{number}"
        settings.hydra.job.num = number
    HydraConfig.instance().set_config(settings)
    return run_job(
        hydra_context=context,
        task_function=function,
        config=settings,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )
