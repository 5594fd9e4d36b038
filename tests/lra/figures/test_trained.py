"""The words of pictures of trained networks."""

from __future__ import annotations

from collections.abc import Callable

from lra.figures.trained import conditions, name
from lra.training.trained import Trained

from .conftest import LUNA


def test_the_title_names_what_is_unusual_and_the_data(trained: Callable[..., Trained]):
    run = trained(*LUNA)
    assert name(run) == "listops, luna M=2 L=3 share=head, seed 1, best checkpoint"
    assert conditions(run).endswith(
        "2 steps of 8\ndata: a bundled miniature, for trying things out"
    )
