"""Plant faults in the product, one at a time, and report the share that the tests catch.

    python scripts/plant_faults.py draw results/faults/drawn.jsonl --seed 1 --count 160
    python scripts/plant_faults.py run results/faults/drawn.jsonl NEW.jsonl --revision HEAD
    python scripts/plant_faults.py show NEW.jsonl OLD.jsonl

A fault is a statement and its faulty replacement, stored as text: in a later revision it belongs
wherever the same statement stands, or is `gone`. `run` works in a temporary clone, writes each
outcome as it comes, and goes on where it stopped. A test that ends too late has caught its fault.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
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
INSIDE = ("body", "orelse", "finalbody", "handlers", "cases")  # of a statement, other statements
# Methods whose conformance a file of all methods needs.
USED_BY = {"base": ["softmax", "linformer", "luna", "reformer"],
           "linear": ["linear", "performer", "luna"],
           "feature_maps": ["luna", "hedgehog", "based", "performer"]}  # fmt: skip
SUITES = ("tests/luna/test_conformance.py", "tests/luna/test_options.py")
MEMORY = 16 << 20  # kB of address space: a fault may make a loop endless


@dataclass(frozen=True)
class Fault:
    id: int
    path: str
    function: str
    line: int
    kind: str
    original: str
    replacement: str


@dataclass(frozen=True)
class Statement:
    path: str
    function: str  # qualified name; outside functions that of the class, or nothing
    in_function: bool
    node: ast.stmt
    tree: ast.Module

    def planted(self, replacement: str) -> str:
        """Write the file with another statement in the place of this one."""
        new = parse(replacement)
        for name in set(INSIDE) & {*self.node._fields} & {*new._fields}:
            setattr(new, name, getattr(self.node, name))
        return ast.unparse(swapped(self.tree, self.node, new))


Statements = dict[str, list[Statement]]  # by their text


def parse(text: str) -> ast.stmt:
    """Parse a simple statement, or the head of one with a body: `if x > 0`."""
    for body in ("", ":\n pass", ":\n case _: pass"):
        with contextlib.suppress(SyntaxError):
            return ast.parse(
                text.removeprefix("el" if text.startswith("elif") else "") + body
            ).body[0]
    raise ValueError(text)


def without_body(node: ast.stmt) -> ast.stmt:
    node = copy.copy(node)
    for name in set(INSIDE) & {*node._fields}:
        setattr(node, name, [ast.Pass()] if name == "body" else [])
    return node


def head(node: ast.stmt) -> str:
    return ast.unparse(without_body(node)).removesuffix("\n    pass").removesuffix(":")


def swapped(tree: Any, old: ast.AST, new: ast.AST) -> Any:
    """Copy a tree with `new` in the place of one of its nodes."""
    memo: dict[int, Any] = {}
    tree = copy.deepcopy(tree, memo)

    class Swap(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return new if node is memo[id(old)] else self.generic_visit(node)

    return Swap().visit(tree)


def statements_of(path: str, tree: ast.Module) -> Iterator[Statement]:
    """Yield all statements but the formulas of the cost, which decide no result."""

    def inside(body: list[Any], function: str, in_function: bool) -> Iterator[Statement]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if "flops" not in node.name:
                    name = f"{function}.{node.name}".strip(".")
                    yield from inside(node.body, name, isinstance(node, ast.FunctionDef))
                continue
            if isinstance(node, ast.stmt) and parts_of(node):
                yield Statement(path, function, in_function, node, tree)
            for name in INSIDE:
                yield from inside(getattr(node, name, []), function, in_function)

    yield from inside(tree.body, "", False)


def product(root: Path) -> Statements:
    statements = defaultdict(list)
    for path in sorted([*root.glob("luna/**/*.py"), *root.glob("lra/**/*.py")]):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for statement in statements_of(path.relative_to(root).as_posix(), tree):
            statements[head(statement.node)].append(statement)
    return statements


# ---------------------------------------------------------------------- faults


def parts_of(node: ast.stmt) -> list[ast.expr]:
    """List the expressions that decide a result: no annotations, no errors raised."""
    match node:
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.With():
            return [item.context_expr for item in node.items]
        case ast.Raise() | ast.Assert() | ast.Delete():
            return []
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def name_of(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those inside it, without texts for readers."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Call) and name_of(node) in TEXTS):
        return
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.keyword) and child.arg in HARMLESS):
            yield from walk(child)


def changes_of(node: ast.AST) -> Iterator[tuple[str, ast.AST, ast.expr]]:
    """Yield kind, expression to be replaced and its replacement, for the faults of one node."""
    match node:
        case ast.Constant(value=bool(value)):
            yield "boolean", node, ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "number", node, ast.Constant(value + 1)
        case ast.Constant(value=float(value)):
            yield "number", node, ast.Constant(2 * value or 1.0)
        case ast.BinOp(left, operator, right) if type(operator) in OPPOSITE:
            yield "arithmetic", node, ast.BinOp(left, OPPOSITE[type(operator)](), right)
        case ast.Compare(left, [operator, *more], others):
            yield "comparison", node, ast.Compare(left, [OPPOSITE[type(operator)](), *more], others)
        case ast.BoolOp(operator, values):
            yield "condition", node, ast.BoolOp(OPPOSITE[type(operator)](), values)
        case ast.Call(function, [first, second, *others], keywords):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            differ = ast.dump(first) != ast.dump(second) and name_of(node) not in SYMMETRIC
            if differ and not starred:
                yield "arguments", node, ast.Call(function, [second, first, *others], keywords)
    for test in (getattr(node, "test", None), *getattr(node, "ifs", [])):
        if test is not None:
            yield "condition", test, ast.UnaryOp(ast.Not(), test)


def can_be_removed(node: ast.stmt) -> bool:
    """Choose calls, and assignments to what exists: a missing name is too easy to catch."""
    if isinstance(node, ast.Assign):
        sides = [ast.walk(node.targets[0]), ast.walk(node.value)]
        names = [{n.id for n in side if isinstance(n, ast.Name)} for side in sides]
        return bool(names[0] & names[1]) or not isinstance(node.targets[0], ast.Name | ast.Tuple)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.AugAssign)


def faults_of(statement: Statement) -> Iterator[tuple[str, str]]:
    """Yield kind and faulty text. Outside functions only numbers and booleans are changed: most
    other faults there break the import, which any test catches."""
    if statement.in_function and can_be_removed(statement.node):
        yield "removed", "pass"
    bare = without_body(statement.node)
    for node in (bare, *(n for part in parts_of(bare) for n in walk(part))):
        for kind, old, new in changes_of(node):
            if statement.in_function or kind in ("number", "boolean"):
                yield kind, head(swapped(bare, old, new))


def draw(root: Path, statements: Statements, seed: int, count: int) -> list[Fault]:
    """Draw two faults a file, the others by its number of statements; one a statement, all kinds
    alike, in random order. Only statements that stand once, so that they are found again."""
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
            drawn.append(Fault(0, path, s.function, s.node.lineno, kind, head(s.node), text))
    rng.shuffle(drawn)
    return [replace(fault, id=number) for number, fault in enumerate(drawn)]


def place_of(fault: Fault, statements: Statements) -> Statement | None:
    """Find where the fault's statement stands in a revision."""

    def likeness(s: Statement) -> tuple[bool, ...]:
        same_name = Path(s.path).name == Path(fault.path).name
        return s.path == fault.path, s.function == fault.function, same_name

    return max(statements.get(head(parse(fault.original)), []), key=likeness, default=None)


# ---------------------------------------------------------------------- tests

Command = tuple[str, ...]  # arguments of one pytest


def commands_of(path: str, root: Path) -> list[Command]:
    """Choose the tests of a file's name, or all of its folder, or those of methods that use it; of
    `luna` the conformance suite too, with the method that the file is, or three that use it."""
    file = Path(path)
    below, beside = root / "tests" / file.parts[0], root / "tests" / file.parent
    tests = [*below.rglob(f"test_{file.stem}.py")] or [*beside.glob("test_*.py")]
    methods = USED_BY.get(file.stem, USED_BY["feature_maps"])
    tests = tests or [root / f"tests/luna/attention/test_{method}.py" for method in methods]
    commands = [tuple(sorted(test.relative_to(root).as_posix() for test in tests))]
    if file.parts[0] == "luna":
        if file.parent.name == "attention":
            longer = [other.stem for other in (root / file.parent).glob(f"{file.stem}?*.py")]
            methods = [" and not ".join([file.stem, *longer])]
        cases = " or ".join(f"[{method}" for method in methods)
        # The tests of compiling and of memory take longer than all others of a method.
        commands.append((*SUITES, "-k", f"({cases}) and not (compile or memory)"))
    return commands


def outcome_of(root: Path, command: Command, limit: int) -> tuple[str, float]:
    """Run tests: how they end, and their processor seconds, of which `limit` are allowed."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0"]
    shell = f'ulimit -t {limit} -v {MEMORY}; exec "$@"'
    facts = {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with (root / "output.txt").open("w") as output:
        child = subprocess.Popen(
            ["bash", "-c", shell, "-", *words, *command], cwd=root, env=os.environ | facts,
            stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(8 * limit)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)  # what the tests started, too
        code = child.wait()
    seconds = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 1)
    outcomes = {0: "missed", 1: "failed", -signal.SIGKILL: "timeout", -signal.SIGXCPU: "timeout"}
    return outcomes.get(code, "import"), seconds


# ---------------------------------------------------------------------- commands


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """Read faults or outcomes by the number of the fault."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["id"]: row for row in map(json.loads, lines) if "id" in row}


def run(faults: list[Fault], results: Path, root: Path) -> None:
    """Plant faults one by one in a copy of a revision, and add their outcomes to the results."""

    def add(**row: Any) -> None:
        with results.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
        print(*row.values(), flush=True)

    statements, baselines, done = product(root), dict[Command, float](), read_rows(results)
    for fault in (fault for fault in faults if fault.id not in done):
        statement = place_of(fault, statements)
        if statement is None:
            add(**asdict(fault), outcome="gone")
            continue
        commands = commands_of(statement.path, root)
        for command in (command for command in commands if command not in baselines):
            outcome, baselines[command] = outcome_of(root, command, 600)
            if outcome != "missed":
                report = (root / "output.txt").read_text()
                raise SystemExit(f"{report}\nthese tests must pass without a fault: {command}")
        outcome, total, path = "missed", 0.0, root / statement.path
        original = path.read_bytes()
        path.write_text(statement.planted(fault.replacement), encoding="utf-8")
        for command in commands:
            if outcome == "missed":
                outcome, seconds = outcome_of(root, command, 60 + 3 * int(baselines[command]))
                total += seconds
        path.write_bytes(original)
        add(**asdict(fault), outcome=outcome, seconds=round(total, 1))


def show(results: Path, older: Path | None) -> None:
    """Print the share of faults caught, by package and by kind, and the faults missed. With older
    results their share of the same faults stands beside it; listed is what only they caught."""
    rows, old = read_rows(results), read_rows(older or results)
    groups = defaultdict(set)
    for number, row in rows.items():
        if number in old and "gone" not in (row["outcome"], old[number]["outcome"]):
            for group in ("all faults", str(Path(row["path"]).parent), row["kind"]):
                groups[group].add(number)
    caught, before = ({n for n, r in of.items() if r["outcome"] != "missed"} for of in (rows, old))
    for group, numbers in sorted(groups.items()):
        shares = [len(them & numbers) / len(numbers) for them in (caught, before)]
        print(f"{group:24} {len(numbers):5} faults, caught {shares[0]:.0%}",
              f"(before {shares[1]:.0%})" if older else "")  # fmt: skip
    print(dict(Counter(row["outcome"] for row in rows.values())))
    for number in sorted((groups["all faults"] - caught) & (before if older else {*rows})):
        print("\n{id} {path}:{line} {function}, {kind}".format(**rows[number]))
        print("    {original}\n -> {replacement}".format(**rows[number]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("command", choices=("draw", "run", "show"))
    parser.add_argument("faults", type=Path, help="drawn faults; of show, the results")
    parser.add_argument("results", type=Path, nargs="?", help="outcomes; of show, older ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=160)
    parser.add_argument("--revision", default="HEAD")
    options = parser.parse_args()
    if options.command == "draw":
        drawn = draw(ROOT, product(ROOT), options.seed, options.count)
        lines = [json.dumps(asdict(fault), ensure_ascii=False) + "\n" for fault in drawn]
        options.faults.write_text("".join(lines))
    elif options.command == "show":
        show(options.faults, options.results)
    else:
        with tempfile.TemporaryDirectory() as folder:
            clone = Path(folder, "clone")
            subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
            subprocess.run(["git", "checkout", "-q", options.revision], cwd=clone, check=True)
            faults = [Fault(**row) for row in read_rows(options.faults).values()]
            run(faults, options.results, clone)


if __name__ == "__main__":
    main()
