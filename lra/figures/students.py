"""Converted models (luna.convert) from their folders, and the attention of softmax and of each of
them on a text or an image, which figures show side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.base.config import UserError
from lra.report.table import pairs_of
from lra.results.record import Record, read_record

STAGES = {"swap": "not fitted", "stage1": "stage 1", "finetuned": "finetuned"}
Inputs = Mapping[str, Tensor]  # of a model of transformers


@dataclasses.dataclass(frozen=True)
class Student:
    """A converted model, in evaluation mode."""

    model: Any
    folder: Path
    label: str
    block: dict[str, Any]  # what was converted and how: luna.convert.describe(model)
    record: Record | None  # if `lra convert` made it

    @property
    def stage(self) -> str:
        return STAGES[self.block["stage"]]

    @property
    def title(self) -> str:
        options = pairs_of(self.block["options"])
        name = f"{type(self.model).__name__}, {self.label} {options}, {self.stage}"
        return "\n".join(filter(None, (name, made([self]))))

    @property
    def stem(self) -> str:
        """For names of files: the method, and the end of the folder's path."""
        place = self.folder.resolve()
        if place.name == "model":
            place = place.parent
        return "-".join([self.label.split()[0], place.parent.name, place.name])


@dataclasses.dataclass(frozen=True)
class ModelMaps:
    """The attention matrices of one model on one example."""

    label: str
    maps: Tensor  # (layers, H, n, n)

    def layer(self, number: int, head: int | None) -> Tensor:
        """The matrix (n, n) of one layer (negative: from the last) and head (None: their mean)."""
        layers, heads = self.maps.shape[:2]
        if not -layers <= number < layers:
            raise UserError(f"{self.label} has no layer {number}: choose from 0 to {layers - 1}")
        if head is None:
            return self.maps[number].mean(0)
        if not 0 <= head < heads:
            raise UserError(f"{self.label} has no head {head}: choose from 0 to {heads - 1}")
        return self.maps[number, head]

    def named(self, number: int, head: int | None) -> str:
        layers, heads = self.maps.shape[:2]
        which = f"mean over {heads} heads" if head is None else f"head {head}"
        return f"layer {number % layers}, {which}"


def model_folder(folder: Path) -> Path:
    """The folder of the model: a run of `lra convert` has one inside."""
    inside = folder / "model"
    return inside if (inside / "config.json").is_file() else folder


def is_converted(folder: Path) -> bool:
    return (model_folder(folder) / "config.json").is_file()


def open_students(folders: Sequence[Path]) -> list[Student]:
    from luna import convert
    from luna.convert.host import quiet

    with quiet():
        models = [convert.load(model_folder(folder)) for folder in folders]
    blocks = [convert.describe(model) or {} for model in models]
    labels = labels_of(
        [b["method"] for b in blocks],
        [b["options"] | {key: b[key] for key in ("layers", "stage", "seed")} for b in blocks],
    )
    labels = [
        label if labels.count(label) == 1 else f"{label} ({folder})"
        for label, folder in zip(labels, folders, strict=True)
    ]
    records = [_record(folder) for folder in folders]
    return [Student(*each) for each in zip(models, folders, labels, blocks, records, strict=True)]


def _record(folder: Path) -> Record | None:
    path = folder / "result.json"
    return read_record(path) if path.is_file() else None


def made(students: Sequence[Student]) -> str:
    """The budget of the runs that models come from; empty if no model lies in its run."""
    return budget([student.record for student in students if student.record is not None])


def budget(records: Sequence[Record]) -> str:
    """Task, model and budget of conversions, for titles, so that nobody takes a few steps for the
    paper's recipe. A slash separates values that differ."""
    facts = [_facts(record) for record in records]
    parts = [" / ".join(dict.fromkeys(each)) for each in zip(*facts, strict=True)]
    return "; ".join(parts) + " examples" if parts else ""


def _facts(record: Record) -> list[str]:
    recipe = record["settings.recipe"]
    epochs, limit = recipe["epochs"], recipe["train_examples"]
    used = record.get("train_examples") or limit  # a small task has fewer than its limit
    length = "one epoch" if recipe["stage1_steps"] is None else f"{recipe['stage1_steps']:,} steps"
    steps = f"{length} of {recipe['batch']}"
    return [
        f"{record['task']}, {record['model']}",
        f"stage 1: {steps if recipe['stage1'] else 'none'}",
        f"stage 2: {epochs or 'no'} epoch{'s' if epochs != 1 else ''}",
        "all" if limit is None else f"{min(limit, used):,}",
    ]


def labels_of(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each name with the settings in which entries of the same name differ; a setting of None is at
    its default and is left out."""
    labels = []
    for name, options in zip(names, settings, strict=True):
        same = [s for n, s in zip(names, settings, strict=True) if n == name]
        keys = dict.fromkeys(key for s in same for key in s)
        differ = [k for k in keys if len({str(s.get(k)) for s in same}) > 1]
        shown = pairs_of({k: options[k] for k in differ if options.get(k) is not None})
        labels.append(f"{name} {shown}".strip())
    return labels


def all_maps(students: Sequence[Student], teacher: Path | None, inputs: Inputs) -> list[ModelMaps]:
    """The matrices of softmax, then those of every student.

    Without the teacher's folder, softmax runs with the weights of the first student. These are the
    teacher's if the student was not finetuned; the label says whether they are.
    """
    from luna.convert import attention_maps, convert
    from luna.convert.swap import weights_hash

    maps_of_students = [attention_maps(student.model, inputs) for student in students]
    first = students[0]
    if teacher is not None:
        softmax = _plain(model_folder(teacher))
        fingerprint = weights_hash(softmax)
        for student in students:
            if student.block["teacher"] != fingerprint:
                raise UserError(
                    f"{student.folder} was not converted from {teacher}: give the teacher that it "
                    "was converted from, or leave out --teacher"
                )
        label = "softmax teacher"
        maps = attention_maps(convert(softmax, "softmax", inplace=True), inputs).teacher
    else:
        untouched = weights_hash(first.model) == first.block["teacher"]
        label = "softmax teacher" if untouched else f"softmax in the weights of {first.label}"
        maps = maps_of_students[0].teacher
    shown = [ModelMaps(label, _one(maps))]
    for student, both in zip(students, maps_of_students, strict=True):
        shown.append(ModelMaps(f"{student.label}, {student.stage}", _one(both.student)))
    if len({model.maps.shape[0] for model in shown}) > 1:
        raise UserError("these models have different numbers of layers: draw them one by one")
    return shown


def _one(maps: Sequence[Tensor]) -> Tensor:
    return torch.stack([each[0].float().cpu() for each in maps])


def _plain(folder: Path) -> Any:
    from luna.convert.host import quiet, transformers

    library = transformers()
    try:
        config = library.AutoConfig.from_pretrained(folder)
        with quiet():
            return getattr(library, config.architectures[0]).from_pretrained(folder).eval()
    except (OSError, ValueError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{folder} does not hold a softmax model: {reason}") from error


# ---------------------------------------------------------------------- inputs


def tokenizer(folder: Path) -> Any:
    from luna.convert.host import quiet, transformers

    place = _beside(folder, "tokenizer_config.json", "tokenizer")
    with quiet():
        return transformers().AutoTokenizer.from_pretrained(place)


def image_config(folder: Path) -> Any:
    """The size and normalisation of images that the model was converted with."""
    from luna.convert.tasks.pixels import CONFIG, Pixels

    return Pixels.read(str(_beside(folder, CONFIG, "image processor")))


def pixels(folder: Path, path: Path) -> Tensor:
    """(1, 3, height, width): an image file as the model in `folder` sees it."""
    from luna.convert.tasks.pixels import decode

    config = image_config(folder)
    return config.tensor([np.array(config.fitted(decode(path)))])


def _beside(folder: Path, file: str, what: str) -> Path:
    place = model_folder(folder)
    if not (place / file).is_file():
        raise UserError(f"{place} has no {file}: save the model's {what} there (save_pretrained)")
    return place


def examples(
    student: Student, texts: Sequence[str], file: Path | None, images: Sequence[Path]
) -> list[Inputs]:
    """One batch per text, line of a file of texts (a tab separates a pair) or image."""
    lines = list(texts)
    if file is not None:
        try:
            lines += [line for line in file.read_text(encoding="utf-8").splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read as lines of text: {error}") from error
    if not lines and not images:
        raise UserError(
            f"{student.folder} is a converted model, whose channels need inputs: add --text, "
            "--texts FILE or --image"
        )
    batches: list[Inputs] = [{"pixel_values": pixels(student.folder, path)} for path in images]
    if lines:
        from luna.convert.host import quiet

        encode = tokenizer(student.folder)
        with quiet():  # the model itself refuses a text that is too long
            batches += [dict(encode(*line.split("\t", 1), return_tensors="pt")) for line in lines]
    return batches
