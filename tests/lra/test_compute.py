"""What is counted is what is computed."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lra import data, model
from lra.compose import compose
from lra.compute import count, count_run, reference


def measured(run) -> int:
    """Torch's own counter over the real network on the meta device."""
    task = data.get(run.task.name)
    with torch.device("meta"):
        network = model.build(task, run.attention, run.model, run.protocol, seed=0)
        ids = torch.zeros(1, run.protocol.data.pad_to, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(ids)
    return counter.get_total_flops()


def test_softmax_on_the_backbone_is_counted_as_torch_counts_it():
    run = compose(["task=listops", "attention=softmax", "trainer=cpu"])
    n, d, heads, layers = 2048, 32, 2, 2
    elementwise = layers * heads * 5 * n * n  # of the softmax itself; torch counts matrix products
    assert count_run(run).flops - elementwise == measured(run) == (
        layers * (heads * 4 * n * n * d + n * (4 * 2 * 64 * 64 + 2 * 2 * 64 * 128))
        + 2 * 64 * 128 + 2 * 128 * 10
    )  # fmt: skip


def test_counting_allocates_nothing_and_does_not_depend_on_the_device():
    run = compose(["task=listops", "attention=luna"])
    real = count(model.build(data.get("listops"), run.attention, run.model, run.protocol, seed=0))
    assert count_run(run) == real


def test_the_local_branch_is_counted():
    plain = count_run(compose(["attention=linear"]))
    local = count_run(compose(["attention=linear", "attention.dwc=conv1d"]))
    assert local.parameters > plain.parameters
    assert local.attention_flops > plain.attention_flops
    assert local.flops - plain.flops == local.attention_flops - plain.attention_flops


def test_luna_against_itself_is_one():
    run = compose(["attention=luna"])
    assert count_run(run).ratio(reference(run)) == (1.0, 1.0)


@pytest.mark.parametrize("shared", [False, True])
def test_parameters_of_lunas_slot_are_those_of_the_formula(shared: bool):
    """M (d + 1) + L (3 w + 1), or with one shared MLP M (d + 1) + 2 w + L (w + 1), per layer."""
    M, L, w, d, layers = 8, 8, 64, 32, 2
    run = compose(["attention=luna", f"attention.shared_channels={shared}"])
    mlp = 2 * w + L * (w + 1) if shared else L * (3 * w + 1)
    assert count_run(run).attention_parameters == layers * (M * (d + 1) + mlp)
