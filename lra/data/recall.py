"""Multi-query associative recall: pairs of a key and a value, then keys whose values are asked.

    k17=v5 k3=v60 k90=v5 k3? k17?  ->  60 at k3?, 5 at k17?

The probe of what a linear attention loses against softmax (Arora et al. 2023, arXiv:2312.04927).
An example is a row of slots, each with the ids of a key and of a value. `stacked`, a slot is one
token, the sum of its two embeddings, so that one layer without positions can answer.
`interleaved`, a slot is two neighbouring tokens, as in the literature, which takes two layers. The
ids are the same; the label stands at the token that holds the key. `source=zoology` draws what the
code of that paper's authors draws (lra/data/mqar.py).
"""

from __future__ import annotations

import copy
import functools
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from lra.base.errors import UserError
from lra.data import mqar
from lra.data.arrays import IGNORED, SPLITS, Example
from lra.data.task import Job, RawSplit, Source, Task, TaskOptions, read_by, sizes_of

GENERATOR = "recall-generator-1"  # change it when the same seed gives other examples
VOCABULARY = "recall-v1"  # change it when an id changes its meaning
EMPTY = 1  # the id in place of a value that is asked, and of a filler's key
FIRST_KEY = 2  # then all keys, then all values
STACKED, INTERLEAVED = "stacked", "interleaved"
SOURCES = ("generated", "zoology")  # of recall itself
BLOCK = 1024  # examples drawn together
PARTS = {"quarter": 1, "half": 2, "three quarters": 3}  # that readers read of the places


@dataclass
class ProbeOptions(TaskOptions):
    seed: int = read_by("generated", default=0, least=0)
    n_train: int = read_by("generated", default=19_200, least=1)
    n_val: int = read_by("generated", default=250, least=1)
    n_test: int = read_by("generated", default=250, least=1)


@dataclass
class PairOptions(ProbeOptions):
    form: str = STACKED  # settings are looked up by it, which OmegaConf cannot do by an Enum
    pairs: int = read_by("generated", default=32, least=1)
    queries: int | None = read_by("generated", default=None)
    filler: int = read_by("generated", default=0, least=0)
    keys: int = read_by("generated", default=256, least=1)
    values: int = read_by("generated", default=64, least=2)


@dataclass
class RecallOptions(PairOptions):
    seed: int = read_by(*SOURCES, default=0, least=0)
    n_train: int = read_by(*SOURCES, default=19_200, least=1)
    n_val: int = read_by(*SOURCES, default=250, least=1)
    n_test: int = read_by(*SOURCES, default=250, least=1)
    pairs: int = read_by(*SOURCES, default=32, least=1)
    filler: int = read_by(*SOURCES, default=0, least=0)
    keys: int = read_by(*SOURCES, default=256, least=1)
    values: int = read_by(*SOURCES, default=64, least=2)
    power: float = read_by("zoology", default=mqar.POWER)


def drawn(version: str) -> dict[str, Source]:
    return {"generated": Source("drawn at random by a program", {"generator": version})}


class Probe(Task):
    """A probe whose examples are drawn one after another, with a label at some of its tokens."""

    probe = True
    per_token = True
    max_length = 0  # the options decide it
    distinct: ClassVar[bool] = False  # no example twice
    empty: int = EMPTY  # the id of a place that holds neither key nor value

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        examples = self.examples(options)
        sizes = sizes_of(options)
        return [RawSplit(s, itertools.islice(examples, sizes[s]), sizes[s]) for s in SPLITS]

    def examples(self, options: Any) -> Iterator[Example]:
        """Draw examples without end, those of train first."""
        seen: set[bytes] = set()
        for number in itertools.count():
            for ids, labels in zip(*self.block(options, number), strict=True):
                if self.distinct:
                    digest = hashlib.blake2b(ids.tobytes(), digest_size=16).digest()
                    if digest in seen:
                        continue
                    seen.add(digest)
                yield Example(ids, labels)

    def block(self, options: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the ids and labels of BLOCK examples, from the options and this number alone."""
        raise NotImplementedError(f"{type(self).__name__} must implement block()")

    def usual(self, ids: np.ndarray) -> np.ndarray:
        """Answer the most frequent value of each example, the last ids, at all its tokens."""
        values = np.arange(self.vocab - self.classes, self.vocab)
        counts = np.stack([(ids == value).sum(axis=1) for value in values], axis=1)
        return np.repeat(counts.argmax(axis=1)[:, None], ids.shape[1] // self.stack, axis=1)

    def part(self, ids: np.ndarray, quarters: int, *, last: bool) -> np.ndarray:
        """Empty all pairs but the first or the last ones; the questions stay."""
        slots = ids.reshape(len(ids), -1, 2).copy()
        pairs = int((slots[0] != self.empty).all(axis=1).sum())  # in each, before questions
        kept = pairs * quarters // 4
        slots[:, slice(0, pairs - kept) if last else slice(kept, pairs)] = self.empty
        return slots.reshape(ids.shape)


def parts(
    read: Callable[..., np.ndarray], places: str = "pairs", without: Sequence[str] = ()
) -> dict[str, Any]:
    """List readers of the first or the last places of an example, which know everything else.
    `read` answers from ids, `quarters` of whose places it reads, the `last` ones or the first."""
    from lra.data.rules import Rule, from_ids

    made = {}
    for end, (words, quarters) in itertools.product(("first", "last"), PARTS.items()):
        if (name := f"{end} {words}") not in without:
            answer = functools.partial(read, quarters=quarters, last=end == "last")
            made[name] = Rule(f"the {name} of the {places}", from_ids(answer))
    return made


class Recall(Probe):
    name = "recall"
    title = "the values of keys that were given with them"
    sources: ClassVar = drawn(GENERATOR) | {
        "zoology": Source("drawn at random as zoology does", {"generator": mqar.GENERATOR})
    }
    encoding: ClassVar = {"vocabulary": VOCABULARY}
    Options: ClassVar[type[TaskOptions]] = RecallOptions
    distinct = True
    first_key = FIRST_KEY

    def configured(self, options: dict[str, Any]) -> Recall:
        task = copy.copy(self)
        task.stack = 2 if options["form"] == STACKED else 1
        task.classes = options["values"]
        if "power" in options:  # which zoology's source alone reads
            task.empty, task.first_key = 0, 1
        task.vocab = task.first_key + options["keys"] + options["values"]
        return task

    def splits(self, options: Any, job: Job) -> list[RawSplit]:
        if options.source != "zoology":
            return super().splits(options, job)
        o, seeds = options, mqar.seeds(options.seed)
        sizes = mqar.Sizes(o.pairs, o.pairs + o.filler, o.keys, o.values, o.power)
        counts = sizes_of(o)
        return [
            RawSplit(s, _drawn_by_zoology(sizes, seeds[s], counts[s]), counts[s]) for s in SPLITS
        ]

    def block(self, options: PairOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids (BLOCK, 2 S) of S slots, labels (BLOCK, S), or (BLOCK, 2 S) of the
        interleaved form. The pairs come first, then queries and fillers in random order."""
        o, asked, rng = options, _queries(options), generator(options.seed, number)
        first_value = FIRST_KEY + o.keys
        keys = sample(rng, o.keys, o.pairs)
        values = rng.integers(0, o.values, (BLOCK, o.pairs))
        which = sample(rng, o.pairs, asked)  # of the pairs
        where = o.pairs + sample(rng, asked + o.filler, asked)  # of the slots

        slots = np.full((BLOCK, o.pairs + asked + o.filler, 2), EMPTY, np.uint16)
        slots[:, : o.pairs, 0] = FIRST_KEY + keys
        slots[:, : o.pairs, 1] = first_value + values
        slots[:, o.pairs :, 1] = first_value + rng.integers(0, o.values, (BLOCK, asked + o.filler))
        row = np.arange(BLOCK)[:, None]
        slots[row, where, 0] = FIRST_KEY + keys[row, which]
        slots[row, where, 1] = EMPTY
        labels = np.full(slots.shape, IGNORED, np.int16)
        labels[row, where, 0] = values[row, which]
        at_keys = labels[:, :, 0] if o.form == STACKED else labels.reshape(BLOCK, -1)
        return slots.reshape(BLOCK, -1), at_keys

    def decode(self, ids: np.ndarray) -> str:
        first_value = self.vocab - self.classes
        words = []
        for key, value in ids.reshape(-1, 2).tolist():
            name = f"k{key - self.first_key}" if key != self.empty else "-"
            asked = "?" if key != self.empty else ""
            words.append(f"{name}=v{value - first_value}" if value != self.empty else name + asked)
        return " ".join(words)

    def check_options(self, options: Any) -> None:
        o, asked = options, _queries(options)
        if options.source == "zoology":
            _check_zoology(options)
        for wrong, message in (
            (o.form not in (STACKED, INTERLEAVED), f"form={o.form} is not known"),
            (o.pairs > o.keys, f"pairs={o.pairs} needs as many different keys, not keys={o.keys}"),
            (not 1 <= asked <= o.pairs, f"queries={asked} is not between 1 and pairs={o.pairs}"),
            (asked + o.filler > 2**16, f"filler={o.filler} is above {2**16 - asked:,}"),
        ):
            if wrong:
                raise UserError(message)
        if options.source == "zoology":
            return  # an example may come twice
        examples = o.n_train + o.n_val + o.n_test
        different = math.perm(o.keys, o.pairs) * o.values ** (o.pairs + o.filler)
        different *= math.perm(o.pairs, asked) * math.comb(asked + o.filler, asked)
        if different < 2 * examples:
            raise UserError(
                f"{examples:,} different examples are asked for, but only {different:,} exist, and "
                "half of them can be drawn in reasonable time: raise pairs, keys, values or filler"
            )

    def width(self, options: Any, max_length: int) -> int:
        return 2 * (options.pairs + _queries(options) + options.filler)  # never cut

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, from_ids

        reads = "which value the example has most often"
        return {"most frequent value": Rule(reads, from_ids(self.usual))}

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return parts(self.of_part)

    def of_part(self, ids: np.ndarray, quarters: int, *, last: bool) -> np.ndarray:
        """Answer by the pairs that are read; where they lack a key, the usual value."""
        usual, first_value = self.usual(ids), self.vocab - self.classes
        row = np.arange(len(ids))
        value_of = np.full((len(ids), first_value), -1)
        slots = self.part(ids, quarters, last=last).reshape(len(ids), -1, 2).astype(np.int64)
        for key, value in slots.transpose(1, 2, 0):
            given = (key != self.empty) & (value != self.empty)
            value_of[row[given], key[given]] = value[given] - first_value
        found = value_of[row[:, None], slots[:, :, 0]]
        found = np.repeat(found, 2 // self.stack, axis=1)  # of two tokens the first is asked
        return np.where(found >= 0, found, usual)


def generator(seed: int, number: int) -> np.random.Generator:
    """Start the random numbers of block `number`."""
    sequence = np.random.SeedSequence(seed, spawn_key=(number,))
    return np.random.Generator(np.random.PCG64(sequence))


def sample(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Draw (BLOCK, k): in each row k different numbers of 0..n-1, in random order."""
    deck = np.tile(np.arange(n, dtype=np.uint16), (BLOCK, 1))
    partner = rng.integers(np.arange(k), n, (BLOCK, k))  # place i swaps with one of i..n-1
    row = np.arange(BLOCK)
    for i in range(k):
        taken = deck[row, partner[:, i]]  # Fisher and Yates
        deck[row, partner[:, i]] = deck[:, i]
        deck[:, i] = taken
    return deck[:, :k].astype(np.int64)


def largest_share(draws: int, values: int) -> float:
    """How often the most frequent of `draws` uniform draws among `values` occurs in the mean, as a
    share of the draws: what a rule scores that knows the answers, but not to which questions."""
    below = 0  # the sum over m < draws of the number of sequences with nothing above m times
    for m in range(draws):
        ways = [1] + [0] * draws  # of filling so many places, with no value yet
        power = [int(i <= m) for i in range(draws + 1)]  # with one value, then 2, 4, 8 ...
        for bit in reversed(bin(values)[2:]):
            ways = _shared(ways, power) if bit == "1" else ways
            power = _shared(power, power)
        below += ways[draws]
    return float(1 - Fraction(below, draws * values**draws))


def _shared(a: list[int], b: list[int]) -> list[int]:
    """Count the sequences of two groups of values from those of each, by length."""
    return [sum(math.comb(n, i) * a[i] * b[n - i] for i in range(n + 1)) for n in range(len(a))]


def _drawn_by_zoology(sizes: mqar.Sizes, seed: int, count: int) -> Iterator[Example]:
    yield from itertools.starmap(Example, zip(*mqar.draw(sizes, seed, count), strict=True))


def _check_zoology(options: RecallOptions) -> None:
    """Refuse what its generator does not know. Half of its vocabulary are values, and 0 no key."""
    o = options
    for wrong, message in (
        (o.form != INTERLEAVED, f"is form={INTERLEAVED}"),
        (o.values - o.keys not in (1, 2), f"has one value more than keys: values={o.keys + 1}"),
        (o.keys + o.values >= 2**16, "has fewer than 65,536 ids: lower keys and values"),
        (o.pairs > o.values, f"needs values={o.pairs} or more, each of a pair its own"),
        (not 0 < o.power <= 1, f"has a power above 0 and at most 1, not power={o.power}"),
        (o.seed >= 2**32, f"takes a seed below 2^32, not seed={o.seed}"),
    ):
        if wrong:
            raise UserError(f"source=zoology {message}")


def _queries(options: PairOptions) -> int:
    return options.pairs if options.queries is None else options.queries
