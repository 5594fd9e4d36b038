"""scripts/study/gpu_quarter.py: its queue composes, its scheduler keeps to the time, and a call
that is stopped is gone on with by the next one. No GPU is needed."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import luna
from lra.results.record import read_sweep

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "study" / "gpu_quarter.py"
QUEUE = SCRIPT.with_name("queue.yaml")
RECORDS = ROOT / "results" / "records" / "published_listops.jsonl"


sys.path.insert(0, str(SCRIPT.parent))  # where the script finds its parts
gpu_quarter = importlib.import_module("gpu_quarter")
call_, jobs_, scheduler, steps = (
    importlib.import_module(f"gpu.{name}") for name in ("call", "jobs", "scheduler", "steps")
)


@pytest.fixture(scope="module")
def entries() -> list[Any]:
    return jobs_.read_queue(QUEUE)


# ---------------------------------------------------------------------- the queue


def test_who_is_queued_or_left_out_is_a_method_and_none_is_both(entries: list[Any]):
    """A method that is in neither has no run there yet, as one that somebody begins."""
    left_out = yaml.safe_load(QUEUE.read_text(encoding="utf-8"))["left_out"]
    assert all(isinstance(reason, str) and len(reason) > 10 for reason in left_out.values())
    queued = {entry.run.attention["name"] for entry in entries}
    assert not queued & left_out.keys()
    assert queued | left_out.keys() <= set(luna.names())


def test_the_queue_is_in_its_order_and_no_run_is_in_it_twice(entries: list[Any]):
    first = [entry.run.attention["name"] for entry in entries[:4]]
    assert first == ["s4d", "softmax", "luna", "luna"]
    identities = [entry.run.experiment.identity("") for entry in entries]
    assert len(set(identities)) == len(identities)
    titles = {jobs_.Job(entry, 1).title for entry in entries}  # logs and failures go by them
    assert len(titles) == len(entries)
    folders = [Path(entry.run.runs_dir).name for entry in entries]
    order = ["s4d_image", "published_listops", "published_text", "published_listops_long"]
    assert list(dict.fromkeys(folders)) == order
    assert folders == sorted(folders, key=order.index)


def test_every_run_is_one_of_the_protocol_on_a_gpu(entries: list[Any]):
    for entry in entries:
        run, of_s4 = entry.run, entry is entries[0]
        assert run.protocol.name == ("s4" if of_s4 else "nystrom")
        assert run.trainer.accelerator == "gpu"
        assert run.trainer.compile.name == ("default" if of_s4 else "graphs")
        assert str(run.trainer.precision) == "32-true"
        assert run.protocol.recipe.steps == run.protocol.evaluation.every * (25 if of_s4 else 20)
        assert entry.seconds > 0


def test_the_small_s4d_comes_first_with_the_steps_that_fit_a_quarter(entries: list[Any]):
    recipe = entries[0].run.protocol.recipe
    assert (recipe.steps, recipe.warmup, recipe.batch) == (25_000, 1_250, 50)


def test_long_runs_keep_the_shape_of_the_schedule(entries: list[Any]):
    recipe = entries[-1].run.protocol.recipe
    assert (recipe.steps, recipe.warmup) == (50_000, 10_000)


def test_a_run_with_a_record_is_done(entries: list[Any]):
    records = read_sweep(RECORDS)
    done = {entry.title: jobs_.seeds_done(entry, records) for entry in entries}
    assert done["attention=luna attention.preset=published"] == {1, 2, 3}
    assert done["attention=linformer"] == {1, 2, 3}
    assert {1, 2} <= done["attention=softmax"]
    assert not done["steps_share=10 attention=softmax"]


def test_the_list_says_how_many_runs_are_left(
    entries: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(gpu_quarter, "read_queue", lambda file: entries)
    monkeypatch.chdir(ROOT)
    assert gpu_quarter.main(["--list", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [line.split()[0] for line in printed.splitlines()[:3]] == list(steps.STEPS)
    assert re.search(r"^\d+ of \d+ runs are left, about \d+ minutes of an H100$", printed, re.M)
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------------- the scheduler


def call_of(tmp_path: Path, left: float = 100.0) -> Any:
    words = ["--out", str(tmp_path), "--minutes", "1"]
    call = call_.Call(gpu_quarter.parse(words))
    call.end = time.monotonic() + call_.STOPPING + left
    return call


def job(tmp_path: Path, name: str, seconds: float = 10.0) -> Any:
    run = SimpleNamespace(runs_dir=str(tmp_path / "runs"), attention={"name": name})
    entry = jobs_.Entry("", (f"attention={name}",), (1,), seconds, run)
    return jobs_.Job(entry, 1)


def queue_of(jobs: list[Any], call: Any, code: str, *, ready: bool = True) -> Any:
    """A queue whose runs are lines of Python."""
    return scheduler.Queue(
        jobs,
        call,
        side_by_side=2,
        is_ready=lambda entry: ready,
        words=lambda job, **facts: ["-c", code.format(**facts)],
    )


def run_out(queue: Any, seconds: float = 20.0) -> int:
    """Turn the queue until nothing is left; the most that ran side by side."""
    end, most = time.monotonic() + seconds, 0
    while queue.turn() and time.monotonic() < end:
        most = max(most, len(queue.active))
        time.sleep(0.02)
    return most


def test_runs_go_side_by_side_until_none_is_left(tmp_path: Path):
    jobs = [job(tmp_path, str(i)) for i in range(5)]
    queue = queue_of(jobs, call_of(tmp_path), "import time; time.sleep(0.1)")
    assert run_out(queue) == 2
    assert sorted(j.title for j in queue.done) == sorted(j.title for j in jobs)


def test_a_run_begins_if_the_work_of_all_fits(tmp_path: Path):
    left = 100 + scheduler.STARTING
    jobs = [job(tmp_path, "long", 80), job(tmp_path, "longer", 90), job(tmp_path, "short", 15)]
    queue = queue_of(jobs, call_of(tmp_path, left), "import time; time.sleep(30)")
    assert queue.turn()
    assert [a.job.entry.words[0] for a in queue.active] == ["attention=long", "attention=short"]
    queue.stop()
    assert not queue.failures.of(jobs[0])


def test_an_idle_gpu_is_given_a_run_that_is_too_long(tmp_path: Path):
    jobs = [job(tmp_path, "long", 900), job(tmp_path, "longer", 950)]
    queue = queue_of(jobs, call_of(tmp_path), "import time; time.sleep(30)")
    assert queue.turn()
    assert [a.job.seconds for a in queue.active] == [900]
    queue.stop()


def test_without_data_or_time_nothing_begins(tmp_path: Path):
    jobs = [job(tmp_path, "a")]
    assert not queue_of(jobs, call_of(tmp_path), "", ready=False).turn()
    assert not queue_of(jobs, call_of(tmp_path, 5.0), "").turn()


def test_a_run_that_fails_is_tried_once_more_and_not_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    jobs = [job(tmp_path, "bad"), job(tmp_path, "good")]
    code = "print('the reason', {failures}); import sys; sys.exit(1)"
    queue = queue_of(jobs[:1], call_of(tmp_path), code)
    run_out(queue)
    printed = capsys.readouterr().out
    assert "the reason 0" in printed
    assert "the reason 1" in printed
    assert queue.failures.of(jobs[0]) == scheduler.TRIES
    following = queue_of(jobs, call_of(tmp_path), "")  # the next call
    assert [j.title for j in following.waiting] == [jobs[1].title]


def test_the_second_try_is_not_compiled(tmp_path: Path):
    entry = jobs_.Entry("", ("trainer.compile=graphs", "a=b"), (1,), 1.0, None)
    first = scheduler.train_words(jobs_.Job(entry, 3), failures=0, minutes=8)
    assert first[3:] == ["trainer.compile=graphs", "a=b", "seed=3", "limit_minutes=8.00"]
    second = scheduler.train_words(jobs_.Job(entry, 3), failures=1, minutes=8)
    assert second[3:] == ["a=b", "seed=3", "limit_minutes=8.00", "trainer.compile=off"]


@pytest.mark.parametrize("code", [143, 142, 130])
def test_a_run_that_stops_with_a_checkpoint_has_not_failed(tmp_path: Path, code: int):
    queue = queue_of([job(tmp_path, "a")], call_of(tmp_path), f"import sys; sys.exit({code})")
    run_out(queue)
    assert not queue.done
    assert not (tmp_path / "failed.json").exists()


# ---------------------------------------------------------------------- steps


def test_tests_that_take_their_mark_from_another_file_run_too(tmp_path: Path):
    """As test_decayed.py does, whose tests a card did not see for a day."""
    folders = [word for word in steps.words_of("tests", tmp_path) if word.startswith("tests/")]
    assert any((ROOT / folder / "test_decayed.py").exists() for folder in folders)


def test_a_step_that_ended_well_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    call, script = call_of(tmp_path), tmp_path / "step.py"
    script.write_text("raise SystemExit('no card')\n", encoding="utf-8")
    monkeypatch.setattr(steps, "words_of", lambda step, out: [str(script)])
    steps.finish_step("tests", steps.begin_step("tests", call), call)
    text = (tmp_path / "tests.txt").read_text(encoding="utf-8")
    assert "no card" in text
    assert "FAILED with exit code 1" in text
    script.write_text("print('fine')\n", encoding="utf-8")
    steps.finish_step("tests", steps.begin_step("tests", call), call)
    assert steps.is_done("tests", tmp_path)
    assert steps.begin_step("tests", call) is None


def test_a_step_ends_with_its_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    words = ["-c", "import time; print('begun', flush=True); time.sleep(60)"]
    monkeypatch.setattr(steps, "words_of", lambda step, out: words)
    call = call_of(tmp_path, 12.0)
    process = steps.begin_step("bench", call)
    call.end = time.monotonic() + call_.STOPPING + 1
    steps.finish_step("bench", process, call)
    assert process.poll() is not None
    assert "not finished" in (tmp_path / "bench.txt").read_text(encoding="utf-8")
    assert not steps.is_done("bench", tmp_path)


# ---------------------------------------------------------------------- real runs


TINY = """\
groups:
  - words: >-
      task=listops task.source=tiny trainer=cpu trainer.threads=1 trainer.checkpoint_every=4
      compute=report model.n_layers=1 model.d_model=16 model.qkv_dim=16 model.mlp_dim=16
      protocol.data.max_length=64 protocol.data.pad_to=64 protocol.recipe.batch=8
      protocol.recipe.warmup=2 protocol.evaluation.every=STEPS protocol.recipe.steps=STEPS
      data_dir=FOLDER/data runs_dir=FOLDER/runs/tiny
    seeds: [1]
    runs:
      - {words: attention=linear, seconds: 2}
      - {words: attention=uniform, seconds: 2}
"""


def command(tmp_path: Path, steps: int, *words: str) -> list[str]:
    file = tmp_path / "queue.yaml"
    text = TINY.replace("STEPS", str(steps)).replace("FOLDER", str(tmp_path))
    file.write_text(text, encoding="utf-8")
    places = ["--queue", str(file), "--out", str(tmp_path / "out")]
    return [sys.executable, str(SCRIPT), *places, "--only", "queue", "--jobs", "2", *words]


def complete(tmp_path: Path) -> None:
    """Both runs are exported, each with its answers."""
    records = read_sweep(tmp_path / "out" / "tiny.jsonl")
    assert [r.attention for r in records] == ["linear", "uniform"]
    assert all(r.answers is not None for r in records)


@pytest.mark.rest
def test_a_call_that_is_stopped_is_gone_on_with(tmp_path: Path):
    """By SIGTERM while two runs train; without a second time for what was done. What was not
    exported is exported by the next call."""
    words = command(tmp_path, 1200)  # seconds of training
    first = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + 120
    running: list[Path] = []
    while len(running) < 2 and time.monotonic() < end:
        time.sleep(0.1)
        found = (tmp_path / "runs").rglob("last.ckpt")
        running = [path for path in found if path.is_file()]
    first.send_signal(signal.SIGTERM)
    printed, _ = first.communicate(timeout=60)
    assert printed.count("stopped after") == 2, printed
    assert "2 of 2 runs are left" in printed
    second = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "0 of 2 runs are left" in second
    complete(tmp_path)
    logs = [path.read_text(encoding="utf-8") for path in (tmp_path / "runs").rglob("logs/*.txt")]
    assert sum("resum" in text for text in logs) == 2
    # Records lie in the folders of runs, and suppose the call was killed before it copied them.
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    third = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "tiny.jsonl: 2 new records" in third
    assert "0 runs done in this call; 0 of 2 runs are left" in third
    complete(tmp_path)
    assert json.loads((tmp_path / "out" / "tiny.jsonl").read_text().splitlines()[0])["shared"]
