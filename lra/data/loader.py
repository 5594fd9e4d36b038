"""From prepared arrays to batches of tensors.

Training is one stream of batches without epochs in its interface: epoch e visits every example
once, in an order that is a function of (seed, e) alone, and a batch may straddle two epochs.
The number of batches delivered so far determines the rest of the stream, so that number is the
whole state of a loader. Nothing is drawn from a global random state.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lra.base.config import DataRules, Mask, Pad
from lra.base.errors import UserError
from lra.data.arrays import IGNORED, IN_WORDS, Split

BUCKET = 64  # pad=batch rounds up to a multiple: few different shapes, for compilers and allocators
CHUNK = 1024  # examples that pad=sorted sorts together


class Batch(NamedTuple):
    # (B, n) or, of a dual task, (B, 2, n): int64, padded with 0. Where tokens are numbers
    # (B, n, channels): float32
    ids: Tensor
    # (B, n) or (B, 2, n), bool, True = real token; None when nothing is padded
    mask: Tensor | None
    # Of classes (B,), or one per token (B, tokens): int64, IGNORED where nothing is scored. Of
    # labels (B, k) and of numbers (B,) or (B, k): float32.
    labels: Tensor


class Loader:
    """Batches of one split. `batch_size` is global: each of `world` processes gets its equal share.

    steps      a shuffled stream of exactly that many batches, for training
    limit > 0  each pass yields the next `limit` batches of an endless shuffled stream, which is
               how the Skyformer code evaluates on its dev split
    neither    each pass yields every example once, in order, and the last batch may be partial,
               unless `drop_last`

    The first two have a state: a pass goes on where the last one, or the saved state, stopped.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        rules: DataRules,
        seed: int = 0,
        steps: int | None = None,
        limit: int = -1,
        drop_last: bool = False,
        rank: int = 0,
        world: int = 1,
    ):
        if batch_size % world:
            raise UserError(
                f"a batch of {batch_size} cannot be split evenly over {world} processes"
            )
        if split.width > rules.pad_to:
            raise UserError(
                f"examples of {split.width} ids do not fit into pad_to={rules.pad_to}: raise "
                "protocol.data.pad_to or lower protocol.data.max_length"
            )
        if split.layout.channels and rules.mask is Mask.nonzero:
            raise UserError(
                f"protocol.data.mask=nonzero takes id 0 for padding, and {split.layout.name} has "
                "numbers: use mask=length"
            )
        self.split, self.batch_size, self.rules = split, batch_size, rules
        self.steps, self.limit = steps, limit
        self.rank, self.world = rank, world
        self.delivered = 0  # batches of the stream
        self._stream = _Stream(len(split), seed)
        if rules.pad is Pad.sorted:
            lengths = split.lengths(np.arange(len(split))).reshape(len(split), -1).max(1)
            self._stream = _SortedStream(len(split), seed, lengths, batch_size)
        self._bounds = _cut(len(split), batch_size, drop_last, world)
        if len(split) < (batch_size if drop_last else world):
            name = IN_WORDS.get(split.name, split.name)
            raise UserError(
                f"the {len(split)} examples of {split.layout.name}'s {name} split do not "
                f"fill one batch of {batch_size}: lower protocol.recipe.batch or use more examples"
            )

    def __len__(self) -> int:
        if self.steps is not None:
            return self.steps
        return self.limit if self.limit > 0 else len(self._bounds) - 1

    def __iter__(self) -> Iterator[Batch]:
        if self.steps is None and self.limit <= 0:
            for start, end in zip(self._bounds, self._bounds[1:], strict=False):
                yield self.batch(np.arange(start, end))
            return
        end = self.steps if self.steps is not None else self.delivered + self.limit
        while self.delivered < end:
            at = self.delivered * self.batch_size
            self.delivered += 1  # before the yield: the state then counts the batch being used
            yield self.batch(self._stream.take(at, self.batch_size))

    def _padded(self, stored: np.ndarray, width: int) -> np.ndarray:
        if self.split.layout.channels:
            numbers = np.zeros((len(stored), width, stored.shape[2]), np.float32)
            numbers[:, : stored.shape[1]] = stored
            return numbers
        ids = np.zeros((*stored.shape[:-1], width), np.int64)
        ids[..., : stored.shape[-1]] = stored
        return ids

    def _labels(self, index: np.ndarray, width: int) -> Tensor:
        """Read labels; self-pretraining overrides it (lra/model/pretrain.py)."""
        return self._typed(torch.from_numpy(np.array(self.split.labels[index])), width)

    def _typed(self, labels: Tensor, width: int) -> Tensor:
        """Give stored labels the type of a batch; cut those of tokens (B, .), or fill them up, to
        its width."""
        labels = labels.long() if self.split.layout.asks == "classes" else labels.float()
        if not self.split.layout.per_token:
            return labels
        tokens = width // self.split.layout.stack
        return F.pad(labels[:, :tokens], (0, tokens - labels[:, :tokens].shape[1]), value=IGNORED)

    def state_dict(self) -> dict[str, int]:
        return {"delivered": self.delivered}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.delivered = state["delivered"]

    def _share(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Select this process's share of a global batch: index, lengths, width of the batch."""
        lengths = self.split.lengths(index)
        width = self.rules.pad_to
        if self.rules.pad is not Pad.full:  # of the global batch: every process has the same shape
            width = min(width, -(-max(int(lengths.max()), 1) // BUCKET) * BUCKET)
        share = slice(*(len(index) * r // self.world for r in (self.rank, self.rank + 1)))
        return index[share], lengths[share], width

    def batch(self, index: np.ndarray) -> Batch:
        index, lengths, width = self._share(index)
        ids = self._padded(self.split.ids(index, width), width)
        mask = _mask(self.rules.mask, ids, lengths, width)
        return Batch(
            torch.from_numpy(ids),
            None if mask is None else torch.from_numpy(mask),
            self._labels(index, width),
        )


class _Stream:
    """The examples 0..n-1 again and again, each time in another order."""

    def __init__(self, n: int, seed: int):
        self.n, self.seed = n, seed
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def take(self, at: int, count: int) -> np.ndarray:
        taken = []
        while count > 0:
            epoch, start = divmod(at, self.n)
            taken.append(self._shuffled(epoch)[start : start + count])
            at, count = at + len(taken[-1]), count - len(taken[-1])
        return np.concatenate(taken)

    def _shuffled(self, epoch: int) -> np.ndarray:
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._draw(epoch)
        return self._order

    def _draw(self, epoch: int) -> np.ndarray:
        return np.random.default_rng([self.seed, epoch]).permutation(self.n)


class _SortedStream(_Stream):
    """A stream whose batches hold examples of similar lengths: each chunk of the shuffled examples
    is sorted, and its batches are shuffled."""

    def __init__(self, n: int, seed: int, lengths: np.ndarray, batch: int):
        super().__init__(n, seed)
        self.lengths, self.batch = lengths, batch

    def _draw(self, epoch: int) -> np.ndarray:
        order, rng = super()._draw(epoch), np.random.default_rng([self.seed, epoch, CHUNK])
        first = -epoch * self.n % self.batch  # examples that fill up the last epoch's last batch
        size = max(1, CHUNK // self.batch) * self.batch
        parts = [order[:first]]
        for start in range(first, self.n, size):
            chunk = order[start : start + size]
            chunk = chunk[np.argsort(self.lengths[chunk], kind="stable")]
            whole = len(chunk) // self.batch * self.batch
            parts += [*rng.permutation(chunk[:whole].reshape(-1, self.batch)), chunk[whole:]]
        return np.concatenate(parts)


def _cut(n: int, size: int, drop_last: bool, world: int) -> list[int]:
    """Give the bounds of the batches of one ordered pass. A last batch too small to give every
    process an example joins the one before it: processes must see equally many batches."""
    bounds = list(range(0, n + 1, size))
    if not drop_last and bounds[-1] < n:
        if n - bounds[-1] < world and len(bounds) > 1:
            bounds[-1] = n
        else:
            bounds.append(n)
    return bounds


def _mask(policy: Mask, ids: np.ndarray, lengths: np.ndarray, width: int) -> np.ndarray | None:
    if policy is Mask.none:
        return None
    if policy is Mask.length:
        mask = np.arange(width) < lengths[..., None]
    else:
        mask = ids != 0
    return None if mask.all() else mask
