"""What decides the identity of a run, and which folder is its own."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.results import record as records
from lra.runs import environment
from lra.runs import folder as runs
from lra.runs.folder import RunFolder
from lra.settings.compose import Run


def identity(run: Run) -> str:
    return run.experiment.identity("data")


def test_paths_devices_and_loggers_do_not_change_the_identity(small):
    same = (
        "trainer.log_every=7",
        "logger=wandb",
        "runs_dir=elsewhere",
        "trainer.devices=[3]",
        "seed=5",
    )
    assert identity(small()) == identity(small(*same))


def test_how_many_processes_train_is_part_of_the_identity(small):
    four = ("trainer.devices=4", "trainer.devices=[0,1,2,3]", "trainer.num_nodes=4")
    [shared] = {identity(small(word)) for word in four}
    assert shared not in (identity(small()), identity(small("trainer.devices=2")))
    with pytest.raises(UserError, match=r"trainer\.devices=auto is out of range: .* a number"):
        small("trainer.devices=auto")


def test_whatever_decides_a_result_changes_the_identity(small):
    changes = (
        "model.mlp_dim=32",
        "attention.eps=1e-5",
        "protocol.recipe.lr=0.02",
        "protocol.data.mask=nonzero",
        "steps_share=0.5",
        "attention.dwc=conv1d",
    )
    identities = {change: identity(small(change)) for change in changes}
    other_data = small().experiment.identity("other data")
    different = {identity(small()), other_data, *identities.values()}
    assert len(different) == len(changes) + 2, identities


@pytest.fixture
def folder(small, monkeypatch: pytest.MonkeyPatch):
    """folder("code a", "rerun=true"): the folder of the small run with that code."""

    def build(code: str, *words: str, again: bool = True) -> RunFolder:
        monkeypatch.setattr(runs, "code_of", lambda *_: {"the attention linear": code})
        return RunFolder(small(*words), "data", again=again)

    return build


def begun(folder: RunFolder, *, finished: bool) -> RunFolder:
    folder.path.mkdir(parents=True)
    folder.begin()
    if finished:
        folder.finish(folder.facts() | {"score": 0.25})
    return folder


@pytest.mark.parametrize("finished", [True, False])
def test_a_run_of_other_code_is_kept_and_begun_anew(folder, finished: bool, capsys):
    older = begun(folder("a"), finished=finished)
    assert folder("a").path == older.path
    runs.note_other_code(older.path)  # it is resumed
    now = folder("b")
    assert now.path.parents[1] == older.path.parents[1]
    assert now.name != older.name
    assert now.result() is None
    assert capsys.readouterr().out == ""
    runs.note_other_code(now.path)
    assert f"has changed since {older.path}: beginning anew" in capsys.readouterr().out
    begun(now, finished=False)
    runs.note_other_code(now.path)
    assert capsys.readouterr().out == ""
    assert folder("a").path == older.path


def test_attempts(folder):
    first = begun(folder("a"), finished=True)
    second = folder("a", "rerun=true")
    assert second.path == first.path.with_name("seed-1-attempt-2")
    assert second.attempt == 2
    begun(second, finished=False)
    assert folder("a", "rerun=true").path == second.path  # an interrupted attempt goes on
    second.finish(second.facts() | {"score": 0.5})
    assert folder("a", "rerun=true").attempt == 3
    assert folder("a", "rerun=true", again=False).result()["attempt"] == 2  # what a sweep asks
    assert folder("a").path == first.path


def test_an_edited_result_is_refused(folder):
    done = begun(folder("a"), finished=True)
    text = done.result_file.read_text(encoding="utf-8")
    done.result_file.write_text(text.replace("0.25", "0.95"), encoding="utf-8")
    with pytest.raises(UserError, match="its digest does not fit"):
        records.read_record(done.result_file)


def test_a_resumed_run_says_when_it_first_began(folder, monkeypatch: pytest.MonkeyPatch):
    begun(folder("a"), finished=False)
    later = time.time() + 3600
    monkeypatch.setattr(runs.time, "time", lambda: later)
    resumed = folder("a")
    resumed.finish(resumed.facts() | {"score": 0.25})
    times = read_json(resumed.result_file)["times"]
    began, started, finished = (datetime.fromisoformat(times[k]).timestamp() for k in times)
    assert began < started == finished == int(later)


@pytest.mark.parametrize("when", ["while it runs", "before it is resumed"])
def test_a_clock_that_is_set_back_makes_no_impossible_times(folder, when: str, monkeypatch):
    """Else the record would be refused: it took longer than from its start to its end."""
    clock, work, back = time.time(), 7200, 36000
    monkeypatch.setattr(runs.time, "time", lambda: clock)
    monkeypatch.setattr(runs.time, "monotonic", lambda: clock)
    run = folder("a")
    with run.lock():
        run.begin()
        clock += work
        run.set_status("running")
    clock -= back if when == "before it is resumed" else 0
    if when == "before it is resumed":
        run = folder("a")
    monkeypatch.setattr(runs.time, "time", lambda: clock - back * (when == "while it runs"))
    run.finish(run.facts() | {"score": 0.25})
    times = read_json(run.result_file)["times"]
    began, started, finished = (datetime.fromisoformat(times[k]) for k in times)
    assert began <= started <= finished
    assert work - 1 <= (finished - began).total_seconds() <= work + 1


def test_a_clone_that_is_not_installed_names_its_versions(monkeypatch):
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    assert {*environment.versions()} == {"python", "torch"}
