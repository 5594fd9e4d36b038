"""Training steps of one run, measured in a process of its own: `python -m lra.bench.step
'<request>'` prints one line of JSON.

Network, optimiser and clipping are those of a run; the batch is one of random ids at full length,
so that nothing has to be prepared.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lra import data, model, optim
from lra.bench.worker import peak_bytes
from lra.compose import Run, compose
from lra.config import Clip, Mask

CLIP: dict[Clip, Callable[..., Any]] = {
    Clip.norm: nn.utils.clip_grad_norm_,
    Clip.value: nn.utils.clip_grad_value_,
}


class Step:
    """One optimiser step each time it is called."""

    def __init__(self, run: Run, device: torch.device):
        torch.manual_seed(run.seed)
        task, rules = data.get(run.task.name), run.protocol.data
        self.recipe = run.protocol.recipe
        self.network = model.build(task, run.attention, run.model, run.protocol, seed=run.seed).to(
            device
        )
        self.optimizer, _ = optim.build(self.network.parameters(), self.recipe)
        texts = (2,) if task.dual else ()
        shape = (self.recipe.batch, *texts, rules.pad_to)
        self.ids = torch.randint(1, task.vocab, shape, device=device)
        masked = rules.mask is not Mask.none
        self.mask = torch.ones(shape, dtype=torch.bool, device=device) if masked else None
        self.labels = torch.randint(task.classes, (self.recipe.batch,), device=device)

    def __call__(self) -> None:
        F.cross_entropy(self.network(self.ids, self.mask), self.labels).backward()
        if clip := CLIP.get(self.recipe.clip):
            clip(self.network.parameters(), self.recipe.clip_at)
        self.optimizer.step()
        self.optimizer.zero_grad()


def measure(request: dict[str, Any]) -> dict[str, float]:
    """Median seconds of a step after one that warms up, and the peak memory of one more."""
    run, device = compose(request["overrides"]), torch.device(request["device"])
    if device.type == "cpu":
        torch.set_num_threads(request["threads"])
    step = Step(run, device)
    step()
    times = []
    for _ in range(request["steps"]):
        start = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    peak = {"peak_bytes": peak_bytes(step, device)} if request["memory"] else {}
    return {"seconds": statistics.median(times)} | peak


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))))
