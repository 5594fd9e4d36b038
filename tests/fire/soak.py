"""`python -m tests.fire.soak HOURS [WORDS]`: a long training, watched from outside: what grows?

A small run is trained with an evaluation, a checkpoint and rows of metrics every few steps, which
leaks faster than a run of ordinary size. Its process is looked at in /proc; growth per hour is the
slope of a straight line through what follows the first tenth of the time.
"""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from pathlib import Path

from lra.runs import read_metrics
from tests.lra.conftest import SMALL

from . import pages
from .ledger import LEDGER, Ledger, revision

WORDS = ("attention=luna", "protocol.recipe.steps=100000000", "protocol.evaluation.every=20",
         "trainer.checkpoint_every=20", "trainer.print_every=0")  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
LOOKS = 240  # in all


def look(pid: int) -> dict[str, float]:
    """One look at a process."""
    proc = Path(f"/proc/{pid}")
    lines = dict(
        line.split(":", 1) for line in (proc / "status").read_text(encoding="utf-8").splitlines()
    )
    return {
        "resident": int(lines["VmRSS"].split()[0]) / 1024,
        "files": len(list((proc / "fd").iterdir())),
        "threads": int(lines["Threads"]),
    }


def growth(seconds: list[float], values: list[float]) -> float:
    """Per hour, by least squares."""
    return 3600 * statistics.linear_regression(seconds, values).slope


def watch(hours: float, words: list[str], folder: Path) -> dict[str, object]:
    """Train for so long, then end the run as a scheduler would."""
    places = (f"data_dir={folder / 'data'}", f"runs_dir={folder / 'runs'}")
    command = [sys.executable, "train.py", *SMALL, *WORDS, *places, *words]
    looks: list[dict[str, float]] = []
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        while process.poll() is None and not list(folder.rglob("metrics.csv")):
            time.sleep(1)  # until data are prepared and training has begun
        start = time.monotonic()
        while process.poll() is None and (now := time.monotonic() - start) < hours * 3600:
            looks.append({"seconds": now, **look(process.pid)})
            time.sleep(hours * 3600 / LOOKS)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=600)
    said = (folder / "log").read_text(encoding="utf-8")
    if code != 128 + signal.SIGTERM or "Traceback" in said:
        raise SystemExit(f"the run ended with exit code {code}:\n{said[-3000:]}")
    (metrics,) = folder.rglob("metrics.csv")
    steady = [row for row in looks if row["seconds"] > looks[-1]["seconds"] / 10]
    clock = [row["seconds"] for row in steady]
    return {
        "hours": round(looks[-1]["seconds"] / 3600, 2),
        "steps": max(int(row["step"]) for row in read_metrics(metrics)),
        "words": words,
        "revision": revision(),
        **{
            name: {
                "from": round(steady[0][name], 1),
                "to": round(steady[-1][name], 1),
                "per hour": round(growth(clock, [row[name] for row in steady]), 2),
            }
            for name in pages.MEASURES
        },
    }


def main() -> None:
    parser = ArgumentParser(prog="python -m tests.fire.soak", description=__doc__)
    parser.add_argument("hours", type=float)
    parser.add_argument("words", nargs="*", help="more settings of the run")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="file of the counts")
    a = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        facts = watch(a.hours, a.words, Path(folder))
    ledger = Ledger(a.ledger)
    ledger.facts["soak"] = facts
    ledger.save()
    if a.ledger == LEDGER:
        pages.write(ledger, LEDGER.with_suffix(".md"))
    print(facts)


if __name__ == "__main__":
    main()
