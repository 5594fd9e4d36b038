"""`lra table`, `lra compare`, and the part of `lra figures` that records alone can draw."""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.base.config import UserError
from lra.base.disk import disk_errors, write_atomically

if TYPE_CHECKING:
    from lra.report.table import Table
    from lra.results.record import Key, Record

SUFFIXES = (".md", ".csv", ".tex")
FORMATS = ("md", "csv", "tex", "json")  # of tables on standard output


def add_parsers(commands: Any) -> None:
    table = commands.add_parser(
        "table",
        help="show finished runs in tables; --write: make the tables and the page of results/",
        description="Shows the finished runs of a folder on the terminal; runs that can be "
        "compared share a table. With --write or --check: the tables and the page of results/.",
    )
    table.add_argument("--runs", default="runs", help="folder of runs or records (default: runs)")
    table.add_argument("--task", nargs="+", default=[], help="only these tasks")
    table.add_argument("--attention", nargs="+", default=[], help="only these attentions")
    table.add_argument(
        "--sort",
        default="",
        metavar="NUMBER",
        help="order the rows by score, parameters, gflops, "
        "steps_per_second, peak_memory_mib or a task",
    )
    table.add_argument(
        "--vary",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="settings in which the runs of a "
        "table may differ, such as protocol.recipe.lr; they become part of the rows' names",
    )
    table.add_argument(
        "--effects",
        action="store_true",
        help="show under each table what each setting changes while all others are equal",
    )
    table.add_argument(
        "--format", default="", choices=FORMATS, help="print the tables in this format"
    )
    what = table.add_mutually_exclusive_group()
    what.add_argument(
        "--write",
        action="store_true",
        help="write RESULTS/tables and RESULTS/index.html from RESULTS/records",
    )
    what.add_argument(
        "--check", action="store_true", help="fail if those files are not what the records give"
    )
    table.add_argument("--strict", action="store_true", help="fail if a record is in no table, too")
    table.add_argument(
        "--results", default="results", help="folder of records and tables (default: results)"
    )
    table.set_defaults(run=_table)

    versus = commands.add_parser("compare", help="compare two rows or runs example by example")
    versus.add_argument("a", metavar="A", help="a run's folder or name, or luna,M=8,L=8")
    versus.add_argument("b", metavar="B", help="what to compare it with")
    versus.add_argument("--runs", default="results/records", help="where attentions are looked up")
    versus.add_argument("--task", help="the task, if attentions are given")
    versus.add_argument("--data-dir", default="data", help="prepared data, for the lengths")
    versus.set_defaults(run=_compare)


def _table(arguments: argparse.Namespace) -> None:
    from lra.report.terminal import Choice, print_tables

    results, a = Path(arguments.results), arguments
    choice = Choice(a.task, a.attention, a.vary, a.sort, a.format, a.effects)
    if arguments.check or arguments.write:
        if choice != Choice([], [], []):
            raise UserError(
                "--task, --attention, --sort, --vary, --effects and --format are for tables on the "
                "terminal; results/tables.yaml says what --write and --check make"
            )
        records = _records(results)
        tables = _tables(results, records)
        (check_files if arguments.check else write_files)(results, texts_of(results, tables))
        left_out = _left_out(results, records, tables)
        print("\n".join(left_out), end="\n" if left_out else "")
        if left_out and arguments.strict:
            raise SystemExit(1)
    else:
        print_tables(arguments.runs, choice)


def tables_of(results: Path) -> list[Table]:
    """Every table of a results folder: those of its tables.yaml, then one per converted model."""
    return _tables(results, _records(results))


def _records(results: Path) -> list[Record]:
    from lra.results import audit
    from lra.results.record import read_all

    folder = results / "records"
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; make it from finished runs: lra records export")
    records = read_all([folder])
    audit.refuse_contradictions(records)
    return records


def _tables(results: Path, records: Sequence[Record]) -> list[Table]:
    from lra.report import conversions, leaderboard
    from lra.report.specs import specs

    training = leaderboard.build_all(specs(results), records, results / "records")
    return [*training, *conversions.build_all(records)]


def _left_out(results: Path, records: Sequence[Record], tables: Sequence[Table]) -> list[str]:
    """One line per group of records that are in no table, with the reason."""
    from lra.report.leaderboard import selected
    from lra.report.specs import specs

    shown = {r.key for table in tables for r in [*table.records, *table.repeated, *table.unchosen]}
    missing = [r for r in records if r.key not in shown]
    few: dict[Key, str] = {}
    for spec in specs(results) if missing else []:
        taken = selected(spec, records, results / "records")
        few |= {r.key: f"{spec.name} needs {spec.at_least} rows of a task" for r in taken}
    groups: dict[str, int] = defaultdict(int)
    for r in missing:
        part = r.path.relative_to(results / "records")
        groups[f"{part}: {few.get(r.key, 'no entry of tables.yaml selects them')}"] += 1
    head = f"{len(missing)} of the records are in no table:"
    return [head, *(f"  {n} in {why}" for why, n in sorted(groups.items()))] if missing else []


def texts_of(results: Path, tables: Sequence[Table]) -> dict[Path, str]:
    from lra.report.page import page
    from lra.report.render import WRITERS

    files = {
        results / "tables" / f"{table.name}.{suffix}": writer(table, results)
        for table in tables
        for suffix, writer in WRITERS.items()
    }
    files = {path: text for path, text in files.items() if text}
    return files | {results / "index.html": page(tables, results)}


def write_files(results: Path, files: dict[Path, str]) -> None:
    """Write these files, and remove tables that no longer have records."""
    for path, text in files.items():
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
        print(path)
    for stale in sorted(_on_disk(results) - set(files)):
        stale.unlink()
        print(f"{stale} removed, because no record belongs to it")


def check_files(results: Path, files: dict[Path, str]) -> None:
    """Exit with code 1 and the names of the files that differ from what the records give."""
    wrong = {
        path: "differs from its records" if path.exists() else "is missing"
        for path, text in files.items()
        if not path.exists() or path.read_bytes() != text.encode()
    }
    wrong |= dict.fromkeys(_on_disk(results) - set(files), "has no records any more")
    for path, why in sorted(wrong.items()):
        print(f"{path} {why}")
    if wrong:
        print(
            f"{len(wrong)} of {len(files)} files are not what the records give: lra table --write"
        )
        raise SystemExit(1)
    print(f"{len(files)} files are what the records give")


def _on_disk(results: Path) -> set[Path]:
    return {p for p in (results / "tables").glob("*") if p.suffix in SUFFIXES}


def _compare(arguments: argparse.Namespace) -> None:
    from lra.report.versus import print_comparison

    a = arguments
    print_comparison(a.a, a.b, Path(a.runs), a.task, Path(a.data_dir))
