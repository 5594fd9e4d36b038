"""What rules without attention score (results/rules.jsonl), read and checked as records are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from lra.base.disk import plain_file
from lra.base.errors import UserError, readable, refuse_steering
from lra.data.rules import FILE, read_scores
from lra.runs.facts import Facts, Name, Score, Whole
from lra.runs.schema import Metric

Counts = Annotated[tuple[Whole, Whole], Field(strict=False)]  # JSON has lists
RuleName = Annotated[str, Field(min_length=1, max_length=100)]


class Rule(Facts, extra="forbid"):
    reads: Annotated[str, Field(max_length=200)]  # what it looks at
    val: Score
    test: Score
    bound: bool = False  # no method can do better
    # By difficulty: right answers, of so many.
    by: dict[str, Counts] = Field({})


class Rungs(Facts, extra="forbid"):
    """What must be read of each test example."""

    names: list[RuleName]  # from the least to the most
    test: Annotated[str, Field(pattern="^[0-9]*$")]  # of each example the number of a name
    rules: dict[RuleName, list[Counts]]  # right answers, of so many, for each name

    @model_validator(mode="after")
    def _possible(self) -> Rungs:
        of = [self.test.count(str(number)) for number in range(len(self.names))]
        if sum(of) != len(self.test):
            raise ValueError(f"an example has none of the {len(self.names)} rungs")
        for name, counts in self.rules.items():
            if [n for _, n in counts] != of or any(right > n for right, n in counts):
                raise ValueError(f"the counts of '{name}' are not those of its rungs")
        return self


class Line(Facts, extra="forbid"):
    """The rules of one data set."""

    task: Name
    fingerprint: Name
    metric: Metric
    options: dict[str, Any] = Field({})
    rules: dict[RuleName, Rule]
    # Rules that read a part and know the rest; no row is held against them.
    readers: dict[RuleName, Rule] = Field({})
    rungs: Rungs | None = None
    missing: list[RuleName] = Field([])  # rules of the task that were not fitted

    @model_validator(mode="after")
    def _possible(self) -> Line:
        for name, rule in [*self.rules.items(), *self.readers.items()]:
            scores = (rule.val, rule.test)
            if self.metric.unit == "%" and not all(0 <= score <= 100 for score in scores):
                raise ValueError(f"the rule '{name}' scores {scores}, no percentages")
            if any(right > of for right, of in rule.by.values()):
                raise ValueError(f"the rule '{name}' has more right answers than examples")
        return self


def read_rules(results: Path) -> list[dict[str, Any]]:
    """Read and check the file of a folder of results; nothing where there is none."""
    path = results / FILE
    with readable(path, "make it again with `lra data baseline`"):
        return [*_checked(read_scores(plain_file(path)))]


def _checked(lines: list[Any]) -> Iterator[dict[str, Any]]:
    seen = set[str]()
    for line in lines:
        refuse_steering(line)
        fingerprint = Line.model_validate(line).fingerprint
        if fingerprint in seen:
            raise UserError(f"two lines are of the data {fingerprint}")
        seen.add(fingerprint)
        yield line
