"""Write requirements.lock and constraints.txt anew: `make lock`.

    python scripts/lock.py

What pyproject.toml asks for is resolved for Linux and every Python that is supported. A version in
constraints.txt stays. A package without one gets the newest version, and a pin of a package that
nothing asks for goes. So: change a pin or delete it, then `make lock`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from setup import LOCK, ROOT, SECTIONS, pip_settings, uv_flags

# What builds the project and the two packages that come as source, and is installed with them.
BUILD = ("hatchling", "setuptools<82")  # torch 2.11 and 2.12 ask for less than 82
INSTALLER = "uv"
# The files of these differ with the GPU and the index, and torch names the versions of the others.
BY_TORCH = re.compile(r"(torch|triton)==|(nvidia|cuda)-")
PINNED = ("torch", "triton")  # in constraints.txt all the same

HEADER = """\
# Every file that is installed, by its SHA-256: made by `make lock` from pyproject.toml and
# constraints.txt. torch, triton and CUDA's packages are not in it: their files differ with the GPU
# and the index they come from.
"""
# Every entry would carry it.
EVERYWHERE = " ; python_full_version < '3.14' and sys_platform == 'linux'"


def resolve(extra: str) -> dict[str, str]:
    """For each package that an extra brings: its lines, beginning with `name==version`."""
    python = Path(sys.executable)
    pip = pip_settings(python)
    for other in ("find-links", "extra-index-url"):  # whose files may be others than the registry's
        pip.pop(other, None)
    words = ("--universal", "--python-version", "3.11.5", "--generate-hashes", "--no-header")
    files = ("--constraint", "constraints.txt", "--annotation-style", "line", "--extra", extra)
    uv = shutil.which("uv", path=f"{python.parent}:{os.environ['PATH']}")
    if not uv:
        sys.exit("uv resolves what the lock has, and there is none: make setup installs it")
    done = subprocess.run(
        [uv, "pip", "compile", "--quiet", *words, *files, *uv_flags(pip), "pyproject.toml", "-"],
        input="\n".join((*BUILD, INSTALLER)),
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    if done.returncode:
        sys.exit(done.stderr)
    entries = re.split(r"^(?=\w)", done.stdout.replace(EVERYWHERE, ""), flags=re.M)
    tidy = (
        re.sub(r"-c constraints\.txt(, )?|, -c constraints\.txt", "", entry) for entry in entries
    )
    return {entry.partition("==")[0]: entry for entry in tidy if "==" in entry}


def write(name: str, text: str) -> None:
    """A file that stays as it is is not touched, so that nothing is installed again."""
    path = ROOT / name
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main() -> None:
    everything = resolve("dev")
    pins = [
        entry.split()[0]
        for name, entry in everything.items()
        if name in PINNED or not BY_TORCH.match(entry)
    ]
    write("constraints.txt", "\n".join(pins) + "\n")
    run = resolve("fast")
    parts: dict[str, list[str]] = {name: [] for name in SECTIONS}
    for name, entry in everything.items():
        if not BY_TORCH.match(entry):
            parts["uv" if name == INSTALLER else "run" if name in run else "dev"].append(entry)
    text = "\n".join(f"{SECTIONS[name]}\n{''.join(part)}" for name, part in parts.items())
    write(LOCK, f"{HEADER}\n{text}")
    print(f"packages in {LOCK}:", *(f"{name} {len(part)}" for name, part in parts.items()))


if __name__ == "__main__":
    main()
