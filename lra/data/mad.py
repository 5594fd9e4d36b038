"""Two probes after MAD (Poli et al. 2024, arXiv:2403.17844; athms/mad-lab), for networks that look
both ways: `fuzzy`, recall by keys of several tokens, each of which many keys share; and `memorise`,
keys whose values are never shown, because one table, drawn once, holds for all examples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data.arrays import IGNORED, Example
from lra.data.recall import (
    BLOCK,
    EMPTY,
    FIRST_KEY,
    STACKED,
    PairOptions,
    Probe,
    ProbeOptions,
    Recall,
    drawn,
    generator,
)
from lra.data.task import Task, read_by

MOST_KEYS = 2**14  # that `fuzzy` draws from


@dataclass
class FuzzyOptions(PairOptions):
    keys: int = read_by("generated", default=8, least=2)  # tokens to draw from, for each place
    size: int = read_by("generated", default=3, least=1)  # places of a key


class Fuzzy(Recall):
    name = "fuzzy"
    title = "the values of keys of several tokens that were given with them"
    sources: ClassVar = drawn("fuzzy-generator-1")
    encoding: ClassVar = {"vocabulary": "fuzzy-v1"}
    Options = FuzzyOptions
    decode = Task.decode

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {}  # a pair has several tokens of a key

    def configured(self, options: dict[str, Any]) -> Recall:
        task = super().configured(options)
        task.stack = options["size"] + 1 if options["form"] == STACKED else 1
        task.vocab = FIRST_KEY + options["size"] * options["keys"] + options["values"]
        return task

    def check_options(self, options: Any) -> None:
        if options.keys**options.size > MOST_KEYS:
            raise UserError(
                f"size={options.size} tokens of keys={options.keys} make more than {MOST_KEYS} keys"
            )
        super().check_options(_whole_keys(options))

    def width(self, options: Any, max_length: int) -> int:
        return super().width(options, max_length) // 2 * (options.size + 1)

    def examples(self, options: Any) -> Iterator[Example]:
        for ids, labels in super().examples(replace(_whole_keys(options), form=STACKED)):
            yield Example(*spell_keys(options, ids, labels))


def _whole_keys(options: FuzzyOptions) -> FuzzyOptions:
    """Count the keys by number, as recall draws them."""
    return replace(options, keys=options.keys**options.size)


def spell_keys(o: FuzzyOptions, ids: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Write the number of each key as `size` ids, a range of its own for each place."""
    key, value = ids.reshape(-1, 2).astype(np.int64).T
    places = np.arange(o.size)
    digits = (key[:, None] - FIRST_KEY) // o.keys**places % o.keys
    slots = np.full((len(key), o.size + 1), EMPTY, np.uint16)
    slots[key != EMPTY, :-1] = (FIRST_KEY + o.keys * places + digits)[key != EMPTY]
    slots[value != EMPTY, -1] = (value - o.keys**o.size + o.keys * o.size)[value != EMPTY]
    if o.form != STACKED:
        at_first = np.full(slots.shape, IGNORED, np.int16)
        at_first[:, 0] = labels
        labels = at_first.ravel()
    return slots.ravel(), labels


@dataclass
class MemoriseOptions(ProbeOptions):
    keys: int = read_by("generated", default=4096, least=2)
    values: int = read_by("generated", default=64, least=2)
    asked: int = read_by("generated", default=32, least=1)  # keys of an example


class Memorise(Probe):
    """Each key is a token, and is asked at the token after it."""

    name = "memorise"
    title = "the values that one table has for keys"
    sources: ClassVar = drawn("memorise-generator-1")
    encoding: ClassVar = {"vocabulary": "memorise-v1"}
    Options = MemoriseOptions

    def configured(self, options: dict[str, Any]) -> Memorise:
        task = copy.copy(self)
        task.classes, task.vocab = options["values"], FIRST_KEY + options["keys"]
        return task

    def width(self, options: MemoriseOptions, max_length: int) -> int:
        return 2 * options.asked

    def block(self, options: MemoriseOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        o = options
        table = np.random.Generator(np.random.PCG64(o.seed)).integers(0, o.values, o.keys)
        keys = generator(o.seed, number).integers(0, o.keys, (BLOCK, o.asked))
        ids, labels = (np.full((BLOCK, 2 * o.asked), fill) for fill in (EMPTY, IGNORED))
        ids[:, ::2], labels[:, 1::2] = FIRST_KEY + keys, table[keys]
        return ids, labels

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, by_key

        reads = "the key beside a question, and its value in the training examples"
        answer = by_key(lambda ids: np.repeat(ids[:, ::2], 2, axis=1))
        return {"table": Rule(reads, answer, bound=True)}
