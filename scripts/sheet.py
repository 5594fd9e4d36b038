"""Every surface that somebody sees, as pictures beside each other: `make sheet`, then look.

    python -m scripts.sheet [KIND ...]

Kinds are readme, page, site, terminal and figures. Each becomes build/sheet/KIND.png, and every
single picture lies in build/sheet/KIND/. It needs Chromium and its driver, and `make docs` first.
"""

from __future__ import annotations

import argparse
import base64
import os
import pty
import shlex
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import markdown
from PIL import Image
from rich.console import Console
from rich.text import Text

from scripts.docs_site import ROOT
from tests.lra.report.browser import Browser, available, browser

OUT = ROOT / "build" / "sheet"
WIDE, PHONE = 1280, 375
HIGHEST = 2400  # what is further down resembles what is above
SITE = ("index", "docs/install", "docs/runs", "docs/attentions", "docs/speed", "results/overview")
SITE += ("results/tables/recall", "api/lra", "404")
STYLE = """:root { color-scheme: light dark; } body { max-width: 1012px; margin: 2rem auto;
padding: 0 1rem; overflow-wrap: break-word; font: 16px/1.5 system-ui, sans-serif; }
img { max-width: 100%; } table { border-collapse: collapse; display: block; overflow: auto; }
td, th { border: 1px solid #8886; padding: 6px 13px; } pre { overflow: auto; padding: 1rem; }
pre, code { background: #8882; font-size: 85%; }"""
COMMANDS = (
    ("lra", "lra"),
    ("train", "lra train --help"),
    ("table", "lra table --runs results/records/campaign/mixers.jsonl --task listops"),
    ("list", "lra list"),
    ("compare", "lra compare hedgehog linear --runs results/records/laptop.jsonl"),
    ("error", "lra train experiment=dmo attention=lnear attention.M=9"),
)


def shot(window: Browser, page: Path, name: str, *, width: int = WIDE, dark: bool = False) -> Path:
    """A page as it is seen at this width, from its top."""
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width == PHONE}
    window.emulate("Emulation.setDeviceMetricsOverride", **size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    window.emulate("Emulation.setEmulatedMedia", features=[scheme])
    window.open(page.as_uri())
    window.run("try { localStorage.clear(); sessionStorage.clear() } catch (e) {}")
    window.open(page.as_uri())
    window.wait("return document.readyState === 'complete'")
    height = window.run("return document.documentElement.scrollHeight")
    clip = {"x": 0, "y": 0, "width": width, "height": min(height, HIGHEST), "scale": 1}
    picture = window.emulate("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
    file = OUT / f"{name}-{width}{'-dark' if dark else ''}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(base64.b64decode(picture["data"]))
    return file


def four(window: Browser, page: Path, name: str) -> list[Path]:
    """Wide and on a phone, light and dark."""
    looks = [(WIDE, False), (WIDE, True), (PHONE, False), (PHONE, True)]
    return [shot(window, page, name, width=width, dark=dark) for width, dark in looks]


def readme(window: Browser) -> Iterator[list[Path]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    body = markdown.markdown(text, extensions=["tables", "fenced_code"])
    head = f'<meta name="viewport" content="width=device-width"><base href="{ROOT.as_uri()}/">'
    page = OUT / "readme.html"
    page.write_text(f"<!doctype html>{head}<style>{STYLE}</style>{body}", encoding="utf-8")
    yield four(window, page, "readme/readme")


def page(window: Browser) -> Iterator[list[Path]]:
    yield four(window, ROOT / "results" / "index.html", "page/page")


def site(window: Browser) -> Iterator[list[Path]]:
    for name in SITE:
        yield four(window, ROOT / "site" / f"{name}.html", f"site/{name.replace('/', '-')}")


def terminal(window: Browser) -> Iterator[list[Path]]:
    """What commands print into a terminal of 80 columns."""
    for name, command in COMMANDS:
        with (OUT / "null").open("w", encoding="utf-8") as nowhere:
            console = Console(record=True, width=80, file=nowhere)
            console.print(Text.from_ansi(f"$ {command}\n{printed(command)}"))
        file = OUT / f"{name}.html"
        file.write_text(console.export_html(), encoding="utf-8")
        yield [shot(window, file, f"terminal/{name}", width=820)]


def printed(command: str) -> str:
    """All that a command writes, in the colours of a terminal."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    bin_folder = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    around = os.environ | {"COLUMNS": "80", "TERM": "xterm-256color", "PATH": bin_folder}
    with subprocess.Popen(
        shlex.split(command), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=around
    ):
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:  # Linux says so when nobody writes any more
            pass
    os.close(ours)
    return b"".join(parts).decode().replace("\r\n", "\n")


def figures(window: Browser) -> Iterator[list[Path]]:
    names = ("results/figures/*.png", "results/theory/*.png", "docs/*.png")
    for name in names:
        yield sorted(ROOT.glob(name))


KINDS: dict[str, Callable[[Browser], Iterator[list[Path]]]] = {
    "readme": readme,
    "page": page,
    "site": site,
    "terminal": terminal,
    "figures": figures,
}


def together(rows: list[list[Path]], to: Path, width: int) -> None:
    """One picture of all, in rows that wrap."""
    places, x, y, row_height = [], 0, 0, 0
    for row in rows:
        for file in row:
            picture = Image.open(file).convert("RGB")
            if x and x + picture.width > width:
                x, y, row_height = 0, y + row_height + 40, 0
            places.append((picture, x, y))
            x, row_height = x + picture.width + 20, max(row_height, picture.height)
    sheet = Image.new("RGB", (width, y + row_height), "#d0d0d0")
    for picture, x, y in places:
        sheet.paste(picture, (x, y))
    sheet.save(to)


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("kinds", nargs="*", choices=[[], *KINDS], metavar="KIND")
    kinds = parser.parse_args(words).kinds or list(KINDS)
    if not available():
        print("the sheet needs chromium and chromedriver in the PATH", file=sys.stderr)
        return 2
    OUT.mkdir(parents=True, exist_ok=True)
    with browser() as window:
        for kind in kinds:
            width = 2 * 3400 if kind == "site" else 3400
            together(list(KINDS[kind](window)), OUT / f"{kind}.png", width)
            print(OUT / f"{kind}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
