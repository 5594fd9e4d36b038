"""Conversion of pretrained softmax models to linear attention.

from luna.convert import convert, distill, finetune, load, revert, attention_maps

student = convert(model, "luna", M=8, L=8)   # BERT, ViT, GPT-2, Llama, ..., or timm's ViT
report = distill(student, batches)           # stage 1: feature maps fitted to the softmax maps
student.save_pretrained("folder")
student = load("folder")
teacher = revert(student)

transformers is imported where it is needed; it is the extra `luna-lra[convert]`.
"""

from luna.convert.maps import attention_maps
from luna.convert.saving import load
from luna.convert.stage1 import distill
from luna.convert.stage2 import finetune
from luna.convert.swap import convert, describe, feature_parameters, revert
from luna.convert.text import TextFile

__all__ = [
    "TextFile",
    "attention_maps",
    "convert",
    "describe",
    "distill",
    "feature_parameters",
    "finetune",
    "load",
    "revert",
]
