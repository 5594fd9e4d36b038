"""Pictures of examples: each answer is worked out again from the boxes and pixels shown."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from lra.data.registry import lra_tasks

pytest.importorskip("matplotlib")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lra.figures.schemes import BAND, DARK

from ..lra.pages import ROOT

REACH = {32: 0, 128: 1}  # pixels on each side that a gap between dashes has at most


@pytest.fixture(scope="module")
def panels(study: dict[str, ModuleType]) -> dict[str, list[Any]]:
    """The examples of each panel, by its name."""
    found = itertools.chain(*study["examples"].PANELS.values())
    return {panel.name: [*panel.examples()] for panel in found}


def value_of(words: list[str]) -> int:
    """The value of an expression, whose words are taken off the list."""
    word = words.pop(0)
    if word.isdigit():
        return int(word)
    values = []
    while words[0] != "]":
        values.append(value_of(words))
    words.pop(0)
    return {"[MAX": max, "[MIN": min}[word](values)


def end_of(words: Sequence[str]) -> str:
    """The value to which the key of the last word leads; later pairs replace earlier ones."""
    leads = {word[:-1]: word[-1] for word in words[:-1]}
    at = leads[words[-1].removesuffix("?")]
    while not at.isdigit():
        at = leads[at]
    return at


def joined(levels: np.ndarray) -> bool:
    """Whether light goes from one disc to the other."""
    bright = ndimage.binary_opening(levels > 200, np.ones((2, 2)))
    discs, count = ndimage.label(ndimage.binary_dilation(bright))
    assert count == 2
    lit = levels > 0
    if reach := REACH[len(levels)]:
        lit = ndimage.binary_dilation(lit, np.ones((3, 3)), reach)
    part, _ = ndimage.label(lit, np.ones((3, 3)))
    first, second = ({*part[discs == i]} - {0} for i in (1, 2))
    return bool(first & second)


def test_every_task_has_a_panel(panels: dict[str, list[Any]]):
    page = (ROOT / "docs/probes.md").read_text(encoding="utf-8").partition("\n## ")[0]
    probes = re.findall(r"^\| `(\w+)` \|", page, re.M)
    others = {"pathfinder64", "pathfinder256"}  # sizes between and beyond those shown
    names = [name.lower().replace("-", "") for name in panels]
    assert names == [name for name in lra_tasks() if name not in others] + probes


def test_the_expression_has_its_value(panels: dict[str, list[Any]]):
    (example,) = panels["ListOps"]
    words = [*example.rows[0]]
    assert str(value_of(words)) == example.answer
    assert not words


@pytest.mark.parametrize("name", ["recall", "fuzzy", "hops", "forgetting"])
def test_pairs_lead_to_the_answer(name: str, panels: dict[str, list[Any]]):
    (example,) = panels[name]
    (words,) = example.rows
    assert end_of(words) == example.answer
    assert example.asked == (0, len(words) - 1)
    shaded = [words[j] for _, j in example.shaded]
    assert len(shaded) == 1 + (name == "hops")
    assert end_of([*shaded, words[-1]]) == example.answer
    if name == "forgetting":
        before = [word for word in words[:-1] if word[0] == words[-1][0]]
        assert len(before) > 1
        assert before[-1] == shaded[0]


def test_the_raised_bar_has_the_answer(panels: dict[str, list[Any]]):
    (example,) = panels["single"]
    ((_, at),) = example.shaded
    assert example.bars[at] == max(example.bars) == 1
    assert sorted(example.bars)[-2] < 1
    assert example.rows[0][at] == example.answer


def test_other_examples_have_the_same_value_of_a_key(
    study: dict[str, ModuleType], panels: dict[str, list[Any]]
):
    shown = {example.rows[0][0]: example.answer for example in panels["memorise"]}
    assert len(shown) < len(panels["memorise"]), "a key comes again"
    for index in range(20):
        _, ids, labels = study["examples"].drawn("memorise", "keys=8 values=10 asked=30", index)
        table = dict(zip(ids[::2].tolist(), labels[1::2].tolist(), strict=True))
        assert {
            key: str(table[ord(key) - ord("a") + study["examples"].FIRST_KEY]) for key in shown
        } == shown


def test_the_cell_is_one_down_and_two_right(panels: dict[str, list[Any]]):
    (example,) = panels["spatial"]
    row, column = example.asked
    assert example.shaded == [(row + 1, column + 2)], "not around the edges, which no word says"
    assert example.rows[row + 1][column + 2] == example.answer


def test_letters_move_one_two_and_three(study: dict[str, ModuleType], panels: dict[str, list[Any]]):
    (example,) = panels["group"]
    (words,) = example.rows
    at = "123"
    for word in words:
        at = "".join(word[int(place) - 1] for place in at)
    assert at == example.answer
    note = study["examples"].PANELS["examples-probes"][-1].note
    assert note == "132: 1 stays, 2 goes to 3, 3 to 2"
    assert words[0] == "132"


def test_discs_are_joined_or_not(panels: dict[str, list[Any]]):
    shown = [*panels["Pathfinder"], *panels["Path-X"]]
    assert {example.answer for example in shown} == {"yes", "no"}
    for example in shown:
        assert ("yes" if joined(example.levels) else "no") == example.answer


def test_what_is_made_up_is_said(study: dict[str, ModuleType], panels: dict[str, list[Any]]):
    assert "Review, papers and ship are made up" in study["examples"].NOTES["examples"]
    text = "".join(itertools.chain(*panels["Text"][0].rows))
    assert text == study["examples"].REVIEW
    assert "".join(itertools.chain(*panels["Retrieval"][0].rows)) == "".join(
        study["examples"].PAPERS
    )


@pytest.mark.parametrize("name", ["examples", "examples-probes"])
def test_what_is_drawn_are_the_examples_and_nothing_overlaps(
    name: str, study: dict[str, ModuleType], tmp_path: Path, drawn: list[Figure]
):
    study["examples"].draw(name, tmp_path)
    (figure,) = drawn
    examples = [e for panel in study["examples"].PANELS[name] for e in panel.examples()]
    shows_examples(figure.axes[0], examples)
    is_in_place(figure)


def is_in_place(figure: Figure):
    """All is on the page, nothing overlaps, and little is empty below."""
    figure.draw_without_rendering()
    (axes,) = figure.axes
    words = [text.get_window_extent() for text in (*figure.texts, *axes.texts)]
    pictures = [image.get_window_extent() for image in axes.images]
    page = figure.bbox
    for box in (*words, *pictures):
        assert page.x0 <= box.x0 < box.x1 <= page.x1
        assert page.y0 < box.y0 < box.y1 <= page.y1
    lowest = min(box.y0 for box in (*words, *pictures))
    assert lowest < 0.02 * page.y1
    for one, other in itertools.combinations(words, 2):
        inner = one.padded(-1)
        assert not (
            inner.x0 < other.x1
            and other.x0 < inner.x1
            and inner.y0 < other.y1
            and other.y0 < inner.y1
        )
    assert not any(box.overlaps(picture) for box in words for picture in pictures)


def shows_examples(axes: Any, examples: Sequence[Any]):
    """Every box, shade, picture and answer of the examples is drawn, in order."""
    boxes = [example for example in examples if hasattr(example, "rows")]
    answers = [text.get_text() for text in axes.texts if text.get_bbox_patch()]
    assert answers == [example.answer for example in examples]
    words = [text.get_text() for text in axes.texts if text.get_fontfamily() == ["monospace"]]
    assert words == [word for example in boxes for row in example.rows for word in row]
    band = [patch for patch in axes.patches if to_hex(patch.get_facecolor()) in (BAND, DARK[BAND])]
    assert len(band) == sum(len(example.shaded) for example in boxes)
    pictures = [example for example in examples if hasattr(example, "levels")]
    levels = [image.get_array()[:, :, 0] for image in axes.images]
    for shown, example in zip(levels, pictures, strict=True):
        np.testing.assert_array_equal(shown, example.levels)
