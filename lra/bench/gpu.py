"""`lra bench gpu`: attentions on a GPU, forward and backward apart, eager and as a CUDA graph.

A call from Python costs the time of its launches, some milliseconds; a graph replays them without
Python, as `trainer.compile=graphs` does. Each time is the median of 20. The backward pass is what
both passes take beyond the forward one. `share` is the least traffic (q, k, v, o and their
gradients, once) over the time of both passes as a graph, as a fraction of what a copy reaches on
the same card.

Each row is written when it was measured, so that a call that is cut off loses nothing.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

import luna
from lra.base.errors import UserError
from lra.report.render import grid

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]  # of q, k, v (B, H, n, d)

HEADS, WIDTH = 4, 32
TOKENS = 2**16  # of a batch: fewer examples of longer sequences
FILE = "gpu.jsonl"
LUNA: dict[str, Any] = {"M": 8, "L": 8, "hidden": 64, "evaluate": "fused"}
# Labels and options; the first word of a label is the method.
BOTH_WAYS: dict[str, dict[str, Any]] = {
    "luna": LUNA,
    "luna exp": LUNA | {"nonneg": "exp"},
    "luna signed, rms": LUNA | {"nonneg": False, "normalise": "rms"},
    "luna signed, abs": LUNA | {"nonneg": False, "normalise": "abs"},
    "linear": {},
    "t2r": {},
    "lion": {},
}
CAUSAL = {label: BOTH_WAYS[label] for label in ("luna", "linear", "lion")}


def attentions(mask: Tensor, *, causal: bool) -> Iterator[tuple[str, Attend, list[Tensor]]]:
    """Ours, torch's softmax and what other libraries here have: a function of q, k, v, with its
    parameters."""
    for label, options in (CAUSAL if causal else BOTH_WAYS).items():
        torch.manual_seed(0)
        sizes = {"n_heads": HEADS, "head_dim": WIDTH, "max_len": mask.shape[1], "causal": causal}
        module = luna.build(label.split()[0], **sizes, **options).to(mask.device)
        yield label, partial(module, mask=mask, zeroed=True), list(module.parameters())
    softmax = F.scaled_dot_product_attention
    yield "softmax, no mask", partial(softmax, is_causal=causal), []
    if not causal:
        yield "softmax with the mask", partial(softmax, attn_mask=mask[:, None, None, :]), []
    yield from rivals(causal=causal)


def rivals(*, causal: bool) -> Iterator[tuple[str, Attend, list[Tensor]]]:
    """Kernels of other libraries, where they are installed. They take (B, n, H, d), and see no
    mask."""
    try:
        from flash_attn import flash_attn_func  # of half-precision numbers alone

        yield "flash-attn softmax", _tokens_first(partial(flash_attn_func, causal=causal)), []
    except ImportError:
        pass
    if causal:
        try:
            from fla.ops.linear_attn import chunk_linear_attn

            yield "fla linear", _tokens_first(lambda *qkv: chunk_linear_attn(*qkv)[0]), []
        except ImportError:
            pass


def _tokens_first(function: Callable[..., Tensor]) -> Attend:
    return lambda *qkv: function(*(t.transpose(1, 2) for t in qkv)).transpose(1, 2)


# ---------------------------------------------------------------------- time


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


def rows_of(
    dtype: torch.dtype, n: int, *, causal: bool, rate: float, device: str = "cuda"
) -> Iterator[dict[str, Any]]:
    """The times of every attention on one batch, of which an eighth is padding; why one has
    none."""
    torch.manual_seed(1)
    B = max(1, TOKENS // n)
    qkv = torch.randn(B, n, 3, HEADS, WIDTH, device=device, dtype=dtype)
    heads = [t.transpose(1, 2).detach().requires_grad_() for t in qkv.unbind(2)]
    gradient = torch.randn(B, n, HEADS, WIDTH, device=device, dtype=dtype).transpose(1, 2)
    mask = torch.ones(B, n, dtype=torch.bool, device=device)
    mask[:, n - n // 8 :] = False
    traffic = 11 * heads[0].nbytes  # q, k, v twice, o; do, and three gradients
    for label, attend, parameters in attentions(mask, causal=causal):
        inputs = heads + parameters

        def forward(attend: Attend = attend) -> Tensor:
            return attend(*heads)

        def both(inputs: list[Tensor] = inputs, forward: Callable[[], Tensor] = forward) -> Any:
            return torch.autograd.grad(forward(), inputs, gradient)

        row = {"attention": label, "dtype": str(dtype)[6:], "B": B, "n": n, "causal": causal}
        try:
            yield row | times_of(forward, both, traffic / rate)
        except (
            RuntimeError,
            ValueError,
            luna.LunaError,
        ) as error:  # out of memory, not for this dtype
            yield row | {"stopped": str(error).partition("\n")[0]}


def times_of(forward: Callable[[], Any], both: Callable[[], Any], least: float) -> dict[str, float]:
    """Milliseconds, and the share of the bandwidth where the least is `least` milliseconds."""
    eager, together = median(forward), median(both)
    graph, both_graph = as_graph(forward), as_graph(both)
    timed = {
        "forward": eager,
        "backward": together - eager,
        "forward_graph": graph,
        "backward_graph": both_graph - graph,
        "both_graph": both_graph,
    }
    return {name: round(ms, 4) for name, ms in timed.items()} | {
        "share": round(least / both_graph, 3)
    }


# ---------------------------------------------------------------------- command and page


def main(options: Namespace) -> None:
    if not torch.cuda.is_available():
        raise UserError("no CUDA device is here, and lra bench gpu times attentions on one")
    card, rate = torch.cuda.get_device_name(), copy_rate()
    facts = {"card": card, "torch": torch.__version__, "copy, TB/s": round(rate / 1e9, 2)}
    print(*(f"{name} {value}" for name, value in facts.items()), sep=", ", file=sys.stderr)
    measured: list[dict[str, Any]] = []
    for dtype in (torch.bfloat16, torch.float32):
        for causal in (False, True):
            for n in options.lengths:
                for row in rows_of(dtype, n, causal=causal, rate=rate):
                    measured.append(facts | row)
                    print(*(f"{value!s:>8}" for value in row.values()), file=sys.stderr, flush=True)
                    if options.write:
                        options.write.mkdir(parents=True, exist_ok=True)
                        with (options.write / FILE).open("a", encoding="utf-8") as file:
                            file.write(json.dumps(facts | row) + "\n")
    print(page(measured))
    if options.write:
        (options.write / "gpu.md").write_text(page(measured), encoding="utf-8")


COLUMNS = {
    "forward_graph": "forward",
    "backward_graph": "backward",
    "both_graph": "both",
    "share": "share of a copy",
    "forward": "forward, from Python",
    "backward": "backward, from Python",
}


def page(rows: list[dict[str, Any]]) -> str:
    """One page: a table for each type, direction and length, the fastest first."""
    first = rows[0]
    parts = [
        "# Attentions on a GPU",
        f"{first['card']}, torch {first['torch']}; {HEADS} heads of {WIDTH}, an eighth of each "
        "sequence is padding. Milliseconds as a CUDA graph, then of calls from Python; medians of "
        "20. Share: the least traffic (q, k, v, o and their gradients, once) at the speed of a "
        f"copy, {first['copy, TB/s']} TB/s, over the time of both passes.",
    ]
    keys = ["dtype", "causal", "n"]
    for (dtype, causal, n), part in pd.DataFrame(rows).groupby(keys, sort=False):
        frame = part.set_index("attention").rename_axis("attention")
        frame = frame.reindex(columns=[*COLUMNS, "stopped"]).sort_values("both_graph")
        shown = frame[[*COLUMNS]].map(lambda ms: "–" if pd.isna(ms) else f"{ms:.2f}")
        shown["share"] = [
            reason if isinstance(reason, str) else f"{100 * share:.0f} %"
            for share, reason in zip(frame["share"], frame["stopped"], strict=True)
        ]
        batch = f"{part['B'].iloc[0]} x {n:,} tokens"
        parts += [
            f"## {dtype}, {batch}{', causal' if causal else ''}",
            grid(shown.rename(columns=COLUMNS)),
        ]
    return "\n\n".join(parts) + "\n"
