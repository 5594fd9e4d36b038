"""One conversion of one model on one task, from teacher to record.

    teacher -> swap -> stage 1 -> stage 2

with the score after each. The controls are runs of the same function: attention "softmax" is the
teacher trained on for the same budget, `stage1=None` and `epochs=0` leave a stage out. An
interrupted run continues where it stopped: stage 1 saves its state at every evaluation and its
result as an adapter file, stage 2 its state after every epoch.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import stage1, stage2, tasks
from luna.convert.card import write_card
from luna.convert.layerwise import Layerwise, LossOf
from luna.convert.recipe import ConversionRecipe
from luna.convert.saving import load_adapter, save_adapter
from luna.convert.stage1 import distill
from luna.convert.stage2 import Finetuned, finetune
from luna.convert.states import write_folder, write_whole
from luna.convert.swap import (
    convert,
    describe,
    described,
    evaluating,
    feature_parameters,
    full_name,
    weights_hash,
)
from luna.convert.tasks.base import HELD_OUT, predict
from luna.convert.tasks.metrics import constant

RESULT, MODEL = "result.json", "model"
ADAPTER, STAGE1 = "stage1.safetensors", "stage1.json"
SCHEMA = 1

Log = Callable[[str], None]


def run(
    teacher: nn.Module,
    processor: tasks.Processor,
    *,
    task: str,
    data: str | Path | None,
    folder: str | Path,
    attention: str | None,
    options: Mapping[str, Any] | None = None,
    recipe: ConversionRecipe | None = None,
    seed: int = 0,
    log: Log | None = None,
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of one run, also in `folder`/result.json; the model is saved in `folder`/model.

    processor  the teacher's tokenizer, or its image size and normalisation
    data       a local folder; None: the Hugging Face hub, for GLUE
    attention  a method of the registry; None: finetune `teacher` itself, as it is
    origin     more facts for the record, such as the revision of the code
    """
    spec, recipe, folder = tasks.get(task), recipe or ConversionRecipe(), Path(folder)
    fingerprint = spec.fingerprint(data)
    identity: dict[str, Any] = {
        "task": spec.name,
        "attention": attention,
        "options": dict(options or {}),
        "recipe": recipe.facts(),
        "seed": seed,
        "teacher": weights_hash(teacher),
        **({} if fingerprint is None else {"data": fingerprint}),
    }
    done = _finished(folder, identity)
    if done is not None:
        _remove_states(folder)
        return done
    _check_head(teacher, spec, data)
    opened = spec.open(data, processor, recipe, seed=seed)
    opened.check(teacher)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(folder / "run.json", identity)

    started = time.monotonic()
    work = _Stages(spec, opened, recipe, folder, log or (lambda message: None))
    student = work.train(teacher, attention, seed, identity["options"])
    description = describe(student) or {}
    phi = feature_parameters(student) if description else {}
    device = next(student.parameters()).device
    result = identity | {
        **(origin or {}),
        "schema": SCHEMA,
        "status": "finished",
        "options": identity["options"] | description.get("options", {}),
        "preset": description.get("preset"),
        "scores": work.scores,
        **_recovery(work.scores, work.floor),
        "stage1": work.distilled,
        "stage2": work.finetuned,
        "predictions": {split: work.answers(student, split).tolist() for split in work.splits},
        "labels": {split: opened.labels[split].tolist() for split in work.splits},
        "phi_parameters": sum(p.numel() for p in phi.values()),
        "train_examples": len(opened.examples),
        "seconds": time.monotonic() - started,
        "times": {"finished": datetime.now(UTC).isoformat(timespec="seconds")},
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }

    def save(model: Path) -> None:
        student.save_pretrained(model)  # type: ignore[operator]
        processor.save_pretrained(model)
        (model / "README.md").write_text(write_card(MODEL, result), encoding="utf-8")

    write_folder(folder / MODEL, save)
    _write_json(folder / RESULT, result)
    _remove_states(folder)
    return result


class _Stages:
    """The stages of one run and what they leave for its record."""

    def __init__(
        self,
        task: tasks.ConversionTask,
        data: tasks.ConversionData,
        recipe: ConversionRecipe,
        folder: Path,
        log: Log,
    ):
        self.task, self.data, self.recipe, self.folder, self.log = task, data, recipe, folder, log
        self.splits = [split for split in data.labels if split != HELD_OUT]
        self.floor = constant(data.labels[self.splits[0]], task.metric)["score"]
        self.scores: dict[str, dict[str, float]] = {}
        self.distilled: dict[str, Any] | None = None
        self.finetuned: dict[str, Any] | None = None

    def train(
        self, teacher: nn.Module, attention: str | None, seed: int, options: Mapping[str, Any]
    ) -> nn.Module:
        """The student after all stages, with the scores after each."""
        name, student = self.task.name, teacher
        self.scores["teacher"] = self.score(teacher)
        self.log(f"{name}: teacher {self.scores['teacher']['score']:.4f}")
        if attention is not None:
            student = convert(teacher, attention, seed=seed, **options)
            self.scores["swap"] = self.score(student)
            method = full_name(attention, described(student)["options"])
            self.log(f"{name}: {method} swapped in {self.scores['swap']['score']:.4f}")
            if self.recipe.stage1 is not None and feature_parameters(student):
                student = self.stage1(student, teacher, self.recipe.stage1)
                self.scores["stage1"] = self.score(student)
        if self.recipe.epochs:
            torch.manual_seed(seed)  # dropout
            report = self.stage2(student)
            self.finetuned = report.to_dict()
            self.scores["best"] = report.epochs[report.best_epoch - 1]["scores"]
            self.scores["last"] = report.epochs[-1]["scores"]
        return student

    def stage1(self, student: nn.Module, teacher: nn.Module, loss: str) -> nn.Module:
        """The fitted student, from the run's folder if it is there. The held-out batches do not
        depend on the seed, so that runs can be compared."""
        adapter, report = self.folder / ADAPTER, self.folder / STAGE1
        if report.is_file():
            self.distilled = json.loads(report.read_text(encoding="utf-8"))
            return load_adapter(teacher, adapter)
        self.distilled = distill(
            student,
            self.data.train(0),
            steps=self.recipe.stage1_steps,
            lr=self.recipe.stage1_lr,
            loss=loss,
            held_out=list(itertools.islice(self.data.evaluation(self.splits[0]), 2)),
            folder=self.folder,
            log=self.log,
        ).to_dict()
        save_adapter(student, adapter)
        _write_json(report, self.distilled)
        return student

    def stage2(self, student: nn.Module) -> Finetuned:
        recipe = self.recipe
        loss: LossOf = self.data.loss
        if recipe.joint and recipe.stage1 is not None and feature_parameters(student):
            loss = Layerwise(student, recipe.stage1).beside(loss, recipe.joint)
        return finetune(
            student,
            self.data.train,
            self.score,
            metric=f"{HELD_OUT}_score" if HELD_OUT in self.data.labels else "score",
            lr=recipe.lr,
            phi_lr=recipe.phi_lr,
            weight_decay=recipe.weight_decay,
            epochs=recipe.epochs,
            patience=recipe.patience,
            schedule=recipe.schedule,
            warmup=recipe.warmup,
            loss=loss,
            folder=self.folder,
            log=self.log,
        )

    def score(self, model: nn.Module) -> dict[str, float]:
        """The scores on every split, after the first with the split's name before the metric's."""
        every: dict[str, float] = {}
        for split, labels in self.data.labels.items():
            scores = self.task.metric(self.answers(model, split), labels)
            prefix = "" if split == self.splits[0] else f"{split}_"
            every |= {prefix + name: score for name, score in scores.items()}
        return every

    def answers(self, model: nn.Module, split: str) -> Tensor:
        """One answer per example; the record keeps them for paired tests between runs."""
        with evaluating(model):
            return predict(model, self.data.evaluation(split))


def _recovery(scores: Mapping[str, Mapping[str, float]], floor: float) -> dict[str, Any]:
    """The parts that are kept, in percent, of the teacher's score and of its headroom above a
    constant answer, which alone scores high on some tasks (MRPC: F1 81.2)."""
    top = scores["teacher"]["score"]
    final = next(scores[s]["score"] for s in ("best", "stage1", "swap", "teacher") if s in scores)
    return {
        "floor": floor,
        "score": final,
        "recovery": 100 * final / top if top > 0 else None,
        "headroom_recovery": 100 * (final - floor) / (top - floor) if top > floor else None,
    }


def _check_head(model: Any, task: tasks.ConversionTask, data: str | Path | None) -> None:
    names = task.classes(data)
    classes, needed = model.config.num_labels, 1 if names is None else len(names)
    if classes != needed:
        raise LunaError(
            f"the checkpoint's head has {classes} outputs, task '{task.name}' needs {needed}: give "
            f"a model finetuned on it, or load this one with num_labels={needed}"
        )
    task.check_head([model.config.id2label[i] for i in range(classes)], data)
    if model.config.problem_type is None:
        # transformers writes it at the first training step, of which a resumed run may have none.
        kind = "single_label_classification" if classes > 1 else "regression"
        model.config.problem_type = kind


def _finished(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """The result in `folder`, if there is one; a LunaError if the folder is another run's."""
    if (folder / "run.json").is_file():
        there = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        other = [key for key, value in identity.items() if there.get(key) != value]
        if other:
            raise LunaError(
                f"{folder} contains another run (different {', '.join(other)}): use another folder"
            )
    if not (folder / RESULT).is_file():
        return None
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def _remove_states(folder: Path) -> None:
    """Remove the states to resume from, which are four times the model's size."""
    for state in (stage1.STATE, stage2.STATE):
        (folder / state).unlink(missing_ok=True)


def _write_json(path: Path, record: dict[str, Any]) -> None:
    text = json.dumps(record, indent=1)
    write_whole(path, lambda partial: partial.write_text(text, encoding="utf-8"))
