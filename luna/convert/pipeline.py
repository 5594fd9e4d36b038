"""One conversion of one model on one GLUE task, from teacher to record.

    teacher -> swap -> stage 1 -> stage 2

with the score after each. The controls are runs of the same function: attention "softmax" is the
teacher trained on for the same budget, `stage1=None` and `epochs=0` leave a stage out. A run that
was interrupted goes on where it was: stage 1 keeps its state at every evaluation and its result as
an adapter file, stage 2 its state after every epoch.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import metrics, tasks
from luna.convert.layerwise import Loss
from luna.convert.recovery import headroom
from luna.convert.saving import load_adapter, save_adapter
from luna.convert.stage1 import distill
from luna.convert.stage2 import Schedule, finetune
from luna.convert.swap import convert, describe, evaluating, feature_parameters, weights_hash

RESULT, ADAPTER, STAGE1 = "result.json", "stage1.safetensors", "stage1.json"
SCHEMA = 1


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Both stages' numbers; the defaults of stage 2 are the paper's."""

    stage1: Loss | None = "ce"
    stage1_lr: float = 1e-2
    stage1_steps: int = 250
    batch: int = 8
    lr: float = 1e-5
    phi_lr: float | None = None
    epochs: int = 10  # 0: no stage 2
    patience: int = 3
    schedule: Schedule = "linear"
    max_length: int = 128
    train_examples: int | None = None  # the first ones; all unless given


def run(
    teacher: nn.Module,
    tokenizer: Any,
    *,
    task: str,
    data: str | Path,
    folder: str | Path,
    attention: str | None,
    options: Mapping[str, Any] | None = None,
    recipe: Recipe | None = None,
    seed: int = 0,
    log: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """The record of one run, also in `folder`/result.json; the model is saved in `folder`/model.

    attention  a method of the registry; None finetunes `teacher` itself, as it is
    """
    recipe, folder = recipe or Recipe(), Path(folder)
    say = log or (lambda message: None)
    identity: dict[str, Any] = {
        "task": task,
        "attention": attention,
        "options": dict(options or {}),
        "recipe": asdict(recipe),
        "seed": seed,
        "teacher": weights_hash(teacher),
    }
    done = _finished(folder, identity)
    if done is not None:
        return done
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(identity, indent=1), encoding="utf-8")
    work = _Task(task, data, tokenizer, recipe, seed)
    _fits(teacher, task)

    started = time.monotonic()
    scores = {"teacher": work.score(teacher)}
    say(f"{task}: teacher {scores['teacher']['score']:.4f}")
    student, report = teacher, None
    if attention is not None:
        student = convert(teacher, attention, seed=seed, **identity["options"])
        scores["swap"] = work.score(student)
        say(f"{task}: {attention} swapped in {scores['swap']['score']:.4f}")
        if recipe.stage1 is not None and feature_parameters(student):
            student, report = _stage1(student, teacher, work, recipe, folder, log)
            scores["stage1"] = work.score(student)
    tuned = None
    if recipe.epochs:
        torch.manual_seed(seed)  # dropout
        tuned = finetune(
            student,
            work.train,
            work.score,
            metric="score",
            lr=recipe.lr,
            phi_lr=recipe.phi_lr,
            epochs=recipe.epochs,
            patience=recipe.patience,
            schedule=recipe.schedule,
            folder=folder,
            log=log,
        )
        scores["best"] = tuned.epochs[tuned.best_epoch - 1]["scores"]
        scores["last"] = tuned.epochs[-1]["scores"]
    student.save_pretrained(folder / "model")  # type: ignore[operator]
    tokenizer.save_pretrained(folder / "model")
    result = identity | {
        "schema": SCHEMA,
        "status": "finished",
        "scores": scores,
        **_recovery(scores, work.floor),
        "stage1": report,
        "stage2": None if tuned is None else tuned.to_dict(),
        "predictions": work.predictions(student),
        "labels": work.labels(),
        "phi_parameters": _count(student),
        "train_examples": len(work.examples),
        "seconds": time.monotonic() - started,
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }
    _write(folder / RESULT, result)
    return result


class _Task:
    """A task's batches and scores, as one run sees them."""

    def __init__(self, name: str, data: str | Path, tokenizer: Any, recipe: Recipe, seed: int):
        self.spec, self.tokenizer, self.recipe, self.seed = (
            tasks.task(name),
            tokenizer,
            recipe,
            seed,
        )
        examples = tasks.read(name, "train", data)
        self.examples = examples.first(recipe.train_examples or len(examples))
        self.dev = {split: tasks.read(name, split, data) for split in self.spec.evaluate}
        self.dev_batches = {
            split: tasks.batches(each, tokenizer, size=32, max_length=recipe.max_length)
            for split, each in self.dev.items()
        }
        first = self.dev[self.spec.evaluate[0]]
        self.floor = metrics.constant(first.labels, self.spec.metric)["score"]

    def train(self, epoch: int) -> list[Mapping[str, Tensor]]:
        return tasks.batches(
            self.examples,
            self.tokenizer,
            size=self.recipe.batch,
            max_length=self.recipe.max_length,
            seed=10_000 * self.seed + epoch,
        )

    def score(self, model: nn.Module) -> dict[str, float]:
        """Every component; those of a second dev set carry its name."""
        found: dict[str, float] = {}
        with evaluating(model):
            for i, (split, each) in enumerate(self.dev.items()):
                answers = tasks.predict(model, self.dev_batches[split])
                scores = self.spec.metric(answers, each.labels)
                found |= scores if i == 0 else {f"{split}_{k}": s for k, s in scores.items()}
        return found

    def predictions(self, model: nn.Module) -> dict[str, list[float]]:
        """For paired tests between runs: one answer for each dev example."""
        with evaluating(model):
            return {s: tasks.predict(model, b).tolist() for s, b in self.dev_batches.items()}

    def labels(self) -> dict[str, list[float]]:
        """What the predictions should have been: records alone then make paired tests."""
        return {split: each.labels.tolist() for split, each in self.dev.items()}


def _stage1(
    student: nn.Module,
    teacher: nn.Module,
    work: _Task,
    recipe: Recipe,
    folder: Path,
    log: Callable[[str], None] | None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The fitted student and its report, from the run's folder if they are there."""
    if (folder / STAGE1).is_file():
        report = json.loads((folder / STAGE1).read_text(encoding="utf-8"))
        return load_adapter(teacher, folder / ADAPTER), report
    assert recipe.stage1 is not None
    report = distill(
        student,
        work.train(0),
        steps=recipe.stage1_steps,
        lr=recipe.stage1_lr,
        loss=recipe.stage1,
        folder=folder,
        log=log,
    ).to_dict()
    save_adapter(student, folder / ADAPTER)
    _write(folder / STAGE1, report)
    return student, report


def _recovery(scores: Mapping[str, Mapping[str, float]], floor: float) -> dict[str, Any]:
    top = scores["teacher"]["score"]
    final = next(scores[s]["score"] for s in ("best", "stage1", "swap", "teacher") if s in scores)
    return {
        "floor": floor,
        "score": final,
        "recovery": 100 * final / top if top > 0 else None,
        "headroom_recovery": headroom(final, top, floor) if top > floor else None,
    }


def _fits(model: Any, name: str) -> None:
    classes, needed = model.config.num_labels, tasks.task(name).n_labels
    if classes != needed:
        raise LunaError(
            f"the checkpoint's head has {classes} outputs, task '{name}' needs {needed}: give a "
            f"model finetuned on it, or load this one with num_labels={needed}"
        )


def _count(model: nn.Module) -> int:
    if describe(model) is None:
        return 0
    return sum(p.numel() for p in feature_parameters(model).values())


def _finished(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The result in `folder`, if it is there; a folder of another run is refused."""
    if (folder / "run.json").is_file():
        there = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        other = [key for key, value in identity.items() if there.get(key) != value]
        if other:
            raise LunaError(
                f"{folder} holds another run (different {', '.join(other)}): use another folder"
            )
    if not (folder / RESULT).is_file():
        return None
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def _write(path: Path, record: dict[str, Any]) -> None:
    """Whole or not at all."""
    whole = path.with_suffix(".tmp")
    whole.write_text(json.dumps(record, indent=1), encoding="utf-8")
    whole.replace(path)
