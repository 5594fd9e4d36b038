"""Series: the class of a time series, whose tokens are numbers, one of each channel.

source=files      .ts files of one's own, for train and for test; dev is drawn from train.
source=generated  two noisy channels, so that the task can be tried without files.

Generated, a channel is the sum of a wave that both share, of a slow one of its own, and of noise.
The classes are the four pairs of the shared wave's period, of 8 or 12 tokens, and of the channel
that is a quarter of a period ahead. A channel by itself is the same whichever is ahead: who reads
one alone is right in half of the examples at most. Lengths differ, from half of `length` on.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Example, Scale
from lra.data.sources.ts import Labelled, read_ts
from lra.data.statistics import moments
from lra.data.store import sha256
from lra.data.task import Job, RawSplit, Source, Task, TaskOptions, read_by

PERIODS = (8, 12)  # of the shared wave, in tokens
SLOW = (24, 48)  # the least and the largest period of a channel's own wave
GRID = 256  # numbers are multiples of 1/256: the last bits of a sine differ between machines


@dataclass
class SeriesOptions(TaskOptions):
    seed: int = read_by("generated", "files", default=0, least=0)
    length: int = read_by("generated", default=96, least=24)
    noise: float = read_by("generated", default=0.5, least=0)
    n_train: int = read_by("generated", default=4000, least=1)
    n_val: int = read_by("generated", default=500, least=1)
    n_test: int = read_by("generated", default=1000, least=1)
    folder: str | None = read_by("files", default=None, place=True)
    train: str | None = read_by("files", default=None, place=True)
    test: str | None = read_by("files", default=None, place=True)
    held_out: float = read_by("files", default=0.1)  # for dev, of train
    # in them, which records hold
    found: dict[str, Any] | None = read_by("files", default=None)  # noqa: RUF009


class Series(Task):
    name = "series"
    title = "the class of a time series, in numbers"
    probe = True
    classes, channels, vocab, max_length = 4, 2, 1, 96
    scale = Scale((0.0, 0.0), (1.0, 1.0))
    sources: ClassVar = {
        "generated": Source("drawn at random by a program", {"generator": "series-generator-1"}),
        "files": Source("time series of one's own", {"reader": "ts-2"}),
    }
    Options = SeriesOptions
    in_files: ClassVar = ("found",)

    def check_options(self, options: SeriesOptions) -> None:
        if not 0 < options.held_out < 1:
            raise UserError(
                f"task.held_out={options.held_out} is out of range: it must be between 0 and 1"
            )

    def matters(self, options: TaskOptions) -> dict[str, Any]:
        """With what the files decide: networks are built by it, where no files are too."""
        facts = super().matters(options)
        if options.source == "files":
            facts["found"] = facts["found"] or self.files(options).found
        return facts

    def configured(self, options: dict[str, Any]) -> Series:
        task = copy.copy(self)
        if "length" in options:
            task.max_length = options["length"]
            return task
        found = options["found"]
        task.classes, task.channels = len(found["classes"]), len(found["centre"])
        task.max_length = found["longest"]
        task.scale = Scale(found["centre"], found["spread"])
        return task

    def versions(self, options: Any) -> dict[str, str]:
        """With hashes of the files, so that others at the same options are other data."""
        digests = " ".join(sha256(path)[:16] for path in self.inputs(options))
        if digests and options.found not in (None, self.files(options).found):
            raise UserError("task.found is what other files say: leave it out")
        return super().versions(options) | ({"series": digests} if digests else {})

    def inputs(self, options: Any) -> list[Path]:
        """Name the files of train and of test."""
        if options.source != "files":
            return []
        if options.folder is None:
            found = [Path(x).expanduser() for x in (options.train, options.test) if x is not None]
        else:
            folder = Path(options.folder).expanduser()
            found = [p for end in ("TRAIN", "TEST") for p in sorted(folder.glob(f"*_{end}.ts"))]
        if len(found) != 2 or not all(path.is_file() for path in found):
            raise UserError(
                "source=files needs train=FILE.ts and test=FILE.ts that exist, or folder=, which "
                "holds one NAME_TRAIN.ts and one NAME_TEST.ts"
            )
        return found

    def files(self, options: Any) -> Files:
        paths = tuple(self.inputs(options))
        changed = tuple(path.stat().st_mtime_ns for path in paths)
        return read_files(paths, changed, options.seed, options.held_out)

    def splits(self, options: SeriesOptions, job: Job) -> list[RawSplit]:
        if options.source == "generated":
            sizes = options.n_train, options.n_val, options.n_test
            drawn = (draw(options, i, n) for i, n in enumerate(sizes))
            return [RawSplit(s, x, n) for s, x, n in zip(SPLITS, drawn, sizes, strict=True)]
        files = self.files(options)
        if missing := sum(int(np.isnan(x).sum()) for part in files.parts for x in part.values):
            job.notes["missing numbers filled in"] = missing
        made = zip(SPLITS, files.parts, strict=True)
        return [RawSplit(split, files.examples(part), len(part.labels)) for split, part in made]


# ---------------------------------------------------------------------- files


class Files(NamedTuple):
    parts: list[Labelled]  # train, val and test
    found: dict[str, Any]

    def examples(self, part: Labelled) -> Iterator[Example]:
        for values, label in zip(part.values, part.labels, strict=True):
            yield Example(filled(values, self.found["centre"]), self.found["classes"].index(label))


@functools.lru_cache(maxsize=2)  # a run asks for them again and again
def read_files(
    paths: tuple[Path, Path], changed: tuple[int, int], seed: int, share: float
) -> Files:
    """Read train and test; draw dev, a share of train, with the seed."""
    train, test = map(read_ts, paths)
    if test.values[0].shape[1] != train.values[0].shape[1]:
        raise UserError(f"{paths[1]} has other dimensions than train: give files of one problem")
    if strange := set(test.labels) - set(train.classes):
        raise UserError(f"{paths[0]}: add test's class {min(strange)} to its @classLabel")
    n = len(train.labels)
    held = max(1, round(share * n))
    if held == n:
        raise UserError(f"{paths[0]} has too few series to hold {held} out for dev: give more")
    val, kept = np.split(np.random.default_rng(seed).permutation(n), [held])
    parts = [_take(train, kept), _take(train, val), test]
    centre, spread = scale_of(np.concatenate(parts[0].values))
    longest = max(len(values) for part in parts for values in part.values)
    scale = {"centre": centre, "spread": spread}
    return Files(parts, {"classes": train.classes, "longest": longest} | scale)


def _take(part: Labelled, index: np.ndarray) -> Labelled:
    values, labels = ([column[i] for i in np.sort(index)] for column in part[:2])
    return Labelled(values, labels, part.classes)


def scale_of(rows: np.ndarray) -> tuple[list[float], list[float]]:
    """Give mean and spread of each channel's numbers that are there, to four digits of the spread,
    which records hold: a mean may be far larger. Of none 0 and 1."""
    there = [x[~np.isnan(x)] for x in rows.T]
    both = [moments(x) if len(x) else ([0.0], [1.0]) for x in there]
    spreads = [float(f"{spread:.4g}") or 1.0 for _, (spread,) in both]
    means = [mean for (mean,), _ in both]
    digits = [3 - math.floor(math.log10(spread)) for spread in spreads]
    return [round(*pair) for pair in zip(means, digits, strict=True)], spreads


def filled(values: np.ndarray, centre: Sequence[float]) -> np.ndarray:
    """Put missing numbers (tokens, channels) on the line between their neighbours in the channel,
    at the ends beside the nearest; a channel without any is at its mean in train."""
    out = values.copy()
    for x, mean in zip(out.T, centre, strict=True):
        gone = np.isnan(x)
        (there,) = np.nonzero(~gone)
        x[gone] = np.interp(np.flatnonzero(gone), there, x[there]) if len(there) else mean
    return out


# ---------------------------------------------------------------------- generated


def draw(options: SeriesOptions, split: int, n: int) -> Iterator[Example]:
    """Draw the examples of a split from the options alone."""
    rng = np.random.default_rng([options.seed, split])
    for _ in range(n):
        label = int(rng.integers(4))
        slower, behind = divmod(label, 2)
        tokens = np.arange(rng.integers(options.length // 2, options.length + 1))[:, None]
        lags = np.array([0.0, 0.25 if behind else -0.25]) + rng.random()  # in periods
        wave = np.sin(2 * np.pi * (tokens / PERIODS[slower] - lags))
        slow = np.sin(2 * np.pi * (tokens / rng.uniform(*SLOW, 2) - rng.random(2)))
        noise = options.noise * rng.standard_normal(wave.shape)
        yield Example(np.round(GRID * (wave + slow + noise)) / GRID, label)
