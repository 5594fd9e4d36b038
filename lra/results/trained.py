"""A trained network, ready to be asked: `lra.load(folder)`; and passed on: `lra export`."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import luna
from lra import data
from lra.base.errors import UserError, escape_md, readable
from lra.data import registry
from lra.data.arrays import SPLITS, Prepared, Split
from lra.data.loader import Batch, Loader
from lra.data.prepare import with_fingerprint
from lra.data.store import lock, new_folder
from lra.data.task import Task
from lra.metrics.answers import Answers
from lra.metrics.metric import get
from lra.metrics.target import Classes, Labels, Numbers
from lra.model.build import build_network
from lra.model.network import Network
from lra.results.record import Record, read_record
from lra.runs.folder import RESULT, data_dir_of
from lra.runs.schema import TRAINING
from lra.settings.experiment import Experiment, read_experiment
from lra.training.callbacks import TESTED
from lra.training.checkpoints import load_checkpoint
from lra.training.process import fresh_torch
from lra.training.record import digest_of_weights
from lra.training.trainer import DTYPES
from luna.base import Attention

COPIED = ("result.json", "metrics.csv", "answers.npz")
CARD = """\
---
library_name: luna-lra
tags: [long-range-arena, {record[task]}, {record.attention}]
metrics: [{record[metric.name]}]
---
# {record.attention} on {record[task]}

A Transformer with the attention *{record.attention}* ([{paper.title}]({paper.url})), \
trained by luna-lra {version}: `{command}`. `lra.load("{folder}").predict(examples).{asks}` answers
texts, pictures or ids.

| | |
|---|---|
| test {metric} | {score} ({record[select]} checkpoint) |
| always giving one answer | {floor} |
| data | {record[data.provenance]}, fingerprint `{record[data.fingerprint]}` |
| training | {record[steps]:,} steps of {record[batch]}, protocol {record[protocol.name]} \
v{record[protocol.version]}, steps share {record[steps_share]:g}, seed {record[seed]} |
| code | {record.code}, revision {record.revision} |
"""


class Predictions(NamedTuple):
    """The answers to n examples, or to n sequences of labelled tokens. What a task does not ask
    for is None."""

    classes: np.ndarray | None  # (n,), or (n, tokens)
    probabilities: np.ndarray | None  # of C classes or labels: (n, C), or (n, tokens, C)
    labels: np.ndarray | None = None  # bool (n, C): those with a probability above one half
    numbers: np.ndarray | None = None  # (n,), or (n, columns): in the units of the training data


class AttentionWeights(NamedTuple):
    weights: Tensor  # (layers, heads, n, n), a row per query; a CLS token comes first
    ids: Tensor  # (tokens,), or (tokens, stack) where tokens have several ids
    real: Tensor  # (tokens,) False for padding


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode with its trained weights, and the record of its run."""

    network: Network  # a torch module
    run: Experiment  # its settings
    record: Record  # its scores
    data_dir: Path  # where its data are prepared

    @property
    def task(self) -> Task:
        """Give the task that it was trained on."""
        return data.of(self.run.task)

    @cached_property
    def prepared(self) -> Prepared:
        """Look up the data that it was trained on; UserError if they are not there."""
        fingerprint = self.record["data.fingerprint"]
        prepared = with_fingerprint(self.data_dir, self.task.name, fingerprint)
        if prepared is None:
            raise UserError(
                f"the data of {self.record.folder}, with fingerprint {fingerprint}, are not in "
                f"{self.data_dir}: prepare them, or name their folder with --data-dir"
            )
        return prepared

    def batches(self, split: str | Split, size: int | None = None) -> Loader:
        """Load a split in order.

        split    train, val or test
        size     of a batch, at most that of the training, which None stands for
        returns  batches with ids, mask and labels
        """
        protocol = self.run.protocol
        if isinstance(split, str) and split not in SPLITS:
            raise UserError(f"there is no split '{split}': choose {', '.join(SPLITS)}")
        split = self.prepared.split(split) if isinstance(split, str) else split
        drop_last = size is None and protocol.evaluation.drop_last
        size = min(protocol.recipe.batch, size or protocol.recipe.batch)
        return Loader(split, size, rules=protocol.data, drop_last=drop_last)

    @fresh_torch()
    def predict(self, examples: Iterable[Any]) -> Predictions:
        """Answer examples of the user's. What is longer than the run's examples is cut as theirs.

        examples  texts, pictures or ids, as `Task.encode` reads them
        returns   classes and probabilities, or what else the task asks for

            trained.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"]).classes
        """
        logits = torch.cat([self.logits(batch) for batch in self._batches_of(examples)])
        if not logits.isfinite().all():
            raise UserError(
                f"the network of {self.record.folder} gives what is no finite number: look at the "
                "loss in its metrics.csv"
            )
        if isinstance(target := self.task.target, Numbers):
            given = target.given(logits.numpy())
            return Predictions(None, None, numbers=given if target.outputs > 1 else given[:, 0])
        if isinstance(target, Labels):
            shares = logits.sigmoid().numpy()
            return Predictions(None, shares, labels=shares > 0.5)
        shares = logits.softmax(-1).numpy()
        return Predictions(shares.argmax(-1), shares)

    @fresh_torch()
    def evaluate(self, split: str = "test") -> Answers:
        """Answer a split of its data, as the test after training does.

        split    train, val or test
        returns  the answers, for `score`
        """
        parts, target = [], self.task.target
        for batch in self.batches(split):
            scored = target.scored(batch.labels)
            parts.append(target.reduce(self.logits(batch)[scored], batch.labels[scored]))
        return target.collect(parts)

    def score(self, answers: Answers) -> float:
        """Score answers by the metric of the run.

        answers  from `evaluate`
        returns  the score in the unit of the metric, such as percent
        """
        names = self.task.metric_names  # a metric of the task's own is known from here on
        return get(names[0]).score(answers, self.task.target)

    @fresh_torch()
    def generate(self, prompt: str, length: int, *, temperature: float = 1.0, seed: int = 0) -> str:
        """Continue a text, where the network predicts the next byte.

        prompt       the text
        length       how many bytes follow it
        temperature  above 1 more at random, below 1 less; 0 takes the most likely byte
        seed         of the drawing
        returns      the text that follows
        """
        from lra.results.generate import generate

        return generate(self, prompt, length, temperature=temperature, seed=seed)

    @fresh_torch()
    def attention_maps(self, example: Any) -> AttentionWeights:
        """Compute the attention matrices; for a linear method those that it implies.

        example  one, as for `predict`; of a pair its first half counts
        returns  the matrices of all layers and heads, with the ids of the tokens
        """
        (batch,) = self._batches_of([example])
        layers = [m for m in self.network.modules() if isinstance(m, Attention)]
        if not layers:
            name = self.record.attention
            raise UserError(f"'{name}' is a mixer of hidden states: it has no attention matrix")
        matrices: list[Tensor] = []

        def see(layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, x: Any) -> None:
            if not layer.traits().has_matrix:
                raise UserError(f"attention '{layer.name}' has no attention matrix to show")
            matrices.append(layer.matrix(q, k, mask, x)[0])

        with watching(layers, see):
            self.logits(batch)
        one = (0, 0) if self.task.dual else (0,)
        ids, stack = batch.ids[one], self.task.stack
        everywhere = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        real = everywhere if batch.mask is None else batch.mask[one]
        ids = ids if stack == 1 else ids.unflatten(0, (-1, stack))
        return AttentionWeights(torch.stack(matrices).cpu(), ids, real[::stack])

    def _batches_of(self, examples: Iterable[Any]) -> Loader:
        if not isinstance(examples, Iterable) or isinstance(examples, str):
            raise UserError('predict takes a list of examples, such as predict(["a text"])')
        encoded = [self.task.encode(example) for example in examples]
        if not encoded:
            raise UserError("there is nothing to predict: no example was given")
        width = self.task.width(self.run.task, self.run.protocol.data.max_length)
        return self.batches(Split.held(self.task, width, encoded), len(encoded))

    @fresh_torch()
    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """Compute the network's outputs, in the precision of its training.

        batch    from `batches`
        returns  a row per example, or per token
        """
        weight = next(self.network.parameters())
        mask = None if batch.mask is None else batch.mask.to(weight.device)
        bits, _, kind = self.run.precision.partition("-")
        with torch.autocast(weight.device.type, DTYPES.get(bits), enabled=kind == "mixed"):
            return self.network(batch.ids.to(weight.device), mask).float().cpu()


@fresh_torch()
def load_trained(
    folder: str | Path | Record, *, data_dir: str | Path | None = None, device: str = "cpu"
) -> Trained:
    """Load the network of a finished run, with the weights of the checkpoint that was tested."""
    record = folder if isinstance(folder, Record) else read_finished(Path(folder))
    checkpoint = load_checkpoint(weights_of(record), record.run)
    state = checkpoint["state_dict"]
    for kept in checkpoint.get("callbacks", {}).values():
        state |= kept.get(TESTED, {})  # of an average of the weights, in last.ckpt
    weights = {key.removeprefix("network."): value for key, value in state.items()}
    _know_task(record)
    with readable(record.path, "its network cannot be built here"):
        run = read_experiment(record["settings"], record["seed"])
        bits, _, kind = run.precision.partition("-")
        torch.manual_seed(run.seed)
        network = build_network(run).to(device, DTYPES[bits] if kind == "true" else None)
    try:
        for name, value in network.state_dict().items():
            if isinstance(value, Tensor) and weights[name].is_complex() != value.is_complex():
                raise TypeError(f"{name} is {weights[name].dtype}, not {value.dtype}")
        network.load_state_dict(weights)
    except Exception as error:  # whatever a forged file makes of it
        raise UserError(
            f"the weights of {record.folder} do not fit the network of its settings: was the code "
            f"of {run.attention['name']} changed since?"
        ) from error
    stated = record.stage.get("weights")
    if stated is not None and stated != digest_of_weights(network):
        raise UserError(
            f"{weights_of(record)} does not hold the weights that were tested: its digest is not "
            "that of the record"
        )
    return Trained(network.eval(), run, record, Path(data_dir or data_dir_of(record.folder)))


def read_finished(folder: Path) -> Record:
    """Read the record of a run's folder, or of one that `lra export` wrote."""
    path = folder if folder.suffix == ".json" else folder / RESULT
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of a finished run: it has no {RESULT}")
    record = read_record(path)
    if record.kind != TRAINING:
        raise UserError(f"{folder} is a conversion: luna.convert.load opens its model")
    return record


def export_network(folder: Path, target: Path) -> list[Path]:
    """Write the network of a finished run, its record and a card into a new folder."""
    trained = load_trained(folder)  # only what its record describes is passed on
    record = trained.record
    _ = record.answers
    card = CARD.format(
        record=record,
        metric=escape_md(record["metric.title"]),
        score=escape_md(record.score_text),
        paper=luna.get(record.attention).paper,
        version=luna.__version__,
        folder=target.name,
        asks=record.get("data.target.name") or Classes.name,
        floor=escape_md(record.text(record["floor"])),
        command=record.get("command") or "lra.train",
    )
    files = [*(record.folder / name for name in COPIED), weights_of(record)]
    for file in files:
        if file.is_symlink() or file.parent.is_symlink():  # to any file of this machine
            raise UserError(f"{file} is a link, which is not passed on: put the file itself there")
    names = [str(file.relative_to(record.folder)) for file in files if file.is_file()]
    with lock(target, f"another process is writing {target}; waiting for it"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UserError(f"{target} is there already: name a new folder")
        with new_folder(target) as partial:
            (partial / "checkpoints").mkdir()
            for name in names:
                shutil.copyfile(record.folder / name, partial / name)
            (partial / "README.md").write_text(card, encoding="utf-8")
    return [target / name for name in (*names, "README.md")]


def _know_task(record: Record) -> None:
    """UserError for a task that this process has not been given."""
    if (task := record["task"]) not in registry.names():
        raise UserError(
            f"task '{task}' of {record.path} is not known here: it was made in memory, so call "
            f"data.from_arrays('{task}', ...) before, or it is of a package, so install that"
        )


def weights_of(record: Record) -> Path:
    """Return the checkpoint that was tested."""
    path = record.folder / f"checkpoints/{record['select']}.ckpt"
    if not path.exists():
        raise UserError(f"{path} is missing: train the run again, with rerun=true")
    return path


@contextmanager
def watching(layers: Iterable[Attention], see: Callable[..., None]) -> Iterator[None]:
    """Call `see(layer, q, k, mask, x)` before every forward pass of these layers; no gradients."""

    def hook(layer: Any, inputs: tuple[Any, ...]) -> None:
        q, k, _, mask, x = (*inputs, None, None)[:5]  # the last two may be left out
        see(layer, q, k, mask, x)

    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(hook).remove)
        yield
