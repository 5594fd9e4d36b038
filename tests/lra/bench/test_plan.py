"""`lra plan`: which runs cost the same, and what they will cost."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from lra.bench import plan
from lra.bench.plan import RunGroup, cost_key, jobs_at_once, totals
from lra.cli import main
from lra.settings.compose import Run
from lra.training.run import train

from ..conftest import start

COSTS = {
    "start": 10.0,
    "step": 2.0,
    "evaluation": 0.5,
    "share": 0.5,
    "val": 30,
    "test": 9,
    "peak": 100.0,
    "room": 1000.0,
}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def call(words: list[str], tell: Any, _: float) -> None:
        plan.first_steps(words, str(tmp_path / "plan"), tell)

    monkeypatch.setattr(plan, "in_new_process", call)


def group(run: Run, left: int = 1, **more: float) -> RunGroup:
    return RunGroup([], run, left, costs=COSTS | more)


@pytest.mark.parametrize(
    ("word", "same"),
    [
        ("seed=2", True),
        ("protocol.recipe.lr=0.1", True),
        ("protocol.recipe.steps=90", False),
        ("attention.dwc=conv1d", False),
        ("trainer.threads=2", False),
        ("protocol.recipe.batch=4", False),
    ],
)
def test_which_runs_cost_the_same(small: Callable[..., Run], word: str, same: bool):
    assert (cost_key(small()) == cost_key(small(word))) is same


def test_the_seconds_of_a_run(small: Callable[..., Run]):
    """30 steps; 3 evaluations of 4 batches of 8; 2 batches of the test set for two checkpoints."""
    one = group(small()).seconds
    assert one == 10 + 30 * 2 + (3 * 4 + 2 * 2) * 0.5
    both = group(small("pretrain=masked", "pretrain.recipe.steps=20")).seconds
    assert both - one == 20 * 2
    some = group(small("protocol.evaluation.dev_batches=1"), step=1).seconds
    assert some == 10 + 30 * 1 + (3 * 1 + 2 * 2) * 0.5


def test_runs_side_by_side_share_the_machine(small: Callable[..., Run]):
    run = small()  # 78 s
    assert totals([group(run)], 4, 1).startswith("0:01:18 for 1 run\n")
    assert totals([group(run, 4)], 2, 2).startswith("0:02:36 for 4 runs")
    # Four of them, each of which keeps half of the machine busy.
    assert totals([group(run, 4)], 4, 4).startswith("0:02:36 for 4 runs")
    assert "NOT FIT" not in totals([group(run, peak=600.0)], 2, 2)
    memory = totals([group(run, 2, peak=600.0)], 2, 2).splitlines()[1]
    assert memory == "memory at once: up to 1,200 of 1,000 MiB; they DO NOT FIT"


def test_how_many_jobs_a_launcher_does_at_once():
    def ask(target: str, **launcher: object) -> tuple[int, int]:
        return jobs_at_once(OmegaConf.create({"_target_": target, **launcher}), 9)

    assert ask("BasicLauncher") == (1, 1)
    assert ask("LaptopLauncher", n_jobs=4) == (4, 4)
    assert ask("SlurmLauncher", array_parallelism=8) == (8, 1)


def test_a_sweep_is_measured(in_this_process, small, overrides, capsys):
    train(small("attention=linear", "seed=1"))
    words = [*(w for w in overrides if not w.startswith("attention=")), "seed=1,2"]
    assert main(["plan", "-m", *words, "attention=linear,uniform"]) == 0
    out = capsys.readouterr().out
    assert "finished, no cost: 1 of 4 runs" in out
    rows = [line.split() for line in out.splitlines() if "attention=" in line]
    assert [(row[:2], row[-1]) for row in rows] == [
        (["1", "30"], "attention=linear"),
        (["2", "30"], "attention=uniform"),
    ]
    assert "for 3 runs, 1 at once" in out
    assert "made-up" not in out
    assert main(["plan", *words[:-1], "seed=1", "attention=linear"]) == 0
    assert capsys.readouterr().out == "finished, no cost: 1 of 1 run\n"


def test_unprepared_data_are_replaced_by_made_up_ids(in_this_process, overrides, tmp_path, capsys):
    assert main(["plan", *overrides, f"data_dir={tmp_path / 'none'}"]) == 0
    assert "made-up ids and no evaluation: listops" in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_runs_that_cannot_start_are_refused(in_this_process, overrides, capsys):
    words = [w for w in overrides if not w.startswith("compute=")]
    assert (
        main(
            [
                "plan",
                *words,
                "attention=luna",
                "compute=matched",
                "compute.reference={parameters: 1}",
            ]
        )
        == 2
    )
    assert "error: nothing could be measured: " in capsys.readouterr().err
    assert main(["plan", *overrides, "seed=1,2"]) == 2
    assert "add -m to run each of them" in capsys.readouterr().err


# ---------------------------------------------------------------- stopped before its end


class Clock:
    """Stands still, unless a test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


def stopped(
    monkeypatch: pytest.MonkeyPatch, told: list[list[dict[str, float]]], reason: type[BaseException]
) -> None:
    """Measuring tells these costs, a list for each group; a minute passes with each and after the
    last, when the `reason` to stop comes."""
    clock, groups = Clock(), iter(told)
    monkeypatch.setattr(plan, "time", clock)

    def measure(_: list[str], tell: Any, until: float) -> None:
        costs = next(groups)
        for cost in costs:
            clock.now += 60
            tell(cost)
        if "peak" not in costs[-1]:
            clock.now += 60
            raise reason
        assert clock.now < until

    monkeypatch.setattr(plan, "in_new_process", measure)


SIZES = {"val": 30, "test": 9}
WHOLE = [SIZES, {"start": 10.0}, {"step": 2.0}, {"evaluation": 0.5}]
WHOLE.append({"peak": 100.0, "room": 1000.0, "share": 0.5})
METHODS = "attention=linear,uniform,softmax"


def shown(out: str) -> dict[str, str]:
    """The lines of the table, by the attention."""
    lines = [line.split() for line in out.splitlines() if "attention=" in line]
    return {line[-1].removeprefix("attention="): " ".join(line[:-1]) for line in lines}


def test_when_the_time_is_up_the_plan_says_what_is_known(
    overrides: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """A first step of all that have one, then one in full, one again in part, one not at all: it is
    estimated from the others."""
    words = [w for w in overrides if not w.startswith("attention=")]
    part: list[dict[str, float]] = [SIZES, {"start": 10.0}, {"step": 3.0}]
    stopped(monkeypatch, [part, part, [SIZES], WHOLE, part], plan.Stopped)
    # Settings may stand on both sides of an option.
    assert main(["plan", "-m", METHODS, "--minutes", "20", *words]) == 0
    out, err = capsys.readouterr()
    assert "stopped after 20 minutes" in err
    order = re.findall(r"measuring (\d) of 3", err)
    assert order == ["1", "2", "3", "1", "2"]
    # 10 + 30 * 2 + (3 * 4 + 2 * 2) * 0.5, and 10 + 30 * 3 without evaluations.
    lines = shown(out)
    assert lines["linear"] == "1 30 2 s 0:01:18 100 all"
    assert lines["uniform"] == "1 30 3 s over 0:01:40 unknown 2 steps"
    assert re.fullmatch(r"1 30 ~[\d.]+ s ~\d:\d\d:\d\d unknown estimated", lines["softmax"])
    assert "over " in out.splitlines()[4]
    assert "for 3 runs, 1 at once" in out
    assert "up to 100 of 1,000 MiB, of the runs that were measured" in out
    assert re.search(r"~ estimated by counted FLOPs and bytes .* within ×\d\.\d in 9 of 10", out)


def test_a_step_that_did_not_end_is_a_bound(
    overrides: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The first step came after ten seconds, and a minute later not yet the second."""
    stopped(monkeypatch, [[SIZES, {"start": 10.0}]], KeyboardInterrupt)
    assert main(["plan", *overrides]) == 130
    out, err = capsys.readouterr()
    assert "interrupted" in err
    assert "over 60 s over 0:30:10 unknown the start" in re.sub(" +", " ", out)


def test_a_plan_of_which_nothing_is_known_says_so(
    overrides: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    stopped(monkeypatch, [[SIZES]], plan.Stopped)
    assert main(["plan", *overrides, "--minutes", "1"]) == 2
    out, err = capsys.readouterr()
    assert out.count("unknown") == 3
    assert "nothing could be measured: give it more --minutes" in err
    assert main(["plan", *overrides, "--minutes", "0"]) == 2
    assert "--minutes 0 is no time" in capsys.readouterr().err
    assert main(["plan", *overrides, "--minutes", "nan"]) == 2


def test_measuring_ends_when_the_time_is_up(tmp_path: Path):
    """The process that measures is killed: it would need longer to import torch."""
    began, told = time.monotonic(), list[dict[str, float]]()
    with pytest.raises(plan.Stopped):
        plan.in_new_process([], told.append, began + 0.3)
    assert time.monotonic() - began < 5
    assert told == []
    with pytest.raises(Exception, match="no setting"):
        plan.in_new_process(["nonsense"], told.append, began + 600)


def exists(group: int) -> bool:
    """Whether there is a process of this group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


# `lra` with costs that are sent and not measured: what a process may do to another is the same.
SENT = """
import sys
from lra.bench import plan
from lra.cli import main
from tests.lra.bench.measuring import measured
plan._send_first_steps = measured
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["-c", SENT], id="sent"),
        pytest.param(["-m", "lra"], id="measured", marks=pytest.mark.rest),
    ],
)
def test_ctrl_c_prints_the_plan(program: list[str], overrides: list[str]):
    """Sent, as a terminal does, to both processes: while the second method is being measured, what
    is known of the first is printed, and no traceback."""
    words = [w for w in overrides if not w.startswith("attention=")]
    words = ["plan", "-m", *words, "attention=linear,uniform"]
    running = start(*program, *words, new_session=True)
    assert running.stdout is not None
    seen = ""
    while "." not in seen.partition("measuring 1 of 2")[2]:
        seen += running.stdout.read(1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children")  # of Linux
    for child in children.read_text().split() if children.exists() else ():
        os.kill(int(child), signal.SIGINT)  # which is not for them to handle
    while "measuring 2 of 2" not in seen:
        seen += (letter := running.stdout.read(1))
        assert letter, seen
    os.killpg(running.pid, signal.SIGINT)
    out = seen + running.communicate(timeout=60)[0]
    assert running.returncode == 130, out
    assert "Traceback" not in out
    table = shown(out[out.index("runs like") :])
    assert table["linear"].endswith(" all")
    assert not table["uniform"].endswith(" all")
    assert "over " in out or "~" in out
    for _ in range(100):  # Python's own tracker of resources takes a moment to end
        if not exists(running.pid):
            break
        time.sleep(0.1)
    assert not exists(running.pid), "a process goes on"


def test_a_device_that_is_not_there_is_refused_at_once(
    overrides: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "in_new_process", lambda *_: pytest.fail("it measures"))
    words = [w for w in overrides if w != "trainer=cpu"]
    assert main(["plan", *words, "trainer.accelerator=gpu", "--minutes", "1"]) == 2
    assert "torch can use 0: trainer=cpu, or fewer devices; --device" in capsys.readouterr().err


def test_a_named_device_needs_no_measurement(
    overrides: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plan, "in_new_process", lambda *_: pytest.fail("it measures"))
    words = [w for w in overrides if not w.startswith(("attention=", "trainer=cpu"))]
    asked = ["plan", "-m", METHODS, *words, "seed=1,2", "trainer.accelerator=gpu"]
    assert main([*asked, "trainer.devices=1", "--device", "h100", "--price", "2"]) == 0
    one = capsys.readouterr().out
    assert len(re.findall("unknown estimated", one)) == 3
    [(hours, price)] = re.findall(
        r"~(\S+) hours of one NVIDIA H100.*an hour (\S+), for 6 runs", one
    )
    assert float(price) == pytest.approx(2 * float(hours), rel=0.01)
    assert main([*asked, "trainer.devices=2", "--device", "h100"]) == 0
    assert "an hour" not in capsys.readouterr().out, "no price of its own"
    for wrong, sentence in (
        (["--device", "abacus"], "--device abacus is not known"),
        (["--device", "Intel"], "--device Intel names several"),
        (["--price", "2"], "--price is of an hour of --device"),
    ):
        assert main([*asked, *wrong]) == 2
        assert sentence in capsys.readouterr().err


def test_without_words_there_is_nothing_to_plan(capsys: pytest.CaptureFixture[str]):
    assert main(["plan"]) == 2
    assert "error: which run? give its words" in capsys.readouterr().err
