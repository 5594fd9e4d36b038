"""The static site of `make docs`: complete, without requests to elsewhere, readable on a phone."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lra
import lra.data
import luna
import luna.convert

pytest.importorskip("mkdocs")
from mkdocs.commands.build import build
from mkdocs.config import load_config

from lra.cli import main
from scripts import docs_site

from ..lra.report.browser import available, browser

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "results/index.html"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    if not TABLES.is_file():  # which `make docs` makes first
        main(["table", "--page", str(TABLES), "--results", str(TABLES.parent)])
    docs_site.prepare(folder / "pages")
    config = {"docs_dir": str(folder / "pages"), "site_dir": str(folder / "site")}
    build(load_config(str(ROOT / "mkdocs.yml"), **config))
    return folder / "site"


def test_every_page_and_every_public_name_is_there(site: Path):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    pages = {path.relative_to(ROOT).with_suffix(".html") for path in ROOT.glob("docs/**/*.md")}
    assert {*map(str, pages)} < built
    for module in (lra, lra.data, luna, luna.convert):
        page = (site / "api" / f"{module.__name__}.html").read_text(encoding="utf-8")
        for name in module.__all__:
            assert f'id="{module.__name__}.{name}"' in page, name


def described(page: str) -> dict[str, str]:
    """What a page of public names says of each, without what it says of the names within."""
    parts = re.split(r'<div class="doc doc-object doc-\w+">(?=\s*<h\d id="([^"]+)")', page)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_functions_say_what_they_take_and_give(site: Path):
    """And there is a sentence about every name that is listed."""
    for module in (lra, lra.data, luna, luna.convert):
        said = described((site / "api" / f"{module.__name__}.html").read_text(encoding="utf-8"))
        for name in module.__all__:
            function = getattr(module, name)
            if inspect.isfunction(function):
                text = said[f"{module.__name__}.{name}"]
                assert ("Parameters:" in text) == bool(inspect.signature(function).parameters), name
                assert "Returns:" in text, name
        for name, text in said.items():
            assert re.search(r"<p>(?!\s*Bases)", text), name


def entries(menu: Any) -> Iterator[str]:
    """The pages of a menu, whatever group they stand in."""
    if isinstance(menu, str):
        yield menu
        return
    for item in menu.values() if isinstance(menu, dict) else menu:
        yield from entries(item)


def menu_of_site() -> list[Any]:
    # mkdocs wants a folder of pages that exists, and `make docs` may not have made its own.
    return load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(ROOT / "docs"))["nav"]


def test_a_tab_of_the_menu_is_short():
    menu = menu_of_site()
    assert [*map(next, map(iter, menu))] == ["Start", "Use", "Results", "Reference", "Contribute"]
    for tab in menu:
        assert 4 <= len([*entries(tab)]) <= 25, tab


def test_the_menu_leads_to_every_page_but_tables(site: Path):
    """Each with a way to the one before and the one behind it."""
    listed = {re.sub(r"\.md$", ".html", path) for path in entries(menu_of_site())}
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert listed <= built
    left = {
        path for path in built - listed if not re.match(r"results/(tables|compute|bench)/", path)
    }
    assert left == {"404.html", *(path for path in left if path.startswith("luna/kernels/"))}
    for path in listed - {"index.html", "results/index.html"}:
        page = (site / path).read_text(encoding="utf-8")
        assert 'class="md-footer__link md-footer__link--prev"' in page, path


def test_the_header_has_the_version(site: Path):
    page = (site / "docs" / "runs.html").read_text(encoding="utf-8")
    header = page.partition("<header")[2].partition("</header>")[0]
    assert f"luna-lra {luna.__version__}" in header


def test_what_a_reader_without_a_server_needs_is_there(site: Path):
    """The index and the worker of the search as scripts, and a way to the page of all tables."""
    page = (site / "docs" / "runs.html").read_text(encoding="utf-8")
    assert (site / "search" / "search_index.js").is_file()
    assert '<script src="iframe-worker.js">' in page
    assert 'href="../results/index.html"' in page
    assert 'class="md-footer__link' in page, "previous and next"


def test_a_search_leaves_tables_of_numbers_out(site: Path):
    text = (site / "search" / "search_index.js").read_text(encoding="utf-8")
    found = json.loads(text[text.index("{") : text.rindex("}") + 1])["docs"]
    pages = {entry["location"].partition("#")[0] for entry in found}
    assert {"index.html", "docs/compute.html", "results/recall.html", "api/lra.html"} < pages
    assert not any(re.match("results/(tables|compute|bench)/", page) for page in pages)
    last = {entry["location"].partition("#")[0] for entry in found if entry.get("boost", 1) < 1}
    assert last == {page for page in pages if re.match("CHANGELOG|api/", page)}


@pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")
def test_a_search_without_a_server_finds_first_what_was_asked_for(site: Path):
    wanted = {
        "add my own attention": "docs/tutorial.html",
        "learning rate": "docs/settings.html",
        "resume": "docs/runs.html",
        "install": "docs/install.html",
        "own data": "docs/tasks.html",
        "significance": "results/significance.html",
    }
    first = "document.querySelector('.md-search-result__item a')?.href"
    with browser() as window:
        for words, path in wanted.items():
            window.open("about:blank")
            window.open((site / "docs" / "probes.html").as_uri())
            window.run("document.getElementById('__search').click()")
            ready = "document.querySelector('.md-search-result__meta').textContent"
            window.wait(f"return {ready}.includes('Type to start')")
            window.type(".md-search__input", words)
            window.wait(f"return !!{first}?.split('?')[0].endsWith('/{path}')")
        assert window.console() == []


def test_everything_that_a_page_leads_to_is_there(site: Path):
    """Raw pages, which no generator reads, and places within pages too; nothing from elsewhere."""
    assert list(docs_site.check(site)) == []
    page = docs_site.Page(site / "results" / "index.html")
    assert {"overview.html", "../index.html", "../docs/results.html"} < {*page.links}


WRONG = {
    '<script defer src="https://example.org/a.js"></script>': "loads something from elsewhere",
    "<img alt='' src=//example.org/a.png>": "loads something from elsewhere",
    '<link rel="stylesheet" href="https://example.org/a.css">': "loads something from elsewhere",
    "<style>p { background: url(https://example.org/a.png) }</style>": "from elsewhere",
    '<a href="there.html">': "leads nowhere: there.html",
    '<a href=".">': "leads nowhere: .",
    "<img src='figures/a.png'>": "leads nowhere: figures/a.png",
    "<picture><source srcset='page.html 1x, b.png 2x'></picture>": "leads nowhere: b.png",
    '<a href="#there">': "no place of the page: #there",
    '<a href="page.html?a=b#there">': "no place of the page: page.html?a=b#there",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_with_a_page_is_said(line: str, tmp_path: Path):
    page = tmp_path / "page.html"
    right = '<p id="a b"><a href="https://example.org">a</a> <a href="page.html#a%20b">b</a>'
    page.write_text(right, encoding="utf-8")
    assert docs_site.main(["check", str(tmp_path)]) == 0
    page.write_text(right + line, encoding="utf-8")
    (wrong,) = docs_site.check(tmp_path)
    assert wrong.startswith("page.html ")
    assert WRONG[line] in wrong
    assert docs_site.main(["check", str(tmp_path)]) == 1


def test_a_published_site_has_its_address_and_a_link_to_its_repository(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The theme's own link asks the repository's host for its stars when a page is opened."""
    monkeypatch.setenv("SITE", "https://example.org/docs/")
    monkeypatch.setenv("REPOSITORY", "https://github.com/example/luna")
    docs_site.prepare(tmp_path / "pages")
    for path in (tmp_path / "pages").rglob("*.md"):
        path.write_text("# A page\n", encoding="utf-8")
    config = {"docs_dir": str(tmp_path / "pages"), "site_dir": str(tmp_path / "site")}
    build(load_config(str(ROOT / "mkdocs.yml"), **config))
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    header = page.partition("<header")[2].partition("</header>")[0]
    assert 'href="https://github.com/example/luna"' in header
    assert 'data-md-component="source"' not in page
    lost = (tmp_path / "site" / "404.html").read_text(encoding="utf-8")
    assert 'href="https://example.org/docs/"' in lost
    assert not any("from elsewhere" in line for line in docs_site.check(tmp_path / "site"))


def formulas(pages: Path) -> Iterator[str]:
    for path in pages.rglob("*.html"):
        yield from re.findall(r"<math.*?</math>", path.read_text(encoding="utf-8"), re.S)


def test_formulas_and_notebooks_are_drawn(site: Path):
    """Formulas as MathML, which needs no script; notebooks with what they printed and drew."""
    written = (ROOT / "results" / "theory.md").read_text(encoding="utf-8")
    page = (site / "results" / "theory.html").read_text(encoding="utf-8")
    assert page.count("<math") == len(docs_site.FORMULA.findall(written)) > 50
    assert "<mi>φ</mi>" in page
    assert "\\varphi" not in page
    for formula in formulas(site):
        assert not re.search(r"<(em|strong|a|code|table)\b", formula), formula
    page = (site / "notebooks" / "quickstart.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert "done: test accuracy" in page


def test_scores_stay_in_a_line_and_pictures_open(site: Path):
    table = (site / "results" / "tables" / "recall.html").read_text(encoding="utf-8")
    cells = re.findall(r"<td.*?>(?:<strong>)?(\d[^<]*±.*?)<", table)
    assert len(cells) > 50
    assert not any(" " in cell for cell in cells), cells
    page = (site / "docs" / "attentions.html").read_text(encoding="utf-8")
    light, dark = (f"../results/figures/scheme-luna-{name}.png" for name in ("light", "dark"))
    both = rf'<img [^>]*src="{light}#only-light"[^>]*><img [^>]*src="{dark}#only-dark"'
    assert re.search(rf'<a href="{light}">{both}', page)


def test_signs_of_shells_are_no_formulas(tmp_path: Path):
    docs_site.prepare(tmp_path)
    page = (tmp_path / "docs" / "install.md").read_text(encoding="utf-8")
    assert 'eval "$(lra -sc install=bash)"' in page
    assert "<math" not in page
