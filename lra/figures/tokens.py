"""Attention of [CLS] to the words of a text: its row of the attention matrix as coloured words, in
softmax and in converted models. One picture, and one page without scripts (tokens.html)."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lra.base.config import UserError
from lra.figures import students
from lra.figures.draw import save_figure, slug
from lra.figures.students import Student

TINT, NEGATIVE = "#f0a04b", "#7db7f5"  # dark letters are readable on both
COLUMNS, LEADING = 88, 0.23  # letters per line; inches from line to line
ADVANCE = 0.08  # inches of a letter, whose width is 0.602 of its size: whole pixels at 200 dpi
POINTS = ADVANCE * 72 / 0.602


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
    words, batch = encode(models, text, pair)
    rows = {}
    for model in students.all_maps(models, teacher, batch):
        row = model.cls_row(layer)
        rows[model.label] = [float((row[word.at] / row.sum()).sum()) for word in words]
    where = f"layer {layer}" if layer >= 0 else "last layer"
    made = dict.fromkeys(model.made for model in models if model.made)
    return ShadedText(words, rows, "; ".join([f"{where}, mean over heads", *made]))


def encode(
    models: Sequence[Student], text: str, pair: str | None
) -> tuple[list[Word], dict[str, Tensor]]:
    from luna.convert.host import quiet

    tokenizers = [students.tokenizer(model.folder) for model in models]
    with quiet():  # the model itself refuses a text that is too long
        encodings = [tokenizer(text, pair, return_tensors="pt") for tokenizer in tokenizers]
    first, *others = encodings
    if not all(torch.equal(each["input_ids"], first["input_ids"]) for each in others):
        raise UserError("these models split the text into different tokens: draw them one by one")
    return words_of(first, (text, pair or "")), dict(first)


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


def wrap(words: Sequence[Word]) -> list[tuple[int, int]]:
    """Line and column of every word. A line ends where the next word does not fit, and before the
    second text of a pair."""
    places: list[tuple[int, int]] = []
    line, column, second = 0, 0, False
    for word in words:
        gap = 1 if word.before and column else 0
        if word.second != second or column + gap + len(word.text) > COLUMNS:
            line, column, gap, second = line + (column > 0), 0, 0, word.second
        places.append((line, column + gap))
        column += gap + len(word.text)
    return places


def draw_tokens(text: ShadedText, stem: Path) -> list[Path]:
    """A block per model, and the page."""
    lines = wrap(text.words)
    each = 0.7 + lines[-1][0] * LEADING
    width, height = COLUMNS * ADVANCE + 0.4, 0.7 + each * len(text.rows)

    def fill(figure: Any) -> None:
        figure.set_layout_engine("none")
        # in inches from the upper left corner, so that letters fit their background
        axes = figure.add_axes((0, 0, 1, 1), xlim=(-0.1, width - 0.1), ylim=(height, 0))
        axes.axis("off")
        for number, (label, shares) in enumerate(text.rows.items()):
            y = 0.75 + each * number
            axes.text(0, y, label, va="center", fontweight="bold", parse_math=False)
            for word, share, (line, column) in zip(text.words, shares, lines, strict=True):
                x, middle, strength = (
                    column * ADVANCE,
                    y + 0.26 + line * LEADING,
                    text.strength(share),
                )
                box = {"xy": (x, middle - 0.11), "width": len(word.text) * ADVANCE, "height": 0.22}
                colour = TINT if strength > 0 else NEGATIVE
                axes.add_patch(Rectangle(**box, color=colour, alpha=abs(strength), lw=0))
                axes.text(x, middle, word.text, va="center", fontsize=POINTS, family="monospace",
                          color="0.35" if word.special else "k", parse_math=False)  # fmt: skip

    from matplotlib.patches import Rectangle

    title = f"Attention of {text.words[0].text} to words; strongest: {100 * text.top:.1f} %"
    paths = save_figure(stem, fill, size=(width, height), title=f"{title}\n{text.what}")
    file = stem.with_name(f"{stem.name}.html")
    file.write_text(page(text), encoding="utf-8")
    return [file, *paths]
