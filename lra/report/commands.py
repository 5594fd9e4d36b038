"""`lra table`, `lra records`, and the part of `lra figures` that records alone can draw."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.config import UserError
from lra.disk import disk_errors, write_atomically

if TYPE_CHECKING:
    from lra.report.table import Table

SUFFIXES = (".md", ".csv", ".tex")


def add_parsers(commands: Any) -> None:
    table = commands.add_parser(
        "table",
        help="show finished runs in tables; --write: make the tables and the page of results/",
        description="Shows the finished runs of a folder on the terminal; runs that can be "
        "compared share a table. With --write or --check: the tables and the page of results/.",
    )
    table.add_argument("--runs", default="runs", help="folder of runs or records (default: runs)")
    what = table.add_mutually_exclusive_group()
    what.add_argument(
        "--write",
        action="store_true",
        help="write RESULTS/tables and RESULTS/index.html from RESULTS/records",
    )
    what.add_argument(
        "--check", action="store_true", help="fail if those files are not what the records give"
    )
    table.add_argument(
        "--results", default="results", help="folder of records and tables (default: results)"
    )
    table.set_defaults(run=_table)

    records = commands.add_parser(
        "records", help="export the records of finished runs, or import those of another machine"
    )
    actions = records.add_subparsers(dest="action", required=True, metavar="action")
    export = actions.add_parser(
        "export", help="write the records of folders of runs as small files, to be committed"
    )
    export.add_argument("target", nargs="?", default="results/records", help="target folder")
    export.add_argument("--runs", nargs="+", default=["runs"], help="folders (default: runs)")
    export.set_defaults(run=lambda a: _copy(a.runs, a.target))
    bring = actions.add_parser("import", help="check records of another machine and copy them")
    bring.add_argument("sources", nargs="+", help="folders with runs or exported records")
    bring.add_argument("--into", default="results/records", help="target folder")
    bring.set_defaults(run=lambda a: _copy(a.sources, a.into))


def _table(arguments: argparse.Namespace) -> None:
    results = Path(arguments.results)
    if arguments.check:
        check(results)
    elif arguments.write:
        for path in write(results):
            print(path)
    else:
        from lra.report.terminal import show

        show(arguments.runs)


def tables_of(results: Path) -> list[Table]:
    """Every table of a results folder: those of its tables.yaml, then one per converted model."""
    from lra.report import conversions, leaderboard
    from lra.report.specs import specs

    records = results / "records"
    if not records.is_dir():
        raise UserError(f"{records} does not exist; make it from finished runs: lra records export")
    return [*leaderboard.build_all(specs(results), records), *conversions.build_all(records)]


def content(results: Path) -> dict[Path, str]:
    """The text of every file that is made from the records of a results folder."""
    from lra.report.page import page
    from lra.report.render import WRITERS

    tables = tables_of(results)
    files = {
        results / "tables" / f"{table.name}.{suffix}": writer(table, results)
        for table in tables
        for suffix, writer in WRITERS.items()
    }
    files = {path: text for path, text in files.items() if text}
    return files | {results / "index.html": page(tables, results)}


def write(results: Path) -> list[Path]:
    """Write these files, and remove tables that no longer have records."""
    files = content(results)
    for path, text in files.items():
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text.encode())
    for stale in sorted(_on_disk(results) - set(files)):
        stale.unlink()
        print(f"{stale} removed, because no record belongs to it")
    return list(files)


def check(results: Path) -> None:
    """Exit with code 1 and the names of the files that differ from what the records give."""
    files = content(results)
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


def _copy(sources: Sequence[str], target: str) -> None:
    """Copy the records of all sources, or none of them if one is refused."""
    from lra.records import export

    found = export(sources, Path(target))
    print(f"{len(found['new'])} new records in {target}, {len(found['known'])} already there")
    for record in found["other"]:
        print(
            f"  {record.path} repeats a known run with another outcome: the run that finished "
            "first is kept"
        )
