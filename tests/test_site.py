"""The static site of `make docs`: complete, without requests to elsewhere, readable on a phone."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import lra
import lra.data
import luna
import luna.convert
from tests.lra.report.browser import available, browser

pytest.importorskip("mkdocs")
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).resolve().parents[1]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link that leads nowhere ends the build."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder)))
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@pytest.mark.slow
def test_every_page_and_every_public_name_is_there(site: Path):
    built = {str(path.relative_to(site)) for path in site.rglob("*.html")}
    assert {f"docs/{path.stem}.html" for path in ROOT.glob("docs/*.md")} < built
    for module in (lra, lra.data, luna, luna.convert):
        page = (site / "api" / f"{module.__name__}.html").read_text(encoding="utf-8")
        for name in module.__all__:
            assert f'id="{module.__name__}.{name}"' in page, name


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.skipif(not available(), reason="needs chromium and chromedriver")
def test_in_a_browser(site: Path, address: str):
    """On a phone and a desktop, light and dark: no page is wider than its window, wide tables
    scroll in themselves, every request stays here, and the search finds a page."""
    pages = ["index.html", "docs/architecture.html", "results/compute/table.html", "api/lra.html"]
    with browser() as window:
        for width, scheme in ((375, "dark"), (1280, "light")):
            window.emulate("Emulation.setDeviceMetricsOverride", width=width, height=900,
                           deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
            media = {"name": "prefers-color-scheme", "value": scheme}
            window.emulate("Emulation.setEmulatedMedia", features=[media])
            for page in pages:
                window.open(address + page)
                window.run("localStorage.clear()")  # where the choice of the last page is kept
                window.open(address + page)
                window.wait("return !document.querySelector('table:not(.md-typeset__table table)')")
                assert window.run("return document.documentElement.scrollWidth") <= width, page
                shown = window.run("return document.body.dataset.mdColorScheme")
                assert shown == {"dark": "slate", "light": "default"}[scheme]
        window.open(address + "results/compute/table.html")
        window.wait("return document.querySelector('.md-typeset__scrollwrap')")
        assert window.run(
            "const wide = document.querySelector('.md-typeset__scrollwrap');"
            "return wide.scrollWidth > wide.clientWidth"
        )
        window.click(".md-search__input")
        window.type(".md-search__input", "preempted")
        window.wait("return document.querySelector('.md-search-result__link')")
        assert "clusters.html" in window.run(
            "return document.querySelector('.md-search-result__link').href"
        )
        assert [url for url in window.requests() if not url.startswith((address, "data:"))] == []
        assert window.console() == []
