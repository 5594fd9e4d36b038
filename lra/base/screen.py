"""Words on a terminal's width; whatever else reads them, a file or a pipe, gets one line."""

from __future__ import annotations

import shutil
import textwrap
from typing import TextIO

LEAST = 24  # columns of text, on however narrow a terminal


def fitted(head: str, text: str, stream: TextIO) -> str:
    """The head, and behind it the text; on a terminal in as many lines as it takes."""
    if not stream.isatty():
        return head + text
    wide = max(shutil.get_terminal_size().columns - len(head), LEAST)
    lines = textwrap.fill(text, wide, break_long_words=False, break_on_hyphens=False)
    return head + textwrap.indent(lines, " " * len(head)).lstrip()
