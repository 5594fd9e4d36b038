"""Style, saving, names beside lines, and figures of benchmarks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lra import looks
from lra.bench.result import BenchResult, BenchRow
from lra.figures import schemes, style
from lra.figures.bench import draw_bench
from lra.figures.style import spread
from lra.looks import family_of, members

from .conftest import Figure


def test_files_are_the_same_every_time(tmp_path: Path):
    def once(name: str) -> list[bytes]:
        def fill(figure: Figure) -> None:
            figure.subplots().plot([1, 2])

        paths = style.save_figure(
            tmp_path / name, fill, "$T\nnote", height=2, size=style.Size(2, 9)
        )
        assert [path.suffix for path in paths] == [".png", ".pdf"]
        return [path.read_bytes() for path in paths]

    assert once("a") == once("b")


def colours_of(png: Path) -> set[str]:
    """Every colour of a picture, as #rrggbb."""
    with Image.open(png) as image:
        pixels = np.asarray(image.convert("RGB"), dtype=np.int32)
    there = np.zeros(2**24, dtype=bool)  # marking takes a tenth of the time of sorting
    there[pixels @ np.array([2**16, 2**8, 1], dtype=np.int32)] = True
    return {f"#{colour:06x}" for colour in np.flatnonzero(there)}


def test_a_picture_keeps_the_colour_of_every_method(tmp_path: Path):
    """Small markers among much text and bands: from a palette they would get other colours."""
    methods = ["luna", "softmax", "linear", "hedgehog", "nystrom", "gla", "s4d", "uniform"]
    looks = [style.style_of(method) for method in methods]

    def fill(figure: Figure) -> None:
        axes = figure.subplots()
        for i, look in enumerate(looks):
            axes.plot([i], [i], marker=look["marker"], color=look["color"], ms=3, ls="")
            axes.fill_between([0, 8], i, i + 3, color=look["color"], alpha=0.05 + i / 20)
            axes.text(
                i, 2, "the names of methods\n" * 5, color=look["color"], alpha=0.5, size=5 + i
            )

    png, _ = style.save_figure(tmp_path / "a", fill, "Title", height=4)
    missing = {
        m for m, look in zip(methods, looks, strict=True) if look["color"] not in colours_of(png)
    }
    assert not missing


def test_a_picture_of_a_page_has_a_dark_file(tmp_path: Path):
    """The same picture in the colours of a dark page; a photograph stays as it is."""
    photograph = np.full((4, 4, 3), (10, 200, 30), dtype=np.uint8)

    def fill(figure: Figure) -> None:
        points, image, scale = figure.subplots(3)
        points.plot([1, 2], color=looks.LUNA, lw=4)
        points.axvspan(0, 0.5, color=schemes.BAND, lw=0)
        points.annotate("a", (0, 1), bbox={"fc": looks.ORANGE})
        image.imshow(photograph)
        scale.imshow([[0, 1]], cmap="gray")

    light, dark, _ = style.save_figure(tmp_path / "a", fill, "Title", height=4, size=style.PHONE)
    assert [light.name, dark.name] == ["a-light.png", "a-dark.png"]
    there, instead = colours_of(light), colours_of(dark)
    for colour in (looks.LUNA, looks.ORANGE, schemes.BAND, "#ffffff"):
        assert colour in there - instead
        assert schemes.DARK[colour] in instead - there
    assert "#0ac81e" in there & instead
    with Image.open(light) as image, Image.open(dark) as other:
        assert image.size == other.size
        assert image.mode == other.mode == "P"
        brightness = [np.asarray(i.convert("L"), dtype=int) for i in (image, other)]
    ink = brightness[0] < 50
    assert (brightness[1][ink] > 150).mean() > 0.9, "letters are bright"


def test_shades_turn_from_light_to_dark():
    greys = np.repeat(np.linspace(0, 1, 5)[:, None], 4, axis=1)
    turned = schemes.turned(greys)
    assert (np.diff(turned[:, 1]) < 0).all()
    np.testing.assert_array_equal(turned[:, 3], greys[:, 3])
    ends = [[int(end[i : i + 2], 16) / 255 for i in (1, 3, 5)] for end in ("#0d1117", "#e6edf3")]
    np.testing.assert_allclose(turned[[-1, 0], :3], ends, atol=0.03)


def test_lines_of_one_colour_differ_in_their_dashes():
    """Where dashes come again, markers differ; where they do not, the line has no look."""
    luna = [style.style_of("luna")] * 8
    assert [look is None for look in style.dashed(luna)] == [False] * 6 + [True] * 2
    family = [style.style_of(method) for method in members(family_of("linear"))]
    assert len(family) > len(style.DASHES)
    looks = style.dashed([*family, *luna[:2], style.style_of("softmax")])
    drawn = [(look["color"], look["marker"], look["linestyle"]) for look in looks if look]
    assert len(set(drawn)) == len(looks)
    assert [look["linestyle"] for look in looks if look][-3:] == [*style.DASHES[:2], "-"]


def test_labels_are_apart_and_in_order():
    places = [0.1, 0.5, 0.5, 0.505, 0.9]
    moved = spread(places, 0.02)
    assert min(b - a for a, b in pairwise(moved)) >= 0.02 - 1e-12
    assert (moved[0], moved[-1]) == (pytest.approx(0.1), pytest.approx(0.9))
    assert sum(moved[1:4]) == pytest.approx(sum(places[1:4]))
    assert spread([0.0, 0.0, 1.0, 1.0], 0.2) == pytest.approx([0, 0.2, 0.8, 1])
    assert spread([0.0, 0.0, 0.0], 0.2, [1, 2, 1]) == pytest.approx([0, 0.3, 0.6])  # two lines


def test_benchmarks_are_drawn_with_their_ranges(tmp_path: Path, drawn: list[Figure]):
    rows = [
        BenchRow(group="g", case=case, n=n, measure="forward_seconds", values=[k, 2 * k, 4 * k])
        for case, k in (("luna", 1e-3), ("softmax, fused", 2e-3))
        for n in (16, 32, 64, 128)
        if case == "luna" or n < 128
    ]
    rows += [
        BenchRow(group="g", case="softmax, fused", n=128, measure="any", stopped="> 4 s"),
        BenchRow(group="step", case="luna", n=16, measure="seconds", values=[0.003, 0.004]),
        BenchRow(group="step", case="luna", n=16, measure="flops", values=[1.0]),
    ]
    machine = {"device": "cpu", "threads": 1}
    result = BenchResult(facts={"title": "T", "date": "today", "machine": machine}, rows=rows)
    draw_bench(result, tmp_path / "b")
    lines, dots = (axes for axes in drawn[0].axes if axes.axison)
    data, _, (bars,) = lines.containers[0]
    assert list(data.get_ydata()) == pytest.approx([2] * 4)
    assert bars.get_segments()[0][:, 1].tolist() == pytest.approx([1, 4])
    (cross,) = (line for line in lines.get_lines() if line.get_marker() == "x")
    assert (cross.get_xdata()[0], cross.get_ydata()[0]) == (64, pytest.approx(4))
    assert {text.get_text() for text in lines.texts} == {"LUNA", "Softmax, fused"}
    assert dots.containers[0][0].get_xdata() == pytest.approx([3.5])
    assert [text.get_text() for text in dots.texts] == ["3.5"]


def test_a_benchmark_that_needs_no_memory_is_drawn(tmp_path: Path, drawn: list[Figure]):
    rows = [BenchRow(group="g", case="a", n=16, measure="forward_bytes", values=[0.0])]
    machine = {"device": "cpu", "threads": 1}
    result = BenchResult(facts={"title": "T", "date": "today", "machine": machine}, rows=rows)
    draw_bench(result, tmp_path / "b")
    assert drawn[0].axes[0].get_xlim()[0] == 0
