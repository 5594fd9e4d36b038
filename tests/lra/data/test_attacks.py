"""Prepared data and sources of somebody else, or pulled away: one sentence, a quiet terminal."""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import lra
from lra.base.errors import UserError
from lra.data import image
from lra.data.arrays import MANIFEST, SPLITS, Prepared, manifest_text
from lra.data.prepare import load_prepared

from . import kit

ESCAPE = "\x1b[2J\u202e"
METADATA = "pathfinder32/curv_contour_length_14/metadata/0.npy"


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


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_holds_an_example(batch: int) -> None:
    with pytest.raises(UserError, match=f"recipe.batch={batch} is out of range"):
        lra.compose(["task=listops", "attention=luna", f"protocol.recipe.batch={batch}"])


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (["listops"], {f"basic_{s}.tsv": f"Source\tTarget\n[{ESCAPE} 1 ]\t1\n" for s in SPLITS}),
        (["listops"], {f"basic_{s}.tsv": f"Source\tTarget\n1\t{ESCAPE}\n" for s in SPLITS}),
        (["pathfinder"], {METADATA: f"imgs/{ESCAPE} sample_0.png 0 1\n" * 10}),
        (["pathfinder"], {METADATA: f"../{ESCAPE} sample_0.png 0 1\n"}),
        (["retrieval"], {"x.tar": f"tsv_data/{ESCAPE}"}),
        (["image", "checksum=any"], {"x.tar": f"{image.FOLDER}/{image.NOTE}\0{ESCAPE}"}),
        (["text", "checksum=any"], {"x.tar": f"aclImdb/train/neg/{ESCAPE}.txt"}),
    ],
)
def test_text_in_a_source_does_not_steer_the_terminal(
    words: list[str], files: dict[str, str], tmp_path: Path, lra_data: Callable[..., tuple]
) -> None:
    task, *rest = words
    path = tmp_path / "source"
    for name, content in files.items():
        if name == "x.tar":
            member, _, text = content.partition("\0")
            path = kit.tar(path / name, [(member, text.encode())])
        else:
            kit.unpack(path, [(name, content.encode())])
    source = "files" if rest else "release"
    code, out, err = lra_data("prepare", task, f"source={source}", f"path={path}", *rest)
    assert code == 2
    assert err.startswith("error: ")
    assert not {"\x1b", "\u202e"} & {*out, *err}
