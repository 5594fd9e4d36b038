"""One run, from its checked config to its record."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from lightning_fabric.utilities.exceptions import MisconfigurationException

from lra.base import code
from lra.base.config import Tuned
from lra.base.errors import UserError, first_line
from lra.base.parent import is_first, name_first
from lra.base.targets import check_options, resolve
from lra.compute.gate import BudgetCheck, check_budget, counting
from lra.data.arrays import Prepared
from lra.data.prepare import find_or_prepare, refuse_download
from lra.model.build import asked_of, build_network
from lra.model.pretrain import carry, phase_one
from lra.runs.answers import write_answers
from lra.runs.folder import RunFolder, read_metrics, writing
from lra.runs.search import chosen_code, folder_of
from lra.settings.own import arguments
from lra.settings.run import Run
from lra.training.callbacks import build_callbacks, forgetful
from lra.training.checkpoints import Checkpoints, ending, load_checkpoint, running
from lra.training.memory import check_memory_savers, recomputed
from lra.training.module import LRAModule
from lra.training.optimizer import check_optimizer, check_passes
from lra.training.process import fresh_torch
from lra.training.progress import introduce, introduce_phase_one, show_result
from lra.training.record import record_of, test
from lra.training.schedule import check_schedule
from lra.training.trainer import LRAData, check_device, finish_loggers, trainer_for
from lra.training.tuning import tuned

code.keep_loaded()  # a sweep forks its runs from a process that has loaded this


@fresh_torch()
def train(run: Run, command: str = "") -> Path:
    """Start a run, resume it, or look up its result; returns its file, which has the command."""
    began = time.monotonic()
    if run.trainer.threads:
        torch.set_num_threads(run.trainer.threads)
    check_device(run)
    tuning: dict[str, Any] = {}
    if run.tune.name is not Tuned.none:
        run, tuning = tuned(run, command, train, began + 60 * (run.limit_minutes or math.inf))
    check_chosen(run)
    build_callbacks(run)  # before anything is prepared: what is wrong with one is known now
    data_of_run: dict[str, Any] = {
        "max_length": run.protocol.data.max_length,
        "data_dir": run.data_dir,
    }
    refuse_download(run.task, **data_of_run)  # before anything is counted
    with counting() if is_first() else nullcontext():
        check = check_budget(run)  # before the data: a wrong option costs no preparation
    run = check.run
    module = build(run)
    code.keep_loaded(
        *chain(*chosen_code(run).values())
    )  # before the data, whose preparation may take long
    ends = began + 60 * (run.limit_minutes or math.inf)
    with ending("preparing its data", ends - time.monotonic()):
        prepared = find_or_prepare(run.task, **data_of_run)
        prepared.check_hashes()
    folder = folder_of(run, prepared.fingerprint, again=True)
    before = folder.result()
    if run.processes > 1 and is_first():
        name_first()
    with running(folder, seconds=ends - time.monotonic()) as held:
        if held.speaks:
            introduce(check, prepared, folder)
        if held.wanted:
            found = {"command": command} | tuning
            held.facts = train_and_test(check, module, prepared, folder, found)
    if is_first():
        show_result(folder, before)
    return folder.result_file


def train_and_test(
    check: BudgetCheck,
    module: LRAModule,
    prepared: Prepared,
    folder: RunFolder,
    found: dict[str, Any],
) -> dict[str, Any]:
    """Train, test the last and the best checkpoint, and return the record, with what was `found`
    before."""
    run = check.run
    # Before anything is trained: a metric of one's own may be wrong.
    floor, *_ = [prepared.floor(metric) for metric in module.metrics]
    first = phase_one(run)
    pretraining = begin_with(first, module, prepared) if first else None
    loaders = LRAData(run, prepared)
    trainer, checkpoints = fit(module, loaders, folder)
    tested = {"last": test(trainer, module, loaders, trainer.global_step)}
    if checkpoints.best_step:
        checkpoints.load_best(module)
        tested["best"] = test(trainer, module, loaders, checkpoints.best_step)
    wanted = run.protocol.evaluation.select.name
    select = wanted if wanted in tested else "last"
    stage, answers = tested[select]
    if trainer.is_global_zero:
        with writing(folder.answers):
            write_answers(folder.answers, {folder.id: answers})
    finish_loggers(trainer.loggers, stage)
    if not trainer.is_global_zero:
        return {}
    record = folder.facts() | found
    record |= {
        "compute": check.record(),
        "data": prepared.summary(),
        "floor": floor,
        "select": select,
        "stages": {name: facts for name, (facts, _) in tested.items()},
        "dev": checkpoints.best,
        "answers": answers.digests(),
    }
    if pretraining is not None:
        record["pretraining"] = pretraining
    return record_of(record, trainer, module, folder)


def begin_with(run: Run, module: LRAModule, prepared: Prepared) -> dict[str, Any]:
    """Train phase one or look it up, begin phase two with its weights, and return its facts."""
    # metrics.csv suffices, and what is chosen beside its recipe is phase two's alone.
    run = replace(run, logger={}, optimizer={}, schedule={}, callbacks={})
    folder = folder_of(run, prepared.fingerprint)

    with running(folder, wait=True) as held:
        if held.speaks:
            introduce_phase_one(folder)
        if held.wanted:
            first = build(run)
            fit(first, LRAData(run, prepared), folder)
        if held.speaks:
            held.facts = folder.facts() | facts_of_phase_one(run, first, folder)
    state = load_checkpoint(folder.last, folder.id)["state_dict"]
    carry({key.removeprefix("network."): value for key, value in state.items()}, module.network)
    if is_first():
        print(f"phase two  begins with {folder.id}", flush=True)
    about = {"run": folder.id, "identity": folder.identity, "codes": folder.code_facts()["codes"]}
    return about | (folder.result() or {}).get("pretraining", {})


def facts_of_phase_one(run: Run, module: LRAModule, folder: RunFolder) -> dict[str, Any]:
    evaluated = [row for row in read_metrics(folder.metrics) if row["dev_loss"]]
    first, last = evaluated[0], evaluated[-1]
    facts = {
        "name": run.pretrain.name.name,
        "rate": run.pretrain.rate,
        "seed": run.seed,
        "steps": run.protocol.recipe.steps,
        "batch": run.protocol.recipe.batch,
        "held_out": {  # training inputs
            "loss": float(last["dev_loss"]),
            "score": float(last["dev_score"]),
            "first": {"step": int(first["step"]), "loss": float(first["dev_loss"])},
        },
        "seconds": module.clock.read(),
    }
    return {"pretraining": facts}


# ---------------------------------------------------------------------- steps of both phases


def build(run: Run) -> LRAModule:
    """Build the run's network, initialised from its seed, inside its LightningModule."""
    torch.manual_seed(run.seed)
    network = build_network(run)
    if run.in_pieces or run.trainer.checkpointing:
        check_memory_savers(run, network)
    check_passes(run.optimizer, network)
    if run.trainer.checkpointing:
        network.encoder.around_block = recomputed
    module = LRAModule(
        network,
        run.protocol.recipe,
        asked_of(run),
        run.seed,
        optimizer=run.optimizer,
        schedule=run.schedule,
        in_pieces=run.in_pieces,
    )
    # Here a mistake in its options, or a parameter that it cannot train, costs no preparation.
    module.build_optimizer()
    return module


def check_chosen(run: Run) -> None:
    """UserError for an optimiser or a schedule that cannot be imported or has unknown options, or
    that does not fit how the run is executed. It builds nothing."""
    for setting in ("optimizer", "schedule"):
        if options := getattr(run, setting):
            check_options(setting, resolve(setting, options["_target_"]), arguments(options))
    if run.schedule:
        check_schedule(run.schedule)
    if run.optimizer:
        check_optimizer(run)


def fit(module: LRAModule, loaders: LRAData, folder: RunFolder) -> tuple[pl.Trainer, Checkpoints]:
    """Train to the last step, from the last checkpoint if there is one."""
    checkpoints, forgets = Checkpoints(folder), forgetful(folder.run)
    if forgets and folder.last.exists():
        raise UserError(
            f"{forgets} keeps no state, so this run cannot go on exactly: remove {folder.last} to "
            "train it again, or give the callback state_dict and load_state_dict, or say "
            "stateless: true in its file if it needs none"
        )
    if forgets and is_first():
        print(f"note: {forgets} keeps no state: this run cannot be resumed")
    try:
        trainer = trainer_for(folder, checkpoints)
        trainer.fit(module, loaders, ckpt_path=folder.last if folder.last.exists() else None)
    except MisconfigurationException as error:  # mostly of a callback that needs what is not there
        raise UserError(f"Lightning cannot train this: {first_line(error)}") from error
    return trainer, checkpoints
