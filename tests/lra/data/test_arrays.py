"""The prepared form: whole or not there, and damage is always found."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lra.data
from lra.config import UserError
from lra.data import prepare as preparing
from lra.data.arrays import MANIFEST, SPLITS, Prepared, manifest_text, read_manifest
from lra.data.prepare import find, find_or_prepare, load, prepare
from lra.data.store import ArrayFile, Rows, lock
from lra.data.verify import verify
from tests.lra.conftest import start

Call = Callable[..., tuple[int, str, str]]
Fake = Callable[[str], Prepared]

SMALL = ("n_train=300", "n_val=20", "n_test=20", "min_length=20", "max_length=200")


def leftovers(data_dir: Path) -> list[str]:
    """Files that are neither a lock nor in a finished preparation."""
    files = (p for p in data_dir.rglob("*") if p.is_file())
    return [str(p) for p in files if p.suffix != ".lock" and not (p.parent / MANIFEST).exists()]


# ---------------------------------------------------------------------- what is stored


def test_arrays_are_plain_npy_files(fake: Fake) -> None:
    prepared = fake("numbers")
    ids = np.load(prepared.folder / "val.ids.npy")
    lengths = np.load(prepared.folder / "val.lengths.npy")
    labels = np.load(prepared.folder / "val.labels.npy")
    assert (ids.shape, ids.dtype) == ((20, 150), np.uint16)
    for i in range(20):
        assert ids[i].tolist() == [i] * (i + 1) + [0] * (149 - i)
    assert lengths.tolist() == list(range(1, 21))
    assert labels.tolist() == [i % 3 for i in range(20)]
    for name, facts in prepared.facts["arrays"].items():
        file = prepared.folder / f"{name}.npy"
        assert hashlib.sha256(file.read_bytes()).hexdigest() == facts["sha256"]
        assert list(np.load(file, mmap_mode="r").shape) == facts["shape"]


def test_a_split_gives_back_what_was_put_in(fake: Fake) -> None:
    split = fake("numbers").split("train")
    index = np.array([5, 149, 0, 5])
    assert split.lengths(index).tolist() == [6, 150, 1, 6]
    ids = split.ids(index, 8)
    assert ids.tolist() == [[5] * 6 + [0] * 2, [149] * 8, [0] * 8, [5] * 6 + [0] * 2]
    whole = np.concatenate([ids for ids, _ in split.blocks()])
    assert whole.sum(1).tolist() == [i * (i + 1) for i in range(150)]


def test_a_dual_task_stores_each_text_once(fake: Fake) -> None:
    prepared = fake("pairs")
    assert prepared.facts["arrays"]["texts.ids"]["shape"] == [7, 150]
    assert prepared.facts["arrays"]["train.pairs"]["shape"] == [150, 2]
    split = prepared.split("train")
    ids, lengths = split.ids(np.array([1, 9])), split.lengths(np.array([1, 9]))
    assert ids.shape == (2, 2, 150)
    # texts 1, 2 and 2, 18 mod 7 = 4; texts 3 and up are cut at 150
    assert lengths.tolist() == [[70, 140], [140, 150]]
    assert [np.unique(side[side > 0]).tolist() for side in ids.reshape(4, -1)] == [
        [2],
        [3],
        [3],
        [5],
    ]
    # sides longer than 150, counted each time they are used
    expected = sum((i % 7 > 2) + (2 * i % 7 > 2) for i in range(150))
    assert prepared.facts["splits"]["train"]["truncated"] == expected


def test_statistics_are_those_of_the_data(fake: Fake) -> None:
    facts = fake("numbers").facts
    assert facts["splits"]["train"] == {
        "examples": 150,
        "labels": [50, 50, 50],
        "lengths": {"min": 1, "5%": 8, "25%": 38, "median": 75, "75%": 112, "95%": 142, "max": 150},
        "ids": [0, 149],
        "truncated": 0,
    }
    assert facts["duplicates"] == {
        "train": 0, "val": 0, "test": 0, "train/val": 20, "train/test": 11, "val/test": 11,
    }  # fmt: skip
    pictures = fake("pictures").facts
    assert [pictures["splits"][s]["constant"] for s in SPLITS] == [30, 4, 3]
    assert pictures["duplicates"]["train"] == 150 - 121  # the black ones are one picture
    pairs = fake("pairs").facts
    assert pairs["duplicates"]["val"] == 20 - 7
    assert pairs["duplicates"]["train/test"] == 7


def test_summary_and_majority(tiny: Prepared) -> None:
    train, test = (tiny.facts["splits"][s]["labels"] for s in ("train", "test"))
    assert tiny.majority() == test[train.index(max(train))] / sum(test)
    summary = tiny.summary()
    assert summary["examples"] == {"train": 96, "val": 32, "test": 32}
    assert summary["fingerprint"] == tiny.fingerprint
    assert summary["source"] == "tiny"
    assert json.loads(json.dumps(summary)) == summary
    assert tiny.fingerprint in tiny.describe()


def test_a_split_survives_pickling(fake: Fake) -> None:
    """A process started for another device gets its data this way."""
    split = pickle.loads(pickle.dumps(fake("pairs").split("train")))
    assert split.ids(np.array([1]), 2).tolist() == [[[2, 2], [3, 3]]]


def test_ids_are_not_memory_mapped(tiny: Prepared) -> None:
    """Mapped pages would count as the process's memory, in the end all of the data set's."""
    split = tiny.split("train")
    split.ids(np.arange(len(split)))
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    assert str(tiny.folder / "train.ids.npy") not in maps.read_text(encoding="utf-8")


def test_the_header_is_written_last_and_fits(tmp_path: Path) -> None:
    file = ArrayFile(tmp_path / "x.npy", (3,), np.dtype(np.uint16))
    for i in range(100_000 // 3):
        file.append(np.array([i % 7, 1]))
    facts = file.close()
    stored = np.load(tmp_path / "x.npy")
    assert stored.shape == (33_333, 3) == tuple(facts["shape"])
    assert stored[:, 0].tolist() == [i % 7 for i in range(33_333)]
    assert (stored[:, 1] == 1).all()
    assert not stored[:, 2].any()


# ---------------------------------------------------------------------- identity


def test_the_fingerprint_knows_the_data_and_not_the_circumstances(tmp_path: Path) -> None:
    def made(where: str, *settings: str, n: int = 199) -> Prepared:
        options = lra.data.configure("listops", [*SMALL, *settings])
        return prepare(options, max_length=n, data_dir=tmp_path / where)

    first = made("a")
    assert made("b").fingerprint == first.fingerprint
    assert made("b").folder.name == first.folder.name
    changed = [
        made("a", "seed=1"),
        made("a", "n_val=21"),
        made("a", "brackets=drop"),
        made("a", n=99),
    ]
    assert len({p.fingerprint for p in [first, *changed]}) == 5
    assert len({p.folder for p in [first, *changed]}) == 5


def test_options_of_other_sources_do_not_matter(tmp_path: Path) -> None:
    task = lra.data.get("listops")
    options = lra.data.configure("listops", ["source=release", f"path={tmp_path}"])
    assert task.matters(options) == {"brackets": "keep"}
    generated = lra.data.configure("listops")
    assert set(task.matters(generated)) == set(vars(generated)) - {"name", "source", "path"}


# ---------------------------------------------------------------------- damage


def lines(folder: Path) -> list[str]:
    return [line.text for line in verify(folder) if line.status == "differs"]


def test_undamaged_data_verify(tiny: Prepared, fake: Fake) -> None:
    assert {line.status for line in verify(tiny.folder)} == {"ok"}  # committed statistics included
    for name in ("numbers", "pairs", "pictures"):
        assert lines(fake(name).folder) == []


def test_any_changed_byte_of_an_array_is_found(tiny: Prepared) -> None:
    rng = np.random.default_rng(0)
    for name in tiny.facts["arrays"]:
        file = tiny.folder / f"{name}.npy"
        content = file.read_bytes()
        chosen = rng.choice(len(content), 25, replace=False)
        for at in {0, 7, 9, 60, len(content) - 1, *chosen.tolist()}:
            changed = bytearray(content)
            changed[at] ^= 1 << int(rng.integers(8))
            file.write_bytes(changed)
            (found,) = lines(tiny.folder)
            assert str(file) in found
            assert f"{hashlib.sha256(content).hexdigest()} expected" in found
            assert f"{hashlib.sha256(changed).hexdigest()} found" in found
        file.write_bytes(content)
    assert lines(tiny.folder) == []


def test_any_changed_byte_of_the_manifest_is_found(tiny: Prepared) -> None:
    file = tiny.folder / MANIFEST
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for at in sorted({*range(40), *rng.choice(len(content), 300, replace=False).tolist()}):
        changed = bytearray(content)
        changed[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(changed)
        with pytest.raises(UserError, match=r"manifest\.json is damaged|prepared in format"):
            read_manifest(tiny.folder)
    for changed in (b"", content[:-1], content + b"\n", content.replace(b"\n", b"\r\n"), b"[]"):
        file.write_bytes(changed)
        (found,) = lines(tiny.folder)
        assert str(file) in found


@pytest.mark.parametrize("cut", [1, 100, 2000])
def test_a_shortened_file_is_refused_when_it_is_opened(tiny: Prepared, cut: int) -> None:
    file = tiny.folder / "val.ids.npy"
    size = file.stat().st_size
    os.truncate(file, size - cut)
    with pytest.raises(UserError) as error:
        load(tiny.folder)
    assert f"{file} is damaged: {size - cut:,} bytes found, {size:,} bytes expected" in str(
        error.value
    )
    assert "lra data prepare listops source=tiny" in str(error.value)
    assert "--force" in str(error.value)
    file.unlink()
    with pytest.raises(UserError, match=r"val\.ids\.npy is missing, 2,016 bytes expected"):
        load(tiny.folder)
    assert lines(tiny.folder) == [f"{file}: 2,016 bytes expected, no file found"]


def test_a_file_shortened_while_in_use_is_an_error_and_not_a_dead_process(tiny: Prepared) -> None:
    split = tiny.split("train")
    os.truncate(tiny.folder / "train.ids.npy", 3000)
    with pytest.raises(UserError, match=r"train\.ids\.npy is damaged: it ends within row"):
        split.ids(np.arange(len(split)))


def test_a_header_of_the_right_size_that_is_none(tiny: Prepared) -> None:
    for name in ("train.ids", "test.labels"):
        file = tiny.folder / f"{name}.npy"
        content = file.read_bytes()
        file.write_bytes(b"\0" * len(content))
        with pytest.raises(UserError, match="is damaged"):
            load(tiny.folder)
        file.write_bytes(content)


def test_damage_of_a_source_file_is_found(tmp_path: Path, lra_data: Call) -> None:
    folder = tmp_path / "tsv"
    shutil.copytree(Path(lra.data.__file__).parent / "tiny" / "listops", folder)
    words = ("listops", "source=release", f"path={folder}")
    assert lra_data("prepare", *words)[0] == 0
    file = folder / "basic_val.tsv"
    content = file.read_bytes()
    file.write_bytes(content.replace(b"[MIN", b"[MAX", 1))
    _, out, _ = lra_data("verify", *words)
    assert f"differs  {file}: sha256 {hashlib.sha256(content).hexdigest()} expected" in out
    file.unlink()
    _, out, _ = lra_data("verify", *words)
    assert f"unknown  {file}: not there any more" in out


def test_verify_recounts(tiny: Prepared) -> None:
    """Arrays and manifest that agree in their hashes, but not in what they say."""
    facts = json.loads(json.dumps(tiny.facts))
    facts["splits"]["val"]["labels"][3] += 1
    facts["splits"]["test"]["lengths"]["median"] += 1
    facts["duplicates"]["train/val"] = 1
    (tiny.folder / MANIFEST).write_text(
        manifest_text(facts, tiny.manifest["made"]), encoding="utf-8"
    )
    found = lines(tiny.folder)
    assert [text.split(":")[0] for text in found[:3]] == ["val", "test", "duplicates"]
    assert "val: labels: 3 3 2 5 2" in found[0]
    # and against the committed statistics
    assert all("statistics committed for listops from source=tiny" in text for text in found[3:])
    assert len(found) == 6


def test_another_fingerprint_than_the_committed_one_is_found(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.data.verify.EXPECTED", tmp_path)
    for wanted, wrong in ((tiny.fingerprint, 0), ("0123456789abcdef", 1)):
        entry = {"when": {"width": 59}, "expect": {"fingerprint": wanted}}
        (tmp_path / "listops.tiny.json").write_text(json.dumps([entry]), encoding="utf-8")
        difference = f"fingerprint: {wanted} expected, {tiny.fingerprint} found"
        assert [difference in line for line in lines(tiny.folder)] == [True] * wrong


def test_a_stranger_in_the_folder_is_mentioned(tiny: Prepared) -> None:
    (tiny.folder / "notes.txt").write_text("mine", encoding="utf-8")
    strange = [line for line in verify(tiny.folder) if line.status == "unknown"]
    assert [line.text for line in strange] == [f"{tiny.folder / 'notes.txt'}: not in the manifest"]


# ---------------------------------------------------------------------- versions


@pytest.mark.parametrize("version", [0, 2])
def test_another_format_is_named_and_prepared_anew_on_force(
    tiny: Prepared, version: int, lra_data: Call
) -> None:
    file = tiny.folder / MANIFEST
    file.write_text(
        file.read_text(encoding="utf-8").replace('"format": 1', f'"format": {version}'),
        encoding="utf-8",
    )
    code, _, err = lra_data("prepare", "listops", "source=tiny")
    assert code == 2
    assert f"{tiny.folder} was prepared in format {version}, this version reads format 1" in err
    assert "lra data prepare listops source=tiny" in err
    assert "--force" in err
    assert f"unusable: {tiny.folder} was prepared in format {version}" in lra_data("list")[1]
    assert lra_data("prepare", "listops", "source=tiny", "--force")[0] == 0
    assert load(tiny.folder).fingerprint == tiny.fingerprint


# ---------------------------------------------------------------------- all or nothing


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    monkeypatch.setattr(preparing, "statistics", lambda splits: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(options, max_length=59, data_dir=tmp_path)
    assert leftovers(tmp_path) == []
    assert find(options, max_length=59, data_dir=tmp_path) is None


def test_force_that_fails_keeps_what_was_there(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    monkeypatch.setattr(preparing, "statistics", lambda splits: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(options, max_length=59, data_dir=tmp_path / "data", force=True)
    assert load(tiny.folder).fingerprint == tiny.fingerprint
    assert leftovers(tmp_path / "data") == []


def test_open_splits_outlive_a_replacement(tiny: Prepared, tmp_path: Path) -> None:
    split = tiny.split("train")
    before = split.ids(np.arange(5))
    options = lra.data.configure("listops", ["source=tiny"])
    prepare(options, max_length=59, data_dir=tmp_path / "data", force=True)
    assert (split.ids(np.arange(5)) == before).all()


def test_kill_minus_9_while_preparing(tmp_path: Path) -> None:
    """What is half-written is invisible, and gone after the next preparation."""
    data_dir = tmp_path / "data"
    words = ("-m", "lra", "data", "prepare", "listops", "n_train=1500", "n_val=5", "n_test=5",
             "--workers", "1", "--data-dir", str(data_dir))  # fmt: skip
    process = start(*words)
    deadline = time.monotonic() + 60
    while not any(p.stat().st_size > 1 << 20 for p in data_dir.rglob("train.ids.npy")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert leftovers(data_dir) != []
    options = lra.data.configure("listops", ["n_train=1500", "n_val=5", "n_test=5"])
    assert find(options, max_length=2000, data_dir=data_dir) is None
    prepared = prepare(options, max_length=2000, data_dir=data_dir, workers=1)
    assert leftovers(data_dir) == []
    assert lines(prepared.folder) == []


def test_the_second_waits_for_the_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    folder = tmp_path / "listops" / preparing.identity(lra.data.get("listops"), options, 2000)
    with ThreadPoolExecutor() as pool:
        with lock(folder, "never"):
            second = pool.submit(prepare, options, max_length=2000, data_dir=tmp_path)
            waiting, deadline = "", time.monotonic() + 60
            while not waiting and time.monotonic() < deadline:
                waiting = capsys.readouterr().out
            assert waiting == f"another process is preparing listops in {folder}; waiting for it\n"
            assert not folder.exists()
        assert second.result(timeout=60).folder == folder


def test_the_one_that_waited_does_not_prepare_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    made = prepare(options, max_length=2000, data_dir=tmp_path)
    answers = iter([None, made])  # not there before the lock, there behind it
    monkeypatch.setattr(preparing, "find", lambda *a, **k: next(answers))
    monkeypatch.setattr(preparing, "_make", lambda *a, **k: pytest.fail("prepared twice"))
    assert prepare(options, max_length=2000, data_dir=tmp_path) is made


def test_two_processes_at_once_prepare_the_same(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "lra", "data", "prepare", "listops", *SMALL]
    processes = [
        subprocess.Popen([*words, "--data-dir", str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 2
    assert len({out.split("fingerprint ")[1].split()[0] for out in outputs}) == 1
    assert leftovers(tmp_path) == []
    (folder,) = (tmp_path / "listops").glob("[!.]*")
    assert lines(folder) == []


# ---------------------------------------------------------------------- disks


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("warned", [True, False])
def test_a_full_disk(full_disk: Path, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused beforehand from the sizes, or met while writing: the same end."""
    if not warned:
        monkeypatch.setattr(preparing, "require_space", lambda *a: None)
    options = lra.data.configure("listops", ["n_train=900", "n_val=5", "n_test=5"])
    with pytest.raises(UserError) as error:
        prepare(options, max_length=2000, data_dir=full_disk)
    assert f"no space left on the disk of {full_disk / 'listops'}" in str(error.value)
    assert ("2 MB are needed, 1 MB are free" in str(error.value)) == warned
    assert leftovers(full_disk) == []
    assert shutil.disk_usage(full_disk).used < 2**16


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_disk_that_fills_up_at_any_moment(
    tmp_path: Path, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    target: dict[str, tuple[Any, str]] = {
        "write": (ArrayFile, "_write_header"),
        "fsync": (os, "fsync"),
        "rename": (Path, "rename"),
    }
    monkeypatch.setattr(*target[call], fail)
    options = lra.data.configure("listops", ["source=tiny"])
    with pytest.raises(UserError, match="no space left on the disk of"):
        prepare(options, max_length=2000, data_dir=tmp_path)
    assert leftovers(tmp_path) == []


@pytest.fixture
def closed_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that cannot be written, by root neither."""
    folder = tmp_path / "closed"
    folder.mkdir()
    if os.geteuid() != 0:
        folder.chmod(0o500)
        yield folder
        folder.chmod(0o700)
        return
    mount = ["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a read-only file system here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_closed_folder(closed_folder: Path) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    with pytest.raises(UserError) as error:
        prepare(options, max_length=2000, data_dir=closed_folder)
    assert str(error.value).startswith(f"cannot write to {closed_folder / 'listops'} (")


def test_a_file_in_the_place_of_the_folder(tmp_path: Path, lra_data: Call) -> None:
    (tmp_path / "data").write_text("I am a file", encoding="utf-8")
    code, _, err = lra_data("prepare", "listops", "source=tiny")
    assert code == 2
    assert f"cannot write to {tmp_path / 'data' / 'listops'}" in err


def test_prepared_data_can_lie_on_a_read_only_disk(
    tiny: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparing, "lock", lambda *a: pytest.fail("locked"))
    options = lra.data.configure("listops", ["source=tiny"])
    for get in (prepare, find_or_prepare):
        found = get(options, max_length=2000, data_dir=tmp_path / "data")
        assert found.fingerprint == tiny.fingerprint


# ---------------------------------------------------------------------- found or prepared


def test_what_needs_no_download_is_prepared_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = lra.data.configure("listops", ["source=tiny"])
    first = find_or_prepare(options, max_length=2000, data_dir=tmp_path)
    said = capsys.readouterr().out
    assert said.startswith("listops is not prepared yet (a bundled miniature, for trying things")
    assert said.endswith("; preparing it now\n")
    again = find_or_prepare(options, max_length=2000, data_dir=tmp_path)
    assert capsys.readouterr().out == ""
    assert again.fingerprint == first.fingerprint


def test_what_needs_a_download_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = lra.data.configure("listops", ["source=tiny", "brackets=drop"])
    monkeypatch.setattr("lra.data.listops.task.ListOps.needs_download", lambda *_: True)
    with pytest.raises(UserError) as error:
        find_or_prepare(options, max_length=30, data_dir=tmp_path)
    assert str(error.value).endswith(
        "run `lra data prepare listops source=tiny brackets=drop "
        f"--data-dir {tmp_path} --max-length 30`"
    )
    assert list(tmp_path.iterdir()) == []


def test_rows_read_only_what_is_asked_for(tmp_path: Path) -> None:
    values = np.arange(60, dtype=np.uint16).reshape(6, 10)
    np.save(tmp_path / "x.npy", values)
    rows = Rows(tmp_path / "x.npy")
    index = np.array([5, 0, 0, 3])
    for columns in (1, 7, 10):
        assert (rows.take(index, columns) == values[index, :columns]).all()
    assert rows.take(np.array([], np.int64), 4).shape == (0, 4)


# ---------------------------------------------------------------------- examples that cannot be


@pytest.mark.parametrize(
    ("ids", "label", "complaint"),
    [
        ([1, 2], 3, "label 3; the labels of numbers are 0 to 2"),
        ([1, 2], -1, "label -1"),
        ([1, 300], 0, "ids 1 to 300; those of numbers are 0 to 299"),
        ([-1, 2], 0, "ids -1 to 2"),
    ],
)
def test_ids_and_labels_out_of_range(
    ids: list[int], label: int, complaint: str, fakes: None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    from lra.data.arrays import Example
    from lra.data.task import RawSplit

    bad = [RawSplit("train", [Example(np.array(ids), label)], 1)]
    monkeypatch.setattr("tests.lra.data.conftest.Numbers.splits", lambda *a: bad)
    with pytest.raises(UserError) as error:
        prepare(lra.data.configure("numbers"), max_length=9, data_dir=tmp_path / "data")
    assert complaint in str(error.value)
    assert leftovers(tmp_path / "data") == []


def test_an_image_of_another_size_and_an_empty_split(
    fakes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lra.data.arrays import Example
    from lra.data.task import RawSplit

    options = lra.data.configure("pictures")
    bad = [RawSplit("train", [Example(np.zeros(7, int), 0)], 1)]
    monkeypatch.setattr("tests.lra.data.conftest.Pictures.splits", lambda *a: bad)
    with pytest.raises(UserError, match="an image of train has 7 pixels; pictures has 6"):
        prepare(options, max_length=9, data_dir=tmp_path / "data")
    bad = [RawSplit("train", [Example(np.zeros(6, int), 0)], 1), RawSplit("val", [], 0)]
    with pytest.raises(UserError, match="pictures has no examples for val and test"):
        prepare(options, max_length=9, data_dir=tmp_path / "data")
