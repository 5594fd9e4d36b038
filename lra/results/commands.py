"""`lra records`: export, import and check."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lra.base.config import UserError

RECORDS = "results/records"


def add_parsers(commands: Any) -> None:
    records = commands.add_parser("records", help="records of finished runs: export, import, check")
    actions = records.add_subparsers(dest="action", required=True, metavar="action")
    export = actions.add_parser("export", help="write them into one small file, to be committed")
    export.add_argument("target", nargs="?", type=Path, help=f"a file such as {RECORDS}/mine.jsonl "
                        "(default: one for each folder, of its name)")  # fmt: skip
    export.add_argument("--runs", nargs="+", default=["runs"], help="folders (default: runs)")
    bring = actions.add_parser("import", help="check records of another machine and copy them")
    bring.add_argument("sources", nargs="+", help="folders of runs, .jsonl files, or their folders")
    bring.add_argument("--into", type=Path, default=Path(RECORDS), help="target folder")
    bring.add_argument("--replace", action="store_true", help="replace those with other outcomes")
    check = actions.add_parser("check", help="recompute what can be, refuse what cannot be right")
    check.add_argument("folders", nargs="*", default=[RECORDS], help="runs or records")
    check.add_argument("--data-dir", default="data", help="prepared data, for the labels")
    check.add_argument("--reevaluate", action="store_true", help="run checkpoints of runs again")
    for parser, run in ((export, _export), (bring, _import), (check, _check)):
        parser.set_defaults(run=run)


def _export(arguments: argparse.Namespace) -> None:
    from lra.results.export import targets

    target, runs = arguments.target, arguments.runs
    if target is not None and target.suffix != ".jsonl":
        raise UserError(f"name a file, such as {target}/mine.jsonl, not the folder {target}")
    _copy(targets(runs, Path(RECORDS)) if target is None else {target: runs}, replace=False)


def _import(arguments: argparse.Namespace) -> None:
    from lra.results.export import targets

    _copy(targets(arguments.sources, arguments.into), replace=arguments.replace)


def _copy(sources_of: Mapping[Path, Sequence[str | Path]], *, replace: bool) -> None:
    from lra.results.export import export

    copied, where = export(sources_of, replace=replace), ", ".join(map(str, sources_of))
    print(f"{len(copied['new'])} new records in {where}, {len(copied['known'])} already there")
    for record in copied["other"]:
        end = "replaced by it" if replace else "kept (import --replace takes it)"
        print(f"  {record.where} has another outcome than the record there, which is {end}")


def _check(arguments: argparse.Namespace) -> None:
    from lra.results import audit
    from lra.results.record import load_records

    records = load_records(arguments.folders)
    counts = audit.check_records(records, Path(arguments.data_dir), reevaluate=arguments.reevaluate)
    print(
        f"{len(records)} records: {counts[audit.PROVEN]} follow from their answers and the "
        f"prepared data, {counts[audit.RECOMPUTED]} from their answers, {counts[audit.TRUSTED]} "
        "have no answers and are trusted"
    )
