"""`python convert.py`: one conversion from config to record (luna/convert/pipeline.py does it)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.compose import explain
from lra.config import UserError


class Stage(Enum):
    teacher = "teacher"  # finetune the softmax model on the task
    convert = "convert"


@dataclass
class Model:
    name: str
    path: str  # a local folder, or a name on the Hugging Face hub


@dataclass
class Data:
    path: str


@dataclass
class Numbers:
    """luna.convert.pipeline.Recipe, as a config."""

    stage1: str | None
    stage1_lr: float
    stage1_steps: int
    batch: int
    lr: float
    phi_lr: float | None
    epochs: int
    patience: int
    schedule: str
    max_length: int
    train_examples: int | None


@dataclass
class Conversion:
    task: str
    stage: Stage
    attention: dict[str, Any]  # name and the method's own options, checked by luna.build
    layers: Any  # all, last:<k>, or a list of numbers
    model: Model
    teacher: str | None  # a finetuned checkpoint, instead of the one of stage=teacher
    data: Data
    recipe: Numbers
    seed: int
    runs_dir: str


def check(cfg: DictConfig) -> Conversion:
    try:
        typed = OmegaConf.merge(OmegaConf.structured(Conversion), cfg)
        return cast(Conversion, OmegaConf.to_object(typed))
    except OmegaConfBaseException as error:
        raise UserError(explain(error, cfg)) from error


def convert(run: Conversion) -> dict[str, Any]:
    import torch

    from luna.convert import pipeline, tasks
    from luna.convert.host import transformers

    labels = tasks.task(run.task).n_labels
    library = transformers()
    source, head = run.model.path, {"num_labels": labels}
    if run.stage is Stage.convert:
        source, head = _teacher(run), {}
    torch.manual_seed(run.seed)  # a new head's weights are part of what identifies the run
    try:
        tokenizer = library.AutoTokenizer.from_pretrained(source)
        model, report = library.AutoModelForSequenceClassification.from_pretrained(
            source, output_loading_info=True, **head
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"there is no model to load at '{source}' ({str(error).strip().splitlines()[0]}): "
            "give a local folder with config.json, tokenizer and safetensors, model.path=..."
        ) from error
    if run.stage is Stage.convert and report["missing_keys"]:
        raise UserError(
            f"'{source}' was not finetuned on a task, its head is new "
            f"({', '.join(sorted(report['missing_keys']))}): run stage=teacher first"
        )
    options = dict(run.attention)
    name = None if run.stage is Stage.teacher else options.pop("name")
    record = pipeline.run(
        model.eval(),
        tokenizer,
        task=run.task,
        data=run.data.path,
        folder=folder(run),
        attention=name,
        options={} if name is None else options | {"layers": run.layers},
        recipe=pipeline.Recipe(**asdict(run.recipe)),
        seed=run.seed,
        log=print,
    )
    recovery = record["recovery"]
    print(
        f"{run.task} {name or 'teacher'}: score {record['score']:.4f}"
        + ("" if recovery is None or name is None else f", recovery {recovery:.1f} %")
        + f"; record {folder(run) / pipeline.RESULT}"
    )
    return record


def folder(run: Conversion) -> Path:
    """One for each setting that changes the result; `stage=teacher` has its own."""
    base = Path(run.runs_dir) / "convert" / run.task / run.model.name
    if run.stage is Stage.teacher:
        return base / "teacher" / f"seed-{run.seed}"
    facts = [run.attention, run.layers, asdict(run.recipe), _teacher(run)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return base / run.attention["name"] / key / f"seed-{run.seed}"


def _teacher(run: Conversion) -> str:
    """The same one for every method and seed."""
    if run.teacher is not None:
        return run.teacher
    there = Path(run.runs_dir) / "convert" / run.task / run.model.name / "teacher"
    found = sorted(there.glob("seed-*/result.json"))
    if not found:
        raise UserError(
            f"there is no teacher for {run.task} yet: run `python convert.py stage=teacher "
            f"task={run.task} model={run.model.name} ...` first, or give one with teacher=<folder>"
        )
    return str(found[0].parent / "model")
