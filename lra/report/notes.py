"""Notes for a reader of a table: the sentences under it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from lra.base.errors import UserError, one_line
from lra.data import registry
from lra.report import stats
from lra.report.cell import all_of, each, rounded
from lra.report.table import (
    LEAST_DEAD,
    Table,
    pairs_of,
    sortable,
)

FLOOR = (
    "∅: no better than the best rule, which is chosen on dev and stands with its column, or than "
    "one answer to everything"
)
MEANINGS = {"∅": "no better than the best rule", "↓": "shown to be worse than the best row"}


def brief(table: Table) -> list[str]:
    """For a terminal: what the numbers are, what their marks say, and how to compute the rules. The
    notes of the table have all of it."""
    scores = scored_by(table.runs) if table.costs else "Scores in % on dev"
    marks = {*all_of(table.cells, "mark")}
    said = [f"{mark} {meaning}" for mark, meaning in MEANINGS.items() if mark in marks]
    without = [c for c in table.columns if table.rules.empty or table.rules[c].isna().all()]
    rules = list[str]()
    if table.costs and (table.runs["tune.name"] != "none").any():
        said.append("tune=lr: rate chosen on dev of seeds that are not shown")
    if table.costs and without:
        rules = [f"Rules not computed{_how(table, without[0])}"]
    elif table.missing:
        rules = [f"Rules incomplete{_how(table, next(iter(table.missing)))}"]
    lines = [f"{scores}: mean ± standard deviation (seeds). More: lra table --notes."]
    return [*lines, *(["; ".join(said) + "."] if said else []), *rules]


def _how(table: Table, column: str) -> str:
    """Behind a lack of rules: the command that computes those of the data of a column."""
    settings = table.column(column)["record"].iloc[0]["settings.task"]
    if settings["name"] not in registry.names():  # of arrays in memory, say
        return f", and '{settings['name']}' is known in its own script alone"
    task = registry.get(settings["name"])
    try:
        words = registry.overrides(task, registry.configure(task.name, settings=settings))
    except UserError:  # its options were others when it ran
        words = []
    return f": {shlex.join(['lra', 'data', 'baseline', task.name, *words])} --to rules.jsonl"


def training_notes(table: Table) -> Iterator[str]:
    spec, runs = table.spec, table.runs
    yield (
        f"Runs of {conditions(runs)}. {scored_by(runs)}: mean over seeds ± sample standard "
        "deviation (number of seeds)."
    )
    if any(pairs_of(options) not in label for label, options in table.rows["options"].items()):
        yield "Names leave out options that have their usual value."
    if (table.cells["compute"] != "-").any():
        yield (
            'Compute: "matched" is within the tolerance of the budget, "FLOPs ×1.34" the measure '
            'that is farthest from it, as a ratio; no setting of an "exempt" method meets it.'
        )
    if table.cells["state"].notna().any():
        yield (
            "State: how many numbers a head keeps between tokens in its causal form; – without "
            "one, or where the record is older than this column."
        )
    if (table.cells["dead"] >= LEAST_DEAD).any():
        yield "Dead queries: in % of those of the last test batch; their weights sum to 0."
    if spec.choose:
        values = ", ".join(map(str, sorted(runs[spec.choose].unique(), key=sortable)))
        yield (
            f"{spec.choose} has, in each cell, the value with the best mean score on dev of those "
            f"with most seeds; chosen were {values}."
        )
    yield from _tuned(runs)
    if len(pretrained := runs[runs["pretrain.name"] != "none"]):
        shared = int(pretrained.get("pretraining.run", pd.Series()).duplicated(keep=False).sum())
        yield (
            "pretrain: the network learned before to predict masked (masked) or next tokens "
            "(causal); steps, speed and budget are those of the training on labels."
            + (f" {shared} of these runs share a pretrained network." if shared else "")
        )
    if all_of(table.cells, "mark").eq("∅").any():
        yield f"{FLOOR}."
    if n := len(table.taken) - len(table.taken.drop_duplicates(["identity", "code", "seed"])):
        yield f"{n} repeated runs (rerun=true) are not shown: the first to finish counts."
    if mixed := rows_of_several_sources(runs):
        yield (
            f"{', '.join(mixed)}: made by code that differs in its source and declares the same "
            "numerics."
        )
    yield from comparisons(table)
    for column in table.columns:
        yield _column_note(table, column)


def _tuned(runs: pd.DataFrame) -> Iterator[str]:
    """Which rates were chosen on dev, by which trials, and which lie at the end of their grid."""
    tuned = runs[runs["tune.name"] != "none"].drop_duplicates(["row", "column"])
    if tuned.empty:
        return
    kinds = tuned.groupby(["tune.grid", "tune.seeds", "tune.steps_share"], sort=False)
    for (grid, seeds, share), _ in kinds:
        yield (
            f"tune=lr: the rate is the lowest of {grid} whose mean score on dev is within one "
            f"standard error of the best, over seeds {seeds}, which are not shown, at {share:g} of "
            "the steps. The steps of these trials are told in runs of their row, and count towards "
            "no budget."
        )
    ends = [
        f"{run['row']} on {run['column']}"
        for _, run in tuned.iterrows()
        if run["tuning.chosen"] in (min(g := run["record"]["settings.tune.grid"]), max(g))
    ]
    if ends:
        yield f"At an end of their grid, beyond which a better rate may lie: {', '.join(ends)}."


def rows_of_several_sources(runs: pd.DataFrame) -> list[str]:
    """The rows with a cell whose runs are of one version and of more than one source."""
    sources = runs.groupby(["row", "column"])["source"].nunique()
    return [str(row) for row in sources[sources > 1].index.unique("row")]


def scored_by(runs: pd.DataFrame) -> str:
    """`Test accuracy in %`; the metric of each column where they differ."""
    metrics = runs.drop_duplicates("column").set_index("column")
    words = {column: scored_in(metric) for column, metric in metrics.iterrows()}
    if len({*words.values()}) == 1:
        return f"Test {next(iter(words.values()))}"
    return "Test scores: " + ", ".join(f"on {column} {text}" for column, text in words.items())


def scored_in(run: pd.Series) -> str:
    """`accuracy in %`, `RMSE (lower is better)`"""
    unit = f" in {run['metric.unit']}" if run["metric.unit"] else ""
    better = "" if run["metric.higher_is_better"] else " (lower is better)"
    return f"{run['metric.title']}{unit}{better}"


def conditions(runs: pd.DataFrame) -> str:
    protocols = runs["protocol.name"] + " v" + runs["protocol.version"].map(str)
    share = runs["steps_share"].map("{:g}".format)
    facts = runs[["model", "precision"]].assign(protocol=protocols, **{"steps share": share})
    return ", ".join(
        f"{name} {' and '.join(sorted({*facts[name].map(str)}))}"
        for name in ("protocol", "model", "steps share", "precision")
    )


def comparisons(table: Table) -> Iterator[str]:
    """How the rows were compared, and where more seeds are needed."""
    seeds = table.cells["seeds"]
    if len(table.rows) < 2:
        return
    if seeds.max() < stats.LEAST_SEEDS:
        yield f"No row is marked: {stats.FEW}"
        return
    yield f"Bold: the best mean of its column. {stats.NOTE}"
    for column in table.columns:
        cells = table.column(column)
        if cells["leaps"].any():
            yield stats.LEAPS.format(column=column)
        if limit := limit_between_kinds(cells):
            yield stats.KINDS.format(column=column, limit=limit)
    if table.spec.effects and all_of(table.cells, "mixed").any():
        yield "Effects leave out rows with seeds of both kinds."
    if (seeds < stats.LEAST_SEEDS).any():
        yield stats.FEW.capitalize()
    for column in table.columns:
        needs = table.column(column)["needs"].dropna().astype(int)
        rows = ", ".join(
            f"{row} ({n if n <= stats.MOST_SEEDS else 'more than 100'})" for row, n in needs.items()
        )
        if rows:
            yield (
                f"Not shown to differ from the best on {column}; in brackets, how many seeds per "
                f"row would about be needed: {rows}."
            )


def limit_between_kinds(cells: pd.DataFrame) -> str:
    """The score between the two kinds of runs of a column; empty where they are of one kind."""
    of_two_kinds = cells[cells["limit"].notna()]
    if of_two_kinds.empty:
        return ""
    first = next(each(of_two_kinds))
    return rounded(first.sign * first.limit, first.digits)


def _column_note(table: Table, column: str) -> str:
    runs = table.runs[table.runs["column"] == column]
    first = runs.iloc[0]
    machines = sorted({*(runs["machine.device"] + ", threads " + runs["machine.threads"].map(str))})
    examples, scored = first["stage.examples"], first.get("stage.scored")
    if pd.notna(scored) and scored != examples:  # each token has a label
        examples = f"{scored} tokens of {examples}"
    parts = [
        f"data {first['data.source']} ({first.get('data.provenance') or 'source as named'}), "
        f"fingerprint {first['fingerprint']}",
        f"{first['steps']} steps of {first['batch']} examples",
        f"{examples} test examples, {first['select']} checkpoint",
    ]
    if pd.notna(first["floor"]):
        floor = f"the same answer to everything gives {first['record'].text(first['floor'])}"
        learned = table.column(column)["learned"].any()
        parts.append(floor + ("" if learned else ", no row is above that and so none is best"))
    if column in table.missing:
        missing = ", ".join(table.missing[column])
        parts.append(f"rules incomplete, without {missing}: no row is held against them")
    for what, bound in (("best rule gives", False), ("bound is", True)):
        if (best := table.best_rule(column, bound)) is not None:
            score = first["record"].text(table.rules.loc[best, column])
            reads = table.rules.loc[best, "reads"]
            parts.append(f"the {what} {score} ({best}, reads {reads})")
    budgets = " or ".join(runs["record"].map(_budget_name).unique())
    parts += [f"compute budget {budgets}", f"machine {' / '.join(machines)}"]
    if table.spec.speed and table.column(column)["steps_per_second"].isna().any():
        parts.append("no speed or memory, because they come from different machines")
    return one_line(f"{column}: {'; '.join(parts)}.")


def _budget_name(record: Any) -> str:
    """The compute budget that a run was held to."""
    if (budget := record.get("compute.budget")) is None:
        return "none (compute=off)"
    limits = [f"{budget['parameters']:,} parameters"] if budget.get("parameters") else []
    limits += [f"{budget['flops'] / 1e9:.3f} GFLOPs"] if budget.get("flops") else []
    return f"{budget.get('reference')}: {', '.join(limits)}"


def compute_class(compute: Mapping[str, Any]) -> str:
    """`matched`, or the measure that is worst and its ratio to the budget, `FLOPs ×0.25`; and
    whether the method is exempt."""
    verdict = compute.get("verdict") or "-"
    ratios = {m: r for m, r in (compute.get("reference") or {}).items() if m != "attention"}
    if "×" in verdict and ratios:
        worst = verdict.rpartition("×")[2]
        measure = min(ratios, key=lambda m: abs(ratios[m] - float(worst.replace(",", ""))))
        verdict = f"{'FLOPs' if measure == 'flops' else measure} ×{worst}"
    exempt = compute.get("exempt") and verdict != "matched"
    return f"exempt, {verdict}" if exempt else verdict


def conversion_notes(
    table: Table, control: str, floor: pd.Series, stage_2: str, usual: Mapping[str, str]
) -> Iterator[str]:
    """`usual` are the settings of the rows of each attention that name no others."""
    floors = ", ".join(f"{task} {value:.1f}" for task, value in floor.items())
    machines = {
        f"{r.get('machine.device') or 'unknown device'} (torch {r.get('versions.torch')})"
        for r in table.runs["record"]
    }
    yield (
        "Scores in % (on images top-1 accuracies), on the dev set, of the epoch that is best on "
        "that dev set: mean over seeds ± sample standard deviation (number of seeds)."
    )
    yield f"{control}: the teacher, which keeps its softmax, after the same stage 2 as the others."
    yield (
        "Recovery: the score in % of the teacher's, for rows that have every task. Mean of ratios: "
        "the mean over tasks of score / teacher. Ratio of means: mean score / mean score of the "
        f"teacher. Headroom: the score above always giving one answer ({floors}), in % of the "
        "teacher's, mean over tasks."
    )
    yield from comparisons(table)
    yield f"Stage 2 of every row: {stage_2 or 'none'}. Run on {', '.join(sorted(machines))}."
    if not table.cells["learned"].all():
        yield f"{FLOOR}; not ranked, and a row with no other score has no recovery."
    for name, settings in usual.items():
        if settings:
            yield f"Rows of {name} that name no other settings have {settings}."
