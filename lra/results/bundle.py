"""A trained network as a folder to pass on: weights, settings, and a card that says what it is.

    model.safetensors   the weights
    config.json         the record of its run, with its settings
    README.md           the card

`lra.load(folder)` reads it, and Hugging Face's hub takes it (docs/python.md).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
FORMAT = 2

TEXT = """\
---
library_name: luna-lra
tags: [long-range-arena, {record[task]}, {record.attention}]
metrics: [accuracy]
---
# {record.attention} on {record[task]}

A Transformer with the attention *{record.attention}*, trained by luna-lra {version}: `{command}`.

| | |
|---|---|
| test accuracy | {record.score:.2f}% of {answers:,} answers ({select} checkpoint by dev accuracy) |
| always giving one answer | {record.floor:.2f}% |
| data | {record[data.provenance]}, fingerprint `{record[data.fingerprint]}` |
| compute | {record[compute.parameters]:,} parameters, {gflops:.3g} GFLOPs per example forward |
| training | {record[steps]:,} steps of {record[batch]}, protocol {record[protocol.name]} \
v{record[protocol.version]}, budget {record[budget]:g}, seed {record[seed]} |
| code | {record.code}, revision {record.revision} |

`lra.load("{folder}").predict(examples).classes` answers texts, pictures or ids.

* {paper.title} ({paper.year}): {paper.url}
* Tay et al. 2021, Long Range Arena: https://arxiv.org/abs/2011.04006
"""


def write_bundle(trained: Trained, folder: Path) -> list[Path]:
    """Write a finished run's network into a new folder."""
    result = trained.folder / "result.json"
    record = read_record(result) if result.exists() else None
    if record is None:
        raise UserError(f"{trained.folder} has not finished: run its command again, then export it")
    tensors = trained.network.state_dict()
    streams = {name: tensors.pop(name) for name in [*tensors] if isinstance(tensors[name], dict)}
    for name, stream in streams.items():  # of random numbers; safetensors hold tensors alone
        tensors |= {f"{name}/{kind}": tensor for kind, tensor in stream.items()}
    config = {"format": FORMAT, "weights": trained.weights, "streams": [*streams],
              "record": record.facts}  # fmt: skip
    card = TEXT.format(
        record=record,
        paper=luna.get(record.attention).paper,
        version=luna.__version__,
        answers=record.get("test.scored") or record["test.examples"],
        select=trained.weights,
        gflops=record["compute.flops"] / 1e9,
        folder=folder.name,
        command=record.get("command") or "lra.train",
    )
    with lock(folder, f"another process is writing {folder}; waiting for it"):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"{folder} is there already: name a new folder")
        with new_folder(folder) as partial, disk_errors(folder):
            write_json(partial / CONFIG, config)
            write_atomically(partial / CARD, card.encode())
            weights = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
            write_atomically(partial / WEIGHTS, weights)
    return [folder / name for name in (WEIGHTS, CONFIG, CARD)]


def open_network(
    folder: str | Path | Record, *, data_dir: str | Path | None = None, device: str = "cpu"
) -> Trained:
    """Load the network of a run's folder or record, or of a folder that `lra export` wrote."""
    place = folder.folder if isinstance(folder, Record) else Path(folder)
    if not (place / WEIGHTS).is_file():  # a pipe would be waited for
        return load_trained(place, data_dir=data_dir, device=device)
    config = read_json(place / CONFIG) or {}
    if config.get("format") != FORMAT:
        raise UserError(
            f"{place / CONFIG} is not of a network that this version's lra export wrote"
        )
    with readable(place / WEIGHTS, "export it again"):
        weights = load((place / WEIGHTS).read_bytes())
    with readable(place / CONFIG, TRAIN_AGAIN):
        record, which = config["record"], str(config["weights"])
        run = read_experiment(record["settings"], record["seed"])
        state: dict[str, Any] = {name: {} for name in config["streams"]}
        for name, tensor in weights.items():
            stream, deep, kind = name.partition("/")
            (state[stream] if deep else state)[kind or name] = tensor
        fingerprint = record["data"]["fingerprint"]
    network = build_network(run, state, place, device)
    return Trained(network, run, place, Path(data_dir or "data"), which, fingerprint)
