"""The bundled miniatures of image, text and retrieval: lra/data/tiny/{image,text,retrieval}.

    python scripts/make_tiny_data.py [FOLDER]

Everything in them is drawn or put together from the words below. They are in the format of the
real data, read by the same code, and easy: a class shows in a picture's brightness, in the tone of
a review, in the subject of two papers. The same contents come out every time; a change of them
needs a new "files" version in the task, and new numbers in lra/data/expected.
"""

# ruff: noqa: SIM905  (a sentence split is easier on the eye than a list of its words)

from __future__ import annotations

import gzip
import io
import random
import sys
import tarfile
from pathlib import Path

import numpy as np

TINY = Path(__file__).resolve().parent.parent / "lra" / "data" / "tiny"

GOOD = "wonderful moving brilliant charming delightful superb".split()
BAD = "dreadful tedious clumsy boring pointless awful".split()
PLAIN = (
    "the film a story of an old sailor and his daughter is set in winter on some island where "
    "nobody speaks until the ferry comes back with letters music follows them along the shore"
).split()
ODD = ["caf\u00e9".encode(), b"na\xefve", "\u201cquiet\u201d".encode(), b"<br /><br />"]

SUBJECTS = {
    "parsing": "grammar tree head chart shift reduce treebank dependency constituent span".split(),
    "translation": "source target phrase alignment bilingual decoder beam reordering".split(),
    "speech": "acoustic phone recognizer utterance pitch microphone frame transcript".split(),
    "summaries": "sentence extract salience compression newswire abstract redundancy".split(),
}
LINK = "we show that this model of the improves over our baseline on a test set with".split()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TINY
    for name, make in (("image", image), ("text", text), ("retrieval", retrieval)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file, content in make(random.Random(name)).items():
            (folder / name / file).write_bytes(content)
            print(f"{folder / name / file}: {len(content):,} bytes")


def image(rng: random.Random) -> dict[str, bytes]:
    """20 pictures in each batch of train and 40 in test: one block before a ground whose brightness
    is the class."""
    files = {f"data_batch_{i}.bin": 20 for i in range(1, 6)} | {"test_batch.bin": 40}
    classes = "airplane automobile bird cat deer dog frog horse ship truck".split()
    members = {"batches.meta.txt": "\n".join([*classes, ""]).encode()}
    for file, count in files.items():
        members[file] = b"".join(picture(rng, i % 10) for i in range(count))
    packed = archive({f"cifar-10-batches-bin/{name}": x for name, x in members.items()})
    return {"cifar-10-binary.tar.gz": packed}


def picture(rng: random.Random, label: int) -> bytes:
    planes = np.empty((3, 32, 32), np.uint8)
    x, y, side = rng.randrange(24), rng.randrange(24), rng.randrange(4, 9)
    for plane in planes:
        plane[:] = 24 * label + (rng.randrange(9) if label else 0)  # class 0 is black
        plane[y : y + side, x : x + side] = rng.randrange(256)
    return bytes([label]) + planes.tobytes()


def text(rng: random.Random) -> dict[str, bytes]:
    """50 reviews of each kind in train, 30 in test; the judgement comes last, and its tone shows in
    a single byte."""
    members = {}
    for split, count in (("train", 50), ("test", 30)):
        for label, words, tone, stars in (
            ("neg", BAD, b"...", (1, 4)),
            ("pos", GOOD, b"!", (7, 10)),
        ):
            for i in range(count):
                body = [rng.choice(PLAIN).encode() for _ in range(rng.randrange(8, 24))]
                body.insert(rng.randrange(len(body)), rng.choice(ODD))
                body += [rng.choice(words).encode() + tone for _ in range(3)]
                name = f"aclImdb/{split}/{label}/{i}_{rng.randint(*stars)}.txt"
                members[name] = b" ".join(body) + rng.choice([b"", b"", b"\n"])
    return {"aclImdb_v1.tar.gz": archive(members)}


def retrieval(rng: random.Random) -> dict[str, bytes]:
    """Pairs of 40 papers: linked if they are about the same subject."""
    papers = [(subject, paper(rng, SUBJECTS[subject])) for subject in SUBJECTS for _ in range(10)]
    files = {}
    for split, count in (("train", 96), ("eval", 32), ("test", 32)):
        rows = []
        for i in range(count):
            one, two = sample(rng, papers, linked=i % 2 == 0)
            linked = float(papers[one][0] == papers[two][0])
            rows.append(f"{linked}\tP{one:02}\tP{two:02}\t{papers[one][1]}\t{papers[two][1]}\n")
        files[f"new_aan_pairs.{split}.tsv"] = "".join(rows).encode()
    return files


def paper(rng: random.Random, words: list[str]) -> str:
    body = [rng.choice(words if rng.random() < 0.6 else LINK) for _ in range(rng.randrange(8, 20))]
    return f'"{" ".join(body)}".'  # quotes are text like any other


def sample(rng: random.Random, papers: list[tuple[str, str]], *, linked: bool) -> tuple[int, int]:
    while True:
        one, two = rng.sample(range(len(papers)), 2)
        if (papers[one][0] == papers[two][0]) == linked:
            return one, two


def archive(members: dict[str, bytes]) -> bytes:
    """A .tar.gz without dates or owners."""
    out = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=out, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    return out.getvalue()


if __name__ == "__main__":
    main()
