"""What MkDocs does not do by itself for `make docs`: the hooks of mkdocs.yml.

The site has the layout of the repository. Its pages are those of the navigation and every file that
they link to, directly or through another page, so a relative link holds in both places.
"""

from __future__ import annotations

import ast
import contextlib
import html
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
RAW = re.compile(r'(?:href|src)="([^"#:]+)"')  # links of a page that is no Markdown
LINK = re.compile(r"\]\(([^)#:\s]+)")  # of Markdown, without addresses elsewhere
LOADED = re.compile(  # what a browser asks for by itself; a link is followed by its reader only
    r"""<[a-z]+\b[^>]*\ssrc(?:set)?=["']?(?:https?:)?//|<link\b[^>]*\shref=["']?(?:https?:)?//"""
    r"""|url\(\s*["']?(?:https?:)?//|@import""",
    re.IGNORECASE,
)
# As the extension arithmatex leaves it.
FORMULA = re.compile(r"(?s)\\([(\[])(.+?)\\[)\]](?=</(?:span|div)>)")
LOADED_BY_PAGES = ["docs/site.css", "docs/iframe-worker.js"]
MODULES = ("lra", "lra.data", "luna", "luna.convert")


class HouseStyle(griffe.Extension):
    """How this code documents itself: a field by the comment on its line, a parameter by a line of
    its name, two spaces and words; a paragraph of Python in a docstring is an example."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        comment = attr.source.partition("  # ")[2]
        if comment and not attr.docstring:
            attr.docstring = griffe.Docstring(comment, parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self.on_object(obj=pkg)  # Griffe calls it for what is inside a package

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            about, *rest = obj.docstring.value.split("\n\n")
            about = about.replace("\n", " ")  # of which a summary shows the first line
            text = "\n\n".join([about, *map(markdown, rest)])
            text = text.replace("\n```\n\n```python\n", "\n\n")
            obj.docstring.value = re.sub(r":\w+:`", "`", text)


def markdown(paragraph: str) -> str:
    with contextlib.suppress(SyntaxError):
        if ast.parse(paragraph).body:
            return f"```python\n{paragraph}\n```"
    return re.sub(r"^(\w+)  +", r"* `\1`: ", paragraph, flags=re.MULTILINE)


class Notebook(File):
    """A notebook as a page: text, code, and what the code printed and drew."""

    def is_documentation_page(self) -> bool:
        return True

    @property
    def content_string(self) -> str:
        parts = []
        for cell in json.loads((ROOT / self.src_uri).read_text(encoding="utf-8"))["cells"]:
            text = "".join(cell["source"])
            parts.append(text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```")
            for output in cell.get("outputs", []):
                if "text" in output:
                    parts.append("```text\n" + "".join(output["text"]) + "\n```")
                elif image := output["data"].get("image/png"):
                    parts.append(f'<img alt="" src="data:image/png;base64,{image.strip()}">')
        return "\n\n".join(parts)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas as MathML, which browsers draw without a script."""
    display = {"(": "inline", "[": "block"}
    content = content.replace('<div class="arithmatex">', '<div style="overflow: auto hidden">')
    return FORMULA.sub(lambda f: convert(html.unescape(f[2]), display=display[f[1]]), content)


def on_files(files: Files, config: Any) -> Files:
    """The theme's files, the repository's, and a page for the public names of each module."""
    found = Files([file for file in files if file.src_dir != config.docs_dir])
    for module in MODULES:
        others = " · ".join(f"[{other}]({other}.md)" for other in MODULES if other != module)
        page = f"# {module}\n\nPublic names of the other modules: {others}\n\n::: {module}\n"
        found.append(File.generated(config, f"api/{module}.md", content=page))
    for path in linked([*pages(config.nav), *LOADED_BY_PAGES]):
        kind = Notebook if path.endswith(".ipynb") else File
        file = kind.generated(config, path, abs_src_path=str(ROOT / path))
        if path == "results/README.md":  # beside it lies an index.html
            file.dest_uri = "results/README.html"
        found.append(file)
    for file in [file for file in found if file.src_uri.endswith(".html")]:
        found.remove(file)
        found.append(File.generated(config, file.src_uri, content=among(found, file)))
    return found


def among(files: Files, page: File) -> str:
    """A page that is no Markdown, its links to Markdown led to the pages made of it."""

    def led(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.src_uri)
        file = files.get_file_from_path(posixpath.normpath(posixpath.join(folder, link[1])))
        if file is None:
            raise PluginError(f"{page.src_uri} has a link that leads nowhere: {link[1]}")
        return f'href="{posixpath.relpath(file.dest_uri, folder)}"'

    text = (ROOT / page.src_uri).read_text(encoding="utf-8")
    return re.sub(r'href="([^"#:]+\.md)"', led, text)


def pages(nav: Any) -> list[str]:
    """The repository's pages in the navigation, in its order."""
    if isinstance(nav, str):
        return [] if nav.startswith("api/") else [nav]
    inside = nav.values() if isinstance(nav, dict) else nav
    return [page for part in inside for page in pages(part)]


def linked(paths: list[str]) -> list[str]:
    """These files and all that they lead to; what does not exist is left to MkDocs to report."""
    for path in paths:  # grows meanwhile
        if path.endswith((".md", ".html")):
            folder = posixpath.dirname(path)
            for link in (LINK if path.endswith(".md") else RAW).findall(
                (ROOT / path).read_text(encoding="utf-8")
            ):
                target = posixpath.normpath(posixpath.join(folder, link))
                if target not in paths and (ROOT / target).is_file():
                    paths.append(target)
    return paths


def on_post_build(config: Any) -> None:
    """The site must be complete: no script, style, font or picture comes from elsewhere."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            found = LOADED.search(path.read_text(encoding="utf-8"))
            if found:
                raise PluginError(f"{path} loads something from elsewhere: {found[0]}")
