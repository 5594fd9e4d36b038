"""ListOps: nested operations on digits, ten classes (Nangia and Bowman 2018; Tay et al. 2021,
section 2.2.1).

    [MAX 2 9 [MIN 4 7 ] 0 ]  ->  9

Tokens are the digits, the operators with their bracket, and the closing bracket. The files write
every application in parentheses besides; those are dropped and nothing else is.
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Example, Split
from lra.data.listops import generator, tokens
from lra.data.parallel import cores
from lra.data.sources import release
from lra.data.store import read_errors
from lra.data.task import Job, RawSplit, Source, TaskOptions, read_by, sizes_of

TINY_SHAPE = generator.TreeShape(min_length=9, max_length=60, max_depth=5, max_args=5, p_leaf=0.7)
FEW = 20_000  # examples; fewer are made before worker processes would have started


class Brackets(Enum):
    keep = "keep"
    drop = "drop"  # quirk: the tokenizer before March 2021 lost them, and the nesting with them


@dataclass
class ListOpsOptions(TaskOptions):
    brackets: Brackets = Brackets.keep
    path: str | None = read_by("release", default=None, place=True)
    seed: int = read_by("generated", default=0, least=0)
    n_train: int = read_by("generated", default=96_000, least=1)
    n_val: int = read_by("generated", default=2000, least=1)
    n_test: int = read_by("generated", default=2000, least=1)
    min_length: int = read_by("generated", default=500)
    max_length: int = read_by("generated", default=2000)
    max_depth: int = read_by("generated", default=10)
    max_args: int = read_by("generated", default=10)
    p_leaf: float = read_by("generated", default=0.75)
    balanced: bool = read_by("generated", default=False)


class ListOps(release.ReleasedTask):
    name = "listops"
    title = "nested operations on digits"
    classes = 10
    vocab = tokens.VOCAB
    max_length = 2000
    miniature = "listops"
    folder = "listops-1000"
    files: ClassVar = {split: f"basic_{split}.tsv" for split in SPLITS}
    sources: ClassVar = {
        "generated": Source(
            "re-generated, not the released files", {"generator": generator.VERSION}
        ),
        **release.ReleasedTask.sources,
    }
    encoding: ClassVar = {"vocabulary": tokens.VERSION}
    Options = ListOpsOptions

    def splits(self, options: ListOpsOptions, job: Job) -> list[RawSplit]:
        if options.source == "generated":
            return self._generated(options, job)
        keep = options.brackets is Brackets.keep
        files = self.find_files(options, job)
        return [RawSplit(s, read_examples(files[s], brackets=keep), None) for s in SPLITS]

    def decode(self, ids: np.ndarray) -> str:
        return tokens.decode(ids)

    def tokenize(self, text: str) -> np.ndarray:
        try:
            return tokens.encode(text)
        except ValueError as error:
            raise UserError(f"{text[:40]!r} is no expression of ListOps: {error}") from error

    def check_options(self, options: ListOpsOptions) -> None:
        if options.source == "generated":
            _shape(options)

    def width(self, options: ListOpsOptions, max_length: int) -> int:
        longest = {"generated": options.max_length - 1, "tiny": TINY_SHAPE.max_length - 1}
        return min(max_length, longest.get(options.source, max_length))

    def matters(self, options: TaskOptions) -> dict[str, Any]:
        facts = super().matters(options)
        if not facts.get("balanced"):  # data from before there was a choice keep their names
            facts.pop("balanced", None)
        return facts

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.listops.rules import FLAT, NESTED

        return FLAT if options["brackets"] == Brackets.drop.name else FLAT | NESTED

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.listops import ladder

        blocks = self._blocks(options)
        return {} if blocks is None else ladder.readers(_drawn_by(options), blocks)

    def rungs(
        self, options: Mapping[str, Any], train: Split, split: Split
    ) -> tuple[list[str], np.ndarray] | None:
        from lra.data.listops import ladder

        if (blocks := self._blocks(options)) is None:
            return None
        names = [*(f"depth {d}" for d in ladder.DEPTHS), "deeper"]
        return names, ladder.rungs(_drawn_by(options), blocks, train, split) - 1

    def _blocks(self, options: Mapping[str, Any]) -> Callable[[Split], Iterator[np.ndarray]] | None:
        """Say where expressions with brackets are to be had: in the data, or drawn once more."""
        from lra.data.listops import ladder

        if options["brackets"] == Brackets.keep.name:
            return ladder.stored
        if "seed" not in options:
            return None
        again = self._with_brackets(json.dumps(dict(options)))
        return lambda split: ladder.blocks_of(again[split.name][: len(split)])

    @functools.cache  # noqa: B019 - a task is one object, and this takes a minute
    def _with_brackets(self, options: str) -> dict[str, list[np.ndarray]]:
        """Draw the expressions of data without brackets again; of train only the first ones."""
        from lra.data.listops import ladder

        facts = json.loads(options) | {"brackets": Brackets.keep}
        drawn = ListOpsOptions(name=self.name, source="generated", **facts)
        kept = dict[str, list[np.ndarray]]()
        for name, examples, _ in self._generated(drawn, Job(cores(), Path())):
            most = ladder.BALANCE if name == "train" else None
            kept[name] = [cast(np.ndarray, ids) for ids, _ in itertools.islice(examples, most)]
            collections.deque(examples, maxlen=0)  # those that are left
        return kept

    def groups(self, split: Split) -> np.ndarray | None:
        from lra.data.listops.rules import nesting

        blocks = [ids for ids, _ in split.blocks()]
        nested = any((ids == tokens.CLOSE).any() for ids in blocks)
        return np.concatenate([nesting(ids) for ids in blocks]) if nested else None

    def _generated(self, options: ListOpsOptions, job: Job) -> list[RawSplit]:
        counts = sizes_of(options)
        workers = job.workers if sum(counts.values()) > FEW else 1
        shape, make = _shape(options), generator.block
        if options.balanced:
            from lra.data.listops import balanced

            odds = balanced.odds(shape, options.seed, workers)
            make = functools.partial(balanced.balanced_block, odds=odds)
        stream = generator.generate(shape, seed=options.seed, workers=workers, make=make)
        if options.brackets is Brackets.drop:
            stream = ((ids[ids != tokens.CLOSE], value) for ids, value in stream)
        examples = itertools.starmap(Example, stream)
        return [RawSplit(s, itertools.islice(examples, n), n) for s, n in counts.items()]


def _shape(options: ListOpsOptions) -> generator.TreeShape:
    o = options
    sizes = (o.min_length, o.max_length, o.max_depth, o.max_args, o.p_leaf)
    return generator.TreeShape(*sizes, nested=o.balanced)


def _drawn_by(options: Mapping[str, Any]) -> generator.TreeShape:
    """Give the shape of these expressions; those of files by the benchmark's."""
    usual = ListOpsOptions(name="listops", source="generated")
    own = {key: value for key, value in options.items() if key != "brackets"}
    return _shape(dataclasses.replace(usual, **own) if "seed" in own else usual)


def read_examples(file: Path, *, brackets: bool = True) -> Iterator[Example]:
    """Read ids and value of every row; errors name file and line."""
    with read_errors(file), file.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.DictReader(lines, delimiter="\t")
        try:
            for row in rows:
                yield _example(f"{file}, line {rows.line_num}", row, brackets)
        except (UnicodeDecodeError, csv.Error) as error:
            raise UserError(f"{file}, after line {rows.line_num}: not text ({error})") from error
    if rows.line_num < 2:
        raise UserError(f"{file} has no rows below its header")


def _example(where: str, row: dict[str, str], brackets: bool) -> Example:
    if None in row or None in row.values() or not {"Source", "Target"} <= row.keys():
        raise UserError(f"{where}: columns Source and Target, and one field for each are expected")
    try:
        ids = tokens.encode(row["Source"])
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if wrong := tokens.fault(ids):
        raise UserError(f"{where}: not an expression, {wrong}")
    label = row["Target"]
    if label not in list("0123456789"):
        raise UserError(f"{where}: Target must be a digit, found {label[:20]!r}")
    return Example(ids if brackets else ids[ids != tokens.CLOSE], int(label))
