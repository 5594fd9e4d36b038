"""Work spread over processes."""

from __future__ import annotations

import itertools
import os
import time

import pytest

from lra.base.config import UserError
from lra.data.parallel import cores, ordered_map


def slow_for_even(i: int) -> tuple[int, int]:
    time.sleep(0.02 * (i % 2 == 0))
    return i, os.getpid()


def fails_at_three(i: int) -> int:
    if i == 3:
        raise ValueError("three")
    return i


def dies_at_three(i: int) -> int:
    if i == 3:
        os._exit(9)
    return i


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_order_from_endless_work(workers: int) -> None:
    found = list(
        itertools.islice(ordered_map(slow_for_even, itertools.count(), workers=workers), 20)
    )
    assert [i for i, _ in found] == list(range(20))
    processes = {pid for _, pid in found}
    assert (os.getpid() in processes) == (workers == 1)
    assert len(processes) <= workers


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_arrives_in_its_place(workers: int) -> None:
    found = ordered_map(fails_at_three, range(9), workers=workers)
    assert list(itertools.islice(found, 3)) == [0, 1, 2]
    with pytest.raises(ValueError, match="three"):
        next(found)


def test_a_dead_worker_is_reported() -> None:
    with pytest.raises(UserError, match="a worker process died"):
        list(ordered_map(dies_at_three, range(9), workers=2))


def test_cores_are_counted() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
