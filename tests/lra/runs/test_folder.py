"""What decides the identity of a run, and which folder is its own."""

from __future__ import annotations

import dataclasses
import os
import time
from datetime import datetime

import pytest
import yaml

from lra.base import versions
from lra.base.code import Source
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.base.yaml_data import read_yaml
from lra.results import record as records
from lra.runs import environment, search
from lra.runs import folder as files
from lra.runs.folder import RunFolder
from lra.runs.search import folder_of, note_other_code, other_source
from lra.settings.compose import Run
from lra.training.run import train


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
    with pytest.raises(
        UserError, match=r"trainer\.devices=auto is out of range: .*how many devices"
    ):
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
    """folder("a", "rerun=true"): the folder of the small run, made by that source of errors.py."""

    def build(source: str, *words: str, again: bool = True, outside: str = "") -> RunFolder:
        parts = {"the attention linear": source, "the chosen optimizer": outside}
        made = Source(parts, ("the chosen optimizer",), {"luna/errors.py": source})
        monkeypatch.setattr(search, "source_of", lambda *_: made)
        return folder_of(small(*words), "data", again=again)

    return build


def begun(folder: RunFolder, *, finished: bool) -> RunFolder:
    folder.path.mkdir(parents=True)
    folder.begin()
    if finished:
        folder.finish(folder.facts() | {"score": 0.25})
    return folder


def test_a_finished_run_of_other_source_is_returned_and_says_which_file_differs(folder):
    older = begun(folder("a"), finished=True)
    assert other_source(folder("a")) == ""
    now = folder("b")
    assert now.path == older.path
    assert now.result()["score"] == 0.25
    assert other_source(now) == "luna/errors.py"
    again = folder("b", "rerun=true")
    assert again.path.parent != older.path.parent
    assert again.attempt == 1
    begun(again, finished=True)
    assert older.result_file.exists(), "the old result is kept beside the new one"
    assert folder("b").path == again.path, "of several the one of today's source"
    assert folder("a").path == older.path
    newest = folder("c")
    assert newest.path in (older.path, again.path)


def test_the_newest_of_several_finished_runs_of_other_source_is_returned(folder):
    first, second = (begun(folder(source, "rerun=true"), finished=True) for source in "ab")
    os.utime(first.result_file, (1, 1))
    assert folder("c").path == second.path
    os.utime(second.result_file, (0, 0))
    assert folder("c").path == first.path


def test_a_checkpoint_of_other_source_is_kept_and_continued_when_that_is_back(folder, capsys):
    older = begun(folder("a"), finished=False)
    note_other_code(folder("a"))  # it is resumed
    assert capsys.readouterr().out == ""
    now = folder("b")
    assert now.path.parents[1] == older.path.parents[1]
    assert now.path != older.path
    note_other_code(now)
    said = f"the source has changed (luna/errors.py): beginning anew, {older.path} is kept"
    assert said in capsys.readouterr().out
    begun(now, finished=False)
    note_other_code(now)
    assert capsys.readouterr().out == ""
    assert folder("a").path == older.path


def test_a_run_with_an_edited_plugin_begins_anew(folder):
    begun(folder("a", outside="x"), finished=True)
    assert folder("b", outside="x").result() is not None
    assert folder("a", outside="y").result() is None


def test_raised_numerics_make_another_run_and_say_why(folder, monkeypatch, capsys):
    older = begun(folder("a"), finished=True)
    raised = dataclasses.replace(versions.PARTS["step"], numerics=2)
    monkeypatch.setitem(versions.PARTS, "step", raised)
    now = folder("a")
    assert now.identity != older.identity
    assert now.result() is None
    note_other_code(now)
    said = capsys.readouterr().out
    assert f"numerics of the step is 2, and was 1: beginning anew, {older.path}" in said
    assert begun(now, finished=True).result()["numerics"]["step"] == 2
    monkeypatch.undo()


def test_runs_from_before_versions_are_found_by_their_names(folder):
    """Their folders name a code that is no hash of today, and config.yaml lists no files."""
    older = begun(folder("a"), finished=True)
    config = read_yaml(older.config)
    for key in ("sources", "numerics"):
        del config[key]
    older.config.write_text(yaml.safe_dump(config), encoding="utf-8")
    found = folder("b")
    assert found.path == older.path
    assert other_source(found) == "the attention linear"


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
    monkeypatch.setattr(files.time, "time", lambda: later)
    resumed = folder("a")
    resumed.finish(resumed.facts() | {"score": 0.25})
    times = read_json(resumed.result_file)["times"]
    began, started, finished = (datetime.fromisoformat(times[k]).timestamp() for k in times)
    assert began < started == finished == int(later)


def test_a_run_is_not_lost_if_the_clock_is_set_back(small, monkeypatch):
    """Its times say what the clock said, and its seconds how long it took."""
    now = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(files.time, "time", lambda: next(now))
    words = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")
    record = records.read_record(train(small(*words)))
    started, finished = (record[f"times.{name}"] for name in ("started", "finished"))
    assert datetime.fromisoformat(finished) < datetime.fromisoformat(started)
    assert 0 < sum(record["seconds"].values()) < 3600


def test_a_clone_that_is_not_installed_names_its_versions(monkeypatch):
    monkeypatch.setattr("importlib.metadata.Distribution.discover", lambda **_: iter(()))
    assert {*environment.versions()} == {"python", "torch"}
