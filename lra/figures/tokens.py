"""Where [CLS] looks in a text: its row of the attention map as shaded words, softmax beside the
converted models."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lra.config import UserError
from lra.figures import students, tokens_page
from lra.figures.draw import save_figure
from lra.figures.students import Panel, Student

TINT, NEGATIVE = "#f0a04b", "#7db7f5"  # dark letters are readable on both
COLUMNS = 88  # characters a line of the picture
LEADING = 0.23  # inches from line to line
HEAD = 0.6  # inches above the first model
# A letter of DejaVu Sans Mono is 0.602 of its size wide; 11 pixels at 140 dpi, because hinting
# rounds it to whole pixels and the words' backgrounds must fit.
ADVANCE = 11 / 140
POINTS = ADVANCE * 72 / 0.602


@dataclasses.dataclass(frozen=True)
class Word:
    """What the tokenizer took for a word, as it stands in the text, and its pieces' positions."""

    text: str
    before: str  # what stands between the word before and this one
    at: list[int]
    special: bool = False
    second: bool = False  # of the second text of a pair


@dataclasses.dataclass(frozen=True)
class Shaded:
    """One model's row: a share for every word, 1 in all (unless the model gave no weight)."""

    label: str
    shares: list[float]
    top: float  # the largest of a word that is not special: drawn at full strength

    def strength(self, i: int) -> float:
        """-1 to 1."""
        return max(-1.0, min(1.0, self.shares[i] / self.top)) if self.top > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Tokens:
    words: list[Word]
    rows: list[Shaded]
    what: str  # which layer and head
    made: str = ""  # of what runs


def cls_to_tokens(
    folders: Sequence[Path],
    text: str,
    text_pair: str | None = None,
    *,
    teacher: Path | None = None,
    layer: int = -1,
    head: int | None = None,
) -> Tokens:
    """The [CLS] row of the softmax teacher and of every converted model; mean over heads unless
    one is named."""
    models = students.open_students(folders)
    words, batch = encode(models, text, text_pair)
    panels = students.panels(models, teacher, batch)
    rows = [shade(panel, words, layer, head) for panel in panels]
    return Tokens(words, rows, panels[0].named(layer, head), students.made(models))


def encode(
    models: Sequence[Student], text: str, text_pair: str | None
) -> tuple[list[Word], dict[str, Tensor]]:
    from luna.convert.host import quiet

    encoded = []
    for model in models:
        tokenizer = students.tokenizer(model.folder)
        if not tokenizer.is_fast:
            raise UserError(f"the tokenizer of {model.folder} does not say where its pieces stand")
        with quiet():  # a text that is too long is the model's to refuse
            found = tokenizer(text, text_pair, return_tensors="pt", return_offsets_mapping=True)
        encoded.append(found)
        if not torch.equal(found["input_ids"][0], encoded[0]["input_ids"][0]):
            raise UserError(
                f"{model.folder} and {models[0].folder} take this text for different tokens: "
                "draw them one by one"
            )
    first = encoded[0]
    tokens = tokenizer.convert_ids_to_tokens(first["input_ids"][0])
    spans = first.pop("offset_mapping")[0].tolist()
    words = merge(tokens, spans, first.word_ids(0), first.sequence_ids(0), (text, text_pair or ""))
    return words, dict(first)


def merge(
    tokens: Sequence[str],
    spans: Sequence[Sequence[int]],
    word_ids: Sequence[int | None],
    sequence_ids: Sequence[int | None],
    texts: Sequence[str],
) -> list[Word]:
    """Pieces of one word together, spelt as in the text; special tokens by themselves."""
    words: list[Word] = []
    last: tuple[int, int] | None = None
    end = 0
    for i, (word, part) in enumerate(zip(word_ids, sequence_ids, strict=True)):
        if word is None or part is None:
            after = bool(words) and words[-1].second
            words.append(Word(tokens[i], " ", [i], special=True, second=after))
            last = None
            continue
        start, stop = spans[i]
        if (part, word) == last:
            old = words[-1]
            grown = old.text + texts[part][end:stop]
            words[-1] = dataclasses.replace(old, text=grown, at=[*old.at, i])
        else:
            before = " " if last is None else texts[part][end:start]
            words.append(Word(texts[part][start:stop], before, [i], second=part > 0))
        last, end = (part, word), stop
    return words


def shade(panel: Panel, words: Sequence[Word], layer: int, head: int | None) -> Shaded:
    row = panel.layer(layer, head)[0]  # [CLS] comes first
    total = float(row.sum())
    row = row / total if total > 0 else row
    shares = [float(row[word.at].sum()) for word in words]
    plain = [abs(s) for s, word in zip(shares, words, strict=True) if not word.special]
    return Shaded(panel.label, shares, max(plain, default=0.0))


def draw(tokens: Tokens, stem: Path) -> list[Path]:
    """The page, and the same as PNG and SVG."""
    title = f"{tokens.words[0].text} over words"
    lines = wrap(tokens.words)
    each = 0.79 + lines[-1][0] * LEADING
    size = (COLUMNS * ADVANCE + 0.6, HEAD + each * len(tokens.rows))
    paths = save_figure(stem, lambda f: _fill(f, tokens, title, lines, size), size=size)
    page = stem.with_name(f"{stem.name}.html")
    page.write_text(tokens_page.page(tokens, title), encoding="utf-8")
    return [page, *paths]


def wrap(words: Sequence[Word]) -> list[tuple[int, int]]:
    """Line and column of every word. Lines break at spaces, and before the second text of a pair;
    what is longer than a line breaks where a word ends."""
    places: list[tuple[int, int]] = []
    line, column, second = 0, 0, False
    for i, word in enumerate(words):
        gap = 1 if word.before and column else 0
        needed = gap + (_unbroken(words, i) if word.before else 0)
        if word.second != second or column + max(needed, width(word.text)) > COLUMNS:
            line, column, gap, second = line + (column > 0), 0, 0, word.second
        places.append((line, column + gap))
        column += gap + width(word.text)
    return places


def _unbroken(words: Sequence[Word], i: int) -> int:
    """From word i to the next space; of something longer than a line, the word alone."""
    end = next((j for j in range(i + 1, len(words)) if words[j].before), len(words))
    whole = sum(width(word.text) for word in words[i:end])
    return whole if whole <= COLUMNS else width(words[i].text)


def width(text: str) -> int:
    """In letters of a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fill(
    figure: Any, tokens: Tokens, title: str, lines: list[tuple[int, int]], size: tuple[float, float]
) -> None:
    """In inches from the upper left corner: letters and their background must meet."""
    from matplotlib.patches import Rectangle

    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.3, size[0] - 0.3), ylim=(size[1], 0))
    axes.axis("off")

    def write(x: float, y: float, text: str, **more: Any) -> None:
        axes.text(x, y, text, va="center", parse_math=False, **more)  # a $ is a $

    write(0, 0.22, f"{title}; {tokens.what}", fontsize=9, color="0.3")
    write(0, 0.41, tokens.made, fontsize=8, color="0.45")
    y = HEAD + 0.25
    for row in tokens.rows:
        write(0, y, row.label, fontsize=10, fontweight="bold")
        write(size[0] - 0.6, y, told(tokens.words, row), fontsize=8, color="0.4", ha="right")
        y += 0.28
        for i, (word, (line, column)) in enumerate(zip(tokens.words, lines, strict=True)):
            x, middle, strength = column * ADVANCE, y + line * LEADING, row.strength(i)
            colour = TINT if strength > 0 else NEGATIVE
            box = (x, middle - 0.11), width(word.text) * ADVANCE, 0.22
            axes.add_patch(Rectangle(*box, color=colour, alpha=abs(strength), lw=0))
            ink = "0.25" if word.special else "k"
            write(x, middle, word.text, fontsize=POINTS, family="monospace", color=ink)
        y += lines[-1][0] * LEADING + 0.51


def told(words: Sequence[Word], row: Shaded) -> str:
    """What the shading leaves out: its scale, and what special tokens take."""
    if row.top == 0:
        return "no weight on any word"
    special = sum(s for s, word in zip(row.shares, words, strict=True) if word.special)
    return f"strongest word {100 * row.top:.1f} %; special tokens {100 * special:.0f} %"
