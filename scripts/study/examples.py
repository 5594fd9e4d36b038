"""One example of each task with its answer: of the Long Range Arena, and of the probes.

The tasks' own programs draw them, in small, and give the answers. Text, Retrieval and Image need
files that are not in this repository: theirs are made up, and the picture says so."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from boxes import Boxes, Examples, Panel, Pixels, draw_panels

from lra.data import Job, Task, configure, of
from lra.figures.style import PHONE, save_figure

FINDINGS = {
    "examples": "Each task of the Long Range Arena asks one thing of a long sequence",
    "examples-probes": "Each probe asks one thing of an attention, in a short sequence",
}
NOTES = {
    "examples": "A box or a pixel is one token. Grey: how long a real example is. Review, papers "
    "and ship are made up for this picture; the tasks' own programs drew the rest.",
    "examples-probes": "A box is one token. Outlined: what is asked; shaded: where the answer "
    "stands. The probes' own programs drew them, smaller than in training; of several questions "
    "one is shown.",
}
HEIGHTS = {"examples": 13.7, "examples-probes": 11.05}  # inches
REVIEW = "A slow start, but the ferry at night is lovely and the end made me cry. See it!"
PAPERS = (
    "Parsing Welsh, by A. Rees. We keep all phrases in a chart.",
    "Parsing Breton. We follow Rees, but keep nouns alone.",
)
ACROSS = 33  # letters of a text in a row
FIRST_KEY = 2  # its id, in all probes of keys


# ---------------------------------------------------------------------- examples


def drawn(name: str, words: str, index: int) -> tuple[Task, np.ndarray, np.ndarray]:
    """A task, and ids and label of a training example."""
    options = configure(name, words.split())
    task = of(options)
    train, *_ = task.splits(options, Job(1, Path()))
    example = next(itertools.islice(train.examples, index, None))
    return task, np.asarray(example.ids), np.asarray(example.label)


def listops() -> Examples:
    size = "min_length=8 max_length=12 max_depth=3 max_args=4 n_train=3000"
    task, ids, value = drawn("listops", size, 2591)
    return [Boxes([task.decode(ids).split()], str(value))]


def text() -> Examples:
    return [Boxes(letters(REVIEW), "yes")]


def retrieval() -> Examples:
    first, second = map(letters, PAPERS)
    return [Boxes([*first, [], *second], "yes")]


def letters(words: str) -> list[list[str]]:
    return [[*line] for line in textwrap.wrap(words, ACROSS, drop_whitespace=False)]


def image() -> Examples:
    """A sketch of a ship in 32 x 32 grey levels, drawn large and shrunk."""
    from PIL import Image, ImageDraw

    large = Image.new("L", (256, 256), 196)
    pen = ImageDraw.Draw(large)
    for left, size in ((150, 20), (172, 26), (200, 32)):
        pen.ellipse((left, 48 - size, left + 1.6 * size, 48), fill=168)
    pen.rectangle((0, 164, 256, 256), fill=104)
    pen.rectangle((126, 54, 150, 110), fill=72)
    pen.rectangle((74, 96, 184, 140), fill=236)
    pen.polygon([(16, 134), (244, 134), (208, 192), (52, 192)], fill=44)
    levels = np.asarray(large.resize((32, 32), Image.Resampling.BOX), float)
    levels += np.random.default_rng(0).normal(0, 5, levels.shape)  # as photographs have it
    return [Pixels(levels.clip(0, 255).astype(np.uint8), "ship")]


def paths(name: str, n: int, *index: int) -> Examples:
    found = [drawn(name, f"n={n}", i) for i in index]
    return [Pixels(ids.reshape(task.grid), "yes" if one else "no") for task, ids, one in found]


def pairs(name: str, words: str, index: int) -> Examples:
    """Pairs, a letter for each key and a digit for its value, and the first question."""
    task, ids, labels = drawn(name, f"keys=26 values=10 {words}", index)
    said = re.sub(r"k(\d+)(=v|>)?", lambda key: letter(int(key[1])), task.decode(ids))
    return [question(said.split(), labels)]


def fuzzy() -> Examples:
    task, ids, labels = drawn("fuzzy", "pairs=6 queries=1 size=3 keys=3 values=10", 3)
    said = []
    for *key, value in ids.reshape(-1, 4).tolist():
        end = value - (task.vocab - task.classes)  # below 0 where it is asked
        said.append(
            "".join(letter((i - FIRST_KEY) % 3) for i in key) + ("?" if end < 0 else str(end))
        )
    return [question(said, labels)]


def letter(number: int) -> str:
    return chr(ord("a") + number)


def question(words: list[str], labels: np.ndarray) -> Boxes:
    """The words up to the first that has a label: it is asked."""
    at = int(np.argmax(labels >= 0))
    places = [(0, i) for i in followed(words[: at + 1])]
    return Boxes([words[: at + 1]], str(labels[at]), (0, at), places)


def followed(words: Sequence[str]) -> list[int]:
    """The pairs that lead from the key asked, the last word, to a value; of one key's the last."""
    key, places = words[-1][:-1], list[int]()
    while not key.isdigit():
        places.append(max(i for i, word in enumerate(words[:-1]) if word[:-1] == key))
        key = words[places[-1]][-1]
    return places


def single() -> Examples:
    task, ids, labels = drawn("single", "tokens=10 questions=1 marks=16 values=10", 19)
    marks, values = ids.reshape(-1, 2)[:-1].astype(int).T  # without the question
    said = [str(value) for value in values - (task.vocab - task.classes)]
    bars = (marks - 3) / (marks - 3).max()  # ids of marks begin at 3
    return [Boxes([said], str(labels[-1]), None, [(0, int(bars.argmax()))], [*bars])]


def memorise() -> Examples:
    _, ids, labels = drawn("memorise", "keys=8 values=10 asked=3", 8)
    asked = zip(ids[::2].tolist(), labels[1::2].tolist(), strict=True)
    return [Boxes([[letter(key - FIRST_KEY), "?"]], str(value), (0, 1)) for key, value in asked]


def spatial() -> Examples:
    size = "rows=3 columns=8 down=1 right=2 directions=1 asked=1 colours=9"
    task, ids, labels = drawn("spatial", size, 13)
    rows = [re.findall(r"\d", row) for row in task.decode(ids).split("/")]
    row, column = divmod(int(labels.argmax()), len(rows[0]))
    shaded = (row + 1) % len(rows), (column + 2) % len(rows[0])
    return [Boxes(rows, str(labels.max()), (row, column), [shaded])]


def group() -> Examples:
    task, ids, labels = drawn("group", "group=S3 length=4 form=end", 24)
    return [Boxes([task.decode(ids).split()], task.decode(labels[-1:] + 1))]


PANELS = {
    "examples": [
        Panel("ListOps", "What is the expression's value?", "501 to 1,999 tokens", listops),
        Panel("Text", "Is the review favourable?", "up to 4,000 letters", text),
        Panel("Retrieval", "Does one paper cite the other?", "each up to 4,000 letters", retrieval),
        Panel("Image", "Which of ten things is it?", "1,024 pixels, row by row", image),
        Panel(
            "Pathfinder",
            "Does a path join the discs?",
            "1,024 pixels, row by row",
            lambda: paths("pathfinder", 60, 9, 11),
        ),
        Panel(
            "Path-X",
            "The same, in 128 × 128 pixels",
            "16,384 pixels, row by row",
            lambda: paths("pathx", 20, 10),
        ),
    ],
    "examples-probes": [
        Panel(
            "recall",
            "Which value came with the key?",
            "pairs of a key and a value",
            lambda: pairs("recall", "pairs=8 queries=1", 6),
        ),
        Panel(
            "single", "What is under the raised bar?", "bars are noise, and one is raised", single
        ),
        Panel("fuzzy", "Which value came with the key?", "keys are spelt with few letters", fuzzy),
        Panel("memorise", "Which value goes with a key?", "always the same, never shown", memorise),
        Panel(
            "hops",
            "Where does the chain end?",
            "a key leads to a key, that to a value",
            lambda: pairs("hops", "chains=3 practice=false", 5),
        ),
        Panel(
            "forgetting",
            "Which value is the latest?",
            "a key has several, one after another",
            lambda: pairs("forgetting", "asked=2 writes=3 others=2", 5),
        ),
        Panel("spatial", "What is one down, two right?", "tokens come row by row", spatial),
        Panel("group", "Where do 1, 2 and 3 end?", "132: 1 stays, 2 goes to 3, 3 to 2", group),
    ],
}


def draw(name: str, out: Path) -> list[Path]:
    title = f"{FINDINGS[name]}\n{NOTES[name]}"
    fill = partial(draw_panels, panels=PANELS[name])
    return save_figure(out / name, fill, title, HEIGHTS[name], PHONE)
