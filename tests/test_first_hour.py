"""The rehearsal of scripts/first_hour.py: every part, small, on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "first_hour.py"


def rehearse(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
def test_every_part_ends_well_once_and_its_output_is_packed(tmp_path: Path):
    out = tmp_path / "hour"
    none = rehearse(out, "--minutes", "0")
    assert none.returncode == 1
    assert "parts are left: repeat the command" in none.stdout
    (out / "environment.json").write_text('{"exit": 1}', encoding="utf-8")  # it failed before
    done = rehearse(out)
    texts = [path.read_text(encoding="utf-8")[-2000:] for path in out.glob("*.txt")]
    assert done.returncode == 0, "\n".join([done.stdout, done.stderr, *texts])
    names = {path.stem for path in out.glob("*.txt")}
    assert names == {"environment", "tests", "correctness", "kernels-0", "kernels-1", "attention",
                     "causal", "steps-listops", "run-listops-0"}  # fmt: skip
    assert "larger than rounding explains" in (out / "correctness.txt").read_text(encoding="utf-8")
    assert "none" in (out / "correctness.txt").read_text(encoding="utf-8")
    limits = json.loads((out / "kernels-0.data.json").read_text(encoding="utf-8"))
    assert set(limits) == {"luna fused", "luna piecewise", "luna dense", "linear", "softmax",
                           "limit of the memory"}  # fmt: skip
    with tarfile.open(f"{out}.tar.gz") as archive:
        packed = archive.getnames()
    assert any(name.endswith("environment.txt") for name in packed)
    assert not any(name.endswith(".ckpt") for name in packed)
    again = rehearse(out)  # nothing is repeated
    assert (again.returncode, again.stdout.count("done in")) == (0, 0)


@pytest.mark.slow
def test_a_part_that_fails_is_named_and_will_be_done_again(tmp_path: Path):
    out = tmp_path / "hour"
    (out / "kernels-0.data.json").mkdir(parents=True)  # where its numbers belong
    found = rehearse(out, "--parts", "kernels-0")
    assert found.returncode == 1
    assert "kernels-0: FAILED, exit 1" in found.stdout
    assert json.loads((out / "kernels-0.json").read_text(encoding="utf-8"))["exit"] == 1
