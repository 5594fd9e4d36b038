"""The command line of `lra figures`: a function of the module of the figure writes it."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
from typing import Any

from lra.base.config import UserError


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "figures",
        help="draw figures of records, benchmarks, trained runs or converted models",
        description="Draws figures as PNG and PDF (tokens: as an HTML page, too).",
    )
    parser.add_argument("--runs", help="draw the tables of these runs, as lra table shows them")
    parser.add_argument("--vary", nargs="+", default=[], metavar="SETTING", help="as in lra table")
    parser.add_argument("--out", type=Path, default="figures", help="folder (default: figures)")
    parser.set_defaults(run=_run, draw="tables.draw_runs", task=[], attention=[], effects=False)
    whats = parser.add_subparsers(dest="what", metavar="what")

    def add(what: str, about: str, draw: str, out: str | None = "figures") -> Any:
        figure = whats.add_parser(what, help=about)
        figure.set_defaults(draw=draw)
        figure.add_argument("--out", type=Path, default=out, help=f"folder (default: {out})")
        return figure

    records = add("records", "scores, cost, curves and effects of tables", "tables.draw", None)
    records.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    rules = add("rules", "rules beside published and measured ListOps", "rules.draw_rules")
    rules.add_argument("--results", type=Path, default=Path("results"), help="default: results")
    scaling = add("scaling", "pictures of lra bench, drawn again", "bench.draw", None)
    scaling.add_argument("files", type=Path, nargs="+", help="results/bench/attention-*.json")
    channels = add("channels", "psi of a run or a converted model", "runs.draw_channels")
    texts = "for a converted model: one text per line, a tab separates a pair"
    channels.add_argument("--texts", type=Path, metavar="FILE", help=texts)
    maps = add("maps", "attention of any trained run on one example", "runs.draw_maps")
    maps.add_argument("--example", type=int, default=0, help="number in the test split (default 0)")
    for figure in (channels, maps):
        figure.add_argument("folder", type=Path, help="folder of the run (channels: or model)")
        figure.add_argument("--data-dir", type=Path, default="data", help="prepared data")
    tokens = add(
        "tokens",
        "attention of [CLS] to words, in softmax and in converted models",
        "students.draw_tokens",
    )
    tokens.add_argument("--text", required=True, help="the text that the models read")
    tokens.add_argument("--text-pair", metavar="TEXT", help="the second text of a pair")
    written = "folder written by lra convert or save_pretrained"
    tokens.add_argument("folders", type=Path, nargs="+", metavar="model", help=written)
    tokens.add_argument("--teacher", type=Path, required=True, help="the softmax model's")
    tokens.add_argument("--layer", type=int, default=-1, help="from 0 (default: the last)")
    curves = add(
        "distillation", "KL of every layer in stage 1 of conversions", "students.draw_distillation"
    )
    curves.add_argument("runs", type=Path, nargs="+", help="result.json, or folders to search")


def _run(arguments: argparse.Namespace) -> None:
    if not (arguments.what or arguments.runs):
        raise UserError("name what to draw (lra figures --help), or runs: lra figures --runs runs")
    module, _, draw = arguments.draw.partition(".")
    for path in getattr(import_module(f"lra.figures.{module}"), draw)(arguments):
        print(path)
