"""Every reader of files and words, with good input from which bad input is made."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from safetensors.torch import save as save_tensors

from lra import answers, ask, bundle, data, groups, record, runs, status, sweep
from lra import trained as trained_networks
from lra.checkpoints import load_checkpoint
from lra.data import arrays, options, retrieval
from lra.data.listops import files as listops_files
from lra.data.sources import archives, cifar, release
from lra.data.task import TINY
from lra.report import leaderboard, page, render
from lra.report.specs import TableSpec, specs
from lra.runs import digest, identity_of
from luna.convert import saving
from luna.convert.tasks import glue
from tests.lra.synthetic import facts

from . import mutate
from .works import Works, run_folder


@dataclass(frozen=True)
class Reader:
    """`write(draw, folder)` makes a bad input there; `read(path)` reads it, which must end well or
    in a UserError."""

    name: str
    write: Callable[[Random, Path], Path]
    read: Callable[[Path], object]
    names_file: bool = True  # in each refusal


def bytes_in(name: str, *good: bytes) -> Callable[[Random, Path], Path]:
    def write(draw: Random, folder: Path) -> Path:
        path = folder / name
        path.write_bytes(mutate.content(draw, draw.choice(good)))
        return path

    return write


def json_in(name: str, good: Any) -> Callable[[Random, Path], Path]:
    """Values that are wrong in JSON that is right; now and then its bytes are wrong too."""

    def write(draw: Random, folder: Path) -> Path:
        path, text = folder / name, json.dumps(mutate.value(draw, good)).encode()
        path.write_bytes(mutate.content(draw, text) if draw.random() < 0.2 else text)
        return path

    return write


def edited(folder: Path, name: str, write: Callable[[Random, Path], Path]) -> Any:
    """A good folder, as links to its files, in which the file `name` is a bad one."""

    def whole(draw: Random, place: Path) -> Path:
        copy = place / "folder"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy, copy_function=lambda a, b: Path(b).symlink_to(a))
        (copy / name).unlink()
        write(draw, copy)
        return copy

    return whole


# ---------------------------------------------------------------------- good and hostile content


def picture(kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3)).save(out, kind)
    return out.getvalue()


def npy(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


class Touch:
    """What a foreign checkpoint may hold: a call that is made while it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (Path("outside"),)


KINDS = (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE,
         tarfile.DIRTYPE)  # fmt: skip


def hostile_tar(draw: Random, folder: Path) -> Path:
    """Entries of any kind under any name, sizes that lie, bytes that are wrong."""
    out = io.BytesIO()
    inside = "lra_release/lra_release/listops-1000/"
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(draw.randint(1, 6)):
            start = draw.choice((inside, inside, "", "../", "/", "a/../../", f"{inside}../../../"))
            header = tarfile.TarInfo(start + draw.choice((f"basic_{number}.tsv", "outside", "x")))
            header.type = draw.choice(KINDS) if draw.random() < 0.4 else tarfile.REGTYPE
            header.linkname = draw.choice(("outside", "../outside", "/etc/passwd", "x", inside))
            text = draw.randbytes(draw.choice((0, 5, 600)))
            header.size = len(text) if header.isreg() else 0
            tar.addfile(header, io.BytesIO(text))
    found = out.getvalue()
    path = folder / "release.tar"
    path.write_bytes(mutate.content(draw, found) if draw.random() < 0.3 else found)
    return path


def read_archive(path: Path) -> None:
    for member in archives.members(path):
        for _ in member.chunks():
            pass


def unpack(path: Path) -> None:
    """Whatever it refuses, nothing may be written beside its folder."""
    home = path.parent / "unpacked"
    shutil.rmtree(home, ignore_errors=True)
    try:
        release.root(path, "listops-1000", home)
    finally:
        found = [p for p in home.rglob("*") if p.is_symlink() or home not in p.resolve().parents]
        assert not found, f"written outside: {found}"


def write_record(draw: Random, folder: Path) -> Path:
    """A record whose digest and identity fit it, so that the checks behind them are reached."""
    result, settings = facts("luna", draw.choice((0.4, 0.5)))
    found = mutate.value(draw, result | {"settings": settings, "curve": [[50, 0.2], [100, 0.4]]})
    if draw.random() < 0.7 and isinstance(found.get("settings"), dict):
        print_of = found["data"].get("fingerprint") if isinstance(found.get("data"), dict) else None
        found["identity"] = identity_of(found["settings"], print_of)
    text = json.dumps(found | ({"digest": _digest(found)} if draw.random() < 0.9 else {}))
    path = folder / f"record-seed-{draw.randint(1, 2)}.json"
    path.write_text(text, encoding="utf-8")
    return path


def _digest(found: dict[str, Any]) -> str | None:
    try:
        return digest(found)
    except UnicodeEncodeError:  # a lone surrogate has no bytes
        return None


def show_record(path: Path) -> None:
    """Read a record, and what is accepted becomes a table in every format and a page, in which no
    text of it is markup."""
    found = record.read(path)
    if found is None or found.kind != "training":
        return
    table = leaderboard.build(TableSpec(name="t", title="T"), [found])
    for writer in render.WRITERS.values():
        writer(table, path.parent)
    text = page.page([table], path.parent)
    text.encode()
    assert text.count("<script") == _scripts(), "a text of the record is markup of the page"
    assert "alert(1)>" not in text, "a text of the record is markup of the page"


def _scripts() -> int:
    files = (page.TEMPLATE, page.SCRIPT)
    return sum(file.read_text(encoding="utf-8").count("<script") for file in files)


def read_config(path: Path) -> None:
    groups._load.cache_clear()
    with groups.searching(path.parents[1]):
        groups.names("attention")
        groups.read("attention", "linear")
        groups._usual_options.cache_clear()
        groups.usual_options("linear", "listops", "matched")


def config_folder(draw: Random, folder: Path) -> Path:
    (folder / "attention").mkdir(exist_ok=True)
    good = (groups.CONFIGS / "attention" / "linear.yaml").read_bytes()
    return bytes_in("linear.yaml", good)(draw, folder / "attention")


def words_in(draw: Random, folder: Path) -> Path:
    """Overrides of a task's options, a line each."""
    keys = ("source", "seed", "train", "path", "min_length", "x", "source.a", "+train", "~source")
    value = lambda: draw.choice(  # noqa: E731
        ("tiny", "generated", "1", "-1", "null", "[1,2]", "{a: 1}", "${oc.env:HOME}", "", "'",
         "1e999", mutate.SCRIPT, "9" * 400, "a=b", "\0", "!!python/name:os.system ''")
    )  # fmt: skip
    path = folder / "words"
    lines = [f"{draw.choice(keys)}{draw.choice(('=', '=', ''))}{value()}" for _ in range(2)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def configure(path: Path) -> None:
    words = path.read_text(encoding="utf-8").split("\n")
    found = data.configure("listops", words)
    options.check(data.of(found), found)


# ---------------------------------------------------------------------- all of them


class Readers:
    """`works` has trained a short run, whose files are good input."""

    def __init__(self, works: Works):
        self.works = works

    @cached_property
    def all(self) -> dict[str, Reader]:
        return {reader.name: reader for reader in self._all()}

    def _all(self) -> Iterator[Reader]:
        run = run_folder(self.works.template)
        (manifest,) = (self.works.template / "data").rglob("manifest.json")
        tsv = (TINY / "listops").glob("*train*")
        lines = b"\n".join(next(tsv).read_bytes().split(b"\n")[:4])
        pair = next((TINY / "retrieval").glob("*train*")).read_bytes().split(b"\n")[0][:900]
        result = json.loads((run / "result.json").read_text(encoding="utf-8"))
        state = {"identity": "a", "state_dict": {"network.w": torch.ones(2, 2)}, "global_step": 3}
        sst = b"sentence\tlabel\na fine film\t1\na bad film\t0\n"
        full = bundle_of(self.works, run)
        yield Reader("listops TSV", bytes_in("a.tsv", lines), lambda p: list(listops_files.read(p)))
        yield Reader("retrieval TSV", bytes_in("a.tsv", pair), lambda p: list(retrieval.read(p)))
        yield Reader("GLUE TSV", edited_glue(sst), lambda p: glue.read(glue._SST2, "dev", p))
        yield Reader(
            "texts to predict",
            bytes_in("a.csv", b"text,x\n[MAX 2 9],1\n"),
            lambda p: list(ask._table(p, data.get("listops"))),
        )
        yield Reader(
            "pictures",
            bytes_in("a.png", *map(picture, ("PNG", "JPEG", "GIF", "BMP", "WEBP"))),
            ask._picture,
        )
        yield Reader("arrays of ids", bytes_in("a.npy", npy(np.ones((2, 3), np.int64))), ask._array)
        yield Reader("archives", hostile_tar, read_archive)
        yield Reader("release archive", hostile_tar, unpack)
        yield Reader(
            "CIFAR-10 batch",
            bytes_in("a", bytes(3073)),
            lambda p: cifar._binary(str(p), p.read_bytes()),
        )
        yield Reader(
            "CIFAR-10 pickle",
            bytes_in("a", cifar_batch(), cifar_batch(Touch())),
            lambda p: cifar._python(str(p), p.read_bytes()),
        )
        yield Reader(
            "manifest",
            bytes_in("manifest.json", manifest.read_bytes()),
            lambda p: arrays.read_manifest(p.parent),
        )
        yield Reader(
            "prepared arrays",
            edited(
                manifest.parent,
                "val.ids.npy",
                bytes_in("val.ids.npy", (manifest.parent / "val.ids.npy").read_bytes()),
            ),
            read_prepared,
        )
        yield Reader("records, tables, page", write_record, show_record)
        yield Reader(
            "result.json",
            edited(run, "result.json", json_in("result.json", result)),
            lambda p: record.read(p / "result.json"),
        )
        yield Reader(
            "config.yaml",
            edited(run, "config.yaml", bytes_in("config.yaml", (run / "config.yaml").read_bytes())),
            lambda p: trained_networks.load(p),
        )
        yield Reader(
            "metrics.csv",
            edited(run, "metrics.csv", bytes_in("metrics.csv", (run / "metrics.csv").read_bytes())),
            lambda p: record.read(p / "result.json"),
        )
        yield Reader(
            "status.json",
            edited(
                run,
                "status.json",
                json_in(
                    "status.json",
                    {"status": "running", "step": 3, "steps": 12, "pid": 1, "host": "h"},
                ),
            ),
            lambda p: ((p / "result.json").unlink(), str(status.of_run(p, "a"))),
        )
        yield Reader("answers", bytes_in("a.npz", (run / "answers.npz").read_bytes()), answers.read)
        yield Reader(
            "checkpoints",
            bytes_in("a.ckpt", saved(state), saved(Touch()), saved([1])),
            lambda p: load_checkpoint(p, "a"),
        )
        yield Reader(
            "exported network",
            edited(
                full, bundle.WEIGHTS, bytes_in(bundle.WEIGHTS, (full / bundle.WEIGHTS).read_bytes())
            ),
            read_bundle,
        )
        yield Reader(
            "exported config",
            edited(
                full,
                bundle.CONFIG,
                json_in(
                    bundle.CONFIG, json.loads((full / bundle.CONFIG).read_text(encoding="utf-8"))
                ),
            ),
            read_bundle,
        )
        yield Reader(
            "converted weights",
            bytes_in("model.safetensors", save_tensors({"w": torch.ones(3)})),
            lambda p: saving._read_tensors(p.parent),
        )
        yield Reader(
            "converted config",
            json_in("config.json", {"luna": {"a": 1}, "x": [1]}),
            lambda p: saving._read_config(p.parent),
        )
        yield Reader(
            "tables.yaml",
            bytes_in(
                "tables.yaml",
                yaml.safe_dump(
                    [{"name": "a", "title": "A", "where": {"task": "listops"}}]
                ).encode(),
            ),
            lambda p: specs(p.parent),
        )
        yield Reader("--config-dir", config_folder, read_config)
        yield Reader("overrides", words_in, configure, names_file=False)
        yield Reader(
            "outcomes of a sweep",
            json_in("0.json", {"job": ["a"], "state": "done", "reason": ""}),
            lambda p: sweep.summarise(sweep.read_outcomes(p.parent)),
        )
        yield Reader("run of other code", json_in("result.json", {"test": {"accuracy": 1.0},
                     "dev": {"accuracy": 1.0}}), runs.read_result)  # fmt: skip


def bundle_of(works: Works, run: Path) -> Path:
    folder = works.template / "bundle"
    if not folder.exists():
        bundle.write(trained_networks.load(run), folder)
    return folder


def read_bundle(folder: Path) -> None:
    bundle.read(folder, data_dir="data", device="cpu")


def read_prepared(folder: Path) -> None:
    found = arrays.Prepared(folder, arrays.read_manifest(folder), data.get("listops"))
    for ids, _ in found.split("val").blocks():
        ids.sum()


def edited_glue(good: bytes) -> Callable[[Random, Path], Path]:
    def write(draw: Random, folder: Path) -> Path:
        (folder / "SST-2").mkdir(exist_ok=True)
        bytes_in("dev.tsv", good)(draw, folder / "SST-2")
        return folder

    return write


def cifar_batch(*more: Any) -> bytes:
    rows = {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 1], b"more": more}
    return pickle.dumps(rows, 2)
