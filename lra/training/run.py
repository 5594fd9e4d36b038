"""One run, from its checked config to its record."""

from __future__ import annotations

import contextlib
import ctypes
import math
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch

import luna
from lra.base import code
from lra.base.config import UserError, first_line
from lra.base.disk import write_atomically
from lra.compute.gate import BudgetCheck, check_budget
from lra.data.prepare import find_or_prepare
from lra.data.verify import check_arrays
from lra.runs import environment
from lra.runs.answers import Answers
from lra.runs.folder import RunFolder, writing
from lra.runs.schema import TrainingRecord
from lra.settings.compose import Run
from lra.settings.experiment import plain
from lra.training.callbacks import LIMIT, Interrupted, stop_at_once
from lra.training.checkpoints import load_checkpoint
from lra.training.fit import LRAData, begin, build, check_device, fit, is_main_process
from lra.training.loggers import finish_loggers
from lra.training.module import LRAModule
from lra.training.pretrain import begin_pretrained
from lra.training.progress import clock, say

PR_SET_PDEATHSIG = 1  # of prctl: the signal that a process gets when its parent ends

code.keep_loaded()  # a sweep forks its runs from a process that has loaded this


def train(run: Run, command: str = "") -> Path:
    """Start a run, resume it, or look up its result; returns the file of the result, which keeps
    the command."""
    deadline = time.monotonic() + 60 * (run.limit_minutes or math.inf)
    if run.trainer.threads:
        torch.set_num_threads(run.trainer.threads)
    if not is_main_process():
        end_with_first()
    check_device(run)
    budget_check = check_budget(run)  # before the data: a wrong option costs no preparation
    run = budget_check.run
    module = build(run)
    code.keep_loaded()  # before the data, whose preparation may take long
    prepared = find_or_prepare(
        run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir
    )
    check_arrays(prepared)
    folder = RunFolder(run, prepared.fingerprint, again=True)
    module.identity = folder.name
    if not is_main_process():  # of a distributed run: the first process holds lock and status
        if folder.result() is None:
            with contextlib.suppress(Interrupted):  # the first process reports it
                _fit_and_test(budget_check, module, prepared, folder, deadline)
        return folder.result_file
    with folder.lock():
        result = folder.result()
        if result is None:
            _introduce(budget_check, prepared, folder)
            begin(run, folder)
            with _noting_how_it_ends(run, folder), stop_at_once():
                result = _fit_and_test(budget_check, module, prepared, folder, deadline)
            folder.finish({"command": command} | result)
            _show_result(result)
        else:
            folder.ensure_finished()
            print(f"already finished: test accuracy {result['test']['accuracy']:.2%}")
    print(f"record: {folder.result_file}")
    return folder.result_file


# ---------------------------------------------------------------------- steps of a run


def _fit_and_test(
    budget_check: BudgetCheck, module: LRAModule, prepared: Any, folder: RunFolder, deadline: float
) -> dict[str, Any]:
    """Train, test the last and the best checkpoint, and return the facts of the record."""
    run = budget_check.run
    pretraining = begin_pretrained(run, module, prepared, folder, deadline)
    loaders = LRAData(run, prepared)
    trainer, checkpoints = fit(run, module, loaders, folder, deadline)
    tests = {"last": _test(trainer, module, loaders, run.protocol.recipe.steps)}
    if checkpoints.best_step:
        best = load_checkpoint(folder.best, folder.name)
        module.load_state_dict(best["state_dict"])
        tests["best"] = _test(trainer, module, loaders, checkpoints.best_step)
    select = run.protocol.evaluation.select.name
    select = select if select in tests else "last"
    test, answers = tests[select]
    if trainer.is_global_zero:
        with writing(folder.answers):
            answers.write(folder.answers)
    scores = {f"test_{measure}": test[measure] for measure in ("loss", "accuracy")}
    finish_loggers(trainer.loggers, scores, test["step"])
    differences = luna.get(run.attention["name"]).differences_from_profile
    return TrainingRecord.facts_of(
        run.experiment.settings(),
        seed=run.seed,
        preset=run.compute.preset,
        departs=differences.get(run.protocol.profile),
        compute=budget_check.record(),
        data=prepared.summary(),
        dev={"accuracy": checkpoints.best_accuracy, "step": checkpoints.best_step},
        test=test | {"select": select},
        answers=answers.facts(),
        test_last=tests["last"][0],
        test_best=tests["best"][0] if "best" in tests else None,
        **pretraining,
        **_facts_of_speed(module, trainer),
    )


def _test(
    trainer: pl.Trainer, module: LRAModule, loaders: LRAData, step: int
) -> tuple[dict[str, Any], Answers]:
    trainer.test(module, loaders, verbose=False)
    answers = module.answers()
    values = {name: value.item() for name, value in trainer.callback_metrics.items()}
    facts = {
        "accuracy": values["test/accuracy"],
        "loss": values["test/loss"],
        "examples": int(values["test/examples"]),
        "scored": int(values["test/scored"]),
        "step": step,
        "predicted": np.bincount(answers.answers, minlength=module.classes).tolist(),
        "dead_rows": module.dead_rows(),
    }
    return facts, answers


def _facts_of_speed(module: LRAModule, trainer: pl.Trainer) -> dict[str, Any]:
    """Time, memory, and what they depend on beside the settings."""
    device = trainer.strategy.root_device
    attention = next(m for m in module.modules() if isinstance(m, luna.Attention))
    return {
        "seconds": module.clock.read(),
        "steps_per_second": module.clock.steps_per_second,
        "peak_memory_mib": environment.peak_memory_mib(device),
        "evaluation": attention.evaluation(device.type),
        "machine": environment.machine(device) | {"processes": trainer.world_size},
        "versions": environment.versions(),
        "switches": environment.switches(),
        "git": environment.git(),
    }


# ---------------------------------------------------------------------- on the screen and on disk


def _introduce(budget_check: BudgetCheck, prepared: Any, folder: RunFolder) -> None:
    """Show what is trained, on which data, at what cost, and where."""
    run, recipe = budget_check.run, budget_check.run.protocol.recipe
    if changed := folder.changed_code():
        say(changed)
    usual = {key: plain(p.default) for key, p in luna.options(run.attention["name"]).items()}
    usual |= luna.get(run.attention["name"]).former_options
    usual |= {"name": run.attention["name"], "dwc": "none"}
    options = [f"{key}={v}" for key, v in run.attention.items() if v != usual[key]] or ["defaults"]
    preset = "" if run.compute.preset == "matched" else f"  (preset {run.compute.preset})"
    together = f", {count} processes" if (count := run.processes) > 1 else ""
    lines = {
        "task": f"{run.task.name}  {prepared.describe()}",
        "attention": f"{run.attention['name']}  {' '.join(options)}{preset}",
        "compute": budget_check.describe(),
        "training": f"{recipe.steps} steps of {recipe.batch}, protocol {run.protocol.name} "
        f"v{run.protocol.version}, budget {run.budget:g}, seed {run.seed}{together}",
        "run": str(folder.path),
    }
    for label, text in lines.items():
        say(f"{label:<11}" + text.replace("\n", "\n" + " " * 11), indent=11)


def _show_result(result: dict[str, Any]) -> None:
    test = result["test"]
    say(
        f"done: test accuracy {test['accuracy']:.2%} on {test['examples']} examples "
        f"({test['select']} checkpoint, step {test['step']}) in "
        f"{clock(sum(result['seconds'].values()))}"
    )
    if max(test["predicted"]) == sum(test["predicted"]):
        print("note: every answer is the same class; the run has collapsed")


@contextlib.contextmanager
def _noting_how_it_ends(run: Run, folder: RunFolder) -> Iterator[None]:
    """Write into the folder why the block did not come to its end."""
    try:
        yield
    except Interrupted as interrupted:
        late = interrupted.signum == LIMIT
        how = f"at its limit of {run.limit_minutes:g} minutes" if late else f"by {interrupted}"
        folder.set_status("interrupted", how=how)
        print(f"interrupted {how}; run the same command again to resume", file=sys.stderr)
        raise SystemExit(128 + interrupted.signum) from None
    except (KeyboardInterrupt, BrokenPipeError) as error:  # the second Ctrl-C; nobody reads
        stopped = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGPIPE
        folder.set_status("interrupted", how=f"by {stopped.name}")
        raise
    except BaseException as error:
        with contextlib.suppress(UserError, OSError):  # the disk fails too: show the first error
            folder.set_status("failed", error=f"{type(error).__name__}: {first_line(error)}")
            if not isinstance(error, UserError):
                write_atomically(folder.path / "error.txt", traceback.format_exc().encode())
        raise


def end_with_first() -> None:
    """Let the kernel kill this process together with the one that started it, the first of the run:
    under NCCL it would wait for that one for half an hour, with its GPU."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
