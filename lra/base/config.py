"""The schema of a run: one dataclass per config group, without defaults, which are in configs/.

`lra.settings.compose.check_settings` compares it with what Hydra composed, before anything heavy is
imported: a misspelt key or a value of the wrong type costs a second and not a night.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from lra.base import limits

ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps")
PRECISIONS = ("32-true", "tf32", "bf16-mixed", "16-mixed", "64-true", "bf16-true", "16-true")
PROGRESS = ("auto", "bar", "lines", "off")
STRATEGIES = ("auto", "ddp", "ddp_find_unused_parameters_true", "ddp_static_graph", "fsdp")


class Mask(Enum):
    length = "length"  # padding by true length
    nonzero = "nonzero"  # id 0 is padding, even a black pixel: quirk of every public LRA code
    none = "none"


class Pad(Enum):
    full = "full"  # always to pad_to
    batch = "batch"  # to the longest example of the batch, rounded up to 64
    sorted = "sorted"  # the same, and training batches are of similar lengths


class Input(Enum):
    ids = "ids"  # a vector for each id
    numbers = "numbers"  # a linear map of numbers: grey levels, scaled, or a task's own


class Norm(Enum):
    layer = "layer"  # each token by its channels
    batch = "batch"  # each channel by the real tokens of the batch


class NormPlace(Enum):
    before = "before"  # x + f(norm(x)), and one at the end
    after = "after"  # norm(x + f(x))


class Positions(Enum):
    learned = "learned"
    fixed = "fixed"  # interleaved sinusoids
    rope = "rope"  # queries and keys are turned by their position
    rope2d = "rope2d"  # by row and column, on image tasks
    alibi = "alibi"  # scores fall with the distance, in methods that compute them one by one
    none = "none"


class Pooling(Enum):
    masked_mean = "masked_mean"  # over real tokens
    mean = "mean"  # over all stored positions, padding included
    cls = "cls"  # a prepended learned token
    first = "first"  # the first token, which the official dual encoder calls CLS
    none = "none"  # every token has a label of its own


class ClsMask(Enum):
    real = "real"  # the CLS token is always visible
    first = "first"  # quirk: it copies the first token's mask, so a black pixel hides it


class Interaction(Enum):
    concat = "concat"  # [a, b]
    nli = "nli"  # [a, b, a*b, a-b]


class Init(Enum):
    torch = "torch"  # nn.Linear's default
    flax = "flax"  # Xavier-uniform encoder kernels, N(0, 1e-6) biases, LeCun-normal head


class Gelu(Enum):
    erf = "none"
    tanh = "tanh"


class Schedule(Enum):
    constant = "constant"
    rsqrt = "rsqrt"  # warm-up, then lr / sqrt(step)
    cosine = "cosine"  # warm-up from 0, then a half cosine to 0
    onecycle = "onecycle"  # linear up and down, beta1 cycling against it
    cosine_full = "cosine_full"  # warm-up from 0, then a half cosine to 0 after the last step
    cosine_floor = "cosine_floor"  # warm-up from a tenth, then a half cosine to 0.4 of the peak


class Clip(Enum):
    none = "none"
    value = "value"
    norm = "norm"


class Dev(Enum):  # where the dev split comes from in a task without one (Text)
    train = "train"  # the last 10 % of the training set, which are removed from it
    test = "test"  # quirk of every public LRA code: the test set itself


class Select(Enum):
    best = "best"
    last = "last"


class Objective(Enum):
    """What a network learns from the training inputs before it sees a label."""

    none = "none"
    masked = "masked"  # the tokens that were replaced by a mask token
    causal = "causal"  # the next token


class Tuned(Enum):
    """Which setting is chosen on dev before the run."""

    none = "none"
    lr = "lr"


class Gate(Enum):
    usual = "usual"  # matched for a task and a length of training of ours, report for one's own
    matched = "matched"  # a run outside its budget does not start
    report = "report"  # it starts, and its record says how far outside it is
    off = "off"  # count the run, compare it with nothing


class Compile(Enum):
    off = "off"
    default = "default"  # by torch.compile
    graphs = "graphs"  # and replayed as CUDA graphs, without Python in between


@dataclass
class DataRules:
    # Longer examples are cut; 0: the task's own length
    max_length: int = field(metadata=limits.MAX_LENGTH)
    # Stored length, and the size of the position table; 0: the task's own length
    pad_to: int = field(metadata=limits.COUNT)
    pad: Pad = field(metadata=limits.PAD)
    mask: Mask
    # Rows of the embedding table; 0: the number of the task's ids, which is the least
    vocab: int = field(metadata=limits.COUNT)


@dataclass
class Style:
    positions: Positions
    position_std: float = field(metadata=limits.NOT_NEGATIVE)
    embedding_std: float = field(metadata=limits.NOT_NEGATIVE)
    init: Init
    qkv_bias: bool
    out_bias: bool
    gelu: Gelu
    ln_eps: float = field(metadata=limits.POSITIVE)
    mask_output: bool  # multiply the final LayerNorm's output by the mask
    pooling: Pooling
    cls_mask: ClsMask  # of the token that pooling=cls prepends
    interaction: Interaction  # of the dual encoder
    # Of the dual encoder's head, each with half the width of the last
    dual_hidden_layers: int = field(metadata=limits.HIDDEN_LAYERS)
    # What came after the first runs: lra.base.versions.ADDED
    input: Input = Input.ids
    norm: Norm = field(default=Norm.layer, metadata=limits.NORM)
    norm_place: NormPlace = NormPlace.before
    mlp: bool = True  # behind each mixer, with a norm of its own
    # Of the head of single examples, each with half the width of the last; 0: a linear map
    hidden_layers: int = field(default=1, metadata=limits.HIDDEN_LAYERS)
    tied_dropout: bool = False  # one pattern for all tokens of an example
    embedding_dropout: bool = True


@dataclass
class Recipe:
    """In a checked run `steps_share` has already scaled steps and warm-up."""

    batch: int = field(metadata=limits.COUNT)  # over all processes
    steps: int = field(metadata=limits.COUNT)
    warmup: int = field(metadata=limits.WHOLE)
    schedule: Schedule
    lr: float = field(metadata=limits.POSITIVE)
    betas: list[float] = field(metadata=limits.BETAS)
    eps: float = field(metadata=limits.POSITIVE)
    weight_decay: float = field(metadata=limits.WHOLE)
    clip: Clip
    clip_at: float = field(metadata=limits.POSITIVE)
    # Of single parameters, over what their method asks for: {of: [patterns of names], lr: ..}, the
    # first that fits. A pattern may fit none, for a protocol is for every method
    rates: list[Any] = field(default_factory=list, metadata=limits.RATES)
    undecayed: list[str] = field(default_factory=list)  # patterns too: no weight decay


@dataclass
class Evaluation:
    every: int = field(metadata=limits.COUNT)  # optimiser steps
    # Batches taken from an endless dev stream; -1: the whole dev split
    dev_batches: int = field(metadata=limits.DEV_BATCHES)
    dev: Dev
    drop_last: bool  # quirk: the last partial batch is never scored
    select: Select  # which checkpoint the reported test accuracy belongs to
    # Fraction of the steps before which no best checkpoint is kept
    select_after: float = field(metadata=limits.SELECT_AFTER)


@dataclass
class Protocol:
    name: str = field(metadata=limits.NAMED)
    version: int = field(metadata=limits.WHOLE)
    profile: str
    precision: str
    data: DataRules
    style: Style
    recipe: Recipe
    evaluation: Evaluation
    tasks: dict[str, Any]  # where fields above are looked up, one row per task
    # Values for single attentions, where their released configurations differ from the row.
    methods: dict[str, Any] = field(default_factory=dict)
    preset: str = "matched"  # of attentions, unless attention.preset is given


@dataclass
class Model:
    name: str = field(metadata=limits.NAMED)
    n_layers: int = field(metadata=limits.WIDTH)
    d_model: int = field(metadata=limits.WIDTH)
    n_heads: int = field(metadata=limits.N_HEADS)
    qkv_dim: int = field(metadata=limits.WIDTH)  # of all heads together
    mlp_dim: int = field(metadata=limits.WIDTH)
    dropout: float = field(metadata=limits.DROPPED)
    attention_dropout: float = field(metadata=limits.DROPPED)
    tasks: dict[str, Any] = field(default_factory=dict)  # per-task sizes, where a model has them
    # The attention whose sizes are taken from `methods`
    sizes_of: str | None = field(default=None, metadata=limits.SIZES_OF)
    methods: dict[str, Any] = field(default_factory=dict)  # per-attention sizes of some tasks


@dataclass
class Pretrain:
    """Phase one of a run. All but the name is None where there is none."""

    name: Objective = field(metadata=limits.OBJECTIVE)
    # Of the tokens that are masked; None takes that of the task
    rate: float | None = field(default=None, metadata=limits.RATE)
    rates: dict[str, float] = field(default_factory=dict)  # by task, and `others`
    # None: the run's own; a number is shared by all seeds of phase two
    seed: int | None = field(default=None, metadata=limits.SEED)
    # Optimiser steps between evaluations on held-out training inputs
    every: int | None = field(default=None, metadata=limits.COUNT)
    recipe: Recipe | None = None  # None in the run that is phase one itself

    @property
    def is_the_run(self) -> bool:  # which is phase one itself
        return self.name is not Objective.none and self.recipe is None


@dataclass
class Tune:
    """Trials of a run: at every rate of the grid, with each of these seeds, for a share of its
    steps. All but the name is empty where there are none."""

    name: Tuned
    grid: list[float] = field(default_factory=list, metadata=limits.GRID)
    seeds: list[int] = field(default_factory=list, metadata=limits.TUNING_SEEDS)
    steps_share: float = field(default=1.0, metadata=limits.TUNING_SHARE)


@dataclass
class Tolerance:
    parameters: float = field(metadata=limits.TOLERATED)
    flops: float = field(metadata=limits.TOLERATED)  # forward, per example
    examples: float = field(metadata=limits.TOLERATED)  # steps x batch


@dataclass
class Compute:
    mode: Gate
    # An attention, at its published options; or numbers: {parameters: .., flops: ..}.
    reference: Any = field(metadata=limits.REFERENCE)
    tolerance: Tolerance
    # Set the attention's knobs as close to the budget as possible
    solve: bool = field(metadata=limits.SOLVE)
    # From the attention's file: the preset of its options, the options that decide its cost with
    # their ranges, and the reason if no value of them meets the budget.
    preset: str = "matched"
    knobs: dict[str, Any] = field(default_factory=dict)
    exempt: str | None = None
    both_phases: bool = False  # the examples of phase one count too, weighted by their FLOPs


@dataclass
class Trainer:
    accelerator: str = field(metadata=limits.one_of(ACCELERATORS))
    devices: Any = field(metadata=limits.DEVICES)  # their number on each node, or a list of them
    num_nodes: int = field(metadata=limits.COUNT)
    strategy: str = field(metadata=limits.one_of(STRATEGIES))
    precision: str = field(metadata=limits.one_of(PRECISIONS))
    threads: int | None = field(metadata=limits.COUNT)  # of torch; None leaves the choice to torch
    compile: Compile
    # Examples of a process that pass through the network at once; None: its share of the batch
    micro_batch: int | None = field(metadata=limits.COUNT)
    checkpointing: bool  # the backward pass computes activations again in place of keeping them
    checkpoint_every: int = field(metadata=limits.COUNT)  # steps between checkpoints to resume from
    log_every: int = field(metadata=limits.COUNT)  # steps a row of metrics.csv averages over
    # Seconds between progress lines, outside of a terminal
    print_every: float = field(metadata=limits.NOT_NEGATIVE)
    progress: str = field(metadata=limits.one_of(PROGRESS))


@dataclass
class Debug:
    """How much of the data a run sees that only tries out whether something works."""

    name: str
    # The same ones again and again; None: all
    train_batches: int | None = field(metadata=limits.COUNT)
    test_batches: int | None = field(metadata=limits.COUNT)  # None: all
