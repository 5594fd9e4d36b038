"""One attention measured in a process of its own: `python -m lra.bench.worker '<request>'`.

Prints one line of JSON a length, in rising order, and stops before a length whose cost, carried
forward from the last one by the method's own FLOPs, is over a limit.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import luna
from lra.bench.plain import PLAIN, WHOLE

LEAST = 0.1  # seconds that calls are repeated for; the fastest one counts


def measure(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    device = open_device(request)
    return by_length(
        request,
        flops=lambda n: request["batch"] * _build(request, n, "meta").flops(n),
        costs=lambda n: _costs(request, n, device),
        timed="train_seconds",
    )


def open_device(request: dict[str, Any]) -> torch.device:
    device = torch.device(request["device"])
    if device.type == "cpu":
        torch.set_num_threads(request["threads"])
    return device


def by_length(
    request: dict[str, Any],
    *,
    flops: Callable[[int], int],
    costs: Callable[[int], dict[str, float]],
    timed: str,
) -> Iterator[dict[str, Any]]:
    """A row a length; `timed` is the time among its costs that `seconds` limits."""
    last: dict[str, Any] = {}
    for n in request["lengths"]:
        row: dict[str, Any] = {"n": n, "flops": flops(n)}
        excess = _excess(row, last, request, timed)
        if not excess:
            if not last:
                costs(n)  # whatever is loaded or compiled once
            row |= costs(n)
            last = row
        yield row | {"stopped": excess}


def _excess(
    row: dict[str, Any], last: dict[str, Any], limits: dict[str, Any], timed: str
) -> str | None:
    """Which limit this length would break. A length after one that did breaks it too."""
    if not last:
        return None
    growth = row["flops"] / last["flops"]
    if growth * last[timed] > limits["seconds"]:
        return f"> {limits['seconds']:g} s"
    if growth * last.get("peak_bytes", 0) > limits["mib"] * 2**20:
        return f"> {limits['mib']:g} MiB"
    return None


def _costs(request: dict[str, Any], n: int, device: torch.device) -> dict[str, float]:
    """Forward without gradients in evaluation mode; forward and backward in training mode, in turn
    with the plain version where there is one."""
    attention = _build(request, n, device)
    shape = (request["batch"], request["heads"], n, request["head_dim"])
    q, k, v = (torch.randn(shape, device=device, requires_grad=True) for _ in range(3))
    x = torch.randn(shape[0], n, shape[1] * shape[3], device=device)
    weight = torch.randn(shape, device=device)  # of the outputs: every row has its own gradient
    leaves: list[Tensor] = [q, k, v, *attention.parameters()]

    def forward() -> None:
        with torch.no_grad():
            attention(q, k, v, None, x)

    def step(out: Callable[[], Tensor]) -> None:
        for leaf in leaves:
            leaf.grad = None
        (out() * weight).sum().backward()

    train = partial(step, lambda: attention(q, k, v, None, x))
    rivals: dict[str, Callable[[], None]] = {"train_seconds": train}
    plain = PLAIN.get(request["method"]) if request["profile"] == "strict" else None
    if plain and n % WHOLE == 0:
        rivals["plain_seconds"] = partial(step, lambda: plain(attention, q, k, v, x))
    attention.train()
    costs = fastest(rivals, device)
    for leaf in leaves:
        leaf.grad = None
    if request["memory"]:
        costs["peak_bytes"] = peak_bytes(train, device)
    attention.eval()
    return costs | fastest({"forward_seconds": forward}, device)


def _build(request: dict[str, Any], n: int, device: torch.device | str) -> luna.Attention:
    torch.manual_seed(0)
    with torch.device(device):
        return luna.build(
            request["method"],
            profile=request["profile"],
            n_heads=request["heads"],
            head_dim=request["head_dim"],
            max_len=n,
        )


def fastest(calls: dict[str, Callable[[], None]], device: torch.device) -> dict[str, float]:
    """The fastest of each, in turn: whatever else the machine does can only make a call slower. The
    first round warms up, and counts only where a second one would be dear."""
    first = {key: _once(call, device) for key, call in calls.items()}
    if sum(first.values()) > 10 * LEAST:
        return first
    rounds = range(max(2, round(LEAST / min(first.values()))))
    times = [{key: _once(call, device) for key, call in calls.items()} for _ in rounds]
    return {key: min(time[key] for time in times) for key in calls}


def _once(call: Callable[[], None], device: torch.device) -> float:
    start = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def peak_bytes(call: Callable[[], None], device: torch.device) -> int:
    """Most bytes alive at once beyond what was there before: activations, buffers of operations,
    gradients of inputs and parameters."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it tells of every start and stop
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        call()
    events = [e for e in trace.profiler.kineto_results.events() if e.name() == "[memory]"]
    return max(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))


if __name__ == "__main__":
    for found in measure(json.loads(sys.argv[1])):
        print(json.dumps(found), flush=True)
