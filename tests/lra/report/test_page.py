"""The page: what is in the file, and how it behaves in a real browser."""

from __future__ import annotations

import functools
import http.server
import itertools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from lra.report.leaderboard import FIVE, build
from lra.report.page import page
from lra.report.specs import TableSpec
from lra.results import record as records

from ..synthetic import write_run
from .browser import Browser, available

NASTY = "</script><img src=x onerror=alert(1)>&<b>"
ACCURACY = {"luna": 0.5, "linear": 0.45, "softmax": 0.4}


def write(folder: Path, **more: object) -> Path:
    """Three attentions, five tasks, three seeds; softmax lacks a task; one string is markup."""
    for task in FIVE:
        for name, accuracy in ACCURACY.items():
            if (name, task) == ("softmax", "image"):
                continue
            for seed in (1, 2, 3):
                write_run(folder / "runs", name, accuracy + seed / 100, task=task, seed=seed,
                          machine__kind=NASTY, **more)  # fmt: skip
    for m in (4, 16):
        write_run(folder / "runs", "luna", 0.3 + m / 100, task="image", options={"M": m})
    found = records.load_records([folder / "runs"])
    usual = [r for r in found if r.get("attention.M") in (None, 8)]
    sweep = [r for r in found if r["attention.name"] == "luna" and r["task"] == "image"]
    tables = [
        build(TableSpec(name="leaderboard", title="Leaderboard", published="lra"), usual),
        build(TableSpec(name="m", title=f"Against M {NASTY}", published="M"), sweep),
    ]
    (folder / "index.html").write_text(page(tables, folder), encoding="utf-8")
    return folder / "index.html"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("page"))


def test_the_file_is_one_and_names_no_other(file: Path):
    text = file.read_text(encoding="utf-8")
    markup, data = text.split('<script type="application/json" id="data">')
    data, _, script = data.partition("</script>")
    assert not re.search(r"(src|href)=[\"'](?!data:)", markup + script)
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|import\(", markup + script)
    assert set(re.findall(r"https?://[^\"'\s]+", markup + script)) == {
        "http://www.w3.org/2000/svg"  # a name, not an address
    }


def test_text_of_records_is_escaped_and_kept(file: Path):
    text = file.read_text(encoding="utf-8")
    assert "onerror" in text
    assert "<img" not in text
    data = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["tables"][1]["title"] == f"Against M {NASTY}"
    for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert sink not in text


def test_no_records_make_an_empty_page():
    assert '"tables":[]' in page([], Path())


# ---------------------------------------------------------------------- in Chromium

chromium = pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")


@pytest.fixture
def shown(window: Browser, file: Path) -> Iterator[Browser]:
    """The page freshly opened; afterwards nothing was logged and nothing else asked for."""
    window.resize(1300, 1000)
    window.console(), window.requests()
    window.open(file.as_uri())
    yield window
    assert window.console() == []
    assert {u for u in window.requests() if not u.startswith("data:")} == {file.as_uri()}


def rows(shown: Browser) -> list[str]:
    return shown.texts("#body th")


def header(number: int) -> str:
    return f"#head th:nth-child({number}) button"


@chromium
def test_the_browser_reports_errors_and_requests(window: Browser, tmp_path: Path):
    (tmp_path / "bad.html").write_text(
        "<img src=missing.png><script>oops()</script>", encoding="utf-8"
    )
    window.console(), window.requests()
    window.open((tmp_path / "bad.html").as_uri())
    assert any("oops is not defined" in line for line in window.console())
    assert any(url.endswith("missing.png") for url in window.requests())


@chromium
def test_the_table_is_there(shown: Browser):
    assert rows(shown) == ["luna", "linear", "softmax"]
    heads = ["attention", *FIVE, "average", "tasks", "parameters", "GFLOPs", "compute", "steps/s",
             "peak MiB"]  # fmt: skip
    assert shown.texts("#head th") == heads
    assert shown.texts("#body tr:first-child td:nth-child(2) button") == ["52.0 ± 1.0 (3)"]
    assert shown.texts("#body tr td:nth-child(7)") == ["52.0", "47.0", "–"]
    assert len(shown.texts("#body .error")) == 14


@chromium
def test_sorting_up_and_down_with_missing_values_last(shown: Browser):
    image = header(5)
    shown.click(image)
    assert rows(shown) == ["luna", "linear", "softmax"]
    assert shown.run("return document.activeElement.textContent") == "image"  # focus is kept
    shown.press("Enter")
    assert rows(shown) == ["linear", "luna", "softmax"]
    assert shown.run(
        "return document.querySelector('#head th:nth-child(5)').getAttribute('aria-sort')"
    ) == "ascending"  # fmt: skip
    shown.click(header(9))  # parameters: luna 84, linear 86, softmax 87 thousand
    assert rows(shown) == ["softmax", "linear", "luna"]
    shown.click(header(1))
    assert rows(shown) == ["linear", "luna", "softmax"]


@chromium
def test_filtering_reaches_table_and_charts(shown: Browser):
    shown.type("#filter", "lun soft")
    assert rows(shown) == ["luna", "softmax"]
    assert shown.texts("#count") == ["2 of 3 rows"]
    assert len(shown.texts("#scatter .point")) == 2
    assert len(shown.texts("#curves .curve")) == 6
    shown.type("#filter", "zzz")
    assert rows(shown) == ["luna"]  # "softzzz" is found nowhere, "lun" is


@chromium
def test_another_table_and_task(shown: Browser):
    shown.run("const s = document.getElementById('table'); s.value = 1; s.onchange();")
    assert rows(shown) == ["luna M=4", "luna M=8", "luna M=16"]
    assert shown.texts("#scatter-title") == ["Accuracy against compute, image"]
    assert shown.texts("#table option")[1] == f"Against M {NASTY}"
    assert shown.run("return document.querySelectorAll('img').length") == 0


@chromium
def test_published_values_beside(shown: Browser):
    assert shown.texts(".published") == []
    shown.click("#published")
    assert "paper 38.94 (+13.1), luna" in shown.texts(".published")
    assert "paper 65.44 (-13.4)" in shown.texts(".published")  # the average of luna's five
    assert len(shown.texts(".published")) == 14 + 2
    assert any("re-run" in text for text in shown.texts("#sources li"))


@chromium
def test_a_tooltip_on_hover_and_on_focus(shown: Browser):
    shown.hover("#scatter .point:last-of-type")
    tip = shown.texts("#tip")[0]
    assert re.match(r"\w+: \d\d\.\d ± 1\.0 \(3\) %, [\d.]+ GFLOPs, [\d.]+ steps/s, \d+ MiB", tip)
    assert shown.run("return document.getElementById('tip').hidden") is False
    shown.press("Escape")
    assert shown.run("return document.getElementById('tip').hidden") is True
    shown.run("document.querySelector('#body td button').focus()")
    assert shown.texts("#tip") == ["luna on listops: 3 runs\nbest mean of the column"]


@chromium
def test_details_by_keyboard(shown: Browser):
    shown.run("document.querySelector('#body td button').focus()")
    shown.press("Enter")
    assert shown.run("return document.getElementById('details').open") is True
    assert shown.texts("#details-title") == ["luna on listops: 52.0 ± 1.0 (3)"]
    assert len(shown.texts("#details h4")) == 3
    facts = shown.texts("#details dd")
    assert any("fingerprint listops-generated" in f for f in facts)
    assert any(NASTY in f for f in facts)  # as text
    link = shown.run("return document.querySelector('#details a').href")
    record = json.loads(Path(unquote(urlsplit(link).path)).read_text(encoding="utf-8"))
    assert (record["attention"]["name"], record["task"], record["seed"]) == ("luna", "listops", 1)
    shown.press("Escape")
    assert shown.run("return document.getElementById('details').open") is False
    shown.run("document.querySelector('#scatter .point').focus()")
    shown.press("Space")
    assert shown.run("return document.getElementById('details').open") is True


@chromium
def test_every_control_is_reached_by_tab(shown: Browser):
    seen = set()
    for _ in range(60):
        shown.press("Tab")
        seen.add(shown.run("const e = document.activeElement; return e.id || e.className.baseVal "
                           "|| e.parentElement.tagName"))  # fmt: skip
    assert {"table", "filter", "task", "published", "TH", "TD", "point", "legend"} - seen <= {
        "legend"  # a legend's button is reported by its parent's tag, DIV
    }
    assert "DIV" in seen


@chromium
def test_curves_are_hidden_and_shown_by_the_legend(shown: Browser):
    assert len(shown.texts("#curves .curve")) == 9
    shown.click("#legend button")
    assert len(shown.texts("#curves .curve")) == 6
    shown.press("Enter")
    assert len(shown.texts("#curves .curve")) == 9


@chromium
def test_it_fits_a_phone_and_long_names_leave_room_for_numbers(shown: Browser):
    size = {"width": 375, "height": 812, "deviceScaleFactor": 2, "mobile": True}
    shown.emulate("Emulation.setDeviceMetricsOverride", **size)
    shown.run(
        "state.table.rows[0].label = 'luna dwc=conv2d kernel=bank_coef envelope=none'; show()"
    )
    wide = shown.run("return [document.documentElement.scrollWidth, innerWidth]")
    number = shown.run("return document.querySelector('#body td button').getBoundingClientRect()")
    shown.emulate("Emulation.clearDeviceMetricsOverride")
    assert wide == [375, 375]
    assert 0 < number["left"] < number["right"] < 375


@chromium
def test_names_of_points_cover_no_other_name(shown: Browser):
    """Eight rows in one place: some go without a name, every one has its point and its tooltip."""
    label = "`a row with a long name ${i}`"
    shown.run(
        "const t = state.table, first = t.rows[0];"
        f"t.rows = [...Array(8).keys()].map(i => ({{ ...first, label: {label} }})); show()"
    )
    assert len(shown.texts("#scatter .point")) == 8
    boxes = shown.run(
        "return [...document.querySelectorAll('.name')].map(n => n.getBoundingClientRect())"
    )
    assert 1 <= len(boxes) < 8
    for a, b in itertools.combinations(boxes, 2):
        x = min(a["right"], b["right"]) - max(a["left"], b["left"])
        y = min(a["bottom"], b["bottom"]) - max(a["top"], b["top"])
        assert x <= 0 or y <= 0 or x * y < 0.2 * a["width"] * a["height"]


@chromium
def test_light_and_dark(shown: Browser):
    def background(scheme: str) -> str:
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        shown.emulate("Emulation.setEmulatedMedia", features=features)
        return shown.run("return getComputedStyle(document.body).backgroundColor")

    assert background("light") == "rgb(252, 252, 250)"
    assert background("dark") == "rgb(21, 24, 28)"
    shown.emulate("Emulation.setEmulatedMedia", features=[])


@chromium
def test_from_a_web_server(window: Browser, file: Path):
    handler = functools.partial(Quiet, directory=str(file.parent))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        window.console(), window.requests()
        url = f"http://127.0.0.1:{server.server_address[1]}/index.html"
        window.open(url)
        assert rows(window) == ["luna", "linear", "softmax"]
        asked = {u for u in window.requests() if not u.startswith("data:")}
        server.shutdown()
    assert window.console() == []
    assert asked == {url}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass
