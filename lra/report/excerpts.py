"""Tables within pages, so that no number is typed twice: `excerpts` of results/claims.yaml.

    - in: results/recall.md
      name: pairs
      first: attention                       # what stands above the labels
      columns:                               # heading: where a cell comes from, but for its row
        16 pairs: {cell: recall, column: pairs=16}
        shown: {cell: recall, column: pairs=16, shows: "{it.list}"}
      rows:                                  # label: the row in each column, or
        softmax: softmax
        LUNA: [luna M=8 L=8, null]           # one a column; null leaves a place free
        "*best rule*": {rule: }              # other facts of the source; a rule of the same table

`lra table --write` puts the table between `<!-- table pairs -->` and `<!-- end -->` of the page,
and `lra table --check` fails if another one is there. A cell shows `{it} {it.mark}`, or the formula
that its column has as `shows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lra.base.errors import UserError
from lra.report.formulas import written
from lra.report.table import Table
from lra.report.values import value_of

END = "<!-- end -->"
SHOWN = {"cell": "{it} {it.mark}"}  # by kind of source; else `{it}`


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_listed)]
Part = str | dict[str, Any] | None  # of a row: what one column has


class Excerpt(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: Texts = Field(alias="in")
    name: str
    first: str = ""
    columns: dict[str, dict[str, Any]]
    rows: dict[str, list[Part] | Part]


def block_of(name: str, page: str) -> tuple[int, int] | None:
    """Where the table of this name stands in the text of a page; None without its place."""
    begin = f"<!-- table {name} -->\n"
    start, end = page.find(begin), page.find(END, page.find(begin))
    return None if start < 0 or end < 0 else (start + len(begin), end)


def grid_of(excerpt: Excerpt, tables: Sequence[Table], results: Path) -> str:
    """The table in Markdown, with an empty line around it."""
    lines = [[excerpt.first, *excerpt.columns], ["---", *["--:"] * len(excerpt.columns)]]
    for label, row in excerpt.rows.items():
        parts = row if isinstance(row, list) else [row] * len(excerpt.columns)
        if len(parts) != len(excerpt.columns):
            raise UserError(
                f"'{label}' of {excerpt.name} has {len(parts)} places, not one a column"
            )
        columns = zip(excerpt.columns.values(), parts, strict=True)
        lines.append([label, *(_cell(column, part, tables, results) for column, part in columns)])
    return "\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def _cell(column: Mapping[str, Any], part: Part, tables: Sequence[Table], results: Path) -> str:
    if part is None:
        return ""
    source = dict(column) | ({"row": part} if isinstance(part, str) else part)
    if isinstance(part, dict) and "rule" in part:  # of the table and the column of this cell
        source["rule"] = part["rule"] or source.pop("cell")
        source = {key: source[key] for key in ("rule", "name", "column") if key in source}
    shown = source.pop("shows", None) or SHOWN.get(next(iter(source)), "{it}")
    return written(shown, {"it": value_of(source, tables, results)}).strip()
