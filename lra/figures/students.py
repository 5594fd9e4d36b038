"""Converted models (luna.convert) from their folders, and their attention beside softmax's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lra.base.config import UserError, readable
from lra.figures.style import in_words
from lra.results.record import Record, read_record

STAGES = {"swap": "not fitted", "stage1": "stage 1", "finetuned": "finetuned"}


class Student(NamedTuple):
    """A converted model, in evaluation mode."""

    model: Any
    folder: Path
    label: str  # the method, options in which it differs from others, and the stage
    block: dict[str, Any]  # what was converted and how: luna.convert.describe(model)
    made: str  # the budget of the run that it comes from, if it lies in its run


class ModelMaps(NamedTuple):
    """The attention matrices of one model on one example."""

    label: str
    maps: Tensor  # (layers, H, n, n)

    def cls_row(self, layer: int) -> Tensor:
        """The row of [CLS], which comes first, in a layer (-1: the last), mean over heads."""
        if not -1 <= layer < len(self.maps):
            last = len(self.maps) - 1
            raise UserError(f"{self.label} has no layer {layer}: choose from 0 to {last}")
        return self.maps[layer].mean(0)[0]


def model_folder(folder: Path) -> Path:
    """The folder of the model: a run of `lra convert` has one inside."""
    inside = folder / "model"
    return inside if (inside / "config.json").is_file() else folder


def open_students(folders: Sequence[Path]) -> list[Student]:
    from luna import convert
    from luna.convert.host import quiet

    with quiet():
        models = [convert.load(model_folder(folder)) for folder in folders]
    blocks = [convert.describe(model) or {} for model in models]
    settings = [b["options"] | {key: b[key] for key in ("layers", "seed")} for b in blocks]
    labels = labels_of([f"{b['method']}, {STAGES[b['stage']]}" for b in blocks], settings)
    labels = [label if labels.count(label) == 1 else f"{label} ({folder})"
              for label, folder in zip(labels, folders, strict=True)]  # fmt: skip
    results = [folder / "result.json" for folder in folders]
    records = [read_record(path) if path.is_file() else None for path in results]
    made = [budget([record]) if record else "" for record in records]
    return [Student(*each) for each in zip(models, folders, labels, blocks, made, strict=True)]


def labels_of(names: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Each name with the settings in which entries of the same name differ; a setting of None is at
    its default and is left out."""
    labels = []
    for name, options in zip(names, settings, strict=True):
        same = [s for n, s in zip(names, settings, strict=True) if n == name]
        differ = {k: v for k, v in options.items()
                  if v is not None and len({str(s.get(k)) for s in same}) > 1}  # fmt: skip
        labels.append(", ".join(filter(None, (name, in_words(differ)))))
    return labels


def budget(records: Sequence[Record]) -> str:
    """Task, model and budget of conversions, so that nobody takes a few steps for the paper's
    recipe. A slash separates values that differ."""
    facts = []
    for record in records:
        recipe = record["settings.recipe"]
        steps, batch, limit = (recipe[k] for k in ("stage1_steps", "batch", "train_examples"))
        length = "one epoch" if steps is None else f"{steps:,} steps of {batch}"
        used = record.get("train_examples") or limit  # a small task has fewer than its limit
        facts.append((
            f"{record['task']}, {record['model']}",
            f"stage 1: {length if recipe['stage1'] else 'none'}",
            f"epochs of stage 2: {recipe['epochs']}",
            f"examples: {'all' if limit is None else f'{min(limit, used):,}'}",
        ))  # fmt: skip
    return "; ".join(" / ".join(dict.fromkeys(each)) for each in zip(*facts, strict=True))


def all_maps(
    students: Sequence[Student], teacher: Path, inputs: Mapping[str, Tensor]
) -> list[ModelMaps]:
    """The matrices of the softmax teacher, then those of every student."""
    from luna.convert import attention_maps, convert
    from luna.convert.host import quiet
    from luna.convert.saving import architecture
    from luna.convert.swap import weights_hash

    folder = model_folder(teacher)
    with readable(folder, "give the folder of the softmax model"), quiet():
        softmax = architecture(folder).from_pretrained(folder).eval()
    for student in students:
        if student.block["teacher"] != weights_hash(softmax):
            raise UserError(f"{student.folder} was not converted from {teacher}: give its teacher")
    of_teacher = attention_maps(convert(softmax, "softmax", inplace=True), inputs).teacher
    of_students = [attention_maps(student.model, inputs).student for student in students]
    labels, maps = ["softmax teacher", *(s.label for s in students)], [of_teacher, *of_students]
    if len({len(layers) for layers in maps}) > 1:
        raise UserError("these models have different numbers of layers: draw them one by one")
    stacked = [torch.stack([each[0].float().cpu() for each in layers]) for layers in maps]
    return [ModelMaps(*each) for each in zip(labels, stacked, strict=True)]


def tokenizer(folder: Path) -> Any:
    from luna.convert.host import quiet, transformers

    place = model_folder(folder)
    if not (place / "tokenizer_config.json").is_file():  # transformers would make an empty one
        raise UserError(f"{place} has no tokenizer: save the model's there (save_pretrained)")
    with quiet():
        return transformers().AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def pixels(folder: Path, path: Path) -> tuple[Tensor, np.ndarray]:
    """An image file as the model in `folder` sees it: (1, 3, height, width), and (height, width, 3)
    in 0..1 for the eye."""
    from luna.convert.tasks.pixels import Pixels, decode

    place = model_folder(folder)
    with readable(place, "save the model's image processor there (save_pretrained)"):
        config = Pixels.read(str(place))
    fitted = np.array(config.fitted(decode(path)))
    return config.tensor([fitted]), fitted / 255


def text_batches(student: Student, file: Path | None) -> list[dict[str, Tensor]]:
    """One batch per line of a file of texts; a tab separates a pair."""
    if file is None:
        where = f"{student.folder} is a converted model"
        raise UserError(f"{where}, which needs inputs: add --texts FILE")
    with readable(file, "give a file with one text per line"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    encode = tokenizer(student.folder)
    return [dict(encode(*line.split("\t", 1), return_tensors="pt")) for line in lines]
