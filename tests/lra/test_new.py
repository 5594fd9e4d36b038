"""`lra new attention foo`: its files are all that a new method needs, in a clone and outside."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import luna
from lra import data, new
from lra.base import groups
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.cli import main
from lra.data import registry
from lra.settings.compose import compose
from lra.settings.presets import AROUND
from lra.settings.search_path import initialised
from lra.sweeps.status import jobs
from lra.training import run as runner
from luna import base

from .conftest import REPOSITORY, run_in


def test_in_a_clone_the_suite_finds_new_methods(clone: Path):
    """It holds them to the contract, and what is written is as the linter wants it."""
    attention = ["luna/attention/foo.py", "configs/attention/foo.yaml"]
    mixer = ["luna/mixers/foofoo.py", "configs/attention/foofoo.yaml"]
    mixer_test = "tests/luna/mixers/test_foofoo.py"
    written = [
        *run_in(clone, "lra", "new", "attention", "foo").splitlines()[:2],
        *run_in(clone, "lra", "new", "mixer", "foofoo").splitlines()[:3],
    ]
    assert written == [str(clone / name) for name in (*attention, *mixer, mixer_test)]
    python = [file for file in written if file.endswith(".py")]
    run_in(clone, "ruff", "check", *python, "--config", str(REPOSITORY / "pyproject.toml"))
    run_in(clone, "ruff", "format", "--check", *python)
    suite = [
        "tests/luna/test_conformance.py",
        "tests/lra/compute",
        "tests/lra/test_catalogue.py",
        "tests/lra/settings/test_compose.py",
        "tests/lra/test_architecture.py",
        mixer_test,
    ]
    selection = "foo or catalogue_is or exactly_its_options or architecture or definition"
    plain = ("-n", "0", "-p", "no:cacheprovider", "-m", "not rest", "-k", selection)
    assert " passed" in run_in(clone, "pytest", *plain, *suite)


@pytest.fixture
def outside(tmp_path, monkeypatch) -> Iterator[Path]:
    """A package of one's own, made by the command and installed."""
    monkeypatch.chdir(tmp_path)
    new.write("attention", "foo_bar")
    package = tmp_path / "luna-foo-bar"
    info = package / "luna_foo_bar-0.1.0.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Name: luna-foo-bar\nVersion: 0.1.0\n", encoding="utf-8")
    project = (package / "pyproject.toml").read_text(encoding="utf-8")
    assert '[project.entry-points."luna.attention"]\nfoo_bar = "luna_foo_bar"\n' in project
    info.joinpath("entry_points.txt").write_text(
        "[luna.attention]\nfoo_bar = luna_foo_bar\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(package)
    yield package
    forget()


def forget() -> None:
    """The next use imports it again."""
    base._classes.pop("foo_bar", None)
    sys.modules.pop("luna_foo_bar", None)


def test_a_method_of_another_package_trains_like_ours(outside, overrides, capsys, monkeypatch):
    run = compose([*overrides, "attention=foo_bar", "attention.power=3", "attention.dwc=conv1d"])
    own = {"name": "foo_bar", "dwc": "conv1d", "power": 3}
    assert run.attention == own | {key: AROUND[key] for key in AROUND if key != "dwc"}
    runner.train(run)
    assert "attention  foo_bar  power=3 dwc=conv1d" in capsys.readouterr().out
    record = read_json(next(Path(run.runs_dir).rglob("result.json")))
    assert record is not None
    assert record["attention"] == run.attention
    assert main(["list"]) == 0
    assert "foo_bar" in capsys.readouterr().out
    assert main(["check", "foo_bar"]) == 0
    capsys.readouterr()
    method = luna.get("foo_bar")
    monkeypatch.setattr(method, "declared", method.declared.but(row_stochastic=False, convex=False))
    with pytest.raises(SystemExit) as stopped:
        main(["check", "foo_bar"])
    assert stopped.value.code == 1
    printed = capsys.readouterr().out
    assert "constant values and their outputs differ by" in printed
    assert "declare row_stochastic=True" in printed
    assert "not checked: compiled, options other than the defaults, GPUs" in printed


def test_its_defaults_are_the_class_s_and_a_file_of_the_user_wins(outside, tmp_path):
    assert compose(["attention=foo_bar"]).attention["power"] == 2.0
    with initialised():
        assert ["attention=foo_bar"] in list(jobs(["attention=glob(f*)"]))
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "foo_bar.yaml").write_text(
        "name: foo_bar\npower: 7.0\nexempt: no\n", encoding="utf-8"
    )
    with groups.searching(tmp_path):
        assert compose(["attention=foo_bar"]).attention["power"] == 7.0


def test_a_mistake_in_its_options_is_one_sentence(outside, capsys):
    assert main(["compute", "attention=foo_bar", "attention.powr=3"]) == 2
    assert "attention 'foo_bar' has no option 'powr'; did you mean power" in capsys.readouterr().err
    assert main(["compute", "attention=foo_baz"]) == 2
    assert "unknown attention 'foo_baz'; did you mean foo_bar" in capsys.readouterr().err
    code = outside / "luna_foo_bar.py"
    code.write_text(
        code.read_text(encoding="utf-8").replace("power: float = 2.0", "power: float"),
        encoding="utf-8",
    )
    forget()
    assert main(["compute", "attention=foo_bar"]) == 2
    assert "full_key: attention.power" in capsys.readouterr().err


def test_the_other_templates_work_as_they_are(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.TASKS, "added", {})
    new.write("attention", "foo_bar", weights=True)
    assert "(formula, paper, traits, costs)" in capsys.readouterr().out
    new.write("task", "foo_task")
    assert "(title, options, examples, settings)" in capsys.readouterr().out
    monkeypatch.syspath_prepend(tmp_path / "luna-foo-bar")
    monkeypatch.syspath_prepend(tmp_path / "lra-foo-task")
    importlib.import_module("luna_foo_bar")
    data.register(importlib.import_module("lra_foo_task").FooTask)
    codes = main(["check", "foo_bar"]), main(["data", "check", "foo_task"])
    forget()
    assert codes == (0, 0)


def test_a_new_mixer_works_as_it_is(tmp_path, monkeypatch, overrides):
    """A recurrence that is its definition, trains, and resumes nothing by hand."""
    monkeypatch.chdir(tmp_path)
    new.write("mixer", "foo_bar")
    monkeypatch.syspath_prepend(tmp_path / "luna-foo-bar")
    importlib.import_module("luna_foo_bar")
    try:
        assert main(["check", "foo_bar"]) == 0
        importlib.import_module("test_luna_foo_bar").test_it_is_its_definition()
        with pytest.raises(luna.LunaError, match="'foo_bar' is a mixer of hidden states"):
            luna.build("foo_bar", n_heads=2, head_dim=8, max_len=64)
    finally:
        forget()


@pytest.mark.parametrize("name", ["Foo", "2d", "class", "a-b", ""])
def test_a_name_that_cannot_be(name: str):
    with pytest.raises(UserError, match="cannot be its name"):
        new.write("attention", name)


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    for kind, name in (("attention", "luna"), ("task", "listops")):
        with pytest.raises(UserError, match=f"the {kind} '{name}' exists already"):
            new.write(kind, name)
    monkeypatch.chdir(tmp_path)
    new.write("attention", "foo")
    with pytest.raises(UserError, match=r"luna-foo/pyproject\.toml exists already"):
        new.write("attention", "foo")
    assert "foo" not in luna.names()
