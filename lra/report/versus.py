"""Rows or runs compared example by example, from the answers in their records: `lra compare A B`,
and the paired tests of the rows of a conversion table."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console

from lra.base.config import UserError
from lra.report import stats
from lra.results.record import Record, first_attempts, load_records, read_record
from lra.runs.schema import flat

BINS = 4  # of lengths, equally many examples in each
LISTED = 6  # settings named in an error
FLIPS = 10_000
BLOCK = 100  # flips held at once; numpy draws four signs together, so a multiple of four
REGRESSION = "stsb"


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows or runs `a` and `b` on the same test examples; shares are percents."""

    answers: int  # as many as examples or, of a task that scores tokens, more
    examples: int
    together: int  # answers of one example, which the paired test flips together
    a: float  # accuracy, mean over seeds
    b: float
    p: float  # of the paired test
    agreement: float  # the same answer, right or wrong, mean over pairs of seeds
    both: float
    groups: pd.DataFrame  # answers, a and b of each class, and of each range of lengths
    settings: dict[str, tuple[Any, Any]]  # those that differ


def compare(a: Sequence[Record], b: Sequence[Record], data_dir: Path | None = None) -> Comparison:
    """Compare two sets of runs, each of one row; lengths are known if the data are prepared."""
    sides = [[_answers(r) for r in runs] for runs in (a, b)]
    if len({answers.labels_digest for side in sides for answers in side}) > 1:
        raise UserError(
            "these runs were not tested on the same examples: compare runs on the same data"
        )
    labels = sides[0][0].labels
    examples = a[0].get("test.examples", len(labels))
    together = len(labels) // examples if len(labels) % examples == 0 else 1
    right_a, right_b = (np.mean([answers.right for answers in side], axis=0) for side in sides)
    right = pd.DataFrame({"answers": 1, "a": 100 * right_a, "b": 100 * right_b})
    shares = {"answers": "sum", "a": "mean", "b": "mean"}
    groups = [right.groupby(labels).agg(shares).rename(index="class {}".format)]
    if (lengths := _lengths(a[0], data_dir, len(labels))) is not None:
        bins = pd.qcut(lengths, BINS, duplicates="drop", precision=0)
        groups.append(right.groupby(bins, observed=True).agg(shares).rename(index=str))
    pairs = list(itertools.product(*sides))
    return Comparison(
        answers=len(labels),
        examples=examples,
        together=together,
        a=float(right["a"].mean()),
        b=float(right["b"].mean()),
        p=sign_flips((right_a - right_b).reshape(-1, together).sum(1)),
        agreement=100 * float(np.mean([(x.answers == y.answers).mean() for x, y in pairs])),
        both=100 * float(np.mean([(x.right & y.right).mean() for x, y in pairs])),
        groups=pd.concat(groups),
        settings=_differences(a[0], b[0]),
    )


def find_runs(word: str, records: Iterable[Record]) -> list[Record]:
    """The runs that a word names: a run's folder, the name of a run as tables cite it, or an
    attention with some of its options and settings, `luna,M=8,task.pairs=32`."""
    if (place := Path(word) / "result.json").exists():
        record = read_record(place)
        return [record] if record else []
    name, *options = word.split(",")
    wanted = dict(option.partition("=")[::2] for option in options)

    def meant(record: Record) -> bool:
        return record.attention == name and all(_has(record, *pair) for pair in wanted.items())

    named = [record for record in records if record.run == word or meant(record)]
    if not named:
        raise UserError(
            f"'{word}' names no run: give a run's folder or name, or an attention as in "
            "luna,M=8,L=8; --runs says where it is looked up"
        )
    rows = {(r["identity"], r.code): r for r in named}
    if len(rows) > 1:
        pairs = itertools.pairwise(rows.values())
        differ = sorted({key for x, y in pairs for key in _differences(x, y)})
        more = f" and {len(differ) - LISTED} more" if len(differ) > LISTED else ""
        raise UserError(
            f"'{word}' names runs of {len(rows)} rows, which differ in "
            f"{', '.join(differ[:LISTED])}{more}: name these options, or choose with --task or "
            "--runs"
        )
    return named


def _has(record: Record, key: str, text: str) -> bool:
    value = record.get(f"settings.{key}", record["attention"].get(key))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return value == float(text) if number else str(value).lower() == text.lower()
    except ValueError:
        return False


def print_comparison(a: str, b: str, runs: Path, task: str | None, data_dir: Path) -> None:
    names = [w for w in (a, b) if not (Path(w) / "result.json").exists()]
    records = first_attempts(load_records([runs], skip=True))[0] if names else []
    records = [r for r in records if task in (None, r["task"])]
    left, right = find_runs(a, records), find_runs(b, records)
    c = compare(left, right, data_dir)
    unlike = "the answers of an example count as independent, so p may be too small"
    count = f"the {c.together} answers of an example count as one" if c.together > 1 else unlike
    sure = "they differ" if c.p < stats.LEVEL else "could be chance"
    lines = [
        f"A  {a}, {len(left)} seeds",
        f"B  {b}, {len(right)} seeds",
        f"{left[0]['task']}, {c.answers:,} test answers",
        "",
        f"accuracy  A {c.a:.2f} %   B {c.b:.2f} %   difference {c.a - c.b:+.2f} points",
        f"          paired test over examples: p = {c.p:.2g}, {sure}"
        + (f" ({count})" if c.answers > c.examples else ""),
        f"answers   {c.agreement:.1f} % the same; both right {c.both:.1f} %, only A "
        f"{c.a - c.both:.1f} %, only B {c.b - c.both:.1f} %",
        "",
        *(f"{name:<18} {g['answers']:>7,.0f} answers   A {g['a']:5.1f} %   B {g['b']:5.1f} %   "
          f"{g['a'] - g['b']:+6.1f}" for name, g in c.groups.iterrows()),
        *(f"setting  {key}: A {x}, B {y}" for key, (x, y) in c.settings.items()),
    ]  # fmt: skip
    Console(highlight=False, markup=False, soft_wrap=True).print("\n".join(lines))


def _answers(record: Record) -> Any:
    if (answers := record.answers) is None:
        raise UserError(
            f"{record.where} has no answers: earlier versions kept none, so the run has to be made "
            "again"
        )
    return answers


def _lengths(record: Record, data_dir: Path | None, answers: int) -> np.ndarray | None:
    """Tokens of each test example (of the longer text of a pair); None without prepared data, where
    all are equally long, and for tasks that score tokens."""
    from lra.data.prepare import with_fingerprint

    fingerprint = record.get("data.fingerprint")
    if data_dir is None or not fingerprint:
        return None
    if (prepared := with_fingerprint(data_dir, record["task"], fingerprint)) is None:
        return None
    split = prepared.split("test")
    lengths = split.lengths(np.arange(len(split)))
    lengths = lengths.max(-1) if lengths.ndim == 2 else lengths
    return lengths if len(np.unique(lengths)) > 1 and len(lengths) == answers else None


def _differences(a: Record, b: Record) -> dict[str, tuple[Any, Any]]:
    one, other = (dict(flat(r["settings"])) | {"code": r.code} for r in (a, b))
    keys = dict.fromkeys([*one, *other])
    values = {key: (one.get(key, "absent"), other.get(key, "absent")) for key in keys}
    return {key: (x, y) for key, (x, y) in values.items() if x != y}


# ---------------------------------------------------------------------- paired tests of many rows


@dataclasses.dataclass(frozen=True)
class Pair:
    """The difference of rows `a` and `b` on a task, in points of accuracy, with Holm's p-value."""

    a: str
    b: str
    difference: float
    p: float


def paired_tests(
    rows: Mapping[str, Sequence[Record]], wanted: Callable[[str, str], bool] = lambda a, b: True
) -> list[Pair]:
    """The wanted pairs of rows on one task, as far as their records have answers.

    A test of the examples sees smaller differences than one of the two scores (one example is 0.36
    points on RTE). An example's value is 1 for a right answer, 0 for a wrong one (in a regression 1
    minus the squared error), averaged over a row's seeds. If two rows are equally good, the sign of
    each example's difference is random. With one seed this is McNemar's test."""
    values = {label: _values(records) for label, records in rows.items()}
    answered = {label: value for label, value in values.items() if value is not None}
    pairs = {
        (a, b): answered[a] - answered[b]
        for a, b in itertools.combinations(answered, 2)
        if wanted(a, b) and len(answered[a]) == len(answered[b])
    }
    if not pairs:
        return []
    from statsmodels.stats.multitest import multipletests

    adjusted = multipletests([sign_flips(d) for d in pairs.values()], method="holm")[1]
    return [
        Pair(a, b, 100 * float(d.mean()), float(p))
        for ((a, b), d), p in zip(pairs.items(), adjusted, strict=True)
    ]


def sign_flips(differences: np.ndarray) -> float:
    """Two-sided p-value of the hypothesis that the mean is 0, by random signs. The same differences
    always give the same value. scipy's permutation_test does the same, ten times slower."""
    moved = differences[differences != 0]  # a sign does not change a zero
    if not len(moved):
        return 1.0
    rng, extreme = np.random.default_rng(0), 0
    for _ in range(FLIPS // BLOCK):
        signs = rng.integers(0, 2, (BLOCK, len(moved)), dtype=np.int8) * 2.0 - 1
        extreme += int((np.abs(signs @ moved) >= abs(moved.sum()) - 1e-9).sum())
    return (1 + extreme) / (1 + FLIPS)


def _values(records: Sequence[Record]) -> np.ndarray | None:
    """(examples,): mean over seeds of each example's value; None where a record lacks answers."""
    seeds = []
    for record in records:
        if (answers := record.answers) is None:
            return None
        squared = record["task"] == REGRESSION
        seeds.append(1.0 - (answers.answers - answers.labels) ** 2 if squared else answers.right)
    return np.mean(seeds, axis=0) if seeds else None
