"""The numbers of a conversion: both stages, and the crops of images. They are the schema of the
`recipe` group of `lra convert` as well."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from luna.base import LunaError

LOSSES = ("ce", "mse", "both")
SCHEDULES = ("linear", "cosine", "constant")
SELECT = ("dev", "train_split")


@dataclass(kw_only=True)
class Augment:
    """Training images are cropped at random and flipped."""

    min_area: float = 0.08  # the least part of the image that a random crop keeps
    flip: float = 0.5  # probability of a mirrored image
    eval_crop: float | None = None  # part of the shorter side; None: as the checkpoint's config

    def __post_init__(self) -> None:
        check_range("recipe.images.min_area", self.min_area, 0.001, 1)
        check_range("recipe.images.flip", self.flip, 0, 1)
        check_range("recipe.images.eval_crop", self.eval_crop, 0.001, 1)


@dataclass(kw_only=True)
class ConversionRecipe:
    """The defaults are the paper's for GLUE, as far as it states them."""

    stage1: str | None = "ce"  # loss on the attention maps, one of LOSSES; None: no stage 1
    stage1_lr: float = 3e-2
    stage1_steps: int | None = None  # None: one epoch, the paper's
    batch: int = 8
    lr: float = 1e-5
    phi_lr: float | None = None  # of the feature maps in stage 2; None: lr
    epochs: int = 10  # 0: no stage 2
    patience: int = 3
    schedule: str = "linear"  # one of SCHEDULES
    max_length: int = 128  # of texts, in tokens
    train_examples: int | None = None  # None: all of them
    weight_decay: float = 0.0
    warmup: float = 0.0  # part of stage 2 in which the rate rises from 0
    joint: float = 0.0  # weight of stage 1's loss beside the task's in stage 2
    select: str = "dev"  # what chooses the best epoch; train_split: a tenth of train, held out
    images: Augment = field(default_factory=Augment)

    def __post_init__(self) -> None:
        for name in ("batch", "patience", "max_length", "stage1_steps", "train_examples"):
            check_range(f"recipe.{name}", getattr(self, name), 1)
        check_range("recipe.epochs", self.epochs, 0)
        check_range("recipe.joint", self.joint, 0)
        check_choice("recipe.stage1", self.stage1, (None, *LOSSES))
        check_choice("recipe.schedule", self.schedule, SCHEDULES)
        check_choice("recipe.select", self.select, SELECT)
        if self.joint and self.stage1 is None:
            raise LunaError("recipe.joint is the weight of stage 1's loss: set recipe.stage1 too")

    def facts(self) -> dict[str, Any]:
        """Return the numbers that identify a run. Those that were added later are left out at their
        default, so that earlier records keep their identity."""
        values = asdict(self)
        default = asdict(ConversionRecipe())
        later = ("weight_decay", "warmup", "joint", "select", "images")
        return {k: v for k, v in values.items() if k not in later or v != default[k]}


def check_choice(name: str, value: Any, choices: Sequence[str | None]) -> None:
    if value not in choices:
        listed = ", ".join("null" if choice is None else choice for choice in choices)
        raise LunaError(f"{name} must be one of {listed}, got {value!r}")


def check_range(name: str, value: float | None, low: float, high: float | None = None) -> None:
    if value is not None and not (value >= low and (high is None or value <= high)):
        most = "" if high is None else f" and at most {high:g}"
        raise LunaError(f"{name} must be at least {low:g}{most}, got {value}")
