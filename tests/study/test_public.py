"""The study uses the framework as any user may: modules that the docs name, and no private name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("scripts/study/**/*.py"))
PUBLIC = {"lra", "luna", "lra.data"}  # whose `__all__` says what is in them


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The module and the name of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def named() -> set[str]:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    return {*re.findall(r"`(lra\.[a-z_.]+)`", page.partition("## A study of your own")[2])}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_imports_what_docs_name(script: str):
    known = PUBLIC | named()
    tree = ast.parse((ROOT / script).read_text(encoding="utf-8"))
    for module, name in imports(tree):
        if module.partition(".")[0] == "lra":
            assert module in known or f"{module}.{name}" in known, f"{module} import {name}"
        if module.partition(".")[0] in ("lra", "luna"):
            assert not re.search(r"(^|\.)_", f"{module}.{name}"), f"{module} import {name}"


def test_each_module_that_docs_name_is_there_and_used():
    used = set()
    for script in SCRIPTS:
        tree = ast.parse((ROOT / script).read_text(encoding="utf-8"))
        for module, name in imports(tree):
            used |= {module, f"{module}.{name}"}
    for module in named():
        path = ROOT / module.replace(".", "/")
        assert path.is_dir() or path.with_suffix(".py").is_file(), module
        assert module in used, f"no script uses {module}"
