"""How this code documents itself, for Griffe, which reads it for the pages of public names."""

from __future__ import annotations

import ast
import contextlib
import re
from typing import Any

import griffe


class HouseStyle(griffe.Extension):
    """A field is documented by the comment on its line, a parameter by a line of its name, two
    spaces and words; a paragraph of Python in a docstring is an example."""

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
