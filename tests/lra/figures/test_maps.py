"""The attention of a trained run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lra.base.config import UserError
from lra.figures import maps
from lra.training.trained import Trained

from .conftest import SOFTMAX


def test_maps_are_rows_of_the_attention_matrix(trained: Callable[..., Trained], tmp_path: Path):
    run = trained(*SOFTMAX)
    rows = maps.attention_rows(run, 3)
    n = len(rows.ids)
    assert rows.rows.shape == (2, run.network.encoder.blocks[0].attention.n_heads, n)
    np.testing.assert_allclose(rows.rows.sum(-1), 1, rtol=1e-5)  # means of distributions
    ids = run.prepared.split("test").ids(np.array([3]))[0]
    assert (rows.ids == ids[ids > 0][:n]).all()
    pytest.importorskip("matplotlib")
    assert all(p.exists() for p in maps.draw_maps(run, rows, "T", tmp_path / "m"))
    with pytest.raises(UserError, match="there is no test example 1000000: choose from 0 to"):
        maps.attention_rows(run, 10**6)


def test_polaformer_has_a_map_for_either_half_of_the_values(trained: Callable[..., Trained]):
    run = trained("attention=polaformer")
    rows = maps.attention_rows(run, 3)
    assert rows.heads == [f"head {h}, {of} signs" for h in (0, 1) for of in ("equal", "opposite")]
    assert rows.rows.shape == (1, 4, len(rows.ids))
    np.testing.assert_allclose(rows.rows.sum(-1), 1, rtol=1e-4)
    assert np.abs(rows.rows[:, 0] - rows.rows[:, 1]).max() > 1e-4
