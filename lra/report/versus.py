"""Rows or runs compared example by example, from the answers in their records: `lra compare A B`,
and the paired tests of the rows of a conversion table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lra.base.errors import UserError, nearest
from lra.looks import beside, look_of
from lra.metrics.metric import get
from lra.metrics.target import Classes, target_class
from lra.report import stats
from lra.report.table import Table
from lra.report.words import LISTED, differences, example, find_runs, rank_of, rows_of
from lra.results.audit import target_of
from lra.results.frame import frame_of
from lra.results.record import Record, first_finished, load_records

FLIPS = 10_000
BLOCK = 100  # flips held at once; numpy draws four signs together, so a multiple of four


def compare(a: Sequence[Record], b: Sequence[Record]) -> dict[str, Any]:
    """Compare two sets of runs, each of one row, on the same test examples: the scores `a` and `b`
    (means over seeds), `p` of the paired test of their answers' values, the number of `answers`,
    and how many of one example are taken `together` by that test. Of classes also `both` right and
    the `same` answer (right or wrong, mean over pairs of seeds), in percent."""
    for record in (*a, *b):
        if record.answers is None:
            raise UserError(f"{record.where} has no answers: the run has to be made again")
    sides: list[list[Any]] = [[record.answers for record in runs] for runs in (a, b)]
    if len({answers.digests()["labels"] for side in sides for answers in side}) > 1:
        raise UserError("these runs were not tested on the same examples")
    n = len(sides[0][0].labels)
    examples = a[0].stage.get("examples", n)
    together = n // examples if n % examples == 0 else 1
    target = target_of(a[0])
    values_a, values_b = (np.mean([target.values(x) for x in side], axis=0) for side in sides)
    compared = {
        "a": np.mean([record.score for record in a]),
        "b": np.mean([record.score for record in b]),
        "p": sign_flips((values_a - values_b).reshape(-1, together).sum(1)),
        "answers": n,
        "examples": examples,
        "together": together,
    }
    if isinstance(target, Classes):
        pairs = list(itertools.product(*sides))
        compared |= {
            "right": [100 * values_a.mean(), 100 * values_b.mean()],
            "both": 100 * np.mean([(x.right & y.right).mean() for x, y in pairs]),
            "same": 100 * np.mean([(x.answers == y.answers).mean() for x, y in pairs]),
        }
    return compared


def print_comparison(words: Sequence[str], folder: Path, task: str | None) -> None:
    """Print what two rows have in common and in what they differ; without two words the rows."""
    records = load_records([folder], skip=True) if folder.exists() else []
    if not records:
        raise UserError(
            f"{folder} holds no finished run; train one first (lra train), or name a folder of "
            "runs or records: --runs"
        )
    runs = frame_of(first_finished(records))
    if task and task not in (there := {*runs["task"]}):
        raise UserError(f"--task {task}: the runs in {folder} have none{nearest(task, there)}")
    runs = runs[runs["task"] == task] if task else runs
    if len(words) != 2:
        pair = example(runs)
        such = f", such as: lra compare {pair} --runs {folder}" if pair else ""
        raise UserError(f"give two of the rows in {folder}{such}\n{rows_of(runs)}")
    left, right = (find_runs(word, runs) for word in words)
    c = compare([*left["record"]], [*right["record"]])
    unlike = "the answers of an example count as independent, so p may be too small"
    count = f"the {c['together']} answers of an example count as one"
    several = f" ({count if c['together'] > 1 else unlike})" if c["answers"] > c["examples"] else ""
    sure = "these networks differ" if c["p"] < stats.LEVEL else "could be chance"
    budgets = [
        f"{r.get('steps')} steps of {r.get('batch')}, steps share {r.get('steps_share')}"
        for r in (left.iloc[0], right.iloc[0])
    ]
    unequal = "The budgets differ, which is part of the difference: A {}; B {}".format(*budgets)
    lines = [
        *([unequal] if budgets[0] != budgets[1] else []),
        f"A  {beside(words[0], look_of(words[0]).name)}, {len(left)} seeds",
        f"B  {beside(words[1], look_of(words[1]).name)}, {len(right)} seeds",
        f"{left['task'].iloc[0]}, {c['answers']:,} test answers",
        "",
        f"{_scores(left['record'].iloc[0], c['a'], c['b'])}",
        f"networks  paired test over examples: p = {c['p']:.2g}, {sure}{several}",
        f"methods   {_of_methods([*left['record']], [*right['record']])}",
    ]
    if "right" in c:
        only_a, only_b = (right - c["both"] for right in c["right"])
        lines += [
            f"answers   {c['same']:.1f} % the same; both right {c['both']:.1f} %, only A "
            f"{only_a:.1f} %, only B {only_b:.1f} %"
        ]
    lines += [""]
    settings = differences(pd.concat([left.iloc[:1], right.iloc[:1]]))
    settings = {key: values for key, values in settings.items() if "absent" not in values}
    order = sorted({*settings} - {"attention"}, key=lambda k: (k != "attention.name", *rank_of(k)))
    lines += [f"setting   {key}: A {'{}, B {}'.format(*settings[key])}" for key in order[:LISTED]]
    lines += [f"          and {len(order) - LISTED} more"] * (len(order) > LISTED)
    print("\n".join(lines))


def _scores(record: Record, a: float, b: float) -> str:
    metric = record["metric"]
    unit = "points" if metric["unit"] == "%" else metric["unit"]
    lower = "" if metric["higher_is_better"] else ", lower is better"
    difference = f"{a - b:+.{metric['digits'] + 1}f} {unit}".rstrip()
    name = f"{metric['title']:<9}"
    return f"{name} A {record.text(a)}   B {record.text(b)}   difference {difference}{lower}"


def _of_methods(a: Sequence[Record], b: Sequence[Record]) -> str:
    """What the test of the tables says, in which seeds and examples are drawn at random."""
    if (fewest := min(len(a), len(b))) < stats.LEAST_SEEDS:
        seeds = "a single seed says" if fewest == 1 else "two seeds say"
        return f"not shown to differ: {seeds} too little, train {stats.LEAST_SEEDS} or more of each"
    sign = 1 if a[0]["metric.higher_is_better"] else -1
    noise = [float(np.mean([_noise(record) for record in side])) for side in (a, b)]
    samples = [[sign * record.score for record in side] for side in (a, b)]
    p = stats.compare_with_best(samples, noise)["p"].min()
    sure = "these methods differ" if p < stats.LEVEL else "not shown to differ"
    return "test over seeds and examples: " + ("equal" if math.isnan(p) else f"p = {p:.2g}, {sure}")


def _noise(record: Record) -> float:
    if (noise := record.stage.get("noise")) is not None:
        return float(noise)
    return stats.noise_of_share(record.score, record.stage.get("examples") or stats.ANSWERS)


# ---------------------------------------------------------------------- paired tests of many rows


def example_by_example(table: Table) -> pd.DataFrame:
    """Paired tests, a line per pair of rows and column: of every two rows that have all tasks, and
    of two of one attention of which one has the settings of the other and more."""
    rows, n = table.rows, len(table.columns)
    complete = {*rows.index[rows["coverage"] == f"{n}/{n}"]}
    names = rows[["attention", "options"]].itertuples()
    named = {row: {("attention", name), *options.items()} for row, name, options in names}

    def wanted(a: str, b: str) -> bool:
        return {a, b} <= complete or named[a] <= named[b] or named[b] <= named[a]

    lines = []
    for task in table.columns:
        records = table.column(task)["records"].dropna()
        lines += [(task, *test) for test in paired_tests(records.to_dict(), wanted)]
    return pd.DataFrame(lines, columns=["column", "first", "second", "difference", "p"])


def paired_tests(
    rows: Mapping[str, Sequence[Record]], wanted: Callable[[str, str], bool] = lambda a, b: True
) -> list[tuple[str, str, float, float]]:
    """The wanted pairs of rows on one task, as far as their records have answers: the two, their
    difference in points of accuracy, and Holm's p-value.

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
    adjusted = stats.holm([sign_flips(d) for d in pairs.values()])
    return [
        (a, b, 100 * float(d.mean()), float(p))
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
        target = target_class(get(record["metric.name"]).targets[0])(1)
        seeds.append(target.values(answers))
    return np.mean(seeds, axis=0) if seeds else None
