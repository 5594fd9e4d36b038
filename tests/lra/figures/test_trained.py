"""Trained networks from the folders of their runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lra.config import UserError
from lra.figures.trained import Trained, restore

from .conftest import LUNA


def test_the_title_names_what_is_unusual_and_the_data(trained: Callable[..., Trained]):
    run = trained(*LUNA)
    assert run.name == "listops, luna M=2 L=3 share=head, seed 1, best checkpoint"
    assert run.conditions.endswith("2 steps of 8\ndata: a bundled miniature, for trying things out")


def test_another_folder_is_refused(tmp_path: Path):
    with pytest.raises(
        UserError, match=r"not the folder of a training run, because it has no config\.yaml"
    ):
        restore(tmp_path, tmp_path)
