"""IMDB byte by byte: exact ids, the official order and splits, and what is refused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lra.data
from lra.base.config import UserError
from lra.data import byte_ids
from lra.data.arrays import SPLITS, Prepared
from lra.data.prepare import prepare
from lra.data.sources import imdb
from lra.data.verify import verify

from . import kit

Call = Callable[..., tuple[int, str, str]]
REVIEWS = kit.reviews(15)
LENGTH = 50


def prepared(path: Path, data_dir: Path, *settings: str, length: int = LENGTH) -> Prepared:
    words = ["source=files", f"path={path}", "checksum=any", *settings]
    return prepare(lra.data.configure("text", words), max_length=length, data_dir=data_dir)


def rows(made: Prepared, split: str) -> list[tuple[bytes, int]]:
    """Texts, from the ids, and labels."""
    part = made.split(split)
    every = np.arange(len(part))
    texts = [
        (ids[:n] - 1).astype(np.uint8).tobytes()
        for ids, n in zip(part.ids(every), part.lengths(every), strict=True)
    ]
    return list(zip(texts, part.labels.tolist(), strict=True))


def in_order(split: str) -> list[tuple[bytes, int]]:
    """By the rule, spelled out."""
    keys = [key for key in REVIEWS if key.startswith(f"aclImdb/{split}/")]
    keys.sort(key=lambda key: int(hashlib.md5((split + key).encode()).hexdigest(), 16))
    return [(REVIEWS[key].strip()[:LENGTH], int("/pos/" in key)) for key in keys]


# ---------------------------------------------------------------------- ids


def test_ids_are_bytes_plus_one() -> None:
    every = bytes(range(256))
    assert byte_ids.encode(every).tolist() == list(range(1, 257))
    assert byte_ids.encode("é<br />".encode()).tolist() == [196, 170, 61, 99, 115, 33, 48, 63]
    assert byte_ids.VOCAB == 257


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b" \t\n\r\x0b\x0c a b \n\n", b"a b"),
        (b"\xa0text\xa0", b"\xa0text\xa0"),  # a blank in Latin-1 and in Unicode, not in ASCII
        (b"\x1ctext\x1f", b"\x1ctext\x1f"),  # blanks to Python's str.strip
        (b"caf\xe9 \xff\xfe", b"caf\xe9 \xff\xfe"),  # not UTF-8
        (b"one\r\ntwo<br /><br />\n", b"one\r\ntwo<br /><br />"),
        (b"\0", b"\0"),
    ],
)
def test_only_ascii_blanks_at_both_ends_are_removed(
    content: bytes, kept: bytes, tmp_path: Path
) -> None:
    changed = REVIEWS | {"aclImdb/test/pos/7_9.txt": content}
    kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(changed))
    assert (kept, 1) in rows(prepared(tmp_path, tmp_path / "data"), "test")


def test_texts_are_shown_with_what_is_no_text() -> None:
    decode = lra.data.get("text").decode
    assert decode(byte_ids.encode("naïve ☺".encode())) == "naïve ☺"
    assert decode(byte_ids.encode("☺".encode()[:2] + b" caf\xe9")) == "\\xe2\\x98 caf\\xe9"


# ---------------------------------------------------------------------- order and splits


@pytest.mark.parametrize(("dev", "cut"), [("train", 27), ("test", 30)])
def test_splits_in_the_official_order(dev: str, cut: int, tmp_path: Path) -> None:
    kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    made = prepared(tmp_path, tmp_path / "data", f"dev={dev}")
    assert rows(made, "train") == in_order("train")[:cut]
    assert rows(made, "val") == (in_order("train")[27:] if dev == "train" else in_order("test"))
    assert rows(made, "test") == in_order("test")
    assert made.summary()["options"] == {"dev": dev, "checksum": "any"}
    assert made.facts["duplicates"]["val/test"] == (30 if dev == "test" else 0)


def test_the_two_dev_splits_lie_beside_each_other(tmp_path: Path) -> None:
    kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    first = prepared(tmp_path, tmp_path / "data")
    assert prepared(tmp_path, tmp_path / "data", "dev=test").folder != first.folder
    assert lra.data.configure("text").dev.name == "train"


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
    # and under the quirk verify says that every dev example is a test example
    folder = theirs.splitlines()[1].strip()
    code, out, _ = lra_data("verify", "text", "source=tiny", "--protocol", "official")
    assert code == 0
    assert out.splitlines()[0] == folder
    assert "val/test 60" in out


def test_every_form_gives_the_same_arrays(tmp_path: Path) -> None:
    members = kit.imdb_members(REVIEWS)
    places = [
        kit.tar(tmp_path / "a" / imdb.ARCHIVE, members),
        kit.tar(tmp_path / "b" / "renamed.tar", [*reversed(members)], packed=False),
        kit.tar(tmp_path / "c" / imdb.ARCHIVE, [(f"./{name}", text) for name, text in members]),
        kit.unpack(tmp_path / "d", members),
        kit.unpack(tmp_path / "e", members) / imdb.FOLDER,
    ]
    found = {
        str({k: facts["sha256"] for k, facts in made.facts["arrays"].items()})
        for made in (prepared(place, tmp_path / f"data-{i}") for i, place in enumerate(places))
    }
    assert len(found) == 1


def test_what_lies_beside_the_reviews_is_not_read(tmp_path: Path) -> None:
    strange = {
        "aclImdb/train/neg/.DS_Store": b"x",
        "aclImdb/train/neg/._0_3.txt": b"x",
        "aclImdb/test/pos/1_9.txt~": b"x",
        "aclImdb/test/unsup/1_0.txt": b"x",
        "other/train/neg/1_1.txt": b"x",
    }
    members = kit.imdb_members(REVIEWS | strange)
    for place in (kit.tar(tmp_path / imdb.ARCHIVE, members), kit.unpack(tmp_path / "u", members)):
        made = prepared(place, tmp_path / f"data-{place.name}")
        assert rows(made, "train") + rows(made, "val") == in_order("train")
        assert rows(made, "test") == in_order("test")


def test_long_reviews_are_cut_and_counted(tmp_path: Path) -> None:
    kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    made = prepared(tmp_path, tmp_path / "data", length=20)
    cut = {s: made.facts["splits"][s]["truncated"] for s in SPLITS}
    long = [len(text) > 20 for key, text in REVIEWS.items() if "/test/" in key]
    assert cut["test"] == sum(long) > 0
    assert cut["train"] + cut["val"] == sum(
        len(text) > 20 for key, text in REVIEWS.items() if "/train/" in key
    )
    assert made.facts["splits"]["test"]["lengths"]["max"] == 20


# ---------------------------------------------------------------------- what is checked


def test_only_the_published_archive_passes(
    tmp_path: Path, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    content = archive.read_bytes()
    words = ("prepare", "text", "source=files", f"path={tmp_path}")
    monkeypatch.setattr(imdb, "MD5", hashlib.md5(content).hexdigest())
    code, out, _ = lra_data(*words)
    assert code == 0
    assert "the published aclImdb_v1, 27 / 3 / 30 examples" in out
    for changed, complaint in (
        (content[: len(content) // 2], "is not the published file: md5 "),
        (content[:-4] + b"abcd", "is not the published file: md5 "),
    ):
        archive.write_bytes(changed)
        code, _, err = lra_data(*words, "--force")
        assert code == 2
        assert err.startswith(f"error: {archive} {complaint}")


def test_unpacked_reviews_cannot_be_checked(tmp_path: Path, lra_data: Call) -> None:
    kit.unpack(tmp_path, REVIEWS.items())
    code, _, err = lra_data("prepare", "text", "source=files", f"path={tmp_path}")
    assert code == 2
    assert "aclImdb cannot be checked: give path= the archive aclImdb_v1.tar.gz" in err


def test_other_reviews_say_so(tmp_path: Path) -> None:
    kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    summary = prepared(tmp_path, tmp_path / "data").summary()
    assert summary["provenance"] == "files in the format of aclImdb_v1, not checked against it"
    assert summary["options"]["checksum"] == "any"


# ---------------------------------------------------------------------- what is wrong


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"aclImdb/train/pos/4_9.txt": b""}, "the review aclImdb/train/pos/4_9.txt is empty"),
        ({"aclImdb/test/neg/4_3.txt": b" \n "}, "the review aclImdb/test/neg/4_3.txt is empty"),
        ("aclImdb/test/pos/", "holds no reviews in aclImdb/test/pos"),
        ("aclImdb/test/", "holds no reviews in aclImdb/test/neg"),
        ("aclImdb/train/", "holds no reviews in aclImdb/train/neg"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_reviews_that_are_wrong(
    change: dict[str, bytes] | str, complaint: str, packed: bool, tmp_path: Path, lra_data: Call
) -> None:
    if isinstance(change, str):
        changed = {key: text for key, text in REVIEWS.items() if not key.startswith(change)}
    else:
        changed = REVIEWS | change
    place = (
        kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(changed))
        if packed
        else kit.unpack(tmp_path, kit.imdb_members(changed)) / imdb.FOLDER
    )
    code, _, err = lra_data("prepare", "text", "source=files", f"path={place}", "checksum=any")
    assert code == 2
    assert err.startswith(f"error: {place}")
    assert complaint in err
    assert list((tmp_path / "data").rglob("*.npy")) == []


def test_a_review_twice(tmp_path: Path) -> None:
    members = kit.imdb_members(REVIEWS)
    kit.tar(tmp_path / imdb.ARCHIVE, [*members, members[-1]])
    with pytest.raises(UserError, match="holds reviews of aclImdb/test/pos twice"):
        prepared(tmp_path, tmp_path / "data")


@pytest.mark.parametrize("kept", [0, 100, 2000, -1])
def test_half_an_archive(kept: int, tmp_path: Path) -> None:
    archive = kit.tar(tmp_path / imdb.ARCHIVE, kit.imdb_members(REVIEWS))
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"is not complete|is not a tar archive"):
        prepared(archive, tmp_path / "data")


def test_nothing_found(tmp_path: Path, lra_data: Call) -> None:
    words = ("prepare", "text", "source=files")
    code, _, err = lra_data(*words, f"path={tmp_path}")
    assert code == 2
    assert f"{tmp_path} holds neither aclImdb_v1.tar.gz nor the folder aclImdb" in err
    code, _, err = lra_data(*words)
    assert code == 2
    assert "source=files needs path=" in err
    code, _, err = lra_data("prepare", "text", "dev=dev")
    assert code == 2
    assert "dev=dev: Invalid value 'dev', expected one of [train, test]" in err


def test_the_miniature_is_what_it_was(tmp_path: Path) -> None:
    made = prepare(lra.data.configure("text", ["source=tiny"]), max_length=4000, data_dir=tmp_path)
    assert [len(made.split(s)) for s in SPLITS] == [90, 10, 60]
    assert {line.status for line in verify(made.folder)} == {"ok"}
    assert any(max(text) > 127 for text, _ in rows(made, "train"))
