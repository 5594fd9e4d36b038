"""Pictures over all tasks, of published rows beside ours, and of costs by length: what they draw is
what the records say, and so are their titles."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from lra.report.cell import rounded
from lra.report.table import Table

from .conftest import RESULTS


@pytest.fixture(scope="module")
def overall(study: dict[str, ModuleType]) -> ModuleType:
    return study["overall"]


def test_the_heat_map_has_a_number_for_each_score(overall: ModuleType, made: dict[str, Table]):
    view = overall.shown([*made.values()])
    figure = Figure(figsize=(5, 9))
    overall.fill_methods(figure, view)
    (axes,) = figure.axes
    numbers = {text.xy: text.get_text() for text in axes.texts}
    scores = {
        (x + 0.5, y + 0.5): rounded(place.cell.score, 0)
        for y, line in enumerate(view.lines)
        for x, place in enumerate(line.places)
        if place is not None
    }
    assert len(scores) > 200
    assert scores.items() <= numbers.items()
    assert len(numbers) == len(scores) + len(view.tasks), "and one for each task's best rule"
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == "softmax"
    assert names[-1] == overall.RULE
    (picture,) = axes.collections
    shares = picture.get_array()
    assert (~shares.mask).sum() == len(scores), "what has not run has no colour"
    assert shares.min() >= 0
    assert set(shares.max(axis=0)) == {1.0}, "the best of every task"


def test_the_findings_over_all_tasks_hold(overall: ModuleType, made: dict[str, Table]):
    """The recall of LUNA, as published and signed, is that of its tables."""
    view = overall.shown([*made.values()])
    assert len(view.tasks) == 11
    assert overall.near_the_best(view, "softmax best") == 9
    assert overall.near_the_best(view, "luna best") == 3
    lines = {line.key: line for line in view.lines}
    at = [overall.words_of(task) for task in view.tasks].index("Recall, 64 pairs")
    recall = made["recall"].column("pairs=64")["score"]
    assert lines["luna"].places[at].cell.score in set(recall)
    best = lines["luna best"].places[at].cell
    assert best.score in set(made["normalise"].column("recall")["score"])
    assert (best.options["nonneg"], best.options["normalise"]) == (False, "rms")
    found = overall.differences(view)
    for setting in ("published", "best"):
        tasks = found[setting]
        assert len(tasks) == 11
        assert not [task for task, d in tasks.items() if d.low > 0], "LUNA is ahead on none"
        assert sum(d.high < 0 for d in tasks.values()) == 4
    moved = [task for task in found["best"] if found["best"][task] != found["published"][task]]
    assert "Recall, 64 pairs" in moved
    assert "Image, 8 x 8" not in moved


def test_published_rows_stand_beside_our_seeds(
    study: dict[str, ModuleType], tmp_path: Path, drawn: list[Figure]
):
    reruns, listops = study["reruns"], study["listops"]
    methods = {method.name: method for method in reruns.methods_of(RESULTS)}
    assert {"luna", "softmax", "linear", "performer", "nystrom"} <= set(methods)
    assert 38.94 in methods["luna"].theirs
    assert 16.13 in methods["linear"].theirs
    runs = listops.runs_of(RESULTS)
    assert methods["linear"].ours == list(runs.loc[runs["attention"] == "linear", "score"])
    published = runs["attention.nonneg"].eq(True) & (runs["attention"] == "luna")
    assert len(methods["luna"].ours) == published.sum() > 0, "LUNA as published alone"
    apart = max(np.ptp(method.theirs) for method in methods.values())
    assert 20 < apart < 20.5
    assert max(max(m.ours) for m in methods.values()) < listops.rules_of(RESULTS)["first tokens"]
    reruns.draw(RESULTS, tmp_path)
    seeds = [line for line in drawn[0].axes[0].lines if line.get_marker() == "|"]
    ours = [seed for method in methods.values() for seed in method.ours]
    assert sorted(x for line in seeds for x in line.get_xdata()) == sorted(ours)


def test_the_finding_on_lengths_holds(
    study: dict[str, ModuleType], tmp_path: Path, drawn: list[Figure]
):
    lengths = study["lengths"]
    measures, _ = lengths.costs(RESULTS)
    time, memory = measures.values()
    luna, softmax = (time[case]["mean"][lengths.TOKENS] for case in ("luna", "softmax"))
    assert luna * lengths.SHARE < softmax
    luna, softmax = (memory[case]["mean"][lengths.TOKENS] for case in ("luna", "softmax"))
    assert luna == pytest.approx(softmax, rel=0.1)
    lengths.draw(RESULTS, tmp_path)
    for axes, costs in zip(drawn[0].axes, measures.values(), strict=True):
        ends = {tuple(np.ravel(line.get_ydata())) for line in axes.lines}
        assert tuple(costs["luna"]["mean"]) in ends
        assert {text.get_text() for text in axes.texts} >= {"LUNA", "Softmax, stored"}
