"""The static site of `make docs`: complete, without requests to elsewhere, readable on a phone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import lra
import lra.data
import luna
import luna.convert

pytest.importorskip("mkdocs")
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


def test_every_page_and_every_public_name_is_there(site: Path):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {f"docs/{path.stem}.html" for path in ROOT.glob("docs/*.md")} < built
    for module in (lra, lra.data, luna, luna.convert):
        page = (site / "api" / f"{module.__name__}.html").read_text(encoding="utf-8")
        for name in module.__all__:
            assert f'id="{module.__name__}.{name}"' in page, name


def test_the_menu_is_short(site: Path):
    """What is not in it, such as a page of a single table, is reached from a page that is."""
    page = (site / "docs" / "runs.html").read_text(encoding="utf-8")
    entries = re.findall(r'<a href="([^"#]+)" class="md-nav__link', page)
    assert 20 <= len(set(entries)) <= 25
    for group in ("Start", "Use", "Results", "Reference", "Contribute", "Appendix"):
        assert re.search(rf'class="md-ellipsis">\s*{group}\s*<', page), group


def test_what_a_reader_without_a_server_needs_is_there(site: Path):
    """The index and the worker of the search as scripts, and a way to the page of all tables."""
    page = (site / "docs" / "runs.html").read_text(encoding="utf-8")
    assert (site / "search" / "search_index.js").is_file()
    assert '<script src="iframe-worker.js">' in page
    assert 'href="../results/index.html"' in page
    assert 'class="md-footer__link' in page, "previous and next"


def test_every_link_of_the_page_of_results_leads_somewhere(site: Path):
    """MkDocs copies this page as it is and checks none of its links."""
    page = site / "results" / "index.html"
    links = re.findall(r'(?:href|src)="([^"#:]+)"', page.read_text(encoding="utf-8"))
    assert {"README.html", "../index.html", "../docs/results.html"} < {*links}
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_formulas_and_notebooks_are_drawn(site: Path):
    """Formulas as MathML, which needs no script; notebooks with what they printed and drew."""
    page = (site / "docs" / "theory.html").read_text(encoding="utf-8")
    assert "<mi>&#x003C6;</mi>" in page
    assert "\\varphi" not in page
    for path in site.rglob("*.html"):
        assert not re.search('class="arithmatex">(?!<math)', path.read_text("utf-8")), path
    page = (site / "notebooks" / "quickstart.html").read_text(encoding="utf-8")
    assert 'src="data:image/png;base64,' in page
    assert "done: test accuracy" in page


@pytest.mark.parametrize(
    "line",
    [
        '<script defer src="https://example.org/a.js"></script>',
        "<img alt='' src=//example.org/a.png>",
        '<link rel="stylesheet" href="https://example.org/a.css">',
        "<style>p { background: url(https://example.org/a.png) }</style>",
    ],
)
def test_a_page_that_loads_from_elsewhere_ends_the_build(line: str, tmp_path: Path):
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path))
    (hook,) = config.hooks.values()  # alone: the plugins' own steps need a built site
    page = tmp_path / "page.html"
    page.write_text('<a href="https://example.org">a link</a>', encoding="utf-8")
    hook.on_post_build(config)
    page.write_text(line, encoding="utf-8")
    with pytest.raises(PluginError, match="from elsewhere"):
        hook.on_post_build(config)
