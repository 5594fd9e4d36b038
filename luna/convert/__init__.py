"""Pretrained softmax models turned into linear attention.

from luna.convert import convert, distill, finetune, load, revert, attention_maps

student = convert(model, "luna", M=8, L=8)   # BERT, ViT, ... from transformers, or timm's ViT
report = distill(student, batches)           # stage 1: feature maps fitted to the softmax maps
student.save_pretrained("folder")
student = load("folder")
teacher = revert(student)

Nothing here is imported before it is used; transformers is the extra `luna-lra[convert]`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from luna.convert.recovery import headroom, mean_of_ratios, ratio_of_means
    from luna.convert.saving import load, load_adapter, save_adapter
    from luna.convert.stage1 import distill
    from luna.convert.stage2 import finetune
    from luna.convert.swap import attention_maps, convert, describe, feature_parameters, revert

_NAMES = {
    "swap": ("attention_maps", "convert", "describe", "feature_parameters", "revert"),
    "saving": ("load", "load_adapter", "save_adapter"),
    "stage1": ("distill",),
    "stage2": ("finetune",),
    "recovery": ("headroom", "mean_of_ratios", "ratio_of_means"),
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "attention_maps",
    "convert",
    "describe",
    "distill",
    "feature_parameters",
    "finetune",
    "headroom",
    "load",
    "load_adapter",
    "mean_of_ratios",
    "ratio_of_means",
    "revert",
    "save_adapter",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
