"""`lra compare A B`: two rows or runs, example by example, from the answers in their records."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.config import UserError
from lra.report import paired, stats
from lra.results.record import Record, first_attempts, load_records, read_record
from lra.results.schema import flat

BINS = 4  # of lengths, equally many examples in each


@dataclasses.dataclass(frozen=True)
class Group:
    """The answers to test examples of one class or of a range of lengths."""

    name: str
    answers: int
    a: float  # percent right, mean over seeds
    b: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows or runs `a` and `b` on the same test examples; shares are percents."""

    answers: int  # as many as examples or, of a task that scores tokens, more
    examples: int
    together: int  # answers that the paired test flips together
    a: float  # accuracy, mean over seeds
    b: float
    p: float  # of the paired test
    agreement: float  # the same answer, right or wrong, mean over pairs of seeds
    both: float
    only_a: float
    only_b: float
    groups: list[Group]
    settings: dict[str, tuple[Any, Any]]  # those that differ


def compare(a: Sequence[Record], b: Sequence[Record], data_dir: Path | None = None) -> Comparison:
    """Compare two sets of runs, each of one row; lengths are known if the data are prepared."""
    sides = [[_answers(r) for r in runs] for runs in (a, b)]
    labels = sides[0][0].labels
    n = len(labels)
    examples = a[0].get("test.examples", n)
    together = n // examples if n % examples == 0 else 1
    digests = {g.labels_digest for side in sides for g in side}
    if len(digests) > 1:
        raise UserError(
            "these runs were not tested on the same examples: compare runs on the same data"
        )
    right = [np.stack([g.right for g in side]).astype(float) for side in sides]  # (seeds, n)
    mean_a, mean_b = (r.mean(0) for r in right)
    pairs = list(itertools.product(*sides))
    groups = [_group(f"class {c}", labels == c, mean_a, mean_b) for c in np.unique(labels).tolist()]
    if (lengths := _lengths(a[0], data_dir, n)) is not None:
        edges = np.unique(np.quantile(lengths, np.linspace(0, 1, BINS + 1), method="lower"))
        for low, high in itertools.pairwise(edges.tolist()):
            inside = (lengths >= low) & ((lengths < high) | (high == edges[-1]))
            groups.append(_group(f"length {low} to {high}", inside, mean_a, mean_b))
    both = float(np.mean([(x.right & y.right).mean() for x, y in pairs]))
    return Comparison(
        answers=n,
        examples=examples,
        together=together,
        a=100 * float(mean_a.mean()),
        b=100 * float(mean_b.mean()),
        p=paired.sign_flips((mean_a - mean_b).reshape(-1, together).sum(1)),
        agreement=100 * float(np.mean([(x.answers == y.answers).mean() for x, y in pairs])),
        both=100 * both,
        only_a=100 * (float(mean_a.mean()) - both),
        only_b=100 * (float(mean_b.mean()) - both),
        groups=[g for g in groups if g.answers],
        settings=_difference(a[0], b[0]),
    )


def find_runs(word: str, records: Iterable[Record]) -> list[Record]:
    """The runs that a word names: a run's folder, the name of a run as tables cite it, or an
    attention with some of its options and settings, `luna,M=8,task.pairs=32`."""
    place = Path(word)
    if _is_path(word):
        file = place / "result.json" if place.is_dir() else place
        if file.suffix != ".json" or not file.exists() or not (record := read_record(file)):
            raise UserError(f"{place} is no folder of a finished run: name it as tables do")
        return [record]
    name, *options = word.split(",")
    wanted = dict(option.partition("=")[::2] for option in options)
    named = [
        r
        for r in records
        if r.run == word
        or (r.attention == name and all(_has(r, key, text) for key, text in wanted.items()))
    ]
    if not named:
        raise UserError(
            f"'{word}' names no run: give its folder, its name, or an attention as in luna,M=8,L=8"
        )
    several = {(r["identity"], r.code) for r in named}
    if len(several) > 1:
        differ = sorted({k for x, y in itertools.pairwise(named) for k in _difference(x, y)})
        raise UserError(
            f"'{word}' names runs of {len(several)} rows, which differ in {', '.join(differ)}: "
            "name these options, choose with --task or --runs, or give paths"
        )
    return named


def _has(record: Record, key: str, text: str) -> bool:
    value = record.get(f"settings.{key}", record["attention"].get(key))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return value == float(text) if number else str(value).lower() == text.lower()
    except ValueError:
        return False


def _is_path(word: str) -> bool:
    """A folder may have an attention's name."""
    return "/" in word or word.endswith((".json", ".jsonl"))


def print_comparison(a: str, b: str, runs: Path, task: str | None, data_dir: Path) -> None:
    words = [w for w in (a, b) if not _is_path(w)]
    records = first_attempts(load_records([runs]))[0] if words else []
    records = [r for r in records if task in (None, r["task"])]
    left, right = find_runs(a, records), find_runs(b, records)
    c = compare(left, right, data_dir)
    sign = "differ" if c.p < stats.LEVEL else "could be chance"
    each = "answers" if c.answers > c.examples else "examples"
    test = (
        f"flips the signs of {c.together} answers in a row together, those of one example"
        if c.together > 1
        else "takes the answers of one example as independent, so its p may be too small"
    )
    lines = [
        f"A = {a} ({len(left)} seeds), B = {b} ({len(right)} seeds), {left[0]['task']}, "
        f"{c.answers:,} test {each}",
        f"accuracy   A {c.a:.2f} %   B {c.b:.2f} %   difference {c.a - c.b:+.2f} points, paired "
        f"test p = {c.p:.2g} ({sign})",
        *([f"paired     the test {test}"] if each == "answers" else []),
        f"answers    {c.agreement:.1f} % the same; both right {c.both:.1f} %, only A "
        f"{c.only_a:.1f} %, only B {c.only_b:.1f} %",
        *(f"{g.name:<20} {g.answers:>7,} {each}   A {g.a:5.1f} %   B {g.b:5.1f} %   "
          f"{g.a - g.b:+6.1f}" for g in c.groups),
        *(f"setting    {key}: A {x}, B {y}" for key, (x, y) in c.settings.items()),
    ]  # fmt: skip
    print("\n".join(lines))


def _answers(record: Record) -> Any:
    if (answers := record.answers) is None:
        raise UserError(
            f"{record.where} has no answers beside it: runs of this version keep them, earlier "
            "ones have to be run again"
        )
    return answers


def _group(name: str, inside: np.ndarray, a: np.ndarray, b: np.ndarray) -> Group:
    n = int(inside.sum())
    shares = (100 * float(side[inside].mean()) if n else 0.0 for side in (a, b))
    return Group(name, n, *shares)


def _lengths(record: Record, data_dir: Path | None, answers: int) -> np.ndarray | None:
    """Tokens of each test example (of the longer text of a pair); None without prepared data, where
    all are equally long, and for tasks that score tokens."""
    from lra.data.prepare import with_fingerprint

    prepared = None
    if data_dir is not None and record.get("data.fingerprint"):
        prepared = with_fingerprint(data_dir, record["task"], record["data.fingerprint"])
    if prepared is None:
        return None
    split = prepared.split("test")
    lengths = split.lengths(np.arange(len(split)))
    lengths = lengths.max(-1) if lengths.ndim == 2 else lengths
    several = len(np.unique(lengths)) > 1 and len(lengths) == answers
    return lengths if several else None


def _difference(a: Record, b: Record) -> dict[str, tuple[Any, Any]]:
    sides = [dict(flat(r["settings"])) | {"code": r.code} for r in (a, b)]
    keys = dict.fromkeys([*sides[0], *sides[1]])
    values = {key: (sides[0].get(key, "absent"), sides[1].get(key, "absent")) for key in keys}
    return {key: (x, y) for key, (x, y) in values.items() if x != y}
