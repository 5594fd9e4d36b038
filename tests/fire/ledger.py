"""What was tried and what survived: one small JSON file, from which the page is made."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from lra.disk import read_json, write_atomically

LEDGER = Path(__file__).resolve().parents[2] / "results" / "reliability.json"
SAVE_EVERY = 5.0  # seconds


@cache
def revision() -> str:
    """The code under fire. The counts, which a resumed fire has changed, are no part of it."""

    def ask(*words: str) -> str:
        command = ["git", "--no-optional-locks", "-C", str(LEDGER.parents[1]), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()

    changes = ask("status", "--porcelain", "--", ".", f":!results/{LEDGER.stem}.*")
    return (ask("rev-parse", "HEAD") or "unknown") + " with changes" * bool(changes)


class Ledger:
    """Counts by part and name; a later start goes on from them."""

    def __init__(self, path: Path | None):
        self.path, self._saved = path, 0.0
        self.facts: dict[str, Any] = (read_json(path) if path else None) or {}
        self.problems: list[str] = []

    def part(self, part: str, name: str, **facts: Any) -> dict[str, Any]:
        found = self.facts.setdefault(part, {}).setdefault(
            name, {"done": 0, "lost": 0, "kinds": {}}
        )
        found.update(facts)
        found.setdefault("revisions", ["?"] if found["done"] else [])
        return found

    def count(
        self, part: dict[str, Any], kind: str, what: str, problems: list[str], number: int = 1
    ) -> None:
        """One trial, or several at once, of one kind."""
        part["done"] += number
        part["kinds"][kind] = part["kinds"].get(kind, 0) + number
        if revision() not in part["revisions"]:
            part["revisions"].append(revision())
        if problems:
            part["lost"] += 1
            self.problems.append(f"{what}: {'; '.join(problems)}")
            print(f"LOST {self.problems[-1]}", flush=True)
        if time.monotonic() - self._saved > SAVE_EVERY:
            self.save()

    def save(self) -> None:
        self._saved = time.monotonic()
        if self.path is not None:
            text = json.dumps(self.facts, indent=1, sort_keys=True) + "\n"
            write_atomically(self.path, text.encode())

    def total(self, part: str) -> Counter[str]:
        """Trials by kind over all names."""
        found: Counter[str] = Counter()
        for facts in self.facts.get(part, {}).values():
            found.update(facts["kinds"])
        return found
