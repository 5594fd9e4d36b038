"""Make an environment with the locked packages: `make setup` and `make demo` call it.

    python scripts/setup.py VENV run|dev [--constraints FILE]

`run` installs the packages of a run, `dev` also those of tests, pages and launchers. It is made of
the standard library, for it runs before anything is installed. uv installs the packages: that of
PATH, or one that pip puts into the new environment. Where neither can be had, pip installs them.
"""

from __future__ import annotations

import argparse
import ast
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import Any, NamedTuple, TextIO

ROOT = Path(__file__).resolve().parents[1]
LOCK = "requirements.lock"
SECTIONS = {  # of the lock, each after a line of its own
    "run": "# What a run needs.",
    "dev": "# What tests, pages and launchers add.",
    "uv": "# What installs the others.",
}
EXTRAS = {"run": "fast", "dev": "dev"}
PROJECTS = (".",)  # installed in place, in one command; the first one takes the extras
HALF_MADE = ".half-made"  # lies in an environment as long as packages are written into it
OLDEST_UV = (0, 7)  # knows --torch-backend
TORCH_INDEX = "https://download.pytorch.org/whl/"

# pip's settings, which uv does not read, and how uv is told them.
UV_FLAGS = {
    "find-links": "--find-links",
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "trusted-host": "--allow-insecure-host",
}
UV_VARIABLES = {"cert": "SSL_CERT_FILE", "proxy": "ALL_PROXY"}

# Not compiled ahead: tests of packages, and the parts of two large ones that nothing here imports.
NOT_COMPILED = (
    r"/tests?/|/testing/|/ray/(rllib|data|serve|tune|train|llm|dashboard)/"
    r"|/transformers/models/(?!(auto|bert|distilbert|roberta|electra|vit|deit)/)"
)

Settings = dict[str, str]
Words = list[str | Path]


class Failed(Exception):
    """What to tell the user, in one sentence."""


class Installer(NamedTuple):
    """Words of a command: those of every call, more where files are checked by hash, more where
    packages are pinned by version; and the variables that it reads."""

    command: Words
    by_hash: Words
    by_pin: Words
    variables: dict[str, str]


def call(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """What a command printed, and its exit code; negative where it was killed."""
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, **options)


def make_environment(folder: Path) -> Path:
    """The interpreter of an environment, which is made where there is none that can be used."""
    python = folder / "bin" / "python"
    wrong = what_is_wrong(folder, python)
    if wrong:
        if not any((folder / name).exists() for name in (HALF_MADE, "pyvenv.cfg")):
            raise Failed(f"{folder} is no environment of Python: name another folder with VENV=...")
        print(f"{folder} {wrong}, so it is made anew")
        shutil.rmtree(folder)
    if not python.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / HALF_MADE).touch()
        try:
            venv.create(folder, with_pip=True, symlinks=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise Failed(
                f"{sys.executable} cannot make an environment ({error}): install its venv module "
                "(python3-venv on Debian), and the same command goes on"
            ) from error
    return python


def what_is_wrong(folder: Path, python: Path) -> str:
    """Why a folder cannot be used as it is; nothing where it can, or is empty or not there."""
    if not folder.exists() or not any(folder.iterdir()):
        return ""
    if (folder / HALF_MADE).exists():
        return "was left half-made"
    try:
        asked = call(python, "-c", "import pip, sys; print(*sys.version_info[:3])")
    except OSError:
        return "has no Python that runs"
    if asked.returncode:
        return "has no Python with pip that runs"
    version = tuple(map(int, asked.stdout.split()))
    if not (3, 11, 5) <= version < (3, 14):
        return f"was made with Python {'.'.join(map(str, version))}"
    return ""


def pip_settings(python: Path) -> Settings:
    """pip's settings for `pip install`, from its files and its variables."""
    found: Settings = {}
    listed = call(python, "-m", "pip", "config", "list").stdout
    for section in ("global", "install", ":env:"):  # later ones count
        for name, value in re.findall(rf"^{section}\.([\w-]+)=(.*)$", listed, flags=re.M):
            found[name] = str(ast.literal_eval(value))
    return found


def there(place: str) -> bool:
    """Whether pip would look there: it passes over folders that do not exist, uv stops."""
    path = place.removeprefix("file://")
    return "://" in path or Path(path).expanduser().exists()


def uv_flags(pip: Settings) -> list[str]:
    """pip's settings as words of `uv pip install`."""
    words = []
    for name, flag in UV_FLAGS.items():
        for value in pip.get(name, "").split():
            if there(value) or name == "trusted-host":
                words += [flag, value]
    if pip.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        words.append("--no-index")
    # As pip does: the best version of all indexes, not that of the first one that has the package.
    return [*words, "--index-strategy", "unsafe-best-match"]


def answers(address: str) -> bool:
    """Whether a server is there, within three seconds."""
    try:
        with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=3):
            return True
    except OSError:
        return False


def torch_flags(pip: Settings) -> list[str]:
    """Torch for the GPU that is there, or for none: the registry's own is always that for CUDA.

    Whoever has set where packages lie has chosen a torch already.
    """
    chosen = any(pip.get(name) for name in ("find-links", "extra-index-url", "no-index"))
    chosen = chosen or "UV_TORCH_BACKEND" in os.environ
    return ["--torch-backend=auto"] if not chosen and answers(TORCH_INDEX) else []


def locked(*names: str) -> str:
    """The lines of some sections of the lock."""
    text = (ROOT / LOCK).read_text(encoding="utf-8")
    lines = "|".join(map(re.escape, SECTIONS.values()))
    _, *sections = re.split(rf"^(?:{lines})\n", text, flags=re.M)
    found = dict(zip(SECTIONS, sections, strict=True))
    return "".join(found[name] for name in names)


def find_uv(python: Path, scratch: Path) -> Path | None:
    """That of PATH, that of the environment, or one that pip installs into it."""
    own = python.with_name("uv")
    for candidate in (shutil.which("uv"), own):
        if candidate and uv_version(candidate) >= OLDEST_UV:
            return Path(candidate)
    (scratch / "uv.txt").write_text(locked("uv"), encoding="utf-8")
    once = ("--quiet", "--retries", "1", "--timeout", "15", "--no-deps", "--require-hashes")
    done = call(python, "-m", "pip", "install", *once, "-r", scratch / "uv.txt")
    if done.returncode == 0:
        return own
    if "connection broken" in done.stderr:
        raise Failed(
            "there is no uv, and no package index can be reached: with a network, or with uv and "
            "its cache, the same command goes on"
        )
    if "No matching distribution" not in done.stderr:
        show(done.stderr)
        raise Failed("uv cannot be installed, for the reason above")
    print("there is no uv here and none in the index, so pip installs the packages, more slowly")
    return None


def uv_version(uv: str | Path) -> tuple[int, ...]:
    """Its version; (0,) where it does not run."""
    try:
        said = call(uv, "--version").stdout
    except OSError:
        return (0,)
    return tuple(map(int, re.findall(r"\d+", said)[:2])) or (0,)


def of_uv(uv: Path, python: Path, pip: Settings) -> Installer:
    """uv with all that pip would know."""
    constraints = [w for file in pip.get("constraint", "").split() for w in ("--constraint", file)]
    return Installer(
        command=[uv, "pip", "install", "--quiet", "--python", python, *uv_flags(pip)],
        # Two packages come as source: what builds them is checked by its hash too.
        by_hash=["--build-constraints", ROOT / LOCK],
        by_pin=[*constraints, *torch_flags(pip)],
        variables={v: pip[name] for name, v in UV_VARIABLES.items() if name in pip},
    )


def of_pip(python: Path, pip: Settings, constraints: Path) -> Installer:
    """pip, which reads its settings by itself. What builds a package it takes by version only."""
    command: Words = [python, "-m", "pip", "install", "--quiet", "--no-compile"]
    builds = constraints.as_uri()  # without a space, at which pip would part it
    old = {"PIP_CONSTRAINT": f"{builds} {pip.get('constraint', '')}"}  # pip below 25.3
    return Installer(command, [], [], {"PIP_BUILD_CONSTRAINT": builds, **old})


def install(python: Path, level: str, constraints: Path) -> None:
    """First what the lock has, each file by its hash, then torch and the project itself."""
    pip = pip_settings(python)
    paths = (f"{PROJECTS[0]}[{EXTRAS[level]}]", *PROJECTS[1:])
    projects = [f"--editable={path}" for path in paths]
    with tempfile.TemporaryDirectory() as scratch:
        lock = Path(scratch) / LOCK
        lock.write_text(locked("run", *{level} - {"run"}), encoding="utf-8")
        uv = find_uv(python, Path(scratch))
        by = of_uv(uv, python, pip) if uv else of_pip(python, pip, constraints)
        environment = {**by.variables, **os.environ}
        words: Words = ["--no-deps", "--require-hashes", "-r", lock]
        finish([*by.command, *by.by_hash, *words], environment)
        # The build system is in the lock, so none is fetched for the project.
        words = ["--no-build-isolation", "--constraint", constraints, *projects]
        finish([*by.command, *by.by_pin, *words], environment)


def finish(command: Words, environment: dict[str, str]) -> None:
    """Run an installer; where it fails, say why."""
    done = call(*command, cwd=ROOT, env=environment)
    if done.returncode == 0:
        return
    if done.returncode < 0:
        raise KeyboardInterrupt
    if re.search(r"connection broken|error sending request|Failed to fetch|dns error", done.stderr):
        raise Failed("a package index cannot be reached: with a network the same command goes on")
    show(done.stderr)
    raise Failed("the packages cannot be installed, for the reason above")


def show(text: str) -> None:
    """What an installer said, without pip's warning for each package that a folder has not."""
    lines = (line for line in text.splitlines() if not line.startswith("WARNING:"))
    print(*lines, sep="\n", file=sys.stderr)


def compile_modules(folder: Path) -> None:
    """Python does this at the first import of a module, unless PYTHONDONTWRITEBYTECODE is set: then
    every process would do it again. Here all cores share it. A template in a package may be no
    Python, which is no error."""
    words = ("-m", "compileall", "-q", "-q", "-j", "0", "-x", NOT_COMPILED)
    for packages in folder.glob("lib/python3*/site-packages"):
        call(folder / "bin" / "python", *words, packages)


def wait_for(alone: TextIO) -> None:
    """Of two at once, the second one waits."""
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another setup is at work: waiting for it")
        fcntl.flock(alone, fcntl.LOCK_EX)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("venv", type=Path)
    parser.add_argument("level", choices=EXTRAS)
    parser.add_argument("--constraints", type=Path, default=ROOT / "constraints.txt")
    given = parser.parse_args()
    folder, half_made = given.venv, given.venv / HALF_MADE
    try:
        with (ROOT / LOCK).open() as alone:
            wait_for(alone)
            python = make_environment(folder).absolute()
            print(f"installing the pinned packages into {folder} (a minute, and their download)")
            half_made.touch()
            try:
                install(python, given.level, given.constraints.absolute())
            except Failed:
                half_made.unlink()  # the installer ended by itself, so no package is half there
                raise
            half_made.unlink()
            compile_modules(folder)
    except Failed as failed:
        sys.exit(str(failed))
    except KeyboardInterrupt:
        sys.exit(f"interrupted: {folder} is half-made, and the same command makes it anew")


if __name__ == "__main__":
    main()
