"""A trained network, ready to be asked: `lra.load(folder)`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lra import data, model
from lra.base.config import Protocol, UserError, readable
from lra.data.arrays import IGNORED, SPLITS, Prepared, Split
from lra.data.loader import Batch, Loader
from lra.data.prepare import find_prepared
from lra.data.task import Task
from lra.model.network import Network
from lra.runs.answers import Answers
from lra.runs.folder import read_config, read_result
from lra.settings.experiment import Experiment, read_experiment
from luna.attention.polaformer import PolaFormer
from luna.base import Attention

TRAIN_AGAIN = "it does not hold the settings of a run; train or export it again"
DTYPES = {"16": torch.float16, "bf16": torch.bfloat16, "32": torch.float32, "64": torch.float64}


class Predictions(NamedTuple):
    """The answers to n examples with C classes, or to n sequences of labelled tokens."""

    classes: np.ndarray  # (n,), or (n, tokens)
    probabilities: np.ndarray  # (n, C), or (n, tokens, C)


class AttentionWeights(NamedTuple):
    weights: Tensor  # (layers, heads, n, n), a row per query; a CLS token comes first
    heads: list[str]  # their names; of a method with two matrices per head, of both
    ids: Tensor  # (tokens,), or (tokens, stack) where tokens have several ids
    real: Tensor  # (tokens,) False for padding


@dataclass(frozen=True)
class Trained:
    """A network in evaluation mode with its trained weights, and the settings of its run."""

    network: Network
    run: Experiment
    folder: Path  # that it was read from
    data_dir: Path  # where its data are prepared
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
        """Look up the data that it was trained on; UserError if they are not there."""
        length = self.protocol.data.max_length
        prepared = find_prepared(self.run.task, max_length=length, data_dir=self.data_dir)
        if prepared is None:
            raise UserError(
                f"the data of {self.folder} are not in {self.data_dir}: prepare them, or name "
                "their folder with --data-dir"
            )
        if self.fingerprint not in (None, prepared.fingerprint):
            raise UserError(
                f"{self.folder} was trained on data with fingerprint {self.fingerprint}, those in "
                f"{prepared.folder} have {prepared.fingerprint}: they are not the same"
            )
        return prepared

    def batches(self, split: str | Split, size: int | None = None) -> Loader:
        """Load a split in order, in batches of the training's size."""
        protocol = self.protocol
        if isinstance(split, str) and split not in SPLITS:
            raise UserError(f"there is no split '{split}': choose {', '.join(SPLITS)}")
        split = self.prepared.split(split) if isinstance(split, str) else split
        drop_last = size is None and protocol.evaluation.drop_last
        size = min(protocol.recipe.batch, size or protocol.recipe.batch)
        return Loader(split, size, rules=protocol.data, drop_last=drop_last)

    def predict(self, examples: Iterable[Any]) -> Predictions:
        """Answer examples of the user's: texts, pictures or ids, as `Task.encode` reads them. What
        is longer than the run's examples is cut as theirs.

            trained.predict(["[MAX 2 9 [MIN 4 7 ] 0 ]"]).classes
        """
        batches = self._batches_of(examples)
        joined = np.concatenate([self._logits(batch).softmax(-1).numpy() for batch in batches])
        return Predictions(joined.argmax(-1), joined)

    def evaluate(self, split: str = "test") -> Answers:
        """Answer a split of its data, as the test after training does."""
        logits, labels = [], []
        for batch in self.batches(split):
            scored = batch.labels != IGNORED
            logits.append(self._logits(batch)[scored])
            labels.append(batch.labels[scored])
        return Answers.of(logits, labels)

    def attention_maps(self, example: Any) -> AttentionWeights:
        """Return the attention matrices on one example (of a pair, on its first half); for a linear
        method those that it implies."""
        (batch,) = self._batches_of([example])
        matrices: list[dict[str, Tensor]] = []
        layers = [m for m in self.network.modules() if isinstance(m, Attention)]
        with watching(layers, lambda *seen: matrices.append(_matrices(*seen))):
            self._logits(batch)
        weights = torch.stack([torch.stack(list(heads.values())) for heads in matrices]).cpu()
        one = (0, 0) if self.task.dual else (0,)
        ids, stack = batch.ids[one], self.task.stack
        real = torch.ones_like(ids, dtype=torch.bool) if batch.mask is None else batch.mask[one]
        ids = ids if stack == 1 else ids.unflatten(0, (-1, stack))
        return AttentionWeights(weights, list(matrices[0]), ids, real[::stack])

    def _batches_of(self, examples: Iterable[Any]) -> Loader:
        if not isinstance(examples, Iterable) or isinstance(examples, str):
            raise UserError('predict takes a list of examples, such as predict(["a text"])')
        encoded = [self.task.encode(example) for example in examples]
        if not encoded:
            raise UserError("there is nothing to predict: no example was given")
        width = self.task.width(self.run.task, self.protocol.data.max_length)
        return self.batches(Split.held(self.task, width, encoded), len(encoded))

    @torch.no_grad()
    def _logits(self, batch: Batch) -> Tensor:
        weight = next(self.network.parameters())
        mask = None if batch.mask is None else batch.mask.to(weight.device)
        bits, _, kind = self.run.precision.partition("-")
        with torch.autocast(weight.device.type, DTYPES.get(bits), enabled=kind == "mixed"):
            return self.network(batch.ids.to(weight.device), mask).float().cpu()


def load_trained(
    folder: str | Path, *, data_dir: str | Path | None = None, device: str = "cpu"
) -> Trained:
    folder = Path(folder)
    folder = folder.parent if folder.suffix == ".json" else folder  # a record's own file
    file = folder / "config.yaml"
    if not file.is_file():
        raise UserError(f"{folder} is not the folder of a run, because it has no config.yaml")
    result = read_result(folder / "result.json")
    config = read_config(file, result)
    with readable(file, TRAIN_AGAIN):
        run = read_experiment(config["settings"], config["seed"])
        places = filter(None, (data_dir, config.get("data_dir"), "data"))
        data_folder = next((p for p in map(Path, places) if data_dir or p.is_dir()), Path("data"))
    with readable(folder / "result.json", TRAIN_AGAIN):
        selected = result["test"]["select"] if result else None
        fingerprint = result["data"]["fingerprint"] if result else None
    checkpoints = [folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
    path = next((p for p in checkpoints if p.is_file() and selected in (None, p.stem)), None)
    if path is None:
        raise UserError(f"{folder} has no checkpoint: train the run again")
    state = load_checkpoint(path)["state_dict"]
    weights = {key.removeprefix("network."): value for key, value in state.items()}
    network = build_network(run, weights, folder, device)
    return Trained(network, run, folder, data_folder, path.stem, fingerprint)


def load_checkpoint(path: Path, run: str | None = None) -> dict[str, Any]:
    """Load a checkpoint; UserError for a damaged file and for one of another run."""
    try:
        with zipfile.ZipFile(path) as archive:
            if (part := archive.testzip()) is not None:  # torch reads past the checksums
                raise ValueError(f"{part} has another checksum")
        checkpoint = dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # without torch's text, which advises to trust such a file
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values, which is not loaded; "
            "remove it to start from the beginning"
        ) from error
    if run is not None and checkpoint.get("identity") != run:
        raise UserError(
            f"{path} belongs to run {checkpoint.get('identity')}, not to {run}; remove it"
        )
    return checkpoint


def build_network(
    run: Experiment, weights: Mapping[str, Tensor], folder: Path, device: str
) -> Network:
    """Build the network of a run with these weights, in evaluation mode."""
    bits, _, kind = run.precision.partition("-")
    with readable(folder, TRAIN_AGAIN):
        dtype = DTYPES[bits] if kind == "true" else None
        torch.manual_seed(run.seed)
        task = data.of(run.task)
        network = model.build(task, run.attention, run.model, run.protocol, seed=run.seed)
    try:
        network.load_state_dict(weights)
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        raise UserError(
            f"the weights of {folder} do not fit the network of its settings: was the code of "
            f"{run.attention['name']} changed since?"
        ) from error
    return network.to(device, dtype).eval()


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


def _matrices(
    layer: Attention, q: Tensor, k: Tensor, mask: Tensor | None, x: Tensor | None
) -> dict[str, Tensor]:
    """Return the matrix (n, n) of every head, by name, on the first example. PolaFormer has two per
    head, one for each half of the values."""
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
