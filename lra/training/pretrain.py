"""Phase one of a run that begins with self-pretraining: trained, resumed or looked up, and its
weights carried over (lra/model/pretrain.py says what it learns)."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from dataclasses import replace
from typing import Any

from lra.base.config import Loggers
from lra.base.disk import read_json, write_json
from lra.data.loader import Loader
from lra.model import pretrain
from lra.runs import environment
from lra.runs.folder import RunFolder, read_metrics, writing
from lra.settings.compose import Run
from lra.training.callbacks import LIMIT, Interrupted, stop_at_once, sweep_has_died
from lra.training.checkpoints import load_checkpoint
from lra.training.fit import LRAData, begin, build, fit, is_main_process
from lra.training.module import LRAModule
from lra.training.progress import say

# Facts of its result that the record of phase two repeats.
REPEATED = ("identity", "codes", "name", "rate", "seed", "steps", "batch", "held_out", "seconds")


class InputData(LRAData):
    """Loaders of training inputs, of which some are held out to evaluate phase one."""

    def _loader(self, split: str, *, steps: int | None = None, limit: int = -1) -> Loader:
        sequences = pretrain.inputs(self.prepared, held_out=split != "train")
        rank, world = self.share
        return pretrain.InputLoader(sequences, self.run, steps=steps, rank=rank, world=world)


def begin_pretrained(
    run: Run, module: LRAModule, prepared: Any, folder: RunFolder, deadline: float
) -> dict[str, Any]:
    """Give a run that has not begun the weights of its phase one; the `pretraining` of its record.
    A run that is resumed has them already."""
    first = pretrain.phase_one(run)
    if first is None:
        return {}
    if not folder.last.exists():
        facts, weights = train_phase_one(first, prepared, deadline)
        pretrain.carry(weights, module.network)
        if is_main_process():
            with writing(folder.begun_with):
                write_json(folder.begun_with, facts)
            say(f"phase two  begins with {facts['run']}")
    return {"pretraining": read_json(folder.begun_with)}


def train_phase_one(
    run: Run, prepared: Any, deadline: float
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train phase one, resume it, or look it up: its facts for a record, and its weights."""
    run = replace(run, logger=Loggers())  # metrics.csv suffices
    folder, is_main = RunFolder(run, prepared.fingerprint), is_main_process()
    wait = functools.partial(_wait_for_holder, deadline, functools.cache(say))
    with folder.lock(wait) if is_main else contextlib.nullcontext():
        if folder.result() is None or not folder.last.exists():
            module = _train(run, prepared, folder, deadline)
            if is_main:
                folder.finish(_facts(run, module, folder))
        elif is_main:
            folder.ensure_finished()
    state = load_checkpoint(folder.last, folder.name)["state_dict"]
    weights = {key.removeprefix("network."): value for key, value in state.items()}
    result, name = folder.result() or {}, f"{folder.name}-{folder.path.name}"
    return {"run": name} | {key: result.get(key) for key in REPEATED}, weights


def _train(run: Run, prepared: Any, folder: RunFolder, deadline: float) -> LRAModule:
    module = build(run)
    module.identity = folder.name
    if is_main_process():
        _introduce(run, folder)
        begin(run, folder)
    try:
        with stop_at_once():  # whose signals are given back: phase two has not begun
            fit(run, module, InputData(run, prepared), folder, deadline)
    except BaseException:
        if is_main_process():  # the reason is in the folder of the run that it is for
            folder.set_status("interrupted", how="with phase two")
        raise
    return module


def _wait_for_holder(deadline: float, say_once: Any, holder: str) -> None:
    """Wait a second for another run that trains the same phase one."""
    if sweep_has_died():
        raise Interrupted(signal.SIGTERM)
    if time.monotonic() > deadline:
        raise Interrupted(LIMIT)
    say_once(f"phase one is being trained by {holder}: waiting for it")
    time.sleep(1)


def _introduce(run: Run, folder: RunFolder) -> None:
    recipe, rate = run.protocol.recipe, run.pretrain.rate
    target = "next tokens" if rate is None else f"masked tokens ({rate:.0%})"
    if changed := folder.changed_code():
        say(changed)
    say(f"phase one  {target} of the training inputs, {recipe.steps} steps of {recipe.batch}, "
        f"seed {run.seed}; dev here: held-out training inputs", indent=11)  # fmt: skip
    say(f"run        {folder.path}", indent=11)


def _facts(run: Run, module: LRAModule, folder: RunFolder) -> dict[str, Any]:
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
