"""The task: the official folders with their traps, the two orders, and the way from images to
arrays and back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lra.data
from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Prepared
from lra.data.pathfinder import files as tree
from lra.data.pathfinder.generator import generate
from lra.data.pathfinder.sizes import Difficulty, settings
from lra.data.prepare import prepare
from lra.data.task import TINY

TASKS = {"pathfinder": 32, "pathfinder64": 64, "pathx": 128, "pathfinder256": 256}
HARD = "pathfinder32/curv_contour_length_14"

Call = Callable[..., tuple[int, str, str]]


def picture(number: int) -> np.ndarray:
    """Its number can be read off pixels (0, 1) and (0, 2)."""
    pixels = np.zeros((32, 32), np.uint8)
    pixels[0, 1:4] = number // 256, number % 256, 255
    return pixels


def official(folder: Path, batches: dict[str, int], difficulty: str = HARD) -> Path:
    """A tree of numbered pictures whose labels are the parity of (number // 3)."""
    root, number = folder / difficulty, 0
    (root / "metadata").mkdir(parents=True)
    for batch, size in batches.items():
        (root / f"imgs/{batch}").mkdir(parents=True)
        lines = []
        for i in range(size):
            Image.fromarray(picture(number)).save(root / f"imgs/{batch}/sample_{i}.png")
            label = number // 3 % 2
            lines.append(f"imgs/{batch} sample_{i}.png {i} {label} 1.0 14 4 2 0.5 1 1\n")
            number += 1
        (root / f"metadata/{batch}.npy").write_text("".join(lines), encoding="utf-8")
    return folder


def load(folder: Path, tmp_path: Path, *settings: str) -> Prepared:
    words = ["source=release", f"path={folder}", *settings]
    options = lra.data.configure("pathfinder", words)
    return prepare(options, max_length=1024, data_dir=tmp_path / "data", workers=1)


def numbers(prepared: Prepared, split: str) -> list[int]:
    part = prepared.split(split)
    ids = part.ids(np.arange(len(part))).astype(int)
    found = (ids[:, 1] * 256 + ids[:, 2]).tolist()
    assert part.labels.tolist() == [number // 3 % 2 for number in found]
    return found


def differing(verified: str) -> list[str]:
    """What `lra data verify` finds wrong, but for the size: the release has 200,000 images."""
    lines = [line.strip() for line in verified.splitlines()]
    return [line for line in lines if line.startswith("differs") and "committed" not in line]


# ---------------------------------------------------------------------- splits


def test_membership_follows_from_the_metadata_by_md5(tmp_path: Path) -> None:
    """Batches of 7 and 20; bounds at round(21.6) = 22 and round(24.3) = 24 of 27. The difficulty is
    the salt, and names the folder."""
    folder = official(tmp_path / "tree", {"0": 7, "11": 20}, "pathfinder32/curv_contour_length_9")
    prepared = load(folder, tmp_path, "difficulty=intermediate")
    with pytest.raises(UserError, match="holds no folder pathfinder32/curv_contour_length_14"):
        load(folder, tmp_path)
    keys = [f"imgs/{b}_sample_{i}.png_{i + 1}" for b, n in (("0", 7), ("11", 20)) for i in range(n)]
    digest = [int(hashlib.md5(f"intermediate{key}".encode()).hexdigest(), 16) for key in keys]
    order = sorted(range(27), key=digest.__getitem__)
    assert [numbers(prepared, s) for s in SPLITS] == [order[:22], order[22:24], order[24:]]


def test_the_s4_split_is_pytorchs(tmp_path: Path) -> None:
    """Files by number, 2 before 10; the sizes rounded down for val and test."""
    prepared = load(official(tmp_path / "tree", {"10": 30, "2": 27}), tmp_path, "order=s4")
    listed = [*range(30, 57), *range(30)]  # batch 2 was written second
    generator = torch.Generator().manual_seed(42)
    expected = torch.utils.data.random_split(listed, [47, 5, 5], generator=generator)
    assert [numbers(prepared, s) for s in SPLITS] == [list(part) for part in expected]


# ---------------------------------------------------------------------- empty files


@pytest.mark.parametrize("order", ["official", "s4"])
def test_an_empty_image_is_skipped_and_counted(order: str, tmp_path: Path, lra_data: Call) -> None:
    folder = official(tmp_path / "tree", {"0": 40})
    whole = load(folder, tmp_path, f"order={order}")
    gone = numbers(whole, "val")[1]
    (folder / HARD / f"imgs/0/sample_{gone}.png").write_bytes(b"")
    words = ("pathfinder", "source=release", f"path={folder}", f"order={order}")
    code, out, _ = lra_data("prepare", *words, "--force")
    assert code == 0
    prepared = load(folder, tmp_path, f"order={order}")
    found = {s: numbers(prepared, s) for s in SPLITS}
    if order == "official":  # after slicing: nothing else moves
        assert "val: empty image files skipped: 1" in out
        assert found == {s: [i for i in numbers(whole, s) if i != gone] for s in SPLITS}
        assert len(found["val"]) == 3
    else:  # before the split: 39 are split anew
        assert "empty image files skipped before the split: 1" in out
        shuffled = torch.randperm(39, generator=torch.Generator().manual_seed(42))
        left = np.array([i for i in range(40) if i != gone])[shuffled].tolist()
        assert found == {"train": left[:33], "val": left[33:36], "test": left[36:]}
    assert differing(lra_data("verify", *words)[1]) == []


# ---------------------------------------------------------------------- folders


@pytest.mark.parametrize("below", [".", "lra_release", "lra_release/lra_release"])
@pytest.mark.parametrize("given", ["", "pathfinder32", HARD])
def test_a_tree_is_found_from_every_folder_above_it(below: str, given: str, tmp_path: Path) -> None:
    folder = official(tmp_path / "tree" / below, {"0": 10})
    path = folder / given if given else tmp_path / "tree"
    assert tree.find_images(path, 32, Difficulty.hard).resolve() == (folder / HARD).resolve()


def test_a_folder_of_another_difficulty_is_refused(tmp_path: Path) -> None:
    folder = official(tmp_path, {"0": 10}, "pathfinder32/curv_baseline")
    with pytest.raises(UserError, match="is not hard, whose folder is called curv_contour_len"):
        load(folder / "pathfinder32/curv_baseline", tmp_path)


# ---------------------------------------------------------------------- what is wrong


def rewrite(root: Path, content: bytes) -> None:
    (root / "metadata/0.npy").write_bytes(content)


def replace(root: Path, pixels: np.ndarray, mode: str | None = None, kind: str = "PNG") -> None:
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(root / "imgs/0/sample_3.png", format=kind)


def damage(root: Path, at: int) -> None:
    file = root / "imgs/0/sample_3.png"
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)


def cut(root: Path, end: int) -> None:
    file = root / "imgs/0/sample_3.png"
    file.write_bytes(file.read_bytes()[:end])


GOOD = b"imgs/0 sample_0.png 0 1 1.0 14 4 2 0.5 1 1\n"
META, IMAGE = "metadata/0.npy", "imgs/0/sample_3.png"


@pytest.mark.parametrize(
    ("spoil", "file", "complaint"),
    [
        (lambda r: rewrite(r, GOOD + b"imgs/0 sample_1.png 1\n"), META, ", line 2: 4 fields exp"),
        (lambda r: rewrite(r, GOOD + b"\n" + GOOD), META, ", line 2: 4 fields expected at least"),
        (
            lambda r: rewrite(r, GOOD.replace(b" 1 1.0", b" 2 1.0")),
            META,
            "label, 0 or 1, found '2'",
        ),
        (lambda r: rewrite(r, GOOD.replace(b"imgs/0", b"../../x")), META, "leaves the folder"),
        (lambda r: rewrite(r, GOOD.replace(b"imgs/0", b"/etc")), META, "leaves the folder"),
        (lambda r: rewrite(r, b"\x93NUMPY\x01\x00"), META, ": not text (invalid start byte"),
        (lambda r: (r / META).unlink(), "metadata", " has to hold files named 0.npy"),
        (
            lambda r: (r / META).rename(r / "metadata/a.npy"),
            "metadata",
            " has to hold files named 0.npy",
        ),
        (lambda r: (r / IMAGE).unlink(), IMAGE, " cannot be read: No such file"),
        (lambda r: cut(r, -1), IMAGE, " is not a readable PNG"),
        (lambda r: damage(r, 45), IMAGE, " is not a readable PNG"),
        (lambda r: replace(r, picture(3), kind="BMP"), IMAGE, " is not a readable PNG"),
        (
            lambda r: replace(r, picture(3)[:31]),
            IMAGE,
            ": 32 x 32 L (8-bit grey) expected, 31 x 32",
        ),
        (lambda r: replace(r, picture(3), "RGB"), IMAGE, "expected, 32 x 32 RGB found"),
        (lambda r: replace(r, picture(3), "1"), IMAGE, "expected, 32 x 32 1 found"),
    ],
)
def test_trees_that_are_wrong(
    spoil: Callable[[Path], None], file: str, complaint: str, tmp_path: Path, lra_data: Call
) -> None:
    folder = official(tmp_path / "tree", {"0": 10})
    spoil(folder / HARD)
    code, out, err = lra_data("prepare", "pathfinder", "source=release", f"path={folder}")
    assert code == 2
    assert err.startswith(f"error: {folder / HARD / file}")
    assert complaint in err
    assert "is prepared" not in out
    assert [p.suffix for p in (tmp_path / "data").rglob("*") if p.is_file()] == [".lock"]


# ---------------------------------------------------------------------- the four tasks


@pytest.mark.parametrize(("name", "side"), TASKS.items())
def test_the_bundled_miniature(name: str, side: int, tmp_path: Path, lra_data: Call) -> None:
    """Real files of our own generator, and what is known of them."""
    assert lra_data("prepare", name, "source=tiny")[0] == 0
    code, out, _ = lra_data("verify", name, "source=tiny")
    assert code == 0
    assert f"statistics committed for {name} from source=tiny, splits" in out
    root = TINY / f"pathfinder{side}" / "curv_contour_length_14"
    rows = tree.read_metadata(root)
    for row, (pixels, label) in zip(rows, generate(range(4), settings(side), seed=0), strict=False):
        assert (tree.read_image(root / row.folder / row.file, side) == pixels).all()
        assert row.label == label
    task = lra.data.get(name)
    assert task.grid == (side, side)
    assert task.max_length == side * side


def test_damage_of_any_byte_of_a_png_is_found(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    Image.fromarray(picture(1)).save(file)
    data = file.read_bytes()
    assert tree.read_image(file, 32).size == 32 * 32
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x10
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"is not a readable PNG|expected, .* found"):
            tree.read_image(file, 32)
