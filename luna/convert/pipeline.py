"""One conversion of one model on one task, from teacher to record.

    teacher -> swap -> stage 1 -> stage 2

with the score after each. The controls are runs of the same function: attention "softmax" is the
teacher trained on for the same budget, `stage1=None` and `epochs=0` leave a stage out. A run that
was interrupted goes on where it was: stage 1 keeps its state at every evaluation and its result as
an adapter file, stage 2 its state after every epoch.
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
from luna.convert import card, metrics, stage1, stage2, tasks
from luna.convert.batches import Batch, Batches
from luna.convert.layerwise import Layerwise
from luna.convert.recipe import Recipe
from luna.convert.recovery import headroom
from luna.convert.saving import load_adapter, save_adapter
from luna.convert.stage1 import distill
from luna.convert.stage2 import Finetuned, finetune, own_loss
from luna.convert.swap import (
    convert,
    describe,
    evaluating,
    feature_parameters,
    named,
    weights_hash,
)

RESULT, ADAPTER, STAGE1 = "result.json", "stage1.safetensors", "stage1.json"
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
    recipe: Recipe | None = None,
    seed: int = 0,
    log: Log | None = None,
    origin: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The record of one run, also in `folder`/result.json; the model is saved in `folder`/model.

    processor  the teacher's tokenizer, or its image size and normalisation
    data       a local folder; None: the Hugging Face hub, for GLUE
    attention  a method of the registry; None finetunes `teacher` itself, as it is
    origin     more facts for the record: the revision of the code, say
    """
    spec, recipe, folder = tasks.task(task), recipe or Recipe(), Path(folder)
    identity = _identity(teacher, spec, data, attention, options, recipe, seed)
    done = _finished(folder, identity)
    if done is not None:
        return done
    _check_head(teacher, spec, data)
    opened = spec.open(data, processor, recipe, seed=seed)
    opened.check(teacher)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(identity, indent=1), encoding="utf-8")

    started, say = time.monotonic(), log or (lambda message: None)
    judge = _Judge(opened, spec.metric)
    scores = {"teacher": judge.score(teacher)}
    say(f"{task}: teacher {scores['teacher']['score']:.4f}")
    student, report = teacher, None
    if attention is not None:
        student = convert(teacher, attention, seed=seed, **identity["options"])
        scores["swap"] = judge.score(student)
        say(f"{task}: {_name(student)} swapped in {scores['swap']['score']:.4f}")
        if recipe.stage1 is not None and feature_parameters(student):
            measured = list(itertools.islice(opened.evaluation(judge.splits[0]), 2))
            student, report = _stage1(
                student, teacher, opened.train(0), measured, recipe, folder, log
            )
            scores["stage1"] = judge.score(student)
    tuned = _stage2(student, opened, judge, recipe, seed, folder, log) if recipe.epochs else None
    if tuned is not None:
        scores["best"] = tuned.epochs[tuned.best_epoch - 1]["scores"]
        scores["last"] = tuned.epochs[-1]["scores"]
    student.save_pretrained(folder / "model")  # type: ignore[operator]
    processor.save_pretrained(folder / "model")
    result = identity | {
        **(origin or {}),
        "schema": SCHEMA,
        "status": "finished",
        "options": identity["options"] | (describe(student) or {}).get("options", {}),
        "preset": (describe(student) or {}).get("preset"),
        "scores": scores,
        **_recovery(scores, judge.floor),
        "stage1": report,
        "stage2": None if tuned is None else tuned.to_dict(),
        "predictions": judge.predictions(student),
        "labels": {split: opened.labels[split].tolist() for split in judge.splits},
        "phi_parameters": _count(student),
        "train_examples": opened.n_train,
        "seconds": time.monotonic() - started,
        "times": {"finished": datetime.now(UTC).isoformat(timespec="seconds")},
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": _device(student),
    }
    card.write(folder / "model", result)
    _write(folder / RESULT, result)
    for state in (stage1.STATE, stage2.STATE):  # four times the model's size, and needed no more
        (folder / state).unlink(missing_ok=True)
    return result


class _Judge:
    """A model's scores on every split. Those of the first one have the metric's own names, those of
    another carry the split's."""

    def __init__(self, data: tasks.Data, metric: metrics.Metric):
        self.data, self.metric = data, metric
        self.splits = [split for split in data.labels if split != tasks.HELD_OUT]
        self.floor = metrics.constant(data.labels[self.splits[0]], metric)["score"]
        held_out = tasks.HELD_OUT in data.labels
        self.selects = f"{tasks.HELD_OUT}_score" if held_out else "score"

    def score(self, model: nn.Module) -> dict[str, float]:
        found: dict[str, float] = {}
        for split, labels in self.data.labels.items():
            scores = self.metric(self.answers(model, split), labels)
            first = split == self.splits[0]
            found |= scores if first else {f"{split}_{k}": s for k, s in scores.items()}
        return found

    def predictions(self, model: nn.Module) -> dict[str, list[float]]:
        """For paired tests between runs: one answer for each example."""
        return {split: self.answers(model, split).tolist() for split in self.splits}

    def answers(self, model: nn.Module, split: str) -> Tensor:
        with evaluating(model):
            return tasks.predict(model, self.data.evaluation(split))


def _stage1(
    student: nn.Module,
    teacher: nn.Module,
    train: Batches,
    measured: list[Batch],
    recipe: Recipe,
    folder: Path,
    log: Log | None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The fitted student and its report, from the run's folder if they are there. `measured` are
    the same whatever the seed, so that runs can be compared."""
    if (folder / STAGE1).is_file():
        report = json.loads((folder / STAGE1).read_text(encoding="utf-8"))
        return load_adapter(teacher, folder / ADAPTER), report
    assert recipe.stage1 is not None
    report = distill(
        student,
        train,
        steps=recipe.stage1_steps,
        lr=recipe.stage1_lr,
        loss=recipe.stage1,
        held_out=measured,
        folder=folder,
        log=log,
    ).to_dict()
    save_adapter(student, folder / ADAPTER)
    _write(folder / STAGE1, report)
    return student, report


def _stage2(
    student: nn.Module,
    data: tasks.Data,
    judge: _Judge,
    recipe: Recipe,
    seed: int,
    folder: Path,
    log: Log | None,
) -> Finetuned:
    torch.manual_seed(seed)  # dropout
    loss = data.loss or own_loss
    if recipe.joint and recipe.stage1 is not None and feature_parameters(student):
        loss = Layerwise(student, recipe.stage1, "student").beside(loss, recipe.joint)
    return finetune(
        student,
        data.train,
        judge.score,
        metric=judge.selects,
        lr=recipe.lr,
        phi_lr=recipe.phi_lr,
        weight_decay=recipe.weight_decay,
        epochs=recipe.epochs,
        patience=recipe.patience,
        schedule=recipe.schedule,
        warmup=recipe.warmup,
        loss=loss,
        folder=folder,
        log=log,
    )


def _identity(
    teacher: nn.Module,
    spec: tasks.Task,
    data: str | Path | None,
    attention: str | None,
    options: Mapping[str, Any] | None,
    recipe: Recipe,
    seed: int,
) -> dict[str, Any]:
    """What two runs must share to be the same."""
    fingerprint = spec.fingerprint(data)
    return {
        "task": spec.name,
        "attention": attention,
        "options": dict(options or {}),
        "recipe": recipe.facts(),
        "seed": seed,
        "teacher": weights_hash(teacher),
        **({} if fingerprint is None else {"data": fingerprint}),
    }


def _recovery(scores: Mapping[str, Mapping[str, float]], floor: float) -> dict[str, Any]:
    top = scores["teacher"]["score"]
    final = next(scores[s]["score"] for s in ("best", "stage1", "swap", "teacher") if s in scores)
    return {
        "floor": floor,
        "score": final,
        "recovery": 100 * final / top if top > 0 else None,
        "headroom_recovery": headroom(final, top, floor) if top > floor else None,
    }


def _check_head(model: Any, spec: tasks.Task, data: str | Path | None) -> None:
    own = spec.classes(data)
    classes, needed = model.config.num_labels, 1 if own is None else len(own)
    if classes != needed:
        raise LunaError(
            f"the checkpoint's head has {classes} outputs, task '{spec.name}' needs {needed}: give "
            f"a model finetuned on it, or load this one with num_labels={needed}"
        )
    spec.check_head([model.config.id2label[i] for i in range(classes)], data)


def _name(student: nn.Module) -> str:
    block = describe(student)
    assert block is not None
    return named(block["method"], block["options"])


def _count(model: nn.Module) -> int:
    if describe(model) is None:
        return 0
    return sum(p.numel() for p in feature_parameters(model).values())


def _device(model: nn.Module) -> str:
    device = next(model.parameters()).device
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


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
