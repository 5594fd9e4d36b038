"""`lra records submit`: results of other people, checked and put where tables show them only by
name. What can be wrong with them is refused here and, by the same function, in the tests."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

import luna
from lra.base.code import UNKNOWN
from lra.base.disk import disk_errors
from lra.base.errors import UserError, printable
from lra.data.store import lock, new_folder
from lra.results import audit
from lra.results.export import export, targets
from lra.results.record import SUBMITTED, Record, read_all

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")
REPORT = "README.md"
STEERING = re.compile(r"([\\`*_{}\[\]<>()#|~])")  # in Markdown


def submit(source: Path, into: Path, name: str | None, data_dir: Path) -> Path:
    """Check the records of a file or a folder, alone and beside those that are there, and put them
    with a report into `into`/`name`, all or none of them."""
    name = source.resolve().name.removesuffix(".jsonl") if name is None else name
    folder = into / name
    if not NAME.fullmatch(name):
        raise UserError(f"'{name}' cannot name a folder: give --name a word of letters and digits")
    if not into.parent.is_dir():
        raise UserError(f"{into.parent} does not exist: call this in a clone of luna-lra")
    with lock(folder, f"another process writes {folder}; waiting for it"):
        if folder.exists():
            raise UserError(f"{folder} is there already: give another --name")
        records, others = read_all([source]), read_all([into.parent])
        if not records:
            raise UserError(f"{source} holds no record: write some with lra records export")
        refuse_submission(records, others)
        counts = audit.check_records(records, data_dir)
        notes = [*audit.equal_answers(records, others)]
        for note in notes:
            print(printable(note))
        text = _report(name, records, others, counts, notes)
        with disk_errors(folder), new_folder(folder) as partial:
            export(targets([source], partial))
            (partial / REPORT).write_text(text, encoding="utf-8")
    return folder / REPORT


def refuse_submission(records: Sequence[Record], others: Sequence[Record]) -> None:
    """UserError with everything for which records are not taken beside others."""
    audit.refuse(
        [*_incomplete(records), *_there_already(records, others)] or audit.beside(records, others)
    )


def _incomplete(records: Iterable[Record]) -> Iterator[tuple[Record, str]]:
    for record in records:
        if record.answers is None:
            yield record, "it has no answers, from which its score could be computed again"
        if record.code == UNKNOWN:
            yield record, "it does not say of which code it is"
        if audit.metric_named(record, record["metric.name"]) is None:
            yield record, f"its metric, {record['metric.name']}, is not known here"
        if (attempt := record.get("attempt", 1)) > 1:
            yield record, f"it is attempt {attempt} of its run: send the first, which counts"


def _there_already(
    records: Sequence[Record], others: Sequence[Record]
) -> Iterator[tuple[Record, str]]:
    runs = dict[object, Record]()
    ours = {id(record) for record in records}
    for record in [*others, *records]:
        first = runs.setdefault(record.key[:3], record)
        if first is not record and id(record) in ours:
            yield record, f"it is the run of {first.where}"


def is_constant(record: Record) -> bool:
    """Whether all answers of a run are the same."""
    answers = record.answers
    return answers is not None and len(np.unique(answers.answers, axis=0)) == 1


# ---------------------------------------------------------------------- the report


def _report(
    name: str,
    records: Sequence[Record],
    others: Sequence[Record],
    counts: Counter[str],
    notes: Sequence[str],
) -> str:
    """What a maintainer reads first."""
    known = {record.code for record in others}
    changed = sum("+changes" in record.revision for record in records)
    facts = {
        "runs": len(records),
        "follow from their answers and prepared data": counts[audit.PROVEN],
        "follow from their answers; the data were not at hand": counts[audit.RECOMPUTED],
        "by code of which there are other records": sum(r.code in known for r in records),
        "by code with changes that were not committed": changed,
        "one answer to everything": sum(map(is_constant, records)),
        "the answers of another run, to the last digit": len(notes),
    }
    head = ["task", "attention", "seed", "score", "constant answer", "code", "device", "run"]
    rows = [
        [
            *(r["task"], r.attention, r["seed"], r.score_text),
            "–" if r.floor is None else r.text(r.floor),
            r.revision + ("" if r.code in known else ", new here"),
            *(r["machine.device"], f"`{r.run}`"),
        ]
        for r in sorted(records, key=lambda r: r.order)
    ]
    lines = [
        f"# {len(records)} runs sent as *{name}*",
        "",
        f"Checked by `lra records submit` of luna-lra {luna.__version__}. Tables show them where "
        f"their entry says `records: {SUBMITTED}/{name}`.",
        "",
        *_table(["", "runs"], [[what, n] for what, n in list(facts.items())[1:]]),
        "",
        *_table(head, rows),
        "",
        "Check them again, with the labels of the data where these are prepared:",
        "",
        "```sh",
        f"lra records check results/records/{SUBMITTED}/{name} --data-dir data",
        "```",
        "",
        "No file shows that a network was trained as its settings say. Repeat a run by the "
        "`command` of its record.",
        "",
    ]
    return "\n".join(lines)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    for cells in (head, ["---"] * len(head), *rows):
        yield "| " + " | ".join(_cell(str(cell)) for cell in cells) + " |"


def _cell(text: str) -> str:
    """A device may have any name; what stands in backticks is a name of ours."""
    return text if text.startswith("`") else STEERING.sub(r"\\\1", text)
