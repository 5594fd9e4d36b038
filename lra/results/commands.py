"""`lra records`; `lra evaluate`, `lra predict` and `lra export`, which ask a trained network."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from lra.base.disk import disk_errors, write_atomically
from lra.base.errors import UserError, first_line, printable
from lra.metrics.metric import get

RECORDS = "results/records"
EEE = "every-eval-ever"
PRINTED = ("answer", "probabilities", "labels", "numbers")  # Predictions, in their order
EXAMPLES = """\
FILE is a text with one example per line (- for standard input; a pair is two texts with a tab
between), a .tsv or .csv table with a column text (or text1 and text2), a picture, a .npy array of
ids, or a folder of texts or pictures, one example per file."""


def add_records(records: argparse.ArgumentParser, export_all: Callable[..., Any]) -> None:
    actions = records.add_subparsers(dest="action", required=True, metavar="action")
    export = actions.add_parser("export", help="write them into one small file, to be committed")
    export.add_argument(
        "target",
        nargs="?",
        type=Path,
        help=f"a file such as {RECORDS}/mine.jsonl (default: one for each folder, of its name)",
    )
    export.add_argument(
        "--runs", nargs="+", default=["runs"], help="folders (default: runs)", dest="sources"
    )
    export.add_argument(
        "--format",
        choices=("jsonl", EEE),
        default="jsonl",
        help=f"{EEE}: a JSON file a run below the folder TARGET, in the format of that collection",
    )
    export.add_argument(
        "--organization", metavar="NAME", help=f"who publishes the results: --format {EEE}"
    )
    export.add_argument(
        "--all",
        type=Path,
        metavar="FOLDER",
        help="instead: records, answers, tables, protocols and a card of a folder of results, as a "
        "data set in a new folder",
    )
    export.add_argument("--results", default="results", help="that folder (default: results)")
    export.add_argument("--license", default="apache-2.0", help="in the card (default: ours)")
    export.set_defaults(
        into=Path(RECORDS),
        replace=False,
        run=lambda a: _dataset(a, export_all) if a.all else _export(a),
    )
    bring = actions.add_parser("import", help="check records of another machine and copy them")
    bring.set_defaults(target=None, run=_copy)
    bring.add_argument("sources", nargs="+", help="folders of runs, .jsonl files, or their folders")
    bring.add_argument("--into", type=Path, default=Path(RECORDS), help="target folder")
    bring.add_argument("--replace", action="store_true", help="replace those with other outcomes")
    check = actions.add_parser("check", help="recompute what can be, refuse what cannot be right")
    check.set_defaults(run=_check)
    check.add_argument("folders", nargs="*", default=[RECORDS], help="runs or records")
    check.add_argument("--data-dir", default="data", help="prepared data, for the labels")
    check.add_argument(
        "--conversion-data", type=Path, metavar="DIR", help="data.path of conversions, for theirs"
    )
    send = actions.add_parser("submit", help="check results and put them where others are sent")
    send.set_defaults(run=_submit)
    send.add_argument("source", type=Path, metavar="FOLDER", help="what `lra records export` wrote")
    send.add_argument("--name", help="of the folder they get (default: that of FOLDER)")
    send.add_argument("--data-dir", type=Path, default=Path("data"), help="as for check")
    send.add_argument("--into", type=Path, default=Path(RECORDS) / "submitted")
    check.add_argument("--reevaluate", action="store_true", help="run checkpoints of runs again")


def add_evaluate(evaluate: argparse.ArgumentParser) -> None:
    evaluate.set_defaults(run=_evaluate)
    evaluate.add_argument(
        "--split",
        type=lambda word: "val" if word == "dev" else word,
        choices=("train", "val", "test"),
        default="test",
        help="train, dev (the files say val) or test, the default",
    )
    _add_network(evaluate)


def add_predict(predict: argparse.ArgumentParser) -> None:
    predict.description = EXAMPLES
    predict.set_defaults(run=_predict)
    _add_network(predict)
    predict.add_argument("file", type=Path, metavar="FILE", help="examples, see above")
    predict.add_argument("--to", type=Path, metavar="FILE", help="default: standard output")
    predict.add_argument(
        "--generate", type=int, metavar="N", help="continue the text in FILE by N bytes"
    )
    predict.add_argument(
        "--temperature", type=float, default=1.0, help="of what is generated; 0: the most likely"
    )
    predict.add_argument("--seed", type=int, default=0, help="of what is generated")


def add_export(export: argparse.ArgumentParser) -> None:
    export.set_defaults(run=_pass_on)
    _add_folder(export)
    export.add_argument("--to", type=Path, required=True, help="a new folder")


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="RUN", help="a finished run's folder")


def _add_network(parser: argparse.ArgumentParser) -> None:
    _add_folder(parser)
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="default: the run's")
    parser.add_argument("--device", default="cpu", help="such as cuda (default: cpu)")


# ---------------------------------------------------------------------- records


def _dataset(arguments: argparse.Namespace, export_all: Callable[..., Any]) -> None:
    if arguments.target or arguments.sources != ["runs"]:
        raise UserError(
            "--all copies the folder of results that --results names: leave TARGET and --runs out"
        )
    export_all(arguments)


def _export(arguments: argparse.Namespace) -> None:
    if arguments.format == EEE:
        _share(arguments)
        return
    if arguments.organization is not None:
        raise UserError(f"--organization belongs to --format {EEE}: give both")
    _copy(arguments)


def _share(arguments: argparse.Namespace) -> None:
    from lra.results.every_eval_ever import write
    from lra.results.record import load_records

    target = arguments.target or Path(EEE)
    if target.suffix == ".jsonl":
        raise UserError(f"--format {EEE} writes many files: name a folder, not {target}")
    if not arguments.organization:
        raise UserError(f"--format {EEE} needs --organization NAME: who publishes these results")
    records = load_records(arguments.sources)
    if not records:
        raise UserError(f"there is no finished run in {', '.join(arguments.sources)}")
    paths = write(records, target, arguments.organization)
    print(printable(f"{len(paths)} evaluations in {target}, the last one {paths[-1]}"))


def _copy(arguments: argparse.Namespace) -> None:
    from lra.results.export import export, targets

    target, sources, replace = arguments.target, arguments.sources, arguments.replace
    if target is not None and target.suffix != ".jsonl":
        raise UserError(f"name a file, such as {target}/mine.jsonl, not the folder {target}")
    sources_of = {target: sources} if target else targets(sources, arguments.into)
    copied, where = export(sources_of, replace=replace), ", ".join(map(str, sources_of))
    counts = f"{len(copied['new'])} new records in {where}, {len(copied['known'])} already there"
    print(printable(counts))
    for record in copied["other"]:
        end = "replaced by it" if replace else "kept (import --replace takes it)"
        line = f"  {record.where} has another outcome than the record there, which is {end}"
        print(printable(line))


def _check(arguments: argparse.Namespace) -> None:
    from lra.results import audit
    from lra.results.record import other_outcomes, read_all

    records = read_all(arguments.folders)  # every copy of a run, as tables may take any
    folders = Path(arguments.data_dir), arguments.conversion_data
    counts = audit.check_records(records, *folders, reevaluate=arguments.reevaluate)
    print(
        f"{len(records)} records: {counts[audit.PROVEN]} follow from their answers and the "
        f"prepared data, {counts[audit.RECOMPUTED]} from their answers, {counts[audit.TRUSTED]} "
        "are trusted, as they have no answers or a metric that is not known here"
    )
    for record, first in other_outcomes(records):
        print(printable(f"  {record.where} has another outcome than {first.where}, which counts"))
    for note in audit.equal_answers(records):
        print(printable(f"  {note}"))


def _submit(arguments: argparse.Namespace) -> None:
    from lra.results.submit import submit

    a = arguments
    report = submit(a.source, a.into, a.name, a.data_dir)
    print(f"{report}\nCommit {report.parent} and open a pull request.")


# ---------------------------------------------------------------------- trained networks


def _load(arguments: argparse.Namespace) -> Any:
    import torch

    from lra.results.trained import load_trained

    try:
        torch.zeros(1, device=arguments.device).cpu()
    except (RuntimeError, AssertionError) as error:  # unknown, not there, or without numbers
        reason = first_line(error)
        raise UserError(f"--device {arguments.device} cannot be used: {reason}") from error
    return load_trained(arguments.folder, data_dir=arguments.data_dir, device=arguments.device)


def _evaluate(arguments: argparse.Namespace) -> None:
    trained = _load(arguments)
    answers, target = trained.evaluate(arguments.split), trained.task.target
    metrics = [get(name) for name in trained.task.metric_names]
    scores = [f"{metric.title} {metric.text(metric.score(answers, target))}" for metric in metrics]
    split = "dev" if arguments.split == "val" else arguments.split
    loss = target.loss_of(answers)
    print(f"{split} {', '.join(scores)}, loss {loss:.3f}, {len(answers):,} answers")


def _predict(arguments: argparse.Namespace) -> None:
    from lra.results.examples import read_examples

    trained = _load(arguments)
    if arguments.generate is not None:
        _write(_continued(arguments, trained), arguments.to)
        return
    names, examples = zip(*read_examples(arguments.file, trained.task), strict=True)
    answered = trained.predict(examples)
    columns = {"example": list(names)} | {
        name: _digits(values) if values.dtype.kind == "f" else values.tolist()
        for name, values in zip(PRINTED, answered, strict=True)
        if values is not None
    }
    rows = zip(*columns.values(), strict=True)
    text = "".join(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows)
    _write(text, arguments.to)


def _continued(arguments: argparse.Namespace, trained: Any) -> str:
    from lra.results.examples import read_prompt

    prompt = read_prompt(arguments.file)
    drawn = {"temperature": arguments.temperature, "seed": arguments.seed}
    return f"{printable(trained.generate(prompt, arguments.generate, **drawn))}\n"


def _write(text: str, to: Path | None) -> None:
    if to is None:
        sys.stdout.write(text)
        return
    with disk_errors(to):
        to.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(to, text.encode())
    print(to)


def _digits(values: np.ndarray) -> Any:
    """List floats with the digits that 32 bits have, whatever their size."""
    shortened = [float(f"{value:.7g}") for value in values.flat]
    return np.reshape(shortened, values.shape).tolist()


def _pass_on(arguments: argparse.Namespace) -> None:
    from lra.results.trained import export_network

    print(*export_network(arguments.folder, arguments.to), sep="\n")
