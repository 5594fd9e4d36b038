"""Plant faults in the product, one at a time, and report the share that the tests catch.

    python scripts/plant_faults.py draw results/faults/drawn.jsonl --seed 1 --count 160
    python scripts/plant_faults.py run results/faults/drawn.jsonl NEW.jsonl --revision HEAD
    python scripts/plant_faults.py show NEW.jsonl --before OLD.jsonl

A fault is a statement and its faulty replacement, stored as text, so that it can be planted in a
later revision too, wherever the same statement stands there; if it stands nowhere, the fault is
`gone`. `run` works in a temporary clone, writes each outcome as it comes, and goes on where it
stopped when it is started again.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FILES = (
    "luna/base.py", "luna/linear.py", "luna/attention/*.py", "luna/feature_maps/*.py",
    "lra/**/loader.py", "lra/**/optim.py", "lra/**/gate.py", "lra/**/budget.py", "lra/**/record.py",
    "lra/report/stats.py", "lra/report/effects.py", "lra/report/paired.py",
    "lra/report/agreement.py", "lra/**/listops/generator.py", "lra/**/pathfinder/generator.py",
)  # fmt: skip
# Files that every method uses: more tests of theirs, and the methods whose conformance they need.
SHARED = {
    "base": (("inputs", "weighted"), ("softmax", "linformer", "luna")),
    "linear": (("inverse",), ("linear", "performer", "luna")),
    "feature_maps": (("options", "learned", "luna"), ("luna", "hedgehog", "rff")),
}
PRELOADED = ("torch", "pytest", "hypothesis", "numpy", "pytorch_lightning", "hydra", "omegaconf")
MEMORY = 16 << 30  # bytes of address space: a fault may make a loop endless

ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mod, ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARISON: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
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


# ---------------------------------------------------------------------- statements of a file


@dataclass(frozen=True)
class Statement:
    """A simple statement, or the head of one with a body (`if x > 0`), in the text of a file."""

    path: str
    function: str  # qualified name; outside functions that of the class, or nothing
    in_function: bool
    node: ast.stmt
    start: int  # in bytes, as the columns of ast
    end: int


class Source:
    """The text of a file and its statements."""

    def __init__(self, path: str, text: str):
        self.path, self.data = path, text.encode()
        lengths = [len(line) for line in self.data.splitlines(keepends=True)]
        self.line_starts = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        self.statements = list(self._collect(ast.parse(text).body, "", False))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        start = self.line_starts[node.lineno - 1] + node.col_offset
        return start, self.line_starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def text(self, statement: Statement) -> str:
        return self.data[statement.start : statement.end].decode()

    def replaced(self, statement: Statement, text: str) -> str:
        before, after = self.data[: statement.start], self.data[statement.end :]
        return (before + text.encode() + after).decode()

    def _collect(self, body: list[Any], function: str, inside: bool) -> Iterator[Statement]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if "flops" not in node.name:  # formulas of the cost, not of the method
                    name = f"{function}.{node.name}".strip(".")
                    yield from self._collect(node.body, name, isinstance(node, ast.FunctionDef))
                continue
            start, end = self.span(node)
            if parts := parts_of(node):
                end = self.span(parts[-1])[1] if hasattr(node, "body") else end
                yield Statement(self.path, function, inside, node, start, end)
            for inner in ("body", "orelse", "finalbody"):
                yield from self._collect(getattr(node, inner, []), function, inside)
            for branch in (*getattr(node, "handlers", []), *getattr(node, "cases", [])):
                yield from self._collect(branch.body, function, inside)


def parts_of(node: ast.stmt) -> list[ast.expr]:
    """The expressions of a statement in which faults are planted: no annotations, no bodies."""
    match node:
        case ast.If() | ast.While():
            return [node.test]
        case ast.For():
            return [node.target, node.iter]
        case ast.With():
            return [item.context_expr for item in node.items]
        case ast.AnnAssign():
            return [node.value] if node.value else []
        case ast.Assign() | ast.AugAssign() | ast.Expr() | ast.Return():
            return [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.expr)]
    return []  # raise, assert, import: nothing that decides a result


def product_files(root: Path) -> dict[str, Source]:
    paths = sorted(path for package in ("luna", "lra") for path in (root / package).rglob("*.py"))
    names = [path.relative_to(root).as_posix() for path in paths]
    return {n: Source(n, path.read_text()) for n, path in zip(names, paths, strict=True)}


def normal(text: str) -> str:
    """Text without what a formatter decides."""
    return re.sub(r"\s+|,(?=\s*[)\]}])", "", text)


def statements_by_text(sources: Iterable[Source]) -> dict[str, list[Statement]]:
    places = defaultdict(list)
    for source in sources:
        for statement in source.statements:
            places[normal(source.text(statement))].append(statement)
    return places


# ---------------------------------------------------------------------- faults


def called(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those inside it, without texts for readers."""
    if not isinstance(node, ast.JoinedStr | ast.Call) or (
        isinstance(node, ast.Call) and called(node) not in TEXTS
    ):
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
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            changed = ast.BinOp(left, ARITHMETIC[type(operator)](), right)
            yield "arithmetic", node, f"({ast.unparse(changed)})"
        case ast.Compare(left, [operator, *more], others):
            compared = ast.Compare(left, [COMPARISON[type(operator)](), *more], others)
            yield "comparison", node, f"({ast.unparse(compared)})"
        case ast.BoolOp(operator, values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "condition", node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.Call(function, [first, second, *others], keywords):
            starred = isinstance(first, ast.Starred) or isinstance(second, ast.Starred)
            differ = ast.dump(first) != ast.dump(second)
            if differ and not starred and called(node) not in SYMMETRIC:
                swapped = ast.Call(function, [second, first, *others], keywords)
                yield "arguments", node, ast.unparse(swapped)
    for test in (getattr(node, "test", None), *getattr(node, "ifs", [])):
        if test is not None:
            yield "condition", test, f"(not ({ast.unparse(test)}))"


def can_be_removed(node: ast.stmt) -> bool:
    """Calls, and assignments to what exists already: a missing name is too easy to catch."""
    if isinstance(node, ast.Assign):
        names = [{n.id for n in ast.walk(side) if isinstance(n, ast.Name)}
                 for side in (node.targets[0], node.value)]  # fmt: skip
        return bool(names[0] & names[1]) or not isinstance(node.targets[0], ast.Name | ast.Tuple)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.AugAssign)


def faults_of(source: Source, statement: Statement) -> Iterator[tuple[str, str]]:
    """Kind and faulty text of every fault that a statement can have. Outside functions only numbers
    and booleans are changed: most other faults there break the import, which any test catches."""
    node, start = statement.node, statement.start
    if statement.in_function and can_be_removed(node):
        yield "removed", "pass"
    for expression in (node, *(n for part in parts_of(node) for n in walk(part))):
        for kind, target, replacement in changes_of(expression):
            if statement.in_function or kind in ("number", "boolean"):
                text, (first, last) = source.data[start : statement.end], source.span(target)
                changed = text[: first - start] + replacement.encode() + text[last - start :]
                yield kind, changed.decode()


def draw(sources: dict[str, Source], paths: list[str], seed: int, count: int) -> list[Fault]:
    """Two faults a file, and the others by its number of statements; one a statement, all kinds
    alike. In random order: the first part of a run is then a fair sample of the whole. Only
    statements that stand once in the product, so that they are found again."""
    places = statements_by_text(sources.values())
    candidates = {
        path: [
            (statement, faults)
            for statement in sources[path].statements
            if len(places[normal(sources[path].text(statement))]) == 1
            and (faults := list(faults_of(sources[path], statement)))
        ]
        for path in paths
    }
    rng = Random(seed)
    sizes = [len(statements) for statements in candidates.values()]
    drawn = []
    for path in paths * 2 + rng.choices(paths, sizes, k=max(count - 2 * len(paths), 0)):
        if statements := candidates[path]:
            kind = rng.choice(sorted({kind for _, faults in statements for kind, _ in faults}))
            chosen = rng.choice([s for s in statements if kind in dict(s[1])])
            text = rng.choice([text for k, text in chosen[1] if k == kind])
            statements.remove(chosen)
            node, original = chosen[0].node, sources[path].text(chosen[0])
            drawn.append(Fault(0, path, chosen[0].function, node.lineno, kind, original, text))
    rng.shuffle(drawn)
    return [replace(fault, id=number) for number, fault in enumerate(drawn)]


def place_of(fault: Fault, places: dict[str, list[Statement]]) -> Statement | None:
    """Where the fault's statement stands in another revision; None if it stands nowhere."""

    def likeness(statement: Statement) -> tuple[bool, ...]:
        same_path, same_function = (
            statement.path == fault.path,
            statement.function == fault.function,
        )
        return same_path, same_function, Path(statement.path).name == Path(fault.path).name

    return max(places.get(normal(fault.original), []), key=likeness, default=None)


# ---------------------------------------------------------------------- tests

Command = tuple[str, ...]  # arguments of one pytest


def commands_of(paths: set[str], root: Path) -> list[Command]:
    """The tests of a file by its names: today's, and that of the file the fault was drawn from.
    First the tests of its own name and those of SHARED, then its part of the conformance suite; all
    tests of its folder where no test has its name."""
    tests = sorted((root / "tests").rglob("test_*.py"))
    chosen: list[Path] = []
    cases: list[str] = []
    for path in map(Path, sorted(paths)):
        stems, methods = SHARED.get(path.stem, SHARED.get(path.parent.name, ((), ())))
        in_package = [test for test in tests if path.parts[0] in test.parts]
        chosen += nearest([test for test in in_package if test.stem == f"test_{path.stem}"], path)
        chosen += [test for test in in_package if test.stem.removeprefix("test_") in stems]
        cases += [f"[{method}]" for method in methods]
        if path.parent.name == "attention":
            longer = [p.stem for p in (root / path.parent).glob(f"{path.stem}?*.py")]
            cases.append(" and not ".join([f"[{path.stem}", *longer]))
    if not chosen:
        chosen = [t for t in tests if t.parent in {root / "tests" / Path(p).parent for p in paths}]
    commands = [names_of(chosen, root)] if chosen else []
    if cases:
        suites = [t for t in tests if t.stem in ("test_conformance", "test_profiles")]
        suites = [t for t in suites if "luna" in t.parts]
        # The tests of compiling and of memory take longer than all others of a method together.
        only = f"({' or '.join(cases)}) and not (compile or memory)"
        commands.append((*names_of(suites, root), "-k", only))
    return commands


def nearest(tests: list[Path], path: Path) -> list[Path]:
    """The tests that share most folders with a file; several if they share equally many."""
    shared = [len(set(path.parent.parts) & set(test.parent.parts)) for test in tests]
    return [test for test, number in zip(tests, shared, strict=True) if number == max(shared)]


def names_of(tests: list[Path], root: Path) -> Command:
    return tuple(dict.fromkeys(test.relative_to(root).as_posix() for test in tests))


def pytest_in_child(root: Path, command: Command, seconds: int, write_bytecode: bool) -> None:
    os.setsid()
    os.chdir(root)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = not write_bytecode  # a fault's must not be taken for the original's
    output = os.open(root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    pytest = importlib.import_module("pytest")
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *command]))


def outcome_of(root: Path, command: Command, seconds: int, *, write_bytecode: bool = False) -> str:
    """How tests end, in a fork of this process, which has imported the libraries already. The limit
    is of processor time; by the clock it is eight times as long."""
    arguments = (root, command, seconds, write_bytecode)
    child = multiprocessing.get_context("fork").Process(target=pytest_in_child, args=arguments)
    child.start()
    child.join(8 * seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)  # what the tests started, too
    child.join()
    if child.exitcode in (-signal.SIGKILL, -signal.SIGXCPU):
        return "timeout"
    return {0: "missed", 1: "failed"}.get(child.exitcode or 0, "import")


# ---------------------------------------------------------------------- commands


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Trial:
    """Faults planted one by one in a clone of one revision."""

    def __init__(self, root: Path, results: Path):
        self.root, self.results = root, results
        self.sources = product_files(root)
        self.places = statements_by_text(self.sources.values())
        rows = read_rows(results)
        self.baselines = {tuple(r["tests"]): r["seconds"] for r in rows if "id" not in r}
        self.done = {row["id"] for row in rows if "id" in row}
        os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
        for name in PRELOADED:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        gc.freeze()  # or each fork copies all objects at its first collection of garbage

    def write(self, **row: Any) -> None:
        self.results.parent.mkdir(parents=True, exist_ok=True)
        with self.results.open("a") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def baseline(self, command: Command) -> float:
        """Processor seconds of tests on the code as it is, where they must pass."""
        if command not in self.baselines:
            before = processor_seconds()
            if outcome_of(self.root, command, 600, write_bytecode=True) != "missed":
                report = (self.root / "output.txt").read_text()
                raise SystemExit(f"{report}\nthese tests must pass without a fault: {command}")
            self.baselines[command] = round(processor_seconds() - before, 1)
            self.write(tests=command, seconds=self.baselines[command])
        return self.baselines[command]

    def plant(self, fault: Fault) -> dict[str, Any]:
        statement = place_of(fault, self.places)
        if statement is None:
            return {"outcome": "gone"}
        source, outcome = self.sources[statement.path], "missed"
        commands = commands_of({fault.path, statement.path}, self.root)
        seconds = {command: self.baseline(command) for command in commands}
        before = processor_seconds()
        try:
            (self.root / statement.path).write_text(source.replaced(statement, fault.replacement))
            for command in commands:
                if outcome == "missed":
                    outcome = outcome_of(self.root, command, 20 + 3 * int(seconds[command]))
        finally:
            (self.root / statement.path).write_bytes(source.data)
        used = round(processor_seconds() - before, 1)
        return {"outcome": outcome, "planted_in": statement.path, "seconds": used}


def run(faults: list[Fault], results: Path, revision: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, clone], check=True)
        subprocess.run(["git", "-C", clone, "checkout", "-q", revision], check=True)
        trial = Trial(clone, results)
        for fault in faults:
            if fault.id not in trial.done:
                row = trial.plant(fault)
                trial.write(**asdict(fault), **row)
                print(time.strftime("%H:%M:%S"), fault.id, fault.path, fault.kind, row, flush=True)


def show(results: Path, before: Path | None) -> None:
    """The share of faults caught, by package and by kind; with `before` also that of an older
    revision, of the same faults, and only those caught then are listed."""
    rows = {row["id"]: row for row in read_rows(results) if "id" in row}
    old = {row["id"]: row for row in read_rows(before) if "id" in row} if before else rows
    here = [r for r in rows.values() if r["outcome"] != "gone" and r["id"] in old]
    groups = [("all faults", here)]
    for key in (lambda r: str(Path(r["path"]).parent), lambda r: r["kind"]):
        groups += [(g, [r for r in here if key(r) == g]) for g in sorted({key(r) for r in here})]
    print(f"{'':24}planted  caught   share" + "  before" * bool(before))
    for name, members in groups:
        caught = [r for r in members if r["outcome"] != "missed"]
        then = [r for r in members if old[r["id"]]["outcome"] != "missed"]
        print(f"{name:24}{len(members):7}{len(caught):8}{len(caught) / len(members):8.0%}", end="")
        print(f"{len(then) / len(members):8.0%}" if before else "")
    ends = [f"{sum(r['outcome'] == end for r in rows.values())} {end}" for end in
            ("failed", "import", "timeout", "missed", "gone")]  # fmt: skip
    print("\n" + ", ".join(ends) + "\n")
    for r in here:
        if r["outcome"] == "missed" and (not before or old[r["id"]]["outcome"] != "missed"):
            print(f"{r['id']:3} {r['path']}:{r['line']} {r['function']}, {r['kind']}\n"
                  f"      {r['original']}\n   -> {r['replacement']}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw", help="draw faults from the files of this tree")
    drawing.add_argument("faults", type=Path)
    drawing.add_argument("--seed", type=int, default=1)
    drawing.add_argument("--count", type=int, default=160)
    running = commands.add_parser("run", help="plant faults in a clone of a revision, and test")
    running.add_argument("faults", type=Path)
    running.add_argument("results", type=Path)
    running.add_argument("--revision", default="HEAD")
    showing = commands.add_parser("show", help="print the share caught, and what was missed")
    showing.add_argument("results", type=Path)
    showing.add_argument("--before", type=Path, help="outcomes of an older revision")
    options = parser.parse_args()
    if options.command == "draw":
        paths = sorted({p.relative_to(ROOT).as_posix() for f in FILES for p in ROOT.glob(f)})
        faults = draw(product_files(ROOT), paths, options.seed, options.count)
        options.faults.parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(fault), ensure_ascii=False) for fault in faults]
        options.faults.write_text("\n".join(lines) + "\n")
    elif options.command == "run":
        faults = [Fault(**row) for row in read_rows(options.faults)]
        run(faults, options.results, options.revision)
    else:
        show(options.results, options.before)


if __name__ == "__main__":
    main()
