"""Print the lines of Python of each package, and the change against the parent commit if there is
one. It judges nothing: whoever reads a change sees how much there is to read.

    python scripts/sizes.py
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import PurePosixPath

TOP = ("luna", "lra", "hydra_plugins", "scripts", "tests")  # folders that hold Python


def package_of(name: str) -> str:
    """The first two folders of a file: `lra/data`, or `lra` for a file directly in it."""
    folders = PurePosixPath(name).parent.parts
    return "/".join(folders[:2]) or "(root)"


def git(*words: str) -> str:
    answer = subprocess.run(["git", *words], capture_output=True, text=True, check=True)
    return answer.stdout


def lines_at(revision: str) -> Counter[str]:
    """Lines of Python by package, as committed in a revision."""
    counted = Counter[str]()
    for name in git("ls-tree", "-r", "--name-only", revision).splitlines():
        if name.endswith(".py") and (name.startswith(TOP) or "/" not in name):
            counted[package_of(name)] += len(git("show", f"{revision}:{name}").splitlines())
    return counted


def main() -> None:
    try:
        now = lines_at("HEAD")
    except (OSError, subprocess.CalledProcessError):
        print("lines of Python: not counted, this is no git checkout")
        return
    try:
        before = lines_at("HEAD~1")
    except subprocess.CalledProcessError:
        before = None  # a checkout of depth 1, or the first commit
    print(
        "lines of Python by package" + (", and the change since the last commit" if before else "")
    )
    for name in sorted(now | (before or Counter())):
        change = now[name] - before[name] if before else 0
        print(f"  {name:20} {now[name]:7,}" + (f"  {change:+,}" if change else ""))
    print(f"  {'all':20} {now.total():7,}")


if __name__ == "__main__":
    main()
