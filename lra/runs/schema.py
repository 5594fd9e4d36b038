"""What the record of a finished run holds: one model of what is written, read back and checked.

Facts that are not named here stay as they are: records of other versions have some.
lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, model_validator

from lra.base.errors import UserError
from lra.settings.experiment import identity_of

TRAINING, CONVERSION = "training", "conversion"
BEGUN_SINCE = datetime(2026, 12, 1, tzinfo=UTC)  # records of runs that finished before may lack it
LARGEST = 10**18  # no count or measurement of a run comes near it


def _is_option(value: Any) -> Any:
    """An option is a word, a number, or a list of these: it becomes part of a row's name."""
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, str | int | float | None):
            raise ValueError(f"{value!r:.200} is neither a word, a number nor a list of these")
    return value


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


WHITE = str.maketrans("\n\t", "  ")  # a source of own data may be named in two lines
# A name is part of paths and tables.
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)]
Whole = Annotated[int, Field(ge=0, lt=LARGEST)]
Positive = Annotated[int, Field(ge=1, lt=LARGEST)]
Number = Annotated[float, Field(ge=0, lt=LARGEST)]
Share = Annotated[float, Field(ge=0, le=1)]
Score = Annotated[float, Field(ge=-1, le=1)]  # an accuracy, or a correlation
# With a zone, so that it can be compared with other machines'; pydantic alone would read numbers.
Time = Annotated[AwareDatetime, BeforeValidator(datetime.fromisoformat)]
Point = Annotated[tuple[Whole, Share], Field(strict=False)]  # step and accuracy; JSON has lists
Group = dict[str, Any]


class Facts(pydantic.BaseModel, extra="allow", strict=True):
    """Named facts have these types; others stay as they are."""


class Attention(Facts):
    __pydantic_extra__: dict[str, Annotated[Any, AfterValidator(_is_option)]]

    name: Name


class Protocol(Facts):
    name: Name
    version: Whole


class Budget(Facts):
    reference: str | None = None
    parameters: Number | None = None
    flops: Number | None = None
    examples: Number | None = None
    tolerance: dict[str, Number] | None = None


class Compute(Facts):
    parameters: Whole
    flops: Whole
    verdict: str | None = None
    exempt: str | None = None
    budget: Budget | None = None
    training: dict[str, Number] | None = None  # FLOPs of its phases
    reference: dict[str, str | Number] | None = None  # ratios to the budget, and its name


class Data(Facts):
    fingerprint: Name
    source: str
    provenance: str | None = None
    majority: Share | None = None
    options: Group | None = None


class Test(Facts):
    """A checkpoint's score on the test examples, or on their scored tokens."""

    accuracy: Share
    loss: Number
    examples: Positive
    scored: Positive | None = None
    step: Whole | None = None
    select: Literal["best", "last"] | None = None  # which checkpoint gave the score of the run
    predicted: list[Whole] | None = None  # how often each class was answered
    dead_rows: Share | None = None

    @model_validator(mode="after")
    def _follows_from_answers(self) -> Test:
        n = self.scored or self.examples
        hits = self.accuracy * n
        if not math.isclose(hits, round(hits), rel_tol=0, abs_tol=max(1e-3, 1e-6 * n)):  # float32
            raise ValueError(f"its accuracy is {self.accuracy}, no multiple of 1/{n}")
        if self.predicted is not None and sum(self.predicted) != n:
            raise ValueError(f"it has {sum(self.predicted)} answers to {n} questions")
        return self


class Machine(Facts):
    device: str


class Git(Facts):
    revision: Name | None = None
    dirty: bool | None = None


class Times(Facts):
    begun: Time | None = None  # the first time, where a run was resumed
    started: Time | None = None  # the last time
    finished: Time

    @model_validator(mode="after")
    def _in_order(self) -> Times:
        if self.started and self.finished < self.started:
            raise ValueError(f"it finished at {self.finished}, before it started at {self.started}")
        if self.begun is None and self.finished >= BEGUN_SINCE:
            raise ValueError("it does not say when its run was begun")
        return self


class RunRecord(Facts):
    """What records of both kinds hold beside their own facts."""

    repeats: ClassVar[dict[str, str]]  # fact -> setting that it is equal to

    schema_: Literal[1] = Field(alias="schema")
    status: Literal["finished"]
    identity: Name
    attempt: Whole | None = None
    codes: Annotated[list[Name], Field(max_length=10)] | None = None
    code: Group | None = None
    command: str | None = None
    task: Name
    attention: Attention
    model: Name
    seed: Whole
    settings: Facts
    git: Git | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _follows_from_settings(cls, facts: Any, check: Any) -> Any:
        record, settings = check(facts), facts["settings"]
        refuse_steering(facts)
        if "${" in str(settings):  # would be looked up in this machine's environment
            raise ValueError("its settings hold an interpolation, ${..}")
        for fact, setting in cls.repeats.items():
            value, expected = find_fact(facts, fact), find_fact(settings, setting)
            if value != expected:
                raise ValueError(
                    f"its {fact} is {value!r:.200}, but in its settings it is {expected!r:.200}"
                )
        expected = identity_of(settings, find_fact(facts, "data.fingerprint"))
        if facts["identity"] != expected:
            raise ValueError(
                f"its identity is {facts['identity']:.40}, but its settings and data "
                f"are those of run {expected}"
            )
        return record


class TrainingRecord(RunRecord):
    repeats = {
        "attention": "attention",
        "task": "task.name",
        "model": "model.name",
        "protocol.name": "protocol.name",
        "protocol.version": "protocol.version",
        "budget": "budget",
        "steps": "protocol.recipe.steps",
        "batch": "protocol.recipe.batch",
        "precision": "precision",
        "data.source": "task.source",
        "pretraining.name": "pretrain.name",
        "pretraining.rate": "pretrain.rate",
        "pretraining.steps": "pretrain.recipe.steps",
        "pretraining.batch": "pretrain.recipe.batch",
    }

    protocol: Protocol
    budget: Number
    steps: Whole
    batch: Whole
    precision: str
    compute: Compute
    pretraining: Group | None = None
    data: Data
    dev: dict[str, Number | None] | None = None
    test: Test
    test_last: Test | None = None
    test_best: Test | None = None
    answers: dict[str, Name | None] | None = None  # digests; early records have no file of them
    predictions: None = None  # its answers are in a file of their own
    labels: None = None
    curve: list[Point]
    seconds: dict[str, Number] | None = None
    steps_per_second: Number
    peak_memory_mib: Number
    machine: Machine
    times: Times

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TrainingRecord:
        tested = self.test_best if self.test.select == "best" else self.test_last
        if tested and (tested.accuracy, tested.step) != (self.test.accuracy, self.test.step):
            raise ValueError(f"its test is not that of its {self.test.select} checkpoint")
        # Steps between two points.
        every = find_fact(self.settings.model_extra, "protocol.evaluation.every")
        if self.curve and isinstance(every, int):
            steps = [step for step, _ in self.curve]
            expected = [min(i * every, self.steps) for i in range(1, len(steps) + 1)]
            stopped = "callbacks" in (self.settings.model_extra or {})  # perhaps, before the end
            whole = steps[-1] == self.steps or stopped
            if steps != expected or not whole or steps[-2:-1] == steps[-1:]:
                raise ValueError(
                    f"its curve has {len(steps)} points up to step {steps[-1]}, not "
                    f"one every {every} of {self.steps} steps"
                )
        parts, begun = self.seconds or {}, self.times.begun
        done, seconds = self.steps_per_second * parts.get("training", 0), sum(parts.values())
        if done > self.steps * 1.01 + 1:
            raise ValueError(f"its speed and time make {done:.0f} steps, but it has {self.steps}")
        if begun and seconds > (wall := (self.times.finished - begun).total_seconds()) + 60:
            raise ValueError(f"it took {seconds:.0f} seconds, but from start to end {wall:.0f}")
        return self


class StageScore(Facts):
    score: Score


class ConversionSettings(Facts):
    recipe: Group
    teacher: str


class ConversionRecord(RunRecord):
    repeats = {"attention": "attention", "task": "task", "model": "model"}

    settings: ConversionSettings
    data: dict[str, str | None] | None = None
    scores: dict[Name, StageScore]
    score: Score
    floor: Score
    stage1: Group | None
    phi_parameters: Whole
    train_examples: Whole | None = None
    predictions: dict[str, list[float]] | None = None  # by split
    labels: dict[str, list[float]] | None = None
    seconds: dict[str, Number | None] | None = None
    machine: Group | None = None
    times: dict[str, Time] | None = None  # the first conversions did not record them
    test: None = None  # a training run's

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ConversionRecord:
        if "teacher" not in self.scores:
            raise ValueError("scores.teacher.score is missing")
        last = next((s for s in ("best", "stage1", "swap") if s in self.scores), None)
        if last is not None and self.score != self.scores[last].score:
            raise ValueError(f"its score is not the score of '{last}'")
        by_split = [value or {} for value in (self.labels, self.predictions)]
        lengths = [{split: len(values) for split, values in by.items()} for by in by_split]
        if lengths[0] != lengths[1]:
            raise ValueError("it does not have one prediction per label")
        return self


def kind_of(facts: Group) -> str:
    return CONVERSION if "scores" in facts else TRAINING


def check_record(where: str, facts: Group) -> None:
    """UserError, beginning with `where`, for the first thing that no record has."""
    model = ConversionRecord if kind_of(facts) == CONVERSION else TrainingRecord
    try:
        model.model_validate(facts)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, value = ".".join(map(str, first["loc"])), first["input"]
        if first["type"] == "missing" or value is None:
            problem = f"{name} is missing"
        elif first["type"] == "value_error":
            problem = ": ".join([*([name] if name else []), str(first["ctx"]["error"])])
        else:
            problem = f"{name} is {value!r:.200}: {first['msg'].lower()}"
        raise UserError(f"{where} is damaged or was edited: {problem}") from error


def find_fact(facts: Any, key: str, default: Any = None) -> Any:
    """Look up a fact by its dotted name."""
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            return default
        facts = facts[part]
    return facts


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact in nested groups, with its dotted name."""
    groups = [(name, value)]
    while groups:
        name, value = groups.pop()
        if isinstance(value, dict):
            inside = ((f"{name}.{key}" if name else key, inner) for key, inner in value.items())
            groups += reversed(list(inside))
        else:
            yield name, value
