"""The sheet of pictures: pictures beside each other, and what a command prints into a terminal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from PIL import Image

from scripts import sheet
from tests.lra.report.browser import available, browser


def test_pictures_stand_in_rows_that_wrap(tmp_path: Path):
    files = []
    for i, colour in enumerate(("#ff0000", "#00ff00", "#0000ff")):
        files.append(tmp_path / f"{i}.png")
        Image.new("RGB", (40, 10 + i), colour).save(files[-1])
    sheet.together([files], tmp_path / "all.png", 110)
    both = Image.open(tmp_path / "all.png")
    assert both.size == (110, 11 + 40 + 12)
    assert [both.getpixel(at) for at in ((0, 0), (60, 0), (0, 51))] == [
        (255, 0, 0),
        (0, 255, 0),
        (0, 0, 255),
    ]


def test_a_command_prints_as_into_a_terminal_of_80_columns():
    code = "import os,sys;print(os.get_terminal_size(),sys.stdout.isatty())"
    lines = sheet.printed(f"{sys.executable} -c '{code}'").splitlines()
    assert lines == ["os.terminal_size(columns=80, lines=24) True"]


@pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")
def test_a_picture_has_the_width_and_the_colours_that_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sheet, "OUT", tmp_path)
    page = tmp_path / "page.html"
    style = "html { color-scheme: light dark; background: light-dark(white, black) }"
    page.write_text(f"<meta name=viewport content='width=device-width'><style>{style}</style>")
    with browser() as window:
        files = sheet.four(window, page, "shot")
    seen = {file.name: Image.open(file).convert("RGB") for file in files}
    assert {
        name: (picture.width, picture.getpixel((0, 0))[0]) for name, picture in seen.items()
    } == {
        "shot-1280.png": (1280, 255),
        "shot-1280-dark.png": (1280, 0),
        "shot-375.png": (375, 255),
        "shot-375-dark.png": (375, 0),
    }
