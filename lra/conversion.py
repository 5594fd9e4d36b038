"""`lra convert`: one conversion from config to record (luna/convert/pipeline.py does it)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.compose import explain, preset_exists
from lra.config import UserError


class Stage(Enum):
    teacher = "teacher"  # finetune the softmax model on the task
    convert = "convert"


class Device(Enum):
    auto = "auto"  # a GPU if there is one
    cpu = "cpu"
    cuda = "cuda"


@dataclass
class Model:
    name: str
    path: str  # a local folder, or a name on the Hugging Face hub
    trained_on: str | None = None  # a task whose teacher it is as it comes


@dataclass
class Data:
    path: str | None  # a local folder; None: the Hugging Face hub


@dataclass
class Images:
    """luna.convert.recipe.Augment, as a config."""

    min_area: float = 0.08
    flip: float = 0.5
    randaugment: int = 0
    magnitude: int = 9
    mixup: float = 0.0
    cutmix: float = 0.0
    label_smoothing: float = 0.0
    eval_crop: float | None = None


@dataclass
class Numbers:
    """luna.convert.recipe.Recipe, as a config; what images alone need may be left out."""

    stage1: str | None
    stage1_lr: float
    stage1_steps: int | None  # None: one epoch
    batch: int
    lr: float
    phi_lr: float | None
    epochs: int
    patience: int
    schedule: str
    max_length: int
    train_examples: int | None
    weight_decay: float = 0.0
    warmup: float = 0.0
    joint: float = 0.0
    select: str = "dev"
    images: Images = field(default_factory=Images)


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
    device: Device
    runs_dir: str


def check(cfg: DictConfig) -> Conversion:
    try:
        typed = OmegaConf.merge(OmegaConf.structured(Conversion), cfg)
        preset_exists(typed.attention)
        run = cast(Conversion, OmegaConf.to_object(typed))
    except OmegaConfBaseException as error:
        raise UserError(explain(error, cfg)) from error
    if run.seed < 0:
        raise UserError(f"seed={run.seed} is out of range: it must be at least 0")
    for key in ("preset", "presets"):  # what options were looked up in
        run.attention.pop(key, None)
    return run


def convert(run: Conversion) -> dict[str, Any]:
    from lra import environment
    from luna.convert import pipeline, tasks
    from luna.convert.host import quiet

    recipe, task, device = _recipe(run), tasks.task(run.task), _device(run.device)
    options = dict(run.attention)
    name = None if run.stage is Stage.teacher else options.pop("name")
    with quiet():
        processor, model = _load(run, task)
        record = pipeline.run(
            model.eval().to(device),
            processor,
            task=run.task,
            data=run.data.path,
            folder=folder(run),
            attention=name,
            options={} if name is None else options | {"layers": run.layers},
            recipe=recipe,
            seed=run.seed,
            log=print,
            origin={"git": environment.git(), "versions": environment.versions()},
        )
    recovery = record["recovery"]
    print(
        f"{run.task} {name or 'teacher'}: score {record['score']:.4f}"
        + ("" if recovery is None or name is None else f", recovery {recovery:.1f} %")
        + f"; record {folder(run) / pipeline.RESULT}"
    )
    return record


def _load(run: Conversion, task: Any) -> tuple[Any, Any]:
    """The checkpoint to start from: its tokenizer or image normalisation, and the model. For
    stage=teacher it may have another head, or none."""
    import torch
    from safetensors import SafetensorError

    from luna.base import LunaError
    from luna.convert.host import transformers

    library, source = transformers(), run.model.path
    head: dict[str, Any] = {}
    classes = task.classes(run.data.path)
    if run.stage is Stage.convert:
        source = _teacher(run)
    elif classes is None:
        head = {"num_labels": 1}
    else:
        numbers = {name: i for i, name in enumerate(classes)}
        head = {"id2label": dict(enumerate(classes)), "label2id": numbers}
    torch.manual_seed(run.seed)  # a new head's weights are part of what identifies the run
    try:
        processor = task.processor(source)
        model, report = getattr(library, task.auto_model).from_pretrained(
            source, output_loading_info=True, ignore_mismatched_sizes=bool(head), **head
        )
    except LunaError:
        raise
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"no model can be loaded from '{source}' ({str(error).strip().splitlines()[0]}): give "
            f"a local folder with {task.files}, model.path=..."
        ) from error
    new = sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"])
    if new and run.stage is Stage.convert:
        raise UserError(
            f"'{source}' was not finetuned on a task, its head is new ({', '.join(new)}): run "
            "stage=teacher first"
        )
    if new:
        print(f"{run.task}: {', '.join(new)} of '{source}' are new")
    return processor, model


def _recipe(run: Conversion) -> Any:
    from luna.convert.recipe import Augment, Recipe

    numbers = asdict(run.recipe)
    return Recipe(**numbers | {"images": Augment(**numbers["images"])})


def _device(device: Device) -> str:
    import torch

    there = torch.cuda.is_available()
    if device is Device.cuda and not there:
        raise UserError("device=cuda, and there is no GPU that torch can use: device=cpu")
    return "cuda" if there and device is not Device.cpu else "cpu"


def folder(run: Conversion) -> Path:
    """One for each setting that changes the result; `stage=teacher` has its own."""
    base = Path(run.runs_dir) / "convert" / run.task / run.model.name
    if run.stage is Stage.teacher:
        return base / "teacher" / f"seed-{run.seed}"
    facts = [run.attention, run.layers, _recipe(run).facts(), _teacher(run)]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]
    return base / run.attention["name"] / key / f"seed-{run.seed}"


def _teacher(run: Conversion) -> str:
    """The same one for every method and seed."""
    if run.teacher is not None:
        return run.teacher
    if run.model.trained_on == run.task:
        return run.model.path
    there = Path(run.runs_dir) / "convert" / run.task / run.model.name / "teacher"
    found = sorted(there.glob("seed-*/result.json"))
    if not found:
        raise UserError(
            f"there is no teacher for {run.task} yet: run `lra convert stage=teacher "
            f"task={run.task} model={run.model.name} ...` first, or give one with teacher=<folder>"
        )
    return str(found[0].parent / "model")
