"""Which early codes give the numbers of the first declared versions, to the bit?

    python scripts/study/first_versions.py

Early records hold a hash of their code, and no declared version. For each attention and hash this
makes runs of 20 steps with settings that its records have, in a checkout of the revision that made
them and in this one, on one machine. Where all losses are equal the hash is written to
results/numerics.yaml; the others are printed with what differs. Rounding is enough to stay apart:
two records of one run must not have two outcomes. For the same reason a code is left out whose runs
have others under a newer code. What was measured is kept in runs/versions: it may be stopped.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from lra.base.code import UNKNOWN
from lra.results.record import Record, read_all

HERE = Path(__file__).parents[2]
FOLDER = HERE / "runs/versions"
WRITTEN = HERE / "results/numerics.yaml"
SMALL = (
    "protocol.recipe.steps=20",
    "protocol.recipe.warmup=4",
    "protocol.evaluation.every=20",
    "task.n_train=1280",
    "task.n_val=64",
    "task.n_test=64",
    "trainer=cpu",
    "trainer.threads=1",
    "trainer.progress=off",
    "compute=report",
)
# Words of a command that say where it ran, or how long, and not what it computes
LEFT_OUT = (
    "runs_dir=",
    "trainer",
    "limit_minutes=",
    "steps_share=",
    "budget=",
    "compute=",
    "task.n_",
    "seed=",
    "protocol.recipe.lr=",
)
MOST = 4  # kinds of settings of a code
HEAD = """\
# Hashes of early code whose numbers are those of version 1 of all that lra/base/versions.py
# declares, to the bit. Measured and written by scripts/study/first_versions.py.
"""
Outcome = dict[str, Any]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    listed: dict[str, list[Record]] = defaultdict(list)  # runs of listed codes, by attention
    codes, apart = defaultdict(list), []
    for (attention, code), records in groups().items():
        said = difference(code, records) or other_outcome(records, listed[attention])
        print(attention, code, len(records), said or "equal", flush=True)
        if said:
            apart.append(len(records))
        else:
            codes[attention].append(code)
            listed[attention] += records
        WRITTEN.write_text(HEAD + yaml.safe_dump(dict(codes)), encoding="utf-8")
    print(f"{len(apart)} codes, {sum(apart)} records stay apart")


def groups() -> dict[tuple[str, str], list[Record]]:
    """Trainings of before the declared versions, by attention and code, the newest code first."""
    found: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in read_all([HERE / "results/records"], quiet=True):
        known = record.code != UNKNOWN and "+" not in record.code
        if record.kind == "training" and known and record.get("numerics") is None:
            found[record.attention, record.code].append(record)
    newest = {key: max(r["times.finished"] for r in records) for key, records in found.items()}
    return {key: found[key] for key in sorted(found, key=lambda key: newest[key], reverse=True)}


def other_outcome(records: Iterable[Record], listed: Iterable[Record]) -> str:
    """Say whether a run has another outcome under a newer code that is listed, as on another
    machine: a run has one."""
    outcomes = {(r["identity"], r["seed"], r.get("attempt")): r.outcome for r in listed}
    for r in records:
        key = r["identity"], r["seed"], r.get("attempt")
        if outcomes.get(key, r.outcome) != r.outcome:
            return f"equal, but run {r.run} has another outcome by newer code"
    return ""


def difference(code: str, records: Iterable[Record]) -> str:
    """Say what differs; empty where every run of this code agrees with today's."""
    for command, revision in runs_of(records).items():
        then, now = (
            outcome(checkout(revision), revision[:10], command),
            outcome(HERE, "now", command),
        )
        if "failed" in then or "failed" in now:
            return f"not run: {then.get('failed') or now.get('failed')} ({' '.join(command)})"
        if then["code"] != code:
            return f"{revision[:10]} has other code, so its run had changes"
        far = max(abs(a / b - 1) for a, b in zip(then["losses"], now["losses"], strict=True))
        if far:
            return f"losses differ by {far:.1e} ({' '.join(command)})"
    return ""


def runs_of(records: Iterable[Record]) -> dict[tuple[str, ...], str]:
    """A command, made small, and its revision for each kind of settings that records have: sizes of
    a task, rates and seeds change no code."""
    kinds: dict[tuple[str, ...], tuple[tuple[str, ...], str]] = {}
    for record in records:
        given = sorted(shlex.split(record["command"])[2:])
        words = tuple(word for word in given if not word.startswith(LEFT_OUT))
        kind = tuple(word for word in words if not word.startswith(("task.", "attention.M=")))
        if record.get("settings.pretrain") is not None:
            words = (*words, "pretrain.recipe.steps=20", "pretrain.recipe.warmup=4")
        kinds.setdefault(kind, (words, str(record["git.revision"])))
    return dict([*kinds.values()][:MOST])


def checkout(revision: str) -> Path:
    folder = FOLDER / revision[:10]
    if not folder.exists():
        add = ["git", "worktree", "add", "--detach", str(folder), revision]
        subprocess.run(add, cwd=HERE, check=True, capture_output=True)
    return folder


def outcome(tree: Path, name: str, command: tuple[str, ...]) -> Outcome:
    """Losses of a run in a checkout, and the hash of its code."""
    file = FOLDER / f"outcomes-{name}.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    key = " ".join(command)
    if key not in known:
        known[key] = trained(tree, command)
        file.write_text(json.dumps(known, indent=1), encoding="utf-8")
    return dict(known[key])


def trained(tree: Path, command: tuple[str, ...]) -> Outcome:
    runs = FOLDER / f"run-{os.getpid()}"
    shutil.rmtree(runs, ignore_errors=True)
    said = server(tree)([*command, *SMALL, f"runs_dir={runs}"])
    results = [*runs.rglob("result.json")]
    if len(results) != 1:
        return {"failed": said or "nothing was said"}
    facts = json.loads(results[0].read_text(encoding="utf-8"))
    stages = facts.get("stages") or {name: facts[f"test_{name}"] for name in ("last", "best")}
    losses = [stages[name]["loss"] for name in ("last", "best")]
    return {"code": "+".join(facts.get("codes") or []), "losses": losses}


# Imports all of a run once and forks for each, since imports take longer than 20 steps.
SERVER = """
import os, runpy, sys
import pytorch_lightning, hydra, lra.cli
for line in sys.stdin:
    if not os.fork():
        sys.argv = ["train.py", *line.split()]
        sys.stdout = open(os.devnull, "w")
        sys.stderr = open(sys.argv[-1].partition("=")[2] + ".said", "w")
        runpy.run_path("train.py", run_name="__main__")
        os._exit(0)
    os.wait()
    print("done", flush=True)
"""


@cache
def server(tree: Path) -> Callable[[list[str]], str]:
    """Run commands in a checkout; each returns the last line of what it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout

    def call(words: list[str]) -> str:
        into.write(" ".join(words) + "\n")
        into.flush()
        assert out.readline() == "done\n", f"the server of {tree} ended"
        said = Path(words[-1].partition("=")[2] + ".said").read_text(encoding="utf-8")
        return "".join(said.strip().splitlines()[-1:])

    return call


if __name__ == "__main__":
    main()
