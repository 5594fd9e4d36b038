"""Prepared data of somebody else, or pulled away: refused in one sentence."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from lra.base.errors import UserError
from lra.data.arrays import MANIFEST, Prepared, manifest_text
from lra.data.prepare import load_prepared

from . import kit


def test_a_deleted_folder_is_named(tiny: Prepared) -> None:
    shutil.rmtree(tiny.folder)
    assert len(tiny.split("train").ids(np.arange(3))) == 3  # files that are open stay readable
    for use in (tiny.check_hashes, lambda: load_prepared(tiny.folder)):
        with pytest.raises(UserError, match=f"{tiny.folder}.* cannot be read: No such file"):
            use()
    assert len(kit.differences(tiny.folder)) == 1


@pytest.mark.parametrize(
    ("fact", "value"), [("task", None), ("task", 3), ("width", -1), ("width", None), ("width", "8")]
)
def test_a_forged_manifest_is_refused_in_one_sentence(tiny: Prepared, fact: str, value: object):
    path = tiny.folder / MANIFEST
    facts = tiny.facts | {fact: value}
    path.write_text(manifest_text(facts, tiny.manifest["made"]), encoding="utf-8")
    with pytest.raises(UserError, match=r"manifest\.json is damaged or unreadable"):
        load_prepared(tiny.folder)


def test_a_pipe_in_the_place_of_a_manifest_is_not_waited_for(tiny: Prepared):
    (tiny.folder / MANIFEST).unlink()
    os.mkfifo(tiny.folder / MANIFEST)
    with pytest.raises(UserError, match="is not a file"):
        load_prepared(tiny.folder)


@pytest.fixture
def open_files() -> Iterator[Callable[[int], None]]:
    """open_files(n): from now on n more files can be open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more: int) -> None:
        with Path(os.devnull).open() as file:
            resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + more, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("more", [0, 1, 2, 4])
def test_too_many_open_files_are_no_damage(
    more: int, open_files: Callable[[int], None], tiny: Prepared
) -> None:
    open_files(more)
    with pytest.raises(UserError, match=r"cannot be read: [Tt]oo many open files"):
        load_prepared(tiny.folder)
