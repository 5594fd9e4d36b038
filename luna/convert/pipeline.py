"""One conversion of one model on one task, from teacher to record.

    teacher -> swap -> stage 1 -> stage 2

with the score after each. The controls are runs of the same function: attention "softmax" is the
teacher trained on for the same budget, `stage1=None` and `epochs=0` leave a stage out. An
interrupted run continues where it stopped: stage 1 saves its state at every evaluation, stage 2
after every epoch.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import run_folder, tasks
from luna.convert.loop import Log
from luna.convert.maps import LossOf, MapLoss
from luna.convert.recipe import ConversionRecipe
from luna.convert.run_folder import Scores
from luna.convert.running import evaluating, own_loss
from luna.convert.stage1 import distill
from luna.convert.stage2 import finetune
from luna.convert.swap import convert, describe, feature_parameters, weights_hash
from luna.convert.tasks.base import HELD_OUT, ConversionData, ConversionTask, predict
from luna.convert.tasks.metrics import constant

OF_THE_RUN = ("model", "attention", "inplace", "seed")  # arguments of `convert`, never options
STAGE_1_BATCHES = 2  # on which its maps are measured


def run(
    teacher: nn.Module,
    processor: Any,
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
    """Run a conversion, resume it, or look it up. The record is also in `folder`/result.json, the
    model in `folder`/model.

    processor  the teacher's tokenizer or image processor
    data       a local folder; None: the Hugging Face hub, for GLUE
    attention  a method of the registry; None: finetune `teacher` itself, as it is
    origin     more facts for the record, such as the revision of the code
    """
    spec = tasks.get(task)
    recipe = recipe or ConversionRecipe()
    folder = Path(folder)

    # A run that has finished is looked up; what does not fit is refused before it starts.
    identity = _identity(teacher, spec, data, attention, options, recipe, seed)
    done = run_folder.finished(folder, identity)
    if done is not None:
        run_folder.remove_states(folder)
        return done
    _check_head(teacher, spec, data)
    examples = spec.data(spec, data, processor, recipe, seed)
    run_folder.start(folder, identity)

    # Teacher, student, stage 1, stage 2: each leaves a score.
    steps = Steps(spec, examples, recipe, attention, folder, seed, log or _say_nothing)
    steps.score_teacher(teacher)
    student = steps.swap(teacher, identity["options"])
    steps.stage_1(student)
    steps.stage_2(student)

    # The model is written before the record: a folder with a record is finished.
    result = identity | dict(origin or {}) | steps.facts(student, identity["options"])
    made = {key: result[key] for key in (*identity, "scores", "floor", "recovery")}
    run_folder.save_model(folder, student, processor, made)
    run_folder.finish(folder, result)
    return result


def _identity(
    teacher: nn.Module,
    task: ConversionTask,
    data: str | Path | None,
    attention: str | None,
    options: Mapping[str, Any] | None,
    recipe: ConversionRecipe,
    seed: int,
) -> dict[str, Any]:
    """What two runs share if and only if they are the same run."""
    options = dict(options or {})
    if taken := [name for name in OF_THE_RUN if name in options]:
        raise LunaError(f"a run sets {', '.join(taken)} itself: leave it out of the options")
    identity = {
        "task": task.name,
        "attention": attention,
        "options": options,
        "recipe": recipe.facts(),
        "seed": seed,
        "teacher": weights_hash(teacher),
    }
    fingerprint = task.fingerprint(data)
    if fingerprint is not None:
        identity["data"] = fingerprint
    return identity


def _check_head(model: Any, task: ConversionTask, data: str | Path | None) -> None:
    names = task.classes(data)
    classes = model.config.num_labels
    needed = 1 if names is None else len(names)
    if classes != needed:
        raise LunaError(
            f"the checkpoint's head has {classes} outputs, task '{task.name}' needs {needed}: give "
            f"a model finetuned on it, or load this one with num_labels={needed}"
        )
    task.check_head([model.config.id2label[i] for i in range(classes)], data)
    if model.config.problem_type is None:
        # transformers writes it at the first training step, of which a resumed run may have none.
        model.config.problem_type = "regression" if classes == 1 else "single_label_classification"


def _say_nothing(message: str) -> None:
    pass


@dataclass
class Steps:
    """The steps of a run, and what they leave for the record."""

    task: ConversionTask
    data: ConversionData
    recipe: ConversionRecipe
    attention: str | None
    folder: Path
    seed: int
    log: Log
    scores: dict[str, Scores] = field(default_factory=dict)  # by step
    distilled: dict[str, Any] | None = None  # the report of stage 1
    finetuned: dict[str, Any] | None = None  # the report of stage 2
    started: float = field(default_factory=time.monotonic)

    # ------------------------------------------------------------------ the steps

    def score_teacher(self, teacher: nn.Module) -> None:
        self.scores["teacher"] = self.score(teacher)
        self.log(f"{self.task.name}: teacher {self.scores['teacher']['score']:.4f}")

    def swap(self, teacher: nn.Module, options: Mapping[str, Any]) -> nn.Module:
        """Return the student: the teacher with the new attention, or the teacher itself."""
        if self.attention is None:
            return teacher
        student = convert(teacher, self.attention, seed=self.seed, **options)
        self.scores["swap"] = self.score(student)
        score = self.scores["swap"]["score"]
        self.log(f"{self.task.name}: {self.attention} swapped in {score:.4f}")
        return student

    def stage_1(self, student: nn.Module) -> None:
        """Fit the feature maps, if there are any and the recipe has a stage 1."""
        if self.recipe.stage1 is None or not self.feature_parameters(student):
            return
        # These batches do not depend on the seed, so that runs can be compared.
        held_out = itertools.islice(self.data.evaluation(self.splits[0]), STAGE_1_BATCHES)
        report = distill(
            student,
            self.data.train(0),
            steps=self.recipe.stage1_steps,
            lr=self.recipe.stage1_lr,
            loss=self.recipe.stage1,
            held_out=list(held_out),
            folder=self.folder,
            log=self.log,
        )
        self.distilled = report.to_dict()
        self.scores["stage1"] = self.score(student)

    def stage_2(self, student: nn.Module) -> None:
        """Train the whole model on its task, if the recipe has a stage 2."""
        if not self.recipe.epochs:
            return
        torch.manual_seed(self.seed)  # dropout
        report = finetune(
            student,
            self.data.train,
            self.score,
            metric=f"{HELD_OUT}_score" if HELD_OUT in self.data.labels else "score",
            lr=self.recipe.lr,
            phi_lr=self.recipe.phi_lr,
            weight_decay=self.recipe.weight_decay,
            epochs=self.recipe.epochs,
            patience=self.recipe.patience,
            schedule=self.recipe.schedule,
            warmup=self.recipe.warmup,
            loss=self.loss(student),
            folder=self.folder,
            log=self.log,
        )
        self.finetuned = report.to_dict()
        self.scores["best"] = report.epochs[report.best_epoch - 1]["scores"]
        self.scores["last"] = report.epochs[-1]["scores"]

    def loss(self, student: nn.Module) -> LossOf:
        """The task's loss; under `joint` that of the maps beside it, where stage 1 fitted them."""
        if self.distilled is None or self.recipe.stage1 is None or not self.recipe.joint:
            return own_loss
        return MapLoss(student, self.recipe.stage1).beside(own_loss, self.recipe.joint)

    # ------------------------------------------------------------------ scores and facts

    @property
    def splits(self) -> list[str]:
        """The splits that are reported, of which the first gives the result."""
        return [split for split in self.data.labels if split != HELD_OUT]

    def answers(self, model: nn.Module, split: str) -> Tensor:
        with evaluating(model):
            return predict(model, self.data.evaluation(split))

    def score(self, model: nn.Module) -> Scores:
        """Score every split; after the first its name stands before the metric's."""
        every: Scores = {}
        for split, labels in self.data.labels.items():
            prefix = "" if split == self.splits[0] else f"{split}_"
            numbers = self.task.metric(self.answers(model, split), labels)
            every |= {prefix + name: number for name, number in numbers.items()}
        return every

    def feature_parameters(self, student: nn.Module) -> dict[str, nn.Parameter]:
        return {} if self.attention is None else feature_parameters(student)

    def facts(self, student: nn.Module, options: Mapping[str, Any]) -> dict[str, Any]:
        """The record, beside the run's identity and origin."""
        description = describe(student) or {}
        device = next(student.parameters()).device
        phi = self.feature_parameters(student)
        labels = {split: self.data.labels[split] for split in self.splits}
        floor = constant(labels[self.splits[0]], self.task.metric)["score"]
        return {
            "schema": run_folder.SCHEMA,
            "status": "finished",
            "options": {**options, **description.get("options", {})},
            "preset": description.get("preset"),
            "scores": self.scores,
            **run_folder.recovery(self.scores, floor),
            "stage1": self.distilled,
            "stage2": self.finetuned,
            "predictions": {split: self.answers(student, split).tolist() for split in labels},
            "labels": {split: answers.tolist() for split, answers in labels.items()},
            "phi_parameters": sum(p.numel() for p in phi.values()),
            "train_examples": len(self.data.examples),
            "seconds": time.monotonic() - self.started,
            "times": {"finished": datetime.now(UTC).isoformat(timespec="seconds")},
            "torch": str(torch.__version__),
            "threads": torch.get_num_threads(),
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        }
