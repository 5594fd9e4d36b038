"""`lra table`: the runs of a folder on the terminal, one table per set of comparable runs."""

from __future__ import annotations

import textwrap
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from rich import box
from rich.console import Console, Group
from rich.table import Table as Lines
from rich.text import Text

from lra.base.errors import UserError, nearest
from lra.looks import beside, look_of
from lra.report import rungs
from lra.report.conversions import conversions
from lra.report.grids import MISSING, Grid, colour_of_cell, grids_of, ink_on, scale_of
from lra.report.latex import WRITERS
from lra.report.notes import brief
from lra.report.render import EFFECT, EFFECTS, RULES, lines_of, rules_of, wide
from lra.report.specs import TableSpec, below, select, specs
from lra.report.table import Table, differing, is_option, short_name
from lra.report.trainings import RATE, build, compared
from lra.results import audit
from lra.results.frame import frame_of
from lra.results.record import first_finished, read_all
from lra.runs.schema import TRAINING

# Facts that the notes of every table show; a title has the others in which tables differ.
IN_NOTES = (
    "model",
    "steps_share",
    "precision",
    "protocol.name",
    "protocol.version",
    "data.source",
    "data.fingerprint",
    "protocol.recipe.batch",
    "protocol.recipe.steps",
    "stage.examples",
    "select",
    "metric",
    "compute.budget.reference",
    "compute.budget.parameters",
    "compute.budget.flops",
)
BRIEF_EFFECTS = "Points of accuracy, over rows that differ in this setting alone; more: --notes."


def print_tables(a: Namespace) -> None:
    tables = tables_of_runs(a)
    if a.format:
        texts = [WRITERS[a.format](table, None) for table in tables]
        if a.format == "csv":  # one head for all
            texts[1:] = [text.partition("\n")[2] for text in texts[1:]]
        print("".join(texts), end="")
        return
    console = Console(highlight=False)
    for table in tables:
        notes = table.notes if a.notes else brief(table)
        console.print(_grid(table.spec.title, notes, _named(table), console.width, a.notes), "")
        if not table.rules.empty:
            rules = rules_of(table) if a.notes else rules_of(table).drop(columns="reads")
            console.print(_grid("rules", [RULES] * a.notes, rules, console.width, a.notes), "")
        if not table.rungs.empty:
            shown, notes = rungs.in_words(table.rungs), [rungs.note_of(table.rungs)] * a.notes
            console.print(_grid("by what must be read", notes, shown, console.width), "")
        elif a.rungs and table.costs:
            console.print("by what must be read: not known of these data (lra data baseline)", "")
        grids = [*grids_of(table)]
        for grid in grids:
            scale = scale_of(other for other in grids if other.column == grid.column)
            console.print(_heat_map(grid, scale, console.width), "")
        if not table.effects.empty:
            changes, notes = (
                lines_of(table.effects, EFFECT),
                [EFFECTS if a.notes else BRIEF_EFFECTS],
            )
            console.print(_grid("effect of each setting", notes, changes, console.width), "")
        elif a.effects and table.costs:
            console.print("effect of each setting: no two rows differ in one setting alone", "")


def _named(table: Table) -> pd.DataFrame:
    """The table's cells; a method whose word is not its name has its name beside it."""
    methods = ((str(label), method) for label, method in table.rows["attention"].items())
    names = {
        label: beside(label, look_of(label).name) for label, method in methods if label == method
    }
    return wide(table).rename(index=names)


def tables_of_runs(a: Namespace) -> list[Table]:
    """The tables of the runs that the options name. Runs that differ in more than the attention,
    its options, the seed and what `--vary` names never share one."""
    records = audit.without_contradictions(read_all([a.runs], skip=True))
    runs = frame_of(first_finished(records, same=4))
    if runs.empty:
        raise UserError(f"{a.runs} holds no finished run; train one first: lra train")
    for option in ("task", "attention"):
        there = {*runs[option]}
        none = f"the runs in {a.runs} have none"
        for name in {*getattr(a, option)} - there:
            raise UserError(f"--{option} {name}: {none}{nearest(name, there)}")
    refuse_unknown(a.vary, runs[runs["kind"] == TRAINING], a.runs)
    runs = select(runs, {key: getattr(a, key) for key in ("task", "attention") if getattr(a, key)})
    if runs.empty:
        raise UserError(f"{a.runs} holds no finished run of these attentions on these tasks")
    return [*_training(runs[runs["kind"] == TRAINING], a), *conversions(runs)]


def refuse_unknown(vary: Iterable[str], runs: pd.DataFrame, place: str) -> None:
    """UserError for a setting that no table of these runs can vary."""
    facts = [name for part in compared(runs) for name in part]
    options = [c for c in runs if is_option(c) and c != "attention.name"]
    settings = [name for name in dict.fromkeys([*facts, *options]) if runs[name].notna().any()]
    for name in vary:
        if name in settings:
            continue
        if name == "seed":
            raise UserError("--vary seed: tables average over seeds, so name another setting")
        problem = f"--vary {name}: the runs in {place} have no such setting"
        if called := [setting for setting in settings if short_name(setting) == name]:
            raise UserError(f"{problem}; did you mean {' or '.join(called)}?")
        # There are a hundred settings; those in which the runs differ are worth a list.
        apart = differing(runs.assign(column=runs["task"]), settings)
        raise UserError(problem + nearest(name, settings, shown=apart or settings))


def _training(runs: pd.DataFrame, a: Namespace) -> Iterator[Table]:
    results, number = Path(a.results), Counter[str]()
    # Runs that shared their machine with other work, as the tables of the results folder say.
    shared = [below(runs, results / "records" / s.records) for s in specs(results) if not s.speed]
    folders = Path(a.runs).resolve().parent, results  # of files of rules
    runs = without_trials(runs, a.vary)
    vary = a.vary or searched(runs)
    for group, differences in comparable(runs, vary):
        tasks = group["task"].unique()
        number[name := "-".join(tasks)] += 1
        name += f"-{number[name]}" if number[name] > 1 else ""
        differ = [f"{k} {v}" for k, v in differences.items() if k not in IN_NOTES]
        if any(fact.startswith("task.") for fact in differences):  # what these follow from
            differ = [words for words in differ if not words.startswith("protocol.data.")]
        differ = [*_brief(differences), *differ]
        speed = not any(there[group.index].any() for there in shared)
        spec = TableSpec(
            name=name,
            title=", ".join([*tasks, *differ]),
            vary=vary,
            effects=a.effects,
            rungs=a.rungs,
            speed=speed,
        )
        yield build(spec, group, *folders)


def without_trials(runs: pd.DataFrame, vary: Sequence[str]) -> pd.DataFrame:
    """Leave out the trials by which a rate was chosen, unless rates are asked for."""
    cited = {t["run"] for record in runs["record"] for t in record.get("tuning.trials") or ()}
    return runs if RATE in vary else runs[~runs["run"].isin(cited)]


def _brief(differences: dict[str, str]) -> Iterator[str]:
    """What tells this table from others of the same tasks and is else in their notes alone."""
    if "protocol.name" in differences or "protocol.version" in differences:
        name, version = (differences.get(f"protocol.{fact}", "") for fact in ("name", "version"))
        yield " ".join(filter(None, ["protocol", name, version and f"v{version}"]))
    for fact in ("model", "steps_share"):
        if fact in differences:
            yield f"{fact} {differences[fact]}"


def comparable(
    runs: pd.DataFrame, vary: Sequence[str] = ()
) -> Iterator[tuple[pd.DataFrame, dict[str, str]]]:
    """The runs in groups that may share a table, in which the settings of `vary` may differ: as few
    as there can be, with as many tasks; each with the facts in which runs of one task differ."""
    if runs.empty:
        return
    of_table, of_column = compared(runs, vary)
    texts = runs[[*of_table, *of_column]].fillna("absent").map(str)
    if RATE in texts:  # a row whose rate was chosen stands beside those of the task's usual rate
        chosen = runs["tune.name"] != "none"
        usual = texts[RATE].mask(chosen).groupby(runs["task"]).transform("first")
        texts[RATE] = texts[RATE].mask(chosen, usual.fillna("chosen"))
    table, column = (texts[facts].agg("|".join, axis=1) for facts in (of_table, of_column))
    nth = column.groupby([table, runs["task"]]).transform(lambda keys: pd.factorize(keys)[0])
    # The data's fingerprint tells tasks apart; a reader wants the options that made them.
    texts = pd.concat([texts, runs.filter(regex=r"^task\.").fillna("absent").map(str)], axis=1)
    counts = texts.groupby(runs["task"]).nunique().max()
    for _, group in runs.groupby([table, nth], sort=False):
        differ = texts.loc[group.index, counts.index[counts > 1]]
        words = (differ.loc[differ[fact] != "absent", fact].unique() for fact in differ)
        yield group, {f: " or ".join(w) for f, w in zip(differ, words, strict=True) if len(w)}


def searched(runs: pd.DataFrame) -> list[str]:
    """The settings in which runs of one attention differ, as in a search by Optuna: they name the
    rows of one table. Where there are more attentions, each has to be had at equal settings."""
    settings = [c for c in runs if c.startswith(("model.", "protocol.recipe."))]
    values = runs[settings].map(str).groupby(runs["task"]).nunique().max()
    return [*values.index[values > 1]] if runs["attention"].nunique() == 1 else []


def _heat_map(grid: Grid, scale: tuple[float, float], width: int) -> Group:
    """A grid whose cells are the darker, the better they are, on a terminal with colours."""
    texts, styles = grid.texts(), []
    for row in grid.rows:
        cells = [grid.cells.get((row, column)) for column in grid.columns]
        colours = [None if cell is None else colour_of_cell(cell, scale) for cell in cells]
        styles.append(
            ["" if colour is None else f"{ink_on(colour)} on {colour}" for colour in colours]
        )
    title = f"{', '.join(filter(None, [grid.column, grid.others]))}: {grid.down} x {grid.across}"
    notes = [f"{MISSING}: no run."] if (texts == MISSING).any(axis=None) else []
    return _grid(title, notes, texts, width, styles=styles)


def _grid(
    title: str,
    notes: Sequence[str],
    body: pd.DataFrame,
    width: int,
    in_full: bool = True,
    styles: Sequence[Sequence[str]] = (),
) -> Group:
    """Where columns are too many for the terminal, long names are folded and the last columns left
    out. Brief notes are wrapped here, those in full by the console. `styles` are rich's, of every
    cell."""
    lines = body.reset_index()
    needs = [max(map(len, (name, *lines[name]))) + 1 for name in lines]
    if sum(needs) > width + 1:
        needs[0] = min(needs[0], width // 2)
    fit = max(2, sum(pd.Series(needs).cumsum() <= width + 1))
    if left_out := [*lines.columns[fit:]]:
        notes = [*notes, f"Not shown on {width} columns: {', '.join(left_out)}."]
    if not in_full:  # a command among them is not torn at its hyphens
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        notes = [wrapper.fill(note) for note in notes]
    grid = Lines(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
        show_edge=False,
        title=title,
        title_style="bold",
        title_justify="left",
    )
    for i, name in enumerate(lines.columns[:fit]):
        grid.add_column(name, justify="right" if i else "left", no_wrap=i > 0, max_width=needs[i])
    shown = lines[lines.columns[:fit]].itertuples(index=False, name=None)
    for i, (name, *cells) in enumerate(shown):
        if styles:
            cells = [Text(*cell) for cell in zip(cells, styles[i], strict=False)]
        grid.add_row(name, *cells)
    return Group(grid, *(Text(note, style="dim") for note in notes))
