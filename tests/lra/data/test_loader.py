"""Batches: every example as often as it should come, exactly resumable, the same on any number of
processes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lra.base.config import DataRules, Mask, Pad
from lra.base.errors import UserError
from lra.data import loader as loading
from lra.data.arrays import Prepared
from lra.data.loader import Batch, Loader, _cut
from lra.settings.compose import compose

Fake = Callable[[str], Prepared]


def rules(mask: str = "length", pad: str = "full", pad_to: int = 160) -> DataRules:
    return DataRules(max_length=150, pad_to=pad_to, pad=Pad[pad], mask=Mask[mask], vocab=300)


def numbers(batch: Batch) -> list[int]:
    """Which examples of the task `numbers` a batch holds."""
    return batch.ids[:, 0].tolist()


def same(a: Batch, b: Batch) -> bool:
    masks = (a.mask is None) == (b.mask is None) and (a.mask is None or torch.equal(a.mask, b.mask))
    return masks and torch.equal(a.ids, b.ids) and torch.equal(a.labels, b.labels)


def joined(parts: list[Batch]) -> Batch:
    """The shares of all processes, masks made explicit."""
    masks = [torch.ones_like(p.ids, dtype=torch.bool) if p.mask is None else p.mask for p in parts]
    mask = torch.cat(masks)
    return Batch(
        torch.cat([p.ids for p in parts]),
        None if mask.all() else mask,
        torch.cat([p.labels for p in parts]),
    )


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("pad", ["full", "sorted"])
@pytest.mark.parametrize("batch", [1, 7, 32, 150, 200])
def test_every_example_once_per_epoch(
    fake: Fake, batch: int, pad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "CHUNK", 64)
    split = fake("numbers").split("train")
    steps = -(-3 * len(split) // batch)
    loader = Loader(split, batch, rules=rules(pad=pad), seed=1, steps=steps)
    assert len(loader) == steps
    batches = list(loader)
    assert len(batches) == steps
    assert {len(b.labels) for b in batches} == {batch}
    stream = [i for b in batches for i in numbers(b)]
    epochs = [stream[e * 150 : (e + 1) * 150] for e in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(150))] * 3
    if batch < 150:  # one sorted batch is the same every time
        assert epochs[0] != epochs[1] != epochs[2] != list(range(150))
    for b in batches:
        assert b.labels.tolist() == [i % 3 for i in numbers(b)]


def test_the_order_depends_on_the_seed_alone(fake: Fake) -> None:
    split = fake("numbers").split("train")

    def stream(seed: int) -> list[int]:
        return [i for b in Loader(split, 8, rules=rules(), seed=seed, steps=40) for i in numbers(b)]

    first = stream(1)
    np.random.seed(5)  # noqa: NPY002  (the global state must not matter)
    torch.manual_seed(5)
    assert stream(1) == first
    assert stream(2) != first
    # not one order shifted: seeds and epochs are no sum
    assert stream(2)[:150] != first[150:300]


def test_sorted_batches_hold_similar_lengths_in_any_order(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In every epoch, though none begins with a batch but the first; and all processes agree."""
    monkeypatch.setattr(loading, "CHUNK", 80)
    split, sorted_rules = fake("numbers").split("train"), rules(pad="sorted")
    batches = list(Loader(split, 8, rules=sorted_rules, seed=1, steps=90))
    spans = [max(numbers(b)) - min(numbers(b)) for b in batches]
    assert np.mean([span < 40 for span in spans]) > 0.9
    means = [np.mean(numbers(b)) for b in batches[:10]]
    assert means != sorted(means)
    assert len({b.ids.shape[-1] for b in batches}) == 3  # 64, 128, 160
    other = Loader(split, 8, rules=sorted_rules, seed=1, steps=90, rank=1, world=2)
    assert [numbers(b) for b in other] == [numbers(b)[4:] for b in batches]
    pairs = Loader(fake("pairs").split("train"), 8, rules=sorted_rules, steps=10)
    assert {b.ids.shape[-1] for b in pairs} == {64, 160}


@pytest.mark.parametrize("word", ["protocol.style.pooling=mean", "protocol.data.mask=none"])
def test_sorted_batches_are_refused_where_padding_counts(word: str) -> None:
    words = ["task=listops", "attention=luna", "protocol.data.pad=sorted"]
    identities = {compose(w).experiment.identity("") for w in (words, words[:2])}
    assert len(identities) == 2
    with pytest.raises(UserError, match="must be full or batch where the mean or the mask"):
        compose([*words, word])


@pytest.mark.parametrize("pad", ["batch", "sorted"])
def test_resuming_is_exact_at_every_batch(fake: Fake, pad: str) -> None:
    split = fake("numbers").split("train")
    steps, batch = 45, 8  # more than two epochs, none of which ends with a batch

    def fresh() -> Loader:
        return Loader(split, batch, rules=rules(pad=pad), seed=3, steps=steps)

    whole = list(fresh())
    for k in range(steps + 1):
        stopped = fresh()
        iterator = iter(stopped)
        for _ in range(k):
            next(iterator)
        state = stopped.state_dict()
        assert state == {"delivered": k}
        resumed = fresh()
        resumed.load_state_dict(state)
        rest = list(resumed)
        assert len(rest) == steps - k
        assert all(same(a, b) for a, b in zip(rest, whole[k:], strict=True))
        # in the same object too: a second pass goes on
        assert all(same(a, b) for a, b in zip(stopped, whole[k:], strict=True))


# ---------------------------------------------------------------------- evaluation


@pytest.mark.parametrize("batch", [1, 7, 10, 20, 64])
def test_evaluation_sees_every_example_once_in_order(fake: Fake, batch: int) -> None:
    loader = Loader(fake("numbers").split("val"), batch, rules=rules())
    assert len(loader) == len(list(loader)) == -(-20 // batch)
    for _ in range(2):  # each pass
        assert [i for b in loader for i in numbers(b)] == list(range(20))


def test_blocks_of_an_endless_stream(fake: Fake) -> None:
    """limit: the next block of batches at each evaluation, reshuffled every epoch."""
    split = fake("numbers").split("val")
    loader = Loader(split, 4, rules=rules(), seed=2, limit=2)
    assert len(loader) == 2
    passes = [[numbers(b) for b in loader] for _ in range(10)]
    assert {len(block) for block in passes} == {2}
    stream = [i for block in passes for b in block for i in b]  # 80 examples: four epochs
    epochs = [stream[e * 20 : (e + 1) * 20] for e in range(4)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4

    again = Loader(split, 4, rules=rules(), seed=2, limit=2)
    again.load_state_dict({"delivered": 6})
    assert [[numbers(b) for b in again] for _ in range(7)] == passes[3:]
    larger = Loader(split, 8, rules=rules(), seed=2, limit=3)  # more than the split holds
    assert sum(len(b.labels) for b in larger) == 24


# ---------------------------------------------------------------------- several processes


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("pad", ["full", "batch"])
@pytest.mark.parametrize("task", ["numbers", "pairs"])
@pytest.mark.parametrize(
    "how", [{"steps": 30}, {"limit": 5}, {}, {"drop_last": True}], ids=lambda how: str(how)
)
def test_shares_are_the_global_batch(
    fake: Fake, world: int, pad: str, task: str, how: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = fake(task).split("train")
    one = list(Loader(split, 8, rules=rules(pad=pad), seed=4, **how))
    several = [
        list(Loader(split, 8, rules=rules(pad=pad), seed=4, rank=r, world=world, **how))
        for r in range(world)
    ]
    assert {len(batches) for batches in several} == {len(one)}
    for whole, *shares in zip(one, *several, strict=True):
        assert same(joined(shares), whole)
        sizes = {len(share.labels) for share in shares}
        assert max(sizes) - min(sizes) <= 1
        assert min(sizes) > 0


@given(st.integers(1, 60), st.integers(1, 12), st.integers(1, 6), st.booleans())
@settings(max_examples=300, deadline=None)
def test_ordered_passes_cut_well(n: int, per_process: int, world: int, drop_last: bool) -> None:
    """No process ever gets an empty batch, none gets more batches than another, nothing is lost."""
    size = per_process * world
    if n < (size if drop_last else world):
        return  # refused
    bounds = _cut(n, size, drop_last, world)
    assert bounds[0] == 0
    assert bounds[-1] == (n - n % size if drop_last else n)
    widths = np.diff(bounds)
    assert (widths >= world).all()
    assert (widths[:-1] <= size).all()
    assert widths[-1] < size + world
    if world == 1:
        assert (widths[:-1] == size).all()


# ---------------------------------------------------------------------- padding and masks


def test_the_mask_follows_the_true_length(fake: Fake) -> None:
    split = fake("numbers").split("train")
    for batch in Loader(split, 16, rules=rules(), steps=10):
        lengths = batch.ids[:, 0] + 1  # example i has i + 1 ids
        assert batch.mask is not None
        assert torch.equal(batch.mask, torch.arange(160) < lengths[:, None])
        assert batch.ids.dtype == batch.labels.dtype == torch.int64
        assert batch.mask.dtype == torch.bool
        assert not batch.ids[~batch.mask].any()


def test_the_nonzero_quirk_is_scattered(fake: Fake) -> None:
    split = fake("pictures").split("train")
    (batch,) = Loader(split, 5, rules=rules("nonzero", pad_to=8), steps=1, seed=0)
    assert batch.mask is not None
    assert torch.equal(batch.mask, batch.ids != 0)
    black = (batch.ids == 0).all(1)
    assert not batch.mask[black].any()
    # of the example that is zeros by value, the true length says otherwise
    (first, *_) = Loader(fake("numbers").split("val"), 4, rules=rules("length"))
    (quirk, *_) = Loader(fake("numbers").split("val"), 4, rules=rules("nonzero"))
    assert first.mask is not None
    assert quirk.mask is not None
    assert (first.mask[0].sum(), quirk.mask[0].sum()) == (1, 0)
    assert torch.equal(first.mask[1:], quirk.mask[1:])


@pytest.mark.parametrize(("task", "batch"), [("numbers", 4), ("pairs", 1)])
def test_padding_to_the_batch(fake: Fake, task: str, batch: int) -> None:
    split = fake(task).split("train")
    full = Loader(split, batch, rules=rules(), seed=5, steps=60)
    short = Loader(split, batch, rules=rules(pad="batch"), seed=5, steps=60)
    widths = set()
    for a, b in zip(full, short, strict=True):
        longest = int(
            (torch.arange(1, 161) * (joined([a]).mask if a.mask is not None else 1)).max()
        )
        assert b.ids.shape[-1] == min(160, max(64, -(-longest // 64) * 64))
        widths.add(b.ids.shape[-1])
        assert torch.equal(a.ids[..., : b.ids.shape[-1]], b.ids)
        assert not a.ids[..., b.ids.shape[-1] :].any()
        assert torch.equal(a.labels, b.labels)
        if b.mask is not None and a.mask is not None:
            assert torch.equal(a.mask[..., : b.ids.shape[-1]], b.mask)
    # 160 is pad_to, not 192; no pair has its longer text between 64 and 128
    assert widths == {64, 160} | ({128} if task == "numbers" else set())


def test_pairs(fake: Fake) -> None:
    batches = list(Loader(fake("pairs").split("val"), 5, rules=rules()))
    assert [b.ids.shape for b in batches] == [(5, 2, 160)] * 4
    texts = torch.stack([torch.arange(20) % 7, 2 * torch.arange(20) % 7], 1)  # (20, 2)
    lengths = (70 * texts).clamp_max(150)
    mask = torch.cat([b.mask for b in batches if b.mask is not None])
    assert torch.equal(mask, torch.arange(160) < lengths[..., None])
    assert torch.equal(torch.cat([b.ids for b in batches]), mask * (texts + 1)[..., None])


# ---------------------------------------------------------------------- what is refused


def test_refusals(fake: Fake) -> None:
    split = fake("numbers").split("test")  # 11 examples
    for options, complaint in (
        ({"batch_size": 6, "world": 4}, "a batch of 6 cannot be split evenly over 4 processes"),
        (
            {"batch_size": 12, "drop_last": True},
            "the 11 examples of numbers's test split do not fill",
        ),
        ({"batch_size": 12, "world": 12}, "do not fill one batch of 12"),
        ({"batch_size": 4, "rules": rules(pad_to=149)}, "150 ids do not fit into pad_to=149"),
    ):
        with pytest.raises(UserError) as error:
            Loader(split, **({"rules": rules()} | options))
        assert complaint in str(error.value)
