"""The hash of a source: what changes it, what does not, and which file differs."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import luna
from lra.base import code
from lra.base.code import source_of
from lra.base.errors import UserError
from lra.base.places import PACKAGE
from lra.base.versions import PARTS

METHOD = '''import math as m
from mine.helper import scale
from mine import shapes

def phi(x):
    """The feature map."""
    # a comment
    return scale * x + m.pi + shapes.SIDE
'''
HELPER, SHAPES = "scale = 2\nother = 2\n", "SIDE = 3\n"
FILES = {"__init__": "", "method": METHOD, "helper": HELPER, "shapes": SHAPES, "table": "scale = 3"}


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """hash_of(changes): of the attention of a plug-in that has FILES with these changes."""
    package = SimpleNamespace(__file__=str(tmp_path / "__init__.py"))
    monkeypatch.setitem(sys.modules, "mine", package)  # as if it had been imported
    plugin = SimpleNamespace(__module__="mine.method")
    monkeypatch.setattr(luna, "get", {"mine": plugin}.__getitem__)

    def write(changes: dict[str, str | None]) -> str:
        code.find_source.cache_clear()
        for name, text in (FILES | changes).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.py").unlink(missing_ok=True)
            if text is not None:
                (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
        return source_of("mine", []).hash

    yield write
    code.find_source.cache_clear()


def method(old: str, new: str) -> dict[str, str | None]:
    assert old in METHOD
    return {"method": METHOD.replace(old, new)}


SCALE, MODULE = "from mine.helper import scale", "from mine import shapes"
SAME = {
    "comment": method("# a comment", "# another"),
    "docstring": method('"""The feature map."""', '"""Phi."""'),
    "formatting": method("scale * x + m.pi", "(\n        scale  *  x\n    ) + m.pi"),
    "order of imports": method(f"import math as m\n{SCALE}", f"{SCALE}\nimport math as m"),
    "relative import": method(SCALE, "from .helper import scale"),
    "relative module": method(MODULE, "from . import shapes"),
    "module by its full name": method(MODULE, "import mine.shapes as shapes"),
    "renamed module": method(MODULE, "from mine import forms as shapes")
    | {"shapes": None, "forms": SHAPES},
    "moved module": method(SCALE, "from mine.inner.helper import scale")
    | {"helper": None, "inner/__init__": "", "inner/helper": HELPER},
    "module that is not reached": {"table": "scale = 4"},
}
OTHER = {
    "constant of a module": {"helper": HELPER.replace("2", "3", 1)},
    "sign": method("x + m", "x - m"),
    "module of another project": method("import math as m", "import cmath as m"),
    "name in the same module": method("import scale", "import other as scale"),
    "same name in another module": method(SCALE, "from mine.table import scale"),
}


@pytest.mark.parametrize("what", SAME | OTHER)
def test_what_changes_the_hash_and_what_does_not(hash_of, what: str):
    assert (hash_of((SAME | OTHER)[what]) == hash_of({})) is (what in SAME)


def test_the_attention_itself_may_move(hash_of):
    hash_of({"inner/__init__": "", "inner/own": METHOD})
    assert code.hash_modules("mine.inner.own") == code.hash_modules("mine.method")


def test_an_attention_has_its_own_source_and_shares_the_rest():
    of_luna, of_linear = source_of("luna", PARTS), source_of("linear", PARTS)
    differ = of_luna.parts.items() ^ of_linear.parts.items()
    assert {part for part, _ in differ} == {"the attention luna", "the attention linear"}
    sources = of_luna, of_linear, source_of("luna", ["backbone"])
    assert len({source.hash for source in sources}) == 3
    assert of_luna.outside == ()
    with pytest.raises(UserError, match=r"the source of lra\.nothing cannot be found"):
        source_of("luna", [], {"nothing": ["lra.nothing"]})


def test_a_source_names_the_file_that_differs():
    now = source_of("linear", ["step"])
    assert {"luna/attention/linear.py", "luna/errors.py", "lra/training/module.py"} <= {*now.files}
    assert now.differs_from(now.parts, now.files) == ""
    edited = now.files | {"luna/errors.py": "0"}
    parts = now.parts | {"the attention linear": "0"}
    assert now.differs_from(parts, edited) == "luna/errors.py"
    three = edited | dict.fromkeys(("lra/training/module.py", "lra/training/trainer.py"), "0")
    assert now.differs_from(parts, three).endswith(" and 1 more")
    assert now.differs_from(parts, {}) == "the attention linear", "of before files were kept"
    fewer = {name: text for name, text in now.files.items() if name != "luna/errors.py"}
    assert now.differs_from(parts, fewer) == "luna/errors.py"


def test_what_is_not_the_projects_has_to_be_the_same(hash_of):
    hash_of({})
    before = source_of("mine", ["step"], {"the chosen optimizer": ["mine.helper"]})
    assert before.outside == ("the chosen optimizer", "the attention mine")
    assert before.same_outside(before.parts | {"the step": "0"})
    hash_of({"helper": HELPER.replace("2", "3", 1)})
    assert not source_of("mine", ["step"]).same_outside(before.parts)


def test_a_process_has_the_code_that_it_loaded(monkeypatch: pytest.MonkeyPatch):
    luna.get("uniform")  # which imports it
    monkeypatch.setattr(code, "_loaded", {})
    before, read = source_of("uniform", []), Path.read_bytes
    with monkeypatch.context() as edit:
        edit.setattr(Path, "read_bytes", lambda file: read(file) + b"edited = True")
        assert source_of("uniform", []) != before
    code.keep_loaded()
    monkeypatch.setattr(Path, "read_bytes", lambda file: read(file) + b"edited = True")
    assert source_of("uniform", []) == before


@pytest.mark.parametrize("python", [sys.executable, "python3.12", "python3.13"])
def test_every_process_and_python_has_the_same_hash_without_torch(python: str):
    environment = os.environ | {"PYTHONHASHSEED": "5", "PYTHONPATH": str(PACKAGE.parent)}
    ask = "import sys; from lra.base.code import *; from lra.base.versions import PARTS; "
    ask += "print(source_of('luna', PARTS).hash, 'torch' in sys.modules)"
    if shutil.which(python) is None or subprocess.run([python, "-V"]).returncode:
        pytest.skip("is not installed")
    answer = subprocess.check_output([python, "-c", ask], env=environment, text=True)
    assert answer.split() == [source_of("luna", PARTS).hash, "False"]


OWN = """
import yaml
from own_helper import scale
from own_deep.inner import shape
import own_space.name

class Metric:
    def late(self):
        from own_late import bias
        return bias
"""
IN_FOLDER = {
    "own_helper": "from own_second import scale\n",
    "own_second": "scale = 2\n",
    "own_deep/__init__": "",
    "own_deep/inner": "from .most import shape\n",
    "own_deep/most": "shape = 3\n",
    "own_space/name": "a = 1\n",  # a package without __init__.py
    "own_late": "bias = 4\n",
    "own_other": "unused = 5\n",
    "yaml/__init__": "never = 6\n",  # what is installed comes first
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A folder of the user's, searched as that of --config-dir; nothing in it is imported."""
    for name, text in {"own": OWN, **IN_FOLDER}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for cached in (code.find_source, code._folders_of):
        cached.cache_clear()
    importlib.invalidate_caches()


@pytest.mark.parametrize("name", IN_FOLDER)
def test_what_a_users_file_imports_from_its_folder_counts(folder: Path, name: str):
    """By file, and not by what happens to be imported: a package, an import in a method, what a
    helper imports. What it does not import, and a name that is installed, do not count."""
    before = code.hash_modules("own")
    file = folder / f"{name}.py"
    file.write_text(file.read_text("utf-8") + "another = 7\n", encoding="utf-8")
    forget()
    counts = name not in ("own_other", "yaml/__init__")
    assert (code.hash_modules("own") != before) is counts


def test_what_is_installed_has_no_folder_of_its_own(folder: Path):
    assert code.own_folder("own") == folder.resolve()
    assert code.own_folder("own_deep.inner") == folder.resolve()
    for module in ("yaml", "torch.optim", "json", "lra.base.code", "luna"):
        assert code.own_folder(module) is None
