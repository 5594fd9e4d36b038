"""Attention of [CLS] to the words of a text: its row of the attention matrix as coloured words, in
softmax and in converted models. One picture, and one page without scripts (tokens.html)."""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

import torch
from torch import Tensor

from lra.base.config import UserError
from lra.figures import students
from lra.figures.draw import save_figure
from lra.figures.students import ModelMaps, Student

TEMPLATE = Path(__file__).with_name("tokens.html")
TINT, NEGATIVE = "#f0a04b", "#7db7f5"  # dark letters are readable on both
COLUMNS = 88  # characters per line of the picture
LEADING = 0.23  # inches from line to line
HEAD = 0.6  # inches above the first model
# Width of a letter, 0.602 of the size of DejaVu Sans Mono: 11 pixels at 140 dpi, because hinting
# rounds it to whole pixels and the backgrounds of words must fit.
ADVANCE = 11 / 140
POINTS = ADVANCE * 72 / 0.602


@dataclasses.dataclass(frozen=True)
class Word:
    """A word of the tokenizer, spelt as in the text."""

    text: str
    before: str  # the text between the word before and this one
    at: list[int]  # positions of its pieces
    special: bool = False
    second: bool = False  # of the second text of a pair


@dataclasses.dataclass(frozen=True)
class WordShares:
    """Attention of one model: the share of every word. They sum to 1, unless all are 0."""

    label: str
    shares: list[float]
    top: float  # the largest share of a word that is not special, drawn at full strength

    def strength(self, i: int) -> float:
        """Strength of a word's colour, from -1 to 1."""
        return max(-1.0, min(1.0, self.shares[i] / self.top)) if self.top > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class ShadedText:
    words: list[Word]
    rows: list[WordShares]
    what: str  # layer and head
    made: str = ""  # the runs that the models come from

    @property
    def title(self) -> str:
        return f"Attention of {self.words[0].text} to words"


def cls_to_words(
    folders: Sequence[Path],
    text: str,
    text_pair: str | None = None,
    *,
    teacher: Path | None = None,
    layer: int = -1,
    head: int | None = None,
) -> ShadedText:
    """The [CLS] row of softmax and of every converted model: one head, or the mean over heads."""
    models = students.open_students(folders)
    words, batch = encode(models, text, text_pair)
    maps = students.all_maps(models, teacher, batch)
    rows = [shade(model, words, layer, head) for model in maps]
    return ShadedText(words, rows, maps[0].named(layer, head), students.made(models))


def encode(
    models: Sequence[Student], text: str, text_pair: str | None
) -> tuple[list[Word], dict[str, Tensor]]:
    from luna.convert.host import quiet

    encoded = []
    for model in models:
        tokenizer = students.tokenizer(model.folder)
        if not tokenizer.is_fast:
            raise UserError(
                f"{model.folder} needs a fast tokenizer, which knows the place of every piece: "
                "save one there (save_pretrained)"
            )
        with quiet():  # the model itself refuses a text that is too long
            encoding = tokenizer(text, text_pair, return_tensors="pt", return_offsets_mapping=True)
        encoded.append(encoding)
        if not torch.equal(encoding["input_ids"][0], encoded[0]["input_ids"][0]):
            raise UserError(
                f"{model.folder} and {models[0].folder} split this text into different tokens: "
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
    """Words from the pieces of a tokenizer; a special token is a word of its own."""
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


def shade(maps: ModelMaps, words: Sequence[Word], layer: int, head: int | None) -> WordShares:
    row = maps.layer(layer, head)[0]  # [CLS] comes first
    total = float(row.sum())
    row = row / total if total > 0 else row
    shares = [float(row[word.at].sum()) for word in words]
    plain = [abs(s) for s, word in zip(shares, words, strict=True) if not word.special]
    return WordShares(maps.label, shares, max(plain, default=0.0))


def draw_tokens(text: ShadedText, stem: Path) -> list[Path]:
    lines = wrap(text.words)
    each = 0.79 + lines[-1][0] * LEADING
    size = (COLUMNS * ADVANCE + 0.6, HEAD + each * len(text.rows))
    paths = save_figure(stem, lambda f: _fill(f, text, lines, size), size=size)
    file = stem.with_name(f"{stem.name}.html")
    file.write_text(page(text), encoding="utf-8")
    return [file, *paths]


def _scale(words: Sequence[Word], row: WordShares) -> str:
    """Describe what colours do not show: their scale, and the share of the special tokens."""
    if row.top == 0:
        return "no weight on any word"
    special = sum(s for s, word in zip(row.shares, words, strict=True) if word.special)
    return f"strongest word {100 * row.top:.1f} %; special tokens {100 * special:.0f} %"


# ---------------------------------------------------------------------- the page


def page(text: ShadedText) -> str:
    lines = []
    for i, word in enumerate(text.words):
        cells = "".join(f"<td>{100 * row.shares[i]:.1f}</td>" for row in text.rows)
        lines.append(f"<tr><th>{escape(word.text)}</th>{cells}</tr>")
    what = f"Row of the first token in the attention matrix; {text.what}"
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(
        title=escape(text.title),
        what="<br>".join(map(escape, filter(None, (what, text.made)))),
        sections="\n".join(_section(text.words, row) for row in text.rows),
        heads="".join(f"<th>{escape(row.label)}</th>" for row in text.rows),
        table="\n".join(lines),
    )


def _section(words: Sequence[Word], row: WordShares) -> str:
    paragraphs: dict[bool, list[str]] = {}
    for i, word in enumerate(words):
        gap = " " if word.before else ""
        paragraphs.setdefault(word.second, []).append(gap + _span(word, row, i))
    text = "\n".join(f'<p class="text">{"".join(p).strip()}</p>' for p in paragraphs.values())
    facts = escape(_scale(words, row))
    return f'<section><h2>{escape(row.label)}</h2><p class="soft">{facts}</p>\n{text}</section>'


def _span(word: Word, row: WordShares, i: int) -> str:
    strength, share = row.strength(i), f"{100 * row.shares[i]:.1f} %"
    kinds = [k for k, on in (("special", word.special), ("less", strength < 0)) if on]
    named = f' class="{" ".join(kinds)}"' if kinds else ""
    style = f'style="--s:{100 * abs(strength):.0f}%" title="{share}"'
    return f"<span{named} {style}>{escape(word.text)}</span>"


# ---------------------------------------------------------------------- the picture


def wrap(words: Sequence[Word]) -> list[tuple[int, int]]:
    """Line and column of every word. A line ends where the next word does not fit, and before the
    second text of a pair."""
    places: list[tuple[int, int]] = []
    line, column, second = 0, 0, False
    for word in words:
        gap = 1 if word.before and column else 0
        if word.second != second or column + gap + width(word.text) > COLUMNS:
            line, column, gap, second = line + (column > 0), 0, 0, word.second
        places.append((line, column + gap))
        column += gap + width(word.text)
    return places


def width(text: str) -> int:
    """Width in letters of a monospaced font."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def _fill(
    figure: Any, text: ShadedText, lines: list[tuple[int, int]], size: tuple[float, float]
) -> None:
    """Coordinates are inches from the upper left corner, so that letters fit their background."""
    from matplotlib.patches import Rectangle

    figure.set_layout_engine("none")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-0.3, size[0] - 0.3), ylim=(size[1], 0))
    axes.axis("off")

    def write(x: float, y: float, words: str, **more: Any) -> None:
        axes.text(x, y, words, va="center", parse_math=False, **more)

    write(0, 0.22, f"{text.title}; {text.what}", fontsize=9, color="0.3")
    write(0, 0.41, text.made, fontsize=8, color="0.45")
    y = HEAD + 0.25
    for row in text.rows:
        write(0, y, row.label, fontsize=10, fontweight="bold")
        write(size[0] - 0.6, y, _scale(text.words, row), fontsize=8, color="0.4", ha="right")
        y += 0.28
        for i, (word, (line, column)) in enumerate(zip(text.words, lines, strict=True)):
            x, middle, strength = column * ADVANCE, y + line * LEADING, row.strength(i)
            colour = TINT if strength > 0 else NEGATIVE
            box = (x, middle - 0.11), width(word.text) * ADVANCE, 0.22
            axes.add_patch(Rectangle(*box, color=colour, alpha=abs(strength), lw=0))
            ink = "0.25" if word.special else "k"
            write(x, middle, word.text, fontsize=POINTS, family="monospace", color=ink)
        y += lines[-1][0] * LEADING + 0.51
