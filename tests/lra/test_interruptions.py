"""Commands that are killed at random moments, or whose disk fails: started again, they end with the
same bits as undisturbed ones, and no file under its final name is ever half written.

The moments are drawn from fixed seeds. LRA_INTERRUPTIONS=200 tries so many of each kind.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import faulthandler
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path
from random import Random
from subprocess import Popen
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from lra.base.disk import read_json
from lra.cli import main
from lra.runs.folder import read_metrics
from lra.sweeps.status import of_folder
from lra.training.checkpoints import load_checkpoint
from tests.lra.conftest import SMALL, start

TOO_LONG = 300.0  # seconds; a command that takes longer hangs
CHECKPOINT_EVERY = 4  # steps, as SMALL says
IGNORED = re.compile(r"lock$")  # names of files that hold nothing of a result
LEFTOVER = re.compile(r"\.partial|\.replaced|\.tmp-")  # of unfinished files
CHANGING = ("status.json", "metrics.csv", ".ckpt", ".npz")  # whole at any time, but not yet final
MADE_ONCE = ("result.json", "pretrained.json", "manifest.json")
VARYING = {
    "at",
    "checksum",
    "clock",
    "command",
    "digest",
    "git",
    "peak_memory_mib",
    "seconds",
    "steps_per_second",
    "switches",
    "times",
}  # facts that equal runs differ in
# Commands run in forks of one process, which has imported everything.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["lra.training.run", "lra.results.trained", __name__])


def interruptions(few: int) -> int:
    return max(few, int(os.environ.get("LRA_INTERRUPTIONS", "0")))


# ---------------------------------------------------------------------- a disk that fails


class Fault(NamedTuple):
    """The call to the disk (from 0) that fails, and how: ENOSPC (and no space from there on), EIO
    (once), or SIGKILL. Half of what it writes arrives."""

    call: int
    kind: str


class FailingDisk:
    """Counts what Python opens for writing, writes, syncs and renames below a folder, in any
    module, and lets one call fail. Once installed it stays until the process ends."""

    def __init__(self, folder: Path, fault: Fault | None):
        self.folder, self.fault, self.calls, self.full = folder, fault, 0, False

    def install(self) -> None:
        for name, what in (("fsync", "fsync"), ("rename", "rename"), ("replace", "rename")):
            setattr(os, name, self._guarded(getattr(os, name), what))
        io.open = builtins.open = self._opener(io.open)  # type: ignore[assignment]

    def call(self, what: str, write_half: Callable[[], object] = lambda: None) -> None:
        """Count a call, and let it fail if its turn has come."""
        kind = self.fault.kind if self.fault and self.fault.call == self.calls else ""
        self.calls += 1
        if kind:
            write_half()
        if kind == "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        self.full |= kind == "ENOSPC"
        if kind or (self.full and what != "rename"):
            code = errno.EIO if kind == "EIO" else errno.ENOSPC
            raise OSError(code, os.strerror(code))

    def _holds(self, path: Any) -> bool:
        path = Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else path
        return Path(os.fsdecode(path)).is_relative_to(self.folder)

    def _guarded(self, real_call: Callable[..., Any], what: str) -> Callable[..., Any]:
        def guarded(path: Any, *rest: Any, **options: Any) -> Any:
            if self._holds(path):
                self.call(what)
            return real_call(path, *rest, **options)

        return guarded

    def _opener(self, real_open: Callable[..., Any]) -> Callable[..., Any]:
        def guarded_open(file: Any, mode: str = "r", buffering: int = -1, *text: Any, **more: Any):
            if isinstance(file, int) or not set(mode) & set("wax+") or not self._holds(file):
                return real_open(file, mode, buffering, *text, **more)
            self.call("open")
            raw = GuardedFile(file, mode.replace("b", "").replace("t", ""))
            raw.disk = self
            if buffering == 0:
                return raw
            binary = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
            return binary if "b" in mode else io.TextIOWrapper(binary, *text, **more)

        return guarded_open


class GuardedFile(io.FileIO):
    disk: FailingDisk

    def write(self, content: Any) -> int:
        view, write = memoryview(content).cast("B"), super().write
        self.disk.call("write", lambda: write(view[: len(view) // 2]))
        return write(view)


# ---------------------------------------------------------------------- commands in forks


def run_command(words: list[str], log: Path, disk: FailingDisk, ready: Event) -> None:
    """Run a command in this fork, with its output in `log`, and count its calls to the disk."""
    faulthandler.dump_traceback_later(TOO_LONG, exit=True)
    with log.open("wb") as output:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(output.fileno(), stream.fileno())
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    disk.install()
    ready.set()
    try:
        code = main(words)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
    log.with_suffix(".calls").write_text(str(disk.calls), encoding="utf-8")
    os._exit(code)


class Commands:
    """Commands on the folder `home`, each with what is there before it and what it leaves there
    when nothing disturbs it."""

    def __init__(self, root: Path):
        self.home, self.before, self.log = root / "home", root / "before", root / "log"
        self.home.mkdir()
        self.words: dict[str, tuple[str, ...]] = {}
        self.undisturbed: dict[str, dict[str, Any]] = {}
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, int] = {}  # to the disk

    def add(self, name: str, *words: str) -> None:
        """Add a command that needs what the one before it has left."""
        self.words[name] = words
        shutil.copytree(self.home, self.before / name)
        process, started = self.start(name), time.monotonic()
        code, said = self.finish(process)
        assert code == 0, said
        self.seconds[name] = time.monotonic() - started
        self.calls[name] = int(self.log.with_suffix(".calls").read_text(encoding="utf-8"))
        self.undisturbed[name] = self.contents()

    def restore(self, name: str) -> None:
        shutil.rmtree(self.home)
        shutil.copytree(self.before / name, self.home)

    def start(self, name: str, fault: Fault | None = None) -> BaseProcess:
        """Start the command; it has begun when this returns."""
        ready = FORKS.Event()
        arguments = (list(self.words[name]), self.log, FailingDisk(self.home, fault), ready)
        process = FORKS.Process(target=run_command, args=arguments)
        process.start()
        assert ready.wait(TOO_LONG)
        return process

    def finish(self, process: BaseProcess) -> tuple[int, str]:
        """Return the exit code, or minus the signal, and what was printed."""
        process.join()
        return process.exitcode or 0, self.log.read_text(encoding="utf-8", errors="replace")

    def files(self, *, leftovers: bool = False) -> dict[str, Path]:
        """Return those that a crash may leave behind, or all others, by name."""
        paths = {str(p.relative_to(self.home)): p for p in self.home.rglob("*") if p.is_file()}
        right = (n for n in paths if bool(LEFTOVER.search(n)) is leftovers)
        return {name: paths[name] for name in right if not IGNORED.search(name)}

    def contents(self) -> dict[str, Any]:
        return {name: read_whole(path) for name, path in self.files().items()}

    def times(self) -> dict[str, int]:
        """Return when the files were made that no later start may make again."""
        paths = [path for path in self.files().values() if path.name in MADE_ONCE]
        return {str(path): path.stat().st_mtime_ns for path in paths}

    def check_files(self, name: str) -> None:
        """After an interruption every file is whole, and final where its name says so; a run does
        at most `trainer.checkpoint_every` steps again."""
        contents, expected = self.contents(), self.undisturbed[name]
        final = [file for file in contents if not file.endswith(CHANGING)]
        assert [file for file in final if contents[file] != expected.get(file)] == []
        for metrics in self.home.rglob("metrics.csv"):
            last = metrics.with_name("checkpoints") / "last.ckpt"
            saved = load_checkpoint(last)["global_step"] if last.exists() else 0
            written = max((int(row["step"]) for row in read_metrics(metrics)), default=0)
            assert written - saved <= CHECKPOINT_EVERY, metrics

    def check_it_completes(self, name: str) -> None:
        """The same command again leaves what an undisturbed one does, and makes nothing twice."""
        times = self.times()
        code, said = self.finish(self.start(name))
        assert code == 0 or "is there already" in said, said  # an export that was complete
        assert not self.files(leftovers=True)
        contents, expected = self.contents(), self.undisturbed[name]
        assert [f for f in {*contents, *expected} if contents.get(f) != expected.get(f)] == []
        assert times.items() <= self.times().items()


def read_whole(path: Path) -> Any:
    """Read a file into a form that can be compared; raises if a part of it is missing."""
    if path.suffix == ".ckpt":
        return comparable(torch.load(path, weights_only=True))
    if path.suffix == ".npz":
        return comparable(dict(np.load(path)))
    if path.name == "metrics.csv":
        return comparable(read_metrics(path))
    if path.suffix != ".json":
        return path.read_bytes()
    facts = json.loads(path.read_bytes())
    return facts["status"] if path.name == "status.json" else comparable(facts)


def comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: comparable(inner) for key, inner in value.items() if key not in VARYING}
    if isinstance(value, list | tuple):
        return [comparable(inner) for inner in value]
    if isinstance(value, torch.Tensor | np.ndarray):
        return value.shape, np.asarray(value).tobytes()
    return value


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Commands:
    commands = Commands(tmp_path_factory.mktemp("interruptions"))
    data, runs = (f"{name}_dir={commands.home / name}" for name in ("data", "runs"))
    prepare = ("data", "prepare", "listops", "source=tiny", "--max-length", "512")
    commands.add("prepare", *prepare, "--data-dir", data.partition("=")[2])
    steps = ("protocol.recipe.steps=12", "protocol.evaluation.every=6", "trainer.log_every=3")
    commands.add("train", "train", *SMALL, *steps, "pretrain=masked", data, runs)
    [result] = commands.home.rglob("result.json")
    commands.add("export", "export", str(result.parent), "--to", str(commands.home / "exported"))
    return commands


@pytest.mark.parametrize(("name", "number"), [("prepare", 2), ("train", 3)])
def test_a_killed_command_resumes_exactly(commands: Commands, name: str, number: int):
    """Up to three times in a row, by kill -9, SIGTERM or Ctrl-C."""
    for seed in range(interruptions(number)):
        draw = Random(f"{name} {seed}")
        commands.restore(name)
        for _ in range(draw.randint(1, 3)):
            signum = draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
            times, process = commands.times(), commands.start(name)
            process.join(draw.uniform(0, commands.seconds[name]))
            if process.exitcode is None:
                os.kill(process.pid or 0, signum)
            code, said = commands.finish(process)
            assert code in (0, -signum, 128 + signum), (seed, said)
            # Python drops a signal's exception inside a destructor, and says so; the run goes on.
            assert code == 0 or "Traceback" not in said, (seed, said)
            assert times.items() <= commands.times().items()
            commands.check_files(name)
        commands.check_it_completes(name)


@pytest.mark.parametrize(("name", "number"), [("prepare", 3), ("train", 4), ("export", 2)])
def test_a_failing_disk_is_one_sentence(commands: Commands, name: str, number: int):
    """Or the process dies during a call to the disk; the same command then completes."""
    calls, kinds = range(commands.calls[name]), ("ENOSPC", "EIO", "SIGKILL")
    faults = [Fault(call, kind) for call in calls for kind in kinds]
    for fault in Random(name).sample(faults, min(interruptions(number), len(faults))):
        commands.restore(name)
        code, said = commands.finish(commands.start(name, fault))
        assert "Traceback" not in said, (fault, said)
        if fault.kind == "SIGKILL":
            assert code == -signal.SIGKILL, (fault, said)
        elif code or fault.kind != "EIO":  # which may hit a file that only saves time
            [error] = [line for line in said.splitlines() if line.startswith("error: ")]
            assert code == 2, (fault, said)
            assert str(commands.home) in error, fault
        commands.check_files(name)
        commands.check_it_completes(name)


@pytest.mark.rest
def test_a_killed_sweep_ends_with_its_runs(commands: Commands, monkeypatch: pytest.MonkeyPatch):
    """One run is killed, and the sweep goes on; its parent is killed, and all processes end."""
    pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
    folder, runs = commands.home.parent, commands.home / "runs"
    monkeypatch.setenv("JOBLIB_TEMP_FOLDER", str(folder))  # else it leaves files in /dev/shm
    words = [
        *SMALL,
        "protocol.recipe.steps=150",
        "protocol.evaluation.every=50",
        f"data_dir={commands.home / 'data'}",
        f"runs_dir={runs}",
    ]
    commands.restore("train")
    for seed in (1, 2, 3):
        commands.add(f"seed {seed}", "train", *words, f"seed={seed}")
    words += [f"hydra.sweep.dir={folder}/sweep", "hydra/launcher=laptop", "seed=1,2,3"]
    for number in range(max(1, interruptions(0) // 20)):
        draw = Random(f"sweep {number}")
        commands.restore("seed 1")
        with start("-m", "lra", "train", "-m", *words, "hydra.launcher.n_jobs=2") as sweep:
            with contextlib.suppress(ProcessLookupError):  # it has just finished
                if process := process_of_a_run(sweep, runs, "12", draw):
                    os.kill(process, signal.SIGKILL)
            process_of_a_run(sweep, runs, "3", draw)
            sweep.kill()
            said = sweep.stdout.read() if sweep.stdout else ""  # ends when its workers have
        assert "Traceback" not in said, said
        states = [run.state for run in of_folder(runs)]
        assert "running" not in states
        assert states.count("lost") <= 1
        commands.check_files("seed 3")
        for seed in (1, 2):
            assert commands.finish(commands.start(f"seed {seed}"))[0] == 0
        commands.check_it_completes("seed 3")


def process_of_a_run(sweep: Popen[str], runs: Path, seeds: str, draw: Random) -> int | None:
    """Wait until a run of one of these seeds has some rows of metrics, or the sweep has ended."""
    rows = draw.randint(1, 20)
    while sweep.poll() is None:
        for metrics in runs.rglob(f"seed-[{seeds}]/metrics.csv"):
            if len(read_metrics(metrics)) >= rows:
                return (read_json(metrics.with_name("status.json")) or {})["pid"]
        time.sleep(0.02)
    return None
