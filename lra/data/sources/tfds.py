"""Data sets of TensorFlow Datasets, without TensorFlow.

Reading prepared array_record files does not need it. The library's builders do, for open files and
one PNG encoder: STANDARD holds these, and stands where the library looks for TensorFlow while a
builder runs. That place is private, so it holds for the version that constraints.txt pins; another
one that differs is refused by name. What a builder reads is downloaded by `fetch` and checked
against the library's sizes and SHA-256.

Everything lies below <data_dir>/tfds; an archive fetched elsewhere goes to its folder downloads.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from PIL import Image

from lra.base.config import UserError
from lra.base.disk import disk_errors
from lra.data.sources.fetch import fetch
from lra.data.store import lock

PINNED = "4.9.10"
HOME = "tfds"  # in the folder of the data
AT_ONCE = 1000  # records read at a time: three times as fast as one by one


class Dataset(NamedTuple):
    name: str
    version: str
    archive: str  # the file it is made from
    config: str | None = None

    def __str__(self) -> str:
        return f"{self.name}{f'/{self.config}' if self.config else ''}:{self.version}"

    def folder(self, data_dir: Path) -> Path:
        return data_dir / HOME / self.name / (self.config or "") / self.version

    def download(self, data_dir: Path) -> Path:
        return data_dir / HOME / "downloads" / self.archive


def is_there(dataset: Dataset, data_dir: Path) -> bool:
    return dataset.folder(data_dir).exists() or dataset.download(data_dir).exists()


def read_records(dataset: Dataset, split: str, data_dir: Path) -> Iterator[list[dict[str, Any]]]:
    """Read a prepared split in stored order, the official one, many examples at a time."""
    with _version_in_errors(dataset):
        records = _builder(dataset, data_dir).as_data_source(split=split)
    try:
        for start in range(0, len(records), AT_ONCE):
            end = min(start + AT_ONCE, len(records))
            yield records.__getitems__(list(range(start, end)))
    except (OSError, ValueError, RuntimeError, IndexError, SyntaxError) as error:  # Pillow's too
        raise UserError(
            f"{dataset.folder(data_dir)} is damaged ({error}): remove it and prepare again"
        ) from error


def prepare(dataset: Dataset, data_dir: Path) -> list[Path]:
    """Download and prepare it unless that is done; give the files of train and test."""
    folder = dataset.folder(data_dir)
    with lock(folder, f"another process is preparing {folder}; waiting for it"):
        if not folder.exists():
            _make(dataset, data_dir)
    return [
        file
        for split in ("train", "test")
        for file in sorted(folder.glob(f"{dataset.name}-{split}.array_record*"))
    ]


def _make(dataset: Dataset, data_dir: Path) -> None:
    folder, target = dataset.folder(data_dir), dataset.download(data_dir)
    with _version_in_errors(dataset):
        builder = _builder(dataset, data_dir)
        ((url, info),) = builder.url_infos.items()
    other = f"fetch {url} elsewhere and put it into {target.parent}, or use source=files"
    fetch(url, target, instead=other, size=int(info.size), digest=info.checksum)
    print(f"TensorFlow Datasets {_library().__version__} prepares {dataset} from {target}")
    imports = importlib.import_module("tensorflow_datasets.core.utils.lazy_imports_utils")
    with (
        disk_errors(folder.parent),
        tempfile.TemporaryDirectory(dir=target.parent) as space,
        _version_in_errors(dataset),
        mock.patch.dict(vars(imports.tensorflow), _module=STANDARD),
        contextlib.redirect_stdout(io.StringIO()),  # it prints a download of unknown size
    ):
        config = _library().download.DownloadConfig(
            manual_dir=target.parent, extract_dir=space, try_download_gcs=False
        )
        builder.download_and_prepare(
            download_dir=space, download_config=config, file_format="array_record"
        )


def _library() -> Any:
    library = importlib.import_module("tensorflow_datasets")
    library.disable_progress_bar()
    logging.getLogger("absl").setLevel(logging.ERROR)  # it advertises OpenCV
    return library


def _builder(dataset: Dataset, data_dir: Path) -> Any:
    return _library().builder(str(dataset), data_dir=data_dir / HOME, file_format="array_record")


@contextlib.contextmanager
def _version_in_errors(dataset: Dataset) -> Iterator[None]:
    """Name the version when the library fails: another one is the most likely cause."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        if isinstance(error.__cause__, OSError):  # a full disk, wrapped
            raise error.__cause__ from error
        raise UserError(
            f"tensorflow-datasets {_library().__version__} does not prepare {dataset} without "
            f"TensorFlow ({type(error).__name__}: {error}), {PINNED} does: "
            f"pip install tensorflow-datasets=={PINNED}, or use source=files"
        ) from error


class _Full(Exception):
    """Stands for tf.errors.ResourceExhaustedError, which the standard library does not raise."""


def _png(pixels: np.ndarray) -> SimpleNamespace:
    """Encode a picture; the library asks the result, a tensor to it, for its `numpy()`."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return SimpleNamespace(numpy=out.getvalue)


STANDARD = SimpleNamespace(
    io=SimpleNamespace(gfile=SimpleNamespace(GFile=open, exists=os.path.exists, remove=os.remove)),
    errors=SimpleNamespace(ResourceExhaustedError=_Full),
    compat=SimpleNamespace(as_text=os.fsdecode),
    executing_eagerly=lambda: True,
    image=SimpleNamespace(encode_png=_png),
)
