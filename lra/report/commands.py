"""`lra table` and `lra compare`."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.base.config import UserError
from lra.base.disk import disk_errors, write_atomically

if TYPE_CHECKING:
    import pandas as pd

    from lra.report.table import Table

SUFFIXES = (".md", ".csv", ".tex")
FORMATS = ("md", "csv", "tex", "json")  # of tables on standard output


def add_parsers(commands: Any) -> None:
    table = commands.add_parser(
        "table",
        help="show finished runs in tables; --write: make the tables and the page of results/",
        description="Shows the finished runs of a folder on the terminal; runs that can be "
        "compared share a table. With --write or --check: the tables and the page of results/.",
    )
    table.set_defaults(run=_table)
    add = table.add_argument
    add("--runs", default="runs", help="folder of runs or records (default: runs)")
    add("--task", nargs="+", default=[], help="only these tasks")
    add("--attention", nargs="+", default=[], help="only these attentions")
    add("--sort", default="", metavar="NUMBER",
        help="order the rows by score, parameters, gflops, steps_per_second, peak_memory_mib or a "
        "task")  # fmt: skip
    add("--vary", nargs="+", default=[], metavar="SETTING",
        help="settings in which the runs of a table may differ, such as protocol.recipe.lr; they "
        "become part of the rows' names")  # fmt: skip
    add("--effects", action="store_true",
        help="show what each setting changes while all others are equal")  # fmt: skip
    add("--format", default="", choices=FORMATS, help="print the tables in this format")
    add("--strict", action="store_true", help="fail if a record is in no table, too")
    add("--results", default="results", help="folder of records and tables (default: results)")
    add = table.add_mutually_exclusive_group().add_argument
    add("--write", action="store_true", help="write RESULTS/tables and RESULTS/index.html")
    add("--check", action="store_true", help="fail if those files are not what the records give")

    versus = commands.add_parser(
        "compare",
        help="compare two rows or runs example by example",
        description="Compares two rows or runs on the test examples that both answered: "
        "`lra compare luna softmax --task listops`, `lra compare luna,M=8 luna,M=64 --runs "
        "results/records/short_luna.jsonl`.",
    )
    versus.set_defaults(run=_compare)
    add = versus.add_argument
    add("a", metavar="A", help="a run's folder or name, or luna,M=8,L=8")
    add("b", metavar="B", help="what to compare it with")
    add("--runs", type=Path, help="where names are looked up (default: runs, else results/records)")
    add("--task", help="the task, if attentions are given")
    add("--data-dir", type=Path, default=Path("data"), help="prepared data, for the lengths")


def _table(a: argparse.Namespace) -> None:
    from lra.report.terminal import Choice, print_tables

    results = Path(a.results)
    # Runs of the results folder were made on machines that did other work, too.
    committed = Path(a.runs).resolve().is_relative_to(results.resolve())
    choice = Choice(a.task, a.attention, a.vary, a.sort, a.format, a.effects, not committed)
    if not (a.check or a.write):
        print_tables(a.runs, choice)
        return
    if choice != Choice([], [], []):
        raise UserError(
            "--task, --attention, --sort, --vary, --effects and --format are for tables on the "
            "terminal; results/tables.yaml says what --write and --check make"
        )
    runs = _runs(results)
    tables = _tables(results, runs)
    (check_files if a.check else write_files)(results, texts_of(results, tables))
    if left_out := _left_out(results, runs, tables):
        print("\n".join(left_out))
        if a.strict:
            raise SystemExit(1)


def tables_of(results: Path) -> list[Table]:
    """Every table of a results folder: those of its tables.yaml, then one per converted model."""
    return _tables(results, _runs(results))


def _runs(results: Path) -> pd.DataFrame:
    from lra.results import audit
    from lra.results.frame import frame_of
    from lra.results.record import read_all

    folder = results / "records"
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist; make it from finished runs: lra records export")
    records = read_all([folder])
    audit.refuse_contradictions(records)
    return frame_of(records)


def _tables(results: Path, runs: pd.DataFrame) -> list[Table]:
    from lra.report import conversions, training
    from lra.report.specs import specs

    tables = training.build_all(specs(results), runs, results / "records")
    return [*tables, *conversions.build_all(runs)]


def _left_out(results: Path, runs: pd.DataFrame, tables: Sequence[Table]) -> list[str]:
    """One line per file of records of which some are in no table, with the reason."""
    from lra.report.specs import specs
    from lra.report.training import selected

    parts = [part for t in tables for part in (t.runs, t.repeated, t.unchosen) if len(part)]
    missing = runs[~runs["run"].isin({run for part in parts for run in part["run"]})]
    few: dict[str, str] = {}
    for spec in specs(results) if len(missing) else []:
        taken = selected(spec, runs, results / "records")
        few |= dict.fromkeys(taken["run"], f"{spec.name} needs {spec.at_least} rows of a task")
    groups = Counter(
        f"{Path(path).relative_to(results / 'records')}: "
        + few.get(run, "no entry of tables.yaml selects them")
        for path, run in missing[["path", "run"]].itertuples(index=False)
    )
    head = f"{len(missing)} of the records are in no table:"
    return [head, *(f"  {n} in {why}" for why, n in sorted(groups.items()))] if groups else []


def texts_of(results: Path, tables: Sequence[Table]) -> dict[Path, str]:
    from lra.report.page import page
    from lra.report.render import WRITERS

    files = {
        results / "tables" / f"{table.name}.{suffix}": text
        for table in tables
        for suffix, writer in WRITERS.items()
        if (text := writer(table, results))
    }
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
        n = f"{len(wrong)} of {len(files)}"
        print(f"{n} files are not what the records give: lra table --write")
        raise SystemExit(1)
    print(f"{len(files)} files are what the records give")


def _on_disk(results: Path) -> set[Path]:
    return {p for p in (results / "tables").glob("*") if p.suffix in SUFFIXES}


def _compare(a: argparse.Namespace) -> None:
    from lra.report.versus import print_comparison

    runs = a.runs or (Path("runs") if Path("runs").is_dir() else Path("results/records"))
    print_comparison(a.a, a.b, runs, a.task, a.data_dir)
