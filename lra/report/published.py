"""The published numbers that stand beside measured ones and are never ranked with them:
lra/reference/published.yaml, read and checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lra.base.places import PACKAGE
from lra.results.record import Record

FILE = PACKAGE / "reference" / "published.yaml"
DOCUMENTS = {"retrieval": 2}  # texts of one example

Score = Annotated[float, Field(ge=-100, le=100)]
# In G, so that a number of tokens by itself is refused; and weights by themselves, not in M.
Tokens = Annotated[float, Field(gt=0, le=10_000)]
Parameters = Annotated[int, Field(ge=1000)]
Layers = Annotated[int, Field(ge=1, le=1000)]
Width = Annotated[int, Field(ge=8)]


class Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Row(Checked):
    """A method's scores by task, null where there is none. One number among the other facts stands
    for every task; a list has one for each, null where the source does not say it."""

    values: list[Score | None]
    source: str
    deviation: list[float | None] | None = None
    tokens: Tokens | list[Tokens | None] | None = None  # G that it was trained on
    parameters: Parameters | list[Parameters | None] | None = None
    layers: Layers | list[Layers | None] | None = None
    width: Width | list[Width | None] | None = None
    selected_seed: bool = False  # the best of several, or one that was chosen: no mean


class Group(Checked):
    """The rows of one published table, or of several with the same tasks."""

    title: str
    url: str = ""
    digits: int = 2
    tasks: list[str]
    also: str = ""  # another table, whose rows stand beside the same runs
    rows: dict[str, Row]

    @model_validator(mode="after")
    def _a_number_for_each_task(self) -> Self:
        for name, row in self.rows.items():
            for fact, value in row:
                if isinstance(value, list) and len(value) != len(self.tasks):
                    raise ValueError(
                        f"{fact} of the row {name} has {len(value)} numbers for "
                        f"{len(self.tasks)} tasks"
                    )
        return self


class Published(Checked):
    """All of published.yaml, whose comments say what its parts are."""

    sources: dict[str, str]
    labels: dict[str, str]
    brackets: dict[str, Literal["lost", "kept", "unknown"]]
    tables: dict[str, Group]

    @model_validator(mode="after")
    def _what_is_named_is_there(self) -> Self:
        for name, table in self.tables.items():
            if table.also and table.also not in self.tables:
                raise ValueError(f"{name} takes rows of {table.also}, which is no table")
            for row in table.rows.values():
                # A picture shows the rows of ListOps by source, with what is known of its brackets.
                shown = (self.labels, self.brackets) if "listops" in table.tasks else ()
                if any(row.source not in known for known in (self.sources, *shown)):
                    raise ValueError(
                        f"{name} has a source of which too little is said: {row.source}"
                    )
        return self


class Printed(NamedTuple):
    """What is published for one cell of a table of ours."""

    score: float | None = None
    source: str | None = None
    tokens: float | None = None  # G
    parameters: int | None = None
    layers: int | None = None
    width: int | None = None
    selected_seed: bool = False


@cache
def published() -> Published:
    return Published.model_validate(yaml.safe_load(FILE.read_text(encoding="utf-8")))


def printed_on(tasks: Sequence[str]) -> list[tuple[str, str, list[str]]]:
    """Row, source in words, and scores on these tasks, of every row with a score on test there that
    names its method; by name, and what two tables repeat once."""
    found = set()
    for table in published().tables.values():
        at = [table.tasks.index(task) if task in table.tasks else None for task in tasks]
        for name, row in table.rows.items():
            label = published().labels.get(row.source)
            scores = [None if place is None else row.values[place] for place in at]
            if label is None or name.startswith(("M=", "L=")) or scores == [None] * len(tasks):
                continue
            texts = ["" if score is None else f"{score:.{table.digits}f}" for score in scores]
            found.add((name, label, tuple(texts)))
    return [(name, label, [*texts]) for name, label, texts in sorted(found, key=_by_name)]


def _by_name(row: tuple[str, str, tuple[str, ...]]) -> tuple[str, str]:
    return row[0].lower(), row[1]


def published_score(
    name: str | None, method: str, task: str, options: Mapping[str, Any]
) -> Printed:
    """What a published table has for a method on a task, if anything."""
    for table in _tables(name):
        for row, facts in table.rows.items():
            if task not in table.tasks or not _is_of(row, method, options):
                continue
            place = table.tasks.index(task)
            if (score := facts.values[place]) is not None:
                about = (_at(facts, fact, place) for fact in Printed._fields[2:])
                return Printed(score, facts.source, *about)
    return Printed()


def _tables(name: str | None) -> Iterator[Group]:
    """A table, and the one whose rows it takes too."""
    while name:
        table = published().tables[name]
        yield table
        name = table.also


def _is_of(row: str, method: str, options: Mapping[str, Any]) -> bool:
    """Whether a row is a method's: by its name, or with options behind it, `mega chunk=None`. Rows
    of LUNA's ablations are their options alone, `M=8 L=4`."""
    if row == method:
        return True
    given = {f"{key}={value}" for key, value in options.items()}
    first, *others = row.split()
    if method == "luna":
        return {first, *others} - {"luna"} <= given
    return first == method and {*others} <= given


def _at(row: Row, fact: str, place: int) -> Any:
    value = getattr(row, fact)
    return value[place] if isinstance(value, list) else value


def tokens_of(record: Any) -> float | None:
    """The G tokens that a training run was shown, padding among them, because that is what can be
    read off a published recipe: steps x batch x padded length, of both texts of a pair."""
    if not isinstance(record, Record) or record.kind != "training":
        return None
    data = "settings.protocol.data."
    length = record.get(f"{data}pad_to") or record.get(f"{data}max_length")
    facts = [record.get("steps"), record.get("batch"), length or record.get("data.width")]
    if not all(facts):
        return None
    steps, batch, length = facts
    return float(steps * batch * length * DOCUMENTS.get(record["task"], 1) / 1e9)


def budget_text(printed: Printed, cell: Mapping[str, Any]) -> str:
    """`24 times our tokens, 30 times our weights, 6 layers of width 256`, as far as both sides are
    known."""
    said = []
    for theirs, ours, what in (
        (printed.tokens, tokens_of(cell["record"]), "tokens"),
        (printed.parameters, cell.get("parameters"), "weights"),
    ):
        if theirs and ours and ours > 0:
            said.append(f"{_plain(theirs / ours)} times our {what}")
    if printed.layers:
        width = f" of width {printed.width}" if printed.width else ""
        said.append(f"{printed.layers} layers{width}")
    if printed.selected_seed:
        said.append("a selected seed")
    return ", ".join(said)


def _plain(ratio: float) -> str:
    """24, 2.4, 0.24"""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
