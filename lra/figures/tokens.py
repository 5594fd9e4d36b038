"""Attention of [CLS] to the words of a text in softmax and in converted models: a picture of
shares, and a page of coloured words without scripts (tokens.html)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lra.base.config import UserError
from lra.figures import students
from lra.figures.draw import WIDTH, save_figure, slug
from lra.figures.style import styles_of


class Word(NamedTuple):
    """A word of the tokenizer, spelt as in the text."""

    text: str
    before: str  # the text between the word before and this one
    at: list[int]  # positions of its pieces
    special: bool = False
    second: bool = False  # of the second text of a pair


class ShadedText(NamedTuple):
    words: list[Word]
    rows: dict[str, list[float]]  # by model: the share of every word; they sum to 1
    what: str  # layer, and the runs that the models come from

    @property
    def top(self) -> float:
        """The largest share of a word in any model: the full strength of a colour."""
        plain = [i for i, word in enumerate(self.words) if not word.special]
        return max(abs(row[i]) for row in self.rows.values() for i in plain)

    def strength(self, share: float) -> float:
        """Strength of a word's colour, from -1 to 1."""
        return max(-1.0, min(1.0, share / self.top)) if self.top else 0.0


def draw(arguments: Namespace) -> list[Path]:
    a = arguments
    text = cls_to_words(a.folders, a.text, a.text_pair, a.teacher, a.layer)
    return draw_tokens(text, a.out / f"tokens-{slug(a.text)}")


def cls_to_words(
    folders: Sequence[Path], text: str, pair: str | None, teacher: Path, layer: int
) -> ShadedText:
    """The [CLS] row of softmax and of every converted model, mean over heads."""
    models = students.open_students(folders)
    tokenizers = [students.tokenizer(model.folder) for model in models]
    first, *others = [encode(text, pair, return_tensors="pt") for encode in tokenizers]
    if not all(torch.equal(each["input_ids"], first["input_ids"]) for each in others):
        raise UserError("these models split the text into different tokens: draw them one by one")
    words, rows = words_of(first, (text, pair or "")), {}
    for model in students.all_maps(models, teacher, dict(first)):
        row = model.cls_row(layer)
        rows[model.label] = [float((row[word.at] / row.sum()).sum()) for word in words]
    where = f"layer {layer}" if layer >= 0 else "last layer"
    made = dict.fromkeys(model.made for model in models if model.made)
    return ShadedText(words, rows, "; ".join([f"{where}, mean over heads", *made]))


def words_of(encoding: Any, texts: Sequence[str]) -> list[Word]:
    """Words from the pieces of a fast tokenizer; a special token is a word of its own."""
    words: list[Word] = []
    last, end = None, 0
    places = zip(encoding.sequence_ids(0), encoding.word_ids(0), strict=True)
    for i, (part, word) in enumerate(places):
        if word is None:
            second = bool(words) and words[-1].second
            words.append(Word(encoding.tokens()[i], " ", [i], special=True, second=second))
            last = None
        elif (part, word) == last:
            words[-1].at.append(i)
        else:
            start, stop = encoding.word_to_chars(0, word, part)
            before = texts[part][end:start] if last else " "
            words.append(Word(texts[part][start:stop], before, [i], second=part > 0))
            last, end = (part, word), stop
    return words


def page(text: ShadedText) -> str:
    from jinja2 import Environment, PackageLoader

    pages = Environment(loader=PackageLoader("lra", "figures"), autoescape=True)
    parts = [[(i, word) for i, word in enumerate(text.words) if word.second is second]
             for second in (False, True)]  # fmt: skip
    return pages.get_template("tokens.html").render(text=text, parts=[p for p in parts if p])


def draw_tokens(text: ShadedText, stem: Path) -> list[Path]:
    """A row per word with the share of every model; and the page."""
    places, names = range(len(text.words)), [word.text for word in text.words]

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        methods = [label.split(",")[0].split()[0] for label in text.rows]
        for (label, shares), style in zip(text.rows.items(), styles_of(methods), strict=True):
            line = style | {"linewidth": 0.8, "markersize": 5}
            axes.plot([100 * share for share in shares], places, label=label, **line)
        axes.axvline(0, color="0.5", linewidth=0.8)
        axes.set_yticks(places, names, family="monospace", parse_math=False)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlabel="share of the attention, %")
        axes.grid()
        figure.legend(loc="outside lower center", ncols=3, frameon=False)

    title = f"Attention of {names[0]} to words; {text.what}"
    paths = save_figure(stem, fill, size=(WIDTH, 1.5 + 0.17 * len(names)), title=title)
    file = stem.with_name(f"{stem.name}.html")
    file.write_text(page(text), encoding="utf-8")
    return [file, *paths]
