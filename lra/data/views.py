"""What a shortcut may read of an example: a few of its tokens, or how often tokens occur.

A view gives columns of ids and columns of numbers for each answer. Where tokens have labels of
their own, it sees the token that is asked about besides; of a causal task it sees nothing behind
that. A view reads at most half of the tokens, or all of them and little of their order: of a few
tokens even that is everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from lra.data.arrays import IGNORED, Layout, Split

READ = 1024  # answers at once
LONGEST = 16  # tokens of one end that a table reads together
WIDEST = 1024  # columns of counts; rarer tokens are left out, and n-grams share columns
ENDS = (2, 8, 32)  # tokens of an end that are read together
ENOUGH = 2**22  # ids from which the most frequent ones are chosen
MIX = 65_599  # of a hash of neighbours
Columns = tuple[np.ndarray, np.ndarray]  # ids (n, a) and numbers (n, b)


class Asked(NamedTuple):
    """The answers that are asked of a split, or some of them, evenly chosen."""

    split: Split
    example: np.ndarray  # (n,)
    place: np.ndarray | None  # (n,) the token that is asked about, where each has a label
    labels: np.ndarray  # (n,), or a row for each


class Seen(NamedTuple):
    """What is stored for some answers; a pair of texts has two sides."""

    ids: np.ndarray  # (B, sides, tokens, ids of a token)
    lengths: np.ndarray  # (B, sides), in tokens
    place: np.ndarray | None
    layout: Layout

    @property
    def real(self) -> np.ndarray:
        """Which tokens may be read: (B, sides, tokens)."""
        at = np.arange(self.ids.shape[2])
        real = at < self.lengths[..., None]
        if self.layout.causal and self.place is not None:
            real &= at <= self.place[:, None, None]
        return np.asarray(real)

    def at(self, places: np.ndarray) -> np.ndarray:
        """Read the tokens at these places (B, sides, k): ids (B, columns), 0 outside."""
        inside = places.clip(0, self.ids.shape[2] - 1)
        there = np.take_along_axis(self.real, inside, 2) & (places == inside)
        ids = np.take_along_axis(self.ids, inside[..., None], 2)
        return np.where(there[..., None], ids, 0).reshape(len(ids), -1)


class View(NamedTuple):
    reads: str  # half a sentence
    read: Callable[[Seen], Columns]
    tokens: int | None = None  # of an example that it reads; none: all of them


def asked(split: Split, most: int) -> Asked:
    labels = np.asarray(split.labels)
    if split.layout.per_token:
        example, place = np.nonzero(labels != IGNORED)
    else:
        (example,), place = np.nonzero(split.layout.target.scored(labels)), None
    if len(example) > most:
        chosen = np.arange(most) * len(example) // most
        example, place = example[chosen], None if place is None else place[chosen]
    return Asked(
        split, example, place, labels[example] if place is None else labels[example, place]
    )


def seen(part: Asked) -> Iterator[Seen]:
    layout, split = part.split.layout, part.split
    for start in range(0, len(part.example), READ):
        index = part.example[start : start + READ]
        ids = split.ids(index).reshape(len(index), 1 + layout.dual, -1, layout.stack)
        lengths = split.lengths(index).reshape(len(index), -1).astype(np.int64) // layout.stack
        place = None if part.place is None else part.place[start : start + READ]
        yield Seen(ids.astype(np.int64), lengths, place, layout)


def columns(part: Asked, view: View) -> Columns:
    """Read all answers; the token that is asked about comes first."""
    ids, numbers = zip(*(view.read(block) for block in seen(part)), strict=True)
    return np.concatenate(ids).astype(np.int32), np.concatenate(numbers).astype(np.float32)


# ---------------------------------------------------------------------- the views


def first(n: int, skip: int = 0) -> Callable[[Seen], np.ndarray]:
    return lambda s: s.at(np.broadcast_to(skip + np.arange(n), (*s.lengths.shape, n)))


def last(n: int, skip: int = 0) -> Callable[[Seen], np.ndarray]:
    return lambda s: s.at(s.lengths[..., None] - 1 - skip - np.arange(n))


def around(before: int, after: int) -> Callable[[Seen], np.ndarray]:
    """The token that is asked about, and those beside it."""

    def read(s: Seen) -> np.ndarray:
        assert s.place is not None
        return s.at(s.place[:, None, None] + np.arange(-before, after + 1))

    return read


def tokens(*parts: Callable[[Seen], np.ndarray]) -> Callable[[Seen], Columns]:
    def read(s: Seen) -> Columns:
        found = np.hstack([part(s) for part in parts])
        return found, np.zeros((len(found), 0))

    return read


def tallied(
    codes: Callable[[Seen], np.ndarray], width: int, pieces: int = 1
) -> Callable[[Seen], Columns]:
    """Count codes of 1 to width - 1, in each of so many equal pieces of an example. Of a pair,
    count both sides, and say how far apart they are."""

    def read(s: Seen) -> Columns:
        code = codes(s)  # (B, sides, tokens, codes of a token)
        piece = np.arange(code.shape[2]) * pieces // np.maximum(s.lengths[..., None], 1)
        code = np.where(code > 0, code + width * piece.clip(max=pieces - 1)[..., None], 0)
        row = width * pieces * np.arange(s.lengths.size).reshape(*s.lengths.shape, 1, 1)
        counts = np.bincount((row + code).ravel(), minlength=width * pieces * s.lengths.size)
        counts = counts.reshape(*s.lengths.shape, width * pieces)
        counts[..., 0] = 0  # what is not counted
        sides = [counts[:, side] for side in range(counts.shape[1])]
        if s.layout.dual:
            sides += [abs(sides[0] - sides[1]), np.minimum(*sides)]
        return asked_token(s), np.hstack(sides)

    return read


def asked_token(s: Seen) -> np.ndarray:
    return np.zeros((len(s.ids), 0), np.int64) if s.place is None else around(0, 0)(s)


def single(vocabulary: np.ndarray) -> Callable[[Seen], np.ndarray]:
    """Codes (B, sides, tokens, ids of a token): numbers of a vocabulary, 0 for all others."""
    return lambda s: np.where(s.real[..., None], vocabulary[s.ids], 0)


def neighbours(n: int) -> Callable[[Seen], np.ndarray]:
    """Codes of n whole tokens in a row; different ones may share a code."""

    def codes(s: Seen) -> np.ndarray:
        mixed = np.zeros(s.ids.shape[:3], np.int64)
        for i in range(s.layout.stack):
            mixed = (mixed * MIX + s.ids[..., i]) % 2**40
        size = max(0, s.ids.shape[2] - n + 1)
        total = np.zeros((*mixed.shape[:2], size), np.int64)
        real = np.ones(total.shape, bool)
        for at in range(n):
            total = (total * MIX + mixed[..., at : at + size]) % 2**40
            real &= s.real[..., at : at + size]
        return np.where(real, total % (WIDEST - 1) + 1, 0)[..., None]

    return codes


def sizes(s: Seen) -> Columns:
    """How long an example is, and where it is asked."""
    place = np.zeros((len(s.ids), 0)) if s.place is None else s.place[:, None]
    lengths = np.zeros((len(s.ids), 0)) if s.layout.causal else s.lengths
    return asked_token(s), np.hstack([lengths, place])


def patches(side: int) -> Callable[[Seen], Columns]:
    """The mean and the contrast of each patch of a picture."""

    def read(s: Seen) -> Columns:
        assert s.layout.grid is not None
        rows, across = (n // side for n in s.layout.grid)
        pixels = s.ids.reshape(-1, *s.layout.grid)[:, : rows * side, : across * side]
        blocks = pixels.reshape(len(pixels), rows, side, across, side)
        found = [blocks.mean(axis=(2, 4)), np.ptp(blocks, axis=(2, 4))]
        return asked_token(s), np.stack(found, 1).reshape(len(s.ids), -1)

    return read


# ---------------------------------------------------------------------- which views a task has


def views_of(train: Asked) -> list[View]:
    """List what may be read in a task, the most telling and the cheapest first."""
    layout = train.split.layout
    it = "" if train.place is None else "the token asked about and "
    a = "grey level" if layout.grid else "token"
    ids = vocabulary_of(train)
    width = int(ids.max()) + 1
    own = int(bool(it))  # the token asked about
    views = [
        View(f"{it}how long an example is" + (" and where it asks" if it else ""), sizes, own),
        View(f"{it}how often each {a} occurs", tallied(single(ids), width)),
    ]
    if layout.grid:
        side = max(2, min(layout.grid) // 8)
        views.append(View(f"mean and contrast of patches of {side} x {side}", patches(side)))
    views += [View(reads, tokens(*parts), n + own) for reads, parts, n in _places(train)]
    for n in range(1 if layout.stack > 1 else 2, 4 if layout.grid is None else 0):
        what = "whole token occurs" if n == 1 else f"{n} neighbouring tokens occur"
        views.append(View(f"{it}how often each {what}", tallied(neighbours(n), WIDEST)))
    if width <= WIDEST // 4:
        quarters = tallied(single(ids), width, pieces=4)
        views.append(View(f"{it}how often each {a} occurs in each quarter", quarters))
    return views


def _places(train: Asked) -> Iterator[tuple[str, list[Callable[[Seen], np.ndarray]], int]]:
    """Yield views of a few tokens: those at both ends, and those beside the one asked about; and
    how many they are."""
    causal, half = train.split.layout.causal, reach(train)
    own = [] if train.place is None else [around(0, 0)]
    it = "the token asked about, " if own else ""
    for n in sorted({min(half, n) for n in ENDS}):
        if own:
            before, after = (n, 0) if causal else (n - n // 2, n // 2)
            beside = f"{it}the {before} before it" + (f" and the {after} after it" if after else "")
            yield beside, [around(before, after)], n
        yield f"{it}the first {_tokens(n)}", [*own, first(n)], n
        if not causal:
            yield f"{it}the last {_tokens(n)}", [*own, last(n)], n
        if 2 * n <= half and not causal:
            yield f"{it}the first {n} and the last {_tokens(n)}", [*own, first(n), last(n)], 2 * n


def _tokens(n: int) -> str:
    return f"{n} tokens" if n > 1 else "token"


def one_by_one(
    train: Asked, ends: int, beside: int
) -> Iterator[tuple[str, Callable[[Seen], np.ndarray]]]:
    """Yield single tokens by their place: from both ends, and beside the one asked about."""
    layout = train.split.layout
    if train.place is not None:
        yield "the token asked about", around(0, 0)
        for n in range(1, beside + 1):
            yield f"token {n} before the one asked about", around(n, -n)
            if not layout.causal:
                yield f"token {n} after the one asked about", around(-n, n)
    for n in range(min(ends, train.split.width // layout.stack)):
        place = f"token {n + 1}"
        yield place, first(1, skip=n)
        if not layout.causal:
            yield f"{place} from the end", last(1, skip=n)


def longer_and_longer(train: Asked) -> Iterator[tuple[str, View]]:
    """Yield views whose first n tokens are read, for an n that is found; the nearest come first."""
    causal, n = train.split.layout.causal, min(reach(train), LONGEST)
    if train.place is not None:
        places = [around(-at, at) for at in range(-n + 1, 1)][::-1]
        yield "{n} ids, from the token asked about backwards", View("", tokens(*places))
    yield "at most {n} ids from the start", View("", tokens(first(n)))
    if not causal:
        yield "at most {n} ids from the end", View("", tokens(last(n)))


def vocabulary_of(part: Asked) -> np.ndarray:
    """Number the most frequent ids from 1 on: (vocab,), 0 for the others and for padding."""
    layout = part.split.layout
    count = np.zeros(layout.vocab, np.int64)
    for block in seen(part):
        count += np.bincount(block.ids[block.real].ravel(), minlength=layout.vocab)
        if count.sum() > ENOUGH:
            break
    if layout.grid is None:
        count[0] = 0
    order = np.argsort(-count, kind="stable")[: WIDEST - 1]
    numbered = np.zeros(layout.vocab, np.int64)
    numbered[np.sort(order[count[order] > 0])] = np.arange(1, 1 + (count[order] > 0).sum())
    return numbered


def length_of(part: Asked) -> int:
    """The median length, in tokens."""
    lengths = part.split.lengths(part.example[: 8 * READ]).ravel() // part.split.layout.stack
    return max(1, int(np.median(lengths)))


def reach(part: Asked) -> int:
    """Half of the median length: nothing that reads more of the order is a shortcut."""
    return max(1, length_of(part) // 2)
