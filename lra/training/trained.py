"""A trained network, ready to be asked: `lra.load(folder)`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from omegaconf import OmegaConf
from torch import Tensor

from lra import data, model
from lra.base import groups
from lra.base.config import (
    Compute,
    Gate,
    Loggers,
    Model,
    Pretrain,
    Protocol,
    Tolerance,
    Trainer,
    UserError,
    readable,
)
from lra.base.disk import read_json
from lra.data.arrays import IGNORED, SPLITS, Prepared, Split
from lra.data.loader import Batch, Loader
from lra.data.prepare import find_prepared
from lra.data.task import Task
from lra.model.network import Network
from lra.runs.answers import Answers
from lra.settings.compose import Run
from lra.training.checkpoints import load_checkpoint
from luna.attention.polaformer import PolaFormer
from luna.base import Attention

TRAIN_AGAIN = "it does not hold the settings of a run; train or export it again"
See = Callable[..., None]  # of (layer, q, k, mask, x)
DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}


class Predictions(NamedTuple):
    """The answers to n examples with C classes, or to n sequences of labelled tokens."""

    classes: np.ndarray  # (n,), or (n, tokens)
    probabilities: np.ndarray  # (n, C), or (n, tokens, C)


class AttentionWeights(NamedTuple):
    """Who attends to whom in one example."""

    weights: Tensor  # (layers, heads, n, n), a row per query; a CLS token comes first
    heads: list[str]  # their names; of a method with two matrices per head, of both
    ids: Tensor  # (tokens,), or (tokens, stack) where tokens have several ids
    real: Tensor  # (tokens,) False for padding


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode with its trained weights, and the settings of its run."""

    network: Network
    run: Run
    folder: Path  # that it was read from
    weights: str  # which of the run's: best or last
    fingerprint: str | None = None  # of the data of a finished run

    @property
    def task(self) -> Task:
        return data.of(self.run.task)

    @property
    def protocol(self) -> Protocol:
        return self.run.protocol

    @cached_property
    def prepared(self) -> Prepared:
        """The data that it was trained on; UserError if they are not at hand."""
        length, place = self.protocol.data.max_length, self.run.data_dir
        prepared = find_prepared(self.run.task, max_length=length, data_dir=place)
        if prepared is None:
            raise UserError(
                f"the data of {self.folder} are not in {place}: prepare them with lra data "
                "prepare, or name their folder with --data-dir"
            )
        if self.fingerprint not in (None, prepared.fingerprint):
            raise UserError(
                f"{self.folder} was trained on data with fingerprint {self.fingerprint}, those in "
                f"{prepared.folder} have {prepared.fingerprint}: they are not the same"
            )
        return prepared

    def batches(self, split: str, size: int | None = None) -> Loader:
        """A split in order, in batches of the training's size."""
        if split not in SPLITS:
            raise UserError(f"there is no split '{split}': choose {', '.join(SPLITS)}")
        return self._batches(self.prepared.split(split), size)

    def predict(self, examples: Sequence[Any] | Iterable[Batch]) -> Predictions:
        """The answers to examples of the user's: texts, pictures, ids (as `Task.encode` reads
        them), or batches of a loader. What is longer than the run's examples is cut as theirs.

            trained.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"]).classes
        """
        loader = examples if isinstance(examples, Loader) else self._given(examples)
        probabilities = [self._logits(batch).softmax(-1).numpy() for batch in loader]
        if not probabilities:
            raise UserError("there is nothing to predict: no example was given")
        joined = np.concatenate(probabilities)
        return Predictions(joined.argmax(-1), joined)

    def evaluate(self, split: str = "test") -> Answers:
        """The answers to a split of its data, with `accuracy` and `loss`, as after training."""
        logits, labels = [], []
        for batch in self.batches(split):
            scored = batch.labels != IGNORED
            logits.append(self._logits(batch)[scored])
            labels.append(batch.labels[scored])
        return Answers.of(logits, labels)

    def attention_maps(self, example: Any) -> AttentionWeights:
        """The attention matrices on one example (of a pair, on its first half); for a linear
        method those that it implies."""
        (batch,) = self._given([example])
        matrices: list[dict[str, Tensor]] = []
        layers = [m for m in self.network.modules() if isinstance(m, Attention)]
        with watching(layers, lambda *seen: matrices.append(_matrices(*seen))):
            self._logits(batch)
        weights = torch.stack([torch.stack(list(found.values())) for found in matrices]).cpu()
        one = (0, 0) if self.task.dual else (0,)
        ids, stack = batch.ids[one], self.task.stack
        real = torch.ones_like(ids, dtype=torch.bool) if batch.mask is None else batch.mask[one]
        ids = ids if stack == 1 else ids.unflatten(0, (-1, stack))
        return AttentionWeights(weights, list(matrices[0]), ids, real[::stack])

    def _given(self, examples: Iterable[Any]) -> Iterable[Batch]:
        listed = list(examples)
        if not listed or isinstance(listed[0], Batch):
            return listed
        width = self.task.width(self.run.task, self.protocol.data.max_length)
        encoded = [self.task.encode(example) for example in listed]
        return self._batches(Split.held(self.task, width, encoded), len(encoded))

    def _batches(self, split: Split, size: int | None) -> Loader:
        evaluation, batch = self.protocol.evaluation, self.protocol.recipe.batch
        quirk = size is None and evaluation.drop_last
        return Loader(split, min(batch, size or batch), rules=self.protocol.data, drop_last=quirk)

    @torch.no_grad()
    def _logits(self, batch: Batch) -> Tensor:
        weight = next(self.network.parameters())
        mask = None if batch.mask is None else batch.mask.to(weight.device)
        bits, _, kind = self.run.trainer.precision.partition("-")
        rounded: Any = contextlib.nullcontext()
        if kind == "mixed":
            rounded = torch.autocast(weight.device.type, DTYPES[bits])
        with rounded:
            return self.network(batch.ids.to(weight.device), mask).float().cpu()


# ---------------------------------------------------------------------- from disk


def load(folder: str | Path, *, data_dir: str | Path = "data", device: str = "cpu") -> Trained:
    """The network of a run's folder with its selected weights."""
    folder = Path(folder)
    if folder.suffix == ".json":  # a record's own file
        folder = folder.parent
    file = folder / "config.yaml"
    if not file.is_file():
        raise UserError(
            f"{folder} is not the folder of a training run, because it has no config.yaml; records "
            "that were exported hold no weights, and converted models are read by transformers"
        )
    with readable(file, TRAIN_AGAIN):
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
        run = run_of(config["settings"], config["seed"], data_dir=data_dir)
    result = read_json(folder / "result.json") or {}
    select = result.get("test", {}).get("select")
    kept = [select] if select else ["best", "last"]
    path = next((p for n in kept if (p := folder / "checkpoints" / f"{n}.ckpt").exists()), None)
    if path is None:
        raise UserError(f"{folder} has no checkpoint: train the run again")
    state = load_checkpoint(path)["state_dict"]
    state = {k.removeprefix("network."): v for k, v in state.items() if k.startswith("network.")}
    found = result.get("data", {}).get("fingerprint")
    return assembled(run, state, folder, path.stem, found, device=device)


def assembled(
    run: Run, weights: Mapping[str, Tensor], folder: Path, which: str,
    fingerprint: str | None, *, device: str,
) -> Trained:  # fmt: skip
    """The network of a run with these weights."""
    misfit = UserError(
        f"the weights of {folder} do not fit the network of its settings: was the code of "
        f"{run.attention.get('name')} changed since?"
    )
    numbers = sum(w.numel() for w in weights.values() if isinstance(w, Tensor))
    if numbers < _least(run):  # before a damaged setting asks for more memory than there is
        raise misfit
    bits, _, kind = run.trainer.precision.partition("-")
    with readable(folder, TRAIN_AGAIN):
        dtype = DTYPES[bits] if kind == "true" else None
        torch.manual_seed(run.seed)
        task = data.of(run.task)
        network = model.build(task, run.attention, run.model, run.protocol, seed=run.seed)
    try:
        network.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise misfit from error
    network.to(device, dtype)
    return Trained(network.eval(), run, folder, which, fingerprint)


def _least(run: Run) -> int:
    """Parameters that every network of this size has: in each layer values, their output, and an
    MLP; and a row for each id."""
    m = run.model
    return max(run.protocol.data.vocab, 2 * m.n_layers * m.d_model * (m.qkv_dim + m.mlp_dim))


def run_of(settings: dict[str, Any], seed: int, *, data_dir: str | Path = "data") -> Run:
    """The run of a record's settings. Of what decides no result it has the defaults."""
    words = [
        f"{k}={'null' if v is None else v}" for k, v in settings["task"].items() if k != "name"
    ]
    usual = OmegaConf.merge(groups.read("trainer", "default"), {"precision": settings["precision"]})
    return Run(
        task=data.configure(settings["task"]["name"], words),
        attention=dict(settings["attention"]),
        model=_typed(Model, settings["model"]),
        protocol=_typed(Protocol, settings["protocol"] | {"tasks": {}}),
        pretrain=_typed(Pretrain, settings.get("pretrain", {"name": "none"})),
        compute=Compute(Gate.off, "luna", Tolerance(0.0, 0.0, 0.0), solve=False),
        trainer=_typed(Trainer, usual),
        logger=Loggers(),
        seed=seed,
        budget=settings["budget"],
        min_evaluations=1,
        data_dir=str(data_dir),
        runs_dir="runs",
        rerun=False,
        retries=0,
        limit_minutes=None,
    )


def _typed(schema: type, values: Any) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))


# ---------------------------------------------------------------------- inside of a forward pass


@contextmanager
def watching(layers: Iterable[Attention], see: See) -> Iterator[None]:
    """Call `see(layer, q, k, mask, x)` before every forward pass of these layers; no gradients."""

    def hook(layer: Any, inputs: tuple[Any, ...]) -> None:
        q, k, _, mask, x = (*inputs, None, None)[:5]  # the last two may be left out
        see(layer, q, k, mask, x)

    with ExitStack() as stack, torch.no_grad():
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(hook).remove)
        yield


def _matrices(
    layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, x: Tensor | None
) -> dict[str, Tensor]:
    """The matrix (n, n) of every head, by name, on the first example. PolaFormer has two per head,
    one for each half of the values."""
    if isinstance(layer, PolaFormer):
        streams = layer.streams(q, k, mask)
        return {
            f"head {h}, {signs} signs": A[0, h]
            for h in range(q.shape[1])
            for signs, A in zip(("equal", "opposite"), streams, strict=True)
        }
    if not layer.has_matrix:
        raise UserError(
            f"attention '{layer.name}' has no attention matrix, so there is nothing to show"
        )
    return {f"head {h}": A for h, A in enumerate(layer.matrix(q, k, mask, x)[0])}
