"""What the values of settings must be, beyond their types, and each limit in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lra.base.config import Gate, Mask, Objective, Pad, Pooling
from lra.base.errors import UserError
from lra.settings.run import Run
from luna.around import Around
from luna.errors import LunaError

PRECISIONS = ("32-true", "tf32", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true")
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"  # as lra/runs/facts.py has it for records
MOST, MOST_SHARE, MOST_WIDE = 2**31, 1000, 2**16
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_static_graph", "fsdp")
ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
PROGRESS = ("auto", "bar", "lines", "off")
# Settings of an attention's place, and where a run decides them.
DECIDED = {
    "n_heads": "model.n_heads",
    "head_dim": "model.qkv_dim",
    "d_model": "model.d_model",
    "max_len": "protocol.data.pad_to",
    "profile": "protocol.profile",
    "dropout": "model.attention_dropout",
    "seed": "seed",
    "causal": "the task",
    "alibi": "protocol.style.positions=alibi",
    "n_layers": "model.n_layers",
    "layer": "the place of its block",
    "style": "protocol.style",
}


@dataclass(frozen=True)
class Range:
    """A limit that several settings share. A setting that is None has none."""

    settings: tuple[str, ...]
    allowed: Callable[[Any, Run], bool]
    words: str  # behind "it must be"; {run} is filled in


def check_ranges(run: Run) -> None:
    """UserError for the first setting that is out of its range."""
    for limit in RANGES:
        for key in limit.settings:
            value: Any = run
            for name in key.split("."):
                value = getattr(value, name, None)  # pretrain.recipe may be None
            if value is not None and not limit.allowed(value, run):
                must = limit.words.format(run=run)
                raise UserError(f"{key}={value} is out of range: it must be {must}")
    try:  # its own options are checked by luna.build
        Around.split(run.attention)
    except LunaError as error:
        raise UserError(f"attention.{error}") from error
    for name in run.attention.keys() & DECIDED.keys():
        raise UserError(f"attention.{name} cannot be set here: {DECIDED[name]} decides it")


def _is_reference(value: Any, _: Run) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    numbers = [type(number) in (int, float) and 0 < number < math.inf for number in value.values()]
    return bool(numbers) and all(numbers) and value.keys() <= {"parameters", "flops", "examples"}


RANGES: tuple[Range, ...] = (
    Range(
        settings=(
            "steps_share",
            "limit_minutes",
            "protocol.recipe.lr",
            "pretrain.recipe.lr",
            "protocol.recipe.eps",
            "pretrain.recipe.eps",
            "protocol.recipe.clip_at",
            "pretrain.recipe.clip_at",
            "protocol.style.ln_eps",
        ),
        allowed=lambda x, _: 0 < x < math.inf,
        words="finite and greater than 0",
    ),
    Range(
        settings=("protocol.name", "model.name"),
        allowed=lambda x, _: re.fullmatch(NAME, x) is not None,
        words="a name of letters, digits, _, . and -, because it is part of paths and tables",
    ),
    Range(
        settings=("steps_share",),
        allowed=lambda x, _: x <= MOST_SHARE,
        words=f"at most {MOST_SHARE}",
    ),
    Range(
        settings=("model.n_layers", "model.d_model", "model.qkv_dim", "model.mlp_dim"),
        allowed=lambda x, _: 1 <= x <= MOST_WIDE,
        words=f"at least 1, and at most {MOST_WIDE}",
    ),
    Range(
        settings=(
            "protocol.style.position_std",
            "protocol.style.embedding_std",
            "trainer.print_every",
        ),
        allowed=lambda x, _: 0 <= x < math.inf,
        words="finite and at least 0",
    ),
    Range(
        settings=("protocol.style.dual_hidden_layers",),  # each has half the width of the last
        allowed=lambda x, _: 0 <= x <= 16,
        words="at least 0, and at most 16",
    ),
    Range(
        settings=("protocol.evaluation.select_after",),
        allowed=lambda x, _: 0 <= x <= 1,
        words="in [0, 1]",
    ),
    Range(
        settings=("protocol.evaluation.dev_batches",),
        allowed=lambda x, _: x == -1 or 1 <= x < MOST,
        words="at least 1, or -1 for the whole dev split",
    ),
    Range(
        settings=(
            "min_evaluations",
            "protocol.recipe.steps",
            "protocol.recipe.batch",
            "protocol.evaluation.every",
            "pretrain.recipe.steps",
            "pretrain.recipe.batch",
            "pretrain.every",
            "trainer.threads",
            "trainer.num_nodes",
            "protocol.data.pad_to",
            "protocol.data.vocab",
            "trainer.checkpoint_every",
            "trainer.log_every",
            "debug.train_batches",
            "debug.test_batches",
        ),
        allowed=lambda x, _: 1 <= x < MOST,
        words="at least 1, and below 2**31",
    ),
    Range(
        settings=(
            "retries",
            "protocol.recipe.warmup",
            "pretrain.recipe.warmup",
            "protocol.recipe.weight_decay",
            "pretrain.recipe.weight_decay",
            "protocol.version",
        ),
        allowed=lambda x, _: 0 <= x < MOST,
        words="at least 0, and below 2**31",
    ),
    Range(
        settings=(
            "protocol.recipe.betas",
            "pretrain.recipe.betas",
        ),
        allowed=lambda x, _: len(x) == 2 and all(0 <= beta < 1 for beta in x),
        words="two numbers in [0, 1)",
    ),
    Range(
        settings=("trainer.precision",),
        allowed=lambda x, _: x in PRECISIONS,
        words=f"one of {', '.join(PRECISIONS)}",
    ),
    Range(
        settings=("trainer.accelerator",),
        allowed=lambda x, _: x in ACCELERATORS,
        words=f"one of {', '.join(ACCELERATORS)}",
    ),
    Range(
        settings=("trainer.progress",),
        allowed=lambda x, _: x in PROGRESS,
        words=f"one of {', '.join(PROGRESS)}",
    ),
    Range(
        settings=("runs_dir", "data_dir"),
        allowed=lambda x, _: bool(x.strip()),
        words="the name of a folder",
    ),
    Range(
        settings=(
            "seed",
            "pretrain.seed",
        ),
        allowed=lambda x, _: 0 <= x < 2**31,
        words="between 0 and 2**31 - 1",
    ),
    Range(
        settings=(
            "model.dropout",
            "model.attention_dropout",
        ),
        allowed=lambda x, _: 0 <= x < 1,
        words="in [0, 1)",
    ),
    Range(
        settings=(
            "compute.tolerance.parameters",
            "compute.tolerance.flops",
            "compute.tolerance.examples",
        ),
        allowed=lambda x, _: 0 < x <= 1,
        words="greater than 0 and at most 1",
    ),
    Range(
        settings=("compute.reference",),
        allowed=_is_reference,
        words=(
            "an attention, or numbers greater than 0 for some of "
            "examples, flops, parameters: {{parameters: .., flops: ..}}"
        ),
    ),
    Range(
        settings=("compute.solve",),
        allowed=lambda x, run: not x or run.compute.mode is not Gate.off,
        words="false under compute=off, which has no budget to meet",
    ),
    Range(
        settings=("protocol.data.max_length",),
        allowed=lambda x, run: 1 <= x <= run.protocol.data.pad_to,
        words="between 1 and protocol.data.pad_to={run.protocol.data.pad_to}",
    ),
    Range(
        settings=("protocol.data.pad",),
        allowed=lambda x, run: (
            x is not Pad.sorted
            or not {run.protocol.style.pooling, run.protocol.data.mask} & {Pooling.mean, Mask.none}
        ),
        words="full or batch where the mean or the mask takes padding for tokens",
    ),
    Range(
        settings=("model.n_heads",),
        allowed=lambda x, run: x >= 1 and run.model.qkv_dim % x == 0,
        words="a divisor of model.qkv_dim={run.model.qkv_dim}",
    ),
    Range(
        settings=("model.sizes_of",),
        allowed=lambda x, run: any(
            x in [run.attention["name"], *m] for m in run.model.methods.values()
        ),
        words="the run's attention, or one of model.methods",
    ),
    Range(
        settings=("trainer.devices",),
        allowed=lambda x, _: (
            1 <= x < MOST
            if type(x) is int
            else isinstance(x, list) and {*map(type, x)} == {int} and min(x) >= 0
        ),
        words="a number of devices or a list of them, because it is part of the run's identity",
    ),
    Range(
        settings=("pretrain.name",),
        allowed=lambda x, run: (
            x is Objective.none or bool(run.pretrain.recipe and run.pretrain.every)
        ),
        words="none, unless pretrain.recipe and pretrain.every are set",
    ),
    Range(
        settings=("pretrain.rate",),
        allowed=lambda x, run: 0 < x < 1 and run.pretrain.name is not Objective.causal,
        words="between 0 and 1 under pretrain=masked, and null under pretrain=causal, which masks "
        "none",
    ),
    Range(
        settings=("trainer.strategy",),
        allowed=lambda x, _: x in STRATEGIES,
        words=f"one of {', '.join(STRATEGIES)}",
    ),
)
