"""The archives, splits and order of TensorFlow Datasets, held to the library's own builders,
offline and without TensorFlow."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lra.data
from lra.base.errors import UserError
from lra.data.arrays import SPLITS, Prepared
from lra.data.image import grey
from lra.data.prepare import find_or_prepare, prepare
from lra.data.sources.tfds import ANSWER, Dataset, PublishedTask, Registered, order, percent
from lra.data.store import sha256

from .. import kit

TASKS = ("image", "text")
Call = Callable[..., tuple[int, str, str]]


def task(name: str) -> PublishedTask:
    return lra.data.get(name)  # type: ignore[return-value]


def archive(name: str, path: Path) -> Path:
    """What the builder of the task reads, with members in another order than its keys'."""
    if name == "image":
        files = {f"data_batch_{i}": 40 for i in range(1, 6)} | {"test_batch": 30}
        return kit.tar(path, kit.binary_members(kit.pictures(files)))
    reviews = kit.reviews(40) | {
        "aclImdb/train/pos/40_9.txt": b"  caf\xe9 \xff <br />\n",
        "aclImdb/train/pos/41_9.txt": b"twice",
        "aclImdb/test/neg/41_3.txt": b"twice",
    }
    return kit.tar(path, kit.imdb_members(reviews))


@pytest.fixture
def ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """The task's archive, downloaded already and held for the published one."""

    def make(name: str) -> Path:
        path = archive(name, task(name)._download(tmp_path / "data"))
        held = Registered("http://nowhere", path.stat().st_size, sha256(path))
        monkeypatch.setattr(Dataset, "registered", lambda self: held)
        return path

    return make


def prepared(name: str, data_dir: Path, *settings: str) -> Prepared:
    options = lra.data.configure(name, list(settings))
    return prepare(options, max_length=1024, data_dir=data_dir)


# ---------------------------------------------------------------------- the real builders


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library, with what its builders need of TensorFlow: open files and one PNG encoder."""

    def encode(pixels: np.ndarray) -> SimpleNamespace:
        out = io.BytesIO()
        Image.fromarray(pixels).save(out, "PNG")
        return SimpleNamespace(numpy=out.getvalue)

    files = SimpleNamespace(GFile=open, exists=os.path.exists, remove=os.remove)
    standard = SimpleNamespace(
        io=SimpleNamespace(gfile=files),
        errors=SimpleNamespace(ResourceExhaustedError=MemoryError),
        compat=SimpleNamespace(as_text=os.fsdecode),
        executing_eagerly=lambda: True,
        image=SimpleNamespace(encode_png=encode),
    )
    lazy = importlib.import_module("tensorflow_datasets.core.utils.lazy_imports_utils")
    monkeypatch.setitem(vars(lazy.tensorflow), "_module", standard)
    return importlib.import_module("tensorflow_datasets")


def registered(library: Any, data: Dataset, data_dir: Path) -> tuple[str, Any]:
    ((url, info),) = library.builder(data.name, data_dir=data_dir).url_infos.items()
    return url, info


@pytest.mark.parametrize("name", TASKS)
def test_the_archive_is_the_one_that_the_library_registers(
    name: str, library: Any, tmp_path: Path
) -> None:
    data = task(name).dataset
    url, info = registered(library, data, tmp_path)
    assert data.registered() == (url, info.size, info.checksum)
    assert info.filename == data.archive


@pytest.mark.parametrize("name", TASKS)
def test_arrays_are_those_of_the_library_s_builder(
    name: str, library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = archive(name, tmp_path / task(name).dataset.archive), task(name).dataset
    checksums = importlib.import_module("tensorflow_datasets.core.download.checksums")
    url, _ = registered(library, data, tmp_path)
    info = checksums.UrlInfo(path.stat().st_size, sha256(path), data.archive)
    monkeypatch.setattr(checksums, "get_all_url_infos", lambda: {url: info})
    builder = library.builder(data.name, data_dir=tmp_path / "tfds", file_format="array_record")
    monkeypatch.setattr(type(builder), "url_infos", {url: info})
    config = library.download.DownloadConfig(
        manual_dir=tmp_path, extract_dir=tmp_path / "x", try_download_gcs=False
    )
    builder.download_and_prepare(
        download_dir=tmp_path / "x", download_config=config, file_format="array_record"
    )
    made = prepared(name, tmp_path / "data", "source=files", f"path={path}", "checksum=any")
    cut = {"train": "train[:90%]", "val": "train[90%:]", "test": "test"}
    for split in SPLITS:
        theirs, ours = builder.as_data_source(split=cut[split]), made.split(split)
        assert len(theirs) == len(ours) > 5
        index = np.arange(len(ours))
        rows = zip(theirs, ours.ids(index), ours.lengths(index), ours.labels, strict=True)
        for record, ids, length, label in rows:
            assert record["label"] == label
            if name == "text":
                assert (ids[:length] - 1).astype(np.uint8).tobytes() == record["text"]
            else:
                assert (grey(record["image"].reshape(1, -1, 3).swapaxes(1, 2))[0] == ids).all()


def test_the_order_of_cifar_10_is_that_of_the_real_data() -> None:
    stored = order("train", range(50_000))
    assert stored[:5].tolist() == [16399, 1680, 47917, 17307, 27051]
    validation = stored[percent(len(stored), 90, 100)]
    assert len(validation) == 5000
    assert validation[:5].tolist() == [13431, 9237, 17462, 32685, 9518]
    assert order("test", range(10_000))[:5].tolist() == [9933, 5669, 163, 6686, 4747]
    keys = [f"aclImdb/train/neg/{i}_3.txt" for i in range(300)]
    by_integer = sorted(
        range(300), key=lambda i: int(hashlib.md5(b"train" + keys[i].encode()).hexdigest(), 16)
    )
    assert order("train", keys).tolist() == by_integer


# ---------------------------------------------------------------------- archives and the network


@pytest.mark.parametrize("name", TASKS)
def test_an_archive_that_lies_there_is_not_downloaded(
    name: str, tmp_path: Path, ready: Callable[[str], Path]
) -> None:
    options = lra.data.configure(name)
    assert task(name).needs_download(options, tmp_path / "data")
    path = ready(name)
    assert not task(name).needs_download(options, tmp_path / "data")
    made = find_or_prepare(options, max_length=1024, data_dir=tmp_path / "data")
    assert made.facts["provenance"] == f"TensorFlow Datasets, {task(name).dataset.name}"
    assert [item["path"] for item in made.manifest["made"]["inputs"]] == [str(path)]
    # the user's own copy passes by the same SHA-256, and only with it
    words = ("source=files", f"path={path.parent}")
    files = prepared(name, tmp_path / "files", *words)
    assert files.facts["arrays"] == made.facts["arrays"]
    content = path.read_bytes()
    for changed in (content[: len(content) // 2], content[:-4] + b"abcd"):
        path.write_bytes(changed)
        with pytest.raises(UserError, match="is not the published file: sha256"):
            prepared(name, tmp_path / "more", *words)
        with pytest.raises(UserError, match="is not the published file"):
            prepare(options, max_length=9, data_dir=tmp_path / "data", force=True)


@pytest.mark.parametrize("name", TASKS)
def test_no_network_is_reported_at_once(
    name: str, tmp_path: Path, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: urllib.request.Request, timeout: float) -> None:
        assert timeout == ANSWER
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    code, _, err = lra_data("prepare", name)
    assert code == 2
    assert "cannot be reached (Name or service not known); fetch http" in err
    assert f"put it into {tmp_path / 'data' / 'tfds' / 'downloads'}, or use source=files" in err
