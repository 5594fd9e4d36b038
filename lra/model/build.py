"""The network of every run: for its task, or for what self-pretraining asks (pretrain.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import luna
from lra import data
from lra.base.config import Input, Model, Objective, Pooling, Protocol
from lra.base.errors import UserError
from lra.base.versions import layers_of
from lra.data.arrays import Scale
from lra.data.task import Task
from lra.metrics.target import Classes, Target
from lra.model.network import Network, TaskShape
from lra.settings.experiment import Experiment
from lra.settings.run import Run


def asked_of(run: Run | Experiment) -> Task | TokenShape:
    """Give what is asked of the run's network: its task, or in phase one its own tokens."""
    task = data.of(run.task)
    return TokenShape(task.vocab, task.grid) if run.pretrain.is_the_run else task


def build_network(run: Run | Experiment) -> Network:
    """Build the network of a run, or of its first phase, where that is the run."""
    if run.pretrain.is_the_run:
        return TokenNetwork(run)
    return build(data.of(run.task), run.attention, run.model, run.protocol, seed=run.seed)


def build(
    task: TaskShape, attention: dict[str, Any], model: Model, protocol: Protocol, seed: int
) -> Network:
    """Build the network of one run. Weights are drawn from torch's global generator, which the
    caller seeds; `seed` starts the attention's own random streams."""
    if protocol.style.input is Input.numbers and task.scale is None:
        raise UserError(
            "the ids of the task are names and no quantities, so protocol.style.input must be ids"
        )
    if task.vocab > protocol.data.vocab:
        raise UserError(
            f"the task has {task.vocab} token ids, the embedding table protocol.data.vocab="
            f"{protocol.data.vocab} rows: set protocol.data.vocab={task.vocab}"
        )
    if task.per_token != (protocol.style.pooling is Pooling.none):
        raise UserError(
            "the task has a label per token: set protocol.style.pooling=none"
            if task.per_token
            else "the task has one label per example and this protocol an answer per token: "
            "choose another protocol, or protocol.style.pooling=mean"
        )
    if protocol.data.pad_to % task.stack:
        raise UserError(
            f"protocol.data.pad_to={protocol.data.pad_to} is no multiple of the {task.stack} ids "
            "that a token has"
        )
    if len(layers := layers_of(attention)) > model.n_layers:
        raise UserError(
            f"the stack names {len(layers)} layers and the model has {model.n_layers}: set "
            f"model.n_layers={len(layers)} or more, behind its end a stack begins anew"
        )
    if task.causal:
        if reason := why_not_causal(attention):
            raise UserError(f"no token of this task may see those behind it, so it {reason}")
        attention = attention | {"causal": True}
    return Network(task, attention, model, protocol, seed)


def why_not_causal(attention: dict[str, Any]) -> str:
    """Say why the causal form of this attention cannot be built; empty if it can."""
    name = attention["name"]
    if not luna.get(name).declared.causal_form:
        return f"needs the attention's causal form, which '{name}' does not have"
    return ""


# ---------------------------------------------------------------------- of self-pretraining


@dataclass(frozen=True)
class TokenShape:
    """A task whose classes are its own ids, one per token of a single sequence."""

    vocab: int
    grid: tuple[int, int] | None
    scale: Scale | None = None
    channels: int = 0
    stack: int = 1
    per_token: bool = True
    causal: bool = False  # phase one's own, by the run's objective
    dual: bool = False

    @property
    def classes(self) -> int:
        return self.vocab

    @property
    def target(self) -> Target:
        return Classes(self.vocab)

    @property
    def metric_names(self) -> list[str]:
        return [Classes.metric]


class TokenNetwork(Network):
    """The same backbone with a prediction per token: ids (B, n) -> (B, n, vocab)."""

    def __init__(self, run: Run | Experiment):
        task, slot = data.of(run.task), dict(run.attention)
        if run.pretrain.name is Objective.causal:
            slot["causal"] = True
        super().__init__(TokenShape(task.vocab, task.grid), slot, run.model, run.protocol, run.seed)
        cls = int(run.protocol.style.pooling is Pooling.cls)
        self.pool = lambda x, mask: x[:, cls:]  # the CLS token has nothing to predict
