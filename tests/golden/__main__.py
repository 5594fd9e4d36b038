"""`python -m tests.golden write [NAME ...]`: write golden runs, all of them without names.

A file whose numbers moved is only written when its integer was raised; `--anew` writes it all the
same, for a change of the golden runs themselves.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from . import compare
from .catalogue import Golden, every, problem, stale

USAGE = "usage: python -m tests.golden write [--anew] [NAME ...]"


def main(words: Sequence[str]) -> int:
    if not words or words[0] != "write":
        print(USAGE, file=sys.stderr)
        return 2
    anew, names = "--anew" in words, [word for word in words[1:] if word != "--anew"]
    if unknown := [name for name in names if name not in every()]:
        print(f"there is no golden run '{unknown[0]}': {', '.join(every())}", file=sys.stderr)
        return 2
    refused = [said for name in names or every() if (said := write(every()[name], anew=anew))]
    print("\n".join(refused), file=sys.stderr, end="\n" if refused else "")
    return 1 if refused else 0


def write(golden: Golden, *, anew: bool = False) -> str:
    """Write a file; returns why it was refused."""
    if not (anew or stale(golden.name)):
        return problem(golden.name)  # numbers that did not move need no file
    compare.write(golden.name, golden.numerics(), golden.measure())
    print(f"written: {compare.file_of(golden.name).name}", flush=True)
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
