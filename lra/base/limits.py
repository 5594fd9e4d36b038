"""What a value may be beyond its type: ranges of settings, and what settings and records share.

    batch: int = field(metadata=limits.COUNT)

Each stands beside its field, and `lra.settings.ranges.check_ranges` holds a run to them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}"  # a name that is part of paths and tables
LARGEST = 10**18  # no count or measurement of a run comes near it
MOST, WIDEST = 2**31, 2**16  # of counts and of widths in settings


@dataclass(frozen=True)
class Range:
    """A limit of a setting. One that is None has none."""

    allowed: Callable[[Any, Any], bool]  # of its value and of the run
    words: str  # behind "it must be"; {run} is filled in
    joint: bool = False  # it looks at other settings, whose own ranges come first


Ranges = dict[str, list[Range]]  # the metadata of a field


def alone(allowed: Callable[[Any], bool], words: str) -> Ranges:
    return {"ranges": [Range(lambda x, _: allowed(x), words)]}


def joint(allowed: Callable[[Any, Any], bool], words: str) -> Ranges:
    return {"ranges": [Range(allowed, words, joint=True)]}


def both(first: Ranges, second: Ranges) -> Ranges:
    return {"ranges": first["ranges"] + second["ranges"]}


def one_of(choices: Sequence[str]) -> Ranges:
    return alone(lambda x: x in choices, f"one of {', '.join(choices)}")


def _is_reference(value: Any) -> bool:
    if not isinstance(value, dict):
        return isinstance(value, str)
    numbers = [type(number) in (int, float) and 0 < number < math.inf for number in value.values()]
    return bool(numbers) and all(numbers) and value.keys() <= {"parameters", "flops", "examples"}


def _is_rate(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"of", "lr"}:
        return False
    of, lr = value["of"], value["lr"]
    patterns = isinstance(of, list) and all(isinstance(pattern, str) for pattern in of)
    return patterns and type(lr) in (int, float) and 0 < lr < math.inf


def _are_devices(value: Any) -> bool:
    if type(value) is int:
        return 1 <= value < MOST
    return isinstance(value, list) and {*map(type, value)} == {int} and min(value) >= 0


# ---------------------------------------------------------------------- of many settings

POSITIVE = alone(lambda x: 0 < x < math.inf, "finite and greater than 0")
NOT_NEGATIVE = alone(lambda x: 0 <= x < math.inf, "finite and at least 0")
COUNT = alone(lambda x: 1 <= x < MOST, "at least 1, and below 2**31")
WHOLE = alone(lambda x: 0 <= x < MOST, "at least 0, and below 2**31")
SEED = alone(lambda x: 0 <= x < MOST, "between 0 and 2**31 - 1")
WIDTH = alone(lambda x: 1 <= x <= WIDEST, f"at least 1, and at most {WIDEST}")
DROPPED = alone(lambda x: 0 <= x < 1, "in [0, 1)")
TOLERATED = alone(lambda x: 0 < x <= 1, "greater than 0 and at most 1")
FOLDER = alone(lambda x: bool(x.strip()), "the name of a folder")
NAMED = alone(
    lambda x: re.fullmatch(NAME, x) is not None,
    "a name of letters, digits, _, . and -, because it is part of paths and tables",
)

# ---------------------------------------------------------------------- of single ones

STEPS_SHARE = both(POSITIVE, alone(lambda x: x <= 1000, "at most 1000"))
SELECT_AFTER = alone(lambda x: 0 <= x <= 1, "in [0, 1]")
DEV_BATCHES = alone(lambda x: x == -1 or 1 <= x < MOST, "at least 1, or -1 for the whole dev split")
HIDDEN_LAYERS = alone(lambda x: 0 <= x <= 16, "at least 0, and at most 16")
BETAS = alone(lambda x: len(x) == 2 and all(0 <= b < 1 for b in x), "two numbers in [0, 1)")
DEVICES = alone(_are_devices, "how many devices, such as 2, or a list of which ones, such as [0,3]")
REFERENCE = alone(
    _is_reference,
    "an attention, or numbers greater than 0 for some of "
    "examples, flops, parameters: {{parameters: .., flops: ..}}",
)
MAX_LENGTH = joint(
    lambda x, run: 1 <= x <= run.protocol.data.pad_to,
    "between 1 and protocol.data.pad_to={run.protocol.data.pad_to}",
)
PAD = joint(
    lambda x, run: (
        x.name != "sorted"
        or (run.protocol.style.pooling.name != "mean" and run.protocol.data.mask.name != "none")
    ),
    "full or batch where the mean or the mask takes padding for tokens",
)
N_HEADS = joint(
    lambda x, run: x >= 1 and run.model.qkv_dim % x == 0,
    "a divisor of model.qkv_dim={run.model.qkv_dim}",
)
RATES = alone(
    lambda x: all(map(_is_rate, x)),
    "a list of {{of: [patterns of names], lr: ..}}, each lr finite and greater than 0",
)
NORM = joint(
    lambda x, run: x.name != "batch" or run.processes == 1,
    "layer where {run.processes} processes train, each of which would have statistics of its own",
)
SIZES_OF = joint(
    lambda x, run: any(x in [run.attention["name"], *m] for m in run.model.methods.values()),
    "the run's attention, or one of model.methods",
)
OBJECTIVE = joint(
    lambda x, run: x.name == "none" or bool(run.pretrain.recipe and run.pretrain.every),
    "none, unless pretrain.recipe and pretrain.every are set",
)
RATE = joint(
    lambda x, run: 0 < x < 1 and run.pretrain.name.name != "causal",
    "between 0 and 1 under pretrain=masked, and null under pretrain=causal, which masks none",
)
SOLVE = joint(
    lambda x, run: not x or run.compute.mode.name != "off",
    "false under compute=off, which has no budget to meet",
)
GRID = joint(
    lambda x, run: (
        all(0 < rate < math.inf for rate in x)
        and len({*x}) == len(x)
        and (len(x) > 1 if run.tune.name.name != "none" else not x)
    ),
    "two or more different rates above 0 under tune=lr, and nothing without it",
)
TUNING_SEEDS = both(
    joint(
        lambda x, run: (
            all(0 <= seed < MOST for seed in x)
            and len({*x}) == len(x)
            and bool(x) is (run.tune.name.name != "none")
        ),
        "one or more different seeds under tune=lr, and nothing without it",
    ),
    joint(
        lambda x, run: run.seed not in x,
        "seeds that are not reported, so without seed={run.seed}",
    ),
)
TUNING_SHARE = alone(lambda x: 0 < x <= 1, "greater than 0 and at most 1")
