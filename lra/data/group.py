"""`group`, a probe of state: the product of a word's letters, which are elements of a finite group.

    213 132 321 -> 213 231 132      the products of the first one, two and three letters, in S3

It is the word problem of Liu et al. 2023 (arXiv:2210.10749) and Merrill et al. 2024
(arXiv:2404.08819). A word has `length` letters in training and on dev, and `times` as many on test.
Each letter is drawn uniformly from the group and by itself. Z2 (its words are parities) and Z60
are sums, whose order does not matter. S3 and S5 are all permutations of three and of five things,
A5 are the even ones of five: letters act one after another, the first letter first.

form=prefix    a label at every letter in training: the product so far. The network is causal, so
               only an attention with a causal form can be trained.
form=end       a label at the last letter alone; any attention.

On dev and test the last letter alone has a label (`scored=last`), because early products are of few
letters. With `scored=each` every letter has one, for accuracies by place.

No rule that leaves a letter out does better than chance at the last letter. Let x be a letter that
it does not read, u the product of the letters before it and v of those behind it; the label is
u x v. Whatever the other letters are, x is uniform, and x -> u x v takes each element of the group
to another one. So the label is uniform given all other letters, and given any part of them: every
answer is right in 1 / |G| of all words. A rule that reads all letters, but not their order, knows
the label up to a commutator: all of it in Z2 and Z60, whether it is even in S3 (so that 1/3 is
right) and in S5 (1/60), and nothing in A5 but what letters that repeat betray, which in long words
is nothing.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from lra.base.errors import UserError, nearest
from lra.data.arrays import IGNORED, SPLITS, Example, Split
from lra.data.recall import BLOCK, Probe, ProbeOptions, drawn, generator, parts
from lra.data.task import Job, RawSplit, read_by, sizes_of

PREFIX, END = "prefix", "end"
LAST, EACH = "last", "each"
SUMS = {"Z2": 2, "Z60": 60}
PERMUTATIONS = {"S3": (3, False), "S5": (5, False), "A5": (5, True)}  # of so many; even alone
GROUPS = ("Z2", "Z60", "S3", "S5", "A5")


class Group(NamedTuple):
    """A finite group, whose elements are numbered, the identity first."""

    names: tuple[str, ...]
    product: np.ndarray  # (|G|, |G|): of a, then b

    @property
    def order(self) -> int:
        return len(self.names)

    @property
    def inverse(self) -> np.ndarray:
        """The inverse of each element: (|G|,)."""
        return (self.product == 0).argmax(axis=1)

    def known_without_order(self) -> np.ndarray:
        """Give for each element the first one that differs from it by commutators alone, which is
        what the letters of a word in any order say of their product: (|G|,)."""
        inverse = self.inverse
        a, b = np.indices(self.product.shape)
        commutators = self.product[self.product[self.product[inverse[a], inverse[b]], a], b]
        reached = np.unique(commutators)
        while len(grown := np.unique(self.product[np.ix_(reached, reached)])) > len(reached):
            reached = grown
        return np.asarray(self.product[:, reached].min(axis=1))


@functools.cache
def group(name: str) -> Group:
    if name in SUMS:
        n = np.arange(SUMS[name])
        return Group(tuple(map(str, n)), (n[:, None] + n) % SUMS[name])
    size, even = PERMUTATIONS[name]
    rows = [p for p in itertools.permutations(range(size)) if not (even and _odd(p))]
    number = {row: i for i, row in enumerate(rows)}
    product = [[number[tuple(b[i] for i in a)] for b in rows] for a in rows]
    names = tuple("".join(str(i + 1) for i in row) for row in rows)
    return Group(names, np.array(product))


def _odd(row: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in itertools.combinations(row, 2)) % 2 == 1


@dataclass
class GroupOptions(ProbeOptions):
    group: str = read_by("generated", default="S3")
    form: str = PREFIX  # settings are looked up by it, as for recall
    length: int = read_by("generated", default=16, least=2)
    times: int = read_by("generated", default=1, least=1)
    scored: str = read_by("generated", default=LAST)
    n_train: int = read_by("generated", default=64_000, least=1)
    n_val: int = read_by("generated", default=1000, least=1)
    n_test: int = read_by("generated", default=2000, least=1)


class Words(Probe):
    name = "group"
    title = "the products of words in a finite group"
    sources: ClassVar = drawn("group-generator-1")
    encoding: ClassVar = {"vocabulary": "group-v1"}
    Options = GroupOptions
    split = "train"  # that is drawn: each has words of its own
    of: Group

    def configured(self, options: dict[str, Any]) -> Words:
        task = copy.copy(self)
        task.of = group(options["group"])
        task.classes, task.vocab = task.of.order, 1 + task.of.order
        task.causal = options["form"] == PREFIX
        return task

    def check_options(self, options: GroupOptions) -> None:
        choices = {"group": GROUPS, "form": (PREFIX, END), "scored": (LAST, EACH)}
        for key, known in choices.items():
            if (value := getattr(options, key)) not in known:
                raise UserError(f"{key}={value} is not known{nearest(value, known)}")
        if options.form == END and options.scored == EACH:
            raise UserError(f"scored={EACH} needs form={PREFIX}: form={END} has one label a word")

    def width(self, options: GroupOptions, max_length: int) -> int:
        return options.length * options.times

    def splits(self, options: GroupOptions, job: Job) -> list[RawSplit]:
        sizes = sizes_of(options)
        return [RawSplit(s, self._words(options, s, n), n) for s, n in sizes.items()]

    def _words(self, options: GroupOptions, split: str, n: int) -> Iterator[Example]:
        task = self.configured(self.matters(options))
        task.split = split
        return itertools.islice(task.examples(options), n)

    def block(self, options: GroupOptions, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw ids and labels (BLOCK, n) of words of n letters."""
        rng = generator(options.seed, len(SPLITS) * number + SPLITS.index(self.split))
        length = options.length * (options.times if self.split == "test" else 1)
        letters = rng.integers(0, self.classes, (BLOCK, length))
        labels = self.products(letters).astype(np.int16)
        each = self.split == "train" or options.scored == EACH
        if options.form == END or not each:
            labels[:, :-1] = IGNORED
        return (letters + 1).astype(np.uint16), labels

    def products(self, letters: np.ndarray) -> np.ndarray:
        """Multiply the letters (B, n) up to each place: (B, n)."""
        so_far = [letters[:, 0]]
        for letter in letters.T[1:]:
            so_far.append(self.of.product[so_far[-1], letter])
        return np.stack(so_far, axis=1)

    def decode(self, ids: np.ndarray) -> str:
        return " ".join(self.of.names[letter - 1] for letter in ids.tolist())

    def groups(self, split: Split) -> np.ndarray | None:
        """Number the letters, where each has a label: (N, n)."""
        labels = np.asarray(split.labels)
        if (labels[:, :-1] == IGNORED).all():
            return None
        return np.broadcast_to(np.arange(1, 1 + labels.shape[1]), labels.shape)

    # ------------------------------------------------------------------ rules

    def rules(self, options: Mapping[str, Any]) -> dict[str, Any]:
        from lra.data.rules import Rule, from_ids

        sums = options["group"] in SUMS  # whose order says nothing
        half, bag = "the last half of the letters", "all letters, without their order"
        of_half = functools.partial(self.of_part, quarters=2, last=True)
        rules = {
            "last half of the places": Rule(half, from_ids(of_half)),
            "letters without order": Rule(bag, from_ids(self.without_order), bound=sums),
        }
        if not sums:
            rules["product"] = Rule("all letters in their order", from_ids(self.of_ids), bound=True)
        return rules

    def of_ids(self, ids: np.ndarray) -> np.ndarray:
        """Answer the product at each letter; padding is the identity."""
        return self.products(np.maximum(ids.astype(np.int64) - 1, 0))

    def readers(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return parts(self.of_part, "letters", without=["last half"])

    def of_part(self, ids: np.ndarray, quarters: int, *, last: bool) -> np.ndarray:
        """Answer at letter t the product of the first or the last t * quarters // 4 letters."""
        upto = np.pad(self.of_ids(ids), ((0, 0), (1, 0)))
        t = np.arange(1, upto.shape[1])
        kept = t * quarters // 4
        if not last:
            return np.asarray(upto[:, kept])
        return np.asarray(self.of.product[self.of.inverse[upto[:, t - kept]], upto[:, t]])

    def without_order(self, ids: np.ndarray) -> np.ndarray:
        """Answer at each letter one of the elements that letters in any order allow."""
        return self.of.known_without_order()[self.of_ids(ids)]
