"""The tower of docs/architecture.md: imports run down its list, and never in a circle."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LONGEST_FUNCTION = 60  # lines, from `def` to its end
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for package in ("luna", "lra")
    for path in (ROOT / package).rglob("*.py")
}


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Our modules that a file imports anywhere, inside functions too."""
    for node in ast.walk(tree(path)):
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


def package(module: str) -> str:
    return ".".join(module.split(".")[:2])


def floors() -> dict[str, int]:
    """The floor of each package, the lowest 0."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    lines = re.findall(r"^((?:(?:lra|luna)\.\w+ )+) +\S", text, flags=re.M)
    return {name: at for at, line in enumerate(reversed(lines)) for name in line.split()}


def test_every_package_has_a_floor():
    inside = {package(module) for module in MODULES if "." in module}
    assert inside - {"lra.__main__"} == set(floors())


def test_imports_run_down():
    floor = floors()
    upward = [
        f"{module} imports {target}"
        for module, path in MODULES.items()
        for target in imports(path)
        # `lra` and `luna` themselves are for users
        if package(module) in floor and "." in target and package(module) != package(target)
        if floor.get(package(target), len(floor)) >= floor[package(module)]
    ]
    assert not upward  # nor sideways


# Files in which the name of a module is a fact about it, and nothing is imported by it.
NAMED_AS_DATA = {
    "lra.base.versions": "the modules of each declared part",
    "lra.base.code": "the packages whose source is hashed",
    "lra.base.own": "groups of entry points, one of which is called as a package is",
}


def names_in_strings(path: Path) -> Iterator[str]:
    """Our modules that are named in a string, alone or before a colon: `"lra.sweeps.forked"`,
    `"lra.check:add_arguments"`."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value.partition(":")[0]
            if "." in name and name in MODULES:
                yield name


def test_no_import_upwards_hides_in_a_string():
    """A lazy table may name its own package and lower floors, as an import may."""
    floor = floors()
    named = [(module, name) for module, path in MODULES.items() for name in names_in_strings(path)]
    assert {module for module, _ in named} > {"lra.cli", "lra.sweeps.sweep", *NAMED_AS_DATA}
    assert not [
        f"{module} names {name}"
        for module, name in named
        if module not in NAMED_AS_DATA and package(module) != package(name)
        if package(name) in floor  # `python -m lra` is said to be lra.__main__, which has none
        if floor[package(name)] >= floor.get(package(module), len(floor))
    ]


def test_no_imports_in_a_circle():
    doors = {"lra", "luna"}  # which import on demand what they offer to users
    graph = {name: {*imports(path)} - {name} - doors for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_no_package_hides_a_file_behind_a_name():
    for module, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        files = {name.rpartition(".")[2] for name in MODULES if name.rpartition(".")[0] == module}
        defined = {
            alias.asname or alias.name
            for node in tree(path).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            if f"{node.module}.{alias.name}" not in MODULES
        }
        defined |= {node.name for node in tree(path).body if hasattr(node, "name")}
        assert not files & defined, module


def test_luna_knows_nothing_of_lra():
    luna = {name: path for name, path in MODULES.items() if name.startswith("luna")}
    assert not [n for n, path in luna.items() if any(t.startswith("lra") for t in imports(path))]


def every_file() -> list[Path]:
    folders = ("luna", "lra", "hydra_plugins", "scripts", "tests")
    files = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    files += ROOT.glob("*.py")
    assert len(files) > 300
    return files


def test_the_formatter_formats_everything():
    """Code that is packed by hand is read by nobody."""
    comment = "fmt" + ": "
    files = every_file()
    assert not [str(p) for p in files if re.search(f"{comment}(skip|off)", p.read_text("utf-8"))]


def test_no_function_is_longer_than_a_screen():
    """A long one has steps: each of them can have a name."""
    functions = [
        (f"{path.relative_to(ROOT)}: {node.name} has {length} lines", length)
        for path in every_file()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for length in [(node.end_lineno or node.lineno) - node.lineno + 1]
    ]
    assert max(length for _, length in functions) > 40  # they are seen
    assert not [text for text, length in functions if length > LONGEST_FUNCTION]


# Names of other packages with an underscore before them, and why they are used all the same.
DOCUMENTED = {
    "os": "_exit",
    "a NamedTuple": "_fields",
    "hydra.utils.instantiate": "_convert_",
    "numba's extensions in their own machine code": "_getvalue",
}
NO_PUBLIC_WAY = {
    "FLOPs of an operator are counted by torch's own names": {
        *("_overloadpacket", "_local_scalar_dense", "_cdist_forward", "_linalg_solve_ex"),
        *("_fft_c2c", "_fft_c2r", "_fft_r2c", "_scaled_dot_product_flash_attention_for_cpu"),
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    },
    "what torch calls is seen by no other class": {"_python_dispatch"},
    "torch has no other trees of tensors": {"_pytree"},
    "torch says nowhere else whether torch.func looks on": {
        "_C",
        "_are_functorch_transforms_active",
    },
    "torch names its compiler so": {"_dynamo"},
    "two tensors share memory if these are equal": {"_cdata"},
    "transformers documents set_attn_implementation alone, which does not say what is set": {
        "_attn_implementation"
    },
    "OmegaConf has no way up from a node": {"_get_root"},
}


def private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def defined(node: ast.AST) -> str | None:
    """The name that a statement of ours gives to something."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
        return node.attr
    return node.arg if isinstance(node, ast.arg) else None


def used(node: ast.AST) -> list[str]:
    """Names that may be another package's: attributes, keywords, and what is imported from it."""
    if isinstance(node, ast.Attribute):
        return [node.attr]
    if isinstance(node, ast.keyword) and node.arg:
        return [node.arg]
    if isinstance(node, ast.Import):
        return [part for alias in node.names for part in alias.name.split(".")]
    if isinstance(node, ast.ImportFrom):
        return [*(node.module or "").split("."), *(alias.name for alias in node.names)]
    return []


def test_other_packages_are_used_by_their_public_names():
    """A release may rename the others. A name that some code of ours defines is taken for ours."""
    launchers = ROOT / "hydra_plugins" / "lra_launchers.py"
    nodes = [node for path in [*MODULES.values(), launchers] for node in ast.walk(tree(path))]
    files = {path.stem for path in MODULES.values()}
    names = {name for node in nodes for name in used(node)}
    foreign = {n for n in names if private(n)} - {*map(defined, nodes)} - files
    assert foreign == {*DOCUMENTED.values()}.union(*NO_PUBLIC_WAY.values())
    assert "unittest" not in names
    assert "hydra._internal" not in "".join(p.read_text("utf-8") for p in MODULES.values())
