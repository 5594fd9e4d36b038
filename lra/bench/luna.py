"""`lra bench luna`: what LUNA's evaluations cost, against the listing, the cheapest linear
attention and fused softmax.

Everything compared is measured in one process, one call after the other, round after round: what
else the machine does meets all alike. A ratio is the median over the rounds of the ratio in each.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import luna
from lra.bench import files
from lra.bench.step import Step
from lra.bench.worker import peak_bytes
from lra.compose import compose
from lra.config import UserError
from luna.kernels import cpu
from luna.kernels.scalar_mlp import scalar_mlp

WIDTHS = (16, 64, 128, 256, 512)
TASKS = ("image", "text")
LISTING: dict[str, Any] = {"evaluate": "dense"}

Call = Callable[[], None]
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Settings:
    lengths: Sequence[int]
    rounds: int
    threads: int
    batch: int
    heads: int = 2
    head_dim: int = 32
    M: int = 8
    L: int = 8
    hidden: int = 64
    step_batch: int = 2  # of training steps

    def __post_init__(self) -> None:
        for key in ("rounds", "threads", "batch"):
            if getattr(self, key) < 1:
                raise UserError(f"--{key} must be at least 1, got {getattr(self, key)}")
        if not self.lengths or min(self.lengths) < 1:
            raise UserError("--lengths must be at least 1")


def bench(settings: Settings, out: Path) -> None:
    if not cpu.AVAILABLE:
        raise UserError("numba is what is measured here: pip install 'luna-lra[fast]'")
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        rows = [*feature_maps(settings), *attentions(settings), *steps(settings)]
    finally:
        torch.set_num_threads(before)
    for path in write(rows, settings, out):
        print(f"written to {path}")


# ---------------------------------------------------------------------- what is measured


def feature_maps(s: Settings) -> Iterator[Row]:
    """Forward and backward of psi, at the longest length, by hidden width."""
    n = max(s.lengths)
    u = torch.randn(1, s.batch * s.heads * n * s.M, requires_grad=True)
    grad = torch.randn(1, u.shape[1], s.L)
    calls: dict[str, Call] = {}

    def add(how: str, width: int) -> None:
        torch.manual_seed(0)
        shapes = [(1, s.L, width)] * 3 + [(1, s.L)]  # e, f, a, g, initialised as linear layers
        bounds = [1.0, 1.0, width**-0.5, width**-0.5]
        e, f, a, g = (
            ((2 * torch.rand(shape) - 1) * bound).requires_grad_()
            for shape, bound in zip(shapes, bounds, strict=True)
        )
        leaves = [u, e, f, a, g]

        def run() -> None:
            y = scalar_mlp(*leaves, nonneg=True, evaluate=how)  # type: ignore[arg-type]
            torch.autograd.grad(y, leaves, grad)

        calls[f"{how}, hidden {width}"] = run

    for how in ("dense", "piecewise"):
        add(how, s.hidden)
    for width in sorted({*WIDTHS, s.hidden}):
        add("compiled", width)
    yield from _rows("feature map", interleave(calls, s.rounds), n=n)


def attentions(s: Settings) -> Iterator[Row]:
    """Forward and backward of whole attentions. `linear, D = 64` is elu + 1 with q and k as wide
    as LUNA's features."""
    D = s.M * s.L
    options: dict[str, Any] = {"M": s.M, "L": s.L, "hidden": s.hidden}
    for n in s.lengths:
        q, k, v = (_tensor(s, n, s.head_dim) for _ in range(3))
        wide = [_tensor(s, n, D), _tensor(s, n, D), v]
        slot: dict[str, Any] = {"n_heads": s.heads, "max_len": n}
        narrow = slot | {"head_dim": s.head_dim}
        build: dict[str, tuple[luna.Attention, list[Tensor]]] = {
            "luna, the listing": (luna.build("luna", **narrow, **options, **LISTING), [q, k, v]),
            "luna": (luna.build("luna", **narrow, **options), [q, k, v]),
            "linear": (luna.build("linear", **narrow), [q, k, v]),
            f"linear, D = {D}": (luna.build("linear", **slot, head_dim=D), wide),
            "softmax, fused": (luna.build("softmax", **narrow), [q, k, v]),
        }
        for how in ("piecewise", "compiled"):
            method = luna.build("luna", **narrow, **options, evaluate=how)
            build[f"luna, {how}"] = (method, [q, k, v])
        weight = torch.randn(v.shape)

        def run(method: luna.Attention, given: list[Tensor], weight: Tensor = weight) -> None:
            leaves = [*given, *method.parameters()]
            torch.autograd.grad(method(*given), leaves, weight)

        calls: dict[str, Call] = {name: partial(run, *pair) for name, pair in build.items()}
        times = interleave(calls, s.rounds)
        peaks = {name: peak_bytes(call, torch.device("cpu")) for name, call in calls.items()}
        yield from _rows("attention", times, peaks, n=n)


def steps(s: Settings) -> Iterator[Row]:
    """A step of training of the small model: network, optimiser, clipping."""
    for task in TASKS:
        ways = {
            "luna, the listing": ["attention=luna", "attention.evaluate=dense"],
            "luna": ["attention=luna"],
            "linear": ["attention=linear"],
            "softmax, fused": ["attention=softmax"],
        }
        calls: dict[str, Call] = {}
        for name, words in ways.items():
            words = [f"task={task}", "model=small", "compute=off", *words]
            run = compose([*words, f"protocol.recipe.batch={s.step_batch}"])
            calls[name] = Step(run, torch.device("cpu"))
        times = interleave(calls, s.rounds)
        peaks = {name: peak_bytes(call, torch.device("cpu")) for name, call in calls.items()}
        yield from _rows(f"step, {task}", times, peaks, n=run.protocol.data.pad_to)


def _tensor(s: Settings, n: int, d: int) -> Tensor:
    return torch.randn(s.batch, s.heads, n, d, requires_grad=True)


# ---------------------------------------------------------------------- how


def interleave(calls: dict[str, Call], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call in every round. Each is made twice and timed the second time: the first
    pays for what the call before left in memory, of which the listing leaves gigabytes."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            call()
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return times


def _rows(
    what: str, times: dict[str, list[float]], peaks: dict[str, int] | None = None, **facts: Any
) -> Iterator[Row]:
    for name, seconds in times.items():
        row = {"what": what, "name": name, **facts, "seconds": seconds}
        if peaks:
            row["peak_mib"] = peaks[name] / 2**20
        shown = f"{1e3 * statistics.median(seconds):9.1f} ms"
        print(f"{what:<14}n={facts['n']:<8}{name:<24}{shown}", flush=True)
        yield row


def ratio(rows: list[Row], slow: str, fast: str, **facts: Any) -> tuple[float, float, float]:
    """Median, least and largest of the rounds' ratios."""
    found = [
        next(r for r in rows if r["name"] == name and facts.items() <= r.items())["seconds"]
        for name in (slow, fast)
    ]
    ratios = [a / b for a, b in zip(*found, strict=True)]
    return statistics.median(ratios), min(ratios), max(ratios)


def targets(rows: list[Row], s: Settings) -> Iterator[tuple[str, str, str]]:
    """Statement, target, measured."""
    n, D = max(s.lengths), s.M * s.L

    def told(*arguments: str, **facts: Any) -> str:
        return "{:.2f} ({:.2f} .. {:.2f})".format(*ratio(rows, *arguments, **facts))

    at: dict[str, Any] = {"what": "feature map"}
    hidden = f"hidden {s.hidden}"
    fast = told(f"dense, {hidden}", f"compiled, {hidden}", **at)
    yield f"feature map, n = {n}: listing / compiled", ">= 30", fast
    medians = {
        r["name"]: statistics.median(r["seconds"])
        for r in rows
        if r["what"] == "feature map" and r["name"].startswith("compiled")
    }
    flat = max(medians.values()) / min(medians.values())
    widths = f"hidden {min(WIDTHS)} .. {max(WIDTHS)}"
    yield f"feature map, n = {n}: slowest / fastest of {widths}", "<= 1.3", f"{flat:.2f}"
    for length in s.lengths:
        at = {"what": "attention", "n": length}
        yield (
            f"n = {length}: luna / linear, D = {D}",
            "<= 1.15",
            told("luna", f"linear, D = {D}", **at),
        )
        yield f"n = {length}: luna / linear", "", told("luna", "linear", **at)
        least = ">= 3" if length >= 4096 else ">= 1" if length >= 1024 else ""
        yield f"n = {length}: softmax / luna", least, told("softmax, fused", "luna", **at)
        yield f"n = {length}: listing / luna", "", told("luna, the listing", "luna", **at)
    for what in (f"step, {task}" for task in TASKS):
        yield f"{what}: listing / luna", ">= 8", told("luna, the listing", "luna", what=what)
        peak = {r["name"]: r["peak_mib"] for r in rows if r["what"] == what}
        yield (
            f"{what}: peak memory, luna / linear",
            "<= 1.2",
            f"{peak['luna'] / peak['linear']:.2f}",
        )


# ---------------------------------------------------------------------- what is written


def write(rows: list[Row], settings: Settings, out: Path) -> list[Path]:
    import numba

    facts = files.facts("lra bench luna", settings, device="cpu")
    facts["versions"]["numba"] = numba.__version__
    stem = files.stem(out, "luna", facts)
    found = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "md")]
    found[0].write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    found[1].write_text(_page(rows, facts, settings), encoding="utf-8")
    return [*found, *files.picture("luna_figure", rows, facts, stem)]


def _page(rows: list[Row], facts: dict[str, Any], settings: Settings) -> str:
    machine, versions = facts["machine"], facts["versions"]
    lines = [
        f"# LUNA's evaluations, {machine['device']}, {settings.threads} thread(s)",
        "",
        f"`lra bench luna`, {facts['date']}; torch {versions['torch']}, numba {versions['numba']}, "
        f"Python {versions['python']}. Batch {settings.batch}, {settings.heads} heads of "
        f"{settings.head_dim}, M = {settings.M}, L = {settings.L}, hidden {settings.hidden}, "
        f"float32, forward and backward; training steps of batch {settings.step_batch}; "
        f"{settings.rounds} interleaved rounds: median "
        "(least .. largest).",
        "",
        "| ratio of times, or of memory | target | measured |",
        "|---|---|---|",
        *(f"| {' | '.join(line)} |" for line in targets(rows, settings)),
        "",
        "| what | n | evaluation | ms | peak MiB |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        seconds = f"{1e3 * statistics.median(row['seconds']):.1f}"
        peak = f"{row['peak_mib']:.0f}" if "peak_mib" in row else ""
        cells = (row["what"], row["n"], row["name"], seconds, peak)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"
