from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..kit import PREPROCESSOR, paint, processor


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("colours")
    paint(root)
    return root


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Any:
    return processor(tmp_path_factory.mktemp("checkpoint"), PREPROCESSOR)
