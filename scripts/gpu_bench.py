"""Time attentions on a GPU: forward and both passes, one call after the other and as a CUDA graph.

    python scripts/gpu_bench.py [FOLDER]      a line of JSON for each into FOLDER/kernels.jsonl

A call from Python costs the time of its launches, some milliseconds; a graph replays them without
Python, as `trainer.compile=graphs` does. Each figure is the median of 20. `share` is the
least traffic (q, k, v, o and their gradients, once) over the time of both passes as a graph, as a
fraction of what a copy reaches on the same card.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import luna

HEADS, WIDTH = 4, 32
SHAPES = ((32, 2048), (4, 16384))  # batch and tokens
LUNA = {"M": 8, "L": 8, "hidden": 64, "evaluate": "fused"}


def attentions(causal: bool) -> dict[str, dict[str, Any]]:
    """LUNA and the baselines, by their labels."""
    signed = LUNA | {"nonneg": False, "normalise": "rms"}
    rows: dict[str, dict[str, Any]] = {"luna": LUNA, "luna signed, rms": signed}
    rows["luna exp"] = LUNA | {"nonneg": "exp"}
    rows["linear"] = {}
    return rows if not causal else {"luna": LUNA, "linear": {}}


def calls(causal: bool, mask: Tensor) -> Iterator[tuple[str, Callable[..., Tensor], list[Tensor]]]:
    """Each attention as a function of q, k, v, and its parameters."""
    for label, options in attentions(causal).items():
        torch.manual_seed(0)
        sizes = {"n_heads": HEADS, "head_dim": WIDTH, "max_len": mask.shape[1], "causal": causal}
        module = luna.build(label.split()[0], **sizes, **options).cuda()
        yield label, partial(module, mask=mask, zeroed=True), list(module.parameters())
    softmax = F.scaled_dot_product_attention
    yield "softmax", partial(softmax, is_causal=causal), []
    if not causal:
        yield "softmax with the mask", partial(softmax, attn_mask=mask[:, None, None, :]), []


def median(function: Callable[[], Any]) -> float:
    """Milliseconds of a call."""
    for _ in range(3):
        function()
    times = []
    for _ in range(20):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def as_graph(function: Callable[[], Any], repeats: int = 5) -> float:
    """Milliseconds of a call that a CUDA graph replays."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeats):
            function()
    return median(graph.replay) / repeats


def copy_rate() -> float:
    """Bytes per millisecond that a copy reads and writes."""
    source = torch.empty(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / median(partial(target.copy_, source))


def rows(dtype: torch.dtype, B: int, n: int, causal: bool, rate: float) -> Iterator[dict[str, Any]]:
    torch.manual_seed(1)
    qkv = torch.randn(B, n, 3, HEADS, WIDTH, device="cuda", dtype=dtype)
    heads = [t.transpose(1, 2).detach().requires_grad_() for t in qkv.unbind(2)]
    gradient = torch.randn(B, n, HEADS, WIDTH, device="cuda", dtype=dtype).transpose(1, 2)
    mask = torch.ones(B, n, dtype=torch.bool, device="cuda")
    mask[:, n - n // 8 :] = False  # an eighth is padding
    traffic = 11 * heads[0].nbytes  # q, k, v twice, o; do, and three gradients
    for label, attend, parameters in calls(causal, mask):
        inputs = heads + parameters

        def forward(attend: Callable[..., Tensor] = attend) -> Tensor:
            return attend(*heads)

        def both(inputs: list[Tensor] = inputs, forward: Callable = forward) -> Any:
            return torch.autograd.grad(forward(), inputs, gradient)

        row = {"attention": label, "dtype": str(dtype)[6:], "B": B, "n": n, "causal": causal}
        timed = {"forward": median(forward), "both": median(both)}
        timed |= {"forward_graph": as_graph(forward), "both_graph": as_graph(both)}
        row |= {name: round(time, 4) for name, time in timed.items()}
        yield row | {"share": round(traffic / timed["both_graph"] / rate, 3)}


def main(folder: str | None = None) -> None:
    if not torch.cuda.is_available():
        sys.exit("no CUDA device is here: this script times attentions on one")
    card = torch.cuda.get_device_name()
    rate = copy_rate()
    print(f"{card}, torch {torch.__version__}: a copy moves {rate / 1e9:.2f} TB/s")
    path = Path(folder) / "kernels.jsonl" if folder else None
    for dtype in (torch.bfloat16, torch.float32):
        for causal in (False, True):
            for B, n in SHAPES:
                for row in rows(dtype, B, n, causal, rate):
                    print(*(f"{value!s:>8}" for value in row.values()), flush=True)
                    if path:
                        with path.open("a") as file:
                            file.write(json.dumps({"card": card} | row) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:2])
