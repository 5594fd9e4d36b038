"""results/reliability.md, from the counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .ledger import Ledger

HEAD = """
# What survives kills, failing disks, crowds and bad input?

Made by `make chaos` from `reliability.json`; a later `make chaos` goes on from it. Sweeps and kills
of two processes are run by `python -m tests.fire sweeps pair`. All on short runs: ListOps,
attention `linear`, 12 steps, one thread of a CPU, {machine}. A trial has *lost* something if it
leaves a damaged file under its final name, prints a traceback or a sentence that does not name the
place, if the next start fails, if weights, scores, answers or metrics differ by a bit from those of
a run that nothing disturbed, or if something is done twice or left over.

The last column names the revisions of the code that a row was counted on: `+` stands for changes
that were not committed, `?` for counts from before revisions were noted. A row with losses is
counted anew once they are mended; `CHANGELOG.md` says what they were.
"""
FAULTS = """
## Failing disks

Each call to the disk below the run's folder (opening for writing, write, fsync, rename, mkdir,
unlink) fails once in each way: no space from there on (`full`), an error of the device (`EIO`),
half of the bytes written (`short`; `torn`, and then no space), a slow fsync, and `kill -9` before
the call or after half of its bytes. Then the same command is started again.
"""
KILLS = """
## Kills

At moments drawn from a seed over the whole command, up to three in a row; then a start that is
left alone. A training does at most `trainer.checkpoint_every` steps again. Of two processes of one
training either is killed or both are interrupted: all must have ended within a minute.
"""
SWEEPS = """
## Sweeps

One command with many short jobs, two at a time (`local`: all at once), started three times: its
parent is killed, its runs are killed or stopped for ever (`limit_minutes` ends those), and it is
left alone. Some jobs have a rate that is refused or with which they diverge. All the while
`lra status` is asked: each run's state must be true within two seconds of the question, by the
kernel's list of locks. At the end each healthy job has one result, made once; the summary and
`lra status` name the others.
"""
CROWDS = """
## Crowds and clocks

32 processes start the same command at the same moment: one does the work, the others wait for it
or are refused in one sentence. And a wall clock that jumps by up to a year whenever it is read.
"""
FUZZ = """
## Bad input

Good files with hostile changes, and hostile archives, records and words, each from a seed.
*Lost* counts every exception but one sentence that names the file, and everything executed or
written elsewhere. What was found before is kept in `tests/fire/test_fuzz.py`.
"""
SOAK = """
## A long run

One training of {steps:,} steps in {hours:g} hours, with an evaluation and a checkpoint every 20
steps, watched from outside (`python -m tests.fire.soak {words}`, revision `{revision}`). Growth is
the slope of a straight line through what follows the first tenth of the time.

|  | first | last | growth per hour |
| --- | ---: | ---: | ---: |
"""
TEXTS = {"faults": FAULTS, "kills": KILLS, "sweeps": SWEEPS, "crowds": CROWDS, "fuzz": FUZZ}
WORDS = {"faults": "faults injected", "kills": "kills survived", "sweeps": "blows to sweeps",
         "crowds": "crowds and clocks", "fuzz": "bad inputs"}  # fmt: skip
FACTS = {"calls": "calls", "jobs": "jobs", "asked": "`lra status` asked"}  # beside the trials
MEASURES = {"resident": "resident memory, MiB", "files": "open files", "threads": "threads"}


def page(ledger: Ledger) -> str:
    parts = [HEAD.format(machine=ledger.facts.get("machine", "an unknown machine"))]
    known = [part for part in TEXTS if part in ledger.facts]
    parts.append("\n".join(_summary(WORDS[p], list(ledger.facts[p].values())) for p in known))
    parts += [TEXTS[part] + "\n" + _table(ledger.facts[part]) for part in known]
    if soak := ledger.facts.get("soak"):
        parts.append(_soak(soak))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _summary(word: str, facts: list[dict[str, Any]]) -> str:
    lost = sum(f["lost"] for f in facts)
    return f"* **{sum(f['done'] for f in facts):,} {word}**, {lost or 'nothing'} lost"


def _table(facts: dict[str, Any]) -> str:
    kinds = list(dict.fromkeys(kind for f in facts.values() for kind in f["kinds"]))
    known = [key for key in FACTS if any(key in f for f in facts.values())]
    head = ["", *(FACTS[key] for key in known), "trials", *kinds, "lost", "revision"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name, f in facts.items():
        counts = [f"{f.get(key, 0):,}" for key in known]
        if f["done"] < f.get("of", 0):
            counts[0] += ", not all"
        numbers = [f["done"], *(f["kinds"].get(kind, 0) for kind in kinds), f["lost"]]
        seen = ", ".join(f"`{_short(revision)}`" for revision in f.get("revisions", ["?"]))
        rows.append([name, *counts, *(f"{number:,}" for number in numbers), seen])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _soak(facts: dict[str, Any]) -> str:
    words = " ".join([f"{facts['hours']:g}", *facts["words"]])
    text = SOAK.format(**facts | {"words": words, "revision": _short(facts["revision"])})
    for key, word in MEASURES.items():
        seen = facts[key]
        text += f"| {word} | {seen['from']:g} | {seen['to']:g} | {seen['per hour']:+g} |\n"
    return text


def _short(revision: str) -> str:
    """The first digits of a revision, with + where files differed from it."""
    number, _, changes = revision.partition(" ")
    return number[:7] + "+" * bool(changes)


def write(ledger: Ledger, path: Path) -> None:
    path.write_text(page(ledger), encoding="utf-8")
