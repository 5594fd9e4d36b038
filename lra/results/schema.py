"""What a record must hold, and what cannot be in one whatever else it says.

These checks need the record alone and are made whenever one is read. lra/results/audit.py
recomputes its numbers.
"""

from __future__ import annotations

from typing import Any

from lra.base.config import UserError
from lra.results import facts as fact
from lra.runs.folder import SCHEMA_VERSION, identity_of

TRAINING, CONVERSION = "training", "conversion"

COMMON: dict[str, fact.FactKind] = {
    "identity": fact.name,
    "task": fact.name,
    "attention.name": fact.name,
    "attention": fact.group.repeats("attention"),
    "model": fact.name,
    "seed": fact.whole,
    "settings": fact.group,
    "settings.attention": fact.group,
    "?versions": fact.group,
    "?git.revision": fact.name,
    "?git.dirty": fact.flag,
    "?command": fact.text,
    "?codes": fact.names,
    "?code": fact.group,
    "?attempt": fact.whole,
    "?switches": fact.group,
}
FACTS: dict[str, dict[str, fact.FactKind]] = {
    TRAINING: COMMON
    | {
        "task": fact.name.repeats("task.name"),
        "model": fact.name.repeats("model.name"),
        "protocol.name": fact.name.repeats("protocol.name"),
        "protocol.version": fact.whole.repeats("protocol.version"),
        "budget": fact.number.repeats("budget"),
        "steps": fact.whole.repeats("protocol.recipe.steps"),
        "batch": fact.whole.repeats("protocol.recipe.batch"),
        "compute.parameters": fact.number,
        "compute.flops": fact.number,
        "?compute.verdict": fact.text,
        "?compute.exempt": fact.text,
        "?compute.budget": fact.group,
        "?compute.budget.reference": fact.text,
        "?compute.budget.parameters": fact.number,
        "?compute.budget.flops": fact.number,
        "data.fingerprint": fact.name,
        "data.source": fact.text.repeats("task.source"),
        "?data.provenance": fact.text,
        "?data.majority": fact.share,
        "?data.options": fact.group,
        "?dev.accuracy": fact.share,
        "test.accuracy": fact.share,
        "test.examples": fact.whole,
        "?test.scored": fact.whole,
        "test.select": fact.text,
        "?test.dead_rows": fact.number,
        "?test_last": fact.group,
        "?test_last.accuracy": fact.share,
        "?test_best": fact.group,
        "steps_per_second": fact.number,
        "peak_memory_mib": fact.number,
        "?seconds.training": fact.number,
        "precision": fact.text.repeats("precision"),
        "machine.device": fact.text,
        "?machine.threads": fact.whole,
        "?machine.processes": fact.whole,
        "times.finished": fact.time,
        "settings.protocol": fact.group,
        "?settings.protocol.recipe": fact.group,
        "?settings.pretrain": fact.group,
        "?pretraining": fact.group,
        "?pretraining.run": fact.name,
        "?pretraining.name": fact.name.repeats("pretrain.name"),
        "?pretraining.rate": fact.share.repeats("pretrain.rate"),
        "?pretraining.steps": fact.whole.repeats("pretrain.recipe.steps"),
        "?pretraining.batch": fact.whole.repeats("pretrain.recipe.batch"),
        "?pretraining.held_out.loss": fact.number,
        "?compute.training.both": fact.number,
        "?answers.digest": fact.name,
        "?answers.labels": fact.name,
    },
    CONVERSION: COMMON
    | {
        "task": fact.name.repeats("task"),
        "model": fact.name.repeats("model"),
        "settings.recipe": fact.group,
        "?settings.recipe.epochs": fact.whole,
        "settings.teacher": fact.text,
        "?data.fingerprint": fact.text,
        "scores": fact.group,
        "scores.teacher.score": fact.score,
        "score": fact.score,
        "floor": fact.score,
        "?stage1": fact.group,
        "phi_parameters": fact.whole,
        "?train_examples": fact.whole,
        "?predictions": fact.group,
        "?labels": fact.group,
        "?seconds.total": fact.number,
        "?machine.device": fact.text,
        "?times.finished": fact.time,  # the first conversions did not record it
    },
}


def check_record(where: str, facts: dict[str, Any], kind: str) -> None:
    """UserError, beginning with `where`, for the first thing that no record of this kind has."""
    if facts.get("schema") != SCHEMA_VERSION or facts.get("status") != "finished":
        raise UserError(
            f"{where} was not made by this version: schema {facts.get('schema')!r:.40}, "
            f"status {facts.get('status')!r:.40}; expected schema {SCHEMA_VERSION}, status finished"
        )
    fact.check_facts(where, facts, FACTS[kind])
    (_training if kind == TRAINING else _conversion)(where, facts)
    expected = identity_of(facts["settings"], fact.find_fact(facts, "data.fingerprint"))
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
    if not isinstance(answered, list | None) or not all(map(fact.is_number, answered or [])):
        raise UserError(f"{where}.predicted is not a list of numbers")
    if answered is not None and (sum(answered) != n or min(answered) < 0):
        raise UserError(f"{where}.predicted has {sum(answered)} answers to {n} questions")


def _is_point(point: Any) -> bool:
    return isinstance(point, list) and len(point) == 2 and all(map(fact.is_count, point))


def _conversion(where: str, facts: dict[str, Any]) -> None:
    scores = facts["scores"]
    fact.check_facts(where, facts, {f"scores.{stage}.score": fact.score for stage in scores})
    last = next((stage for stage in ("best", "stage1", "swap") if stage in scores), None)
    if last is not None and facts["score"] != scores[last]["score"]:
        raise UserError(f"{where} is damaged or was edited: its score is not the score of '{last}'")
    labels, predictions = facts.get("labels") or {}, facts.get("predictions") or {}
    lists = [*labels.values(), *predictions.values()]
    if not all(isinstance(values, list) and all(map(fact.is_number, values)) for values in lists):
        raise UserError(f"{where} is damaged: its labels or predictions are not lists of numbers")
    lengths = [{split: len(v) for split, v in by.items()} for by in (labels, predictions) if by]
    if len(lengths) == 2 and lengths[0] != lengths[1]:
        raise UserError(f"{where} is damaged: it does not have one prediction per label")
