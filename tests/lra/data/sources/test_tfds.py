"""The real builders of TensorFlow Datasets, offline and without TensorFlow, on archives made
here."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.base.config import UserError
from lra.data.arrays import Prepared
from lra.data.prepare import find_or_prepare, prepare
from lra.data.sources import cifar, fetch, imdb, tfds
from lra.data.verify import verify
from lra.settings.compose import compose, guard
from lra.training.run import train
from tests.lra.conftest import REPOSITORY

from .. import kit

Call = Callable[..., tuple[int, str, str]]

DATASETS = {
    "image": importlib.import_module("lra.data.image").DATASET,
    "text": importlib.import_module("lra.data.text").DATASET,
}


def archive(task: str, path: Path) -> Path:
    """What the builder of the task reads, with members in another order than its keys'."""
    if task == "image":
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

    def make(task: str) -> Path:
        data_dir = tmp_path / "data"
        path = archive(task, DATASETS[task].download(data_dir))
        kit.registered(monkeypatch, DATASETS[task], path, data_dir)
        return path

    return make


def prepared(task: str, data_dir: Path, *settings: str) -> Prepared:
    options = lra.data.configure(task, list(settings))
    return prepare(options, max_length=1024, data_dir=data_dir)


def arrays(made: Prepared) -> dict[str, Any]:
    return made.facts["arrays"] | made.facts["splits"]


# ---------------------------------------------------------------------- the real builders


@pytest.mark.parametrize("task", DATASETS)
def test_both_sources_give_identical_arrays(
    task: str, tmp_path: Path, ready: Callable[[str], Path]
) -> None:
    path = ready(task)
    made = prepared(task, tmp_path / "data")
    files = prepared(
        task, tmp_path / "files", "source=files", f"path={path.parent}", "checksum=any"
    )
    assert arrays(made) == arrays(files)
    assert made.facts["provenance"] == f"TensorFlow Datasets, {DATASETS[task]}"
    assert "tensorflow" not in sys.modules
    # what was read is known by its name and hash
    found = [line for line in verify(made.folder) if "array_record" in line.text]
    assert [line.status for line in found] == ["ok", "ok"]


def test_data_beyond_a_gigabyte(
    tmp_path: Path, ready: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library then sorts through files."""
    path = ready("text")
    monkeypatch.setattr("tensorflow_datasets.core.shuffle.MAX_MEM_BUFFER_SIZE", 1000)
    made = prepared("text", tmp_path / "data")
    words = ("source=files", f"path={path.parent}", "checksum=any")
    assert arrays(made) == arrays(prepared("text", tmp_path / "files", *words))


def test_it_is_prepared_once(
    tmp_path: Path, ready: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archive may go; another length reads what the library has prepared."""
    ready("text").unlink()
    ready("text")
    prepared("text", tmp_path / "data")
    DATASETS["text"].download(tmp_path / "data").unlink()
    monkeypatch.setattr(tfds, "fetch", lambda *a, **k: pytest.fail("fetched again"))
    options = lra.data.configure("text")
    made = find_or_prepare(options, max_length=10, data_dir=tmp_path / "data")
    assert made.facts["width"] == 10
    left = sorted(p.name for p in (tmp_path / "data" / "tfds").iterdir())
    assert left == ["downloads", "imdb_reviews"]
    assert list((tmp_path / "data" / "tfds" / "downloads").glob("[!.]*")) == []


@pytest.mark.parametrize("task", DATASETS)
def test_what_lies_there_needs_no_download(
    task: str, tmp_path: Path, ready: Callable[[str], Path]
) -> None:
    options = lra.data.configure(task)
    needs = lra.data.get(task).needs_download
    assert needs(options, tmp_path / "data")
    ready(task)
    assert not needs(options, tmp_path / "data")
    assert not needs(lra.data.configure(task, ["source=tiny"]), tmp_path / "elsewhere")
    find_or_prepare(options, max_length=1024, data_dir=tmp_path / "data")


def test_a_damaged_archive_is_refused(tmp_path: Path, ready: Callable[[str], Path]) -> None:
    path = ready("image")
    content = path.read_bytes()
    for changed, complaint in (
        (content[: len(content) // 2], f"{len(content):,} bytes expected"),
        (content[:-1] + b"x", "sha256 "),
    ):
        path.write_bytes(changed)
        with pytest.raises(UserError) as error:
            prepared("image", tmp_path / "data")
        assert str(error.value).startswith(f"{path} is not the published file: {complaint}")
    assert not DATASETS["image"].folder(tmp_path / "data").exists()


@pytest.mark.parametrize("task", DATASETS)
def test_damaged_records_are_found(task: str, tmp_path: Path, ready: Callable[[str], Path]) -> None:
    ready(task)
    made = prepared(task, tmp_path / "data")
    file = tfds.prepare(DATASETS[task], tmp_path / "data")[0]  # of train
    content = np.fromfile(file, np.uint8)
    written = np.flatnonzero(content)  # records come in blocks that are filled up with zeros
    content[written[len(written) // 2 :][:200]] ^= 0xFF
    content.tofile(file)
    wrong = [line.text for line in verify(made.folder) if line.status == "differs"]
    assert f"{file}: sha256 " in "".join(wrong)
    with pytest.raises(UserError, match=f"{DATASETS[task].folder(tmp_path / 'data')} is damaged"):
        prepare(lra.data.configure(task), max_length=1024, data_dir=tmp_path / "data", force=True)


# ---------------------------------------------------------------------- the version


def test_the_pinned_version_is_the_one_this_was_written_for() -> None:
    assert importlib.metadata.version("tensorflow-datasets") == tfds.PINNED
    assert f"tensorflow-datasets=={tfds.PINNED}\n" in (REPOSITORY / "constraints.txt").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("core.download.extractor", "tf"),
        ("image_classification.cifar", "tf"),
        ("core.features.image_feature", "_ImageEncoder"),
    ],
)
def test_another_version_is_refused_by_name(
    module: str, name: str, tmp_path: Path, ready: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    ready("image")
    library = importlib.import_module("tensorflow_datasets")
    monkeypatch.setattr(library, "__version__", "4.99.0")
    monkeypatch.delattr(importlib.import_module(f"tensorflow_datasets.{module}"), name)
    with pytest.raises(UserError) as error:
        prepared("image", tmp_path / "data")
    assert "tensorflow-datasets 4.99.0 does not prepare cifar10:3.0.2 without" in str(error.value)
    assert f"pip install tensorflow-datasets=={tfds.PINNED}" in str(error.value)
    assert not DATASETS["image"].folder(tmp_path / "data").exists()


def test_a_version_that_looks_for_tensorflow_elsewhere_is_refused_by_name(
    tmp_path: Path, ready: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ready("image")
    monkeypatch.setattr(tfds, "STANDARD", SimpleNamespace())
    with pytest.raises(UserError, match=r"does not prepare cifar10:3\.0\.2 without TensorFlow"):
        prepared("image", tmp_path / "data")


def test_what_stands_for_tensorflow_goes_again(
    tmp_path: Path, ready: Callable[[str], Path]
) -> None:
    ready("image")
    prepared("image", tmp_path / "data")
    imports = importlib.import_module("tensorflow_datasets.core.utils.lazy_imports_utils")
    assert "_module" not in vars(imports.tensorflow)


# ---------------------------------------------------------------------- no network


@pytest.mark.parametrize(
    ("task", "host"), [("image", "www.cs.toronto.edu"), ("text", "ai.stanford.edu")]
)
def test_no_network_is_reported_at_once(
    task: str, host: str, tmp_path: Path, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: urllib.request.Request, timeout: float) -> None:
        assert timeout == fetch.ANSWER
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    start = time.monotonic()
    code, out, err = lra_data("prepare", task)
    assert time.monotonic() - start < 30
    assert code == 2
    assert out == ""
    assert re.fullmatch(
        rf"error: {host} cannot be reached \(Name or service not known\); fetch http\S+ elsewhere "
        rf"and put it into {tmp_path / 'data' / 'tfds' / 'downloads'}, or use source=files\n",
        err,
    )


def test_training_does_not_download(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["task=image", f"data_dir={tmp_path}", "trainer=cpu", "compute=off"]
    assert guard(lambda: train(compose(words))) == 2
    assert capsys.readouterr().err == (
        f"error: image is not prepared in {tmp_path} and has to be downloaded: "
        f"run `lra data prepare image --data-dir {tmp_path}`\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("task", "name", "size"),
    [
        ("image", cifar.BINARY.archive, 170_052_171),
        ("text", imdb.ARCHIVE, 84_125_825),
    ],
)
def test_both_sources_mean_the_same_archive(
    task: str, name: str, size: int, tmp_path: Path
) -> None:
    (info,) = tfds._builder(DATASETS[task], tmp_path).url_infos.values()
    assert (info.filename, info.size) == (name, size)
    assert DATASETS[task].archive == name
