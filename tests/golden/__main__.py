"""`python -m tests.golden write [NAME ...]`: write golden runs, all of them without names; `check`
says what moved.

A file whose numbers moved is only written when its integer was raised; `--anew` writes it all the
same, for a change of the golden runs themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import compare
from .catalogue import Golden, every, problem, stale

USAGE = "usage: python -m tests.golden (check | write [--anew]) [NAME ...]"


def main(words: Sequence[str]) -> int:
    if not words or words[0] not in ("check", "write"):
        print(USAGE, file=sys.stderr)
        return 2
    anew, names = "--anew" in words, [word for word in words[1:] if word != "--anew"]
    if unknown := [name for name in names if name not in every()]:
        print(f"there is no golden run '{unknown[0]}': {', '.join(every())}", file=sys.stderr)
        return 2
    wanted = names or list(every())
    if words[0] == "check":
        said = [problem(name) for name in wanted]
    else:
        said = [write(every()[name], anew=anew) for name in wanted]
    problems = list(filter(None, said))
    print("\n".join(problems), file=sys.stderr, end="\n" if problems else "")
    return 1 if problems else 0


def write(golden: Golden, *, anew: bool = False) -> str:
    """Write a file; returns why it was refused."""
    if not (anew or stale(golden.name)):
        return problem(golden.name)  # numbers that did not move need no file
    compare.write(golden.name, golden.numerics(), golden.measure())
    print(f"written: {compare.file_of(golden.name).name}", flush=True)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
