"""Faults for scripts/plant_faults.py: drawn from the product's statements, and found again later.

A fault is a statement and its faulty replacement, stored as text: in a later revision it belongs
wherever the same statement stands.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

FILES = (
    "luna/base.py", "luna/linear.py", "luna/attention/*.py", "luna/feature_maps/*.py",
    "lra/**/loader.py", "lra/**/optim.py", "lra/**/gate.py", "lra/**/budget.py", "lra/**/record.py",
    "lra/report/stats.py", "lra/report/effects.py", "lra/report/versus.py",
    "lra/**/listops/generator.py", "lra/**/pathfinder/generator.py",
)  # fmt: skip
PAIRS = [(ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.FloorDiv, ast.Mod), (ast.BitAnd, ast.BitOr),
         (ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot),
         (ast.In, ast.NotIn), (ast.And, ast.Or)]  # fmt: skip
OPPOSITE: dict[Any, Any] = dict(PAIRS) | {b: a for a, b in PAIRS} | {ast.Pow: ast.Mult}
SYMMETRIC = {"max", "min", "gcd", "maximum", "minimum"}  # the order of arguments does not matter
TEXTS = {"Paper", "warn", "UserError", "LunaError"}  # calls whose arguments are for readers
HARMLESS = {"strict", "exist_ok", "stacklevel"}  # keywords that no correct program depends on


@dataclass(frozen=True)
class Fault:
    id: int
    path: str
    function: str
    line: int
    kind: str
    original: str
    replacement: str


# ---------------------------------------------------------------------- statements


@cache
def line_starts(source: bytes) -> list[int]:
    return [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]


@dataclass(frozen=True)
class Statement:
    """A simple statement, or the head of one with a body (`if x > 0`), in the text of a file."""

    path: str
    function: str  # qualified name; outside functions that of the class, or nothing
    in_function: bool
    node: ast.stmt
    parts: list[ast.expr]  # in which faults are planted
    source: bytes  # of the file; ast counts columns in bytes, too

    def offset(self, line: int | None, column: int | None) -> int:
        return line_starts(self.source)[(line or 1) - 1] + (column or 0)

    @property
    def start(self) -> int:
        return self.offset(self.node.lineno, self.node.col_offset)

    @property
    def end(self) -> int:
        last = self.parts[-1] if hasattr(self.node, "body") else self.node
        return self.offset(last.end_lineno, last.end_col_offset)

    @property
    def text(self) -> str:
        return self.source[self.start : self.end].decode()

    def changed(self, node: ast.expr, replacement: str) -> str:
        """The statement with another text in the place of one of its expressions."""
        before = self.source[self.start : self.offset(node.lineno, node.col_offset)]
        after = self.source[self.offset(node.end_lineno, node.end_col_offset) : self.end]
        return before.decode() + replacement + after.decode()

    def planted(self, replacement: str) -> bytes:
        """The file with another text in the place of the statement."""
        return self.source[: self.start] + replacement.encode() + self.source[self.end :]


Statements = dict[str, list[Statement]]  # by their text


def parts_of(node: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement that decide a result: no annotations, no errors raised."""
    match node:
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.With():
            return [item.context_expr for item in node.items]
        case ast.Raise() | ast.Assert() | ast.Delete():
            return []
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def statements_of(path: str, source: bytes) -> Iterator[Statement]:
    """All statements but the formulas of the cost, which decide no result."""

    def inside(body: list[Any], function: str, in_function: bool) -> Iterator[Statement]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if "flops" not in node.name:
                    name = f"{function}.{node.name}".strip(".")
                    yield from inside(node.body, name, isinstance(node, ast.FunctionDef))
            else:
                if parts := parts_of(node):
                    yield Statement(path, function, in_function, node, parts, source)
                for branch in (node, *getattr(node, "handlers", []), *getattr(node, "cases", [])):
                    for block in ("body", "orelse", "finalbody"):
                        yield from inside(getattr(branch, block, []), function, in_function)

    yield from inside(ast.parse(source).body, "", False)


def normal(text: str) -> str:
    """Text without what a formatter decides."""
    return re.sub(r"\s+|,(?=\s*[)\]}])", "", text)


def product(root: Path) -> Statements:
    """The statements of the product by their text."""
    statements = defaultdict(list)
    for path in sorted([*root.glob("luna/**/*.py"), *root.glob("lra/**/*.py")]):
        for statement in statements_of(path.relative_to(root).as_posix(), path.read_bytes()):
            statements[normal(statement.text)].append(statement)
    return statements


# ---------------------------------------------------------------------- faults


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those inside it, without texts for readers."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and name_of(node) in TEXTS):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg in HARMLESS):
            yield from walk(child)


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.expr, str]]:
    """Kind, expression to be replaced and its replacement, for the faults of one expression."""
    match node:
        case ast.Constant(value=bool(value)):
            yield "boolean", node, str(not value)
        case ast.Constant(value=int(value)):
            yield "number", node, str(value + 1)
        case ast.Constant(value=float(value)):
            yield "number", node, str(2 * value or 1.0)
        case ast.BinOp(left, operator, right) if type(operator) in OPPOSITE:
            changed: ast.expr = ast.BinOp(left, OPPOSITE[type(operator)](), right)
            yield "arithmetic", node, f"({ast.unparse(changed)})"
        case ast.Compare(left, [operator, *more], others):
            changed = ast.Compare(left, [OPPOSITE[type(operator)](), *more], others)
            yield "comparison", node, f"({ast.unparse(changed)})"
        case ast.BoolOp(operator, values):
            changed = ast.BoolOp(OPPOSITE[type(operator)](), values)
            yield "condition", node, f"({ast.unparse(changed)})"
        case ast.Call(function, [first, second, *others], keywords):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            differ = ast.dump(first) != ast.dump(second) and name_of(node) not in SYMMETRIC
            if differ and not starred:
                changed = ast.Call(function, [second, first, *others], keywords)
                yield "arguments", node, ast.unparse(changed)
    for test in (getattr(node, "test", None), *getattr(node, "ifs", [])):
        if test is not None:
            yield "condition", test, f"(not ({ast.unparse(test)}))"


def can_be_removed(node: ast.stmt) -> bool:
    """Calls, and assignments to what exists already: a missing name is too easy to catch."""
    if isinstance(node, ast.Assign):
        sides = [ast.walk(node.targets[0]), ast.walk(node.value)]
        names = [{n.id for n in side if isinstance(n, ast.Name)} for side in sides]
        return bool(names[0] & names[1]) or not isinstance(node.targets[0], ast.Name | ast.Tuple)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.AugAssign)


def faults_of(statement: Statement) -> Iterator[tuple[str, str]]:
    """Kind and faulty text of every fault that a statement can have. Outside functions only numbers
    and booleans are changed: most other faults there break the import, which any test catches."""
    if statement.in_function and can_be_removed(statement.node):
        yield "removed", "pass"
    for node in (statement.node, *(n for part in statement.parts for n in walk(part))):
        for kind, expression, replacement in changes_of(node):
            if statement.in_function or kind in ("number", "boolean"):
                yield kind, statement.changed(expression, replacement)


def draw(root: Path, statements: Statements, seed: int, count: int) -> list[Fault]:
    """Two faults a file, and the others by its number of statements; one a statement, all kinds
    alike. In random order: the first part of a run is then a fair sample of the whole. Only
    statements that stand once in the product, so that they are found again."""
    paths = sorted({path.relative_to(root).as_posix() for f in FILES for path in root.glob(f)})
    candidates: dict[str, list[tuple[Statement, list[tuple[str, str]]]]] = {p: [] for p in paths}
    for statement in (same[0] for same in statements.values() if len(same) == 1):
        if statement.path in candidates and (faults := list(faults_of(statement))):
            candidates[statement.path].append((statement, faults))
    rng = Random(seed)
    sizes = [len(pairs) for pairs in candidates.values()]
    drawn = []
    for path in paths * 2 + rng.choices(paths, sizes, k=max(count - 2 * len(paths), 0)):
        if pairs := candidates[path]:
            kind = rng.choice(sorted({kind for _, faults in pairs for kind, _ in faults}))
            pair = rng.choice([pair for pair in pairs if kind in dict(pair[1])])
            text = rng.choice([text for other, text in pair[1] if other == kind])
            pairs.remove(pair)
            s = pair[0]
            drawn.append(Fault(0, path, s.function, s.node.lineno, kind, s.text, text))
    rng.shuffle(drawn)
    return [replace(fault, id=number) for number, fault in enumerate(drawn)]


def place_of(fault: Fault, statements: Statements) -> Statement | None:
    """Where the fault's statement stands in a revision; None if it stands nowhere."""

    def likeness(statement: Statement) -> tuple[bool, ...]:
        same_name = Path(statement.path).name == Path(fault.path).name
        return statement.path == fault.path, statement.function == fault.function, same_name

    return max(statements.get(normal(fault.original), []), key=likeness, default=None)
