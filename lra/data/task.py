"""What a task is: its facts, its options, and how its examples come about."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.config import UserError
from lra.data.arrays import Example, Layout, Prepared, Split

TINY = Path(__file__).parent / "tiny"  # the bundled miniatures


@dataclasses.dataclass
class TaskOptions:
    """The schema of configs/task/<name>.yaml. A task adds its own fields, and no field has a
    default here."""

    name: str
    source: str


def read_by(*sources: str, place: bool = False, least: int | None = None) -> Any:
    """A field that only these sources read, at least `least`. A `place` says where data lie, not
    what they are: the prepared arrays do not depend on it."""
    return dataclasses.field(metadata={"sources": sources, "place": place, "least": least})


@dataclasses.dataclass(frozen=True)
class Source:
    """One way to get the data of a task."""

    provenance: str  # where the data come from, in words; re-generated data say so
    # of the generator, data set or files
    versions: dict[str, str] = dataclasses.field(default_factory=dict)


MINIATURE = Source("a bundled miniature, for trying things out", {"files": "1"})


class RawSplit(NamedTuple):
    """One split on its way into arrays."""

    name: str
    examples: Iterable[Example]  # read once, in order, after the splits before it
    size: int | None  # where it is known beforehand


@dataclasses.dataclass
class Job:
    """What a task receives beside its options when it is prepared."""

    workers: int
    data_dir: Path  # downloads and unpacked archives go below it
    # what was skipped, and how often
    notes: Counter[str] = dataclasses.field(default_factory=Counter)
    # files that were read beside Task.inputs(): downloaded, or unpacked from an archive
    inputs: list[Path] = dataclasses.field(default_factory=list)


class About(NamedTuple):
    """The part of a data card that cannot be counted."""

    origin: str
    licence: str
    splits: str
    problems: tuple[str, ...]  # of the data or of codes that read them, and what is done here


class Task(Layout):
    """One task of the benchmark: its facts as class attributes, and how its examples are made."""

    title: ClassVar[str]  # half a line, for `lra data list`
    probe: ClassVar[bool] = False  # no task of the benchmark, and in none of its averages
    max_length: ClassVar[int]  # the benchmark's own; a protocol may say otherwise
    sources: ClassVar[dict[str, Source]]  # the default first
    encoding: ClassVar[dict[str, str]] = {}  # versions of what turns any source into ids
    Options: ClassVar[type[TaskOptions]]
    about: ClassVar[About]

    # ------------------------------------------------------------------ what a task implements

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        """train, val and test, in this order."""
        raise NotImplementedError(f"{type(self).__name__} must implement splits()")

    def decode(self, ids: np.ndarray) -> str:
        """The raw text (or a picture in characters) of one sequence without its padding."""
        raise NotImplementedError(f"{type(self).__name__} must implement decode()")

    def configured(self, options: dict[str, Any]) -> Task:
        """This task with the facts that its options decide, as `matters` lists them."""
        return self

    def provenance(self, options: Any) -> str:
        return self.sources[options.source].provenance

    def inputs(self, options: Any) -> list[Path]:
        """The files that are read; `verify` re-reads them if they still exist."""
        return []

    def needs_download(self, options: Any, data_dir: Path) -> bool:
        """Whether preparing would download something that `data_dir` does not hold yet."""
        return False

    def check_options(self, options: Any) -> None:
        """Refuse invalid combinations with a UserError that says what is allowed."""

    def width(self, options: Any, max_length: int) -> int:
        """How many ids are kept of an example: columns of the stored array."""
        return max_length

    def audit(self, split: Split) -> Iterator[tuple[bool, str]]:
        """Checks of the prepared examples beyond hashes and counts: (holds, sentence)."""
        return iter(())

    def reread(self, prepared: Prepared) -> Iterator[tuple[bool, str]]:
        """Compare the arrays with inputs that are too many for the manifest, such as one image file
        per example: (holds, sentence). Called only if the files of `inputs` are unchanged."""
        return iter(())

    def export(self, prepared: Prepared, folder: Path) -> list[Path]:
        """Write the data in the format of the official release."""
        raise UserError(f"task '{self.name}' has no official format to be written in")

    # ------------------------------------------------------------------ what every task inherits

    def versions(self, options: TaskOptions) -> dict[str, str]:
        """The versions of everything that decides the ids."""
        return {**self.encoding, **self.sources[options.source].versions}

    def matters(self, options: TaskOptions) -> dict[str, Any]:
        """The options that decide the data, as plain values: those that the source reads, without
        places."""
        return {
            field.name: plain(getattr(options, field.name))
            for field in dataclasses.fields(options)
            if options.source in field.metadata.get("sources", self.sources)
            and not field.metadata.get("place", False)
            and field.name not in ("name", "source")
        }


def plain(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else value
