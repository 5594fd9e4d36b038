"""`lra bench convert`: converted models and their softmax original, by length: time and peak memory
of inference and of a training step; and the time of converting a model of 12 layers."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

import luna
from lra.base.config import UserError
from lra.bench.cases import methods_of
from lra.bench.rows import BenchResult, Selection, break_even, ratios
from lra.bench.sheet import Benchmark, SheetTable, by_length, rounds_of
from lra.bench.worker import BenchCase, BenchMeter, BenchRules
from lra.compute.count import slot_flops
from luna.convert.host import transformers
from luna.convert.swap import convert, feature_parameters

METHODS = ("luna", "hedgehog", "t2r")
ORIGINAL = "softmax"  # not converted: the host's own attention
PATCH = 16
POSITIONS = 512  # of BERT; the table grows where a length needs it
LR = 1e-5  # of the paper's finetuning, without weight decay
NOTES = (
    "`softmax`: the original model in torch's fused kernel, without dropout of attention weights "
    "(with dropout there is no fused kernel on a CPU); the others: `luna.linearize` with default "
    "options (`luna` in machine code if numba is installed)",
    "inference: evaluation mode, no gradients; training step: forward, backward and AdamW of all "
    "parameters",
    "times: the fastest call of all rounds; all models in turn at each length",
    "memory: the allocator's peak, without parameters and state of the optimiser",
    "in brackets: the ratio to softmax; break-even: the length from which the method costs less "
    "than softmax, interpolated between two measured lengths on logarithmic axes",
)


# ---------------------------------------------------------------------- models


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """The sizes of a real model, with random weights and positions for any length."""

    host: Literal["bert", "vit"]
    layers: int
    heads: int
    width: int
    vocab: int = 30_522

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def __str__(self) -> str:
        return f"{self.layers} layers, {self.heads} heads of {self.head_dim}, {self.width} wide"

    def build(self, n: int) -> nn.Module:
        """The model with softmax attention, in torch's fused kernel."""
        torch.manual_seed(0)
        sizes: dict[str, Any] = {
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.width,
            "num_labels": 2,
            # With this dropout softmax has no fused kernel on a CPU and stores n x n weights;
            # converted attention has no weights to drop.
            "attention_probs_dropout_prob": 0.0,
            "attn_implementation": "sdpa",
        }
        library = transformers()
        if self.host == "bert":
            config = library.BertConfig(
                **sizes, vocab_size=self.vocab, max_position_embeddings=max(n, POSITIONS)
            )
            return library.BertForSequenceClassification(config)
        # CLS and one row of patches, because squares of patches would not allow every n.
        config = library.ViTConfig(**sizes, image_size=(PATCH, PATCH * (n - 1)), patch_size=PATCH)
        return library.ViTForImageClassification(config)

    def batch(self, size: int, n: int, device: torch.device) -> dict[str, Tensor]:
        """Random inputs at full length, without padding, and labels."""
        torch.manual_seed(1)
        inputs = {
            "bert": lambda: {"input_ids": torch.randint(1, self.vocab, (size, n))},
            "vit": lambda: {"pixel_values": torch.randn(size, 3, PATCH, PATCH * (n - 1))},
        }[self.host]()
        inputs["labels"] = torch.randint(2, (size,))
        return {name: tensor.to(device) for name, tensor in inputs.items()}

    def dense_flops(self, n: int) -> int:
        """FLOPs of forward without attention: per layer four projections and an MLP."""
        return self.layers * n * 2 * 12 * self.width**2


GEOMETRIES = {
    "minilm": Geometry(host="bert", layers=6, heads=12, width=384),
    "bert-base": Geometry(host="bert", layers=12, heads=12, width=768),
    "vit-b16-like": Geometry(host="vit", layers=12, heads=12, width=768),
}
TIMED = "bert-base"  # the model whose conversion is timed
CONVERSION = "conversion"  # the group of its cases


# ---------------------------------------------------------------------- cases


@dataclass(frozen=True, kw_only=True)
class ConvertedCase(BenchCase):
    """One pass (the group of the case) of a converted model or of the original."""

    method: str
    profile: str
    geometry: Geometry
    batch: int

    def flops(self, n: int) -> int:
        sizes = self.geometry
        slot: dict[str, Any] = {"n_heads": sizes.heads, "head_dim": sizes.head_dim, "max_len": n}
        with torch.device("meta"):
            attention = luna.build(self.method, profile=self.profile, **slot)
        return self.batch * (sizes.dense_flops(n) + sizes.layers * slot_flops(attention))

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        model = self.geometry.build(n)
        if self.name != ORIGINAL:
            model = convert(model, self.method, profile=self.profile, inplace=True)
        inputs = self.geometry.batch(self.batch, n, meter.device)
        call = PASSES[self.group](model.to(meter.device), inputs)
        return meter.seconds({"seconds": call}) | meter.peak_bytes(call)


def inference(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], Any]:
    model.eval()
    given = {name: tensor for name, tensor in inputs.items() if name != "labels"}
    return torch.no_grad()(partial(model, **given))


def step(model: nn.Module, inputs: dict[str, Tensor]) -> Callable[[], None]:
    """A step of stage 2: forward, backward and AdamW of all parameters."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()  # makes AdamW's state, which a step does not
    optimizer.zero_grad()

    def call() -> None:
        model(**inputs).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


PASSES: dict[str, Callable[[nn.Module, dict[str, Tensor]], Callable[[], Any]]] = {
    "inference": inference,
    "step": step,
}


@dataclass(frozen=True, kw_only=True)
class ConversionCase(BenchCase):
    """`convert` on the CPU, which includes copying and hashing the weights of the original."""

    method: str
    profile: str
    geometry: Geometry

    def costs(self, n: int, meter: BenchMeter) -> dict[str, float]:
        model = _original(self.geometry)
        start = time.perf_counter()
        student = convert(model, self.method, profile=self.profile)
        seconds = time.perf_counter() - start
        maps = feature_parameters(student).values()
        return {"seconds": seconds, "parameters": sum(p.numel() for p in maps)}


@cache
def _original(geometry: Geometry) -> nn.Module:
    return geometry.build(n=1)


# ---------------------------------------------------------------------- benchmark


def benchmark(options: Namespace) -> Benchmark:
    transformers()  # stops with a sentence if it is not installed
    geometry = GEOMETRIES[options.geometry]
    if geometry.host == "vit" and min(options.lengths) < 2:
        raise UserError(
            f"--lengths of {options.geometry} must be at least 2 (CLS and one patch), "
            f"got {min(options.lengths)}"
        )
    cases: list[BenchCase] = []
    size = {"lengths": options.lengths, "batch": options.batch, "geometry": geometry}
    for method in methods_of([ORIGINAL, *(options.methods or METHODS)]):
        cases += [ConvertedCase(group=group, **size, **method) for group in options.passes]
        if method["name"] != ORIGINAL:
            cases.append(ConversionCase(group=CONVERSION, geometry=GEOMETRIES[TIMED], **method))
    millions = sum(p.numel() for p in GEOMETRIES[TIMED].build(n=1).parameters()) / 1e6
    return Benchmark(
        stem=f"convert-{options.geometry}",
        title="Converted models beside softmax, by length",
        notes=[
            f"model: {options.geometry}, random weights: {geometry}; batch {options.batch}, "
            "float32, no padding, positions for every length",
            *NOTES,
            f"{CONVERSION}: `luna.linearize` of {TIMED} on the CPU, {GEOMETRIES[TIMED]}, "
            f"{millions:.1f} M parameters: median (least .. largest)",
        ],
        cases=cases,
        rules=BenchRules.of(options),
        settings={"model": str(geometry)},
    )


def tables(result: BenchResult) -> Iterator[SheetTable]:
    for group in result.facts["settings"]["passes"]:
        for measure in ("seconds", "peak_bytes"):
            last = ("break-even", _break_even)
            yield by_length(result, group, measure, base=ORIGINAL, last=last)
    seconds, parameters = (result.select(CONVERSION, key) for key in ("seconds", "parameters"))
    head = [CONVERSION, "seconds", "parameters of feature maps"]
    lines = []
    for case, rows in seconds.items():
        made = parameters[case][0].values
        lines.append([f"`{case}`", rounds_of(rows[0], ".2f"), f"{made[0]:,}" if made else "–"])
    if lines:
        yield SheetTable(f"Conversion of {TIMED}", head, lines)


def _break_even(found: Selection, case: str) -> str:
    to_softmax = ratios(found, case, ORIGINAL)
    return break_even(to_softmax)[0] if to_softmax and case != ORIGINAL else ""
