"""The quick form of the fire: some faults and kills of a short training and of an export, in forks
of one fresh process, because that of the tests has threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lra.disk import write_atomically
from luna.convert.states import read_state, write_state
from tests.lra.conftest import command

from .disk import FailingDisk, Fault
from .faults import enumerate_faults
from .ledger import Ledger, revision
from .pages import page


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


def test_a_disk_that_fails_under_the_state_of_a_conversion_is_no_error_of_torch(tmp_path: Path):
    state, path = {"settings": {}, "weights": torch.arange(100_000)}, tmp_path / "state.pt"
    disk = FailingDisk(tmp_path)
    with disk.mounted():
        write_state(path, state)
    assert disk.events.count("write") > 0
    for fault in enumerate_faults(disk.events):
        there = disk.events[fault.at] == "mkdir"  # the folder is there: its error is no matter
        if not there and fault.kind not in ("short", "slow") and "kill" not in fault.kind:
            with (
                FailingDisk(tmp_path, fault).mounted(),
                pytest.raises(OSError, match=r"outp|space"),
            ):
                write_state(path, state)
            assert torch.equal(read_state(path, {})["weights"], state["weights"])


def test_the_page_names_the_revisions_of_the_counts_and_the_growth(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.json")
    ledger.count(ledger.part("kills", "train"), "SIGKILL", "train, seed 1", [])
    old = {"done": 3, "lost": 1, "kinds": {"SIGINT": 3}}
    ledger.facts["kills"]["table"] = old
    grown = {"from": 400.5, "to": 402.0, "per hour": 0.75}
    ledger.facts["soak"] = {"hours": 2.0, "steps": 12345, "words": [], "revision": "abcdefghi",
                            "resident": grown, "files": grown, "threads": grown}  # fmt: skip
    text = page(ledger)
    short = revision()[:7] + "+" * ("changes" in revision())
    assert f"| train | 1 | 1 | 0 | 0 | `{short}` |" in text
    assert "| table | 3 | 0 | 3 | 1 | `?` |" in text
    assert "12,345 steps in 2 hours" in text
    assert "| open files | 400.5 | 402 | +0.75 |" in text
    ledger.count(ledger.part("kills", "table"), "SIGINT", "table, seed 2", [])
    assert old["revisions"] == ["?", revision()]
