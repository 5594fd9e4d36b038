"""One run, from its checked config to its record."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
import yaml

import luna
from lra import code, data, environment, parent, pretrain
from lra.callbacks import (
    LIMIT,
    AtomicCheckpointIO,
    Checkpoints,
    Compiled,
    Interrupted,
    Metrics,
    RandomState,
    stop_at_once,
)
from lra.checkpoints import load_checkpoint
from lra.compute import Admission, admit
from lra.config import Clip, Loggers, UserError
from lra.data import intact
from lra.data.prepare import find_or_prepare
from lra.datamodule import InputData, LRAData
from lra.disk import read_json, write_atomically, write_json
from lra.loggers import build as build_loggers
from lra.module import LRAModule
from lra.progress import ProgressReport, clock, say
from lra.runs import RunFolder, plain, processes, read_metrics, settings, writing
from lra.settings import Run

# A FutureWarning of Lightning's own under torch 2.13, and its adverts.
warnings.filterwarnings("ignore", message=r".*isinstance\(treespec, LeafSpec\)")
warnings.filterwarnings("ignore", message=r".*sync_dist=True")  # sums over processes come logged
code.freeze()  # a sweep forks its runs from a process that has loaded this
for name in ("pytorch_lightning", "pytorch_lightning.utilities.rank_zero", "lightning_fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


TF32 = "tf32"  # trainer.precision: float32 whose matrix products round their factors to 10 bits


def train(run: Run, command: str = "") -> Path:
    """Start a run, resume it, or look up its result; returns the file of the result, which keeps
    the command."""
    if run.trainer.threads:
        torch.set_num_threads(run.trainer.threads)
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
    intact.check(prepared)
    folder = RunFolder(run, prepared.fingerprint, again=True)
    module.identity = folder.name
    if not _is_main_process():  # of a distributed run: the first process holds lock and status
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


def build(run: Run) -> LRAModule:
    """Build the run's network, initialised from its seed, inside its LightningModule."""
    torch.manual_seed(run.seed)
    task = data.of(run.task)
    network = pretrain.build_network(run)
    title = f"{task.name}/{run.attention['name']}"
    return LRAModule(network, run.protocol.recipe, task.classes, title)


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
    _begin(run, folder)
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


def _begin(run: Run, folder: RunFolder) -> None:
    facts = {"settings": settings(run), "seed": run.seed} | folder.code_facts()
    config = yaml.safe_dump(plain(facts), sort_keys=False)
    with writing(folder.config):
        write_atomically(folder.config, config.encode())
    folder.set_status("running")


def _fit(
    run: Run, module: LRAModule, loaders: LRAData, folder: RunFolder, deadline: float
) -> tuple[pl.Trainer, Checkpoints]:
    """Train to the last step, from the last checkpoint if there is one."""
    recipe, evaluation = run.protocol.recipe, run.protocol.evaluation
    checkpoints = Checkpoints(
        folder,
        every=run.trainer.checkpoint_every,
        evaluate_every=evaluation.every,
        select_after=int(evaluation.select_after * recipe.steps),
        deadline=deadline,
    )
    trainer = trainer_for(run, folder, checkpoints)
    resume = folder.last if folder.last.exists() else None
    if resume:
        step = load_checkpoint(resume, folder.name)["global_step"]
        print(f"resuming at step {step}/{recipe.steps}")
    trainer.fit(module, loaders, ckpt_path=resume)
    return trainer, checkpoints


def _fit_and_test(
    run: Run,
    module: LRAModule,
    prepared: Any,
    folder: RunFolder,
    counted: dict[str, Any],
    deadline: float,
) -> dict[str, Any]:
    recipe, evaluation = run.protocol.recipe, run.protocol.evaluation
    begun_with = _begin_pretrained(run, module, prepared, folder, deadline)
    loaders = LRAData(run, prepared)
    trainer, checkpoints = _fit(run, module, loaders, folder, deadline)
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


def _begin_pretrained(
    run: Run, module: LRAModule, prepared: Any, folder: RunFolder, deadline: float
) -> dict[str, Any]:
    """Give a run that has not begun the weights of its phase one; the `pretraining` of its record.
    A run that is resumed has them already."""
    first = pretrain.phase_one(run)
    if first is None:
        return {}
    if not folder.last.exists():
        facts, weights = _phase_one(first, prepared, deadline)
        pretrain.carry(weights, module.network)
        if _is_main_process():
            with writing(folder.begun_with):
                write_json(folder.begun_with, facts)
            say(f"phase two  begins with {facts['run']}")
    return {"pretraining": read_json(folder.begun_with)}


def _phase_one(run: Run, prepared: Any, deadline: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train phase one, resume it, or look it up: its facts for a record, and its weights."""
    run = replace(run, logger=Loggers())  # metrics.csv suffices
    folder = RunFolder(run, prepared.fingerprint)
    mine = _is_main_process()
    with folder.lock(_waiting(deadline)) if mine else contextlib.nullcontext():
        if folder.result() is None or not folder.last.exists():
            module = build(run)
            module.identity = folder.name
            if mine:
                _introduce_phase_one(run, folder)
                _begin(run, folder)
            try:
                with stop_at_once():  # whose signals are given back: phase two has not begun
                    _fit(run, module, InputData(run, prepared), folder, deadline)
            except BaseException:
                if mine:  # the reason is in the folder of the run that it is for
                    folder.set_status("interrupted", how="with phase two")
                raise
            if mine:
                folder.finish(_facts_of_phase_one(run, module, folder))
        elif mine:
            folder.ensure_finished()
    state = load_checkpoint(folder.last, folder.name)["state_dict"]
    weights = {key.removeprefix("network."): value for key, value in state.items()}
    found = folder.result() or {}
    kept = ("identity", "codes", "name", "rate", "seed", "steps", "batch", "held_out", "seconds")
    name = f"{folder.name}-{folder.path.name}"
    return {"run": name} | {key: found.get(key) for key in kept}, weights


def _facts_of_phase_one(run: Run, module: LRAModule, folder: RunFolder) -> dict[str, Any]:
    evaluated = [row for row in read_metrics(folder.metrics) if row["dev_loss"]]
    first, last = evaluated[0], evaluated[-1]
    return {
        "name": run.pretrain.name.name,
        "rate": run.pretrain.rate,
        "seed": run.seed,
        "steps": run.protocol.recipe.steps,
        "batch": run.protocol.recipe.batch,
        "held_out": {  # training inputs
            "loss": float(last["dev_loss"]),
            "accuracy": float(last["dev_accuracy"]),
            "first": {"step": int(first["step"]), "loss": float(first["dev_loss"])},
        },
        "seconds": module.clock.read(),
        "steps_per_second": module.clock.steps_per_second,
        "machine": environment.machine(module.device),
        "versions": environment.versions(),
    }


def _introduce_phase_one(run: Run, folder: RunFolder) -> None:
    recipe, rate = run.protocol.recipe, run.pretrain.rate
    what = "next tokens" if rate is None else f"masked tokens ({rate:.0%})"
    if said := folder.changed_code():
        say(said)
    say(f"phase one  {what} of the training inputs, {recipe.steps} steps of {recipe.batch}, "
        f"seed {run.seed}; dev here: held-out training inputs", indent=11)  # fmt: skip
    say(f"run        {folder.path}", indent=11)


def _waiting(deadline: float) -> Callable[[str], None]:
    """Waits a second, again and again, for another run that trains the same phase one."""
    said: set[str] = set()

    def wait(holder: str) -> None:
        if parent.is_gone() or time.monotonic() > deadline:
            raise Interrupted(signal.SIGTERM if parent.is_gone() else LIMIT)
        if holder not in said:
            say(f"phase one is being trained by {holder}: waiting for it")
            said.add(holder)
        time.sleep(1)

    return wait


def trainer_for(run: Run, folder: RunFolder, *callbacks: pl.Callback, **changes: Any) -> pl.Trainer:
    """Lightning's Trainer with the settings of the run; `changes` override its arguments."""
    recipe, precision = run.protocol.recipe, run.trainer.precision
    # Set for float32 too: an earlier run of this process may have allowed TF32, and cuDNN uses it
    # unless it is forbidden.
    torch.set_float32_matmul_precision("high" if precision == TF32 else "highest")
    torch.backends.cudnn.allow_tf32 = precision == TF32
    precision = "32-true" if precision == TF32 else precision
    clipped = recipe.clip is not Clip.none
    arguments: dict[str, Any] = {
        "accelerator": run.trainer.accelerator,
        "devices": run.trainer.devices,
        "num_nodes": run.trainer.num_nodes,
        "strategy": run.trainer.strategy,
        "precision": precision,
        "max_steps": recipe.steps,
        "max_epochs": -1,  # unlimited: the loader is one stream of exactly `steps` batches
        "val_check_interval": run.protocol.evaluation.every,
        "check_val_every_n_epoch": None,
        "num_sanity_val_steps": 0,
        "gradient_clip_val": recipe.clip_at if clipped else None,
        "gradient_clip_algorithm": recipe.clip.name if clipped else None,
        "callbacks": [
            RandomState(run.seed),
            Compiled(run.trainer.compile),
            Metrics(folder.metrics, every=run.trainer.log_every),
            *callbacks,
            # Last, because printing into a broken pipe raises, and Checkpoints must save before.
            ProgressReport(folder, style=run.trainer.progress, every=run.trainer.print_every),
        ],
        "logger": build_loggers(run, folder) or False,
        "log_every_n_steps": 1,  # Lightning logs nothing itself, but warns of longer intervals
        "plugins": [AtomicCheckpointIO()],
        "use_distributed_sampler": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
    }
    return pl.Trainer(**arguments | changes)


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


def _is_main_process() -> bool:
    return int(os.environ.get("LOCAL_RANK", 0)) == 0 and int(os.environ.get("SLURM_PROCID", 0)) == 0
