"""The import rules of docs/architecture.md: one direction, and `luna` knows nothing of `lra`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("luna", "lra")
    for path in (ROOT / package).rglob("*.py")
}


def room(module: str) -> str:
    return ".".join(module.split(".")[:2])


def imports(path: Path) -> Iterator[str]:
    """Our modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            while name and name not in MODULES:
                name = name.rpartition(".")[0]
            if name:
                yield name


def rules() -> dict[str, set[str]]:
    """Per room, the rooms that it may import from."""
    allowed: dict[str, set[str]] = {}
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for line in text.splitlines():
        if not line.startswith("| `"):
            continue
        rooms, _, sources = (cell.strip() for cell in line.strip("|").split("|"))
        named = set(re.findall(r"`([\w.]+)`", sources))
        named |= set(allowed) if sources == "all above" else set()
        allowed |= {name: named | {name} for name in re.findall(r"`([\w.]+)`", rooms)}
    return allowed


def test_every_import_follows_the_rules():
    allowed = rules()
    wrong = [
        f"{module} imports {target}"
        for module, path in MODULES.items()
        if "." in module
        for target in imports(path)
        # `luna` and `lra` themselves are the public doors of their packages
        if "." in target and room(target) not in allowed.get(room(module), set())
    ]
    assert not wrong


def test_luna_knows_nothing_of_lra():
    luna = {name: path for name, path in MODULES.items() if name.startswith("luna")}
    assert not [n for n, path in luna.items() if any(t.startswith("lra") for t in imports(path))]


def test_configs_have_one_reader_and_nothing_of_hydra_is_private():
    texts = {name: path.read_text(encoding="utf-8") for name, path in MODULES.items()}
    assert [name for name, text in texts.items() if "OmegaConf.load(" in text] == ["lra.groups"]
    assert not [name for name, text in texts.items() if "hydra._internal" in text]


def test_every_room_has_a_rule():
    assert {room(module) for module in MODULES if "." in module} == set(rules())
