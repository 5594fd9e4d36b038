"""One pass of the original and of converted models in one process.

`python -m lra.bench.convert_worker '<request>'` prints one line of JSON for every length and
method, all methods at one length before the next length.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

import luna
from lra.bench.convert_host import Geometry, batch, build, dense_flops
from lra.bench.worker import by_length, fastest, open_device, peak_bytes
from luna.convert.swap import convert

LR = 1e-5  # of the paper's finetuning; no decay
ORIGINAL = ("softmax", "strict")  # not converted: the host's own attention


def measure(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """In turn: what a ratio is made of is measured within seconds."""
    device = open_device(request)
    rows = [_by_length(request | of_method, device) for of_method in request["methods"]]
    for at_one_length in zip_longest(*rows):
        yield from filter(None, at_one_length)


def _by_length(request: dict[str, Any], device: torch.device) -> Iterator[dict[str, Any]]:
    geometry = Geometry(**request["geometry"])
    who = {key: request[key] for key in ("measured", "method", "profile")}
    rows = by_length(
        request,
        flops=lambda n: request["batch"] * _flops(request, geometry, n),
        costs=lambda n: _costs(request, geometry, n, device),
        timed="seconds",
    )
    return (row | who for row in rows)


def _flops(request: dict[str, Any], geometry: Geometry, n: int) -> int:
    """Of a forward, to carry costs forward to the next length."""
    with torch.device("meta"):
        attention = luna.build(
            request["method"],
            profile=request["profile"],
            n_heads=geometry.heads,
            head_dim=geometry.head_dim,
            max_len=n,
        )
    return dense_flops(geometry, n) + geometry.layers * attention.flops(n)


def _costs(
    request: dict[str, Any], geometry: Geometry, n: int, device: torch.device
) -> dict[str, float]:
    gc.collect()  # of the models before: freed later, their bytes would count as less memory
    model = build(geometry, n)
    name, profile = request["method"], request["profile"]
    if (name, profile) != ORIGINAL:
        model = convert(model, name, profile=profile, inplace=True)
    inputs = batch(geometry, request["batch"], n, device)
    call = PASSES[request["measured"]](model.to(device), inputs)
    costs = fastest({"seconds": call}, device)
    return costs | ({"peak_bytes": peak_bytes(call, device)} if request["memory"] else {})


def inference(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    model.eval()
    given = {name: tensor for name, tensor in inputs.items() if name != "labels"}

    @torch.no_grad()
    def call() -> None:
        model(**given)

    return call


def step(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    """Forward, backward and AdamW, everything trainable: a step of stage 2."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # AdamW's own tensors, made once, are no part of a step
    optimizer.zero_grad()

    def call() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


PASSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], Callable[[], None]]] = {
    "inference": inference,
    "step": step,
}


if __name__ == "__main__":
    for found in measure(json.loads(sys.argv[1])):
        print(json.dumps(found), flush=True)
