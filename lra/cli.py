"""The `lra` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from lra import groups
from lra.compose import guard, with_added

if TYPE_CHECKING:
    from lra.bench.rows import BenchResult

HYDRA = {  # commands whose words Hydra reads
    "train": "train an attention on a task; without more words: the choices",
    "convert": "give a trained softmax model linear attention; the same",
}
DATA = [["data", action] for action in ("prepare", "show", "card", "export")]  # take settings


def main(argv: Sequence[str] | None = None) -> int:
    return guard(lambda: _main(list(sys.argv[1:] if argv is None else argv)))


def _main(words: list[str]) -> None:
    words, folder = groups.take_folder(words)
    with groups.searching(folder):
        if len(words) > 1 and (words[0] in HYDRA or words[:2] in DATA):
            words = with_added(words)
        if words[:1] and words[0] in HYDRA:
            from lra.apps import start

            start(words[0], words[1:])
        elif words[:1] == ["-sc"]:
            from lra.apps import complete

            complete(words, _parser()[1])
        else:
            arguments = _parser()[0].parse_args(words or ["--help"])
            arguments.run(arguments)


def _parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser, and the names of the commands."""
    parser = argparse.ArgumentParser(
        prog="lra",
        description="Long Range Arena: training, data, counts, benchmarks, tables.",
    )
    version = f"luna-lra {metadata.version('luna-lra')}"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder like configs/, whose files add choices or replace ours; for all commands",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    for name, purpose in HYDRA.items():
        commands.add_parser(name, help=purpose)

    listing = commands.add_parser("list", help="every attention: complexity, parameters, paper")
    how = listing.add_mutually_exclusive_group()
    how.add_argument("--markdown", action="store_true", help="as the README has it")
    how.add_argument("--write", action="store_true", help="into the README of this folder")
    listing.set_defaults(run=_list)

    from lra.new import add_parser as add_new

    add_new(commands)

    from lra.data.commands import add_parser as add_data

    add_data(commands)

    compute = commands.add_parser(
        "compute", help="parameters and FLOPs of a run, or of all (table); nothing trained"
    )
    compute.add_argument(
        "overrides",
        nargs="*",
        metavar="[table] overrides",
        help="as for lra train: task=listops attention=luna ...; with the word table before them "
        "the page of all tasks and attentions",
    )
    compute.add_argument("--write", action="store_true", help="of the table, to results/compute")
    compute.set_defaults(run=_compute)

    from lra.bench.commands import add_parser as add_bench

    add_bench(commands, _draw)

    from lra.report.commands import add_parsers as add_report

    add_report(commands)

    from lra.figures.commands import add_parser as add_figures

    add_figures(commands)

    from lra.status import add_parser as add_status

    add_status(commands)

    return parser, list(commands.choices)


def _list(arguments: argparse.Namespace) -> None:
    from lra import catalogue

    if arguments.markdown:
        print(catalogue.markdown())
    elif arguments.write:
        catalogue.write(Path("README.md"))
    else:
        catalogue.show()


def _compute(arguments: argparse.Namespace) -> None:
    from lra.compose import compose
    from lra.compute.show import show
    from lra.compute.table import main as table

    words = arguments.overrides
    if words[:1] == ["table"]:
        table(words[1:], write=arguments.write)
    else:
        show(compose(words))


def _draw(result: BenchResult, stem: Path) -> list[Path]:
    from lra.figures.benches import draw_if_possible

    return draw_if_possible(result, stem)
