"""What the Ray launcher refuses before it waits for anything."""

from __future__ import annotations

import re
import sys

import pytest
from hydra.errors import MissingConfigException
from omegaconf import OmegaConf

from lra.base.config import UserError
from lra.settings.compose import explain


def test_ray_does_not_wait_for_a_machine_that_it_has_not():
    from hydra_plugins.lra_ray import check_resources

    node = {"Alive": True, "Resources": {"CPU": 4.0, "GPU": 1.0, "memory": 1e9}}
    dead = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    check_resources([dead, node], {"num_gpus": 1, "num_cpus": 4, "max_retries": 0})
    check_resources([node], {"num_gpus": 0.25, "num_cpus": 1})  # four runs share a GPU
    check_resources([{"Alive": True, "Resources": {"CPU": 4.0}}], {"num_gpus": 0})
    with pytest.raises(UserError, match="has the 2 GPU and 4 CPU of one job"):
        check_resources([dead, node], {"num_gpus": 2, "num_cpus": 4})
    with pytest.raises(UserError, match="has the 1 GPU and 8 CPU of one job"):
        check_resources([node], {"num_gpus": 1, "num_cpus": 8})


def test_a_launcher_whose_extra_is_missing_says_so(monkeypatch):
    absent = MissingConfigException("Could not load it", missing_cfg_file="hydra/sweeper/optuna")
    assert explain(absent) == (
        "hydra/sweeper/optuna needs an extra that is not installed: docs/clusters.md"
    )
    from hydra_plugins.lra_ray import RayLauncher

    monkeypatch.setitem(sys.modules, "ray", None)
    settings = OmegaConf.create({})
    with pytest.raises(UserError, match=re.escape("pip install 'luna-lra[ray]'")):
        RayLauncher(init=settings, remote=settings).launch([], 0)
