"""`tune=lr`: a rate that is chosen on dev, by trials that every seed of the run shares."""

from __future__ import annotations

import json
import re
import shlex
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lra
from lra.base.code import Source
from lra.base.disk import read_json, write_json
from lra.base.errors import UserError
from lra.bench import plan
from lra.report.specs import TableSpec
from lra.report.terminal import comparable, without_trials
from lra.report.trainings import build
from lra.results.frame import frame_of
from lra.runs import search
from lra.runs.folder import read_result
from lra.runs.schema import problem_of
from lra.runs.search import find
from lra.runs.trials import find_settled, outcome_of
from lra.settings.trials import trials_of
from lra.sweeps import status
from lra.training import run as runner
from lra.training import tuning

from ..conftest import SMALL

GRID = ("tune=lr", "tune.grid=[1e30,1e-3]", "tune.seeds=[11,12]", "tune.steps_share=0.5")


@pytest.fixture
def untuned(tmp_path: Path, data_dir: Path) -> list[str]:
    return [*SMALL, f"data_dir={data_dir}", f"runs_dir={tmp_path}"]


@pytest.fixture
def words(untuned: list[str]) -> list[str]:
    return [*untuned, *GRID]


def trained(runs: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in runs.rglob("result.json")}


def test_seeds_share_the_trials_which_are_ordinary_runs(words: list[str], tmp_path: Path):
    first = lra.train(lra.compose(words))
    chosen = first["tuning"]
    assert first["settings.protocol.recipe.lr"] == chosen["chosen"] == 0.001
    by_rate = [(trial["lr"], trial["seed"], trial["dev"] is None) for trial in chosen["trials"]]
    assert by_rate == [(0.001, 11, False), (0.001, 12, False), (1e30, 11, True), (1e30, 12, True)]
    assert chosen["steps"] == 4 * 15, "with those of trials that diverged"

    before = trained(tmp_path)
    second = lra.train(lra.compose([*words, "seed=2"]))
    assert second["identity"] == first["identity"]
    assert second["tuning"] == chosen
    assert trained(tmp_path).keys() - before.keys() == {second.path}

    for path in before:  # typed alone, the command of a trial finds it
        command = shlex.split(read_result(path)["command"])
        assert lra.train(lra.compose(command[2:])).path == path
    assert trained(tmp_path).items() > before.items()


def test_a_rate_that_is_typed_is_another_run(words: list[str], untuned: list[str]):
    """Whose numbers are the same: it was not chosen."""
    chosen = lra.train(lra.compose(words))
    typed = lra.train(lra.compose([*untuned, "protocol.recipe.lr=0.001"]))
    assert typed["stages"] == chosen["stages"]
    assert typed["identity"] != chosen["identity"]
    assert "tuning" not in typed.facts


def test_a_trial_that_was_cut_goes_on(words: list[str], tmp_path: Path):
    with pytest.raises(SystemExit, match="142"):
        runner.train(lra.compose([*words, "limit_minutes=1e-6"]))
    assert not trained(tmp_path)
    runner.train(lra.compose(words))
    assert len(trained(tmp_path)) == 3
    states = [found.state for found in status.of_folder(tmp_path)]
    assert states.count("failed") == 2, "those that diverged"


def test_a_trial_of_another_process_is_left_to_it_and_waited_for(
    words: list[str], untuned: list[str], capsys: pytest.CaptureFixture[str]
):
    run = lra.compose(words)
    lra.train(lra.compose([*untuned, "seed=5"]))  # prepares the data
    folder = find(trials_of(run)[0])
    assert folder is not None
    held, done = threading.Event(), threading.Event()

    def other() -> None:
        with folder.lock():
            held.set()
            done.wait(60)

    thread = threading.Thread(target=other)
    thread.start()
    held.wait(60)
    order = []

    def watched(trial: lra.Run, command: str) -> Path:
        order.append((trial.protocol.recipe.lr, trial.seed))
        if len(order) == 4:  # all others have been tried
            done.set()
            thread.join()
        return runner.train(trial, command)

    tuning.tuned(run, "", watched, float("inf"))
    assert order == [(0.001, 11), (0.001, 12), (1e30, 11), (1e30, 12), (0.001, 11)]
    assert "another process trains it" in capsys.readouterr().out


def test_status_says_whose_rate_is_to_be_chosen(words: list[str]):
    [state] = status.of_sweep(words)
    assert (state.state, state.detail) == ("to do", "its rate is not chosen yet")
    run = lra.compose(words)
    assert find_settled(run) is None
    record = lra.train(run)
    folder = find_settled(run)
    assert folder is not None
    assert folder.path == record.folder
    [state] = status.of_sweep(words)
    assert state.state == "done"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["seed=11"], "it must be seeds that are not reported, so without seed=11"),
        (["tune.grid=[1e-3]"], "two or more different rates"),
        (["tune.grid=[1e-3,1e-3]"], "two or more different rates"),
        (["tune.seeds=[]"], "one or more different seeds"),
        (["tune=none"], "nothing without it"),
        (["debug=fast"], "debug=fast has no score to choose a rate by"),
        (["trainer.devices=2"], "a run of several processes trains none: start them first"),
        (["tune.grid=[1e30,1e29]"], "at every rate of tune.grid=[1e+29, 1e+30] a trial diverged"),
        (["task=text", "protocol.evaluation.dev=test"], "takes from the test set of text"),
    ],
)
def test_what_cannot_be_chosen_is_a_sentence(words: list[str], more: list[str], sentence: str):
    with pytest.raises(UserError, match=re.escape(sentence)):
        runner.train(lra.compose([*words, *more]))


def test_a_run_that_was_changed_in_python_is_refused(words: list[str]):
    run = lra.compose(words)
    run.model.n_layers = 2
    with pytest.raises(UserError, match="this one was changed in Python"):
        lra.train(run)


def test_a_table_names_tuned_rows_and_what_they_cost(
    words: list[str], untuned: list[str], tmp_path: Path
):
    """Beside one that is not tuned, whose rate is another; trials are left out."""
    lra.train(lra.compose(words))
    lra.train(lra.compose([*untuned, "attention=uniform"]))
    everything = frame_of(lra.records(tmp_path))
    runs = without_trials(everything, [])
    assert (len(everything), len(runs)) == (4, 2)
    assert len(without_trials(everything, ["protocol.recipe.lr"])) == 4
    [(group, _)] = comparable(runs)
    table = build(TableSpec(name="t", title="t"), group)
    assert {*table.rows.index} == {"linear tune=lr", "uniform"}
    assert table.cell("linear tune=lr", "listops").tuning == "lr=0.001, +2.0 runs"
    assert table.cell("uniform", "listops").tuning == ""
    notes = " ".join(table.notes)
    assert "over seeds [11, 12], which are not shown, at 0.5 of the steps" in notes
    assert "a better rate may lie: linear tune=lr on listops." in notes


def test_a_record_has_the_rate_that_its_trials_give(words: list[str]):
    record = lra.train(lra.compose(words))
    facts = json.loads(json.dumps(record.facts))
    assert problem_of(facts) is None
    facts["tuning"]["chosen"] = 1e30
    assert "its trials give 0.001" in str(problem_of(facts))
    facts = json.loads(json.dumps(record.facts))
    del facts["tuning"]["trials"][1]
    assert "its trials are not those of" in str(problem_of(facts))
    del facts["tuning"]
    assert "trials of a rate or settings of them" in str(problem_of(facts))


def test_a_run_that_failed_otherwise_has_not_diverged(words: list[str]):
    run = lra.compose(words)
    lra.train(run)
    trial = trials_of(run)[2]
    folder, outcome = find(trial), outcome_of(trial)
    assert folder is not None
    assert outcome is not None
    assert outcome.dev is None
    facts = read_json(folder.status_file) or {}
    write_json(folder.status_file, facts | {"error": "OutOfMemoryError: no room"})
    assert outcome_of(trial) is None


def test_a_rate_that_diverged_is_not_tried_again_after_an_edit(
    words: list[str], monkeypatch: pytest.MonkeyPatch
):
    run = lra.compose(words)
    lra.train(run)
    made = search.source_of

    def edited(*arguments: Any) -> Source:
        source = made(*arguments)
        return replace(source, parts=source.parts | {"the attention linear": "edited"})

    monkeypatch.setattr(search, "source_of", edited)
    outcomes = [outcome_of(trial) for trial in trials_of(run)]
    assert [outcome and outcome.dev is None for outcome in outcomes] == [False, False, True, True]
    groups, _, _ = plan.groups_of(words, multirun=False)
    assert sum(group.left for group in groups) == 0
    trial = trials_of(run)[2]
    found = find(trial)
    assert found is not None
    assert not found.path.exists(), "by its own command it is trained with the new source"


def test_a_run_whose_rates_all_diverge_does_not_hide_the_others(words: list[str]):
    bad = [*words[:-3], "tune.grid=[1e30,1e31]", *words[-2:]]
    with pytest.raises(UserError, match="a trial diverged: give it lower rates"):
        lra.train(lra.compose(bad))
    states = status.of_sweep([*words[:-3], "tune.grid=[1e30,1e31],[1e-3,1e-4]", *words[-2:]])
    assert [state.state for state in states] == ["failed", "to do"]
    assert "give it lower rates" in states[0].detail
