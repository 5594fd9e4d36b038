"""A trained network from the folder of its run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from omegaconf import OmegaConf

from lra import data, model
from lra.callbacks import load_checkpoint
from lra.config import Model, Protocol, UserError
from lra.data.arrays import Prepared
from lra.data.loader import Batch, Loader
from lra.data.prepare import find
from lra.data.task import Task
from lra.groups import usual_options
from lra.model.network import Network
from lra.report.table import pairs_of
from luna.base import Attention

See = Callable[..., None]  # of (layer, q, k, mask, x)


@dataclasses.dataclass(frozen=True)
class Trained:
    """A run's network with its trained weights, in evaluation mode, and its data."""

    network: Network
    task: Task
    prepared: Prepared
    protocol: Protocol
    name: str  # task, attention, seed, checkpoint
    conditions: str  # protocol, budget and data of its training
    stem: str  # of file names

    @property
    def title(self) -> str:
        return f"{self.name}\n{self.conditions}"

    def batches(self, split: str, size: int) -> Iterator[Batch]:
        yield from Loader(self.prepared.split(split), size, rules=self.protocol.data)


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


def restore(folder: Path, data_dir: Path) -> Trained:
    """The run of a folder, from its config.yaml and its best checkpoint, or else its last."""
    try:
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"{folder} is not the folder of a training run, because it has no config.yaml; for "
            "converted models there are lra figures tokens, patches and channels"
        ) from error
    settings, seed = config["settings"], config["seed"]
    name = settings["task"]["name"]
    protocol = _typed(Protocol, settings["protocol"] | {"tasks": {}})
    words = [
        f"{k}={'null' if v is None else v}" for k, v in settings["task"].items() if k != "name"
    ]
    options = data.configure(name, words)
    task = data.of(options)
    prepared = find(options, max_length=protocol.data.max_length, data_dir=data_dir)
    if prepared is None:
        raise UserError(
            f"the data of {folder} are not in {data_dir}: prepare them with lra data prepare, or "
            "name their folder with --data-dir"
        )
    kept = [folder / "checkpoints" / f"{name}.ckpt" for name in ("best", "last")]
    path = next((p for p in kept if p.exists()), None)
    if path is None:
        raise UserError(f"{folder} has no checkpoint: train the run again")
    torch.manual_seed(seed)
    attention = settings["attention"]
    network = model.build(task, attention, _typed(Model, settings["model"]), protocol, seed=seed)
    weights = load_checkpoint(path)["state_dict"]
    network.load_state_dict(
        {k.removeprefix("network."): v for k, v in weights.items() if k.startswith("network.")}
    )
    chosen = _chosen(attention, task.name, protocol.name)
    name = f"{task.name}, {chosen}, seed {seed}, {path.stem} checkpoint"
    conditions = (
        f"protocol {protocol.name} v{protocol.version}, model {settings['model']['name']}, "
        f"budget {settings['budget']:g}: {protocol.recipe.steps:,} steps of "
        f"{protocol.recipe.batch}\ndata: {prepared.facts['provenance']}"
    )
    stem = f"{task.name}-{attention['name']}-{folder.resolve().parent.name}-{seed}"
    return Trained(network.eval(), task, prepared, protocol, name, conditions, stem)


def _chosen(attention: dict[str, Any], task: str, protocol: str) -> str:
    """The name of the attention, and its options that differ from what `attention=<name>` sets."""
    name = attention["name"]
    usual = {"dwc": "none"} | usual_options(name, task, protocol)
    differ = {k: v for k, v in attention.items() if k != "name" and v != usual.get(k)}
    return f"{name} {pairs_of(differ)}".strip()


def _typed(schema: type, values: dict[str, Any]) -> Any:
    return OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(schema), values))
