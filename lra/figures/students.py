"""Attention of [CLS] to the words of a text, in converted models (luna.convert) and in softmax."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from lra.base.errors import UserError, readable
from lra.figures.style import OTHERS, dashed, save_figure, style_of
from lra.results.record import Record, read_record

STAGES = {"swap": "not fitted", "stage1": "stage 1", "finetuned": "finetuned"}


class Student(NamedTuple):
    """A converted model, in evaluation mode."""

    model: Any
    folder: Path
    label: str  # the method, its stage, and the folder's name if others have the same
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
    names = [f"{block['method']}, {STAGES[block['stage']]}" for block in blocks]
    labels = [
        name if names.count(name) == 1 else f"{name}, {folder.name}"
        for name, folder in zip(names, folders, strict=True)
    ]
    results = [folder / "result.json" for folder in folders]
    made = [budget(read_record(path)) if path.is_file() else "" for path in results]
    return [Student(*each) for each in zip(models, folders, labels, blocks, made, strict=True)]


def budget(record: Record | None) -> str:
    """Say task, model and budget of a conversion, so that nobody takes a few steps for the paper's
    recipe."""
    if record is None:  # not finished
        return ""
    recipe = record["settings.recipe"]
    steps, limit = recipe["stage1_steps"], recipe["train_examples"]
    length = "one epoch" if steps is None else f"{steps:,} steps of {recipe['batch']}"
    used = record.get("train_examples") or limit  # a small task has fewer than its limit
    return (
        f"{record['task']}, {record['model']}; stage 1: {length if recipe['stage1'] else 'none'}; "
        f"epochs of stage 2: {recipe['epochs']}; examples: {min(limit, used) if limit else 'all'}"
    )


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
        raise UserError(f"{student.folder} is a converted model: add --texts FILE")
    with readable(file, "give a file with one text per line"):
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    encode = tokenizer(student.folder)
    return [dict(encode(*line.split("\t", 1), return_tensors="pt")) for line in lines]


# ---------------------------------------------------------------------- words of a text


def draw_tokens(a: Namespace) -> list[Path]:
    """A row per word with the share of every model."""
    students = open_students(a.folders)
    words, rows = cls_to_words(students, a.text, a.text_pair, a.teacher)
    made = dict.fromkeys(student.made for student in students if student.made)
    methods = [label.split(",")[0].split()[0] for label in rows]
    title = "; ".join([f"Attention of {words[0]} to words; last layer, mean over heads", *made])

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        styles = dashed([style_of(method) for method in methods])
        for (label, shares), style in zip(rows.items(), styles, strict=True):
            line = (style or {"color": OTHERS}) | {"linewidth": 0.8, "markersize": 5}
            axes.plot([100 * share for share in shares], range(len(words)), label=label, **line)
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.set_yticks(range(len(words)), words, family="monospace", parse_math=False)
        axes.set(ylim=(len(words) - 0.5, -0.5), xlabel="share of the attention, %")
        axes.grid()
        figure.legend(loc="outside lower center", ncols=3, frameon=False)

    stem = a.out / f"tokens-{'-'.join(dict.fromkeys(methods[1:]))}"
    return save_figure(stem, fill, title, 1.5 + 0.17 * len(words))


def cls_to_words(
    students: Sequence[Student], text: str, pair: str | None, teacher: Path
) -> tuple[list[str], dict[str, list[float]]]:
    """The words of the text, and the share of each in the row of [CLS], which comes first, of the
    last layer (mean over heads): of the softmax teacher, then of every student."""
    from luna.convert import attention_maps, convert
    from luna.convert.host import quiet
    from luna.convert.host_config import config_of
    from luna.convert.saving import architecture
    from luna.convert.swap import weights_hash

    folder = model_folder(teacher)
    with readable(folder, "give the folder of the softmax model"), quiet():
        softmax = architecture(folder).from_pretrained(
            folder, config=config_of(folder), trust_remote_code=False
        )
    softmax.eval()
    for student in students:
        if student.block["teacher"] != weights_hash(softmax):
            raise UserError(f"{student.folder} was not converted from {teacher}: give its teacher")
    inputs = tokenizer(students[0].folder)(text, pair, return_tensors="pt")
    words = words_of(inputs, (text, pair or ""))
    of_teacher = attention_maps(convert(softmax, "softmax", inplace=True), dict(inputs)).teacher
    maps = {"softmax teacher": of_teacher}
    maps |= {s.label: attention_maps(s.model, dict(inputs)).student for s in students}
    cls = {label: layers[-1][0].float().mean(0)[0] for label, layers in maps.items()}
    rows = {
        label: [float((row[at] / row.sum()).sum()) for _, at in words] for label, row in cls.items()
    }
    return [word for word, _ in words], rows


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
