"""Figures of converted models (luna.convert): attention of [CLS] to the words of a text beside
softmax's, and the KL divergence between teacher and student while feature maps are fitted."""

from __future__ import annotations

import math
import re
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from lra.base.config import UserError, readable
from lra.figures.style import DASHES, in_words, panels_for, save_figure, slug, styles_of, ticked
from lra.results.record import Record, read_all, read_record
from lra.runs.schema import CONVERSION

if TYPE_CHECKING:
    from pandas import DataFrame

STAGES = {"swap": "not fitted", "stage1": "stage 1", "finetuned": "finetuned"}
NUMBERS = ("stage1", "stage1_lr", "stage1_steps", "max_length", "batch", "train_examples")


class Student(NamedTuple):
    """A converted model, in evaluation mode."""

    model: Any
    folder: Path
    label: str  # the method, options in which it differs from others, and the stage
    block: dict[str, Any]  # what was converted and how: luna.convert.describe(model)
    made: str  # the budget of the run that it comes from, if it lies in its run


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
        steps, limit = recipe["stage1_steps"], recipe["train_examples"]
        length = "one epoch" if steps is None else f"{steps:,} steps of {recipe['batch']}"
        used = record.get("train_examples") or limit  # a small task has fewer than its limit
        examples = "all" if limit is None else f"{min(limit, used):,}"
        facts.append((f"{record['task']}, {record['model']}",
                      f"stage 1: {length if recipe['stage1'] else 'none'}",
                      f"epochs of stage 2: {recipe['epochs']}",
                      f"examples: {examples}"))  # fmt: skip
    return "; ".join(" / ".join(dict.fromkeys(each)) for each in zip(*facts, strict=True))


def cls_rows(
    students: Sequence[Student], teacher: Path, inputs: Mapping[str, Tensor], layer: int
) -> dict[str, Tensor]:
    """The row of [CLS], which comes first, in a layer's attention matrix (-1: the last), mean over
    heads: of the softmax teacher, then of every student."""
    from luna.convert import attention_maps, convert
    from luna.convert.host import quiet
    from luna.convert.saving import architecture
    from luna.convert.swap import weights_hash

    folder = model_folder(teacher)
    with readable(folder, "give the folder of the softmax model"), quiet():
        softmax = architecture(folder).from_pretrained(folder, trust_remote_code=False).eval()
    for student in students:
        if student.block["teacher"] != weights_hash(softmax):
            raise UserError(f"{student.folder} was not converted from {teacher}: give its teacher")
    of_teacher = attention_maps(convert(softmax, "softmax", inplace=True), inputs).teacher
    maps = {"softmax teacher": of_teacher}
    maps |= {s.label: attention_maps(s.model, inputs).student for s in students}
    for label, layers in maps.items():
        if not -1 <= layer < len(layers):
            raise UserError(f"{label} has no layer {layer}: choose from 0 to {len(layers) - 1}")
    return {label: layers[layer][0].float().cpu().mean(0)[0] for label, layers in maps.items()}


def tokenizer(folder: Path) -> Any:
    from luna.convert.host import quiet, transformers

    place = model_folder(folder)
    if not (place / "tokenizer_config.json").is_file():  # transformers would make an empty one
        raise UserError(f"{place} has no tokenizer: save the model's there (save_pretrained)")
    with quiet():
        return transformers().AutoTokenizer.from_pretrained(place, trust_remote_code=False)


def text_batches(student: Student, file: Path | None) -> list[dict[str, Tensor]]:
    """One batch per line of a file of texts; a tab separates a pair."""
    if file is None:
        where = f"{student.folder} is a converted model"
        raise UserError(f"{where}, which needs inputs: add --texts FILE")
    with readable(file, "give a file with one text per line"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    encode = tokenizer(student.folder)
    return [dict(encode(*line.split("\t", 1), return_tensors="pt")) for line in lines]


# ---------------------------------------------------------------------- words of a text


def draw_tokens(a: Namespace) -> list[Path]:
    """A row per word with the share of every model."""
    names, rows, what = cls_to_words(a.folders, a.text, a.text_pair, a.teacher, a.layer)

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        methods = [label.split(",")[0].split()[0] for label in rows]
        for (label, shares), style in zip(rows.items(), styles_of(methods), strict=True):
            line = style | {"linewidth": 0.8, "markersize": 5}
            axes.plot([100 * share for share in shares], range(len(names)), label=label, **line)
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.set_yticks(range(len(names)), names, family="monospace", parse_math=False)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of the attention, %")
        axes.grid()
        figure.legend(loc="outside lower center", ncols=3, frameon=False)

    stem, title = a.out / f"tokens-{slug(a.text)}", f"Attention of {names[0]} to words; {what}"
    return save_figure(stem, fill, title, 1.5 + 0.17 * len(names))


def cls_to_words(
    folders: Sequence[Path], text: str, pair: str | None, teacher: Path, layer: int
) -> tuple[list[str], dict[str, list[float]], str]:
    """The words of the text, the share of each in the [CLS] row of softmax and of every converted
    model (they sum to 1), and where they come from."""
    models = open_students(folders)
    tokenizers = [tokenizer(model.folder) for model in models]
    first, *others = [encode(text, pair, return_tensors="pt") for encode in tokenizers]
    if not all(torch.equal(each["input_ids"], first["input_ids"]) for each in others):
        raise UserError("these models split the text into different tokens: draw them one by one")
    words = words_of(first, (text, pair or ""))
    rows = {label: [float((row[at] / row.sum()).sum()) for _, at in words]
            for label, row in cls_rows(models, teacher, dict(first), layer).items()}  # fmt: skip
    where = f"layer {layer}" if layer >= 0 else "last layer"
    made = dict.fromkeys(model.made for model in models if model.made)
    return [word for word, _ in words], rows, "; ".join([f"{where}, mean over heads", *made])


def words_of(encoding: Any, texts: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Words as in the text, with the places of their pieces, from a fast tokenizer; a special token
    is a word of its own."""
    words: dict[Any, tuple[str, list[int]]] = {}
    for i, place in enumerate(zip(encoding.sequence_ids(0), encoding.word_ids(0), strict=True)):
        part, word = place
        if word is None:
            words[i] = encoding.tokens()[i], [i]
        else:
            text = texts[part][slice(*encoding.word_to_chars(0, word, part))]
            words.setdefault(place, (text, []))[1].append(i)
    return list(words.values())


# ---------------------------------------------------------------------- stage 1


def draw_distillation(arguments: Namespace) -> list[Path]:
    runs = [run for run in read_all(arguments.runs) if run.kind == CONVERSION and run["stage1"]]
    runs = [run for run in runs if run["stage1"]["curve"][0]["kl"]]
    if not runs:
        raise UserError("no finished conversion whose stage 1 measured a KL: give others' folders")
    methods = "-".join(dict.fromkeys(run.attention for run in runs))
    return draw_kl(runs, arguments.out / f"distillation-{methods}")


def curves(records: Sequence[Record]) -> DataFrame:
    """A row per record, layer and step. Records of one label differ in the seed only; `final` is
    the KL of a label at its last step, mean over layers and seeds."""
    import pandas as pd

    settings = [{"task": r["task"], "model": r["model"]}
                | {k: v for k, v in r["attention"].items() if k != "name"}
                | {k: v for k, v in r["settings.recipe"].items() if k in NUMBERS}
                for r in records]  # fmt: skip
    labels = labels_of([r.attention for r in records], settings)
    frame = pd.DataFrame(
        {"record": i, "method": record.attention, "label": label, "step": point["step"], "kl": kl,
         "layer": int(re.findall(r"\.(\d+)\.", layer)[0])}
        for i, (record, label) in enumerate(zip(records, labels, strict=True))
        for point in record["stage1"]["curve"]
        for layer, kl in point["kl"].items()
    )  # fmt: skip
    ends = frame.sort_values("step").groupby(["label", "record", "layer"]).kl.last()
    return frame.assign(final=frame.label.map(ends.groupby("label").mean()))


def draw_kl(records: Sequence[Record], stem: Path) -> list[Path]:
    """One panel per layer, all on one scale."""
    from luna.convert.train import KL_WARNING

    frame = curves(records)
    lines = frame.groupby("label", sort=False).method.first()
    dashes = lines.groupby(lines).cumcount() % len(DASHES)  # lines of one method differ in dashes
    layers = sorted(frame.layer.unique())
    columns = min(len(layers), 3)

    def fill(figure: Any) -> None:
        panels = panels_for(figure, len(layers), columns, sharex=True, sharey=True)
        for axes, number in zip(panels.flat, layers, strict=False):
            for label, style, i in zip(lines.index, styles_of(list(lines)), dashes, strict=True):
                line = frame[(frame.layer == number) & (frame.label == label)]
                kl = line.groupby("step").kl.agg(["mean", "min", "max"])
                name = f"{label}: {line.final.max():.3f}"
                axes.plot(kl["mean"], label=name, **style, markersize=3.5, linestyle=DASHES[i])
                axes.fill_between(kl.index, kl["min"], kl["max"], color=style["color"], alpha=0.15)
            axes.axhline(KL_WARNING, color="0.5", lw=0.8, ls=":")
            axes.set_title(f"layer {number}")
            axes.grid(which="both")
        panels[0, 0].set_yscale("log")
        ticked(panels[0, 0].yaxis)
        explained, legend = panels[0, 0].get_legend_handles_labels(), "outside lower center"
        heads = "step of stage 1; mean KL at the end:"
        figure.legend(*explained, loc=legend, ncols=3, frameon=False, title=heads)
        figure.supylabel("KL(teacher || student), mean over rows", fontsize=9)

    seeds = "mean and range of the seeds" if len(records) > len(lines) else "one seed"
    title = f"{budget(records)}\n{seeds}; dotted: a conversion that ends above {KL_WARNING} warns"
    return save_figure(stem, fill, title, 1.9 * math.ceil(len(layers) / columns) + 1.5)
