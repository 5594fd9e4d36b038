"""The command line of `lra figures`: a function of the module of the figure writes it."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from lra.base.errors import UserError

# What is drawn: the function that draws it, half a line about it, and its arguments.
FIGURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "records": (
        "tables.draw_records",
        "the figures of results that tables.yaml has a finding for",
        ("--results",),
    ),
    "scaling": ("bench.draw", "pictures of lra bench, drawn again", ("files",)),
    "curves": (
        "steps.draw",
        "loss and rate of runs by step; of conversions, KL of every layer",
        ("runs",),
    ),
    "channels": (
        "runs.draw_channels",
        "psi of a run or a converted model",
        ("folder", "--data-dir", "--texts"),
    ),
    "maps": (
        "runs.draw_maps",
        "attention of any trained run on one example",
        ("folder", "--data-dir", "--example"),
    ),
    "tokens": (
        "students.draw_tokens",
        "attention of [CLS] to words, in softmax and conversions",
        ("folders", "--teacher", "--text", "--text-pair"),
    ),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "--results": {"type": Path, "default": Path("results"), "help": "default: results"},
    "--data-dir": {"type": Path, "default": "data", "help": "prepared data (default: data)"},
    "--texts": {
        "type": Path,
        "metavar": "FILE",
        "help": "for a converted model: one text per line, a tab separates a pair",
    },
    "--example": {"type": int, "default": 0, "help": "number in the test split (default: 0)"},
    "--teacher": {"type": Path, "required": True, "help": "the softmax model's folder"},
    "--text": {"required": True, "help": "the text that the models read"},
    "--text-pair": {"metavar": "TEXT", "help": "the second text of a pair"},
    "files": {"type": Path, "nargs": "+", "help": "numbers of `lra bench --write` (.json)"},
    "runs": {"type": Path, "nargs": "+", "help": "folders of runs"},
    "folder": {"type": Path, "help": "folder of the run (channels: or model)"},
    "folders": {
        "type": Path,
        "nargs": "+",
        "metavar": "model",
        "help": "folder written by lra convert or save_pretrained",
    },
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Draws figures as PNG and PDF."
    parser.add_argument("--runs", help="draw the tables of these runs, as lra table shows them")
    parser.add_argument("--vary", nargs="+", default=[], metavar="SETTING", help="as in lra table")
    parser.set_defaults(
        run=_run,
        draw="tables.draw_runs",
        task=[],
        attention=[],
        effects=False,
        rungs=False,
        results=Path("results"),
    )
    whats = parser.add_subparsers(dest="what", metavar="what")
    for what, (draw, about, arguments) in FIGURES.items():
        figure = whats.add_parser(what, help=about)
        figure.set_defaults(draw=draw)
        for name in arguments:
            figure.add_argument(name, **ARGUMENTS[name])
    for each in (parser, *whats.choices.values()):
        each.add_argument("--out", type=Path, default="figures", help="folder (default: figures)")
    whats.choices["records"].set_defaults(out=None)  # that of the results


def _run(arguments: argparse.Namespace) -> None:
    if not (arguments.what or arguments.runs):
        raise UserError("name what to draw (lra figures --help), or runs: lra figures --runs runs")
    module, _, draw = arguments.draw.partition(".")
    for path in getattr(import_module(f"lra.figures.{module}"), draw)(arguments):
        print(path)
