"""One run, from its checked config to its record."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

import luna
from lra.base import code
from lra.base.config import UserError
from lra.base.disk import write_atomically
from lra.compute import Admission, admit
from lra.data.prepare import find_or_prepare
from lra.data.verify import check_arrays
from lra.runs import environment
from lra.runs.folder import RunFolder, plain, processes, writing
from lra.settings.compose import Run
from lra.training.callbacks import LIMIT, Interrupted, stop_at_once
from lra.training.checkpoints import load_checkpoint
from lra.training.datamodule import LRAData
from lra.training.fit import TF32, begin, build, fit, is_main_process
from lra.training.module import LRAModule
from lra.training.phase_one import begin_pretrained
from lra.training.progress import clock, say

FIRST = "LRA_FIRST"  # environment variable: the first process of a run of several
GRACE = 10.0  # seconds for another one to say what went wrong when the first was killed

code.freeze()  # a sweep forks its runs from a process that has loaded this


def train(run: Run, command: str = "") -> Path:
    """Start a run, resume it, or look up its result; returns the file of the result, which keeps
    the command."""
    if run.trainer.threads:
        torch.set_num_threads(run.trainer.threads)
    if is_main_process():
        os.environ[FIRST] = str(os.getpid())  # Lightning starts the others with this environment
    elif FIRST in os.environ:
        threading.Thread(target=_end_after_first, daemon=True).start()
    limit = math.inf if run.limit_minutes is None else 60 * run.limit_minutes
    deadline = time.monotonic() + limit
    _check_device(run)
    admitted = admit(run)  # before the data: a wrong option costs no preparation
    run = admitted.run
    module = build(run)
    code.freeze()  # before the data, whose preparation may take long
    prepared = find_or_prepare(
        run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir
    )
    check_arrays(prepared)
    folder = RunFolder(run, prepared.fingerprint, again=True)
    module.identity = folder.name
    if not is_main_process():  # of a distributed run: the first process holds lock and status
        if folder.result() is None:
            with contextlib.suppress(Interrupted):  # the main process reports it
                _fit_and_test(run, module, prepared, folder, admitted.record(), deadline)
        return folder.result_file
    with folder.lock():
        result = folder.result()
        if result is None:
            if said := folder.changed_code():
                say(said)
            result = _train(admitted, module, prepared, folder, deadline, command)
        else:
            folder.ensure_finished()
            print(f"already finished: test accuracy {result['test']['accuracy']:.2%}")
    print(f"record: {folder.result_file}")
    return folder.result_file


def _end_after_first() -> None:
    """End this process when the first one of its run was killed: under NCCL it would wait for the
    other for half an hour, with its GPU. Gloo, SLURM and torchrun end it themselves."""
    while os.environ[FIRST] in (str(os.getpid()), str(os.getppid())):
        time.sleep(1)
    time.sleep(GRACE)
    os._exit(1)


def _train(
    admitted: Admission,
    module: LRAModule,
    prepared: Any,
    folder: RunFolder,
    deadline: float,
    command: str,
) -> dict[str, Any]:
    run, counted = admitted.run, admitted.record()
    _introduce(run, prepared, folder, admitted)
    begin(run, folder)
    try:
        with stop_at_once():
            result = _fit_and_test(run, module, prepared, folder, counted, deadline)
    except Interrupted as interrupted:
        late = interrupted.signum == LIMIT
        how = f"at its limit of {run.limit_minutes:g} minutes" if late else f"by {interrupted}"
        folder.set_status("interrupted", how=how)
        print(f"interrupted {how}; run the same command again to resume", file=sys.stderr)
        raise SystemExit(128 + interrupted.signum) from None
    except KeyboardInterrupt:
        folder.set_status("interrupted", how="by SIGINT")
        raise SystemExit(130) from None
    except BrokenPipeError:  # nobody reads the output any more: perhaps its sweep was killed
        folder.set_status("interrupted", how="by SIGPIPE")
        raise
    except BaseException as error:
        _note_failure(folder, error)
        raise
    folder.finish({"command": command} | result)
    test, seconds = result["test"], sum(result["seconds"].values())
    say(
        f"done: test accuracy {test['accuracy']:.2%} on {test['examples']} examples "
        f"({test['select']} checkpoint, step {test['step']}) in {clock(seconds)}"
    )
    if max(test["predicted"]) == sum(test["predicted"]):
        print("note: every answer is the same class; the run has collapsed")
    return result


def _fit_and_test(
    run: Run,
    module: LRAModule,
    prepared: Any,
    folder: RunFolder,
    counted: dict[str, Any],
    deadline: float,
) -> dict[str, Any]:
    recipe, evaluation = run.protocol.recipe, run.protocol.evaluation
    begun_with = begin_pretrained(run, module, prepared, folder, deadline)
    loaders = LRAData(run, prepared)
    trainer, checkpoints = fit(run, module, loaders, folder, deadline)
    test = {"last": _test(trainer, module, loaders, recipe.steps)}
    if checkpoints.best_step:
        best = load_checkpoint(folder.best, folder.name)
        module.load_state_dict(best["state_dict"])
        test["best"] = _test(trainer, module, loaders, checkpoints.best_step)
    answers = {which: found.pop("answers") for which, found in test.items()}
    select = evaluation.select.name if evaluation.select.name in test else "last"
    if trainer.is_global_zero:
        with writing(folder.answers):
            answers[select].write(folder.answers)
    for logger in trainer.loggers:
        scores = {f"test_{measure}": test[select][measure] for measure in ("loss", "accuracy")}
        logger.log_metrics(scores, step=test[select]["step"])
        logger.finalize("success")
    device = trainer.strategy.root_device
    return {
        "task": run.task.name,
        "attention": run.attention,
        "preset": run.compute.preset,
        "departs": luna.get(run.attention["name"]).departs.get(run.protocol.profile),
        "model": run.model.name,
        "protocol": {"name": run.protocol.name, "version": run.protocol.version},
        "budget": run.budget,
        "seed": run.seed,
        "steps": recipe.steps,
        "batch": recipe.batch,
        "compute": counted,
        **begun_with,
        "data": prepared.summary(),
        "dev": {"accuracy": checkpoints.best_accuracy, "step": checkpoints.best_step},
        "test": test[select] | {"select": select},
        "answers": answers[select].facts(),
        "test_last": test["last"],
        "test_best": test.get("best"),
        "seconds": module.clock.read(),
        "steps_per_second": module.clock.steps_per_second,
        "peak_memory_mib": environment.peak_memory_mib(device),
        "precision": run.trainer.precision,
        "evaluation": _evaluation(module, device),
        "machine": environment.machine(device) | {"processes": trainer.world_size},
        "versions": environment.versions(),
        "switches": environment.switches(),
        "git": environment.git(),
    }


def _test(trainer: pl.Trainer, module: LRAModule, loaders: LRAData, step: int) -> dict[str, Any]:
    trainer.test(module, loaders, verbose=False)
    answers = module.answers()
    values = {name: value.item() for name, value in trainer.callback_metrics.items()}
    return {
        "accuracy": values["test/accuracy"],
        "loss": values["test/loss"],
        "examples": int(values["test/examples"]),
        "scored": int(values["test/scored"]),
        "step": step,
        "predicted": np.bincount(answers.answers, minlength=module.classes).tolist(),
        "answers": answers,
        "dead_rows": module.dead_rows(),
    }


def _evaluation(module: LRAModule, device: torch.device) -> str | None:
    """Which of several equal evaluations the attention used; None where it has only one."""
    slots = (m for m in module.modules() if isinstance(m, luna.Attention))
    return next(slots).evaluation(device.type)


def _introduce(run: Run, prepared: Any, folder: RunFolder, admitted: Admission) -> None:
    recipe = run.protocol.recipe
    usual = {key: plain(p.default) for key, p in luna.options(run.attention["name"]).items()}
    usual |= {"name": run.attention["name"], "dwc": "none"}
    together = f", {count} processes" if (count := processes(run)) > 1 else ""
    shown = [f"{key}={v}" for key, v in run.attention.items() if v != usual[key]] or ["defaults"]
    chosen = run.compute.preset
    preset = "" if chosen == "matched" else f"  (preset {chosen})"
    facts = {
        "task": f"{run.task.name}  {prepared.describe()}",
        "attention": f"{run.attention['name']}  {' '.join(shown)}{preset}",
        "compute": admitted.describe(),
        "training": f"{recipe.steps} steps of {recipe.batch}, protocol {run.protocol.name} "
        f"v{run.protocol.version}, budget {run.budget:g}, seed {run.seed}{together}",
        "run": str(folder.path),
    }
    for label, text in facts.items():
        say(f"{label:<11}" + text.replace("\n", "\n" + " " * 11), indent=11)


def _note_failure(folder: RunFolder, error: BaseException) -> None:
    lines = str(error).strip().splitlines()
    try:
        folder.set_status("failed", error=f"{type(error).__name__}: {lines[0] if lines else ''}")
        if not isinstance(error, UserError):
            write_atomically(folder.path / "error.txt", traceback.format_exc().encode())
    except (UserError, OSError):  # the disk failed twice: show the first error
        pass


def _check_device(run: Run) -> None:
    """Refuse float16 and TF32 on a CPU: Lightning would silently train in bfloat16, and torch in
    whatever the processor has, which is another run."""
    on_cpu = run.trainer.accelerator == "cpu" or (
        run.trainer.accelerator == "auto" and not torch.accelerator.is_available()
    )
    if on_cpu and run.trainer.precision.startswith(("16", TF32)):
        raise UserError(
            f"precision {run.trainer.precision} needs a GPU: use trainer.precision=32-true or "
            "bf16-mixed on a CPU (it is part of the run's identity)"
        )
