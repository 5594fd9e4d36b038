"""The `lra` command: everything around training. `python train.py` trains."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lra.compose import guard


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="lra",
        description="Long Range Arena: data, counts, benchmarks, tables. `python train.py` trains.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    listing = commands.add_parser("list", help="every attention: complexity, parameters, paper")
    listing.add_argument("--markdown", action="store_true", help="as the README has it")
    listing.set_defaults(run=_list)

    from lra.data.commands import add_parser as add_data

    add_data(commands)

    compute = commands.add_parser(
        "compute", help="parameters and FLOPs of a run, or of all (table); nothing trained"
    )
    compute.add_argument(
        "overrides",
        nargs="*",
        metavar="[table] overrides",
        help="as for train.py: task=listops attention=luna ...; with the word table before them "
        "the page of all tasks and attentions",
    )
    compute.add_argument("--write", action="store_true", help="of the table, to results/compute")
    compute.set_defaults(run=_compute)

    from lra.bench import add_parser as add_bench

    add_bench(commands)

    from lra.report.commands import add_parsers as add_report

    add_report(commands)

    from lra.figures import add_parser as add_figures

    add_figures(commands)

    from lra.status import add_parser as add_status

    add_status(commands)

    arguments = parser.parse_args(argv)
    return guard(lambda: arguments.run(arguments))


def _list(arguments: argparse.Namespace) -> None:
    from lra.catalogue import markdown, show

    if arguments.markdown:
        print(markdown())
    else:
        show()


def _compute(arguments: argparse.Namespace) -> None:
    from lra.compose import compose
    from lra.compute.show import show
    from lra.compute.table import main as table

    words = arguments.overrides
    if words[:1] == ["table"]:
        table(words[1:], write=arguments.write)
    else:
        show(compose(words))


if __name__ == "__main__":
    sys.exit(main())
