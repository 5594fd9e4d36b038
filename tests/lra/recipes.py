"""The recipes of docs/extend: blocks are pasted where their first lines say, and commands are run,
with more words that make them small. A recipe is a page, by its name.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from .conftest import REPOSITORY, call_in, run_in

PAGES = {path.stem: path.read_text("utf-8") for path in (REPOSITORY / "docs/extend").glob("*.md")}
# In an order in which all of them can be pasted: the kernel is one of the mixer's.
PASTED = (
    *("attention", "mixer", "kernel", "optimizer", "task", "metric", "protocol", "benchmark"),
    *("table", "figure", "command", "launcher"),
)
NOT_PASTED = ("numerics",)  # it has nothing to paste

FEW = "n_train=64 n_val=16 n_test=16"
TRAINED = "steps_share=1e-6 min_evaluations=1 trainer=cpu trainer.threads=1"
FEW_TRAINED = f"{FEW.replace('n_', 'task.n_')} {TRAINED}"
TINY_TRAINED = f"task.source=tiny protocol.data.max_length=512 protocol.data.pad_to=512 {TRAINED}"
# Beginnings of commands, and what makes them small.
SMALL = {
    "lra train experiment=demo": FEW_TRAINED,
    "lra train --config-dir mine": FEW_TRAINED,
    "lra train task=foo": FEW_TRAINED,
    "lra train protocol=tenth": TINY_TRAINED,
    "lra train -m hydra/launcher=ssh": FEW_TRAINED,
    "lra data": FEW,
    "lra bench": "--lengths 64 128 --rounds 1 --write bench",
    # What is installed already, and one process in place of one a core.
    "make": f"VENV={sys.prefix} --old-file={sys.prefix}/.installed",
    "make test": f"PYTEST='{sys.executable} -m pytest -n 0 -p no:cacheprovider'",
}


def blocks(text: str, languages: str) -> list[str]:
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", text, re.M | re.S)


def paste(clone: Path, name: str) -> None:
    """Put the blocks of a page where their first lines say; what results is tidy."""
    found = blocks(PAGES[name], "python|yaml")
    assert found, name
    python = set()
    for block in found:
        first, code = block.split("\n", 1)
        place, _, where = first.removeprefix("# ").partition(", ")
        file = clone / place
        assert file.exists() == bool(where), first
        old = file.read_text(encoding="utf-8") if where else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(placed(old, where, code), encoding="utf-8")
        python |= {place} if file.suffix == ".py" else set()
    for words in (("check", "--quiet"), ("format", "--check", "--quiet")) if python else ():
        run_in(clone, "ruff", *words, *sorted(python))


def placed(old: str, where: str, code: str) -> str:
    """A file's text with code in it: below a line, in place of it, or at the end."""
    if where in ("", "at the end"):
        return old + code
    how, text = where.split(": ", 1)
    assert how in ("below", "in place of"), where
    lines = old.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines, 1) if line.lstrip().startswith(text)]
    assert len(found) == 1, f"{where}: lines {found}"
    return "".join([*lines[: found[0] - (how == "in place of")], code, *lines[found[0] :]])


def run(clone: Path, command: str) -> str:
    """What a command of the page prints."""
    small = [more for beginning, more in SMALL.items() if command.startswith(beginning)]
    words = shlex.split(" ".join([command, *small]))
    if words[:2] == ["python", "-m"]:
        return run_in(clone, *words[2:])
    return call_in(clone, *words) if words[0] == "make" else run_in(clone, *words)


def follow(clone: Path, name: str) -> dict[str, str]:
    """Run the commands of a page; what each of them prints."""
    lines = "\n".join(blocks(PAGES[name], "sh")).splitlines()
    every = [line for line in lines if line.startswith(("lra ", "make ", "python -m "))]
    assert every, name
    return {command: run(clone, command) for command in every}


def pytest_in(clone: Path, *tests: str) -> str:
    return run_in(clone, "pytest", "-n", "0", "-p", "no:cacheprovider", *tests)


def passed(printed: str) -> int:
    found = re.search(r"(\d+) passed", printed)
    return int(found[1]) if found else 0
