"""What each setting changes while all others are equal, over any crossed set of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lra.config import UserError
from lra.groups import usual_options
from lra.record import Record
from lra.report.compare import FactsOf, differing
from lra.report.table import Effect, pairs_of, short_name, sortable

BASES = ("softmax", "none")  # what the others are compared with; else with the most frequent value
SLOT = "dwc"  # an option that every attention has
SHARED = (f"attention.{SLOT}", "pretrain.name")  # settings that may differ in every table
Levels = dict[str, Any]  # setting -> its value in one run


def effects(
    records: Sequence[Record], vary: Sequence[str] = (), together: Sequence[str] = ()
) -> list[Effect]:
    """Every level of every setting against the setting's base, as far as there are pairs of runs
    that differ in nothing else. The settings are the attention (its options, where all runs have
    the same one), its local branch, self-pretraining, and those of `vary`. Those of `together`,
    such as M and L where their product is constant, count as one."""
    levels = _levels(records, vary, _options)
    if len(set(map(_place, levels))) < len(levels):  # runs repeated after the code had changed
        levels = _levels(records, vary, lambda r: {**_options(r), "code": r.code})
    if together:
        levels = [_as_one(found, [short_name(key) for key in together]) for found in levels]
    scores = {_place(found): r.score for found, r in zip(levels, records, strict=True)}
    settings = dict.fromkeys(
        key for found in levels for key in found if key not in ("task", "seed")
    )
    effects = []
    for setting in settings:
        runs = Counter(found[setting] for found in levels if setting in found)
        values = sorted(runs, key=sortable)
        base = next((b for b in BASES if b in values), max(values, key=runs.__getitem__))
        for value in values:
            pairs = (
                (scores.get(_place(found | {setting: base})), scores[_place(found)])
                for found in levels
                if found.get(setting) == value != base
            )
            differences = sorted(score - other for other, score in pairs if other is not None)
            if differences:
                effects.append(Effect(setting, str(value), str(base), differences))
    return effects


def _levels(records: Sequence[Record], vary: Sequence[str], own_of: FactsOf) -> list[Levels]:
    """The value of every setting in each run; `own_of` gives those of its attention alone."""
    own = differing(records, own_of)
    several = len(own) > 1
    shared = [*SHARED, *filter(None, vary)]
    found = []
    for r in records:
        options = {key: _plain(own_of(r).get(key)) for key in own[r.attention]}
        levels = {"task": r["settings.task.name"], "seed": r["seed"]}
        levels |= (
            {"attention": f"{r.attention} {pairs_of(options)}".strip()} if several else options
        )
        levels |= {short_name(key): _plain(r.get(f"settings.{key}", "none")) for key in shared}
        found.append(levels)
    return found


def _as_one(levels: Levels, names: Sequence[str]) -> Levels:
    """The settings of these names as one setting, `M x L`, with values such as `64 x 1`."""
    for name in names:
        if name not in levels:
            raise UserError(f"`together` names '{name}', in which these runs do not differ")
    value = " x ".join(str(levels[name]) for name in names)
    rest = {key: found for key, found in levels.items() if key not in names}
    return {" x ".join(names): value} | rest


def _options(record: Record) -> dict[str, Any]:
    """The options of the method itself; those that came later than the record as they are usual."""
    usual = usual_options(record.attention, record["settings.task.name"], record["protocol.name"])
    found = usual | record["settings.attention"]
    return {key: value for key, value in found.items() if key not in ("name", SLOT)}


def _plain(value: Any) -> float | str:
    return value if isinstance(value, int | float) else str(value)


def _place(levels: Levels) -> frozenset[tuple[str, Any]]:
    return frozenset(levels.items())
