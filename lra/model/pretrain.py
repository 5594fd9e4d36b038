"""Phase one of a run, self-pretraining: the backbone learns from the training inputs alone (Amos,
Berant and Gupta 2023, arXiv:2310.02980).

It is a run of its own, `phase_one(run)`, with the same attention, model and data but a target per
token that is made from the inputs: a masked token, or the next one. No label is read, and no input
of dev or test. Phase two begins with its last weights, all but the head's (`carry`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lra import data
from lra.base.config import Input, Objective, Pooling, Pretrain, Select
from lra.base.errors import UserError
from lra.data.arrays import IGNORED, Prepared, Split
from lra.data.loader import Batch, Loader
from lra.model.build import why_not_causal
from lra.settings.run import Run

HELD_OUT, MOST_HELD_OUT = 20, 1000  # one in so many training inputs is held out; at most so many
MASKS = 0x6D61736B  # sets the draws of masks apart from those of the order of the data
TOKENS = "embedding.token.weight"
HEAD = "head."


def phase_one(run: Run) -> Run | None:
    """The run that is phase one of `run`, if it has one. What decides phase two alone is not in it,
    so that runs which differ there share it."""
    phase, protocol = run.pretrain, run.protocol
    if phase.recipe is None or phase.every is None:
        return None
    _refuse(run)
    evaluation = replace(
        protocol.evaluation,
        every=phase.every,
        dev_batches=-1,
        drop_last=False,
        select=Select.last,
        select_after=1.0,
    )
    # The mask token has the last row of a table with one row more.
    rows = protocol.data.vocab + (phase.name is Objective.masked)
    return replace(
        run,
        protocol=replace(
            protocol,
            data=replace(protocol.data, vocab=rows),
            recipe=phase.recipe,
            evaluation=evaluation,
        ),
        pretrain=Pretrain(phase.name, rate=phase.rate),
        seed=run.seed if phase.seed is None else phase.seed,
        steps_share=1.0,  # the recipe has been scaled
        rerun=False,
    )


def _refuse(run: Run) -> None:
    reason = ""
    if (stack := data.of(run.task).stack) > 1:
        reason = (
            f"predicts one id per token, but one of task '{run.task.name}' is the sum of {stack}"
        )
    elif run.protocol.style.input is Input.numbers:
        reason = "predicts ids, but protocol.style.input=numbers reads numbers"
    elif run.pretrain.name is not Objective.causal:
        return
    elif run.protocol.style.pooling is Pooling.cls:
        reason = "does not fit protocol.style.pooling=cls: a CLS token in front sees no other token"
    else:
        reason = why_not_causal(run.attention)
    if reason:
        raise UserError(f"pretrain={run.pretrain.name.name} {reason}: use another pretrain")


def carry(weights: Mapping[str, Any], network: nn.Module) -> None:
    """Begin phase two with the weights of phase one, bit for bit; its head stays as it was drawn,
    and the mask token is left behind."""
    backbone = {name: value for name, value in weights.items() if not name.startswith(HEAD)}
    backbone[TOKENS] = backbone[TOKENS][: len(network.get_parameter(TOKENS))]
    network.to(backbone[TOKENS].dtype)  # under 64-true Lightning would make it double later
    differ = network.load_state_dict(backbone, strict=False)
    if wrong := [key for keys in differ for key in keys if not key.startswith(HEAD)]:
        raise UserError(
            f"phase one cannot begin this network, because only one of both has {wrong[0]}: its "
            "attention has other parameters in its causal form, so use pretrain=masked"
        )


# ---------------------------------------------------------------------- the data


def inputs(prepared: Prepared, *, held_out: bool) -> Split:
    """Select the training inputs that phase one learns from, or those that it is evaluated on."""
    train = prepared.split("train")
    every = max(HELD_OUT, -(-len(train) // MOST_HELD_OUT))
    return train.sequences(every, held=held_out)


def choose(draws: Tensor, real: Tensor, rate: float) -> Tensor:
    """Choose real tokens whose draw from [0, 1) is below the rate, at least one per sequence."""
    draws = draws.masked_fill(~real, 2.0)
    return ((draws < rate) | (draws == draws.amin(-1, keepdim=True))) & real


class InputLoader(Loader):
    """Batches of sequences whose labels are made from their ids. What is masked depends on the seed
    and the number of the batch alone, in evaluations on the seed and the examples alone."""

    def __init__(self, split: Split, run: Run, *, steps: int | None, rank: int, world: int):
        super().__init__(
            split,
            run.protocol.recipe.batch,
            rules=run.protocol.data,
            seed=run.seed,
            steps=steps,
            rank=rank,
            world=world,
        )
        self.rate, self.seed = run.pretrain.rate, run.seed
        self.mask_token = run.protocol.data.vocab - 1

    def batch(self, index: np.ndarray) -> Batch:
        ids, mask, labels = super().batch(index)
        if mask is not None:  # the quirk mask=nonzero hides black pixels from the attention
            labels = labels.masked_fill(~mask, IGNORED)
        if self.rate is None:  # causal
            following = torch.full_like(labels, IGNORED)
            following[:, :-1] = labels[:, 1:]
            return Batch(ids, mask, following)
        rng = np.random.default_rng([self.seed, MASKS, self.delivered, int(index[0]), self.rank])
        draws = torch.from_numpy(rng.random(labels.shape))
        targets = choose(draws, labels != IGNORED, self.rate)
        masked = ids.masked_fill(targets, self.mask_token)
        return Batch(masked, mask, labels.masked_fill(~targets, IGNORED))

    def _labels(self, index: np.ndarray, width: int) -> Tensor:
        labels = np.full((len(index), width), IGNORED, np.int64)
        stored = self.split.ids(index, width)
        labels[:, : stored.shape[1]] = stored
        labels[np.arange(width) >= self.split.lengths(index)[:, None]] = IGNORED
        return torch.from_numpy(labels)
