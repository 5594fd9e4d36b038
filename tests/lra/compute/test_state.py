"""What a record says a head keeps between tokens."""

from __future__ import annotations

import pytest
import torch

from lra.compute.gate import check_budget
from lra.compute.state import GROWS, state_of_run

from ..conftest import composed

WIDTH = 32  # of a head of model=probe


@pytest.mark.parametrize(
    ("words", "size"),
    [
        (["attention=linear"], WIDTH * WIDTH + WIDTH),  # S and z
        (["attention=linear", "model.n_heads=4"], 16 * 16 + 16),
        (["attention=luna", "attention.M=4", "attention.L=4"], 16 * WIDTH + 16),
        (["attention=linear", "attention.dwc=conv1d"], WIDTH * WIDTH + WIDTH),  # of no state
        (["attention=linear", "attention.short_conv=3"], WIDTH * WIDTH + WIDTH),  # beside it
        (["attention=s4d", "attention.state=8"], WIDTH * 8),  # 4 complex numbers a channel
        (["attention=softmax"], GROWS),
        (
            ["attention=stack", "attention.layers=[gated_deltanet,{name: gla, keys: complement}]"],
            WIDTH * WIDTH,
        ),
        (["attention=nystrom"], None),
    ],
)
def test_it_is_that_of_the_sizes_and_options_of_the_run(words: list[str], size: int | str | None):
    run = composed("task=recall", "protocol=recall", "model=probe", "compute=report", *words)
    before = torch.get_rng_state()
    assert state_of_run(run) == size
    assert torch.equal(torch.get_rng_state(), before), "the run's draws moved"


def test_a_record_has_it():
    run = composed("task=recall", "attention=linear", "protocol=recall", "model=probe")
    assert check_budget(run).record()["state"] == WIDTH * WIDTH + WIDTH
