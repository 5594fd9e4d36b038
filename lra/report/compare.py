"""Which runs may share a table, and which of their settings name its rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lra.base.config import UserError
from lra.results.record import Record

LISTED = 3  # attentions listed for each value of a difference
FactsOf = Callable[[Record], Mapping[str, Any]]


def refuse_mixtures(
    name: str,
    records: Sequence[Record],
    *,
    of_table: FactsOf,
    of_task: FactsOf,
    remedy: str,
    absent: str | None = "absent",
) -> None:
    """UserError with every fact in which the runs of one table, or of one task of it, differ."""
    lines = differences(records, of_table, absent=absent)
    for task in dict.fromkeys(r["task"] for r in records):
        runs = [r for r in records if r["task"] == task]
        lines += [f"on {task}, {line}" for line in differences(runs, of_task, absent=absent)]
    if lines:
        raise UserError(
            f"table '{name}' would mix runs that cannot be compared; {remedy} (docs/results.md). "
            "They differ:\n  " + "\n  ".join(lines)
        )


def differences(records: Sequence[Record], facts_of: FactsOf, *, absent: str | None) -> list[str]:
    """`key is this (linear, luna) or that (softmax)`, for every fact with more than one value. A
    run without a fact has the value `absent`; if that is None, the run is ignored."""
    by_record = [facts_of(r) for r in records]
    lines = []
    for key in dict.fromkeys(k for facts in by_record for k in facts):
        names: dict[str, set[str]] = defaultdict(set)
        for record, facts in zip(records, by_record, strict=True):
            if key in facts or absent is not None:
                names[str(facts.get(key, absent))].add(record.attention)
        if len(names) > 1:
            values = " or ".join(f"{v} ({_listed(names[v])})" for v in sorted(names))
            lines.append(f"{key} is {values}")
    return lines


def _listed(names: set[str]) -> str:
    more = f", {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(sorted(names)[:LISTED]) + more


def differing(records: Sequence[Record], settings_of: FactsOf) -> dict[str, list[str]]:
    """Per attention, the settings in which its runs on one task differ; one that a run lacks is a
    value too."""
    keys: dict[str, dict[str, None]] = defaultdict(dict)
    for r in records:
        keys[r.attention] |= dict.fromkeys(settings_of(r))
    seen: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for r in records:
        facts = settings_of(r)
        for key in keys[r.attention]:
            seen[r.attention, key][r["task"]].add(str(facts.get(key)))
    differ: dict[str, list[str]] = {r.attention: [] for r in records}
    for (attention, key), by_task in seen.items():
        if any(len(values) > 1 for values in by_task.values()):
            differ[attention].append(key)
    return differ
