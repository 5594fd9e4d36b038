"""One conversion of one model on one task, from teacher to record.

    teacher -> swap -> stage 1 -> stage 2

with the score after each. The controls are runs of the same function: attention "softmax" is the
teacher trained on for the same budget, `stage1=None` and `epochs=0` leave a stage out. An
interrupted run continues where it stopped: stage 1 saves its state at every evaluation, stage 2
after every epoch.
"""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from luna.base import LunaError
from luna.convert import tasks
from luna.convert.loop import STATES, Log, write_whole
from luna.convert.maps import LossOf, MapLoss
from luna.convert.recipe import ConversionRecipe
from luna.convert.stage1 import distill
from luna.convert.stage2 import finetune
from luna.convert.swap import (
    convert,
    describe,
    evaluating,
    feature_parameters,
    own_loss,
    weights_hash,
)
from luna.convert.tasks.base import HELD_OUT, predict
from luna.convert.tasks.metrics import constant

RESULT, MODEL = "result.json", "model"
SCHEMA = 1
CARD = """\
# A model of luna-lra

Converted models are loaded by `luna.convert.load(folder)`, transformers alone refuses them.

```json
{}
```
"""


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
    spec, recipe, folder = tasks.get(task), recipe or ConversionRecipe(), Path(folder)
    log = log or (lambda message: None)
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
    opened = spec.data(spec, data, processor, recipe, seed)
    _write_json(folder / "run.json", identity)
    started = time.monotonic()
    splits = [split for split in opened.labels if split != HELD_OUT]
    scores: dict[str, dict[str, float]] = {}
    distilled = finetuned = None

    def answers(model: nn.Module, split: str) -> Tensor:
        with evaluating(model):
            return predict(model, opened.evaluation(split))

    def score(model: nn.Module) -> dict[str, float]:
        """Score every split; after the first its name stands before the metric's."""
        every: dict[str, float] = {}
        for split, labels in opened.labels.items():
            prefix = "" if split == splits[0] else f"{split}_"
            numbers = spec.metric(answers(model, split), labels)
            every |= {prefix + name: number for name, number in numbers.items()}
        return every

    student = teacher
    loss: LossOf = own_loss
    scores["teacher"] = score(teacher)
    log(f"{spec.name}: teacher {scores['teacher']['score']:.4f}")
    if attention is not None:
        student = convert(teacher, attention, seed=seed, **identity["options"])
        scores["swap"] = score(student)
        log(f"{spec.name}: {attention} swapped in {scores['swap']['score']:.4f}")
    phi = feature_parameters(student) if attention is not None else {}
    if phi and recipe.stage1 is not None:
        distilled = distill(
            student,
            opened.train(0),
            steps=recipe.stage1_steps,
            lr=recipe.stage1_lr,
            loss=recipe.stage1,
            # They do not depend on the seed, so that runs can be compared.
            held_out=list(itertools.islice(opened.evaluation(splits[0]), 2)),
            folder=folder,
            log=log,
        ).to_dict()
        scores["stage1"] = score(student)
        if recipe.joint:
            loss = MapLoss(student, recipe.stage1).beside(loss, recipe.joint)
    if recipe.epochs:
        torch.manual_seed(seed)  # dropout
        finetuned = finetune(
            student,
            opened.train,
            score,
            metric=f"{HELD_OUT}_score" if HELD_OUT in opened.labels else "score",
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
        ).to_dict()
        epochs = finetuned["epochs"]
        scores["best"] = epochs[finetuned["best_epoch"] - 1]["scores"]
        scores["last"] = epochs[-1]["scores"]

    description = describe(student) or {}
    device = next(student.parameters()).device
    result = identity | {
        **(origin or {}),
        "schema": SCHEMA,
        "status": "finished",
        "options": identity["options"] | description.get("options", {}),
        "preset": description.get("preset"),
        "scores": scores,
        **_recovery(scores, constant(opened.labels[splits[0]], spec.metric)["score"]),
        "stage1": distilled,
        "stage2": finetuned,
        "predictions": {split: answers(student, split).tolist() for split in splits},
        "labels": {split: opened.labels[split].tolist() for split in splits},
        "phi_parameters": sum(p.numel() for p in phi.values()),
        "train_examples": len(opened.examples),
        "seconds": time.monotonic() - started,
        "times": {"finished": datetime.now(UTC).isoformat(timespec="seconds")},
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }
    model, partial = folder / MODEL, folder / f"{MODEL}.tmp"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    student.save_pretrained(partial)  # type: ignore[operator]
    processor.save_pretrained(partial)
    made = {key: result[key] for key in (*identity, "scores", "floor", "recovery")}
    card = CARD.format(json.dumps(made, indent=1))
    (partial / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(model, ignore_errors=True)
    partial.replace(model)
    _write_json(folder / RESULT, result)
    _remove_states(folder)
    return result


def _recovery(scores: Mapping[str, Mapping[str, float]], floor: float) -> dict[str, Any]:
    """Return the parts that are left, in percent, of the teacher's score and of its headroom above
    a constant answer, which alone scores high on some tasks (MRPC: F1 81.2)."""
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
        model.config.problem_type = "regression" if classes == 1 else "single_label_classification"


def _finished(folder: Path, identity: dict[str, Any]) -> dict[str, Any] | None:
    """Read the result in `folder`, if there is one; a LunaError if the folder is another run's."""
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
    for state in STATES:
        (folder / state).unlink(missing_ok=True)


def _write_json(path: Path, record: dict[str, Any]) -> None:
    write_whole(path, json.dumps(record, indent=1).encode())
