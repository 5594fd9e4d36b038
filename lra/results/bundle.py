"""A trained network as a folder to pass on: weights, settings, and a card that says what it is.

    model.safetensors   the weights
    config.json         the settings of its run, and what its record says of it
    README.md           the card

`lra.load(folder)` reads it. The folder is also what Hugging Face's hub takes:
`huggingface_hub.upload_folder(repo_id="me/luna-listops", folder_path=folder)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

import luna
from lra.base.config import UserError, readable
from lra.base.disk import disk_errors, read_json, write_atomically, write_json
from lra.data.store import lock, new_folder
from lra.results.record import Record, read_record
from lra.training.trained import (
    TRAIN_AGAIN,
    Trained,
    build_network,
    load_trained,
    read_experiment,
)

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = 1
FACTS = ("identity", "codes", "command", "task", "attention", "test", "compute", "data", "versions",
         "git", "machine", "times")  # fmt: skip

TEXT = """\
---
library_name: luna-lra
tags: [long-range-arena, {record[task]}, {record.attention}]
metrics: [accuracy]
---
# {record.attention} on {record[task]}

A Transformer, layers: {run.model.n_layers}, width: {run.model.d_model}, with the attention \
*{record.attention}*, trained by
luna-lra {version}.

| | |
|---|---|
| test accuracy | {record[test.accuracy]:.2%} of {answers:,} answers \
({select} checkpoint by dev accuracy) |
| always answering the most frequent class | {record[data.majority]:.2%} |
| data | {record[data.provenance]}, fingerprint `{record[data.fingerprint]}` |
| compute | {record[compute.parameters]:,} parameters, {gflops:.3g} GFLOPs per example forward |
| training | {record[steps]:,} steps of {record[batch]}, \
protocol {run.protocol.name} v{run.protocol.version}, budget {run.budget:g}, seed {run.seed} |
| code | {record.code}, revision {record.revision} |

## Use

```python
import lra

trained = lra.load("{folder}")
trained.predict(examples).classes  # texts, pictures or ids
```

It was made by `{command}`.

## Cite

* {paper.title} ({paper.year}): {paper.url}
* luna-lra, a framework to compare efficient attention on the Long Range Arena, version {version}.
* Tay et al. 2021, Long Range Arena: https://arxiv.org/abs/2011.04006
"""


def write_bundle(trained: Trained, folder: Path) -> list[Path]:
    """Write a finished run's network into a new folder."""
    result = trained.folder / "result.json"
    record = read_record(result) if result.exists() else None
    if record is None:
        raise UserError(f"{trained.folder} has not finished: run its command again, then export it")
    state = trained.network.state_dict()
    config = {
        "format": FORMAT,
        "settings": record["settings"],
        "seed": trained.run.seed,
        "weights": trained.weights,
        "streams": _streams(state),
        "record": {key: record.get(key) for key in FACTS},
    }
    with lock(folder, f"another process is writing {folder}; waiting for it"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there already: name a new folder")
        with new_folder(folder) as partial, disk_errors(folder):
            write_json(partial / CONFIG, config)
            write_atomically(partial / CARD, _card(trained, record, folder.name).encode())
            write_atomically(partial / WEIGHTS, save(_flat(state)))
    return [folder / name for name in (WEIGHTS, CONFIG, CARD)]


def open_network(
    folder: str | Path | Record, *, data_dir: str | Path = "data", device: str = "cpu"
) -> Trained:
    """Load the network of a run's folder or record, or of a folder that `lra export` wrote."""
    place = folder.folder if isinstance(folder, Record) else Path(folder)
    read_network = read_bundle if (place / WEIGHTS).exists() else load_trained
    return read_network(place, data_dir=data_dir, device=device)


def read_bundle(folder: Path, *, data_dir: str | Path, device: str) -> Trained:
    config = read_json(folder / CONFIG) or {}
    if config.get("format") != FORMAT:
        raise UserError(f"{folder / CONFIG} is not of a network that lra export wrote")
    try:
        weights: dict[str, torch.Tensor] = load((folder / WEIGHTS).read_bytes())
    except (OSError, SafetensorError) as error:
        raise UserError(f"{folder / WEIGHTS} is damaged: {error}") from error
    with readable(folder / CONFIG, TRAIN_AGAIN):
        run = read_experiment(config["settings"], config["seed"])
        fingerprint = config["record"]["data"]["fingerprint"]
        state, which = _nested(weights, config["streams"]), str(config["weights"])
    network = build_network(run, state, folder, device)
    return Trained(network, run, folder, Path(data_dir), which, fingerprint)


def _flat(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """safetensors hold tensors alone; random streams are a level deeper in a state dict."""
    tensors = {name: tensor for name, tensor in state.items() if not isinstance(tensor, dict)}
    tensors |= {f"{name}/{kind}": s for name in _streams(state) for kind, s in state[name].items()}
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}


def _nested(weights: dict[str, torch.Tensor], streams: list[str]) -> dict[str, Any]:
    state: dict[str, Any] = {name: {} for name in streams}
    for name, tensor in weights.items():
        stream, deep, kind = name.partition("/")
        if deep:
            state[stream][kind] = tensor
        else:
            state[name] = tensor
    return state


def _streams(state: dict[str, Any]) -> list[str]:
    return [name for name, value in state.items() if isinstance(value, dict)]


def _card(trained: Trained, record: Record, folder: str) -> str:
    return TEXT.format(
        run=trained.run,
        record=record,
        paper=luna.get(record.attention).paper,
        version=luna.__version__,
        answers=record.get("test.scored") or record["test.examples"],
        select=trained.weights,
        gflops=record["compute.flops"] / 1e9,
        folder=folder,
        command=record.get("command") or "lra.train",
    )
