"""What pages say of results, and what makes it true: results/claims.yaml.

A claim is a sentence of a page with a name in the place of each number, where each number comes
from, and conditions that must hold:

    - in: [README.md]
      says: "At full length `linear` stays at {linear.score:.1f} %."
      values:
        linear: {cell: published_listops, row: linear, column: listops}
      holds: [linear.largest < 20]

`lra table --write` writes the numbers of today's tables into the sentence where it stands, and
`lra table --check` fails if a page has other numbers or no such sentence, or if a condition is
false. Numbers of a page that are in no claim fail too: `apart` lists the few that come from
nowhere in results/, such as those of a paper. `excerpts` are tables within pages (excerpts.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from lra.base.errors import UserError, readable, refuse_steering
from lra.base.yaml_data import read_yaml
from lra.report.excerpts import Excerpt, Texts, block_of, grid_of
from lra.report.formulas import NAMED, holds, numbers_of
from lra.report.table import Table
from lra.report.values import value_of

FILE = "claims.yaml"
WRITTEN = r"([-+−~≈]?\d[\d.,]*(?: ± \d[\d.]*)?(?:[,;] ?\d[\d.,]*(?: ± \d[\d.]*)?)*)"
# A measured number: with a fraction, a deviation or a percent sign behind it.
MEASURED = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*\.\d+(?![\w.]*\w)|(?<![\w.])\d[\d,]*(?= %)")
# Where numbers are no statements: code, addresses of links, comments, headings.
SKIPPED = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|^#.*?$", re.S | re.M)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: Texts = Field(alias="in")
    says: str
    values: dict[str, dict[str, Any]] = {}
    holds: Texts = []


class Claims(BaseModel):
    """`pages` have no measured number outside of claims, but for those `apart`: texts of a page, as
    regular expressions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: list[str] = []
    apart: list[Pattern] = []
    claims: list[Claim] = []
    excerpts: list[Excerpt] = []


def read_claims(results: Path) -> Claims:
    """The claims of a results folder; none without a file of them."""
    path = results / FILE
    if not path.exists():
        return Claims()
    with readable(path, "lra/report/claims.py explains its fields"):
        listed = read_yaml(path)
        refuse_steering(listed)
        return Claims.model_validate(listed)


def checked(results: Path, tables: Sequence[Table]) -> tuple[dict[Path, str], list[str]]:
    """The pages with the numbers of today, and what is wrong whatever numbers stand there."""
    claims, root = read_claims(results), results.parent
    named = {*claims.pages}
    named |= {page for claim in claims.claims for page in claim.pages}
    named |= {page for excerpt in claims.excerpts for page in excerpt.pages}
    pages = {page: _page(root, page).read_text(encoding="utf-8") for page in sorted(named)}
    problems: list[str] = []
    for claim in claims.claims:
        values = {name: value_of(source, tables, results) for name, source in claim.values.items()}
        problems += [
            f"no longer true: {condition!r}, of {_short(claim.says)}"
            for condition in claim.holds
            if not holds(condition, values)
        ]
        for page in claim.pages:
            found = [*pattern_of(claim.says).finditer(pages[page])]
            if not found:
                problems.append(f"{page} does not say: {_short(claim.says)}")
            for match in reversed(found):
                pages[page] = _filled(pages[page], match, numbers_of(claim.says, values))
    for excerpt in claims.excerpts:
        text = grid_of(excerpt, tables, results)
        for page in excerpt.pages:
            if (place := block_of(excerpt.name, pages[page])) is None:
                problems.append(f"{page} has no <!-- table {excerpt.name} --> with an <!-- end -->")
            else:
                pages[page] = pages[page][: place[0]] + text + pages[page][place[1] :]
    for page in claims.pages:
        problems += _unclaimed(page, pages[page], [*_said(page, pages[page], claims)], claims.apart)
    return {root / page: text for page, text in pages.items()}, problems


def _said(page: str, text: str, claims: Claims) -> Iterator[tuple[int, int]]:
    """Where claims and excerpts stand in a page whose numbers are written."""
    for claim in claims.claims:
        if page in claim.pages:
            yield from (match.span() for match in pattern_of(claim.says).finditer(text))
    for excerpt in claims.excerpts:
        if page in excerpt.pages and (place := block_of(excerpt.name, text)):
            yield place


def _page(root: Path, page: str) -> Path:
    """The place of a page, which is written: a text of this project."""
    path = root / page
    inside = path.resolve().is_relative_to(root.resolve())
    if not (inside and path.suffix == ".md" and path.is_file()):
        raise UserError(f"a claim names the page {page}, which is no .md file of {root.resolve()}")
    return path


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 90 else f"{words[:87]}...")


# ---------------------------------------------------------------------- sentences


def pattern_of(says: str) -> re.Pattern[str]:
    """The sentence with any numbers, whichever way its lines are broken."""
    parts = NAMED.split(" ".join(says.split()))
    literal = [re.escape(part).replace(r"\ ", r"\s+") for part in parts[::2]]
    return re.compile(WRITTEN.join(literal))


def _filled(text: str, match: re.Match[str], numbers: Sequence[str]) -> str:
    for group in range(len(numbers), 0, -1):
        start, end = match.span(group)
        text = text[:start] + numbers[group - 1] + text[end:]
    return text


def _unclaimed(
    page: str, text: str, said: Iterable[tuple[int, int]], apart: Sequence[str]
) -> Iterator[str]:
    """The measured numbers of a page that no claim has."""
    spans = [*said, *(m.span() for m in SKIPPED.finditer(text))]
    spans += [m.span() for known in apart for m in re.finditer(known, text)]
    for match in MEASURED.finditer(text):
        start, end = match.span()
        if not any(low <= start and end <= high for low, high in spans):
            line = text.count("\n", 0, start) + 1
            yield f"{page}, line {line}: no claim has the number {match[0]}"
