from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from .kit import accuracy, bert, comes_again, paint, processor


@pytest.fixture(scope="session")
def trained():
    """A model whose attention means something: it tells whether its first token comes again."""
    model = bert(num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(300):
        optimizer.zero_grad()
        model(**comes_again(64, seed=step)).loss.backward()
        optimizer.step()
    model.zero_grad()
    assert accuracy(model.eval())["accuracy"] > 0.95
    return model


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Images of three colours."""
    paint(root := tmp_path_factory.mktemp("colours"))
    return root


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Any:
    """What a checkpoint says of its images."""
    return processor(tmp_path_factory.mktemp("checkpoint"))
