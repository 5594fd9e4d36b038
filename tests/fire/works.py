"""What is set on fire: short runs of every command that writes, and what each must leave behind."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
import numpy as np
import safetensors.torch
import torch
import yaml

from lra import answers, cli, conversion, record, search_path
from lra import run as runner
from lra.config import CONFIGS
from lra.data.prepare import load as load_prepared
from lra.disk import read_json
from lra.runs import digest, read_metrics
from lra.settings import Run, compose
from tests.lra.conftest import SMALL

from .server import UNFAIR, serve

SHORT = [word for word in SMALL if not word.startswith(("protocol.recipe.steps", "protocol.eval"))]
SHORT += ["protocol.recipe.steps=12", "protocol.evaluation.every=6", "trainer.log_every=3"]
EVERY = 4  # trainer.checkpoint_every of SMALL
TASK, LENGTH = ("listops", "source=tiny"), ("--max-length", "512")
Facts = dict[str, Any]


@dataclass(frozen=True)
class Work:
    """A command on a folder `home`, and a comparable form of what it leaves there."""

    name: str
    do: Callable[[Path], object]
    outcome: Callable[[Path], Facts]
    needs: tuple[str, ...] = ()  # folders of the template that are there before
    makes: tuple[str, ...] = ()  # folders that later works need
    keeps: tuple[str, ...] = ()  # patterns of files that no later start makes again
    again: Callable[[Path], object] | None = None  # what its message says to do the second time
    once: bool = False  # a second time is refused: the folder is there


class Works:
    """The works in the folder `home`; what they need is made once, in `template`. The place of the
    folder is the same in every trial, so that files can be compared byte by byte."""

    def __init__(self, root: Path):
        self.home, self.template = root / "home", root / "template"
        self.log = root / "log"
        self.url, self.conversions = "", list[conversion.Conversion]()  # `provide` sets them

    @cached_property
    def run(self) -> Run:
        return compose([*SHORT, f"data_dir={self.home / 'data'}", f"runs_dir={self.home / 'runs'}"])

    def provide(self, names: set[str]) -> None:
        """What these works need and no work makes."""
        if "download" in names:
            self.url = serve(self.home, self.log.with_name("log-server"))
        if "convert" in names:
            _write_conversion_inputs(self.template)
            self.conversions = _conversions(self.home)

    def wanted(self, names: list[str] | None) -> list[Work]:
        """These works (None: all), and those that make what they need."""
        found = {*(self.all if names is None else names)}
        for work in reversed(self.all.values()):
            needed = {need for w in self.all.values() if w.name in found for need in w.needs}
            found |= {work.name} if needed & {*work.makes} else set()
        return [work for work in self.all.values() if work.name in found]

    def fresh(self, work: Work) -> None:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir(parents=True)
        for name in work.needs:
            shutil.copytree(self.template / name, self.home / name)

    def keep(self, *names: str) -> None:
        """What this folder holds now is what later works need."""
        for name in names:
            shutil.rmtree(self.template / name, ignore_errors=True)
            shutil.copytree(self.home / name, self.template / name)

    @cached_property
    def all(self) -> dict[str, Work]:
        """In the order in which they need one another."""
        home = self.home
        place = ("--data-dir", str(home / "data"))
        found = [
            Work("prepare", _command("data", "prepare", *TASK, *LENGTH, *place), data,
                 makes=("data",), keeps=("data/**/manifest.json",)),
            Work("train", lambda _: runner.train(self.run), trained, ("data",),
                 makes=("data", "runs"), keeps=("runs/**/result.json",)),
            Work("evaluate", self._on_run("evaluate", *place), nothing, ("data", "runs")),
            Work("export", self._on_run("export", "--to", f"{home}/bundle"),
                 files("bundle"), ("runs",), once=True),
            Work("records", _command("records", "export", f"{home}/results/records",
                                     "--runs", f"{home}/runs"), files("results"), ("runs",),
                 makes=("results",)),
            Work("table", _command("table", "--write", "--results", f"{home}/results"),
                 files("results"), ("results",)),
            Work("data export", _command("data", "export", *TASK, "--to", f"{home}/official",
                                         *place), files("official"), ("data",),
                 again=_command("data", "export", *TASK, "--to", f"{home}/official", "--force",
                                *place)),
            Work("download", lambda _: cli._main(["data", "download", "release", "--url", self.url,
                                                  *place]), downloaded, keeps=("data/*.gz",)),
            Work("convert", lambda _: [conversion.convert(run) for run in self.conversions],
                 converted, ("bert", "glue"), keeps=("runs/**/stage1.json", "runs/**/result.json")),
        ]  # fmt: skip
        return {work.name: work for work in found}

    def _on_run(self, command: str, *words: str) -> Callable[[Path], object]:
        return lambda home: cli._main([command, str(run_folder(home)), *words])


def _conversions(home: Path) -> list[conversion.Conversion]:
    """Teacher and student. Stage 1 writes its state at steps 50 and 60, stage 2 after each
    epoch."""
    words = (
        *("task=sst2", f"model.path={home / 'bert'}", f"data.path={home / 'glue'}"),
        *(f"runs_dir={home / 'runs'}", "device=cpu", "recipe.max_length=8"),
        *("recipe.batch=4", "recipe.stage1_steps=60", "recipe.epochs=2"),
    )
    search_path.install()
    with hydra.initialize_config_dir(version_base="1.3", config_dir=str(CONFIGS / "convert")):
        return [
            conversion.check(hydra.compose("convert", [*words, *more]))
            for more in (("stage=teacher",), ("attention=luna", "attention.M=4"))
        ]


def _write_conversion_inputs(folder: Path) -> None:
    """A tiny BERT without a head, and 20 sentences in GLUE's form."""
    from tests.luna.convert import kit  # which imports transformers

    (folder / "glue" / "SST-2").mkdir(parents=True)
    kit.checkpoint(folder / "bert")
    rows = ["sentence\tlabel", *(["good film\t1", "bad film\t0"] * 10)]
    for split in ("train", "dev"):
        file = folder / "glue" / "SST-2" / f"{split}.tsv"
        file.write_text("\n".join(rows) + "\n", encoding="utf-8")


def _command(*words: str) -> Callable[[Path], object]:
    return lambda _: cli._main(list(words))


def run_folder(home: Path) -> Path:
    return next((home / "runs").rglob("config.yaml")).parent


# ---------------------------------------------------------------------- outcomes


def data(home: Path) -> Facts:
    (manifest,) = (home / "data").rglob("manifest.json")
    prepared = load_prepared(manifest.parent)
    arrays = {f.name: _hash(f) for f in sorted(manifest.parent.glob("*.npy"))}
    return {"fingerprint": prepared.fingerprint, **arrays}


def trained(home: Path) -> Facts:
    """Weights, scores, answers and metrics, bit by bit."""
    folder = run_folder(home)
    result = read_json(folder / "result.json") or {}
    kept = ("test", "test_last", "test_best", "dev", "identity", "answers")
    facts: Facts = {key: result.get(key) for key in kept}
    for path in sorted((folder / "checkpoints").iterdir()):
        state = torch.load(path, weights_only=True)["state_dict"]
        tensors = {k: v.numpy().tobytes() for k, v in state.items() if isinstance(v, torch.Tensor)}
        facts[path.name] = hashlib.sha256(repr(sorted(tensors.items())).encode()).hexdigest()
    facts["metrics"] = [{k: v for k, v in row.items() if k != "seconds"}
                        for row in read_metrics(folder / "metrics.csv")]  # fmt: skip
    facts["npz"] = answers.read(folder / "answers.npz").digest
    facts["status"] = (read_json(folder / "status.json") or {}).get("status")
    return facts | {"data": data(home)}


def nothing(home: Path) -> Facts:
    return {}


def downloaded(home: Path) -> Facts:
    """The archive, and the requests that asked for other bytes than the missing ones: none."""
    unfair = home / UNFAIR
    asked = unfair.read_text(encoding="utf-8") if unfair.exists() else ""
    return {"unfair": asked} | files("data")(home)


def converted(home: Path) -> Facts:
    """Weights, scores and answers of teacher and student, and which files there are."""
    facts: Facts = {}
    for path in sorted(p for p in (home / "runs").rglob("*") if p.is_file()):
        facts[str(path.relative_to(home))] = _hash(path)
        if path.name in ("result.json", "stage1.json"):
            kept = _without(json.loads(path.read_text(encoding="utf-8")), "seconds", "times")
            facts[str(path.relative_to(home))] = kept
    return facts


def _without(value: Any, *keys: str) -> Any:
    if isinstance(value, dict):
        return {k: _without(v, *keys) for k, v in value.items() if k not in keys}
    return [_without(v, *keys) for v in value] if isinstance(value, list) else value


def files(name: str) -> Callable[[Path], Facts]:
    def outcome(home: Path) -> Facts:
        found = sorted(p for p in (home / name).rglob("*") if p.is_file())
        return {str(path.relative_to(home)): _hash(path) for path in found}

    return outcome


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


# ---------------------------------------------------------------------- after a crash


def finished(work: Work, home: Path) -> dict[Path, tuple[int, int]]:
    """What no later start may make again, with a stamp by which it would be noticed."""
    found = [path for pattern in work.keeps for path in home.glob(pattern)]
    return {path: ((stat := path.stat()).st_ino, stat.st_mtime_ns) for path in found}


def damaged(home: Path) -> Iterator[str]:
    """Files under their final names that are not whole. Whatever a crash leaves must either be
    complete or bear the name of a leftover."""
    for path in sorted(p for p in home.rglob("*") if p.is_file()):
        if _is_leftover(str(path.relative_to(home))):
            continue
        try:
            _read_whole(path)
        except Exception as error:
            yield f"{path.relative_to(home)}: {type(error).__name__} {error}"


def _read_whole(path: Path) -> None:
    if path.name == "result.json" and "convert" not in path.parts:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if facts["digest"] != digest({k: v for k, v in facts.items() if k != "digest"}):
            raise ValueError("its digest is not that of its content")
    elif path.name == "manifest.json":
        load_prepared(path.parent)
    elif path.suffix == ".json" and "-seed-" in path.name:
        record.read(path)
    elif path.suffix == ".json":
        json.loads(path.read_text(encoding="utf-8"))
    elif path.suffix == ".yaml":
        yaml.safe_load(path.read_text(encoding="utf-8"))
    elif path.suffix in (".ckpt", ".pt"):
        torch.load(path, weights_only=True)
    elif path.suffix == ".npz":
        zipfile.ZipFile(path).testzip()
    elif path.suffix == ".npy":
        np.load(path, mmap_mode="r")
    elif path.suffix == ".safetensors":
        safetensors.torch.load(path.read_bytes())
    elif path.suffix == ".gz":
        gzip.decompress(path.read_bytes())


def leftovers(home: Path) -> list[str]:
    """What a finished command must have cleared away."""
    return [str(p.relative_to(home)) for p in home.rglob("*") if _is_leftover(p.name)]


def _is_leftover(path: str) -> bool:
    return any(sign in path for sign in (".partial", ".version", ".tmp", ".replaced"))
