"""`lra figures`: of records (lra/report/figures.py), or of one trained run: channels, maps."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("figures", help="PNG and SVG figures, of records or of one run")
    what = parser.add_subparsers(dest="what", required=True, metavar="what")
    records = what.add_parser("records", help="accuracy against M, L and compute; training curves")
    records.add_argument("--results", default="results", help="results folder (default: results)")
    records.set_defaults(run=_draw_records)

    shown = what.add_parser("channels", help="the learned functions of a luna run, over u")
    _of_a_run(shown)
    shown.add_argument("--layout", choices=["grid", "overlay"], default="grid")
    shown.add_argument("--examples", type=int, default=64, help="dev examples u is taken from")
    shown.set_defaults(run=_draw_channels)

    maps = what.add_parser("maps", help="rows of the attention matrix of any run on an example")
    _of_a_run(maps)
    maps.add_argument("--example", type=int, default=0, help="its number in the test split")
    maps.set_defaults(run=_draw_maps)


def _of_a_run(parser: Any) -> None:
    parser.add_argument("folder", type=Path, help="the run: a folder with config.yaml")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder (figures)")


def _draw_records(arguments: Any) -> None:
    from lra.report.commands import draw

    _tell(draw(Path(arguments.results)))


def _draw_channels(arguments: Any) -> None:
    from lra.figures.channels import channels, draw_channels
    from lra.figures.trained import restore

    trained = restore(arguments.folder, arguments.data_dir)
    layers = channels(trained, examples=arguments.examples)
    stem = arguments.out / f"channels-{trained.stem}-{arguments.layout}"
    _tell(draw_channels(layers, trained.title, stem, layout=arguments.layout))


def _draw_maps(arguments: Any) -> None:
    from lra.figures.maps import attention_maps, draw_maps
    from lra.figures.trained import restore

    trained = restore(arguments.folder, arguments.data_dir)
    maps = attention_maps(trained, arguments.example)
    stem = arguments.out / f"maps-{trained.stem}-example-{arguments.example}"
    title = f"{trained.title}; test example {arguments.example}"
    _tell(draw_maps(trained, maps, title, stem))


def _tell(paths: list[Path]) -> None:
    for path in paths:
        print(path)
