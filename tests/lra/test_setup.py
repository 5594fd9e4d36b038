"""The environment that `make setup` makes: what the lock names, and what scripts/setup.py does."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "setup.py"
SETUP = runpy.run_path(str(SCRIPT))
BY_TORCH = re.compile(r"(torch|triton|(nvidia|cuda)-.*)$")  # not in the lock, see its first lines
ENTRY = re.compile(r"^([\w.-]+)==(\S+).*\\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.M)


def entries(*sections: str) -> dict[str, str]:
    """Names and versions of some sections of the lock."""
    return {name: version for name, version, _ in ENTRY.findall(SETUP["locked"](*sections))}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").split()
    return dict(line.split("==") for line in lines)


def test_the_lock_and_the_pins_agree():
    locked = entries("run", "dev", "uv")
    assert len(locked) > 150
    by_torch = {name: version for name, version in pins().items() if BY_TORCH.match(name)}
    assert set(by_torch) == {"torch", "triton"}
    assert locked | by_torch == pins()


def test_every_entry_of_the_lock_has_a_hash():
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert len(re.findall(r"^\w", text, flags=re.M)) == len(ENTRY.findall(text))
    assert not [name for name in entries("run", "dev", "uv") if BY_TORCH.match(name)]


def required(requirements: list[str], found: dict[str, Requirement]) -> dict[str, Requirement]:
    """Requirements and all that they require on this machine, as the installed packages say."""
    for line in requirements:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        key = f"{name}[{','.join(sorted(requirement.extras))}]"
        if key in found or (BY_TORCH.match(name) and name != "torch"):
            continue
        found[key] = requirement
        lines = []
        for other in metadata.requires(name) or []:
            marker = Requirement(other).marker
            extras = ("", *requirement.extras)
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                lines.append(other.partition(";")[0])
        required(lines, found)
    return found


@pytest.mark.parametrize(("extra", "sections"), [("fast", ("run",)), ("dev", ("run", "dev"))])
def test_the_lock_has_all_that_an_extra_asks_for(extra: str, sections: tuple[str, ...]):
    """So that nothing comes from the index without a hash."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    facts = project["project"]
    asked = [*facts["dependencies"], *project["build-system"]["requires"]]
    extras = {extra}
    while extras:
        for line in facts["optional-dependencies"][extras.pop()]:
            requirement = Requirement(line)
            if requirement.name == facts["name"]:
                extras |= requirement.extras
            else:
                asked.append(line)
    locked = entries(*sections)
    wanted = required([line.partition(";")[0] for line in asked], {})
    assert len(wanted) > 60
    for requirement in wanted.values():
        name = canonicalize_name(requirement.name)
        if name != "torch":
            assert name in locked, f"{requirement} is not in the lock: make lock"
            assert requirement.specifier.contains(locked[name], prereleases=True), requirement


def test_the_settings_of_pip_are_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From its file and its variables; a folder that is not there is passed over, as pip does."""
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://one.example/simple\nconstraint = c.txt\n"
        f"[install]\nextra-index-url =\n    https://two.example\n    file://{tmp_path}/none\n",
        encoding="utf-8",
    )
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    monkeypatch.setenv("PIP_FIND_LINKS", f"{tmp_path} {tmp_path}/none")
    monkeypatch.setenv("PIP_CERT", "/ca.pem")
    pip = SETUP["pip_settings"](Path(sys.executable))
    by = SETUP["of_uv"](Path("uv"), Path("python"), pip)
    words = list(map(str, by.command[6:]))
    assert [
        "--find-links",
        str(tmp_path),
        "--default-index",
        "https://one.example/simple",
    ] == words[:4]
    assert words[4:6] == ["--index", "https://two.example"]
    assert not any("none" in word for word in words)
    assert by.by_pin == ["--constraint", "c.txt"]  # and no torch of another index
    assert by.variables == {"SSL_CERT_FILE": "/ca.pem"}


# A project of one module that asks for one package, and a build system of its own.
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "mine"
version = "1"
"""
BACKEND = """
from zipfile import ZipFile

def build_editable(folder, settings=None, metadata=None):
    facts = "Metadata-Version: 2.1\\nName: mine\\nVersion: 1\\nRequires-Dist: small>=1\\n"
    facts += "Provides-Extra: fast\\nProvides-Extra: dev\\n"
    wheel = "Wheel-Version: 1.0\\nGenerator: x\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
    with ZipFile(f"{folder}/mine-1-py3-none-any.whl", "w") as archive:
        archive.writestr("mine-1.dist-info/METADATA", facts)
        archive.writestr("mine-1.dist-info/WHEEL", wheel)
        archive.writestr("mine-1.dist-info/RECORD", "")
    return "mine-1-py3-none-any.whl"
"""


def small_wheel(folder: Path, name: str) -> str:
    """A wheel with one module; its hash."""
    path = folder / f"{name}-1-py3-none-any.whl"
    facts = f"{name}-1.dist-info"
    files = {
        f"{name}.py": "VALUE = 1\n",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{facts}/RECORD,,"]
    with ZipFile(path, "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
            record.append(f"{file},sha256={digest.decode()},{len(text)}")
        archive.writestr(f"{facts}/RECORD", "\n".join(record) + "\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


BARE = "/usr/bin:/bin"  # no uv
NOWHERE = {
    "uv": " the same command goes on",
    "pip": ", or with uv and its cache, the same command goes on",
}
Setup = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a lock of two packages, whose folder has a space in its name."""
    place = tmp_path / "my project"
    (place / "scripts").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    shutil.copy(SCRIPT, place / "scripts")
    (place / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
    (place / "backend.py").write_text(BACKEND, encoding="utf-8")
    (place / "constraints.txt").write_text("small==1\nextra==1\n", encoding="utf-8")
    entry = {name: small_wheel(tmp_path / "wheels", name) for name in ("small", "extra")}
    lines = {name: f"{name}==1 \\\n    --hash=sha256:{digest}\n" for name, digest in entry.items()}
    run, dev, uv = SETUP["SECTIONS"].values()
    text = f"# Head\n{run}\n{lines['small']}\n{dev}\n{lines['extra']}\n{uv}\nuv==0 \\\n    --hash="
    text += f"sha256:{'0' * 64}\n"
    (place / "requirements.lock").write_text(text, encoding="utf-8")
    return place


@pytest.fixture
def setup(project: Path) -> Setup:
    """`scripts/setup.py .venv LEVEL` as make calls it, with a folder of wheels and no index."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    variables |= {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(project.parent / "wheels"),
        "PIP_NO_INDEX": "1",
        "PATH": BARE,
        "UV_CACHE_DIR": str(project.parent / "cache"),
    }

    def call(level: str, **more: str) -> subprocess.CompletedProcess[str]:
        words = [sys.executable, "scripts/setup.py", ".venv", level]
        environment = {key: value for key, value in (variables | more).items() if value}
        return subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True)

    return call


def modules(project: Path) -> set[str]:
    """Those of the two packages that the environment has."""
    return {path.stem for path in project.glob(".venv/lib/*/site-packages/*.py")} & {
        "small",
        "extra",
    }


def uv_folder() -> str | None:
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    return str(Path(found).parent) if found else None


def ends_with(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 1, done.stdout
    assert done.stderr.endswith(sentence + "\n"), done.stderr


@pytest.mark.rest
@pytest.mark.parametrize("by", ["uv", "pip"])
def test_a_run_s_packages_come_first_and_the_others_are_added(project: Path, setup: Setup, by: str):
    """One environment, in which nothing else than what the lock names is installed."""
    if by == "uv" and not uv_folder():
        pytest.skip("needs uv: make setup installs it where there is none")
    path = f"{uv_folder()}:{BARE}" if by == "uv" else BARE
    done = setup("run", PATH=path, PIP_NO_INDEX="", PIP_INDEX_URL="http://127.0.0.1:9/simple")
    ends_with(done, "with a network" + NOWHERE[by])
    assert modules(project) == set()

    done = setup("run", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("there is no uv here and none in the index" in done.stdout) == (by == "pip")
    assert "anew" not in done.stdout
    assert modules(project) == {"small"}
    assert list(project.glob(".venv/lib/*/site-packages/__pycache__/small.*.pyc"))

    wheel = project.parent / "wheels" / "extra-1-py3-none-any.whl"
    good = wheel.read_bytes()
    with ZipFile(wheel, "a") as archive:
        archive.writestr("more.py", "")
    done = setup("dev", PATH=path)
    assert "hash" in done.stderr.lower()
    ends_with(done, "the packages cannot be installed, for the reason above")
    assert modules(project) == {"small"}

    wheel.write_bytes(good)
    done = setup("dev", PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert modules(project) == {"small", "extra"}
    assert not (project / ".venv" / ".half-made").exists()


@pytest.mark.rest
def test_a_half_made_environment_is_made_anew(project: Path, setup: Setup):
    (project / ".venv").mkdir()
    for name in ("mine", ".half-made"):
        (project / ".venv" / name).touch()
    done = setup("run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(".venv was left half-made, so it is made anew\n")
    assert modules(project) == {"small"}
    assert not (project / ".venv" / "mine").exists()


def test_an_environment_without_python_is_seen(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.symlink_to(tmp_path / "removed")
    assert SETUP["what_is_wrong"](tmp_path, python) == "has no Python that runs"


def test_an_environment_of_another_python_is_seen(tmp_path: Path):
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    for said, reason in (
        ("3 10 13", "was made with Python 3.10.13"),
        ("3 11 4", "was made with Python 3.11.4"),
        ("3 14 0", "was made with Python 3.14.0"),
        ("3 12 1", ""),
    ):
        python.write_text(f"#!/bin/sh\necho {said}\n", encoding="utf-8")
        python.chmod(0o755)
        assert SETUP["what_is_wrong"](tmp_path, python) == reason


def test_a_folder_of_something_else_is_left_alone(project: Path, setup: Setup):
    (project / ".venv").mkdir()
    (project / ".venv" / "thesis.tex").touch()
    done = setup("run")
    assert done.returncode == 1
    assert done.stderr == ".venv is no environment of Python: name another folder with VENV=...\n"
    assert (project / ".venv" / "thesis.tex").exists()


@pytest.mark.parametrize("python", ["python3.10", "no-such-python"])
def test_make_says_which_pythons_it_takes(tmp_path: Path, python: str):
    if python == "python3.10":
        (tmp_path / python).write_text(
            "#!/bin/sh\n[ $1 = -V ] && echo Python 3.10.13 && exit\nexit 1\n", encoding="utf-8"
        )
        (tmp_path / python).chmod(0o755)
    words = ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path}/venv"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        words, cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 2
    there = {"python3.10": "Python 3.10.13", "no-such-python": "not there"}[python]
    assert f"Python 3.11.5 to 3.13 is needed, and {python} is {there}: install" in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("there", [True, False])
def test_make_sets_up_again_where_python_is_gone(tmp_path: Path, there: bool):
    """Say after an upgrade of the system; what is installed and has its Python is left alone."""
    (tmp_path / "bin").mkdir()
    target = Path(sys.executable) if there else tmp_path / "removed"
    (tmp_path / "bin" / "python").symlink_to(target)
    (tmp_path / ".installed").touch()
    words = ["make", "--dry-run", "setup", f"VENV={tmp_path}"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("scripts/setup.py" in done.stdout) != there
