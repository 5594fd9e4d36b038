"""Plant faults in the product, one at a time, and report the share that the tests catch.

    python scripts/plant_faults.py draw results/faults/drawn.jsonl --seed 1 --count 160
    python scripts/plant_faults.py run results/faults/drawn.jsonl NEW.jsonl --revision HEAD
    python scripts/plant_faults.py show NEW.jsonl OLD.jsonl

`run` works in a temporary clone, writes each outcome as it comes, and goes on where it stopped. A
fault whose statement no longer exists is `gone`; a test that ends too late has caught its fault.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults import Fault, draw, place_of, product

ROOT = Path(__file__).resolve().parents[1]
# Files that every method uses: more tests of theirs, and the methods whose conformance they need.
SHARED = {
    "base": (("options", "weighted"), ("softmax", "linformer", "luna")),
    "linear": (("alibi",), ("linear", "performer", "luna")),
    "feature_maps": (("options", "learned", "luna"), ("luna", "hedgehog", "based", "performer")),
}
PRELOADED = ("torch", "pytest", "hypothesis", "numpy", "pytorch_lightning", "hydra", "omegaconf")
MEMORY = 16 << 30  # bytes of address space: a fault may make a loop endless


# ---------------------------------------------------------------------- tests

Command = tuple[str, ...]  # arguments of one pytest


def commands_of(paths: set[str], root: Path) -> list[Command]:
    """The tests of a file, by its names: today's, and that of the file the fault was drawn from.
    First the tests of its own name and those of SHARED, then its part of the conformance suite; all
    tests of its folder where there are none of these."""
    tests = {test: test.stem.removeprefix("test_") for test in root.glob("tests/**/test_*.py")}
    chosen: set[Path] = set()
    cases: list[str] = []
    for path in map(Path, sorted(paths)):
        stems, methods = SHARED.get(path.stem, SHARED.get(path.parent.name, ((), ())))
        of_package = [test for test in sorted(tests) if path.parts[0] in test.parts]
        of_name = [test for test in of_package if tests[test] == path.stem]
        near = [len({*path.parent.parts} & {*test.parent.parts}) for test in of_name]
        chosen |= {
            test for test, folders in zip(of_name, near, strict=True) if folders == max(near)
        }
        chosen |= {test for test in of_package if tests[test] in stems}
        cases += [f"[{method}]" for method in methods]
        if path.parent.name == "attention":
            longer = [p.stem for p in (root / path.parent).glob(f"{path.stem}?*.py")]
            cases.append(" and not ".join([f"[{path.stem}", *longer]))
    if not chosen and not cases:
        folders = {root / "tests" / Path(path).parent for path in paths}
        chosen = {test for test in tests if test.parent in folders}
    suites = {t for t in tests if tests[t] in ("conformance", "options") and "luna" in t.parts}
    names = [sorted(t.relative_to(root).as_posix() for t in group) for group in (chosen, suites)]
    commands = [tuple(names[0])] if chosen else []
    if cases:  # the tests of compiling and of memory take longer than all others of a method
        only = f"({' or '.join(cases)}) and not (compile or memory)"
        commands.append((*names[1], "-k", only))
    return commands


def pytest_in_child(root: Path, command: Command, seconds: int, is_baseline: bool) -> None:
    os.setsid()
    os.chdir(root)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    os.environ |= {"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, str(root))
    sys.dont_write_bytecode = not is_baseline  # a fault's must not be taken for the original's
    output = os.open(root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    pytest = importlib.import_module("pytest")
    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-n", "0", *command]))


def outcome_of(root: Path, command: Command, limit: int, *, is_baseline: bool) -> tuple[str, float]:
    """How tests end and their processor seconds, in a fork of this process, which has imported the
    libraries already. The limit is of processor time; by the clock it is eight times as long."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    arguments = (root, command, limit, is_baseline)
    child = multiprocessing.get_context("fork").Process(target=pytest_in_child, args=arguments)
    child.start()
    child.join(8 * limit)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid or 0, signal.SIGKILL)  # what the tests started, too
    child.join()
    seconds = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before, 1)
    if child.exitcode in (-signal.SIGKILL, -signal.SIGXCPU):
        return "timeout", seconds
    return {0: "missed", 1: "failed"}.get(child.exitcode or 0, "import"), seconds


# ---------------------------------------------------------------------- commands


def read_rows(path: Path) -> dict[int, dict[str, Any]]:
    """Faults or outcomes by the number of the fault."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row["id"]: row for row in map(json.loads, lines) if "id" in row}


def add_row(results: Path, **row: Any) -> None:
    with results.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")
    print(*row.values(), flush=True)


def run(faults: list[Fault], results: Path, root: Path) -> None:
    """Plant faults one by one in a copy of a revision, and add their outcomes to the results, with
    the time that each selection of tests takes without a fault."""
    statements = product(root)
    baselines: dict[Command, float] = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # read when torch is imported
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # or each fork copies all objects at its first collection of garbage
    done = read_rows(results)
    for fault in (fault for fault in faults if fault.id not in done):
        statement = place_of(fault, statements)
        if statement is None:
            add_row(results, **asdict(fault), outcome="gone")
            continue
        commands = commands_of({fault.path, statement.path}, root)
        for command in (command for command in commands if command not in baselines):
            outcome, baselines[command] = outcome_of(root, command, 600, is_baseline=True)
            if outcome != "missed":
                report = (root / "output.txt").read_text()
                raise SystemExit(f"{report}\nthese tests must pass without a fault: {command}")
            add_row(results, tests=command, seconds=baselines[command])
        outcome, total, path = "missed", 0.0, root / statement.path
        path.write_bytes(statement.planted(fault.replacement))
        for command in commands:
            if outcome == "missed":
                limit = 60 + 3 * int(baselines[command])
                outcome, seconds = outcome_of(root, command, limit, is_baseline=False)
                total += seconds
        path.write_bytes(statement.source)
        add_row(results, **asdict(fault), outcome=outcome, seconds=round(total, 1))


def show(results: Path, older: Path | None) -> None:
    """Print the share of faults caught, by package and by kind, and the faults missed. With older
    results their share of the same faults stands beside it; listed is what only they caught."""
    rows, old = read_rows(results), read_rows(older or results)
    groups = defaultdict(set)
    for number, row in rows.items():
        if number in old and "gone" not in (row["outcome"], old[number]["outcome"]):
            for group in ("all faults", str(Path(row["path"]).parent), row["kind"]):
                groups[group].add(number)
    caught = {number for number, row in rows.items() if row["outcome"] != "missed"}
    caught_before = {number for number, row in old.items() if row["outcome"] != "missed"}
    print(f"{'':24}  faults  caught" + "  before" * (older is not None))
    for group, numbers in sorted(groups.items()):
        shares = [len(them & numbers) / len(numbers) for them in (caught, caught_before)]
        print(f"{group:24} {len(numbers):7} {shares[0]:7.0%}", end="")
        print(f" {shares[1]:7.0%}" if older else "")
    print(dict(Counter(row["outcome"] for row in rows.values())))
    for number in sorted(groups["all faults"] - caught):
        if older is None or number in caught_before:
            row = rows[number]
            print("\n{id} {path}:{line} {function}, {kind}".format(**row))
            print("    {original}\n -> {replacement}".format(**row))


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
