"""What `pip install` of the wheel gives, in an empty folder, with the source tree out of reach."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from string import Template
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from lra.base.places import CONFIGS
from tests.lra.conftest import SMALL, environment

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("luna", "lra", "hydra_plugins")
Lra = Callable[..., str]


def call(*words: str | Path, **options: object) -> str:
    """Its output; what it says where it fails."""
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel made from it."""
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    [sdist] = folder.glob("*.tar.gz")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "wheel", *offline, sdist, "-w", folder, cwd=folder)
    [wheel] = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder to work in, with a user's configs beside it."""
    place = tmp_path_factory.mktemp("user")
    own = place / "own" / "attention"
    own.mkdir(parents=True)
    (own / "mine.yaml").write_text("defaults: [rff]\nP: 6\n", encoding="utf-8")
    (place / "work").mkdir()
    return place / "work"


@pytest.fixture(scope="module")
def python(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel in it. It sees the packages of this one, but not what their
    .pth files name, so that an editable install of this tree is out of reach."""
    place = tmp_path_factory.mktemp("environment")
    venv.create(place)
    executable = place / "bin" / "python"
    words = ("--no-deps", "--no-index", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "--python", executable, "install", *words, built[1])
    [site] = place.glob("lib/python*/site-packages")
    paths = sysconfig.get_paths()
    (site / "borrowed.pth").write_text(
        f"{paths['purelib']}\n{paths['platlib']}\n", encoding="utf-8"
    )
    return executable


def clean() -> dict[str, str]:
    return {key: value for key, value in environment().items() if key != "PYTHONPATH"}


def install(python: Path, *what: str | Path) -> None:
    """Into that environment, by what is there already."""
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    call(sys.executable, "-m", "pip", "--python", python, "install", *offline, *what)


@pytest.fixture
def lra(python: Path, folder: Path) -> Lra:
    """`lra <words>` as installed."""
    return lambda *words: call(python.with_name("lra"), *words, cwd=folder, env=clean())


def test_the_archives_hold_the_configs_and_the_data_but_no_results(built: tuple[Path, Path]):
    sdist, wheel = built
    inside = set(ZipFile(wheel).namelist())
    configs = {f"lra/configs/{p.relative_to(CONFIGS)}" for p in CONFIGS.rglob("*.yaml")}
    with tarfile.open(sdist) as archive:
        sources = {name.partition("/")[2] for name in archive.getnames()}
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*")]
    # Python and Numba keep what they compiled beside the sources.
    sources_only = [f for f in files if f.is_file() and "__pycache__" not in f.parts]
    code = {str(f.relative_to(ROOT)) for f in sources_only}
    assert configs | code <= inside
    assert code | {"train.py", "convert.py", "LICENSE", "CITATION.cff"} <= sources
    facts = f"{wheel.name.rpartition('-py3')[0]}.dist-info"
    assert {name.partition("/")[0] for name in inside} == {*PACKAGES, facts}


def test_the_source_tree_is_out_of_reach(python: Path, folder: Path):
    code = (
        "import json, sys, luna, lra.base.places, hydra_plugins.lra_launchers as waiting\n"
        "files = [luna.__file__, lra.__file__, str(lra.base.places.CONFIGS), waiting.__file__]\n"
        "print(json.dumps([files, sys.path]))"
    )
    files, path = json.loads(call(python, "-c", code, cwd=folder, env=clean()))
    assert all(Path(file).is_relative_to(python.parents[1]) for file in files)
    assert not [entry for entry in path if Path(entry) == ROOT]


@pytest.mark.rest
def test_training_a_sweep_and_a_table(lra: Lra, folder: Path):
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    small = [word for word in SMALL if word != "attention=linear"]
    words = [*small, "attention=mine", "--config-dir", "../own"]
    sweep = lra("train", "-m", *words, "hydra/launcher=laptop", "seed=1,2")
    assert sweep.count("done: test accuracy") == 2
    assert "sweep of 2: 2 done" in sweep
    records = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in (folder / "runs" / "listops").rglob("seed-*/result.json")
    ]
    assert [record["attention"]["P"] for record in records] == [6, 6]
    assert [record["git"]["revision"] for record in records] == [None, None]
    assert "rff" in lra("table")


# Methods of tests/luna/wrong.py, and what `lra check` says of each.
FAULTS = {
    "MixesTheBatch": "examples of a batch meet",
    "FalselyConvex": "declare convex=False",
    "DeadProjection": "of qkv.weight.q have no gradient",
    "DecaysInHoles": "declare holes_are_time=True",
}


@pytest.mark.rest
def test_wrong_methods_of_another_package_are_found(python: Path, folder: Path, tmp_path: Path):
    """By `lra check` as installed: each by its fault, and the right one passes."""
    every = ("Values", *FAULTS)
    code = (ROOT / "tests/luna/wrong.py").read_text(encoding="utf-8")
    code += "\n\nfrom luna.base import register\n\n"
    code += "".join(f"register('{name.lower()}')({name})\n" for name in every)
    (tmp_path / "wrong_methods.py").write_text(code, encoding="utf-8")
    entries = "".join(f'{name.lower()} = "wrong_methods"\n' for name in every)
    words = {"package": "wrong-methods", "group": "luna.attention", "module": "wrong_methods"}
    project = (ROOT / "lra/templates/project.txt").read_text(encoding="utf-8")
    project = project.replace('$name = "$entry"\n', entries)
    (tmp_path / "pyproject.toml").write_text(Template(project).substitute(words), encoding="utf-8")
    install(python, tmp_path)
    for name in every:
        words = [str(python.with_name("lra")), "check", name.lower()]
        done = subprocess.run(words, cwd=folder, env=clean(), capture_output=True, text=True)
        assert done.returncode == (name in FAULTS), done.stdout + done.stderr
        assert FAULTS.get(name, "'values' is what it declares") in done.stdout, name


@pytest.mark.rest
def test_a_package_of_ones_own_as_its_recipe_says(python: Path, lra: Lra, folder: Path):
    """What the command writes is what the page shows; it is installed, checked and trained."""
    page = (ROOT / "docs/extend/attention.md").read_text(encoding="utf-8")
    [entry] = re.findall(r"^```toml\n(.*?)^```", page, re.M | re.S)
    lra("new", "attention", "foo")
    assert entry in (folder / "luna-foo/pyproject.toml").read_text(encoding="utf-8")
    [place] = re.findall(r"^pip install -e (.*)$", page, re.M)
    install(python, "-e", folder / place)
    assert "'foo' is what it declares" in lra("check", "foo")
    small = [word for word in SMALL if not word.startswith("attention=")]
    assert "done: test accuracy" in lra("train", *small, "attention=foo")


def required(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it requires on this machine."""
    if name not in found:
        found.add(name)
        for line in metadata.requires(name) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                required(requirement.name, found)
    return found


def torch_only(place: Path) -> Path:
    """The packages of a new environment with torch, what torch requires, and nothing else."""
    venv.create(place)
    [site] = place.glob("lib/python*/site-packages")
    for name in required("torch", set()):
        distribution = metadata.distribution(name)
        for entry in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(Path(str(distribution.locate_file(entry))))
    return site


ALL_METHODS = """
import torch, luna
from luna.testing import Case, check

x = torch.randn(1, 64, 32)
for name in luna.names():
    mixer = luna.mixer(name, d_model=32, n_heads=2, max_len=64)
    assert mixer(x).isfinite().all(), name
assert not [r for r in check(Case("uniform")) if r.problem]
print(luna.__file__)
"""


def test_the_attentions_need_torch_only(python: Path, tmp_path: Path):
    site = torch_only(tmp_path)
    [installed] = python.parents[1].glob("lib/python*/site-packages/luna")
    (site / "luna").symlink_to(installed)
    call(tmp_path / "bin" / "python", "-c", ALL_METHODS, cwd=tmp_path, env=clean())


@pytest.mark.rest
def test_the_wheel_of_the_attentions_alone(tmp_path: Path):
    """luna-attention: luna/ and nothing else, the same version, torch its only requirement."""
    pytest.importorskip("hatchling")
    project = ROOT / "packages" / "luna-attention"
    call(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=project)
    [wheel] = tmp_path.glob("luna_attention-*.whl")
    assert wheel.name.split("-")[1] == metadata.version("luna-lra")
    assert {name.partition("/")[0] for name in ZipFile(wheel).namelist()} == {
        "luna",
        f"{wheel.name.rpartition('-py3')[0]}.dist-info",
    }
    site = torch_only(tmp_path / "environment")
    executable = tmp_path / "environment" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", executable)
    call(*pip, "install", "--no-index", wheel)
    imported = call(executable, "-c", ALL_METHODS, cwd=tmp_path, env=clean())
    assert Path(imported.strip()).is_relative_to(site)
    [facts] = site.glob("luna_attention-*.dist-info")
    needed = (facts / "METADATA").read_text(encoding="utf-8")
    plain = [line for line in needed.splitlines() if line.startswith("Requires-Dist")]
    assert [line for line in plain if "extra ==" not in line] == ["Requires-Dist: torch>=2.11"]
