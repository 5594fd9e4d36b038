"""The code that decides a run's result, as a hash: runs of different code are different runs.

It is the attention, the modules of SHARED, and what they import of `luna`, `lra.model` or their own
plug-in; all others choose settings and data, which have hashes of their own, or print and store. A
file counts by its syntax tree without docstrings, wherever it lies. A process keeps the code that
it has loaded, and so do its forks: an edit counts in the next process.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

from lra.base.errors import UserError
from lra.base.places import PACKAGE

SHARED = {
    "the backbone": ["lra.model.network"],
    "the optimiser": ["lra.training.optim"],
    "the training step": ["lra.training.module", "lra.metrics.target", "lra.metrics.classes"],
    "the order of the data": ["lra.data.loader", "lra.data.device"],
}
PRETRAINING = {"the pretraining": ["lra.model.pretrain"]}  # beside SHARED, where there is one
CONVERSION = {"the conversion": ["luna.convert.pipeline"]}
CHOSEN = "the chosen "  # begins the parts of which only some runs have one
UNKNOWN = "unknown"  # of records from before they held their code
_loaded: dict[Path, bytes] = {}


def code_of(attention: str, shared: dict[str, list[str]] = SHARED) -> dict[str, str]:
    """Hash each part of a run's code. Only an attention from outside `luna` is imported."""
    module = f"luna.attention.{attention}"
    if find_source(module) is None:
        import luna  # not before: it imports torch

        module = luna.get(attention).__module__
    parts = {f"the attention {attention}": [module], **shared}
    return {part: hash_modules(*modules) for part, modules in parts.items()}


def hash_parts(parts: dict[str, str]) -> str:
    return _hash(json.dumps(sorted(parts.items())))[:8]


def keep_loaded(*modules: str) -> None:
    """Keep the files of `luna`, `lra` and the packages of these modules as they are now, as far as
    they have been imported."""
    packages = {"luna", "lra", *(module.partition(".")[0] for module in modules)}
    for module in [name for name in sys.modules if name.partition(".")[0] in packages]:
        if file := find_source(module):
            _loaded.setdefault(file, file.read_bytes())


def hash_modules(*modules: str) -> str:
    """Hash the contents of modules and of all that they import, wherever their files lie."""
    packages = {"luna", "lra", *(module.partition(".")[0] for module in modules)}
    followed = tuple(f"{name}." for name in ("lra.model", *packages - {"lra"}, *modules))
    contents: dict[Path, tuple[str, list[tuple[str, ...]]]] = {}
    to_read = list(modules)
    for module in to_read:  # grows meanwhile
        if (file := find_source(module)) is None:
            raise UserError(f"the source of {module} cannot be found")
        if file in contents:
            continue
        text, imports = _read(module)
        uses: list[tuple[str, ...]] = []
        for alias, place in imports:
            target = place if place.partition(".")[0] in packages else ""
            while target and find_source(target) is None:
                target = target.rpartition(".")[0]
            uses.append((alias, place.removeprefix(target).removeprefix(".")))  # "": a whole module
            if target != "luna" and f"{target}.".startswith(followed):  # luna imports all others
                uses[-1] += (_read(target)[0],)
                to_read.append(target)
        contents[file] = text, sorted(uses)
    return _hash(repr(sorted(contents.values())))


def _read(module: str) -> tuple[str, list[tuple[str, str]]]:
    file = find_source(module)
    assert file is not None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return parse(_loaded[file] if file in _loaded else file.read_bytes(), package)


@cache
def find_source(module: str) -> Path | None:
    """Find the file of a module that has been imported, or that lies in its package's folder."""
    if file := getattr(sys.modules.get(module), "__file__", None):
        return Path(file) if file.endswith(".py") else None
    package, _, name = module.rpartition(".")
    above = find_source(package) if package else PACKAGE.with_name("__init__.py")  # beside `lra`
    if above is None or above.name != "__init__.py":
        return None
    files = above.with_name(name) / "__init__.py", above.with_name(f"{name}.py")
    return next(filter(Path.is_file, files), None)


@cache
def parse(source: bytes, package: str = "") -> tuple[str, list[tuple[str, str]]]:
    """Hash a file without its imports, and list these: the names that it uses and their places."""
    imports: set[tuple[str, str]] = set()
    for node in ast.walk(tree := ast.parse(source)):
        if isinstance(node, ast.Import):
            imports |= {(a.asname or a.name, a.name) for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            imports |= {(a.asname or a.name, f"{module}.{a.name}") for a in node.names}
    return _hash(_text(tree)), sorted(imports)


def _text(node: object) -> str:
    """Write a syntax tree without positions, docstrings, imports and empty fields."""
    match node:
        case ast.Import() | ast.ImportFrom() | ast.Expr(ast.Constant(str())):
            return ""
        case ast.JoinedStr(values):  # to which Python 3.12.1 adds empty texts
            return f"JoinedStr{[_text(v) for v in values if getattr(v, 'value', v) != '']}"
        case ast.AST():
            fields = (f"{k}={_text(v)}" for k, v in ast.iter_fields(node) if v not in (None, []))
            return f"{type(node).__name__}({','.join(fields)})"
        case list():
            return f"[{','.join(filter(None, map(_text, node)))}]"
    return repr(node)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
