"""`make release`: does everything that names the version name this one, and is the tree clean?

The version stands in luna/__init__.py. A tag does the rest: .github/workflows/release.yml builds
both wheels, installs them in clean environments, and publishes them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Where a version is named, by the pattern that finds it: a file may do so several times.
NAMED = {
    "CITATION.cff": r"^version: (\S+)$",
    "mkdocs.yml": r"^site_name: luna-lra (\S+)$",
    "README.md": r"· version (\S+)$",
    "docs/install.md": r"dist/luna_(?:lra|attention)-([\d.]+)-py3",
}
RELEASED = re.compile(r"^## (\S+)(?: \((\d{4}-\d\d-\d\d)\))?$", re.M)


def version(root: Path) -> str:
    text = (root / "luna/__init__.py").read_text(encoding="utf-8")
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)[0]


def disagreeing(root: Path) -> Iterator[str]:
    """A sentence for each file that names another version, or none."""
    own = version(root)
    for name, pattern in NAMED.items():
        found = set(re.findall(pattern, (root / name).read_text(encoding="utf-8"), re.M))
        if found != {own}:
            others = ", ".join(sorted(found - {own})) or "no version"
            yield f"{name} names {others}, and luna/__init__.py {own}"


def unreleased(root: Path) -> Iterator[str]:
    """A sentence for what is missing in CHANGELOG.md and CITATION.cff before a tag."""
    own = version(root)
    first, date = RELEASED.findall((root / "CHANGELOG.md").read_text(encoding="utf-8"))[0]
    if (first, bool(date)) != (own, True):
        yield f"CHANGELOG.md begins with '{first}', not with '{own} (YEAR-MONTH-DAY)'"
    elif f"date-released: {date}" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        yield f"CITATION.cff has another date than CHANGELOG.md, {date}"


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(version(ROOT))
        return
    words = ["git", "status", "--porcelain"]
    changed = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    problems = [*disagreeing(ROOT), *unreleased(ROOT)]
    if changed:
        problems.append("there are changes that are not committed: git status")
    if problems:
        sys.exit("\n".join(f"error: {problem}" for problem in problems))
    print(f"version {version(ROOT)} may be released once the tests pass: git tag v{version(ROOT)}")


if __name__ == "__main__":
    main()
