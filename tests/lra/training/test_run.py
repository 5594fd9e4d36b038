"""What a run says, leaves behind, and answers when something is wrong."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

import lra
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.report.specs import TableSpec
from lra.report.trainings import build as build_table
from lra.results.frame import frame_of
from lra.results.record import load_records
from lra.runs.folder import read_metrics
from lra.runs.search import find, folder_of
from lra.settings.compose import Run
from lra.training import run as runner
from lra.training.checkpoints import load_checkpoint
from lra.training.module import LRAModule
from lra.training.run import build
from lra.training.trainer import trainer_for

from ..conftest import SMALL, command, start
from ..synthetic import selected

SHORT = ("protocol.recipe.steps=4", "protocol.evaluation.every=2")


def only_folder(run: Run) -> Path:
    """The folder of the only run of a test."""
    [config] = Path(run.runs_dir).rglob("config.yaml")
    return config.parent


def result_of(run: Run) -> dict[str, Any]:
    return read_json(only_folder(run) / "result.json")


@pytest.fixture(scope="module")
def finished(data_dir, tmp_path_factory):
    """One run through the real command line: its output and its folder."""
    runs = tmp_path_factory.mktemp("finished")
    words = [*SMALL, f"data_dir={data_dir}", f"runs_dir={runs}", "trainer.print_every=0"]
    words += ["compute=report", "compute.reference=uniform"]
    done = command("train.py", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout, next(runs.rglob("result.json")).parent


def test_the_output_names_each_phase_and_ends_with_the_record(finished):
    output, folder = finished
    lines = output.strip().splitlines()
    for phase in ("task ", "attention ", "compute ", "training ", "run ", "  step "):
        assert any(line.startswith(phase) for line in lines), phase
    assert re.search(r"loss .*train .*steps/s .*left\n", output)
    assert lines[-1] == f"record: {folder / 'result.json'}"


def test_the_record_holds_what_a_table_needs(finished):
    record = read_json(finished[1] / "result.json")
    name = f"{record['identity']}-{record['codes'][0]}"
    assert finished[1].parts[-6:] == ("listops", "luna", "small", "linear", name, "seed-1")
    assert (record["attention"]["name"], record["steps"], record["batch"]) == ("linear", 30, 8)
    assert record["compute"]["reference"]["attention"] == "uniform"
    assert record["compute"]["reference"]["flops"] > 1
    assert sum(selected(record)["predicted"]) == selected(record)["examples"]
    assert 0 < record["floor"] < 100
    assert min(record["steps_per_second"], record["peak_memory_mib"]) > 0
    assert (record["machine"]["kind"], record["machine"]["threads"]) == ("cpu", 1)


def test_the_reported_checkpoint_is_the_best_on_dev(finished):
    record, rows = (
        read_json(finished[1] / "result.json"),
        read_metrics(finished[1] / "metrics.csv"),
    )
    assert [int(r["step"]) for r in rows if r["train_loss"]] == [*range(2, 31, 2)]
    dev = {int(r["step"]): float(r["dev_score"]) for r in rows if r["dev_score"]}
    assert list(dev) == [10, 20, 30]
    assert record["select"] == "best"
    assert record["dev"]["score"] == pytest.approx(max(dev.values()), abs=1e-6)
    assert dev[selected(record)["step"]] == max(dev.values())


@pytest.mark.parametrize(("rule", "best"), [("select=last", (2, 4)), ("select_after=1.0", (None,))])
def test_a_protocol_may_report_the_last_checkpoint(small, rule: str, best: tuple[int | None]):
    """Though there is a best one, or because none is kept."""
    record = read_json(runner.train(small(f"protocol.evaluation.{rule}", *SHORT)))
    assert (record["select"], selected(record)["step"]) == ("last", 4)
    assert record["stages"].get("best", {"step": None})["step"] in best


def test_examples_that_are_cut_are_said(small, capsys):
    runner.train(small(*SHORT, "protocol.data.max_length=10"))
    said = r"note: (\d+) training examples are longer than 10 tokens"
    [note] = re.findall(said, capsys.readouterr().out)
    assert 0 < int(note) < 100
    runner.train(small(*SHORT, "seed=2"))
    assert "examples are longer" not in capsys.readouterr().out


DAMAGED = [  # file, the file of a finished run that it is made of, how, and what is said
    ("last.ckpt", "checkpoints/last.ckpt", lambda c: c[: len(c) // 2], "last.ckpt is damaged"),
    ("last.ckpt", "checkpoints/best.ckpt", lambda c: c, "last.ckpt belongs to run {identity}"),
    ("../result.json", "result.json", lambda c: c[:20], "result.json is damaged"),
    ("../result.json", "result.json", lambda _: b'{"test": {}, "dev": {}}', "an earlier version"),
    ("../result.json", "result.json", lambda c: c.replace(b'"seed": 1', b'"seed": 2'), "edited"),
]


def flipped(content: bytes, seed: int) -> bytes:
    """Flip a bit in the middle half, which holds weights and states."""
    bit = Random(seed).randrange(2 * len(content), 6 * len(content))
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


@pytest.mark.parametrize(("file", "source", "change", "problem"), DAMAGED)
def test_a_file_that_is_damaged_or_of_another_run_is_named(
    finished, small, file: str, source: str, change: Callable[[bytes], bytes], problem: str
):
    run, identity = small("model.mlp_dim=32"), read_json(finished[1] / "result.json")["identity"]
    folder = find(run)
    assert folder is not None  # its data are prepared
    folder.last.parent.mkdir(parents=True)
    (folder.last.parent / file).write_bytes(change((finished[1] / source).read_bytes()))
    with pytest.raises(UserError, match=problem.format(identity=identity)):
        runner.train(run)


def test_no_flipped_bit_changes_what_a_checkpoint_holds(finished, tmp_path):
    """It is noticed, or lies where nothing is read."""
    whole, noticed = finished[1] / "checkpoints/last.ckpt", 0
    expected = torch.load(whole, weights_only=True)["state_dict"]["network.head.0.weight"]
    for seed in range(60):
        (tmp_path / "last.ckpt").write_bytes(flipped(whole.read_bytes(), seed))
        try:
            state = load_checkpoint(tmp_path / "last.ckpt")["state_dict"]
        except UserError:
            noticed += 1
        else:
            assert torch.equal(state["network.head.0.weight"], expected)
    assert noticed > 30


def test_checkpoints_of_different_steps_are_refused(finished, small, monkeypatch):
    run = small()
    with monkeypatch.context() as patch:
        patch.setattr(runner, "test", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            runner.train(run)
    best = only_folder(run) / "checkpoints/best.ckpt"
    content = torch.load(best, weights_only=True)
    torch.save(content | {"global_step": content["global_step"] - 1}, best)
    with pytest.raises(UserError, match=r"best\.ckpt is of step \d+, but .* remove both"):
        runner.train(run)


def test_two_processes_train_what_one_does(small, train, tmp_path):
    """Over gloo, with the same global batch; without dropout, whose draws are each process's: for
    their sake it is another run, with a row of its own."""
    still = ("model.dropout=0", "model.attention_dropout=0")
    runner.train(small(*still))
    two = ("trainer=ddp", "trainer.accelerator=cpu", f"runs_dir={tmp_path / 'two'}")
    done = train(*still, *two)
    assert done.returncode == 0, done.stderr
    one, two = (read_metrics(next((tmp_path / d).rglob("metrics.csv"))) for d in ("runs", "two"))
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        for key in ("train_loss", "dev_loss", "dev_score", "lr"):
            if a[key]:
                assert float(a[key]) == pytest.approx(float(b[key]), rel=1e-3), (a["step"], key)
    first, second = records = [load_records([tmp_path / d])[0] for d in ("runs", "two")]
    assert second["machine.processes"] == second["settings.processes"] == 2
    assert "processes" not in first["settings"]
    assert first.stage["examples"] == second.stage["examples"]
    assert first["identity"] == small(*still).experiment.identity(first["data.fingerprint"])
    same = small(*still, "trainer.devices=2")
    assert second["identity"] == same.experiment.identity(first["data.fingerprint"])
    table = build_table(TableSpec(name="t", title="t"), frame_of(records))
    assert {*table.rows.index} == {"linear", "linear processes=2"}


@pytest.mark.parametrize(("precision", "matmul"), [("tf32", "high"), ("32-true", "highest")])
def test_a_run_sets_tf32_for_itself(small, precision: str, matmul: str):
    try:
        torch.set_float32_matmul_precision("medium")
        run = small(f"trainer.precision={precision}")
        trainer_for(folder_of(run, "0" * 16))
        assert torch.get_float32_matmul_precision() == matmul
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
    finally:
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["attention.eps=-1"], r"eps must be greater than 0"),
        (["attention.eps=nan"], r"linear\.eps must be a finite number, got nan"),
        (["runs_dir=" + "a" * 300], r"cannot write to .* \(File name too long\)"),
    ],
)
def test_what_is_a_sentence_on_the_command_line_is_a_user_error_from_python(
    small, words: list[str], reason: str
):
    with pytest.raises(UserError, match=reason):
        lra.train(small(*words, *SHORT))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("trainer.precision=16-mixed",), "precision 16-mixed needs a GPU: .*32-true"),
        (("trainer.precision=tf32",), "precision tf32 needs a GPU: .*32-true"),
        (("trainer=gpu", "trainer.devices=[0,640]"), r"\[0, 640\] needs 641 GPUs, torch can"),
        (("trainer.devices=[640]",), r"trainer.devices=\[640\] needs 641 GPUs, torch can"),
        (
            ("protocol.recipe.lr=1e30", "protocol.recipe.clip=none"),
            r"the train loss is nan at step 2: the run diverged; lower protocol\.recipe\.lr",
        ),
    ],
)
def test_a_run_that_cannot_go_on_says_why(small, words: tuple[str, ...], reason: str):
    run = small(*words)
    with pytest.raises(UserError, match=reason):
        runner.train(run)
    statuses = [read_json(path)["status"] for path in Path(run.runs_dir).rglob("status.json")]
    assert statuses == (["failed"] if "diverged" in reason else [])
    assert not list(Path(run.runs_dir).rglob("result.json"))


def test_the_checkpoint_of_a_compiled_run_fits_the_network(small, monkeypatch):
    """By dynamo and autograd's tracer, without the minute that a C++ compiler takes."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    run = small("trainer.compile=default", "protocol.recipe.steps=2", "protocol.evaluation.every=2")
    runner.train(run)
    stored = torch.load(only_folder(run) / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    build(run).load_state_dict(stored)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("attention", ["luna", "softmax"])
def test_an_interrupted_run_draws_the_dropout_it_would_have(
    small, tmp_path, monkeypatch, attention: str, threads: int
):
    """Bit for bit; of softmax's weights too, which backward draws a second time."""
    words = (f"attention={attention}", f"trainer.threads={threads}", "trainer.log_every=1", *SHORT)
    whole, halved = (small(*words, f"runs_dir={tmp_path / name}") for name in ("whole", "halved"))
    runner.train(whole)
    step = LRAModule.training_step

    def stop(module, *batch):
        if module.global_step == 3:
            raise InterruptedError
        return step(module, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(LRAModule, "training_step", stop)
        with pytest.raises(InterruptedError):
            runner.train(halved)
    runner.train(halved)
    first, second = (read_metrics(only_folder(run) / "metrics.csv") for run in (whole, halved))
    losses = [[row["train_loss"] for row in rows if row["train_loss"]] for rows in (first, second)]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 4


def test_the_first_losses_are_the_golden_ones(small):
    """Nothing of data order, initialisation, network, optimiser or schedule moved. A change that
    may move these numbers says so in CHANGELOG.md and runs this file with GOLDEN=write."""
    golden = Path(__file__).parent / "golden" / "listops-luna.csv"
    run = small("attention=luna", "trainer.log_every=1")
    runner.train(run)
    rows = read_metrics(only_folder(run) / "metrics.csv")
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    if os.environ.get("GOLDEN") == "write":
        golden.write_text("".join(f"{loss:.6g}\n" for loss in losses[:20]), encoding="utf-8")
    expected = [float(line) for line in golden.read_text(encoding="utf-8").split()]
    assert losses[:20] == pytest.approx(expected, rel=2e-4)


@pytest.mark.rest
@pytest.mark.parametrize("moment", ["started", "training"])
def test_no_process_outlives_the_first_of_several(overrides, tmp_path, moment: str):
    """Which is killed as soon as it has started the second, or in the middle of a step."""
    two = ("trainer=ddp", "trainer.accelerator=cpu", "trainer.devices=2")
    first = start("-m", "lra", "train", *overrides, *two, "protocol.recipe.steps=100000")
    try:
        others = within(120, lambda: children(first.pid))
        if moment == "training":
            assert within(120, lambda: any(read_metrics(f) for f in tmp_path.rglob("metrics.csv")))
        first.kill()
        first.wait()
        assert within(60, lambda: not any(Path(f"/proc/{pid}").exists() for pid in others))
    finally:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def within(seconds: float, asked: Callable[[], Any]) -> Any:
    """What is asked for, as soon as it is there."""
    end = time.monotonic() + seconds
    while not (found := asked()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
