"""Masks on their way through transformers into a converted layer."""

from __future__ import annotations

import pytest
import torch
from transformers.masking_utils import AttentionMaskInterface

from luna.base import LunaError
from luna.convert import convert, host

from .kit import bert, logits, text


def test_without_the_mask_function_padding_would_be_attended_to():
    """transformers would give every layer None; the test of padding must be able to see that."""
    model = convert(bert(), "hedgehog")
    together = text((5, 12))
    short = {key: t[:1, :5] for key, t in together.items()}
    registered = AttentionMaskInterface._global_mapping.pop(host.IMPLEMENTATION)
    try:
        difference = (logits(model, together)[:1] - logits(model, short)).abs().max()
    finally:
        AttentionMaskInterface.register(host.IMPLEMENTATION, registered)
    assert difference > 1e-3


def test_layers_receive_a_key_mask_or_none():
    seen = []

    def spy(module, q, k, v, mask, x):
        seen.append(mask)
        return v, None

    model, batch = convert(bert(), "hedgehog"), text((5, 12))
    with host.probing(model, spy):
        logits(model, batch)
        logits(model, {"input_ids": batch["input_ids"]})
    assert [m is None for m in seen] == [False, False, True, True]
    assert seen[0].dtype == torch.bool
    assert torch.equal(seen[0], batch["attention_mask"].bool())


def test_four_dimensional_masks():
    model, batch = convert(bert(), "hedgehog"), text((5, 12))
    ids = {"input_ids": batch["input_ids"]}
    keep = batch["attention_mask"].bool()[:, None, None, :].expand(2, 1, 12, 12)
    least = torch.finfo(torch.float32).min
    additive = torch.zeros(2, 1, 12, 12).masked_fill(~keep, least)
    # Without padding all zeros, which a guess at the polarity would read as padding alone.
    unpadded = torch.zeros(2, 1, 12, 12)
    for mask, same in ((keep, batch), (additive, batch), (unpadded, ids)):
        got = logits(model, ids | {"attention_mask": mask})
        torch.testing.assert_close(got, logits(model, same), atol=1e-6, rtol=0)
    for mask, reason in (
        (keep.tril(), "different keys from different queries"),
        (keep.float(), "values between"),
        (keep.long(), "bool"),
    ):
        with pytest.raises(LunaError, match=reason):
            logits(model, ids | {"attention_mask": mask})
