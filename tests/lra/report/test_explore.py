"""The figure of the page in a real browser: what it shows, says, compares and saves."""

from __future__ import annotations

import csv
import io
import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
from scipy import stats

from lra.data.rules import keep
from lra.metrics.metric import facts_of, get
from lra.report.page import page
from lra.report.words import find_runs
from lra.results.frame import frame_of
from lra.results.record import load_records

from ..synthetic import table, write_run
from .browser import Browser, available

pytestmark = pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")

SCORES = {  # in percent, by task and method
    "listops": {
        "luna": (41.0, 43.0, 45.0),
        "linear": (36.0, 37.0, 38.0),
        "softmax": (50.0, 51.0, 52.5),
        "performer": (30.0,),
    },
    "image": {"luna": (17.0, 35.0, 35.5), "linear": (17.5, 17.0, 34.5), "softmax": (35, 35.5, 36)},
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four methods on two tasks; on image seeds are of two kinds, on listops a rule has 40 %."""
    folder = tmp_path_factory.mktemp("figure")
    for task, methods in SCORES.items():
        for name, scores in methods.items():
            for seed, score in enumerate(scores, start=1):
                command = f"lra train task={task} attention={name} seed={seed}"
                write_run(folder / "a", name, score / 100, task=task, seed=seed, command=command)
    write_run(folder / "b", "luna", 0.4, task="text", options={"M": 16})
    constant = {"reads": "nothing", "test": 10.0, "val": 10.0}
    second = {"reads": "how often", "test": 42.0, "val": 30.0}
    best = {"reads": "the first tokens", "test": 40.0, "val": 41.0}
    facts = {"task": "listops", "metric": facts_of(get("accuracy"))}
    rules = {"constant": constant, "bag": second, "first tokens": best}
    keep(facts | {"fingerprint": "listops-generated", "rules": rules}, folder / "rules.jsonl")
    overview = {"listops": "ListOps", "image": "Small images", "text": "Text"}
    tables = [
        table(folder / "a", name="first", overview=overview),
        table(folder / "b", name="second"),
    ]
    (folder / "index.html").write_text(page(tables, folder), encoding="utf-8")
    return folder / "index.html"


@pytest.fixture
def shown(window: Browser, file: Path) -> Iterator[Browser]:
    """The page freshly opened; afterwards nothing was logged and nothing else asked for."""
    window.open("about:blank")
    window.console(), window.requests()
    window.open(file.as_uri())
    yield window
    assert window.console() == []
    asked = {u for u in window.requests() if not u.startswith(("data:", "blob:"))}
    assert asked == {file.as_uri()}


def choose(shown: Browser, name: str, value: str) -> None:
    """A value of one of the figure's controls."""
    shown.run(
        "const control = document.getElementById(arguments[0]); control.value = arguments[1];"
        "control.dispatchEvent(new Event('input'))",
        name,
        value,
    )


def point_at(shown: Browser, css: str) -> None:
    event = "new MouseEvent('mouseover', {bubbles: true})"
    shown.run(f"document.querySelector(arguments[0]).dispatchEvent({event})", css)


def names(shown: Browser) -> list[str]:
    return shown.texts("#figure .label text")


def mark(lane: int, panel: int) -> str:
    return f"#figure .mark[data-lane='{lane}'][data-panel='{panel}']"


def test_it_opens_on_all_tasks_and_says_what_was_not_run(shown: Browser):
    assert names(shown) == [
        "Softmax",
        "Linear attention",
        "Performer",
        "LUNA as published",
    ]  # by family
    assert shown.run("return document.querySelectorAll('#figure .dot').length") == 19
    assert "2 of 4 beat rule 40.0" in shown.texts("#figure text")
    assert shown.texts("#figure text").count("not run") == 1  # Performer on images
    (said,) = [text for text in shown.texts("header p") if text.startswith("Not run")]
    assert re.search(r"full budget ListOps, Text, .* and Pathfinder; Text; of the methods", said)
    assert "Mamba-2" in said
    assert "LUNA" not in said
    assert "not run" in shown.texts("section:not([hidden]) td")


def test_the_best_rule_is_that_of_dev_and_one_panel_has_all(shown: Browser):
    def rules() -> list[str]:
        of_first = "#figure g:has(> .mark[data-panel='0']) > .rule title"
        return [text.split("”")[0] for text in shown.texts(of_first)]

    assert rules() == ["rule “constant", "rule “first tokens"], "bag is better by chance, on test"
    choose(shown, "task", "0")
    assert rules() == ["rule “constant", "rule “first tokens", "rule “bag"]
    solid = shown.run(
        "return [...document.querySelectorAll('#figure .rule line')]"
        ".filter(line => line.getAttribute('stroke-width') == 2).length"
    )
    assert solid == 1


def test_a_dot_stands_at_its_score(shown: Browser):
    """The ticks say where a score belongs."""
    place = """
        const at = node => node.getBoundingClientRect(), middle = r => r.left + r.width / 2;
        const ticks = [...document.querySelectorAll('#figure text')]
            .filter(t => ['20', '40'].includes(t.textContent)).slice(0, 2).map(t => middle(at(t)));
        const dots = [...document.querySelectorAll(arguments[0] + ' .dot')].map(d => middle(at(d)));
        return [ticks, dots]"""
    (at_20, at_40), dots = shown.run(place, mark(3, 0))
    expected = [at_20 + (score - 20) / 20 * (at_40 - at_20) for score in SCORES["listops"]["luna"]]
    assert dots == pytest.approx(expected, abs=0.6)


def test_seeds_of_two_kinds_have_no_mean(shown: Browser):
    lines = "return document.querySelectorAll(arguments[0] + ' > line').length"
    assert shown.run(lines, mark(3, 0)) == 1
    assert shown.run(lines, mark(3, 1)) == 0
    label = "return document.querySelector(arguments[0]).getAttribute('aria-label')"
    assert (
        shown.run(label, mark(3, 1))
        == "LUNA as published, Small images: 2 of 3 leapt: 17.0, 35.0, 35.5"
    )


def test_a_family_a_word_and_an_order_choose_the_rows(shown: Browser):
    choose(shown, "family", "fixed kernels")
    assert names(shown) == ["Linear attention", "Performer"]
    choose(shown, "family", "")
    choose(shown, "find", "perf")
    assert shown.run("return view.panels.map(panel => panel.title)") == ["ListOps"], "no empty one"
    assert shown.texts("section:not([hidden]) .main thead th:nth-child(n+2)") == ["ListOps %"]
    choose(shown, "find", "lun")
    assert names(shown) == ["LUNA as published"]
    assert shown.texts("#said") == ["1 rows"]
    choose(shown, "find", "")
    choose(shown, "order", "1-desc")
    assert names(shown) == ["Softmax", "LUNA as published", "Linear attention", "Performer"]
    choose(shown, "task", "1")
    assert names(shown) == ["Softmax", "LUNA as published", "Linear attention"], (
        "Performer was not run"
    )


def test_pointing_tells_the_interval_against_softmax(shown: Browser):
    point_at(shown, f"{mark(1, 0)} .dot[data-seed='1']")
    lines = shown.texts("#tip p, #tip code")
    assert "seed 1: 36.00, seed 2: 37.00, seed 3: 38.00" in lines[1]
    assert "lra train task=listops attention=linear seed=2" in lines
    (line,) = [text for text in lines if text.startswith("against softmax")]
    listops = SCORES["listops"]
    tested = stats.ttest_ind(listops["linear"], listops["softmax"]).confidence_interval()
    numbers = [float(text.replace("−", "-")) for text in re.findall(r"[−+][\d.]+", line)]
    assert numbers == pytest.approx([-14.2, tested.low, tested.high], abs=0.06)
    dim = shown.run("return [...document.querySelectorAll('#figure .label:not(.dim)')].length")
    assert dim == 1
    point_at(shown, mark(1, 1))
    assert not any("against softmax" in text for text in shown.texts("#tip p"))


def test_arrows_enter_copy_and_the_way_to_the_row(shown: Browser):
    shown.emulate("Browser.grantPermissions", permissions=["clipboardReadWrite"])
    shown.run("document.querySelector('#figure .stop[tabindex=\"0\"]').focus()")
    shown.press("Right", "Down")
    assert shown.run("return document.activeElement.matches(arguments[0])", mark(1, 0))
    shown.press("Right", "Down")
    missing = "return document.activeElement.dataset.lane + document.activeElement.dataset.panel"
    assert shown.run(missing) == "31", "over Performer, which was not run on images"
    shown.press("Left", "Enter")
    assert shown.run("return document.activeElement.textContent") == "Copy command"
    shown.press("Enter")
    shown.wait("return document.activeElement.textContent == 'Copied'")
    shown.run("navigator.clipboard.readText().then(text => window.pasted = text)")
    shown.wait("return window.pasted")
    assert shown.run("return pasted") == "lra train task=listops attention=luna seed=1"
    assert shown.texts("#tip a")[0] == "Its record"
    shown.click("#tip .does > a:nth-of-type(2)")
    assert shown.run("return location.hash") == "#first"
    assert (
        shown.run("return document.activeElement.closest('tr').textContent")
        .strip()
        .startswith("luna")
    )
    shown.press("Escape")
    assert shown.run("return document.getElementById('tip').hidden")


def test_three_rows_stand_side_by_side(shown: Browser, file: Path):
    for lane in (3, 1, 0):
        shown.click(f"#figure .label[data-lane='{lane}'] text")
    heads = shown.run(
        "return [...document.querySelectorAll('#compare thead th')].map(h => h.firstChild?.data)"
    )
    assert heads == ["", "A: LUNA as published", "B: Linear attention", "C: Softmax"]
    cells = [shown.texts(f"#compare tbody tr:nth-child({i}) > *") for i in (1, 2, 3)]
    listops = SCORES["listops"]
    tested = stats.ttest_ind(listops["linear"], listops["luna"]).confidence_interval()
    low, high = (f"{value:+.1f}".replace("-", "−") for value in (tested.low, tested.high))
    assert cells[0][:2] == ["ListOps", "43.0 ± 2.0 (3)"]
    said = f"37.0 ± 1.0 (3)−6.0 points (95 % interval {low} to {high}) against A"
    assert cells[0][2] == said, "without a command: these records have no answers"
    assert cells[1][3].endswith("seeds of two kinds: no difference of means")
    assert cells[2] == ["parameters, ListOps", "84,000", "86,000", "87,000"]
    command = shown.run(
        "return compareCommand(view.lanes[3].cells[0].cell, view.lanes[1].cells[0].cell)"
    )
    runs = frame_of(load_records([file.parent / "a"]))
    for word, method in zip(command.split()[2:4], ("luna", "linear"), strict=True):
        assert find_runs(word, runs)["score"].tolist() == pytest.approx(listops[method])
    pressed = "return [...document.querySelectorAll('#figure .label')].map(l => l.ariaPressed)"
    assert shown.run(pressed) == ["true", "true", "false", "true"]
    for lane in (3, 0):
        shown.run(f"document.querySelector('#figure .label[data-lane=\"{lane}\"]').focus()")
        shown.press("Enter")
    assert shown.texts("#compare") == ["Linear attention is chosen; choose more names to compare."]


def test_an_interval_is_never_narrower_than_the_test_examples_allow(shown: Browser):
    """Three equal seeds, whose scores another draw of examples would move by 2 points."""
    cell = "{runs: [0, 0, 0], noise: 2}"
    half = stats.t.ppf(0.975, 4) * (4 * 2 / 3) ** 0.5
    assert shown.run(f"return differenceOf({cell}, {cell}).half") == pytest.approx(half, abs=1e-3)
    assert shown.run(f"return differenceOf({cell}, {{runs: [0], noise: 2}})") is None


def test_curves_and_costs_are_drawn_for_every_seed(shown: Browser):
    choose(shown, "kind", "curves")
    assert shown.run("return document.querySelectorAll('#figure polyline').length") == 2 * 19
    rules = shown.texts("#figure .rule title")
    assert "rule “first tokens”: 41; reads the first tokens" in rules, "curves are of dev"
    choose(shown, "kind", "parameters")
    assert shown.run("return document.querySelectorAll('#figure .dot').length") == 19
    assert "parameters" in shown.texts("#figure text")
    assert shown.run("return document.querySelector('#kind [value=state]').disabled")


def test_what_is_seen_is_saved(shown: Browser, tmp_path: Path):
    folder = str(tmp_path)
    shown.emulate("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
    choose(shown, "find", "linear")
    shown.click("#save-csv")
    lines = list(csv.DictReader(io.StringIO(arrived(tmp_path / "all-tasks-scores.csv"))))
    assert [float(line["score"]) for line in lines] == [36, 37, 38, 17.5, 17, 34.5]
    assert {line["name"] for line in lines} == {"Linear attention"}
    assert lines[0]["command"] == "lra train task=listops attention=linear seed=1"
    shown.click("#save-svg")
    svg = ET.fromstring(arrived(tmp_path / "all-tasks-scores.svg"))
    space = "{http://www.w3.org/2000/svg}"
    assert [text.text for text in svg.iter(f"{space}text")].count("Linear attention") == 1
    assert len([node for node in svg.iter() if node.get("class") == "dot"]) == 6
    assert not [node for node in svg.iter() if node.get("fill", "").startswith("var")]


def arrived(path: Path) -> str:
    """The text of a file that the browser saves."""
    end = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} was not saved"
        time.sleep(0.05)
    return path.read_text(encoding="utf-8")


def test_a_phone_shows_one_panel_that_fits(window: Browser, file: Path):
    size = {"width": 375, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    window.emulate("Emulation.setDeviceMetricsOverride", **size)
    window.open("about:blank")
    window.open(file.as_uri())
    wide = "return document.querySelector(arguments[0]).scrollWidth"
    assert window.run(wide, "#figure svg") <= window.run(wide, "html") == 375
    assert window.run("return view.panels.length") == 1
    window.emulate("Emulation.clearDeviceMetricsOverride")
