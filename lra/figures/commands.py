"""The command line of `lra figures`."""

from __future__ import annotations

import argparse
import contextlib
import re
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "figures",
        help="draw figures of records, benchmarks, trained runs or converted models",
        description="Draws figures as PNG and SVG (tokens: as an HTML page, too).",
    )
    parser.add_argument("--pdf", action="store_true", help="as PDF too: lra figures --pdf records")
    parser.set_defaults(run=_run)
    what = parser.add_subparsers(dest="what", required=True, metavar="what")
    records = what.add_parser("records", help="accuracy against M, L and compute; training curves")
    records.add_argument("--results", default="results", help="results folder (default: results)")
    records.set_defaults(draw=_draw_records)

    scaling = what.add_parser(
        "scaling", help="pictures of lra bench, such as time and memory by length, drawn again"
    )
    scaling.add_argument("files", type=Path, nargs="+", help="results/bench/attention-*.json")
    scaling.add_argument("--out", type=Path, help="folder (default: that of each file)")
    scaling.set_defaults(draw=_draw_benches)

    channels = what.add_parser(
        "channels", help="the functions psi that luna learned, in a run or a converted model"
    )
    _add_run(channels)
    channels.add_argument(
        "--layout",
        choices=["grid", "overlay"],
        default="grid",
        help="one panel per channel (default), or one per layer",
    )
    channels.add_argument(
        "--examples", type=int, default=64, help="dev examples that u is taken from (default: 64)"
    )
    shown = channels.add_argument_group("inputs that u is taken from, for a converted model")
    shown.add_argument("--text", action="append", default=[], help="a text (may be repeated)")
    shown.add_argument(
        "--texts", type=Path, metavar="FILE", help="one text per line; a tab separates a pair"
    )
    shown.add_argument(
        "--image", type=Path, action="append", default=[], help="an image file (may be repeated)"
    )
    channels.set_defaults(draw=_draw_channels)

    maps = what.add_parser("maps", help="attention of any trained run on one example")
    _add_run(maps)
    maps.add_argument("--example", type=int, default=0, help="number in the test split (default 0)")
    maps.set_defaults(draw=_draw_maps)

    tokens = what.add_parser(
        "tokens", help="attention of [CLS] to the words of a text: softmax and converted models"
    )
    _add_students(tokens)
    tokens.add_argument("--text", required=True, help="the text that the models read")
    tokens.add_argument("--text-pair", metavar="TEXT", help="the second text of a pair")
    tokens.set_defaults(draw=_draw_tokens)

    patches = what.add_parser(
        "patches", help="attention of [CLS] to patches of an image: softmax and converted models"
    )
    _add_students(patches)
    patches.add_argument("--image", type=Path, required=True, help="an image file")
    patches.set_defaults(draw=_draw_patches)

    curves = what.add_parser("distillation", help="KL of every layer during stage 1 of conversions")
    curves.add_argument("runs", type=Path, nargs="+", help="result.json, or folders to search")
    _add_target(curves)
    curves.set_defaults(draw=_draw_distillation)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=Path, help="folder of the run, for channels also of a converted model"
    )
    parser.add_argument(
        "--data-dir", type=Path, default=Path("data"), help="prepared data (default: data)"
    )
    _add_target(parser)


def _add_students(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folders", type=Path, nargs="+", metavar="model",
        help="folders written by lra convert or save_pretrained",
    )  # fmt: skip
    parser.add_argument(
        "--teacher",
        type=Path,
        help="folder of the softmax model (default: softmax with the weights of the first model)",
    )
    parser.add_argument("--layer", type=int, default=-1, help="counted from 0 (default: the last)")
    parser.add_argument("--head", type=int, help="one head (default: the mean over heads)")
    _add_target(parser)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("figures"), help="target folder (default: figures)"
    )
    parser.add_argument("--name", help="name of the files, without ending")


def _run(arguments: argparse.Namespace) -> None:
    from lra.figures.draw import also_pdf

    with also_pdf() if arguments.pdf else contextlib.nullcontext():
        for path in arguments.draw(arguments):
            print(path)


def _stem(arguments: argparse.Namespace, default: str) -> Path:
    return arguments.out / (arguments.name or default)


def _draw_records(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures.records import write_figures
    from lra.report.commands import tables_of

    results = Path(arguments.results)
    return write_figures([t for t in tables_of(results) if t.timed], results / "figures")


def _draw_benches(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures.bench import redraw

    return redraw(arguments.files, arguments.out)


def _draw_channels(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures import channels
    from lra.figures.students import examples, is_converted, open_students
    from lra.figures.trained import stem as stem_of
    from lra.figures.trained import title as title_of
    from lra.results.bundle import open_network

    if is_converted(arguments.folder):
        (model,) = open_students([arguments.folder])
        batches = examples(model, arguments.text, arguments.texts, arguments.image)
        layers, name, title = channels.of_student(model, batches), model.stem, model.title
    else:
        run = open_network(arguments.folder, data_dir=arguments.data_dir)
        layers = channels.of_run(run, examples=arguments.examples)
        name, title = stem_of(run), title_of(run)
    stem = _stem(arguments, f"channels-{name}-{arguments.layout}")
    return channels.draw_channels(layers, title, stem, layout=arguments.layout)


def _draw_maps(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures import maps
    from lra.figures.trained import conditions, name
    from lra.figures.trained import stem as stem_of
    from lra.results.bundle import open_network

    run = open_network(arguments.folder, data_dir=arguments.data_dir)
    rows = maps.attention_rows(run, arguments.example)
    title = f"{name(run)}; test example {arguments.example}, {rows.query}\n{conditions(run)}"
    stem = _stem(arguments, f"maps-{stem_of(run)}-example-{arguments.example}")
    return maps.draw_maps(run, rows, title, stem)


def _draw_tokens(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures import tokens

    a = arguments
    shown = tokens.cls_to_words(
        a.folders, a.text, a.text_pair, teacher=a.teacher, layer=a.layer, head=a.head
    )
    return tokens.draw_tokens(shown, _stem(a, f"tokens-{_slug(a.text)}-{_where(shown.what)}"))


def _draw_patches(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures import patches

    a = arguments
    shown = patches.cls_to_patches(
        a.folders, a.image, teacher=a.teacher, layer=a.layer, head=a.head
    )
    stem = _stem(a, f"patches-{_slug(a.image.stem)}-{_where(shown.what)}")
    return patches.draw_patches(shown, f"Attention of [CLS] to the patches of {a.image.name}", stem)


def _draw_distillation(arguments: argparse.Namespace) -> list[Path]:
    from lra.figures import distillation

    curves = distillation.curves(arguments.runs)
    methods = "-".join(dict.fromkeys(curve.attention for curve in curves))
    return distillation.draw_distillation(curves, _stem(arguments, f"distillation-{methods}"))


def _where(what: str) -> str:
    """Layer and head for a file name; the mean over heads, the default, is left out."""
    return _slug(what.partition(", mean")[0])


def _slug(text: str) -> str:
    return "-".join(re.findall(r"\w+", text.lower())[:5])[:60] or "text"
