"""The numbers of a conversion: their ranges, and which of them identify a run."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from luna.base import LunaError
from luna.convert.recipe import Augment, ConversionRecipe


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *((ConversionRecipe, {name: 0}) for name in ("batch", "train_examples", "stage1_steps")),
        (ConversionRecipe, {"epochs": -1}),
        (ConversionRecipe, {"select": "test"}),
        (ConversionRecipe, {"stage1": "kl"}),
        (ConversionRecipe, {"schedule": "step"}),
        (Augment, {"min_area": 0.0}),
        (Augment, {"flip": 1.5}),
        (Augment, {"eval_crop": math.inf}),
    ],
)
def test_numbers_out_of_range_are_refused(kind, wrong):
    with pytest.raises(LunaError, match=f"{next(iter(wrong))} must be"):
        kind(**wrong)


def test_a_joint_loss_needs_a_stage_1():
    with pytest.raises(LunaError, match="joint is the weight of stage 1's loss"):
        ConversionRecipe(stage1=None, joint=1.0)


def test_records_made_before_an_option_existed_keep_their_identity():
    names = {f.name for f in fields(ConversionRecipe)}
    later = {"weight_decay", "warmup", "joint", "select", "images"}
    assert set(ConversionRecipe().facts()) == names - later
    changed = ConversionRecipe(select="train_split", images=Augment(flip=0.0)).facts()
    assert set(changed) == names - {"weight_decay", "warmup", "joint"}
