"""`lra figures`: of records (records.py), of benchmarks, of one trained run (channels,
maps), or of converted models (tokens, patches, distillation, and channels again)."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "figures",
        help="PNG and SVG figures, of records, of benchmarks, or of one run",
        description="Figures as PNG and SVG (tokens: as a page, too).",
    )
    parser.add_argument("--pdf", action="store_true", help="as PDF too: lra figures --pdf records")
    parser.set_defaults(run=_run)
    what = parser.add_subparsers(dest="what", required=True, metavar="what")
    records = what.add_parser("records", help="accuracy against M, L and compute; training curves")
    records.add_argument("--results", default="results", help="results folder (default: results)")
    records.set_defaults(draw=_draw_records)

    scaling = what.add_parser(
        "scaling", help="time and memory against n, and other pictures of lra bench, drawn again"
    )
    scaling.add_argument("files", type=Path, nargs="+", help="results/bench/attention-*.json")
    scaling.add_argument("--out", type=Path, help="folder; beside each file if not given")
    scaling.set_defaults(draw=_draw_benches)

    shown = what.add_parser(
        "channels", help="the functions psi that luna learned, in a run or a conversion"
    )
    _of_a_run(shown)
    shown.add_argument(
        "--layout",
        choices=["grid", "overlay"],
        default="grid",
        help="a panel for every channel (default), or one for every layer",
    )
    shown.add_argument(
        "--examples", type=int, default=64, help="how many dev examples u is taken from (64)"
    )
    of = shown.add_argument_group("where the folder is a converted model's, u is taken from")
    of.add_argument("--text", action="append", default=[], help="a text (may be repeated)")
    of.add_argument("--texts", type=Path, metavar="FILE", help="a text a line, a tab in a pair")
    of.add_argument(
        "--image", type=Path, action="append", default=[], help="an image file (may be repeated)"
    )
    shown.set_defaults(draw=_draw_channels)

    maps = what.add_parser("maps", help="rows of the attention matrix of any run on an example")
    _of_a_run(maps)
    maps.add_argument("--example", type=int, default=0, help="its number in the test split (0)")
    maps.set_defaults(draw=_draw_maps)

    tokens = what.add_parser(
        "tokens", help="[CLS] over the words of a text: converted models beside softmax"
    )
    _of_students(tokens)
    tokens.add_argument("--text", required=True, help="what the models read")
    tokens.add_argument("--text-pair", metavar="TEXT", help="the second text of a pair")
    tokens.set_defaults(draw=_draw_tokens)

    patches = what.add_parser(
        "patches", help="[CLS] over an image's patches: converted models beside softmax"
    )
    _of_students(patches)
    patches.add_argument("--image", type=Path, required=True, help="an image file")
    patches.set_defaults(draw=_draw_patches)

    curves = what.add_parser(
        "distillation", help="the KL of every layer while a conversion fits its maps"
    )
    curves.add_argument("runs", type=Path, nargs="+", help="folders (searched) or result.json")
    _to(curves)
    curves.set_defaults(draw=_draw_distillation)


def _run(arguments: Any) -> None:
    from lra.figures.draw import also_pdf

    with also_pdf() if arguments.pdf else contextlib.nullcontext():
        arguments.draw(arguments)


def _of_a_run(parser: Any) -> None:
    parser.add_argument("folder", type=Path, help="the run's folder")
    parser.add_argument("--data-dir", type=Path, default=Path("data"), help="(default: data)")
    _to(parser)


def _of_students(parser: Any) -> None:
    parser.add_argument(
        "folders",
        type=Path,
        nargs="+",
        metavar="model",
        help="folders of lra convert or save_pretrained",
    )
    parser.add_argument(
        "--teacher", type=Path, help="the softmax model; else softmax in the first model's weights"
    )
    parser.add_argument("--layer", type=int, default=-1, help="from 0; the last unless given")
    parser.add_argument("--head", type=int, help="one head; else the mean over heads")
    _to(parser)


def _to(parser: Any) -> None:
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder (figures)")
    parser.add_argument("--name", help="of the files, without ending; else from what is drawn")


def _stem(arguments: Any, default: str) -> Path:
    return arguments.out / (arguments.name or default)


def _draw_records(arguments: Any) -> None:
    from lra.figures.records import write
    from lra.report.commands import tables_of

    results = Path(arguments.results)
    _tell(write([t for t in tables_of(results) if t.timed], results / "figures"))


def _draw_benches(arguments: Any) -> None:
    from lra.figures.benches import redraw

    _tell(redraw(arguments.files, arguments.out))


def _draw_channels(arguments: Any) -> None:
    from lra.figures.channels import channels, draw_channels, of_student
    from lra.figures.students import examples, is_converted, open_students
    from lra.figures.trained import restore

    if is_converted(arguments.folder):
        (student,) = open_students([arguments.folder])
        batches = examples(student, arguments.text, arguments.texts, arguments.image)
        layers, title, stem = of_student(student, batches), student.title, student.stem
    else:
        trained = restore(arguments.folder, arguments.data_dir)
        layers = channels(trained, examples=arguments.examples)
        title, stem = trained.title, trained.stem
    place = _stem(arguments, f"channels-{stem}-{arguments.layout}")
    _tell(draw_channels(layers, title, place, layout=arguments.layout))


def _draw_maps(arguments: Any) -> None:
    from lra.figures.maps import attention_maps, draw_maps
    from lra.figures.trained import restore

    trained = restore(arguments.folder, arguments.data_dir)
    maps = attention_maps(trained, arguments.example)
    stem = _stem(arguments, f"maps-{trained.stem}-example-{arguments.example}")
    title = f"{trained.name}; test example {arguments.example}, {maps.query}\n{trained.conditions}"
    _tell(draw_maps(trained, maps, title, stem))


def _draw_tokens(arguments: Any) -> None:
    from lra.figures import tokens

    a = arguments
    shown = tokens.cls_to_tokens(
        a.folders, a.text, a.text_pair, teacher=a.teacher, layer=a.layer, head=a.head
    )
    stem = _stem(a, f"tokens-{_slug(a.text)}-{_where(shown.what)}")
    _tell(tokens.draw(shown, stem))


def _draw_patches(arguments: Any) -> None:
    from lra.figures import patches

    a = arguments
    shown = patches.cls_to_patches(
        a.folders, a.image, teacher=a.teacher, layer=a.layer, head=a.head
    )
    stem = _stem(a, f"patches-{_slug(a.image.stem)}-{_where(shown.what)}")
    _tell(patches.draw(shown, f"[CLS] over patches of {a.image.name}", stem))


def _draw_distillation(arguments: Any) -> None:
    from lra.figures import distillation

    shown = distillation.lines(arguments.runs)
    methods = "-".join(dict.fromkeys(line.attention for line in shown))
    _tell(distillation.draw(shown, _stem(arguments, f"distillation-{methods}")))


def _where(what: str) -> str:
    return _slug(what.partition(", mean")[0])  # the mean over heads is what one expects


def _slug(text: str) -> str:
    """The first words, fit for a file name."""
    return "-".join(re.findall(r"\w+", text.lower())[:5])[:60] or "text"


def _tell(paths: list[Path]) -> None:
    for path in paths:
        print(path)
