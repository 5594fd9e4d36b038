"""The code that decides a run's result, as a hash: runs of different code are different runs.

It covers the attention's file with all it imports of its own package, the backbone, the optimiser,
the training step and the order of the data. Comments, docstrings and formatting do not count, nor
does the version of Python. Settings and data have their own hashes: the identity
(lra/runs/folder.py) and the fingerprint.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lra.base.config import UserError
from lra.base.disk import read_json, write_json

HERE = Path(__file__).resolve().parents[1]
# What every run shares, besides its attention.
SHARED = {
    "the backbone": ["model"],
    "the optimiser": ["training/optim.py"],
    "the training step": ["training/module.py"],
    "the order of the data": ["data/loader.py", "data/device.py"],
}
PRETRAINING = {"the pretraining": ["model/pretrain.py"]}  # beside SHARED, where there is one
CONVERSION = {"the conversion": ["../luna/convert"]}
FROZEN = (
    "luna.",
    "lra.model",
    "lra.training.optim",
    "lra.training.module",
    "lra.model.pretrain",
    "lra.data.loader",
    "lra.data.device",
)  # see `freeze`
MEMORY = HERE / "__pycache__" / "code.json"
Module = tuple[str, list[str]]  # the hash of a file's code, and what it imports
_frozen: dict[Path, Module] = {}
_new: list[str] = []  # hashes of files parsed since MEMORY was written
PLAIN = (bool, int, float, str, bytes, tuple, list, dict, type(None))
UNKNOWN = "unknown"  # of records from before they held their code
# Positions in a file, and fields that not every version of Python has.
IGNORED = {"lineno", "col_offset", "end_lineno", "end_col_offset", "kind", "ctx", "type_comment",
           "type_params"}  # fmt: skip


@dataclass(frozen=True)
class Code:
    """Hashes of the parts; a plug-in's part names its package and version too."""

    parts: dict[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return _hash(sorted(self.parts.items()))[:8] if self.parts else UNKNOWN

    def changed_since(self, old: dict[str, str]) -> str:
        """The parts that differ from those of an older run: `the attention luna, the backbone`."""
        changed = [part for part, value in self.parts.items() if old.get(part) != value]
        return ", ".join(changed) if old else "some part (that run did not record its code)"


def code_of(attention: str, shared: Mapping[str, Sequence[str]] = SHARED) -> Code:
    """The code of a run with this attention; it imports neither torch nor the attention."""
    parts = {f"the attention {attention}": _attention(attention)}
    for part, places in shared.items():
        modules = [module for place in places for module in _modules(HERE / place)]
        parts[part] = _hash([_closure(module, follow="luna") for module in modules])[:16]
    _remember()
    return Code(parts)


def _attention(name: str) -> str:
    loaded = sys.modules.get("luna.base")
    found = loaded._classes.get(name) if loaded is not None else None  # registered by a script
    entry = {e.name: e for e in importlib.metadata.entry_points(group="luna.attention")}.get(name)
    if (_package("luna") / "attention" / f"{name}.py").exists():
        return _hash(_closure(f"luna.attention.{name}"))[:16]
    if entry is not None:
        package = "" if entry.dist is None else f"{entry.dist.name} {entry.dist.version} "
        return package + _hash(_closure(entry.value.partition(":")[0]))[:16]
    if found is None:
        raise UserError(f"unknown attention '{name}'")
    return _hash(_closure(found.__module__))[:16]


def of_class(found: type) -> str:
    """The hash of a class's module and of what it imports of its own package; of a class that was
    typed into a notebook, that of its own text."""
    if _source(found.__module__) is not None:
        return _hash(_closure(found.__module__))[:16]
    functions: list[Any] = []
    values = []
    for name, own in vars(found).items():  # Python finds no class's text in a notebook
        own = getattr(own, "__func__", getattr(own, "fget", own))  # what a decorator holds
        if inspect.isfunction(own):
            functions.append(own)
        elif not name.startswith("__") and isinstance(own, PLAIN):
            values.append([name, repr(own)])
    try:
        texts = [textwrap.dedent(inspect.getsource(function)) for function in functions]
    except OSError as error:
        raise UserError(
            f"the source of {found.__name__} cannot be found: define it in a file or a notebook"
        ) from error
    return _hash([values, *(_parse(text.encode())[0] for text in texts)])[:16]


def _closure(module: str, follow: str | None = None) -> dict[str, str]:
    """The hash of a module's file and of every module of its own package and of luna (or of
    `follow` alone) that it imports, directly or not, by name."""
    packages = {follow} if follow else {module.partition(".")[0], "luna"}
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _source(name)
        if name in found or path is None:
            continue
        found[name], imports = _read(path)
        waiting += [i for i in imports if i.partition(".")[0] in packages]
    if not found:
        raise UserError(f"the source of {module} cannot be found; a run must be able to name it")
    return found


def freeze() -> None:
    """Keep the code that this process has loaded: what is edited later does not run in it, nor in
    the runs that it forks."""
    for name in list(sys.modules):
        if name.startswith(FROZEN) and (path := _source(name)) is not None:
            _frozen.setdefault(path, _read(path))
    _remember()


def _read(path: Path) -> Module:
    if path in _frozen:
        return _frozen[path]
    content, known = path.read_bytes(), _memory()
    key = hashlib.sha256(content).hexdigest()[:16]
    if key not in known:
        known[key] = _parse(content)
        _new.append(key)
    hash, imports = known[key]
    return hash, imports


def _remember() -> None:
    """Keep what was parsed; where nothing can be written, every process parses anew."""
    if _new:
        with contextlib.suppress(OSError):
            MEMORY.parent.mkdir(exist_ok=True)
            write_json(MEMORY, {"by": _own(), "files": _memory()})
        _new.clear()


@cache
def _memory() -> dict[str, Module]:
    """What was parsed before, by the hash of a file's content: parsing takes tenths of a second."""
    try:
        kept = read_json(MEMORY) or {}
    except (OSError, UserError):
        return {}
    files = kept.get("files") or {}
    return files if kept.get("by") == _own() and len(files) < 1000 else {}


@cache
def _own() -> str:
    return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _parse(content: bytes) -> Module:
    """The hash of a file's code, and the modules that it imports (`a.b` may be a name in `a`)."""
    tree = ast.parse(content)
    imports = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return _hash(_plain(tree, [])), [name for name in imports if name != "luna"]  # names others


def _plain(node: Any, out: list[str]) -> list[str]:
    """A syntax tree as words, without positions, docstrings and empty fields."""
    out.append(type(node).__name__)
    for name, value in node.__dict__.items():
        if name in IGNORED or value is None or value == []:
            continue
        out.append(name)
        if isinstance(value, ast.AST):
            _plain(value, out)
        elif isinstance(value, list):
            for part in value:
                if not isinstance(part, ast.AST):
                    out.append(repr(part))
                elif not (name == "body" and _is_text(part)):
                    _plain(part, out)
            out.append(".")
        else:
            out.append(repr(value))
    return out


def _is_text(node: ast.AST) -> bool:
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


def _source(module: str) -> Path | None:
    """The file of a module, without importing it."""
    package, *inner = module.split(".")
    try:
        base = _package(package).joinpath(*inner)
    except UserError:  # a single file beside the script, or a module made by a program
        file = getattr(sys.modules.get(module), "__file__", None)
        return Path(file) if file else None
    files = base / "__init__.py", base.with_suffix(".py")
    return next((file for file in files if file.is_file()), None)


@cache
def _package(name: str) -> Path:
    loaded = sys.modules.get(name)
    spec = importlib.util.find_spec(name) if loaded is None else None
    places = getattr(loaded, "__path__", None) or (
        spec.submodule_search_locations if spec else None
    )
    if not places:
        raise UserError(f"package {name} cannot be found")
    return Path(next(iter(places)))


def _modules(place: Path) -> list[str]:
    """The dotted names of a file, or of all files in a folder."""
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    inside = (file.resolve().relative_to(HERE.parent).with_suffix("") for file in files)
    return [".".join(path.parts).removesuffix(".__init__") for path in inside]


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
