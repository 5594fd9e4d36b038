from __future__ import annotations

from pathlib import Path

import pytest

from luna.convert.tasks.pixels import Pixels

from ..kit import PREPROCESSOR, paint, processor


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("colours")
    paint(root)
    return root


@pytest.fixture(scope="session")
def plain(tmp_path_factory) -> Pixels:
    return processor(tmp_path_factory.mktemp("checkpoint"), PREPROCESSOR)
