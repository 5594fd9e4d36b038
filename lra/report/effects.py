"""Effects: the change by each setting while all others are equal, over any crossed set of runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lra.base.config import UserError
from lra.report.compare import FactsOf, differing
from lra.report.table import (
    Effect,
    options_of,
    pairs_of,
    setting_of,
    short_name,
    sortable,
    usual_of,
)
from lra.results.record import Key, Record

BASES = ("softmax", "none")  # the others are compared with these, else the usual or smallest value
SLOT = "dwc"  # an option that every attention has
SHARED = (f"attention.{SLOT}", "pretrain.name", "processes")  # may differ in every table
NO_SETTINGS = ("task", "seed", "tried")
Levels = dict[str, Any]  # setting -> its value in one run


def effects(
    records: Sequence[Record],
    vary: Sequence[str] = (),
    together: Sequence[str] = (),
    tried: Mapping[Key, Any] | None = None,
) -> list[Effect]:
    """Every level of every setting against the setting's base, as far as there are pairs of runs
    that differ in nothing else. The settings are the attention (its options, where all runs have
    the same one), its local branch, self-pretraining, and those of `vary`. Those of `together`,
    such as M and L where their product is constant, count as one. Where a value was chosen for
    each row, `tried` has those it was chosen from: rows with other choices make no pair."""
    levels, usual = _levels(records, vary, _options), _usual(records)
    if len(set(map(_place, levels))) < len(levels):  # runs repeated after the code had changed
        levels = _levels(records, vary, lambda r: {**_options(r), "code": r.code})
    if together:
        names = [short_name(key) for key in together]
        levels = [_as_one(run, names) for run in levels]
        usual = _as_one(usual, names) if usual else {}
    for run, r in zip(levels, records, strict=True):
        run["tried"] = str((tried or {}).get(r.key))
    scores = {_place(run): r.score for run, r in zip(levels, records, strict=True)}
    if len(scores) < len(levels):
        raise UserError("runs differ in settings that no effect shows; name them in `vary`")
    settings = dict.fromkeys(k for run in levels for k in run if k not in NO_SETTINGS)
    effects = []
    for setting in settings:
        values = sorted({run[setting] for run in levels if setting in run}, key=sortable)
        bases = (b for b in (*BASES, usual.get(setting)) if b in values)
        base = next(bases, values[0])
        for value in values:
            cells: dict[Any, list[float]] = defaultdict(list)
            for run in levels:
                other = scores.get(_place(run | {setting: base}))
                if run.get(setting) == value != base and other is not None:
                    cells[_place(run | {"seed": None})].append(scores[_place(run)] - other)
            if cells:
                effects.append(Effect(setting, str(value), str(base), list(cells.values())))
    return effects


def _levels(records: Sequence[Record], vary: Sequence[str], own_of: FactsOf) -> list[Levels]:
    """The value of every setting in each run; `own_of` gives those of its attention alone."""
    naming = differing(records, own_of)
    several = len(naming) > 1
    shared = [*SHARED, *filter(None, vary)]
    of_runs = []
    for r in records:
        settings = own_of(r)
        options = {key: _number_or_text(settings.get(key)) for key in naming[r.attention]}
        levels = {"task": r["settings.task.name"], "seed": r["seed"]}
        levels |= (
            {"attention": f"{r.attention} {pairs_of(options)}".strip()} if several else options
        )
        levels |= {short_name(key): _number_or_text(setting_of(r, key, "none")) for key in shared}
        of_runs.append(levels)
    return of_runs


def _usual(records: Sequence[Record]) -> Levels:
    several = len({r.attention for r in records}) > 1
    return {} if several else {key: _number_or_text(v) for key, v in usual_of(records[0]).items()}


def _as_one(levels: Levels, names: Sequence[str]) -> Levels:
    """The settings of these names as one setting, `M x L`, with values such as `64 x 1`."""
    for name in names:
        if name not in levels:
            raise UserError(
                f"`together` names '{name}', which is no setting in which these runs differ"
            )
    value = " x ".join(str(levels[name]) for name in names)
    rest = {key: level for key, level in levels.items() if key not in names}
    return {" x ".join(names): value} | rest


def _options(record: Record) -> dict[str, Any]:
    return {key: value for key, value in options_of(record).items() if key != SLOT}


def _number_or_text(value: Any) -> float | str:
    return value if isinstance(value, int | float) else str(value)


def _place(levels: Levels) -> frozenset[tuple[str, Any]]:
    return frozenset(levels.items())
