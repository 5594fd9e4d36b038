"""What the record of a finished run holds: built by the run, written, read back and checked.

This is the only place where the fields of a record are stated. The data frame (results/frame.py),
tables and the page take their columns from it: `Column` says what a dotted name does not.
lra/results/audit.py recomputes the numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

import pydantic
from pydantic import Field, model_validator

from lra.base.errors import UserError, refuse_steering
from lra.runs.facts import (
    Column,
    Facts,
    Group,
    Name,
    Number,
    Option,
    Point,
    Positive,
    Real,
    RunName,
    Score,
    Share,
    Time,
    Whole,
    dotted_key,
    find_fact,
    shared_name,
)
from lra.runs.trials import Outcome, rate_of
from lra.settings.experiment import SCHEMA_VERSION, identity_of

TRAINING, CONVERSION = "training", "conversion"
HIDDEN = Column(shown=False)  # long lists, and details of a conversion's stages
FLOAT = Column(number=True)


# ---------------------------------------------------------------------- groups of facts


class Attention(Facts):
    __pydantic_extra__: dict[str, Option]

    name: Name


class Protocol(Facts):
    name: Annotated[Name, Column("protocol")]
    version: Whole


class Metric(Facts):
    """The metric of the score, so that a table needs no code of it."""

    name: Annotated[Name, Column("metric")]
    title: str
    unit: str
    digits: Annotated[int, Field(ge=0, le=9)]
    higher_is_better: bool


class Stage(Facts):
    """What a network scored: at the last or the best checkpoint, after a stage of a conversion. A
    training has its answers, and all that follows from them."""

    score: Score
    metrics: dict[Name, Score] = Field({})  # others of the task, or what the score is made of
    loss: Annotated[Number | None, Column("loss", number=True)] = None
    examples: Annotated[Positive | None, Column("examples", number=True)] = None
    # Examples, or their scored tokens.
    scored: Annotated[Positive | None, Column("scored", number=True)] = None
    right: Whole | None = None  # of these, where the score is an accuracy
    # Standard deviation of the score if the test examples were drawn again.
    noise: Annotated[Number | None, Column("noise", number=True)] = None
    step: Whole | None = None
    predicted: Annotated[list[Whole] | None, HIDDEN] = None  # how often each class was answered
    dead_rows: Annotated[Share | None, Column("dead_queries", number=True)] = None
    weights: Name | None = None  # digest of those that were tested

    @model_validator(mode="after")
    def _follows_from_answers(self) -> Stage:
        if self.right is not None:
            n = self.scored or self.examples or 0
            if not n or self.score != 100 * self.right / n:
                raise ValueError(f"its score is {self.score}, but {self.right} of {n} are right")
        if self.predicted is not None and sum(self.predicted) != self.scored:
            raise ValueError(f"it has {sum(self.predicted)} answers to {self.scored} questions")
        return self


class Dev(Facts):
    """The best evaluation on dev."""

    score: Score
    step: Whole
    examples: Positive | None = None  # runs did not say so before schema 2
    scored: Positive | None = None
    right: Whole | None = None

    @model_validator(mode="after")
    def _follows_from_counts(self) -> Dev:
        if self.right is not None and self.scored and self.score != 100 * self.right / self.scored:
            raise ValueError(f"it is {self.score}, but {self.right} of {self.scored} are right")
        return self


class Budget(Facts):
    reference: str | None = None
    parameters: Number | None = None
    flops: Number | None = None
    examples: Number | None = None
    tolerance: dict[str, Number] | None = None


class Compute(Facts):
    parameters: Annotated[Whole, Column("parameters", number=True)]
    flops: Annotated[Whole, Column("flops", number=True)]
    # Numbers that a head of the method's causal form keeps between tokens; None without one.
    state: Annotated[Whole | Literal["grows"] | None, Column("state")] = None
    verdict: str | None = None
    exempt: str | None = None
    budget: Budget | None = None
    training: dict[str, Number] | None = None  # FLOPs of its phases
    reference: dict[str, str | Number] | None = None  # ratios to the budget, and its name
    parts: Annotated[Group | None, HIDDEN] = None


class Data(Facts):
    fingerprint: Annotated[Name | None, Column("fingerprint")]
    source: str | None = None
    provenance: str | None = None
    options: Group | None = None


class Rate(Facts):
    """A group of parameters that the optimiser treats alike."""

    lr: Number  # the highest of the schedule
    weight_decay: Number
    parameters: Positive


class Trial(Facts):
    """A run at one rate of the grid, with a seed that is not reported."""

    lr: Real
    seed: Whole
    dev: Score | None  # None where it diverged
    run: RunName


class Tuning(Facts):
    """How the learning rate was chosen on dev (lra/runs/trials.py)."""

    chosen: Real
    steps: Whole  # of all trials
    trials: Annotated[list[Trial], HIDDEN]


class Machine(Facts):
    device: str


class Git(Facts):
    revision: Name | None = None
    dirty: bool | None = None


class Times(Facts):
    begun: Time | None = None  # the first time, where a run was resumed
    started: Time | None = None  # the last time
    finished: Time | None = None  # the first conversions did not record it


# ---------------------------------------------------------------------- records


class RunRecord(Facts, extra="forbid"):
    """A task, a metric, a method, and the stages that were scored: what every run has."""

    repeats: ClassVar[dict[str, str]]  # fact -> setting that it is equal to
    known: ClassVar[set[str]]  # the groups of its settings

    schema_: Literal[2] = Field(alias="schema")
    kind: Literal["training", "conversion"]
    status: Literal["finished"]
    run: RunName  # as tables cite it, and as its checkpoints name it
    identity: Name
    attempt: Positive = 1
    seed: Whole
    task: Name
    model: Name
    attention: Attention
    preset: str | None = None  # of the attention's options
    settings: Facts

    metric: Metric
    score: Annotated[Score, FLOAT]  # of the selected stage, in the metric's unit
    floor: Annotated[Score | None, FLOAT] = None  # of the same answer to everything
    select: Name  # the stage that gives the score
    stages: dict[Name, Stage]

    data: Data
    seconds: dict[str, Number] | None = None
    machine: Machine
    times: Times
    numerics: dict[Name, Positive] | None = None  # declared versions; early records have none
    code: Group | None = None
    codes: Annotated[list[Name] | None, Field(max_length=10), HIDDEN] = None
    command: str | None = None
    git: Git | None = None
    versions: Group | None = None
    switches: Group | None = None
    digest: Annotated[Name | None, HIDDEN] = None

    @model_validator(mode="wrap")
    @classmethod
    def _follows_from_settings(cls, facts: Any, check: Any) -> Any:
        record, settings = check(facts), facts["settings"]
        refuse_steering(facts)
        if (key := dotted_key(facts)) is not None:
            raise ValueError(
                f"its key {key!r:.200} has a dot or is empty: no name of a fact is clear"
            )
        if unknown := settings.keys() - cls.known:
            raise ValueError(f"its settings have {min(unknown)!r:.200}, which no run has")
        if "${" in str(settings):  # would be looked up in this machine's environment
            raise ValueError("its settings hold an interpolation, ${..}")
        for fact, setting in cls.repeats.items():
            value, expected = find_fact(facts, fact), find_fact(settings, setting)
            if value != expected:
                raise ValueError(
                    f"its {fact} is {value!r:.200}, but in its settings it is {expected!r:.200}"
                )
        if (name := shared_name(settings, facts)) is not None:  # tables show one of both
            raise ValueError(f"its {name:.200} is not that of its settings")
        fingerprint = find_fact(facts, "data.fingerprint")
        expected = identity_of(settings, fingerprint, record.numerics)
        if record.identity != expected:
            raise ValueError(
                f"its identity is {record.identity:.40}, but its settings, data and numerics "
                f"are those of run {expected}"
            )
        name = name_of(record.identity, record.codes, record.seed, record.attempt)
        if record.run != name:
            raise ValueError(f"its run is {record.run:.80}, but it is that of run {name}")
        return record

    def every_score(self) -> Iterator[tuple[str, float | None]]:
        """Yield all scores in the unit of the metric, with their names."""
        yield "floor", self.floor
        for name, stage in self.stages.items():
            yield f"stages.{name}.score", stage.score

    @model_validator(mode="after")
    def _is_a_percentage(self) -> RunRecord:
        if self.metric.unit == "%":
            for name, score in self.every_score():
                if score is not None and not 0 <= score <= 100:
                    raise ValueError(f"{name} is {score}, no percentage")
        return self

    @model_validator(mode="after")
    def _has_its_score(self) -> RunRecord:
        if self.select not in self.stages:
            raise ValueError(f"stages.{self.select}, which gives its score, is missing")
        if self.score != (of_stage := self.stages[self.select].score):
            raise ValueError(f"its score is {self.score}, but that of {self.select} is {of_stage}")
        return self

    def facts(self) -> dict[str, Any]:
        """Give what a file holds of it; what it lacks is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class TrainingRecord(RunRecord):
    """One attention trained on one task; its stages are checkpoints, `last` and `best`."""

    repeats: ClassVar = {
        "attention": "attention",
        "task": "task.name",
        "model": "model.name",
        "protocol.name": "protocol.name",
        "protocol.version": "protocol.version",
        "steps_share": "steps_share",
        "steps": "protocol.recipe.steps",
        "batch": "protocol.recipe.batch",
        "precision": "precision",
        "data.source": "task.source",
        "pretraining.name": "pretrain.name",
        "pretraining.rate": "pretrain.rate",
        "pretraining.steps": "pretrain.recipe.steps",
        "pretraining.batch": "pretrain.recipe.batch",
    }

    known: ClassVar = {
        *("task", "attention", "model", "protocol", "steps_share", "precision", "metrics"),
        *("processes", "pretrain", "optimizer", "schedule", "callbacks", "debug", "tune"),
    }

    kind: Literal["training"]
    select: Literal["best", "last"]
    protocol: Protocol
    steps_share: Number  # of the protocol's steps
    steps: Whole
    batch: Whole
    precision: str
    departs: str | None = None  # from what the protocol's code does
    compute: Compute
    rates: list[Rate] | None = None  # runs did not say so before schema 2
    pretraining: Group | None = None
    tuning: Tuning | None = None
    dev: Dev | None = None
    curve: list[Point]  # the score on dev at each evaluation
    answers: dict[str, Name | None] | None = None  # digests; early records have no file of them
    evaluation: str | None = None  # by which code the method was computed
    steps_per_second: Annotated[Number, FLOAT]
    peak_memory_mib: Annotated[Number, FLOAT]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> TrainingRecord:
        self._check_curve()
        self._check_counts()
        self._check_tuning()
        if self.times.finished is None:
            raise ValueError("times.finished is missing")
        done = self.steps_per_second * (self.seconds or {}).get("training", 0)
        if done > self.steps * 1.01 + 1:
            raise ValueError(f"its speed and time make {done:.0f} steps, but it has {self.steps}")
        return self

    def every_score(self) -> Iterator[tuple[str, float | None]]:
        yield from super().every_score()
        yield "dev.score", self.dev.score if self.dev else None
        for i, (_, score) in enumerate(self.curve):
            yield f"curve.{i}.1", score

    def _check_counts(self) -> None:
        """A score on dev, or of a checkpoint that has no answers, has to be one of its counts."""
        if self.metric.name == "accuracy":
            for name, part in {"dev": self.dev, **self.stages}.items():
                if part is not None and (part.right is None or not part.scored):
                    raise ValueError(f"{name} does not say how many of how many are right")

    def _check_tuning(self) -> None:
        """The rate has to be that which its trials give, and these those of its settings."""
        settings = self.settings.model_extra or {}
        if (tune := settings.get("tune")) is None and self.tuning is None:
            return
        if tune is None or self.tuning is None:
            raise ValueError("it has trials of a rate or settings of them, and not both")
        trials = [
            Outcome(t.lr, t.seed, t.dev, t.run, self.metric.higher_is_better)
            for t in self.tuning.trials
        ]
        expected = [*itertools.product(sorted(tune["grid"]), tune["seeds"])]
        if [(trial.lr, trial.seed) for trial in trials] != expected:
            raise ValueError("its trials are not those of tune.grid and tune.seeds")
        rates = {self.tuning.chosen, find_fact(settings, "protocol.recipe.lr")}
        if rates != {rate_of(trials)}:
            raise ValueError(f"its rate is {rates}, but its trials give {rate_of(trials)}")

    def _check_curve(self) -> None:
        every = find_fact(self.settings.model_extra, "protocol.evaluation.every")
        if not self.curve or not isinstance(every, int):
            return
        steps = [step for step, _ in self.curve]
        expected = [min(i * every, self.steps) for i in range(1, len(steps) + 1)]
        stopped = "callbacks" in (self.settings.model_extra or {})  # perhaps, before the end
        whole = steps[-1] == self.steps or stopped
        if steps != expected or not whole or steps[-2:-1] == steps[-1:]:
            raise ValueError(
                f"its curve has {len(steps)} points up to step {steps[-1]}, not "
                f"one every {every} of {self.steps} steps"
            )


class ConversionSettings(Facts):
    recipe: Group
    teacher: str


class ConversionRecord(RunRecord):
    """A softmax model given another attention: teacher, swap, stage1, and stage 2's best and last
    epoch."""

    repeats: ClassVar = {"attention": "attention", "task": "task", "model": "model"}
    known: ClassVar = {"task", "attention", "model", "recipe", "teacher"}

    kind: Literal["conversion"]
    settings: ConversionSettings
    recovery: float | None = None
    headroom_recovery: float | None = None
    stage1: Annotated[Group | None, HIDDEN]
    stage2: Annotated[Group | None, HIDDEN] = None
    phi_parameters: Whole
    train_examples: Whole | None = None
    predictions: Annotated[dict[str, list[Real]] | None, HIDDEN] = None  # by split
    labels: Annotated[dict[str, list[Real]] | None, HIDDEN] = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> ConversionRecord:
        if "teacher" not in self.stages:
            raise ValueError("stages.teacher is missing")
        last = next((s for s in ("best", "stage1", "swap") if s in self.stages), None)
        if last is not None and self.select != last:
            raise ValueError(f"its score is that of '{self.select}', not of '{last}'")
        by_split = [value or {} for value in (self.labels, self.predictions)]
        lengths = [{split: len(values) for split, values in by.items()} for by in by_split]
        if lengths[0] != lengths[1]:
            raise ValueError("it does not have one prediction per label")
        return self


MODELS: dict[str, type[RunRecord]] = {TRAINING: TrainingRecord, CONVERSION: ConversionRecord}


def name_of(identity: str, codes: list[str] | None, seed: int, attempt: int = 1) -> str:
    """`<identity>-<code>-seed-<n>`: the name of a run; `a+b` if a run begun by code a was ended by
    code b. Early records have no code."""
    code = "".join(f"-{'+'.join(codes)}" if codes else "")
    return f"{identity}{code}-seed-{seed}" + (f"-attempt-{attempt}" if attempt > 1 else "")


def check_record(where: str, facts: Group) -> None:
    """UserError, beginning with `where`, for the first thing that no record has."""
    if isinstance(version := facts.get("schema"), int) and 0 < version < SCHEMA_VERSION:
        raise UserError(
            f"{where} is of an earlier version, which is not read any more: run it again"
        )
    if (problem := problem_of(facts)) is not None:
        raise UserError(f"{where} is damaged or was edited: {problem}")


def problem_of(facts: Group) -> str | None:
    """Find the first thing that no record has."""
    model = MODELS.get(str(facts.get("kind")), TrainingRecord)
    try:
        model.model_validate(facts)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name, value = ".".join(map(str, first["loc"])), first["input"]
        if first["type"] == "missing" or value is None:
            return f"{name} is missing"
        if first["type"] == "value_error":
            return ": ".join([*([name] if name else []), str(first["ctx"]["error"])])
        if first["type"] == "extra_forbidden":
            return f"it has {name}, which no record has"
        return f"{name} is {value!r:.200}: {first['msg'].lower()}"
    return None


# ---------------------------------------------------------------------- columns


def columns(model: type[pydantic.BaseModel], prefix: str = "") -> Iterator[tuple[str, Column]]:
    """Yield the facts that have a column of their own, by their dotted names: those of the selected
    stage under `stage.`."""
    for field_name, field in model.model_fields.items():
        name = prefix + (field.alias or field_name)
        for fact in field.metadata:
            if isinstance(fact, Column):
                yield name, fact
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, pydantic.BaseModel):
            yield from columns(inner, f"{name}.")


def all_columns() -> dict[str, Column]:
    """Every fact that is shown otherwise than by its dotted name, of records of any kind."""
    stage = dict(columns(Stage, "stage."))
    return dict(columns(TrainingRecord)) | dict(columns(ConversionRecord)) | stage
