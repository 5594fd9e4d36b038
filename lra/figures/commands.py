"""The command line of `lra figures`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "figures",
        help="draw figures of records, benchmarks, trained runs or converted models",
        description="Draws figures as PNG and PDF (tokens: as an HTML page, too).",
    )
    parser.set_defaults(run=_run)
    what = parser.add_subparsers(dest="what", required=True, metavar="what")

    def add(name: str, draw: Any, about: str, *, out: Path | None = Path("figures")) -> Any:
        figure = what.add_parser(name, help=about)
        figure.set_defaults(draw=draw)
        if name != "records":
            figure.add_argument("--out", type=Path, default=out, help="folder of the figures")
        return figure

    records = add("records", _records, "accuracy against M, L and compute; training curves")
    records.add_argument("--results", default="results", help="results folder (default: results)")
    scaling = add("scaling", _scaling, "pictures of lra bench, drawn again", out=None)
    scaling.add_argument("files", type=Path, nargs="+", help="results/bench/attention-*.json")
    channels = add("channels", _channels, "the functions psi of a run or a converted model")
    channels.add_argument("--texts", type=Path, metavar="FILE",
                          help="of a converted model: one text per line; a tab separates a pair")  # fmt: skip
    maps = add("maps", _maps, "attention of any trained run on one example")
    maps.add_argument("--example", type=int, default=0, help="number in the test split (default 0)")
    for figure in (channels, maps):
        figure.add_argument("folder", type=Path, help="folder of the run (channels: or model)")
        figure.add_argument("--data-dir", type=Path, default=Path("data"), help="prepared data")
    tokens = add("tokens", _tokens, "attention of [CLS] to words, softmax and converted models")
    tokens.add_argument("--text", required=True, help="the text that the models read")
    tokens.add_argument("--text-pair", metavar="TEXT", help="the second text of a pair")
    patches = add("patches", _patches, "attention of [CLS] to the patches of an image")
    patches.add_argument("--image", type=Path, required=True, help="an image file")
    for figure in (tokens, patches):
        figure.add_argument("folders", type=Path, nargs="+", metavar="model",
                            help="folders written by lra convert or save_pretrained")  # fmt: skip
        figure.add_argument("--teacher", type=Path, required=True, help="that of the softmax model")
        figure.add_argument("--layer", type=int, default=-1, help="from 0 (default: the last)")
    curves = add("distillation", _distillation, "KL of every layer in stage 1 of conversions")
    curves.add_argument("runs", type=Path, nargs="+", help="result.json, or folders to search")


def _run(a: argparse.Namespace) -> None:
    for path in a.draw(a):
        print(path)


def _records(a: argparse.Namespace) -> list[Path]:
    from lra.figures.records import write_figures
    from lra.report.commands import tables_of

    results = Path(a.results)
    return write_figures([t for t in tables_of(results) if t.timed], results / "figures")


def _scaling(a: argparse.Namespace) -> list[Path]:
    from lra.bench.result import BenchResult
    from lra.figures.bench import draw

    drawn = [draw(BenchResult.load(f), (a.out or f.parent) / f.stem) for f in a.files]
    return [path for paths in drawn for path in paths]


def _channels(a: argparse.Namespace) -> list[Path]:
    from lra.figures import channels
    from lra.figures.students import is_converted, open_students, text_batches
    from lra.figures.style import in_words
    from lra.figures.trained import title_of
    from lra.results.bundle import open_network

    stem = a.out / f"channels-{_name(a.folder)}"
    if not is_converted(a.folder):
        run = open_network(a.folder, data_dir=a.data_dir)
        return channels.draw_channels(channels.of_run(run), title_of(run), stem)
    (model,) = open_students([a.folder])
    layers = channels.of_student(model, text_batches(model, a.texts))
    title = f"{type(model.model).__name__}, {model.label}, {in_words(model.block['options'])}"
    return channels.draw_channels(layers, f"{title}\n{model.made}".strip(), stem)


def _maps(a: argparse.Namespace) -> list[Path]:
    from lra.figures import maps
    from lra.figures.trained import title_of
    from lra.results.bundle import open_network

    run = open_network(a.folder, data_dir=a.data_dir)
    rows = maps.attention_rows(run, a.example)
    title = f"{title_of(run)}\ntest example {a.example}, {rows.query}"
    return maps.draw_maps(run, rows, title, a.out / f"maps-{_name(a.folder)}-example-{a.example}")


def _tokens(a: argparse.Namespace) -> list[Path]:
    from lra.figures import tokens

    text = tokens.cls_to_words(a.folders, a.text, a.text_pair, a.teacher, a.layer)
    return tokens.draw_tokens(text, a.out / f"tokens-{_slug(a.text)}")


def _patches(a: argparse.Namespace) -> list[Path]:
    from lra.figures import patches

    shown = patches.cls_to_patches(a.folders, a.image, a.teacher, a.layer)
    title = f"Attention of [CLS] to the patches of {a.image.name}"
    return patches.draw_patches(*shown, title, a.out / f"patches-{_slug(a.image.stem)}")


def _distillation(a: argparse.Namespace) -> list[Path]:
    from lra.figures import distillation

    records = distillation.read_conversions(a.runs)
    methods = "-".join(dict.fromkeys(record.attention for record in records))
    return distillation.draw_distillation(records, a.out / f"distillation-{methods}")


def _name(folder: Path) -> str:
    """Name a run or a model in the names of pictures: the end of its folder's path."""
    return "-".join(folder.resolve().parts[-3:])


def _slug(text: str) -> str:
    return "-".join(re.findall(r"\w+", text.lower())[:5])[:60] or "text"
