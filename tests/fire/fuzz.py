"""Bad input for every reader: it is read, or refused in one sentence that names the file; nothing
is executed or written elsewhere, and memory stays bounded."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import time
import traceback
import warnings
from pathlib import Path
from random import Random

from lra.config import UserError
from luna.base import LunaError

from .ledger import Ledger
from .readers import Reader, Readers

GROWTH = 600  # MiB that reading bad inputs of a few kB may take
BLOCK = 200  # inputs between two looks at the clock


def try_one(reader: Reader, path: Path, folder: Path) -> tuple[str, str]:
    """`read`, `refused` or `escaped`, and for the last what escaped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except (UserError, LunaError) as error:
        said = str(error)
        one = "\n" not in said.strip() and len(said) < 3000
        named = not reader.names_file or str(folder) in said
        return ("refused", "") if one and named else ("escaped", f"unclear refusal: {said[:300]!r}")
    except Exception as error:
        ours = [f for f in traceback.extract_tb(error.__traceback__) if "/tests/" not in f.filename]
        frames = [f for f in ours if "/lra/" in f.filename or "/luna/" in f.filename][-1:]
        where = f"{Path(frames[0].filename).name}:{frames[0].lineno}" if frames else "?"
        return "escaped", f"{type(error).__name__} at {where}: {str(error)[:150]!r}"
    return "read", ""


def one_input(reader: Reader, folder: Path, draw: Random) -> tuple[str, str]:
    """Write and read one bad input in a folder of `folder`, which is where the process stands:
    what is executed or written by mistake shows."""
    inside = folder / "inside" / reader.name
    inside.mkdir(parents=True, exist_ok=True)
    path = reader.write(draw, inside)
    outcome, why = try_one(reader, path, inside)
    found = [p.name for p in folder.iterdir() if p.name != "inside"]
    if found or any(p.exists() for p in (inside / "outside", inside.with_name("outside"))):
        for name in found:
            shutil.rmtree(folder / name, ignore_errors=True)
        return "escaped", f"made {found or 'outside'}"
    return outcome, why


def feed(readers: Readers, ledger: Ledger, folder: Path, seconds: float,
         names: list[str] | None = None) -> None:  # fmt: skip
    """Each reader for an equal share of the time; the seeds go on where the ledger ends."""
    chosen = [r for r in readers.all.values() if not names or r.name in names]
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(folder)
    for reader in chosen:
        part = ledger.part("fuzz", reader.name)
        end, seen = time.monotonic() + seconds / len(chosen), set()
        before = _peak()
        while time.monotonic() < end:
            for _ in range(BLOCK):
                seed = part["done"]
                outcome, why = one_input(reader, folder, Random(f"{reader.name} {seed}"))
                new = why if why.partition(":")[0] not in seen else ""
                seen.add(why.partition(":")[0])
                lost = [why] if outcome == "escaped" and new else []
                ledger.count(part, outcome, f"{reader.name}, seed {seed}", lost)
                if time.monotonic() > end:
                    break
        if (grown := _peak() - before) > GROWTH:
            ledger.count(part, "escaped", reader.name, [f"memory grew by {grown} MiB"], 0)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
