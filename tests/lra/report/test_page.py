"""The page: what is in the file, and how it behaves in a real browser."""

from __future__ import annotations

import json
import re
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
