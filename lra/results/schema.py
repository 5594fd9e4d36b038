"""What a record must hold, and what cannot be in one whatever else it says.

These checks need the record alone and are made whenever one is read. lra/results/audit.py
recomputes its numbers.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from lra.base.config import UserError, readable
from lra.settings.experiment import SCHEMA_VERSION, identity_of

LARGEST = 1e18  # no count or measurement of a run comes near it


@dataclasses.dataclass(frozen=True)
class FactKind:
    what: str  # for the error message
    fits: Callable[[Any], bool]
    setting: str | None = None  # that it must repeat

    def repeats(self, setting: str) -> FactKind:
        return dataclasses.replace(self, setting=setting)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    return is_number(value) and 0 <= value < LARGEST


def _is_time(value: Any) -> bool:
    try:
        return datetime.fromisoformat(value).tzinfo is not None
    except (TypeError, ValueError):
        return False


TEXT = FactKind("a text", lambda v: isinstance(v, str))
# A name is part of paths and tables.
NAME = FactKind("a name of letters, digits, '_', '.' and '-'",
            lambda v: isinstance(v, str) and re.fullmatch(r"\w[\w.-]*", v) is not None)  # fmt: skip
NAMES = FactKind("a list of names", lambda v: isinstance(v, list) and all(map(NAME.fits, v)))
FLAG = FactKind("true or false", lambda v: isinstance(v, bool))
GROUP = FactKind("a group of facts", lambda v: isinstance(v, dict))
NUMBER = FactKind("a number from 0", is_count)
WHOLE = FactKind("a whole number from 0", lambda v: isinstance(v, int) and is_count(v))
SHARE = FactKind("a number from 0 to 1", lambda v: is_count(v) and v <= 1)
# An accuracy, or a correlation, which may be negative.
SCORE = FactKind("a number from -1 to 1", lambda v: is_number(v) and -1 <= v <= 1)
# With its zone, so that times of two machines can be compared.
TIME = FactKind("a time with its zone", _is_time)

TRAINING, CONVERSION = "training", "conversion"

COMMON: dict[str, FactKind] = {
    "identity": NAME,
    "task": NAME,
    "attention.name": NAME,
    "attention": GROUP.repeats("attention"),
    "model": NAME,
    "seed": WHOLE,
    "settings": GROUP,
    "settings.attention": GROUP,
    "?versions": GROUP,
    "?git.revision": NAME,
    "?git.dirty": FLAG,
    "?command": TEXT,
    "?codes": NAMES,
    "?code": GROUP,
    "?attempt": WHOLE,
    "?switches": GROUP,
}
FACTS: dict[str, dict[str, FactKind]] = {
    TRAINING: COMMON
    | {
        "task": NAME.repeats("task.name"),
        "model": NAME.repeats("model.name"),
        "protocol.name": NAME.repeats("protocol.name"),
        "protocol.version": WHOLE.repeats("protocol.version"),
        "budget": NUMBER.repeats("budget"),
        "steps": WHOLE.repeats("protocol.recipe.steps"),
        "batch": WHOLE.repeats("protocol.recipe.batch"),
        "compute.parameters": NUMBER,
        "compute.flops": NUMBER,
        "?compute.verdict": TEXT,
        "?compute.exempt": TEXT,
        "?compute.budget": GROUP,
        "?compute.budget.reference": TEXT,
        "?compute.budget.parameters": NUMBER,
        "?compute.budget.flops": NUMBER,
        "data.fingerprint": NAME,
        "data.source": TEXT.repeats("task.source"),
        "?data.provenance": TEXT,
        "?data.majority": SHARE,
        "?data.options": GROUP,
        "?dev.accuracy": SHARE,
        "test.accuracy": SHARE,
        "test.examples": WHOLE,
        "?test.scored": WHOLE,
        "test.select": TEXT,
        "?test.dead_rows": NUMBER,
        "?test_last": GROUP,
        "?test_last.accuracy": SHARE,
        "?test_best": GROUP,
        "steps_per_second": NUMBER,
        "peak_memory_mib": NUMBER,
        "?seconds.training": NUMBER,
        "precision": TEXT.repeats("precision"),
        "machine.device": TEXT,
        "?machine.threads": WHOLE,
        "?machine.processes": WHOLE,
        "times.finished": TIME,
        "settings.protocol": GROUP,
        "?settings.protocol.recipe": GROUP,
        "?settings.pretrain": GROUP,
        "?pretraining": GROUP,
        "?pretraining.run": NAME,
        "?pretraining.name": NAME.repeats("pretrain.name"),
        "?pretraining.rate": SHARE.repeats("pretrain.rate"),
        "?pretraining.steps": WHOLE.repeats("pretrain.recipe.steps"),
        "?pretraining.batch": WHOLE.repeats("pretrain.recipe.batch"),
        "?pretraining.held_out.loss": NUMBER,
        "?compute.training.both": NUMBER,
        "?answers.digest": NAME,
        "?answers.labels": NAME,
        "?answers.packed": NAME,
    },
    CONVERSION: COMMON
    | {
        "task": NAME.repeats("task"),
        "model": NAME.repeats("model"),
        "settings.recipe": GROUP,
        "?settings.recipe.epochs": WHOLE,
        "settings.teacher": TEXT,
        "?data.fingerprint": TEXT,
        "scores": GROUP,
        "scores.teacher.score": SCORE,
        "score": SCORE,
        "floor": SCORE,
        "?stage1": GROUP,
        "phi_parameters": WHOLE,
        "?train_examples": WHOLE,
        "?predictions": GROUP,
        "?labels": GROUP,
        "?seconds.total": NUMBER,
        "?machine.device": TEXT,
        "?times.finished": TIME,  # the first conversions did not record it
    },
}


def find_fact(facts: Any, key: str, default: Any = None) -> Any:
    """Look up a fact by its dotted name; with KeyError as default a missing one raises it."""
    for part in key.split("."):
        if not isinstance(facts, dict) or part not in facts:
            if default is KeyError:
                raise KeyError(key)
            return default
        facts = facts[part]
    return facts


def flat(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every fact in nested groups, with its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flat(inner, f"{name}.{key}" if name else key)
    else:
        yield name, value


def read_facts(path: Path) -> dict[str, Any]:
    """Read the facts in a file; UserError names a file that holds none."""
    with readable(path, "it holds no record"):
        return facts_of(path.read_text(encoding="utf-8"), f"record {path}")


def facts_of(text: str, where: str) -> dict[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is damaged: {error}") from error
    if not isinstance(facts, dict):
        raise UserError(f"{where} is not a record: it holds a {type(facts).__name__}")
    return facts


def check_facts(where: str, facts: Mapping[str, Any], kinds: Mapping[str, FactKind]) -> None:
    """UserError for the first fact that is not of its kind or not what the settings say. A key that
    starts with `?` may be missing or null."""
    for key, kind in kinds.items():
        name = key.removeprefix("?")
        value = find_fact(facts, name)
        if not kind.fits(value) and (value is not None or name == key):
            problem = "missing" if value is None else f"{value!r:.200}, not {kind.what}"
            raise UserError(f"{where} is damaged: {name} is {problem}")
        if kind.setting is None:
            continue
        setting = find_fact(facts, f"settings.{kind.setting}")
        if value != setting:
            raise UserError(
                f"{where} is damaged or was edited: its {name} is {value!r:.200}, but in its "
                f"settings it is {setting!r:.200}"
            )


def check_record(where: str, facts: dict[str, Any], kind: str) -> None:
    """UserError, beginning with `where`, for the first thing that no record of this kind has."""
    if facts.get("schema") != SCHEMA_VERSION or facts.get("status") != "finished":
        raise UserError(
            f"{where} was not made by this version: schema {facts.get('schema')!r:.40}, "
            f"status {facts.get('status')!r:.40}; expected schema {SCHEMA_VERSION}, status finished"
        )
    check_facts(where, facts, FACTS[kind])
    (_training if kind == TRAINING else _conversion)(where, facts)
    expected = identity_of(facts["settings"], find_fact(facts, "data.fingerprint"))
    if facts["identity"] != expected:
        raise UserError(
            f"{where} is damaged or was edited: its identity is {facts['identity']:.40}, but its "
            f"settings and data are those of run {expected}"
        )


def _training(where: str, facts: dict[str, Any]) -> None:
    for part in ("test", "test_last", "test_best"):
        if facts.get(part):
            _test(f"{where} cannot be right: {part}", facts[part])
    points = facts.get("curve")
    if not isinstance(points, list) or not all(_is_point(p) for p in points):
        raise UserError(f"{where} is damaged: its curve is not a list of [step, accuracy]")


def _test(where: str, test: dict[str, Any]) -> None:
    """An accuracy is a whole number of hits; the answers are as many as the examples, or as their
    scored tokens."""
    accuracy, n = test.get("accuracy"), test.get("scored", test.get("examples"))
    if not isinstance(accuracy, float | int) or not isinstance(n, int) or n < 1:
        return  # a fact of another kind is named by its own check
    if abs(accuracy * n - round(accuracy * n)) > max(1e-3, 1e-6 * n):  # accuracies are float32
        raise UserError(f"{where}.accuracy is {accuracy}, no multiple of 1/{n}")
    answered = test.get("predicted")
    if not isinstance(answered, list | None) or not all(map(is_number, answered or [])):
        raise UserError(f"{where}.predicted is not a list of numbers")
    if answered is not None and (sum(answered) != n or min(answered) < 0):
        raise UserError(f"{where}.predicted has {sum(answered)} answers to {n} questions")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(is_count, point))


def _conversion(where: str, facts: dict[str, Any]) -> None:
    scores = facts["scores"]
    check_facts(where, facts, {f"scores.{stage}.score": SCORE for stage in scores})
    last = next((stage for stage in ("best", "stage1", "swap") if stage in scores), None)
    if last is not None and facts["score"] != scores[last]["score"]:
        raise UserError(f"{where} is damaged or was edited: its score is not the score of '{last}'")
    labels, predictions = facts.get("labels") or {}, facts.get("predictions") or {}
    lists = [*labels.values(), *predictions.values()]
    if not all(isinstance(values, list) and all(map(is_number, values)) for values in lists):
        raise UserError(f"{where} is damaged: its labels or predictions are not lists of numbers")
    lengths = [{split: len(v) for split, v in by.items()} for by in (labels, predictions) if by]
    if len(lengths) == 2 and lengths[0] != lengths[1]:
        raise UserError(f"{where} is damaged: it does not have one prediction per label")
