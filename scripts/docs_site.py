"""The pages of this repository as a folder of plain Markdown that any generator of sites can build,
and what must hold of the site that it builds. `make docs` does it all:

    python scripts/docs_site.py prepare build/pages
    mkdocs build
    python scripts/docs_site.py check site

The folder has the layout of the repository, so relative links hold in both places. In it are the
pages of README, docs and results, every file that they link to, directly or through another page,
formulas as MathML, notebooks as Markdown, and a page for the public names of each module.
"""

from __future__ import annotations

import argparse
import html
import json
import posixpath
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[1]
FIRST = ("README.md", "CONTRIBUTING.md", "docs/site.css", "docs/iframe-worker.js")
TABLES = "results/index.html"  # all on one page, which `make docs` makes before
MODULES = ("lra", "lra.data", "luna", "luna.convert")
# A site's page of a folder is index.html, and beside this one lies a page of that name.
OVERVIEW = {"results/README.md": "results/overview.md"}

CODE = re.compile(r"(?ms)^( *)(```+).*?^\1\2|`+[^`]+`+")
FORMULA = re.compile(r"(?s)\$\$(.+?)\$\$|(?<!\\)\$(?!\s)((?:\\.|[^\\$])+?)(?<!\s)\$")
# Of Markdown, without addresses elsewhere; pictures may be HTML, with a width.
LINK = re.compile(r"""(?:(?<=\]\()|(?<=<img src=")|(?<= srcset="))([^)"#:\s]+)""")
# Of a light and a dark page. The site has a switch of its own, and its theme shows the right one.
BOTH = re.compile(
    r'<picture>\n  <source media="[^"]*" srcset="([^"]+)">\n  <img src="([^"]+)"(.*)>\n</picture>'
)
EITHER = r'[<img src="\2#only-light"\3><img src="\1#only-dark"\3>](\2)'
# In a line of its own.
PICTURE = re.compile(r"""(?m)^(?:!\[[^\]]*\]\(|<img src=")([^)"\s]+).*[)>]$""")
NOTE = re.compile(r"\A<!--.*?-->\s*")
SCORE = re.compile(r"(?<=\d) (?=±|\(\d+\))|(?<=±) (?=\d)|(?<=[\d)]) (?=[∅↓])")
RAW = re.compile(r'(?<=href=")([^"#:]+)|(?<=src=")([^"#:]+)')  # of a page that is no Markdown

# What a search leaves out, numbers without sentences; finds first, what a newcomer asks for; and
# names last, changes and lists of names.
NOT_FOUND = re.compile(r"results/(tables|compute|bench)/")
FOUND_FIRST = re.compile(r"docs/(install|tutorial|runs|settings|attentions)\.md")
FOUND_LAST = re.compile(r"CHANGELOG|api/")
WIDE = re.compile(r"results/(tables|compute)/")  # tables that need the room of the contents

LOADED = re.compile(  # what a browser asks for by itself; a link is followed by its reader only
    r"""<[a-z]+\b[^>]*\ssrc(?:set)?=["']?(?:https?:)?//"""
    r"""|<link\b(?! rel="canonical")[^>]*\shref=["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//|@import""",
    re.IGNORECASE,
)


def prepare(folder: Path) -> None:
    """Write the pages, in the place of what was there."""
    shutil.rmtree(folder, ignore_errors=True)
    for path in linked():
        file = folder / prepared(path)
        file.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith((".md", ".ipynb")):
            file.write_text(page(path), encoding="utf-8")
        elif path.endswith(".html"):
            file.write_text(raw(path), encoding="utf-8")
        else:
            shutil.copyfile(ROOT / path, file)
    for module in MODULES:
        others = " · ".join(f"[{other}]({other}.md)" for other in MODULES if other != module)
        text = f"# {module}\n\nPublic names of the other modules: {others}\n\n::: {module}\n"
        file = folder / "api" / f"{module}.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text(front_matter(f"api/{module}.md") + text, encoding="utf-8")


def source(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def linked() -> list[str]:
    """The repository's pages and all that they lead to; what does not exist is left to the
    generator and to `check` to report."""
    found = [*FIRST, TABLES]
    found += sorted(
        str(p.relative_to(ROOT)) for f in ("docs", "results") for p in ROOT.glob(f"{f}/*.md")
    )
    for path in found:  # grows meanwhile
        if not path.endswith((".md", ".html")):
            continue
        for link in (LINK if path.endswith(".md") else RAW).finditer(source(path)):
            target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link[0]))
            if target not in found and (ROOT / target).is_file():
                found.append(target)
    return found


def prepared(path: str) -> str:
    """The name of a file of the repository in the folder."""
    if path in OVERVIEW:
        return OVERVIEW[path]
    head, name = posixpath.split(path)
    name = "index.md" if name == "README.md" else re.sub(r"\.ipynb$", ".md", name)
    return posixpath.join(head, name)


def built(path: str) -> str:
    """The name of a file of the repository in the site."""
    return re.sub(r"\.md$", ".html", prepared(path))


def led(path: str, link: str, name: Callable[[str], str]) -> str:
    """A link of a page, to what its target is called now."""
    folder = posixpath.dirname(path)
    target = posixpath.normpath(posixpath.join(folder, link))
    if not (ROOT / target).is_file() or name(target) == target:
        return link
    return posixpath.relpath(name(target), folder)


def page(path: str) -> str:
    """A page as Markdown that needs no extension for formulas. It begins with its title, by which
    a search names it, and not with a note of where it was made."""
    text = notebook(path) if path.endswith(".ipynb") else NOTE.sub("", source(path))
    parts, end = [], 0
    for code in [*CODE.finditer(text), None]:
        words = text[end : code.start() if code else None]
        words = LINK.sub(lambda found: led(path, found[0], prepared), words)
        words = PICTURE.sub(r"[\g<0>](\1)", words)  # a click shows it in its size
        words = BOTH.sub(EITHER, words)
        words = SCORE.sub("\N{NO-BREAK SPACE}", words)
        parts += [FORMULA.sub(mathml, words), code[0] if code else ""]
        end = code.end() if code else end
    return front_matter(path) + "".join(parts)


def raw(path: str) -> str:
    """A page that is no Markdown, its links led to the site's pages."""
    return RAW.sub(lambda found: led(path, found[0], built), source(path))


def front_matter(path: str) -> str:
    lines = ["search:", "  exclude: true"] if NOT_FOUND.match(path) else []
    lines += ["search:", "  boost: 3"] if FOUND_FIRST.match(path) else []
    lines += ["search:", "  boost: 0.1"] if FOUND_LAST.match(path) else []
    lines += ["hide: [toc]"] if WIDE.match(path) else []
    return "\n".join(["---", *lines, "---", "", ""]) if lines else ""


def mathml(formula: re.Match[str]) -> str:
    """A formula as browsers draw it without a script. Its signs are written by their numbers, so
    that none of them is taken for Markdown."""
    display, inline = formula.groups()
    text = convert(display or inline, display="block" if display else "inline")
    text = re.sub(
        r"(?<=>)[^<>]+(?=<)",
        lambda part: re.sub(
            r"[^\w\s]|_", lambda sign: f"&#{ord(sign[0])};", html.unescape(part[0])
        ),
        text,
    )
    text = text.replace("\n", " ")
    return f'<div class="formula">{text}</div>' if display else f"<span>{text}</span>"


def notebook(path: str) -> str:
    """A notebook as a page: text, code, and what the code printed and drew."""
    parts = []
    for cell in json.loads(source(path))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
        for output in cell.get("outputs", []):
            if "text" in output:
                parts.append("```text\n" + "".join(output["text"]) + "\n```")
            elif image := output["data"].get("image/png"):
                parts.append(f'<img alt="" src="data:image/png;base64,{image.strip()}">')
    return "\n\n".join(parts)


class Page(HTMLParser):
    """Where a built page leads to, and the places in it that others may lead to."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.ids = {"", "__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src", "poster", "data"):
                self.links.append(value or "")
            elif name == "srcset":  # of several pictures, each with its width
                self.links += [part.split()[0] for part in (value or "").split(",")]
            elif name in ("id", "name"):
                self.ids.add(value or "")


def check(site: Path) -> Iterator[str]:
    """What is wrong with a built site: a sentence each."""
    for path in sorted(site.rglob("*")):
        if path.suffix not in (".html", ".css", ".svg"):
            continue
        if found := LOADED.search(path.read_text(encoding="utf-8")):
            yield f"{path.relative_to(site)} loads something from elsewhere: {found[0]}"
    pages = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, here in pages.items():
        for link in here.links:
            address = urlsplit(link)
            if address.scheme or address.netloc:
                continue
            target = (path.parent / unquote(address.path)).resolve() if address.path else path
            if not target.is_file():
                yield f"{path.relative_to(site)} has a link that leads nowhere: {link}"
            elif target in pages and unquote(address.fragment) not in pages[target].ids:
                yield f"{path.relative_to(site)} leads to no place of the page: {link}"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("step", choices=["prepare", "check"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args(words)
    if options.step == "prepare":
        prepare(options.folder)
        return 0
    wrong = list(check(options.folder.resolve()))
    print(*wrong, sep="\n", end="\n" if wrong else "", file=sys.stderr)
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
