"""What a task is: its facts, its options, and how its examples come about."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import Example, Ids, Layout, Split

TINY = Path(__file__).parent / "tiny"  # the bundled miniatures


@dataclasses.dataclass
class TaskOptions:
    """The options of a task, to which it adds its own fields, with their defaults."""

    name: str  # of the task
    source: str  # where its data come from, one of `Task.sources`


def read_by(*sources: str, default: Any, place: bool = False, least: int | None = None) -> Any:
    """Declare a field that only these sources read, at least `least`. A `place` says where data
    lie, not what they are: the prepared arrays do not depend on it."""
    facts = {"sources": sources, "place": place, "least": least}
    return dataclasses.field(default=default, metadata=facts)


@dataclasses.dataclass(frozen=True)
class Source:
    """Where data come from, and in which version."""

    provenance: str  # where the data come from, in words; re-generated data say so
    versions: dict[str, str] = dataclasses.field(default_factory=dict)  # of generator or files


BUNDLED = Source("a bundled miniature, for trying things out", {"files": "1"})


def sizes_of(options: Any) -> dict[str, int]:
    """How many examples of each split are drawn, of a task that draws them."""
    return {"train": options.n_train, "val": options.n_val, "test": options.n_test}


class RawSplit(NamedTuple):
    """The examples of a split, before they are written."""

    name: str  # train, val or test
    examples: Iterable[Example]  # read once, in order, after the splits before it
    size: int | None  # where it is known beforehand


@dataclasses.dataclass
class Job:
    """What a task receives beside its options when it is prepared."""

    workers: int  # how many processes it may use
    data_dir: Path  # downloads and unpacked archives go below it
    notes: Counter[str] = dataclasses.field(default_factory=Counter)  # what was skipped, how often
    # files that were read beside Task.inputs(): downloaded, or unpacked from an archive
    inputs: list[Path] = dataclasses.field(default_factory=list)


class Task(Layout):
    """One task of the benchmark: its facts as class attributes, and how its examples are made."""

    title: str = "a task of one's own"  # half a line, for `lra data list`
    probe: ClassVar[bool] = False  # no task of the benchmark, and in none of its averages
    max_length: int  # the benchmark's own; a protocol may say otherwise
    miniature: str  # folder of the bundled files
    # the default first
    sources: ClassVar[dict[str, Source]] = {"own": Source("made by the code of its task")}
    encoding: ClassVar[dict[str, str]] = {}  # versions of what turns any source into ids
    Options: ClassVar[type[TaskOptions]] = TaskOptions  # a dataclass that extends TaskOptions
    # The row of a protocol that has none for it; its row `others` has what this leaves open.
    settings: ClassVar[dict[str, Any]] = {}
    in_files: ClassVar[tuple[str, ...]] = ()  # options that hold what files say; nobody types them

    # ------------------------------------------------------------------ what a task implements

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        """Make the examples.

        options  the task's Options, as the user set them
        job      what it may use beside them
        returns  train, val and test, in this order
        """
        raise NotImplementedError(f"{type(self).__name__} must implement splits()")

    def decode(self, ids: np.ndarray) -> str:
        """Show one sequence without its padding as text."""
        if self.channels:
            return " ".join("/".join(f"{x:.3g}" for x in token) for token in ids.tolist())
        return " ".join(map(str, ids.tolist()))

    def tokenize(self, text: str) -> np.ndarray:
        """Turn a text into ids, of a task that reads texts."""
        raise UserError(f"task '{self.name}' reads no text: give the ids of its examples")

    def grey(self, picture: np.ndarray) -> np.ndarray:
        """Turn a picture in colours (rows, columns, 3) into grey levels (rows, columns)."""
        raise UserError(f"task '{self.name}' reads no colours: give grey levels from 0 to 255")

    def configured(self, options: dict[str, Any]) -> Task:
        """Set the facts that the options decide, as `matters` lists them."""
        return self

    def provenance(self, options: Any) -> str:
        """Say where the data come from, in words."""
        return self.sources[options.source].provenance

    def place(self, options: Any, what: str) -> Path:
        """Give the file or folder that the option `path` names, or the bundled one."""
        if options.source == "tiny":
            return TINY / self.miniature
        place = Path(options.path or "").expanduser()
        if options.path is None or not place.exists():
            missing = "" if options.path is None else f"{place} does not exist: "
            raise UserError(f"{missing}source={options.source} needs path=, {what}")
        return place

    def inputs(self, options: Any) -> list[Path]:
        """Name the files that are read; `verify` re-reads them if they still exist."""
        return []

    def needs_download(self, options: Any, data_dir: Path) -> bool:
        """Say if preparing would download something that `data_dir` does not hold yet."""
        return False

    def check_options(self, options: Any) -> None:
        """Refuse invalid combinations with a UserError that says what is allowed."""

    def width(self, options: Any, max_length: int) -> int:
        """Give the ids stored per example; `max_length` 0 leaves it to the task."""
        return max_length or self.max_length

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Give rules of its own (lra.data.rules.Rule), from the least that is read to the most."""
        return {}

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Give rules that read a part of the example and know everything else. They say how much
        must be read for a score. No row of a table is held to be above them."""
        return {}

    def groups(self, split: Split) -> np.ndarray | None:
        """Number the examples by difficulty, if the task knows of any: (N,); or their tokens."""
        return None

    def rungs(
        self, options: Mapping[str, Any], train: Split, split: Split
    ) -> tuple[list[str], np.ndarray] | None:
        """Say what must be read of each example at least: names, from the least to the most, and
        a number of them, from 0, for each example (N,)."""
        return None

    # ------------------------------------------------------------------ what every task inherits

    def encode(self, example: Any) -> Ids:
        """Turn an example as a user has it (text, picture, ids, a pair of them) into ids."""
        if not self.dual:
            return self._encode(example)
        if isinstance(example, str) or len(example) != 2:
            raise UserError(f"an example of task '{self.name}' is a pair of texts")
        first, second = map(self._encode, example)
        return first, second

    def _encode(self, example: Any) -> np.ndarray:
        if self.channels:
            return numbers_of(example, self.channels, f"an example of task '{self.name}'")
        if isinstance(example, str):
            return self.tokenize(example)
        ids = np.asarray(example)
        if self.grid is not None:
            if ids.shape == (*self.grid, 3):
                ids = self.grey(ids)
            if ids.shape not in (self.grid, (self.grid[0] * self.grid[1],)):
                raise UserError(
                    f"a picture has {' x '.join(map(str, ids.shape))} numbers, those of task "
                    f"'{self.name}' have {' x '.join(map(str, self.grid))}"
                )
            ids = ids.ravel()
        if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids) or len(ids) % self.stack:
            words = f"groups of {self.stack}" if self.stack > 1 else "a row"
            raise UserError(f"an example of task '{self.name}' is {words} of whole numbers")
        if len(wrong := ids[(ids < 0) | (ids >= self.vocab)]):
            raise UserError(
                f"an example has the id {wrong[0]}, those of task '{self.name}' are 0 to "
                f"{self.vocab - 1}"
            )
        return ids

    def versions(self, options: TaskOptions) -> dict[str, str]:
        """Give the versions that decide the data: of the encoding, and of the source."""
        return {**self.encoding, **self.sources[options.source].versions}

    def matters(self, options: TaskOptions) -> dict[str, Any]:
        """List the options that decide the data: those that the source reads, without places."""
        return {
            field.name: plain_value(getattr(options, field.name))
            for field in dataclasses.fields(options)
            if options.source in field.metadata.get("sources", self.sources)
            and not field.metadata.get("place", False)
            and field.name not in ("name", "source")
        }


class ByteTask(Task):
    """Reads texts byte by byte: id = byte + 1, so that 0 is left for padding. What google-research/
    long-range-arena calls tokenizer=char."""

    vocab = 257
    encoding: ClassVar = {"tokenizer": "bytes-v1"}

    def decode(self, ids: np.ndarray) -> str:
        """Show bytes that are not UTF-8, such as those of a character cut in two, as \\xff."""
        return (ids - 1).astype(np.uint8).tobytes().decode("utf-8", "backslashreplace")

    def tokenize(self, text: str) -> np.ndarray:
        """Encode it as Python reads a text from a file, bytes that are not UTF-8 included."""
        try:
            return byte_ids(text.encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError as error:
            raise UserError(
                f"a text holds half of a character ({error}): it has no bytes"
            ) from error


def numbers_of(example: Any, channels: int, what: str) -> np.ndarray:
    """Read tokens of so many numbers, (n, channels), or (n,) of one each, as they are stored."""
    try:
        with np.errstate(over="ignore"):  # what is too large becomes infinite
            numbers = np.asarray(example, np.float32)
    except (TypeError, ValueError):  # words, or rows of different lengths
        numbers = np.empty(0, np.float32)
    if numbers.ndim == 1:
        numbers = numbers[:, None]
    if numbers.ndim != 2 or not numbers.size or numbers.shape[1] != channels:
        raise UserError(f"{what} must be numbers, (tokens, {channels}), or (tokens,) of one each")
    if not np.isfinite(numbers).all():
        raise UserError(
            f"{what} has a number that is no finite one of 32 bits: leave it out, or fill it in"
        )
    return numbers


def byte_ids(text: bytes) -> np.ndarray:
    return np.frombuffer(text, np.uint8) + np.uint16(1)


def plain_value(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
