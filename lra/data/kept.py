"""Files with a line of scores for each data set (rules.jsonl, hunts.jsonl), each with a digest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lra.base.digests import check_digest, digest
from lra.base.disk import disk_errors, plain_file, write_atomically
from lra.base.errors import readable, refuse_steering
from lra.data.store import lock

Facts = dict[str, Any]


def keep_line(
    line: Facts,
    path: Path,
    read: Callable[[Path], list[Facts]],
    join: Callable[[Facts, Facts], Facts] = lambda before, line: line,
) -> None:
    """Put a line into a file, in place of that of the same data or joined with it. Of two processes
    one waits for the other: else its line would be lost."""
    with lock(path, f"another process writes {path}; waiting for it"), disk_errors(path):
        lines = {item["fingerprint"]: item for item in read(path)}
        key = line["fingerprint"]
        lines[key] = join(lines[key], line) if key in lines else line
        ordered = sorted(lines.values(), key=lambda item: (item["task"], item["fingerprint"]))
        texts = (json.dumps(item | {"digest": digest(item)}, sort_keys=True) for item in ordered)
        write_atomically(path, "".join(f"{text}\n" for text in texts).encode())


def read_lines(path: Path, hint: str) -> list[Facts]:
    """Read the lines without their digests; UserError that names the line whose digest does not
    fit. Without the file there are no lines."""
    if not path.exists():
        return []
    with readable(path, hint):
        texts = plain_file(path).read_text(encoding="utf-8").splitlines()
    lines: list[Facts] = []
    for number, text in enumerate(texts, 1):
        with readable(f"{path}, line {number},", hint):
            check_digest(line := json.loads(text, parse_constant=_refuse))
            refuse_steering(line)
            if not all(isinstance(line.get(key), str) for key in ("task", "fingerprint")):
                raise ValueError("it names no task and fingerprint")
            lines.append({key: value for key, value in line.items() if key != "digest"})
    return lines


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")
