from __future__ import annotations

from collections.abc import Callable

import pytest
from omegaconf import OmegaConf

from lra.config import CONFIGS, Model, Protocol


@pytest.fixture(scope="session")
def settings() -> Callable[..., tuple[Protocol, Model]]:
    """settings(protocol, task, model, "model.n_layers=1", ...): two groups as train.py has them."""

    def read(
        protocol: str, task: str, model: str = "small", *overrides: str
    ) -> tuple[Protocol, Model]:
        schema = OmegaConf.create({"task": {"name": task}})
        schema.protocol = OmegaConf.structured(Protocol)
        schema.model = OmegaConf.structured(Model)
        groups = {
            "protocol": OmegaConf.load(CONFIGS / "protocol" / f"{protocol}.yaml"),
            "model": OmegaConf.load(CONFIGS / "model" / f"{model}.yaml"),
        }
        cfg = OmegaConf.merge(schema, groups, OmegaConf.from_dotlist(list(overrides)))
        OmegaConf.resolve(cfg)
        return OmegaConf.to_object(cfg.protocol), OmegaConf.to_object(cfg.model)

    return read
