"""The settings of one training run, after they were composed and checked."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from lra.base import limits
from lra.base.config import Compute, Debug, Model, Pretrain, Protocol, Trainer, Tune, Tuned
from lra.base.versions import methods_of
from lra.settings.experiment import Experiment

MARKS = ("moves_results", "stateless")  # said of a callback in its file; no arguments of its class


@dataclass
class Run:
    """The complete settings of one training run: one dataclass per config group; `task` is the
    task's own Options."""

    task: Any  # the data, and what is asked of them
    attention: dict[str, Any]  # name, dwc and the method's own options, checked by luna.build
    model: Model  # the Transformer around the attention
    protocol: Protocol  # the recipe, and how it is evaluated
    pretrain: Pretrain  # a training before, on the inputs alone
    tune: Tune  # what is chosen on dev before the run
    compute: Compute  # how much a run may cost
    trainer: Trainer  # devices, precision and memory
    optimizer: dict[str, Any]  # its class and arguments; empty: AdamW by protocol.recipe
    schedule: dict[str, Any]  # the same; empty: protocol.recipe.schedule
    callbacks: dict[str, Any]  # by name, each with its class and arguments
    logger: dict[str, Any]  # the same
    debug: Debug | None  # a run that tries out whether something works, and has no result
    seed: int = field(metadata=limits.SEED)  # of weights, order of data, dropout
    # Scales the protocol's steps, warm-up and number of evaluations
    steps_share: float = field(metadata=limits.STEPS_SHARE)
    min_evaluations: int = field(metadata=limits.COUNT)  # kept however small the budget
    data_dir: str = field(metadata=limits.FOLDER)  # where prepared data lie
    runs_dir: str = field(metadata=limits.FOLDER)  # where the run gets its folder
    rerun: bool  # repeat a finished run, in a folder of its own
    shard: str | None  # which part of a sweep, such as 3/64 (lra/sweeps/shard.py)
    # How often a run that crashes or is killed is begun again, within a sweep
    retries: int = field(metadata=limits.WHOLE)
    # A run that takes longer stops with a checkpoint
    limit_minutes: float | None = field(metadata=limits.POSITIVE)
    # No settings: the words that it was composed from in Python, and what it was then.
    words: ClassVar[tuple[str, ...]] = ()
    composed: ClassVar[Run | None] = None
    # The config that it was made of, where trials of it are made too (lra/settings/trials.py)
    given: ClassVar[dict[str, Any] | None] = None

    @property
    def processes(self) -> int:
        devices = self.trainer.devices
        return self.trainer.num_nodes * (len(devices) if isinstance(devices, list) else devices)

    @property
    def in_pieces(self) -> int | None:
        """How many examples pass at once where a process takes its batch in pieces."""
        size, share = self.trainer.micro_batch, self.protocol.recipe.batch // self.processes
        return size if size is not None and size < share else None

    @property
    def draws(self) -> bool:
        """Whether a forward pass in training draws numbers, so that pieces draw others."""
        import luna  # not before: it imports torch

        dropped = self.model.dropout or self.model.attention_dropout
        names = methods_of(self.attention)
        return bool(dropped) or any(luna.get(name).declared.draws for name in names)

    @property
    def experiment(self) -> Experiment:
        """The part that decides its result."""
        return Experiment(
            self.task,
            self.attention,
            self.model,
            self.protocol,
            self.pretrain,
            self.steps_share,
            self.trainer.precision,
            self.processes,
            self.seed,
            self.chosen,
        )

    @property
    def chosen(self) -> dict[str, Any]:
        """What decides the result and is not of every run (lra/settings/own.py)."""
        moving = {
            name: {key: value for key, value in options.items() if key not in MARKS}
            for name, options in self.callbacks.items()
            if options and options.get("moves_results", True)
        }
        facts = {
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "callbacks": moving,
            "debug": asdict(self.debug) if self.debug else None,
            "micro_batch": self.in_pieces if self.in_pieces and self.draws else None,
            "tune": asdict(self.tune) if self.tune.name is not Tuned.none else None,
        }
        return {group: value for group, value in facts.items() if value}
