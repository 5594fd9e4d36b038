"""CIFAR-10 in grey: exact levels, the official order, and every archive that is not what it
should be."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.base.config import UserError
from lra.data import image
from lra.data.arrays import SPLITS, Prepared
from lra.data.prepare import find_or_prepare, prepare
from lra.data.sources import cifar
from lra.data.sources.tfds_order import order
from lra.data.verify import verify

from . import kit

Call = Callable[..., tuple[int, str, str]]

FILES = {f"data_batch_{i}": 30 for i in range(1, 6)} | {"test_batch": 40}
BATCHES = kit.pictures(FILES)
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


def test_ids_are_the_levels_row_by_row_in_the_official_order(tmp_path: Path) -> None:
    made = prepared(kit.tar(tmp_path / cifar.BINARY.archive, kit.binary_members(BATCHES)), tmp_path)
    train = [BATCHES[f"data_batch_{i}"] for i in range(1, 6)]
    planes, labels = (np.concatenate(parts) for parts in zip(*train, strict=True))
    rgb = planes.reshape(150, 3, 32, 32)
    chosen = {
        "train": (rgb, labels, order("train", range(150))[:135]),
        "val": (rgb, labels, order("train", range(150))[135:]),
        "test": (
            BATCHES["test_batch"][0].reshape(40, 3, 32, 32),
            BATCHES["test_batch"][1],
            order("test", range(40)),
        ),
    }
    for name, (pixels, classes, expected) in chosen.items():
        split = made.split(name)
        assert len(split) == len(expected)
        every = np.arange(len(split))
        assert split.labels.tolist() == classes[expected].tolist()
        assert (split.lengths(every) == 1024).all()
        stored = split.ids(every).reshape(-1, 32, 32)
        for at, y, x in ((0, 0, 0), (3, 0, 31), (7, 31, 0), (9, 12, 20)):
            red, green, blue = pixels[expected[at], :, y, x].tolist()
            exact = (0.2989 * red + 0.5870 * green + 0.1140 * blue) / 255 * 255.5
            assert stored[at, y, x] == int(exact)
    assert made.facts["arrays"]["train.ids"]["dtype"] == "uint8"


def test_a_smaller_picture_has_the_means_of_blocks_in_their_places(tmp_path: Path) -> None:
    levels = np.zeros((32, 32), np.uint8)
    levels[4:8, 28:32] = 255  # the second row of blocks, the last one
    levels[28, 0:4], levels[0, 0:2] = (10, 10, 11, 1), (3, 4)  # means of 2 and 7/16
    levels[0, 4:8] = 2  # half a level, rounded up
    found = image.shrunk(levels.reshape(-1), 8)
    assert found.dtype == np.uint8
    assert {int(i): int(found[i]) for i in found.nonzero()[0]} == {1: 1, 15: 255, 56: 2}

    words = ["source=tiny"]
    whole, small = (
        prepare(lra.data.configure(name, words), max_length=0, data_dir=tmp_path).split("val")
        for name in ("image", "image8")
    )
    every = np.arange(len(small))
    blocks = whole.ids(every).reshape(-1, 8, 4, 8, 4).astype(float).mean((2, 4)).reshape(-1, 64)
    assert np.abs(small.ids(every) - blocks).max() <= 0.5
    assert (small.labels == whole.labels).all()


@pytest.mark.parametrize(
    "layout",
    ["binary", "python", "binary tar", "binary unpacked", "python unpacked", "the folder itself"],
)
def test_every_form_gives_the_same_arrays(layout: str, tmp_path: Path) -> None:
    python = "python" in layout
    version = cifar.PYTHON if python else cifar.BINARY
    members = (kit.python_members if python else kit.binary_members)(BATCHES)
    place = tmp_path / "there"
    if "unpacked" in layout or "itself" in layout:
        kit.unpack(place, members)
        place = place / version.folder if "itself" in layout else place
    else:
        kit.tar(place / version.archive, members, packed="tar" not in layout)
    expected = prepared(
        kit.tar(tmp_path / cifar.BINARY.archive, kit.binary_members(BATCHES)), tmp_path / "a"
    )
    assert arrays(prepared(place, tmp_path / "b")) == arrays(expected)


def test_the_order_is_that_of_the_whole_set() -> None:
    """The check values of the real data set, through the task's own splitting."""
    numbers = np.arange(50_000)
    sorted_ = image.Pictures(numbers[:, None], numbers).take(order("train", range(50_000)))
    assert sorted_.labels[:3].tolist() == [16399, 1680, 47917]
    assert sorted_.labels[45_000:45_003].tolist() == [13431, 9237, 17462]


# ---------------------------------------------------------------------- what is checked


def official(monkeypatch: pytest.MonkeyPatch, version: cifar.CifarVersion, **facts: Any) -> None:
    changed = [v._replace(**facts) if v is version else v for v in cifar.VERSIONS]
    monkeypatch.setattr(cifar, "VERSIONS", tuple(changed))


@pytest.mark.parametrize("version", cifar.VERSIONS)
def test_only_the_published_archive_passes(
    version: cifar.CifarVersion, tmp_path: Path, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = kit.python_members if version is cifar.PYTHON else kit.binary_members
    archive = kit.tar(tmp_path / version.archive, make(BATCHES))
    content = archive.read_bytes()
    words = ("prepare", "image", "source=files", f"path={tmp_path}")
    official(monkeypatch, version, md5=hashlib.md5(content).hexdigest())
    code, out, _ = lra_data(*words)
    assert code == 0
    assert "the published CIFAR-10 files, 135 / 15 / 40 examples" in out

    for changed, complaint in (
        (content[: len(content) // 2], "is not the published file: md5 "),
        (content[:-4] + b"abcd", "is not the published file: md5 "),
    ):
        archive.write_bytes(changed)
        code, _, err = lra_data(*words, "--force")
        assert code == 2
        assert err.startswith(f"error: {archive} {complaint}")
    # found again without a path, though the archive is no longer what it was
    assert "was prepared already" in lra_data(*words[:-1])[1]


@pytest.mark.parametrize("members", [kit.binary_members, kit.python_members])
def test_an_unpacked_copy_cannot_be_checked(members: Any, tmp_path: Path, lra_data: Call) -> None:
    kit.unpack(tmp_path, members(BATCHES))
    words = ("prepare", "image", "source=files", f"path={tmp_path}")
    code, _, err = lra_data(*words)
    assert code == 2
    assert "cannot be checked: give path= the archive" in err
    assert lra_data(*words, "checksum=any")[0] == 0


@pytest.mark.parametrize("packed", [True, False])
def test_a_copy_says_what_it_is(packed: bool, tmp_path: Path) -> None:
    """In the run's record: provenance, and the option that let it pass."""
    note = (f"{cifar.BINARY.folder}/{cifar.NOTE}", b"JPEG-compressed copy (quality 75)\nmore\n")
    members = [note, *kit.binary_members(BATCHES)]
    if packed:
        kit.tar(tmp_path / cifar.BINARY.archive, members)
    else:
        kit.unpack(tmp_path, members)
    source = "files in the format of CIFAR-10, not the published ones: "
    summary = prepared(tmp_path, tmp_path / "data").summary()
    assert summary["provenance"] == source + "JPEG-compressed copy (quality 75)"
    assert summary["options"] == {"checksum": "any"}

    other = kit.tar(tmp_path / "other" / cifar.BINARY.archive, members[1:])
    assert prepared(other, tmp_path / "more").summary()["provenance"] == source + "unknown"


def test_what_is_prepared_does_not_need_its_files(tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / cifar.BINARY.archive, kit.binary_members(BATCHES))
    made = prepared(archive, tmp_path / "data")
    archive.unlink()
    options = lra.data.configure("image", ["source=files", f"path={archive}", "checksum=any"])
    found = find_or_prepare(options, max_length=1024, data_dir=tmp_path / "data")
    assert found.fingerprint == made.fingerprint


def test_a_copy_cannot_hide_what_it_is(tmp_path: Path) -> None:
    note = (f"{cifar.BINARY.folder}/{cifar.NOTE}", b"JPEG-compressed copy\n")
    archive = kit.tar(tmp_path / cifar.BINARY.archive, [*kit.binary_members(BATCHES), note])
    with pytest.raises(UserError, match=r"PROVENANCE\.txt, which has to be its first file"):
        prepared(archive, tmp_path / "data")


# ---------------------------------------------------------------------- what is wrong


def changed(name: str, content: bytes | None) -> list[tuple[str, bytes]]:
    """The binary version with one file replaced, or left out."""
    path = f"{cifar.BINARY.folder}/{name}"
    return [
        (n, c if n != path else content)
        for n, c in kit.binary_members(BATCHES)
        if n != path or content is not None
    ]  # type: ignore[misc]


def labelled(label: int) -> bytes:
    planes, labels = BATCHES["data_batch_3"]
    records = np.concatenate([labels[:, None], planes], axis=1)
    records[17, 0] = label
    return records.tobytes()


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("data_batch_2.bin", None, "is not complete: data_batch_2.bin not found"),
        ("test_batch.bin", None, "is not complete: test_batch.bin not found"),
        ("data_batch_1.bin", b"x" * 3072, "data_batch_1.bin is damaged: 3,072 bytes are no whole"),
        ("data_batch_1.bin", b"\0" * 3073 * 2 + b"x", "data_batch_1.bin is damaged: 6,147 bytes"),
        ("data_batch_3.bin", labelled(10), "data_batch_3.bin, image 17: label 10, the labels are"),
        ("data_batch_3.bin", labelled(255), "data_batch_3.bin, image 17: label 255"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_batches_that_are_wrong(
    name: str, content: bytes | None, complaint: str, packed: bool, tmp_path: Path, lra_data: Call
) -> None:
    members = changed(name, content)
    place = (
        kit.tar(tmp_path / cifar.BINARY.archive, members)
        if packed
        else kit.unpack(tmp_path, members) / cifar.BINARY.folder
    )
    code, _, err = lra_data("prepare", "image", "source=files", f"path={place}", "checksum=any")
    assert code == 2
    assert err.startswith(f"error: {place}")
    assert complaint in err.replace(f"{place}/", "").replace(f"{place}, ", "")


def test_a_batch_twice(tmp_path: Path) -> None:
    members = kit.binary_members(BATCHES)
    archive = kit.tar(tmp_path / cifar.BINARY.archive, [*members, members[-1]])
    with pytest.raises(UserError, match=r"holds data_batch_1\.bin twice"):
        prepared(archive, tmp_path / "data")


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (lambda c: c[: len(c) // 2], "is not complete, it ends too early"),
        (lambda c: c[:1000], "is not complete, it ends too early"),
        (lambda c: b"<html>not found</html>" * 99, "is not a tar archive, or a damaged one"),
        (lambda c: b"", "is not a tar archive, or a damaged one"),
        (lambda c: c[:5000] + bytes([c[5000] ^ 1]) + c[5001:], "is not a tar archive, or a damag"),
    ],
    ids=["half", "a piece", "a page", "empty", "a bit"],
)
def test_archives_that_are_none(
    damage: Callable[[bytes], bytes], complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    archive = kit.tar(tmp_path / cifar.BINARY.archive, kit.binary_members(BATCHES))
    archive.write_bytes(damage(archive.read_bytes()))
    code, _, err = lra_data("prepare", "image", "source=files", f"path={archive}", "checksum=any")
    assert code == 2
    assert err.startswith(f"error: {archive} {complaint}")
    assert list((tmp_path / "data").rglob("*.npy")) == []


def test_the_python_batches_here_are_what_numpy_pickles() -> None:
    planes, labels = BATCHES["test_batch"]
    known = pickle.loads(kit.pickled(planes, labels.tolist()), encoding="bytes")
    assert (known[b"data"] == planes).all()
    assert known[b"labels"] == labels.tolist()


class Danger:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch executed",)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (pickle.dumps({"data": Danger(), "labels": [1]}), "it asks for posix.system"),
        (pickle.dumps(Danger(), protocol=0), "it asks for posix.system"),
        (b"cbuiltins\neval\n(S'1/0'\ntR.", "it asks for builtins.eval"),
        (b"cnumpy\nload\n(S'x'\ntR.", "it asks for numpy.load"),
        (pickle.dumps({"labels": [1]}, protocol=2), "is not a batch of CIFAR-10: b'data'"),
        (pickle.dumps([1, 2]), "is not a batch of CIFAR-10"),
        (b"", "is not a batch of CIFAR-10"),
        (b"\x80\x02garbage", "is not a batch of CIFAR-10"),
        (kit.pickled(np.zeros((3, 3072), np.uint8), [1, 2]), "(3, 3072) pixels and (2,) labels"),
        (kit.pickled(np.zeros((2, 3000), np.uint8), [1, 2]), "an image has 3000 bytes, not 3072"),
        (kit.pickled(np.zeros((2, 3072), np.uint8), [1, 11]), "image 1: label 11"),
        (kit.pickled(np.zeros((2, 3072), np.uint8), [1, -1]), "image 1: label -1"),
        (kit.pickled(np.zeros((2, 3072), np.uint8), [1, 2])[:-900], "is not a batch of CIFAR-10"),
    ],
)
def test_pickles_that_are_no_batch(
    content: bytes, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing in them is executed."""
    monkeypatch.chdir(tmp_path)
    kit.unpack(tmp_path, kit.python_members(BATCHES))
    (tmp_path / cifar.PYTHON.folder / "data_batch_2").write_bytes(content)
    with pytest.raises(UserError) as error:
        prepared(tmp_path, tmp_path / "data")
    assert "data_batch_2" in str(error.value)
    assert complaint in str(error.value)
    assert not (tmp_path / "executed").exists()


def test_nothing_found(tmp_path: Path, lra_data: Call) -> None:
    words = ("prepare", "image", "source=files")
    code, _, err = lra_data(*words, f"path={tmp_path}")
    assert code == 2
    assert f"{tmp_path} is and holds neither cifar-10-binary.tar.gz nor cifar-10-batches-bin" in err
    code, _, err = lra_data(*words)
    assert code == 2
    assert "source=files needs path=, the folder that holds cifar-10-binary.tar.gz or" in err
    code, _, err = lra_data("prepare", "image", "source=tiny", "checksum=any")
    assert code == 2
    assert "checksum is read by source=files only" in err


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kit.unpack(tmp_path, kit.binary_members(BATCHES))
    refuse(monkeypatch, tmp_path / cifar.BINARY.folder / "data_batch_5.bin")
    with pytest.raises(UserError, match=r"data_batch_5\.bin cannot be read: Permission denied"):
        prepared(tmp_path, tmp_path / "data")


def refuse(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """What the kernel does to those who may not read it; root may."""
    real = Path.open

    def opened(self: Path, *words: Any, **named: Any) -> Any:
        if self == path:
            raise PermissionError(13, "Permission denied", str(path))
        return real(self, *words, **named)

    monkeypatch.setattr(Path, "open", opened)


# ---------------------------------------------------------------------- the rest


def test_the_miniature_is_what_it_was(tmp_path: Path) -> None:
    made = prepare(lra.data.configure("image", ["source=tiny"]), max_length=1024, data_dir=tmp_path)
    assert [len(made.split(s)) for s in SPLITS] == [90, 10, 40]
    assert {line.status for line in verify(made.folder)} == {"ok"}


def test_a_picture_in_characters() -> None:
    ids = np.zeros((32, 32), np.uint8)
    ids[4:6, 1] = 255
    ids[7, 31] = 255
    lines = lra.data.get("image").decode(ids.ravel()).split("\n")
    assert [len(line) for line in lines] == [32] * 16
    assert lines[2] == " @" + " " * 30
    assert lines[3] == " " * 31 + "="
    assert "".join(lines).count(" ") == 32 * 16 - 2


def test_a_download_is_announced_and_not_begun(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        find_or_prepare(lra.data.configure("image"), max_length=1024, data_dir=tmp_path)
    assert str(error.value) == (
        f"image is not prepared in {tmp_path} and has to be downloaded: "
        f"run `lra data prepare image --data-dir {tmp_path}`"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_picture_is_not_cut(tmp_path: Path) -> None:
    made = prepare(lra.data.configure("image", ["source=tiny"]), max_length=100, data_dir=tmp_path)
    assert made.facts["width"] == 1024
