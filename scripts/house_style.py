"""How this code documents itself, for Griffe, which reads it for the pages of public names."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

import griffe

ROW = re.compile(r"(\w+)  +(.+)")
RETURNED = "returns"  # the row of what a function gives


class HouseStyle(griffe.Extension):
    """A field is documented by the comment on its line or above it; a parameter by a line of its
    name, two spaces and words, and what a function returns likewise; a paragraph of Python in a
    docstring is an example."""

    def on_attribute(self, *, attr: griffe.Attribute, **_: Any) -> None:
        if not attr.docstring and (comment := comment_of(attr)):
            attr.docstring = griffe.Docstring(comment, parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self.on_object(obj=pkg)  # Griffe calls it for what is inside a package

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            names = parameters_of(obj)
            about, *rest = obj.docstring.value.split("\n\n")
            about = about.replace("\n", " ")  # of which a summary shows the first line
            text = "\n\n".join([about, *(markdown(part, names) for part in rest)])
            text = text.replace("\n```\n\n```python\n", "\n\n")
            obj.docstring.value = re.sub(r":\w+:`", "`", text)


def comment_of(attr: griffe.Attribute) -> str:
    """What is said behind a field, else in the lines above it."""
    if behind := attr.source.partition("  # ")[2]:
        return behind
    lines: list[str] = []
    for line in reversed(attr.lines_collection[attr.filepath][: (attr.lineno or 1) - 1]):
        if not line.strip().startswith("# "):
            break
        lines.insert(0, line.strip().removeprefix("# "))
    return " ".join(lines)


def parameters_of(obj: griffe.Object) -> dict[str, str]:
    """The parameters by their names, each as a section of a docstring must call it."""
    known = obj.parameters if isinstance(obj, griffe.Function | griffe.Class) else ()
    several = {griffe.ParameterKind.var_keyword: "**", griffe.ParameterKind.var_positional: "*"}
    return {p.name.lstrip("*"): several.get(p.kind, "") + p.name.lstrip("*") for p in known}


def markdown(paragraph: str, names: dict[str, str]) -> str:
    with contextlib.suppress(SyntaxError):
        if ast.parse(paragraph).body:
            return f"```python\n{paragraph}\n```"
    joined = re.sub(r"\n {2,}", " ", paragraph)  # a row goes on where a line is indented
    rows = [ROW.fullmatch(line) for line in joined.splitlines()]
    found = {row[1]: row[2] for row in rows if row}
    if len(found) < len(rows) or not found.keys() <= {*names, RETURNED}:
        return re.sub(r"^(\w+)  +", r"* `\1`: ", paragraph, flags=re.MULTILINE)
    returned = found.pop(RETURNED, "")
    sections = []
    if found:
        lines = [f"    {names[name]}: {words}" for name, words in found.items()]
        sections.append("\n".join(["Args:", *lines]))
    if returned:
        sections.append(f"Returns:\n    {returned}")
    return "\n\n".join(sections)
