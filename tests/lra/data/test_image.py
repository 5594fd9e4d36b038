"""CIFAR-10 in grey: exact levels, the official order, and every archive that is not what it
should be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import lra.data
from lra.base.errors import UserError
from lra.data import image
from lra.data.arrays import Prepared
from lra.data.prepare import find_or_prepare, prepare

from . import kit

FILES = {f"data_batch_{i}": 30 for i in range(1, 6)} | {"test_batch": 40}
BATCHES = kit.pictures(FILES)
ARCHIVE = image.CIFAR10.archive
TABLE = "824a76d81dad2c5a2cf1fa0b2c0a5afe7d871ec2970e4fa2809b53ddbecdca93"


def prepared(path: Path, data_dir: Path, *settings: str) -> Prepared:
    words = ["source=files", f"path={path}", "checksum=any", *settings]
    return prepare(lra.data.configure("image", words), max_length=1024, data_dir=data_dir)


def arrays(made: Prepared) -> dict[str, str]:
    return {name: facts["sha256"] for name, facts in made.facts["arrays"].items()}


# ---------------------------------------------------------------------- levels and order


def test_grey_of_all_16_777_216_colours() -> None:
    """The table indexed by R * 65536 + G * 256 + B, made with TensorFlow 2.15."""
    digest, rest = hashlib.sha256(), np.arange(65536)
    for red in range(256):
        planes = np.stack([np.full(65536, red), rest >> 8, rest & 255]).astype(np.uint8)
        digest.update(image.grey(planes[None]).tobytes())
    assert digest.hexdigest() == TABLE


def test_a_smaller_picture_has_the_means_of_blocks_in_their_places(tmp_path: Path) -> None:
    levels = np.zeros((32, 32), np.uint8)
    levels[4:8, 28:32] = 255  # the second row of blocks, the last one
    levels[28, 0:4], levels[0, 0:2] = (10, 10, 11, 1), (3, 4)  # means of 2 and 7/16
    levels[0, 4:8] = 2  # half a level, rounded up
    found = image.shrunk(levels.reshape(-1), 8)
    assert found.dtype == np.uint8
    assert {int(i): int(found[i]) for i in found.nonzero()[0]} == {1: 1, 15: 255, 56: 2}

    words = ["source=tiny"]
    whole, *smaller = (
        prepare(lra.data.configure(name, words), max_length=0, data_dir=tmp_path).split("val")
        for name in ("image", "image8", "image16")
    )
    every = np.arange(len(whole))
    for small, side in zip(smaller, (8, 16), strict=True):
        of_blocks = whole.ids(every).reshape(-1, side, 32 // side, side, 32 // side)
        blocks = of_blocks.astype(float).mean((2, 4)).reshape(-1, side**2)
        assert np.abs(small.ids(every) - blocks).max() <= 0.5
        assert (small.labels == whole.labels).all()


def test_image16_is_read_as_numbers_by_every_protocol() -> None:
    for words in (["attention=linear"], ["protocol=s4", "attention=s4d"]):
        run = lra.compose(["task=image16", *words])
        assert run.protocol.style.input.name == "numbers"
        assert run.protocol.recipe.steps * run.protocol.recipe.batch == 640_000
    assert lra.compose(["task=image8", "attention=linear"]).protocol.style.input.name == "ids"


# ---------------------------------------------------------------------- archives


@pytest.mark.parametrize("packed", [True, False])
def test_every_form_gives_the_same_arrays(packed: bool, tmp_path: Path) -> None:
    members = kit.binary_members(BATCHES)
    one = kit.tar(tmp_path / "a" / ARCHIVE, members)
    other = [(f"./{name}", content) for name, content in reversed(members)]
    two = kit.tar(tmp_path / "b" / "mine.tar", other, packed=packed)
    assert arrays(prepared(one.parent, tmp_path / "1")) == arrays(prepared(two, tmp_path / "2"))


def test_a_copy_says_what_it_is(tmp_path: Path) -> None:
    """In the run's record: provenance, and the option that let it pass."""
    note = (f"{image.FOLDER}/{image.NOTE}", b"JPEG-compressed copy (quality 75)\nmore\n")
    members = kit.binary_members(BATCHES)
    kit.tar(tmp_path / ARCHIVE, [note, *members])
    source = "files in the format of CIFAR-10, not the published ones: "
    summary = prepared(tmp_path, tmp_path / "data").summary()
    assert summary["provenance"] == source + "JPEG-compressed copy (quality 75)"
    assert summary["options"] == {"checksum": "any"}
    other = kit.tar(tmp_path / "other" / ARCHIVE, members)
    made = prepared(other, tmp_path / "more")
    assert made.summary()["provenance"] == source + "unknown"
    other.unlink()  # what is prepared does not need it
    options = lra.data.configure("image", ["source=files", f"path={other}", "checksum=any"])
    again = find_or_prepare(options, max_length=0, data_dir=tmp_path / "more")
    assert again.fingerprint == made.fingerprint
    # it cannot hide what it is
    kit.tar(other, [*members, note])
    with pytest.raises(UserError, match=r"PROVENANCE\.txt, which has to be its first file"):
        prepared(other, tmp_path / "hidden")


def changed(name: str, content: bytes | None) -> list[tuple[str, bytes]]:
    """The members with one file replaced, or left out."""
    path = f"{image.FOLDER}/{name}"
    members = [(n, c if n != path else content) for n, c in kit.binary_members(BATCHES)]
    return [(n, c) for n, c in members if c is not None]


def labelled(label: int) -> bytes:
    planes, labels = BATCHES["data_batch_3"]
    records = np.concatenate([labels[:, None], planes], axis=1)
    records[17, 0] = label
    return records.tobytes()


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        (changed("data_batch_2.bin", None), "is not complete: data_batch_2.bin not found"),
        (changed("test_batch.bin", None), "is not complete: test_batch.bin not found"),
        (changed("data_batch_1.bin", b"x" * 3072), "its 3,072 bytes are no whole number"),
        (changed("data_batch_1.bin", b""), "its 0 bytes are no whole number"),
        (changed("data_batch_3.bin", labelled(10)), "has label 10; labels of image are"),
        (kit.binary_members(BATCHES) * 2, "comes twice"),
    ],
    ids=range(6),
)
def test_archives_that_are_wrong(
    members: list[tuple[str, bytes]], complaint: str, tmp_path: Path
) -> None:
    archive = kit.tar(tmp_path / ARCHIVE, members)
    with pytest.raises(UserError, match=complaint):
        prepared(archive, tmp_path / "data")
    assert list((tmp_path / "data").rglob("*.npy")) == []
