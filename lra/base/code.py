"""The source of a run, as hashes: which file differs from the one that made a run, and whether what
comes from outside the project is what it was.

What `luna` and `lra` compute has declared versions (versions.py), so an edit of them makes no new
run. A method, an optimiser or a metric from elsewhere has no version: there an edit does, of it, of
its package, and of what it imports from the folder in which it lies. A file counts by its syntax
tree without docstrings, wherever it lies. A process keeps the code that it has loaded, and so do
its forks: an edit counts in the next process.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lra.base.errors import UserError
from lra.base.places import PACKAGE
from lra.base.versions import PARTS, is_ours

CHOSEN = "the chosen "  # begins the parts of which only some runs have one
UNKNOWN = "unknown"  # of records from before they held their code
_loaded: dict[Path, bytes] = {}


@dataclass(frozen=True)
class Source:
    """The code of a run."""

    parts: dict[str, str]  # the hash of each
    outside: tuple[str, ...]  # the parts that are not the project's
    files: dict[str, str] = field(repr=False)  # hashes, by name

    @property
    def hash(self) -> str:
        return hash_parts(self.parts)

    def differs_from(self, parts: Mapping[str, str], files: Mapping[str, str]) -> str:
        """Name what differs from a run with these parts and files; empty where nothing does. Runs
        of before 0.2 did not write their files down."""
        if parts == self.parts:
            return ""
        names = [*dict.fromkeys([*self.files, *files])] if files else []
        changed = [name for name in names if self.files.get(name) != files.get(name)]
        if not changed:
            names = [*dict.fromkeys([*self.parts, *parts])]
            changed = [name for name in names if self.parts.get(name) != parts.get(name)]
        more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
        return ", ".join(changed[:2]) + more

    def same_outside(self, parts: Mapping[str, str]) -> bool:
        """Whether what is not the project's is what a run with these parts had."""
        return all(self.parts[name] == parts.get(name) for name in self.outside)


def source_of(
    attention: str | Sequence[str],
    parts: Iterable[str],
    chosen: Mapping[str, list[str]] = {},
) -> Source:
    """Hash the code of a run: of its methods, of these parts of PARTS, and of the modules that it
    chose itself. Only an attention from outside `luna` is imported."""
    names = [attention] if isinstance(attention, str) else attention
    methods = {f"the attention {name}": module_of(name) for name in names}
    modules = {part: [module] for part, module in methods.items()}
    modules |= {f"the {name}": [*PARTS[name].modules] for name in parts}
    modules |= chosen
    hashes: dict[str, str] = {}
    files: dict[str, str] = {}
    for part, names in modules.items():
        contents = contents_of(*names)
        hashes[part] = _hash(repr(sorted(contents.values())))
        files |= {name_of_file(file): text[:8] for file, (text, _) in contents.items()}
    outside = [*chosen, *(part for part, module in methods.items() if not is_ours(module))]
    return Source(hashes, tuple(outside), files)


def hash_parts(parts: Mapping[str, str]) -> str:
    return _hash(json.dumps(sorted(parts.items())))[:8]


def module_of(attention: str) -> str:
    """Give the module of a method; one of `luna.attention` is not imported for that."""
    module = f"luna.attention.{attention}"
    if find_source(module) is None:
        import luna  # not before: it imports torch

        module = luna.get(attention).__module__
    return module


def name_of_file(file: Path) -> str:
    """`luna/attention/linear.py`; of a file outside the project its own name."""
    root = PACKAGE.parent
    return file.relative_to(root).as_posix() if file.is_relative_to(root) else file.name


def keep_loaded(*modules: str) -> None:
    """Keep the files of `luna`, `lra` and the packages of these modules as they are now, as far as
    they have been imported; and what these modules import from the folder in which they lie."""
    packages = {"luna", "lra", *map(_first, modules)}
    imported = [find_source(name) for name in [*sys.modules] if _first(name) in packages]
    for file in filter(None, [*imported, *contents_of(*modules)]):
        _loaded.setdefault(file, file.read_bytes())


def hash_modules(*modules: str) -> str:
    """Hash the contents of modules and of all that they import, wherever their files lie."""
    return _hash(repr(sorted(contents_of(*modules).values())))


def contents_of(*modules: str) -> dict[Path, tuple[str, list[tuple[str, ...]]]]:
    """The files of modules and of all that they import: hashes of each, and of what it uses."""
    packages = {"luna", "lra", *map(_first, modules)}
    followed = tuple(f"{name}." for name in ("lra.model", *packages - {"lra"}, *modules))
    folders = {folder for module in modules if (folder := own_folder(module))}
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
            beside = _first(place) not in packages and _lies_in(_first(place), folders)
            target = place if beside or _first(place) in packages else ""
            while target and find_source(target) is None:
                target = target.rpartition(".")[0]
            uses.append((alias, place.removeprefix(target).removeprefix(".")))  # "": a whole module
            inside = target != "luna" and f"{target}.".startswith(followed)  # it imports all others
            if target and (beside or inside):
                uses[-1] += (_read(target)[0],)
                to_read += [target, *(_packages_of(target) if beside else ())]
        contents[file] = text, sorted(uses)
    return contents


def _read(module: str) -> tuple[str, list[tuple[str, str]]]:
    file = find_source(module)
    assert file is not None
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return parse(_loaded[file] if file in _loaded else file.read_bytes(), package)


def own_folder(module: str) -> Path | None:
    """The folder in which a module of the user's lies, or its package: what else it imports from
    there is the user's too. None for the project, and for what is installed."""
    if is_ours(module):
        return None
    folder = next(iter(_folders_of(_first(module))), None)
    installed = [
        Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")
    ]
    if folder is None or any(folder.is_relative_to(place) for place in installed):
        return None
    return folder


def _lies_in(name: str, folders: set[Path]) -> bool:
    """Whether a module or a package that is imported by this first name lies in these folders."""
    return bool(folders) and not is_ours(name) and not folders.isdisjoint(_folders_of(name))


@cache
def _folders_of(name: str) -> tuple[Path, ...]:
    """The folders in which a module or a package lies that is imported by this first name."""
    if file := getattr(sys.modules.get(name), "__file__", None):
        files = [Path(file)]
    else:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):  # a module that somebody has made by hand
            spec = None
        parts = [] if spec is None else [*(spec.submodule_search_locations or [])]
        files = [Path(part) for part in parts or ([] if spec is None else [spec.origin or ""])]
    inits = [file.parent if file.name == "__init__.py" else file for file in files]
    return tuple(dict.fromkeys(file.parent.resolve() for file in inits))


@cache
def find_source(module: str) -> Path | None:
    """Find the file of a module that has been imported, or that lies in its package's folder."""
    if file := getattr(sys.modules.get(module), "__file__", None):
        return Path(file) if file.endswith(".py") else None
    package, _, name = module.rpartition(".")
    for folder in _folders_in(package) if package else (PACKAGE.parent, *_folders_of(name)):
        for file in (folder / name / "__init__.py", folder / f"{name}.py"):
            if file.is_file():
                return file
    return None


def _folders_in(package: str) -> list[Path]:
    """The folders of a package: one, or those of a package without `__init__.py`."""
    if (init := find_source(package)) is not None:
        return [init.parent] if init.name == "__init__.py" else []
    above, _, name = package.rpartition(".")
    folders = _folders_in(above) if above else _folders_of(name)
    return [folder / name for folder in folders if (folder / name).is_dir()]


def _packages_of(module: str) -> list[str]:
    """The packages in which a module lies whose `__init__.py` is run before it."""
    package = module.rpartition(".")[0]
    above = _packages_of(package) if package else []
    return [*above, package] if package and find_source(package) is not None else above


def _first(module: str) -> str:
    return module.partition(".")[0]


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
