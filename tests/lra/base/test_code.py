"""The hash of the code: what changes it, and what does not."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from lra.base import code
from lra.base.config import UserError

SOURCE = '''"""A module."""

from mine.helper import scale


def phi(x):
    """The feature map."""
    # a comment
    return scale * x + 1
'''


@pytest.fixture
def hash_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """hash_of(source, helper): of a package `mine` with an attention and a module it imports."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(code, "MEMORY", tmp_path / "memory" / "code.json")
    monkeypatch.setattr(code, "_frozen", {})
    code._memory.cache_clear()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").touch()

    def written(source: str = SOURCE, helper: str = "scale = 2\n") -> str:
        (tmp_path / "mine" / "attention.py").write_text(source, encoding="utf-8")
        (tmp_path / "mine" / "helper.py").write_text(helper, encoding="utf-8")
        return code._hash(code._closure("mine.attention"))

    yield written
    code._package.cache_clear()
    code._memory.cache_clear()


def test_comments_docstrings_and_formatting_do_not_count(hash_of):
    changed = SOURCE.replace("# a comment", "# another").replace('"""The feature map."""', "")
    changed = changed.replace("scale * x + 1", "(\n        scale  *  x\n        + 1\n    )")
    assert hash_of(changed) == hash_of()


@pytest.mark.parametrize(
    ("old", "new"), [("x + 1", "x - 1"), ("x + 1", "1 + x"), ("+ 1", "+ 1.0"), ("phi(x)", "phi(y)")]
)
def test_any_change_of_the_code_counts(hash_of, old: str, new: str):
    assert hash_of(SOURCE.replace(old, new)) != hash_of()


def test_what_a_module_imports_counts(hash_of):
    assert hash_of(helper="scale = 3\n") != hash_of()


def test_what_was_parsed_is_remembered_and_a_damaged_memory_is_no_matter(
    hash_of, monkeypatch: pytest.MonkeyPatch
):
    first = hash_of()
    code._remember()
    assert code.MEMORY.exists()
    with monkeypatch.context() as patch:
        patch.setattr(code, "_parse", None)
        code._memory.cache_clear()
        assert hash_of() == first
    code.MEMORY.write_text("{", encoding="utf-8")
    code._memory.cache_clear()
    assert hash_of() == first


def test_a_process_has_the_code_that_it_loaded(hash_of, monkeypatch: pytest.MonkeyPatch):
    first = hash_of()
    importlib.import_module("mine.attention")
    monkeypatch.setattr(code, "FROZEN", ("mine.",))
    code.freeze()
    for name in ("mine", "mine.attention", "mine.helper"):
        del sys.modules[name]
    assert hash_of(helper="scale = 3\n") == first


def test_an_attention_depends_on_its_own_files_and_runs_share_the_rest():
    luna, linear = code.code_of("luna"), code.code_of("linear")
    own = {"the attention luna", "the attention linear"}
    assert luna.hash != linear.hash
    assert {k: v for k, v in luna.parts.items() if k not in own} == {
        k: v for k, v in linear.parts.items() if k not in own
    }
    assert luna.changed_since(luna.parts) == ""
    older = luna.parts | {"the backbone": "0"}
    assert luna.changed_since(older) == "the backbone"
    assert {"luna.linear", "luna.base", "luna.kernels.luna_attention.compiled"} <= set(
        code._closure("luna.attention.luna")
    )
    assert "luna.feature_maps.learned" not in code._closure("luna.attention.softmax")


def test_the_hash_needs_no_torch_and_an_unknown_attention_is_a_sentence():
    asked = (
        "import sys; from lra.base.code import code_of;"
        "print(code_of('luna').hash, 'torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", asked], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [code.code_of("luna").hash, "False"]
    with pytest.raises(UserError, match="unknown attention 'lunar'"):
        code.code_of("lunar")


def test_a_class_that_was_typed_in_is_its_functions_and_its_settings(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(code, "_source", lambda module: None)  # as for what a notebook defines

    def plain(self):
        return 1

    def other(self):
        return 2

    def made(**content):
        return code.of_class(type("Mine", (), content))

    first = made(n=4, read=plain)
    assert made(n=4, read=plain) == first
    changed = [made(n=5, read=plain), made(n=4, read=other)]
    changed += [made(n=4, read=kind(other)) for kind in (staticmethod, classmethod, property)]
    assert first not in changed
    assert made(n=4, read=staticmethod(plain)) != made(n=4, read=staticmethod(other))
