"""IMDB byte by byte: exact ids, the official order and splits, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

import lra.data
from lra.base.errors import UserError
from lra.data.arrays import Prepared
from lra.data.prepare import prepare
from lra.data.task import byte_ids
from lra.data.text import IMDB

from . import kit

Call = Callable[..., tuple[int, str, str]]
REVIEWS = kit.reviews(15)
ARCHIVE = IMDB.archive
LENGTH = 50


def prepared(path: Path, data_dir: Path, *settings: str, length: int = LENGTH) -> Prepared:
    words = ["source=files", f"path={path}", "checksum=any", *settings]
    return prepare(lra.data.configure("text", words), max_length=length, data_dir=data_dir)


def in_order(split: str) -> list[tuple[bytes, int]]:
    """By the rule, spelled out."""
    keys = [key for key in REVIEWS if key.startswith(f"aclImdb/{split}/")]
    keys.sort(key=lambda key: int(hashlib.md5((split + key).encode()).hexdigest(), 16))
    return [(REVIEWS[key].strip()[:LENGTH], int("/pos/" in key)) for key in keys]


# ---------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b" \t\n\r\x0b\x0c a b \n\n", b"a b"),
        (b"\xa0text\xa0", b"\xa0text\xa0"),  # a blank in Latin-1 and in Unicode, not in ASCII
        (b"\x1ctext\x1f", b"\x1ctext\x1f"),  # blanks to Python's str.strip
        (b"one\r\ntwo<br /><br />\n", b"one\r\ntwo<br /><br />"),
    ],
)
def test_only_ascii_blanks_at_both_ends_are_removed(
    content: bytes, kept: bytes, tmp_path: Path
) -> None:
    changed = REVIEWS | {"aclImdb/test/pos/7_9.txt": content}
    kit.tar(tmp_path / ARCHIVE, kit.imdb_members(changed))
    assert (kept, 1) in kit.texts(prepared(tmp_path, tmp_path / "data"), "test")


def test_texts_are_shown_with_what_is_no_text() -> None:
    decode = lra.data.get("text").decode
    assert decode(byte_ids("naïve ☺".encode())) == "naïve ☺"
    assert decode(byte_ids("☺".encode()[:2] + b" caf\xe9")) == "\\xe2\\x98 caf\\xe9"


# ---------------------------------------------------------------------- order and splits


@pytest.mark.parametrize(("dev", "cut"), [("train", 27), ("test", 30)])
def test_splits_in_the_official_order(dev: str, cut: int, tmp_path: Path) -> None:
    kit.tar(tmp_path / ARCHIVE, kit.imdb_members(REVIEWS))
    made = prepared(tmp_path, tmp_path / "data", f"dev={dev}")
    assert kit.texts(made, "train") == in_order("train")[:cut]
    assert kit.texts(made, "val") == (
        in_order("train")[27:] if dev == "train" else in_order("test")
    )
    assert kit.texts(made, "test") == in_order("test")
    assert made.summary()["options"] == {"dev": dev, "checksum": "any"}
    assert made.facts["provenance"] == "files in the format of aclImdb_v1, not checked against it"
    assert made.facts["duplicates"]["val/test"] == (30 if dev == "test" else 0)


def test_the_protocol_says_where_the_dev_split_comes_from(tmp_path: Path, lra_data: Call) -> None:
    words = ("prepare", "text", "source=tiny")
    _, default, _ = lra_data(*words)
    _, theirs, _ = lra_data(*words, "--protocol", "official")
    _, again, _ = lra_data(*words, "dev=test", "--max-length", "1000")
    assert [out.splitlines()[2].split(", ")[2] for out in (default, theirs)] == [
        "90 / 10 / 60 examples",
        "100 / 60 / 60 examples",
    ]
    assert again.splitlines()[:3] == ["text was prepared already", *theirs.splitlines()[1:3]]


def test_what_lies_beside_the_reviews_is_not_read(tmp_path: Path) -> None:
    strange = {
        "aclImdb/train/neg/.DS_Store": b"x",
        "aclImdb/train/neg/._0_3.txt": b"x",
        "aclImdb/test/pos/1_9.txt~": b"x",
        "aclImdb/test/unsup/1_0.txt": b"x",
        "other/train/neg/1_1.txt": b"x",
    }
    members = kit.imdb_members(REVIEWS | strange)
    made = prepared(kit.tar(tmp_path / ARCHIVE, members), tmp_path / "data")
    assert kit.texts(made, "train") + kit.texts(made, "val") == in_order("train")
    assert kit.texts(made, "test") == in_order("test")


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"aclImdb/train/pos/4_9.txt": b""}, "the review aclImdb/train/pos/4_9.txt is empty"),
        ({"aclImdb/test/neg/4_3.txt": b" \n "}, "the review aclImdb/test/neg/4_3.txt is empty"),
        ("aclImdb/test/pos/", "holds no reviews in aclImdb/test/pos"),
        ("aclImdb/train/", "holds no reviews in aclImdb/train/neg"),
    ],
)
def test_reviews_that_are_wrong(
    change: dict[str, bytes] | str, complaint: str, tmp_path: Path
) -> None:
    if isinstance(change, str):
        changed = {key: text for key, text in REVIEWS.items() if not key.startswith(change)}
    else:
        changed = REVIEWS | change
    place = kit.tar(tmp_path / ARCHIVE, kit.imdb_members(changed))
    with pytest.raises(UserError, match=complaint):
        prepared(place, tmp_path / "data")
    assert list((tmp_path / "data").rglob("*.npy")) == []
    members = kit.imdb_members(REVIEWS)
    kit.tar(place, [*members, members[-1]])
    with pytest.raises(UserError, match="comes twice"):
        prepared(place, tmp_path / "data")
