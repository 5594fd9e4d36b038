"""For all tests: one thread for each process and no GPU unless asked for, both set before torch is
imported; log handlers that outlive a test; which quarter of the tests marked `rest` runs.

`make test` leaves out what is marked `rest`, `make test-all` runs everything, and CI runs the first
and a quarter of the rest: another one each day, so that four days see all of it. A test of many
seconds says in which it is, `@pytest.mark.rest(3)`, so that all four take about as long.
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import zlib
from datetime import date

import pytest

QUARTERS = 4

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # tests run side by side on few cores
    os.environ.setdefault(variable, "1")
# Commands that tests start would compile our sources again, every one of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = f"of the tests marked rest, run one quarter only: 1 to {QUARTERS}, or today"
    parser.addoption("--quarter", metavar="N", help=words)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` is the same with and without a GPU; `make test-gpu` runs what needs one."""
    if "gpu" not in config.option.markexpr:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if config.option.quarter is not None:
        # Processes that help with the tests are given the number: midnight does not split them.
        config.option.quarter = chosen_quarter(str(config.option.quarter), date.today())


def pytest_sessionstart(session: pytest.Session) -> None:
    """Say which quarter runs: whoever repeats what CI saw needs its number."""
    config = session.config
    if config.option.quarter is not None and not hasattr(config, "workerinput"):
        said = f"quarter {config.option.quarter} of {QUARTERS} of the tests marked rest"
        config.get_terminal_writer().line(f"{said} (--quarter {config.option.quarter})")


def chosen_quarter(word: str, day: date) -> int:
    """Return the number that was asked for, or that of the day."""
    if word == "today":
        return day.toordinal() % QUARTERS + 1
    if word not in map(str, range(1, QUARTERS + 1)):
        raise pytest.UsageError(f"--quarter {word}: give 1 to {QUARTERS}, or today")
    return int(word)


def quarter_of(name: str, chosen: int | None = None) -> int:
    """The one that the mark names, or by the test's name alone: no other test, and no order of
    them, moves it."""
    return chosen or zlib.crc32(name.encode()) % QUARTERS + 1


def split(items: list[pytest.Item], quarter: int) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return what runs in this quarter, which is all that is not marked and a part of the rest; and
    what does not."""
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        rest = item.get_closest_marker("rest")
        out = rest is not None and quarter_of(item.nodeid, *rest.args) != quarter
        parts[out].append(item)
    return parts


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """torch.compile reads its own templates in the locale's encoding, and they are not ASCII."""
    if locale.getpreferredencoding(False).lower().replace("-", "") != "utf8":
        for item in items:
            if "compile" in item.name:
                item.add_marker(pytest.mark.skip(reason="torch.compile needs a UTF-8 locale"))
    if config.option.quarter is not None:
        kept, left_out = split(items, config.option.quarter)
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


def pytest_collection_finish() -> None:
    """The collector of garbage need not look again at what lives as long as the process."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra sets up logging and closes every known handler; absl's would close pytest's files."""
    monkeypatch.setattr(logging, "_handlerList", [])
