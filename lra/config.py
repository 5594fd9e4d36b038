"""The schema of a run: one dataclass per config group, no defaults (numbers live in configs/), no unknown keys.

`check` turns what Hydra composed into these dataclasses before anything heavy is imported, so a misspelt key or a
value of the wrong type costs a second and not a night.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    InterpolationKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
    ValidationError,
)


class UserError(Exception):
    """A mistake of the caller, told in one sentence that says what to do; commands exit with 2."""


class Mask(Enum):
    length = "length"  # padding by true length
    nonzero = (
        "nonzero"  # id 0 is padding, black pixels included (the quirk of every public LRA code)
    )
    none = "none"


class Pad(Enum):
    full = "full"  # always to pad_to
    batch = "batch"  # to the longest example of the batch, rounded up to 64


class Positions(Enum):
    learned = "learned"
    fixed = "fixed"  # interleaved sinusoids
    none = "none"


class Pooling(Enum):
    masked_mean = "masked_mean"  # over real tokens
    mean = "mean"  # over all stored positions, padding included
    cls = "cls"  # a prepended learned token
    first = "first"  # the first real token (what "CLS" means in the official dual encoder)


class Interaction(Enum):
    concat = "concat"  # [a, b]
    nli = "nli"  # [a, b, a*b, a-b]


class Init(Enum):
    torch = "torch"  # nn.Linear's default
    flax = "flax"  # lra.md 3.1: Xavier-uniform kernels, N(0, 1e-6) MLP biases, LeCun-normal head


class Gelu(Enum):
    erf = "none"
    tanh = "tanh"


class Schedule(Enum):
    constant = "constant"
    rsqrt = "rsqrt"  # lra.md 2.1, schedule A
    cosine = "cosine"  # lra.md 2.1, schedule B
    onecycle = "onecycle"  # baselines-1 3.1, with the beta1 cycling
    cosine_floor = "cosine_floor"  # baselines-2 12.1, P3


class Clip(Enum):
    none = "none"
    value = "value"
    norm = "norm"


class Select(Enum):
    best = "best"
    last = "last"


@dataclass
class DataRules:
    """How prepared examples become batches."""

    max_length: int  # ids kept of an example
    pad_to: int  # stored length, and the size of the position table
    pad: Pad
    mask: Mask
    vocab: int  # rows of the embedding table, at least the task's ids


@dataclass
class Style:
    """The backbone's details in which the lineages differ; sizes are the model group's."""

    positions: Positions
    position_std: float
    embedding_std: float
    init: Init
    qkv_bias: bool
    out_bias: bool
    gelu: Gelu
    ln_eps: float
    mask_output: bool  # multiply the final LayerNorm's output by the mask
    pooling: Pooling
    interaction: Interaction  # of the dual encoder
    dual_hidden_layers: (
        int  # hidden layers of the dual encoder's head: 1, or 2 with half the width in the second
    )


@dataclass
class Recipe:
    """Optimiser, schedule, batch and steps. `budget` has already scaled steps and warm-up when a run sees them."""

    batch: int  # global
    steps: int
    warmup: int
    schedule: Schedule
    lr: float
    betas: list[float]
    eps: float
    weight_decay: float
    clip: Clip
    clip_at: float


@dataclass
class Evaluation:
    every: int  # optimiser steps
    dev_batches: int  # per evaluation; -1 = the whole dev split, each example once
    drop_last: bool  # quirk: the last partial batch is never scored
    select: Select  # which checkpoint the reported test accuracy belongs to
    select_after: float  # fraction of the steps before which no best checkpoint is kept


@dataclass
class Protocol:
    name: str
    version: int
    profile: str
    precision: str
    data: DataRules
    style: Style
    recipe: Recipe
    evaluation: Evaluation
    tasks: dict[str, Any]  # the table the fields above are looked up in, one row per task


@dataclass
class Model:
    name: str
    n_layers: int
    d_model: int
    n_heads: int
    qkv_dim: int  # of all heads together
    mlp_dim: int
    dropout: float
    attention_dropout: float
    tasks: dict[str, Any] = field(default_factory=dict)  # per-task sizes, where a model has them


@dataclass
class Compute:
    mode: str  # report: count and compare; off: count only
    reference: str  # the attention whose parameters and FLOPs are the measure


@dataclass
class Trainer:
    accelerator: str
    devices: Any  # Lightning's: a number, "auto" or a list
    num_nodes: int
    strategy: str
    precision: str
    threads: int | None  # torch threads; None leaves torch's own choice
    compile: bool
    checkpoint_every: int  # steps between checkpoints to resume from
    log_every: int  # steps a row of metrics.csv averages over
    print_every: float  # seconds between progress lines off a terminal
    progress: str  # auto | bar | lines | off


@dataclass
class Logger:
    name: str  # csv | wandb | tensorboard; metrics.csv is always written
    project: str | None
    mode: str | None
