"""The page: its numbers are those of the frame, and what it does in a real browser."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lra.report.cell import all_of
from lra.report.page import page

from ..synthetic import table, write_run
from .browser import Browser, available

NASTY = "</script><script>hit = 1</script><img src=x onerror=hit=1>\"'&lt;b>"
ACCURACY = {"luna": 0.5, "linear": 0.45, "softmax": 0.4}
HEADS = ["attention", "listops %", "image %", "average", "tasks"]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tables: three attentions on two tasks, with published values; one seed, and markup."""
    folder = tmp_path_factory.mktemp("page")
    for task in ("listops", "image"):
        for name, accuracy in ACCURACY.items():
            for seed in (1, 2, 3) if (name, task) != ("softmax", "image") else ():
                write_run(
                    folder / "a",
                    name,
                    accuracy + seed / 100,
                    task=task,
                    seed=seed,
                    command=f"lra train attention={name} seed={seed}",
                )
    write_run(folder / "b", "luna", 0.4, command=NASTY, options={"kernel": NASTY})
    tables = [
        table(folder / "a", name="first", published="lra", caveat="Not the benchmark."),
        table(folder / "b", name="second", title=NASTY, caveat=NASTY),
    ]
    (folder / "index.html").write_text(page(tables, folder), encoding="utf-8")
    return folder / "index.html"


def test_the_numbers_are_those_of_the_frame(file: Path):
    text = file.read_text(encoding="utf-8")
    cells = re.findall(r'data-order="([\d.]+)"><button[^>]*>([^<]+)', text)
    frame = table(file.parent / "a").cells
    scores = [score for score, _ in cells[:-1]]  # the last is of the second table
    assert sorted(map(float, scores)) == pytest.approx(sorted(frame["score"]), abs=1e-4)
    assert {t.rstrip(" ↓") for _, t in cells[:-1]} == set(all_of(frame, "text"))
    assert 'aria-label="47.0 plus minus 1.0, 3 seeds, shown to be worse"' in text


def test_text_of_records_is_escaped(file: Path):
    text = file.read_text(encoding="utf-8")
    assert "<img src=x" not in text
    assert (text.count("<script>"), text.count("</script>")) == (6, 7)  # one holds data
    assert NASTY in html.unescape(text)


chromium = pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")


@pytest.fixture
def shown(window: Browser, file: Path) -> Iterator[Browser]:
    """The page freshly opened; afterwards nothing was logged and nothing else asked for."""
    window.open("about:blank")
    window.console(), window.requests()
    window.open(file.as_uri())
    yield window
    assert window.console() == []
    assert {u for u in window.requests() if not u.startswith("data:")} == {file.as_uri()}


@chromium
def test_sorting_filtering_and_choosing_a_task(shown: Browser):
    def rows() -> list[str]:
        return shown.texts("section:not([hidden]) .main tbody th")

    assert shown.texts("#first .main thead th") == HEADS
    assert rows() == ["linear", "luna", "softmax"]
    shown.run("document.querySelector('#first .main th:nth-child(2) .dt-column-order').focus()")
    for direction, names in (("de", "luna linear softmax"), ("a", "softmax linear luna")):
        shown.press("Enter")
        shown.wait(f"return document.querySelector('#first [aria-sort={direction}scending]')")
        assert rows() == names.split()
    assert (
        shown.texts("#figure .label text")
        == ["LUNA as published", "Linear attention", "Softmax"][::-1]
    ), "in the order of the table"
    shown.type("#find", "lun")
    assert rows() == ["luna"]
    shown.run("choose_task = find('#task'); choose_task.value = '0'")
    shown.run("choose_task.dispatchEvent(new Event('input'))")
    assert shown.texts("#first .main thead th") == [*HEADS[:2], *HEADS[3:]]
    assert "Beside the published numbers" in shown.texts("#first .scroll caption")[-1]


@chromium
def test_a_score_tells_its_runs(shown: Browser):
    shown.run("document.querySelector('#first .main th:last-child .dt-column-order').focus()")
    shown.press("Tab")
    assert shown.texts("#tip code") == ["lra train attention=linear seed=1"]
    shown.press("Down")
    assert "seed 1: 51.00, seed 2: 52.00, seed 3: 53.00, best mean" in shown.texts("#tip p")
    shown.press("Escape")
    assert shown.run("return document.getElementById('tip').hidden")


@chromium
def test_an_address_opens_its_table_as_text(shown: Browser):
    shown.run("location.hash = 'second'")
    shown.wait("return document.getElementById('first').hidden")
    assert shown.texts("#second h2, #second .caveat") == [NASTY, NASTY]
    shown.run("document.querySelector('#second td button').focus()")
    assert NASTY in shown.texts("#tip code")
    assert shown.run("return [typeof hit, document.images.length]") == ["undefined", 0]


@chromium
def test_a_phone_at_night(shown: Browser):
    colours = []
    for scheme in ("light", "dark"):
        media = {"name": "prefers-color-scheme", "value": scheme}
        shown.emulate("Emulation.setEmulatedMedia", features=[media])
        colours.append(shown.run("return getComputedStyle(document.body).backgroundColor"))
    assert colours == ["rgb(252, 252, 250)", "rgb(21, 24, 28)"]
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    shown.emulate("Emulation.setDeviceMetricsOverride", **size)
    wide = "return document.querySelector(arguments[0]).scrollWidth"
    assert shown.run(wide, "html") == 375 < shown.run(wide, ".dt-layout-table")
    shown.emulate("Emulation.clearDeviceMetricsOverride")
