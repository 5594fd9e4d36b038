"""Which runs may share a table: those of one protocol, model size and budget and, on each task, of
the same data and recipe."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lra.config import UserError
from lra.report.records import Record
from lra.report.specs import Spec

# Facts that the runs of a table share, and those that its runs on one task share. The fingerprint
# covers every option of the data.
OF_TABLE = ("protocol.name", "protocol.version", "model", "budget", "precision",
            "compute.budget.reference", "compute.budget.tolerance")  # fmt: skip
OF_TASK = ("data.source", "data.fingerprint", "test.select", "test.examples",
           "compute.budget.parameters", "compute.budget.flops")  # fmt: skip
GROUPS_OF_TASK = ("settings.model", "settings.protocol")
SHOWN = 3  # names listed for each value of a difference


def refuse_mixtures(spec: Spec, records: Sequence[Record]) -> None:
    """UserError with everything in which the runs of one table differ."""
    found = _differences(records, lambda r: {k: r.get(k) for k in OF_TABLE}, spec.vary)
    for task in dict.fromkeys(r["task"] for r in records):
        among = [r for r in records if r["task"] == task]
        differ = _differences(among, _task_facts, spec.vary)
        found += [f"on {task}, {line}" for line in differ]
    if found:
        raise UserError(
            f"table '{spec.name}' would mix runs that cannot be compared; narrow it with `where` "
            f"(docs/results.md). They differ:\n  " + "\n  ".join(found)
        )


def comparable(records: Sequence[Record]) -> list[tuple[list[Record], dict[str, str]]]:
    """The runs of each task in groups that may share a table, and of each group the facts that
    tell it from others of its task."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    told: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        facts = {key: record.get(key) for key in OF_TABLE} | _task_facts(record)
        key = record["task"], str(sorted(facts.items()))
        groups[key].append(record)
        told[key] = {name: str(value) for name, value in facts.items()}
    return [(group, _telling(key, told)) for key, group in groups.items()]


def _telling(this: tuple[str, str], told: dict[tuple[str, str], dict[str, str]]) -> dict[str, str]:
    task, own = this[0], told[this]
    others = [facts for (of, _), facts in told.items() if of == task]
    names = dict.fromkeys(name for facts in others for name in facts)
    differ = [name for name in names if len({facts.get(name) for facts in others}) > 1]
    return {name: own.get(name, "absent") for name in differ}


def _task_facts(record: Record) -> dict[str, Any]:
    facts = {key: record.get(key) for key in OF_TASK}
    for group in GROUPS_OF_TASK:
        facts |= {k.removeprefix("settings."): v for k, v in _flat(record.get(group), group)}
    return facts


def _flat(value: Any, name: str) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}.{key}")
    else:
        yield name, value


def _differences(
    records: Sequence[Record], facts: Callable[[Record], dict[str, Any]], allowed: Sequence[str]
) -> list[str]:
    """`key is this (linear, luna) or that (softmax)`, for every key with more than one value."""
    told = []
    by_record = [facts(r) for r in records]
    for key in dict.fromkeys(k for f in by_record for k in f):
        names: dict[str, set[str]] = defaultdict(set)
        for record, its in zip(records, by_record, strict=True):
            names[str(its.get(key, "absent"))].add(record["attention.name"])
        if len(names) > 1 and key not in allowed:
            told.append(
                f"{key} is {' or '.join(_held_by(v, of) for v, of in sorted(names.items()))}"
            )
    return told


def _held_by(value: str, names: set[str]) -> str:
    more = f", {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{value} ({', '.join(sorted(names)[:SHOWN])}{more})"
