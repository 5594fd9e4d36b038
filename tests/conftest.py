"""For all tests: one thread for each process and no GPU unless asked for, both set before torch is
imported; log handlers that outlive a test."""

from __future__ import annotations

import locale
import logging
import os

import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # tests run side by side on few cores
    os.environ.setdefault(variable, "1")


def pytest_configure(config: pytest.Config) -> None:
    """`make test` is the same with and without a GPU; `make test-gpu` runs what needs one."""
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """torch.compile reads its own templates in the locale's encoding, and they are not ASCII."""
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        for item in items:
            if "compile" in item.name:
                item.add_marker(pytest.mark.skip(reason="torch.compile needs a UTF-8 locale"))


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra sets up logging and closes every known handler; absl's would close pytest's files."""
    monkeypatch.setattr(logging, "_handlerList", [])
