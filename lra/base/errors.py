"""Mistakes of the user, and texts that are safe to print: one sentence that says what to do."""

from __future__ import annotations

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

WHITE = str.maketrans("\n\t", "  ")  # a source of own data may be named in two lines


class UserError(Exception):
    """Names a mistake of the user in one sentence that says what to do; commands exit with 2."""


class Diverged(UserError):
    """Says that the loss of a run is no number any more: the status of its run names this class."""


@contextlib.contextmanager
def readable(path: Path | str, hint: str) -> Iterator[None]:
    """Turn whatever a parser meets in a file into one sentence that names the file: damaged bytes
    make parsers, most of them not ours, raise anything."""
    try:
        yield
    except Exception as error:
        if isinstance(error, UserError) and str(path) in str(error):
            raise
        if isinstance(error, OSError) and error.errno == errno.EMFILE:  # says nothing of the file
            raise UserError(f"{path} cannot be read: too many open files, see ulimit -n") from error
        if isinstance(error, MemoryError):
            raise UserError(f"{path} cannot be read: there is too little memory for it") from error
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{path} is damaged or invalid ({reason}): {hint}") from error


def first_line(error: BaseException) -> str:
    """Give the first line of an error's message; the name of its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


# Behind "must be", by OmegaConf's names of types.
TYPES = {"Float": "a number", "Integer": "a whole number", "bool": "true or false"}
WRONG_TYPE = re.compile(r"Value '(.*)' of type '.*' could not be converted to (\w+)")


def of_type(name: str, value: str, kind: str) -> str:
    """`M must be a whole number, got 'x'`, of a type as OmegaConf calls it."""
    return f"{name} must be {TYPES.get(kind, f'a value of type {kind}')}, got '{value}'"


def printable(text: str) -> str:
    """Write control characters and those that turn the direction of a text as escapes: a name in a
    file of somebody else must not steer the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    return " ".join(text.split())


def escape_md(text: str) -> str:
    """Write a text for Markdown, in which nothing of it is markup."""
    return re.sub(r"([\\|*_`\[\]])", r"\\\1", one_line(text)).replace("<", "&lt;")


def csv_text(text: str) -> str:
    """Mark a text that a spreadsheet would compute as a formula."""
    text = printable(text)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def nearest(word: str, names: Iterable[str], shown: Iterable[str] | None = None) -> str:
    """End an error message with the closest names, or with all or those to be shown, up to 60."""
    names = sorted(names)
    spelt = {name.lower(): name for name in names}  # M is close to m
    initials = "".join(part[:1] for part in word.lower().split("_"))  # and lr to learning_rate
    close = [spelt[n] for n in difflib.get_close_matches(word.lower(), spelt, n=3, cutoff=0.5)]
    close = [spelt[initials]] if "_" in word and initials in spelt else close
    known = names if shown is None else sorted(shown)
    listed = ", ".join([*known[:60], *["..."] * (len(known) > 60)])
    return f"; did you mean {' or '.join(close)}?" if close else f"; known: {listed}"


def refuse_steering(value: Any) -> None:
    """ValueError for a text in nested facts that could steer a terminal or turn a line around."""
    if "\\" not in repr(value):  # in which such characters are escapes: most records have none
        return
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        for part in value:
            refuse_steering(part)
    elif isinstance(value, str) and not value.translate(WHITE).isprintable():
        raise ValueError(f"{value!a:.200} holds characters that could steer a terminal")
