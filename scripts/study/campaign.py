"""Run the campaign of campaign.yaml, resumable, at low priority:

    python scripts/study/campaign.py [--jobs 2] [--parts mixers ...] [--minutes 60]

Records are in results/records/campaign, one file a part, to which what ended is added every few
minutes. A run that is finished is not repeated, nor one whose record another machine made. Run it
in a clone of one revision, so that no edit reaches it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import yaml

from lra.results.export import export

PLAN = Path(__file__).with_name("campaign.yaml")
RUNS, RECORDS = Path("runs/campaign"), Path("results/records/campaign")
SHARED = ("trainer=cpu", "trainer.threads=1", "trainer.progress=off", f"runs_dir={RUNS}")
RATE = "protocol.recipe.lr"
EXPORTS = 300.0  # seconds between two exports


Words = tuple[str, ...]
Step = tuple["Series", Words]


@dataclass
class Series:
    """All seeds of a row on one task: the search over rates, then the seeds of the best one."""

    part: str
    words: Words
    seeds: list[int]
    rates: list[float]  # none: that of the protocol
    dev: dict[float, float] = field(default_factory=dict)  # of the first seed, by rate

    def first(self) -> Iterator[Words]:
        for rate in self.rates:
            yield (*self.words, f"seed={self.seeds[0]}", f"{RATE}={rate:g}")
        for seed in self.seeds if not self.rates else ():
            yield (*self.words, f"seed={seed}")

    def others(self) -> Iterator[Words]:
        """The seeds at the best rate, once all rates are known."""
        if self.rates and len(self.dev) == len(self.rates):
            best = max(self.dev, key=lambda rate: self.dev[rate])
            for seed in self.seeds[1:]:
                yield (*self.words, f"seed={seed}", f"{RATE}={best:g}")


def series_of(plan: dict[str, Any], parts: list[str]) -> Iterator[Series]:
    """Of every part in order, its settings one after the other, so that a campaign that is cut off
    has whole tables."""
    for part in plan["parts"]:
        if parts and part["name"] not in parts:
            continue
        for runs in part["runs"]:
            for row in part["rows"]:
                words = (*runs["words"].split(), *plan["rows"][row].split())
                rates = plan["rates"] if runs.get("searched") else []
                yield Series(part["name"], words, runs["seeds"], rates)


def train(words: Words) -> tuple[str, float, str]:
    """Train one run in this process: its folder, its best score on dev, and what to say of it."""
    import lra

    try:
        record = lra.train(lra.compose([*words, *SHARED]))
    except lra.UserError as error:  # it diverged, say
        return "", float("-inf"), str(error)
    return str(record.folder), float(record["dev.score"]), f"{record.score:.1f}"


def refuse_wrong_words(every: list[Series]) -> None:
    """A row that cannot be built would stop the campaign at its turn, hours later."""
    import lra
    from lra.sweeps.check import check_network

    for series in every:
        check_network(lra.compose([*series.words, *SHARED]))


def recorded() -> dict[tuple[str, frozenset[str]], float]:
    """The best scores on dev of the records that a part has, by the words of their runs."""
    import lra

    return {
        (path.stem, frozenset(record["command"].split()[2:])): float(record["dev.score"])
        for path in sorted(RECORDS.glob("*.jsonl"))
        for record in lra.records(path)
    }


class Campaign:
    def __init__(self, jobs: int, minutes: float):
        self.jobs, self.known = jobs, recorded()
        self.end = time.monotonic() + 60 * minutes
        self.exported = time.monotonic()
        self.places: dict[str, list[str]] = {}  # of each part: its finished runs
        self.running: dict[Future[Any], Step] = {}

    def run(self, every: list[Series]) -> None:
        """Rates are searched first, and followed by the other seeds at once, so that a campaign
        that is cut off has few rows without seeds."""
        waiting = [(series, words) for series in every for words in series.first()]
        pool = ProcessPoolExecutor(self.jobs, get_context("spawn"), os.nice, (19,))
        while (waiting or self.running) and time.monotonic() < self.end:
            while waiting and len(self.running) < self.jobs:
                series, words = waiting.pop(0)
                dev = self.known.get((series.part, frozenset((*words, *SHARED))))
                if dev is None:
                    self.running[pool.submit(train, words)] = series, words
                else:
                    waiting = [*self.next(series, words, dev), *waiting]
            done, _ = wait(self.running, timeout=5, return_when=FIRST_COMPLETED)  # of none at once
            for future in done:
                waiting = [*self.finished(future), *waiting]
            if time.monotonic() > self.exported + EXPORTS:
                self.export()
        pool.shutdown(wait=True, cancel_futures=True)
        for future in [f for f in self.running if f.done() and not f.cancelled()]:
            self.finished(future)
        self.export()

    def finished(self, future: Future[Any]) -> list[Step]:
        """Say what ended; give what can begin now."""
        series, words = self.running.pop(future)
        folder, dev, said = future.result()
        print(time.strftime("%H:%M:%S"), series.part, *words, said, flush=True)
        if folder:
            self.places.setdefault(series.part, []).append(folder)
        return self.next(series, words, dev)

    def next(self, series: Series, words: Words, dev: float) -> list[Step]:
        rate = next(
            (float(word.partition("=")[2]) for word in words if word.startswith(RATE)), None
        )
        if rate is None or f"seed={series.seeds[0]}" not in words:
            return []
        series.dev[rate] = dev
        return [(series, others) for others in series.others()]

    def export(self) -> None:
        self.exported = time.monotonic()
        if self.places:
            export({RECORDS / f"{part}.jsonl": places for part, places in self.places.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--parts", nargs="*", default=[])
    parser.add_argument("--minutes", type=float, default=1e9)
    a = parser.parse_args()
    plan = yaml.safe_load(PLAN.read_text(encoding="utf-8"))
    every = [*series_of(plan, a.parts)]
    runs = sum(len(s.rates) + len(s.seeds) - bool(s.rates) for s in every)
    print(f"{len(every)} rows, {runs} runs", flush=True)
    refuse_wrong_words(every)
    Campaign(a.jobs, a.minutes).run(every)


if __name__ == "__main__":
    main()
