"""The numbers of a conversion: of both stages, and of what a training image goes through."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from luna.base import LunaError
from luna.convert.layerwise import Loss
from luna.convert.stage2 import Schedule

Select = Literal["dev", "train_split"]


@dataclass(frozen=True, kw_only=True)
class Augment:
    """Training images are cropped at random and flipped; the rest of what the paper names as
    optional is off unless given. See augment.py."""

    min_area: float = 0.08  # of the image, that a random crop keeps at least
    flip: float = 0.5  # probability of a mirrored image
    randaugment: int = 0  # operations per image
    magnitude: int = 9  # of them, 0 to 30
    mixup: float = 0.0  # alpha of Beta(alpha, alpha); 0: off
    cutmix: float = 0.0  # likewise
    label_smoothing: float = 0.0
    eval_crop: float | None = None  # part of the shorter side; None: as the checkpoint has it

    def __post_init__(self) -> None:
        _within("min_area", self.min_area, 0.0, 1.0, above=True)
        _within("flip", self.flip, 0.0, 1.0)
        _within("magnitude", self.magnitude, 0, 30)
        _within("label_smoothing", self.label_smoothing, 0.0, 1.0)
        for name in ("randaugment", "mixup", "cutmix"):
            _within(name, getattr(self, name), 0)
        if self.eval_crop is not None:
            _within("eval_crop", self.eval_crop, 0.0, 1.0, above=True)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Both stages' numbers; the defaults are the paper's for GLUE, as far as it gives them."""

    stage1: Loss | None = "ce"
    stage1_lr: float = 3e-2
    stage1_steps: int | None = None  # None: one epoch, the paper's
    batch: int = 8
    lr: float = 1e-5
    phi_lr: float | None = None
    epochs: int = 10  # 0: no stage 2
    patience: int = 3
    schedule: Schedule = "linear"
    max_length: int = 128  # of texts, in tokens
    train_examples: int | None = None  # some of them; all unless given
    weight_decay: float = 0.0
    warmup: float = 0.0  # part of stage 2 in which the rate rises from 0
    joint: float = 0.0  # weight in stage 2 of stage 1's loss, beside the task's
    select: Select = "dev"  # what chooses the best epoch; train_split: a tenth of train held out
    images: Augment = field(default_factory=Augment)

    def __post_init__(self) -> None:
        for name in ("batch", "patience", "max_length"):
            _within(name, getattr(self, name), 1)
        if self.stage1_steps is not None:
            _within("stage1_steps", self.stage1_steps, 1)
        _within("epochs", self.epochs, 0)
        _within("joint", self.joint, 0)
        if self.joint and self.stage1 is None:
            raise LunaError("recipe.joint weighs stage 1's loss: it needs recipe.stage1")
        if self.train_examples is not None:
            _within("train_examples", self.train_examples, 1)
        if self.select not in ("dev", "train_split"):
            raise LunaError(f"recipe.select must be dev or train_split, got {self.select!r}")

    def facts(self) -> dict[str, Any]:
        """What identifies a run. What was added later is left out at its default, so that records
        made before keep their identity."""
        given, default = asdict(self), asdict(Recipe())
        later = ("weight_decay", "warmup", "joint", "select", "images")
        return {k: v for k, v in given.items() if k not in later or v != default[k]}


def _within(
    name: str, value: float, low: float, high: float | None = None, *, above: bool = False
) -> None:
    if (value > low if above else value >= low) and (high is None or value <= high):
        return
    least = f"{'above' if above else 'at least'} {low:g}"
    most = "" if high is None else f" and at most {high:g}"
    raise LunaError(f"the recipe's {name} must be {least}{most}, got {value}")
