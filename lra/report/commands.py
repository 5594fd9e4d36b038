"""`lra table` and `lra compare`."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError

if TYPE_CHECKING:
    from lra.report.study import Study

FORMATS = ("md", "csv", "tex", "paper")  # as in latex.WRITERS, which imports pandas


def add_table(table: argparse.ArgumentParser) -> None:
    table.description = (
        "Shows the finished runs of a folder on the terminal; runs that can be compared share a "
        "table. With --write or --check: the tables and pages of results/."
        " With --page: all tables as one page for a browser."
    )
    table.set_defaults(run=_table)
    add = table.add_argument
    add("--runs", default="runs", help="folder of runs or records (default: runs)")
    add("--task", nargs="+", default=[], help="only these tasks")
    add("--attention", nargs="+", default=[], help="only these attentions")
    add(
        "--vary",
        nargs="+",
        default=[],
        metavar="SETTING",
        help="settings in which the runs of a table may differ, such as protocol.recipe.lr; they "
        "become part of the rows' names, and of two there is a grid, the first down",
    )
    add(
        "--effects",
        action="store_true",
        help="show what each setting changes while all others are equal",
    )
    add(
        "--rungs",
        action="store_true",
        help="tell answers apart by the least that must be read (ListOps), or by place",
    )
    add("--notes", action="store_true", help="all notes: conditions, tests, rules, data, budgets")
    add("--format", default="", choices=FORMATS, help="print the tables so; paper: LaTeX, narrow")
    add("--results", default="results", help="folder of records and tables (default: results)")
    add = table.add_mutually_exclusive_group().add_argument
    add("--page", type=Path, metavar="FILE", help="write the tables as one page for a browser")
    add("--write", action="store_true", help="write RESULTS/tables, and the pages of templates")
    add("--check", action="store_true", help="fail if those files are not what the records give")


def add_compare(versus: argparse.ArgumentParser) -> None:
    versus.description = (
        "Compares two rows or runs on the test examples that both answered: "
        "`lra compare luna softmax --task listops`, `lra compare luna,M=8 luna,M=64 --runs "
        "runs/demo`."
    )
    versus.set_defaults(run=_compare)
    add = versus.add_argument
    add(
        "rows",
        nargs="*",
        metavar="ROW",
        help="two: a run's folder or name, or luna,M=8,L=8; without them: the rows that there are",
    )
    add("--runs", type=Path, help="where names are looked up (default: runs, else results/records)")
    add("--task", help="the task, if attentions are given")


def _table(a: argparse.Namespace) -> None:
    results = Path(a.results)
    if not (a.check or a.write or a.page):
        from lra.report.terminal import print_tables

        print_tables(a)
        return
    if a.task or a.attention or a.vary or a.format or a.effects or a.rungs or a.notes:
        raise UserError(
            "--write, --check and --page make what results/tables.yaml says: the other options "
            "are for tables on the terminal"
        )
    study = study_of(results)
    if a.page:
        _write_page(study, a.page)
        return
    from lra.report.pages import written

    files = texts_of(study)
    stale = {p for p in (results / "tables").glob("*") if p.suffix[1:] in FORMATS} - {*files}
    pages, problems = written(study)
    (_check if a.check else _write)(files | pages, stale)
    if problems:
        raise UserError(f"pages of {results} that are not written:\n  " + "\n  ".join(problems))
    shown = {run for table in study.tables for run in table.taken["run"]}
    missing = study.runs[~study.runs["run"].isin(shown)]
    if len(missing):
        print(f"{len(missing)} of the records are in no table:")
        print(*(f"  {n} of {path}" for path, n in Counter(missing["path"]).items()), sep="\n")


def _write_page(study: Study, path: Path) -> None:
    from lra.report.page import page

    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, page(study.tables, study.folder).encode())
    print(path)


def study_of(results: Path) -> Study:
    """A results folder, read: its runs, and their tables, those of its tables.yaml, then one per
    converted model."""
    from lra.data import hunt
    from lra.report.build import build_all
    from lra.report.specs import specs
    from lra.report.study import Study
    from lra.results import audit
    from lra.results.frame import frame_of
    from lra.results.record import read_all, without_other_outcomes

    folder = results / "records"
    if not folder.is_dir():
        raise UserError(
            f"{folder} does not exist; make it from finished runs (lra records export), or name "
            "another folder of results: --results"
        )
    records = read_all([folder])
    if not records:
        raise UserError(f"{folder} holds no record; make it from finished runs: lra records export")
    audit.refuse_contradictions(records)
    hunt.read_hunts(results / hunt.FILE)  # which no table shows, but pages may quote
    every_run = frame_of(records)
    kept = {id(record) for record in without_other_outcomes(records)}
    runs = every_run[every_run["record"].map(id).isin(kept)].reset_index(drop=True)
    return Study(results, every_run, runs, build_all(specs(results), runs, folder))


def texts_of(study: Study) -> dict[Path, str]:
    """The files of all tables."""
    from lra.report.latex import ENDINGS, WRITERS

    folder = study.folder / "tables"
    return {
        folder / (table.spec.name + ENDINGS.get(form, f".{form}")): writer(table, study.folder)
        for table in study.tables
        for form, writer in WRITERS.items()
    }


def _write(files: dict[Path, str], stale: set[Path]) -> None:
    """Write these files, and remove tables that no longer have records."""
    changed = _changed(files)
    for path in changed:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, files[path].encode())
        print(path)
    for path in sorted(stale):
        path.unlink()
        print(f"{path} removed, because no record belongs to it")
    print(f"{len(changed)} of {len(files)} files written, the others are what the records give")


def _changed(files: dict[Path, str]) -> list[Path]:
    """Those that are not on disk as they are here."""
    return [
        path
        for path, text in files.items()
        if not path.exists() or path.read_bytes() != text.encode()
    ]


def _check(files: dict[Path, str], stale: set[Path]) -> None:
    """Exit with code 1 and the names of the files that differ from what the records give."""
    if wrong := stale | {*_changed(files)}:
        print(*sorted(wrong), sep="\n")
        print(f"{len(wrong)} files are not what the records give: lra table --write")
        raise SystemExit(1)
    print(f"{len(files)} files are what the records give")


def _compare(a: argparse.Namespace) -> None:
    from lra.report.versus import print_comparison

    runs = a.runs or (Path("runs") if Path("runs").is_dir() else Path("results/records"))
    print_comparison(a.rows, runs, a.task)
