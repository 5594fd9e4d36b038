"""scripts/first_hour.py on a CPU: parts that take no time, its own small ones in this process, the
words of the others, and a run."""

from __future__ import annotations

import importlib
import json
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from lra import cli
from lra.settings.compose import check, initialised
from lra.sweeps.status import jobs

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "first_hour.py"
Main = Callable[..., int]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SCRIPT.parent)
        return importlib.import_module(SCRIPT.stem)


@pytest.fixture
def main(script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Main:
    """The command in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--device", "cpu", "--quick", *words])
        return script.main()

    return run


def test_parts_are_done_once_and_their_output_is_packed(
    script: ModuleType, main: Main, monkeypatch: pytest.MonkeyPatch, capsys
):
    found = {"good": "open('made', 'w').close(); print('well')", "bad": "raise SystemExit(3)",
             "cut": f"raise SystemExit({script.LATE})",
             "stuck": "import time; time.sleep(600)"}  # fmt: skip
    monkeypatch.setattr(script, "LIMIT", 5)
    monkeypatch.setattr(
        script, "parts", lambda *_: [(name, ["-c", code]) for name, code in found.items()]
    )
    assert main("--minutes", "0") == 1
    assert "4 parts are left: repeat the command" in capsys.readouterr().out
    out = Path("first-hour")
    (out / "runs").mkdir()
    (out / "runs/last.ckpt").touch()
    assert main() == 1
    printed = capsys.readouterr().out
    for how in ("good: done", "bad: FAILED, exit 3", "cut: not finished", "stuck: not finished"):
        assert how in printed
    assert (out / "good.txt").read_text(encoding="utf-8") == "well\n"
    assert json.loads((out / "bad.json").read_text(encoding="utf-8"))["exit"] == 3
    found |= dict.fromkeys(("bad", "cut", "stuck"), "print('mended')")
    (out / "made").unlink()
    assert main() == 0
    assert "done; the file to attach" in capsys.readouterr().out
    assert not (out / "made").exists()  # what ended well is not repeated
    with tarfile.open("first-hour.tar.gz") as archive:
        packed = {Path(name).name for name in archive.getnames()}
    assert {"good.txt", "stuck.json"} <= packed
    assert "last.ckpt" not in packed


def test_its_own_parts_measure_and_compare(
    script: ModuleType, main: Main, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.setattr(script, "SLOW", float("inf"))
    assert main("--run", "environment") == 0
    assert set(json.loads(capsys.readouterr().out)) >= {"machine", "versions", "switches", "git"}
    assert main("--run", "correctness") == 0
    printed = capsys.readouterr().out
    assert printed.endswith("(methods with discrete choices may be so): none\n")
    assert printed.count("luna ") == 3
    assert main("--run", "kernels-0") == 0
    rows = json.loads(Path("kernels-0.data.json").read_text(encoding="utf-8"))
    assert set(rows) == {"luna fused", "luna piecewise", "luna dense", "linear", "softmax",
                         "limit of the memory"}  # fmt: skip
    assert all(len(times) == 2 for times in rows.values())
    assert 0 < rows["limit of the memory"]["64"] < rows["softmax"]["64"]
    assert Path("kernels-0.png").stat().st_size > 1000


@pytest.mark.parametrize(("device", "quick"), [("cuda", False), ("cpu", True)])
def test_the_other_parts_are_commands_that_there_are(script: ModuleType, device: str, quick: bool):
    import hydra

    found = dict(script.parts(device, quick))
    assert len(found) == (10 if quick else 25)
    parser = cli._parser()[0]
    with initialised():
        for name, (flag, module, command, *words) in found.items():
            if (flag, module) != ("-m", "lra"):
                assert name.partition("-")[0] in {*script.OWN, "tests"}
                continue
            if command != "train":
                parser.parse_args([command, *words])
            if name in ("train", "steps-pathfinder") or name.startswith("run-listops"):
                *_, last = jobs([word for word in words if "=" in word])
                check(hydra.compose("train", last))


@pytest.mark.slow
def test_a_run_of_the_rehearsal(script: ModuleType, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(dict(script.parts("cpu", quick=True))["run-listops-0"][2:]) == 0
    assert list(Path("runs").rglob("result.json"))
