"""What decides the identity of a run."""

from __future__ import annotations

import pytest

from lra.config import UserError
from lra.runs import identity


def test_paths_devices_and_loggers_do_not_change_the_identity(small):
    same = (
        "trainer.log_every=7",
        "logger=wandb",
        "runs_dir=elsewhere",
        "trainer.devices=[3]",
        "seed=5",
    )
    assert identity(small(), "data") == identity(small(*same), "data")


def test_how_many_processes_train_is_part_of_the_identity(small):
    four = ("trainer.devices=4", "trainer.devices=[0,1,2,3]", "trainer.num_nodes=4")
    [found] = {identity(small(word), "data") for word in four}
    assert found not in (identity(small(), "data"), identity(small("trainer.devices=2"), "data"))
    with pytest.raises(UserError, match=r"trainer\.devices=auto is out of range: .* a number"):
        small("trainer.devices=auto")


def test_whatever_decides_a_result_changes_the_identity(small):
    changes = (
        "model.mlp_dim=32",
        "attention.eps=1e-5",
        "protocol.recipe.lr=0.02",
        "protocol.data.mask=nonzero",
        "budget=0.5",
        "attention.dwc=conv1d",
    )
    found = {change: identity(small(change), "data") for change in changes}
    assert len({identity(small(), "data"), *found.values()}) == len(changes) + 1, found


def test_other_data_are_another_run(small):
    assert identity(small(), "data") != identity(small(), "other data")
