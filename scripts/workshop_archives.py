"""Turn compact copies of CIFAR-10 and IMDB into the layouts their authors publish, so that
source=files runs on them.

    python scripts/workshop_archives.py image COPY OUT [--lossless]    -> OUT/cifar-10-binary.tar.gz
    python scripts/workshop_archives.py text COPY OUT [--unpacked]     -> OUT/aclImdb_v1.tar.gz

image: COPY holds {data_batch_1..5,test_batch}.jpg.tar.xz with members NNNN_<label>.jpg in original
order, and for --lossless strips lossless_<batch>_<first>-<last>.webp that replace what they cover.
The archive says in its first file that it is a JPEG-compressed copy; every record made from it
repeats that.

text: COPY holds {train,test,unsup}.jsonl.xz with lines {"id": "train/neg/0_3", "text": ...}. The
texts are exact, so the unpacked form passes for the published one; an archive's md5 never does.

Neither archive is the published file: use them with checksum=any.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from lra.data.sources.cifar import BINARY, NOTE
from lra.data.sources.imdb import ARCHIVE, FOLDER

SIDE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("task", choices=["image", "text"])
    parser.add_argument("copy", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--lossless", action="store_true", help="image: where there are strips")
    parser.add_argument("--unpacked", action="store_true", help="text: a folder, no archive")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.task == "image":
        members = image(arguments.copy, lossless=arguments.lossless)
        made = pack(arguments.out / BINARY.archive, members)
    elif arguments.unpacked:
        made = unpack(arguments.out, text(arguments.copy, ["train", "test"]))
    else:
        made = pack(arguments.out / ARCHIVE, text(arguments.copy, ["train", "test", "unsup"]))
    print(made)


def image(copy: Path, *, lossless: bool) -> list[tuple[str, bytes]]:
    """The note first, then the batches."""
    files, replaced = {}, 0
    for name in BINARY.files:
        batch = Path(name).stem
        pixels, labels = jpegs(copy / f"{batch}.jpg.tar.xz")
        for strip in sorted(copy.glob(f"lossless_{batch}_*.webp")) if lossless else []:
            first, last = map(int, strip.stem.rpartition("_")[2].split("-"))
            exact = np.asarray(Image.open(strip).convert("RGB")).reshape(-1, SIDE, SIDE, 3)
            pixels[first : last + 1] = exact
            replaced += len(exact)
        planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
        files[name] = np.concatenate([labels[:, None], planes], axis=1).tobytes()
    note = "JPEG-compressed copy of CIFAR-10 (quality 75)"
    if replaced:
        note += f", {replaced:,} of its images lossless"
    meta = "airplane automobile bird cat deer dog frog horse ship truck".replace(" ", "\n") + "\n"
    members = {NOTE: note.encode() + b"\n", "batches.meta.txt": meta.encode(), **files}
    return [(f"{BINARY.folder}/{name}", content) for name, content in members.items()]


def jpegs(file: Path) -> tuple[np.ndarray, np.ndarray]:
    """(N, 32, 32, 3) pixels and (N,) labels of one batch."""
    pixels, labels = [], []
    with tarfile.open(file) as tar:
        for member in tar:
            content = tar.extractfile(member)
            assert content is not None, member.name
            pixels.append(np.asarray(Image.open(content)))
            labels.append(int(Path(member.name).stem.rpartition("_")[2]))
    return np.stack(pixels), np.array(labels, np.uint8)


def text(copy: Path, names: list[str]) -> Iterator[tuple[str, bytes]]:
    for name in names:
        with lzma.open(copy / f"{name}.jsonl.xz", "rt", encoding="utf-8", newline="\n") as lines:
            for line in lines:
                review = json.loads(line)
                yield f"{FOLDER}/{review['id']}.txt", review["text"].encode()


def pack(archive: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for name, content in members:
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return archive


def unpack(folder: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    for name, content in members:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder / FOLDER


if __name__ == "__main__":
    main()
