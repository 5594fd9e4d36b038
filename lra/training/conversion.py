"""`lra convert`: one conversion from config to record, run by luna/convert/pipeline.py."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import DictConfig, OmegaConf
from safetensors import SafetensorError

from lra.base import versions
from lra.base.code import Source, source_of
from lra.base.digests import digest
from lra.base.disk import disk_errors, read_json, write_json
from lra.base.errors import UserError, first_line
from lra.base.network import resolves
from lra.data.store import lock
from lra.metrics.metric import facts_of, get
from lra.runs import environment
from lra.runs.facts import without_dots
from lra.runs.folder import RESULT, TEACHER, read_result
from lra.runs.schema import ConversionRecord, name_of
from lra.settings.errors import explained
from lra.settings.experiment import SCHEMA_VERSION, identity_of
from lra.settings.presets import fill_in_preset
from lra.training.process import fresh_torch
from luna.base import LunaError
from luna.convert import pipeline, tasks
from luna.convert.host import quiet, transformers
from luna.convert.host_config import config_of
from luna.convert.recipe import ConversionRecipe
from luna.convert.tasks import metrics, tiny

# The metrics of luna.convert, which has them on tensors, by their names here.
METRICS: dict[metrics.Metric, str] = {
    metrics.classified: "accuracy",
    metrics.paraphrase: "accuracy_f1",
    metrics.acceptable: "matthews",
    metrics.similarity: "pearson_spearman",
}
HUB = "https://huggingface.co"  # where HF_ENDPOINT names no other
MOVE = "free some space, or point runs_dir elsewhere; the same command then goes on"
ConversionStage = Enum("ConversionStage", ["teacher", "convert"])  # the first finetunes softmax
Device = Enum("Device", ["auto", "cpu", "cuda"])  # auto: a GPU if there is one
DataSource = Enum("DataSource", ["own", "tiny"])  # the task's own; made sentences (task=tiny)
MADE = "made"  # the path of a checkpoint that is made here


@dataclass
class Checkpoint:
    name: str
    path: str  # a local folder, or a name on the Hugging Face hub
    trained_on: str | None = None  # the task that the checkpoint itself is a teacher of


@dataclass
class DataFolder:
    source: DataSource
    path: str | None  # a local folder; None: the Hugging Face hub


@dataclass
class Conversion:
    task: str
    stage: ConversionStage
    attention: dict[str, Any]  # name and the method's own options, checked by luna.build
    layers: Any  # all, last:<k>, or a list of numbers
    model: Checkpoint
    teacher: str | None  # a finetuned checkpoint, instead of the one of stage=teacher
    data: DataFolder
    recipe: ConversionRecipe
    seed: int
    device: Device
    runs_dir: str


def check_conversion(cfg: DictConfig) -> Conversion:
    with explained():
        typed = OmegaConf.merge(OmegaConf.structured(Conversion), cfg)
        attention = cast(dict[str, Any], OmegaConf.to_container(typed.attention, resolve=True))
        fill_in_preset(attention, typed.task)
        if attention["name"] == versions.STACK:
            raise UserError(
                "a conversion gives its layers one method, and a stack has one for each: choose a "
                "method, and with layers=[..] the layers that get it"
            )
        typed.attention = attention
        if typed.data.source is DataSource.tiny:  # no score of it may pass for another task's
            typed.task = tiny.NAME
        run = cast(Conversion, OmegaConf.to_object(typed))
    if run.seed < 0:
        raise UserError(f"seed={run.seed} is out of range: it must be at least 0")
    return run


@fresh_torch()
def convert(run: Conversion, command: str = "") -> dict[str, Any]:
    """Run a conversion, resume it, or look up its result. The record keeps the command."""
    task, device, place = tasks.get(run.task), _device(run.device), folder(run)
    origin = environment.origin() | {"command": command}
    name, options = None, dict[str, Any]()
    if run.stage is ConversionStage.convert:
        options = run.attention | {"layers": run.layers}
        name = options.pop("name")
        source = source_of(name, versions.OF_CONVERSION)
        origin |= {"codes": [source.hash], "code": source.parts, "numerics": _numerics(name)}
        _note_other_code(run, place, source)
    waiting = f"another process is making {place}; waiting for it"
    with quiet(), lock(place, waiting), disk_errors(place, MOVE):
        processor, model = _load_model(run, task)
        read_json(place / "run.json")  # refuses a damaged one, as the next line does
        if "digest" in (read_json(place / RESULT) or {}):  # which a conversion gets last
            read_result(place / RESULT)
        try:
            facts = pipeline.run(
                model.eval().to(device),
                processor,
                task=run.task,
                data=run.data.path,
                folder=place,
                attention=name,
                options=options,
                recipe=run.recipe,
                seed=run.seed,
                log=print,
                origin=origin,
            )
        except SafetensorError as error:  # transformers writes weights through it
            raise UserError(f"cannot write to {place} ({error}): {MOVE}") from error
        if name is not None and "digest" not in facts:  # else this record was written before
            facts = record_of(facts, run.model.name)
            write_json(place / RESULT, facts)
    if facts["score"] <= facts["floor"]:
        print("note: no better than the same answer to everything")
    print(_outcome(run.task, name, facts) + f"; record {place / RESULT}")
    return facts


def _outcome(task: str, name: str | None, facts: Mapping[str, Any]) -> str:
    """`mrpc luna: score 88.24, a constant answer 81.22, recovery 98.2 %`"""
    unit = 100 if name is None else 1  # a teacher has no record, which counts in percent
    score, floor = unit * facts["score"], unit * facts["floor"]
    said = f"{task} {name or 'teacher'}: score {score:.2f}, a constant answer {floor:.2f}"
    recovery = None if name is None else facts["recovery"]
    return said if recovery is None else f"{said}, recovery {recovery:.1f} %"


def record_of(facts: dict[str, Any], model: str) -> dict[str, Any]:
    """Give the result of luna.convert.pipeline the names that all records use. Its identity comes
    from contents (the teacher's weights, not their folder), so it is the same on every machine."""
    facts = dict(facts)
    attention = {"name": facts.pop("attention")} | facts.pop("options")
    settings = {
        "task": facts["task"],
        "model": model,
        "attention": attention,
        "recipe": facts.pop("recipe"),
        "teacher": facts.pop("teacher"),
    }
    fingerprint = facts.pop("data", None)
    facts["machine"] = {key: facts.pop(key) for key in ("device", "threads")}
    facts["versions"] = {"torch": facts.pop("torch")} | facts["versions"]
    facts["seconds"] = {"total": facts["seconds"]}
    identity = identity_of(settings, fingerprint, facts.get("numerics"))
    stages = {stage: _percent(scores) for stage, scores in facts.pop("scores").items()}
    select = next(stage for stage in ("best", "stage1", "swap") if stage in stages)
    facts |= {
        "schema": SCHEMA_VERSION,
        "kind": "conversion",
        "run": name_of(identity, facts.get("codes"), facts["seed"]),
        "identity": identity,
        "model": model,
        "attention": attention,
        "settings": settings,
        "data": {"fingerprint": fingerprint},
        "times": facts.get("times") or {},
        "metric": facts_of(get(METRICS[tasks.get(facts["task"]).metric])),
        "select": select,
        "stages": stages,
        "score": stages[select]["score"],
        "floor": 100 * facts["floor"],
        "stage1": without_dots(facts["stage1"]),
        "stage2": without_dots(facts.get("stage2")),
    }
    record = ConversionRecord.model_validate(facts).facts()
    return record | {"digest": digest(record)}


def _percent(scores: dict[str, float]) -> dict[str, Any]:
    """Give the scores of a stage, which luna.convert has as shares, in the unit of their metric."""
    shares = {name: 100 * value for name, value in scores.items()}
    return {"score": shares.pop("score"), "metrics": shares}


def _load_model(run: Conversion, task: tasks.ConversionTask) -> tuple[Any, Any]:
    """Load the tokenizer or image normalisation and the model to start from. With stage=teacher it
    gets a new head where its own does not fit the task."""
    source, head = run.model.path, dict[str, Any]()
    if run.stage is ConversionStage.convert:
        source = _teacher(run)
    elif (classes := task.classes(run.data.path)) is None:
        head = {"num_labels": 1}
    else:
        numbers = {name: i for i, name in enumerate(classes)}
        head = {"id2label": dict(enumerate(classes)), "label2id": numbers}
    if source == MADE:
        source = _made(run)
    offline = not Path(source).exists() and not resolves(os.environ.get("HF_ENDPOINT") or HUB)
    torch.manual_seed(run.seed)  # for a new head: its weights are part of the run's identity
    try:
        processor = task.processor(source, offline=offline)
        model, report = getattr(transformers(), task.auto_model).from_pretrained(
            source,
            config=config_of(source, offline=offline, **head),
            output_loading_info=True,
            ignore_mismatched_sizes=bool(head),
            local_files_only=offline,
            trust_remote_code=False,
        )
    except (OSError, ValueError, SafetensorError) as error:
        if isinstance(error, LunaError):
            raise
        raise UserError(
            f"no model can be loaded from '{source}' ({first_line(error)}): give a local folder "
            f"with {task.files}, model.path=..."
        ) from error
    if new := sorted(report["missing_keys"]) + sorted(key for key, *_ in report["mismatched_keys"]):
        if not head:
            raise UserError(
                f"'{source}' was not finetuned on a task, its head would be new "
                f"({', '.join(new)}): run stage=teacher first"
            )
        print(f"{run.task}: '{source}' gets a new head ({', '.join(new)})")
    return processor, model


def _made(run: Conversion) -> str:
    """Make the model of trials once, beside its teachers."""
    place = _teachers(run).with_name("start")
    if not (place / "config.json").exists():
        with lock(place, f"another process is making {place}; waiting for it"):
            tiny.make_model(place)
    return str(place)


def _device(device: Device) -> str:
    available = torch.cuda.is_available()
    if device is Device.cuda and not available:
        raise UserError("there is no GPU that torch can use for device=cuda: use device=cpu")
    return "cuda" if available and device is not Device.cpu else "cpu"


def folder(run: Conversion) -> Path:
    """Return the run's folder, another one for every setting that changes the result: the newest in
    which it has finished, or that of today's source."""
    if run.stage is ConversionStage.teacher:
        return _teachers(run) / f"seed-{run.seed}"
    name = run.attention["name"]
    source = source_of(name, versions.OF_CONVERSION)
    group, key = _teachers(run).with_name(name), _key(run)
    first = group / f"{key}-{source.hash}" / f"seed-{run.seed}"
    if (first / RESULT).exists() or source.outside:
        return first
    made = group.glob(f"{key}*/seed-{run.seed}/{RESULT}")
    newest = max(made, key=lambda file: file.stat().st_mtime, default=None)
    return first if newest is None else newest.parent


def _key(run: Conversion) -> str:
    options = versions.without_added({"attention": {**run.attention}})["attention"]
    facts: list[Any] = [options, run.layers, run.recipe.facts(), _teacher(run)]
    if moved := versions.raised(_numerics(run.attention["name"])):
        facts.append(moved)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:12]


def _numerics(attention: str) -> dict[str, int]:
    return versions.numerics_of(attention, versions.OF_CONVERSION)


def _note_other_code(run: Conversion, place: Path, source: Source) -> None:
    """Say which code made a finished conversion, and which unfinished one is kept."""
    if (made_by := read_json(place / RESULT)) is not None:
        if differs := source.differs_from(made_by.get("code") or {}, {}):
            print(f"note: other code made this result ({differs}); remove {place} to make it anew")
    elif not place.exists():
        others = place.parents[1].glob(f"{_key(run)}*/{place.name}")
        if found := sorted(others, key=lambda folder: folder.stat().st_mtime):
            print(f"the source has changed since {found[-1]}: beginning anew, that folder is kept")


def _teachers(run: Conversion) -> Path:
    return Path(run.runs_dir) / "convert" / run.task / run.model.name / TEACHER


def _teacher(run: Conversion) -> str:
    """Return the folder of the teacher, one for every method and seed."""
    if run.teacher is not None:
        return run.teacher
    if run.model.trained_on == run.task:
        return run.model.path
    finished = sorted(_teachers(run).glob(f"seed-*/{RESULT}"))
    if not finished:
        made = run.data.source is DataSource.tiny
        data = f"data.source={tiny.NAME}" if made else f"task={run.task}"
        raise UserError(
            f"a teacher for {run.task} is missing: run `lra convert stage=teacher {data} "
            f"model={run.model.name} ...` first, or give one, teacher=<folder>"
        )
    return str(finished[0].parent / "model")
