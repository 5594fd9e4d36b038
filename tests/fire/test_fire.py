"""The quick form of the fire: some faults and kills of a short training and of an export, in forks
of one fresh process, because that of the tests has threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lra.disk import write_atomically
from tests.lra.conftest import command

from .disk import FailingDisk, Fault


@pytest.mark.slow
def test_short_runs_survive_failing_disks_and_kills(tmp_path: Path) -> None:
    words = ("faults", "kills", "--only", "train", "export", "--every", "47", "--kills", "4")
    ledger = tmp_path / "ledger.json"
    done = command("-m", "tests.fire", *words, "--ledger", str(ledger))
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads(ledger.read_text(encoding="utf-8"))
    assert facts["faults"]["train"]["calls"] > 60
    for part in ("faults", "kills"):
        assert sum(work["done"] for work in facts[part].values()) > 4


def test_the_disk_fails_where_it_is_told_to(tmp_path: Path) -> None:
    disk = FailingDisk(tmp_path)
    with disk.mounted():
        write_atomically(tmp_path / "a", b"one")
    assert disk.events == ["open", "write", "fsync", "rename"]
    for at in range(4):
        with (
            FailingDisk(tmp_path, Fault(at, "EIO")).mounted(),
            pytest.raises(OSError, match="outp"),
        ):
            write_atomically(tmp_path / "a", b"two")
        assert (tmp_path / "a").read_bytes() == b"one"
    with FailingDisk(tmp_path, Fault(1, "short")).mounted():
        write_atomically(tmp_path / "a", b"three")
    assert (tmp_path / "a").read_bytes() == b"three"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
