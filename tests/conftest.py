"""For all tests: one thread for each process and no GPU unless asked for, both set before torch is
imported; log handlers that outlive a test; which shard of the tests runs.

`make test` leaves out what is marked `rest` and takes minutes, `make test-all` runs everything. CI
runs each of them in shards side by side, `make test SHARD=2/4`: together they are all tests.
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import re
import zlib

import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # tests run side by side on few cores
    os.environ.setdefault(variable, "1")
# Commands that tests start would compile our sources again, every one of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="run one of N parts of the tests, say 2/4")


def pytest_configure(config: pytest.Config) -> None:
    """`make test` is the same with and without a GPU; `make test-gpu` runs what needs one."""
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.option.shard is not None:
        parts_of(config.option.shard)


def parts_of(word: str) -> tuple[int, int]:
    """Which part of how many."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", word)
    if not found or int(found[1]) > int(found[2]):
        raise pytest.UsageError(f"--shard {word}: give a part and their number, such as 2/4")
    return int(found[1]), int(found[2])


def shard_of(name: str, number: int) -> int:
    """By the test's name alone: no other test, and no order of them, moves it."""
    return zlib.crc32(name.encode()) % number + 1


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """torch.compile reads its own templates in the locale's encoding, and they are not ASCII."""
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        for item in items:
            if "compile" in item.name:
                item.add_marker(pytest.mark.skip(reason="torch.compile needs a UTF-8 locale"))
    if config.option.shard is not None:
        part, number = parts_of(config.option.shard)
        kept = [item for item in items if shard_of(item.nodeid, number) == part]
        config.hook.pytest_deselected(items=[*{*items} - {*kept}])
        items[:] = kept


def pytest_collection_finish() -> None:
    """The collector of garbage need not look again at what lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra sets up logging and closes every known handler; absl's would close pytest's files."""
    monkeypatch.setattr(logging, "_handlerList", [])
