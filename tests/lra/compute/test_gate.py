"""The gate: a comparison that is not matched does not slip in."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, replace

import pytest
from torch import Tensor

import luna
from lra import data
from lra.base.config import Gate
from lra.base.errors import UserError
from lra.compute import gate, solve
from lra.compute.budget import times
from lra.compute.count import Count, count_run
from lra.compute.gate import check_budget
from lra.compute.solve import closest, compare
from lra.data import registry
from lra.settings.compose import Run, compose
from lra.training import run as runner

from ..conftest import composed
from .kit import TOLERANCE, budget, plugged, shipped

# ---------------------------------------------------------------------- what ships


@pytest.mark.parametrize("task", data.lra_tasks())
def test_the_shipped_defaults_fit_or_are_declared_exempt(task: str, monkeypatch):
    """Every plain `task=.. attention=..` command starts. The backbone is the same for all methods
    with the same projections."""
    backbones: dict[str, Count] = {}

    def counted_once(run: Run) -> Count:
        name = run.attention["name"]
        method = luna.get(name)
        letters = name if luna.registry.mixes(name) else method.letters("strict")
        if letters not in backbones:
            backbones[letters] = count_run(run)
        return backbones[letters]

    monkeypatch.setattr(solve, "count_run", counted_once)
    for attention in luna.names():
        run = shipped(task, attention)
        size = compare(run, budget(task), {})
        assert size is not None
        fits = budget(task).verdict(size.ratios) == "matched"
        assert fits == (run.compute.exempt is None), (attention, size.ratios)


@pytest.mark.parametrize(
    ("task", "attention"),
    [
        ("listops", "linformer"),
        ("image", "linformer"),
        ("pathx", "linformer"),
        ("listops", "t2r"),
        ("image", "t2r"),
        ("pathfinder", "t2r"),
        ("image", "luna2021"),
        ("pathfinder", "luna2021"),
    ],
)
def test_an_exemption_is_true(task: str, attention: str):
    """No setting of the knobs fits; where the default is not the published one, it is the
    closest."""
    run = shipped(task, attention)
    best = closest(run, budget(task))
    assert best is not None
    assert best.excess > 0
    assert run.compute.exempt
    if attention != "linformer":
        assert best.options.items() <= run.attention.items()


# ---------------------------------------------------------------------- the gate


def test_a_run_outside_its_budget_does_not_start_and_says_what_would_fit():
    run = composed("task=listops", "attention=performer", "attention.m=128")
    with pytest.raises(UserError) as refused:
        check_budget(run)
    message = str(refused.value)
    ours, reference = count_run(run), count_run(run, {"name": "luna"})
    for count in (ours, reference):
        assert f"{count.parameters:,}" in message
        assert f"{count.flops / 1e9:.3f}" in message
    assert times(ours.flops / reference.flops) in message
    assert "attention.m=160 fits" in message
    assert len(message.splitlines()) == 1
    fitting = replace(run, attention=run.attention | {"m": 160})
    assert check_budget(fitting).verdict == "matched"


def test_a_published_preset_under_a_gate_is_refused_with_advice():
    for words in (["attention.preset=published"], ["protocol=skyformer", "compute=matched"]):
        advice = r"has no budget: use attention.preset=matched; compute=report runs it as it is"
        with pytest.raises(UserError, match=rf"attention.preset=(published|skyformer) {advice}"):
            check_budget(composed("task=image", "attention=performer", *words))


def test_a_report_starts_and_records_the_class():
    check = check_budget(composed("attention=performer", "attention.m=512", "compute=report"))
    assert check.verdict == f"over budget {times(check.ratios['flops'])}"
    record = check.record()
    assert record["mode"] == "report"
    assert record["verdict"] == check.verdict
    assert record["reference"] == {"attention": "luna"} | check.ratios
    assert record["budget"]["parameters"] == count_run(composed(), {"name": "luna"}).parameters
    assert record["budget"]["tolerance"] == asdict(TOLERANCE)
    assert record["exempt"] is None
    parts = record["parts"].values()
    assert record["flops"] == sum(part["flops"] for part in parts)
    assert json.loads(json.dumps(record)) == record


def test_off_counts_and_compares_with_nothing():
    record = check_budget(composed("attention=softmax", "compute=off")).record()
    assert {"parameters", "flops", "training_flops"} <= set(record)
    assert not {"budget", "reference", "verdict"} & set(record)


def test_an_exempt_method_starts_and_says_so():
    check = check_budget(composed("task=listops", "attention=softmax"))
    assert check.verdict.startswith("over budget ×3.9")
    assert "grows with the square" in check.record()["exempt"]
    assert "exempt: no option" in check.describe()


@pytest.mark.parametrize("attention", ["luna", "softmax"])
@pytest.mark.parametrize("word", ["protocol.recipe.steps=100", "protocol.recipe.batch=8"])
def test_shorter_training_is_another_budget_whoever_is_exempt(attention: str, word: str):
    with pytest.raises(UserError, match=r"training examples against 1,600,000.*steps_share"):
        check_budget(composed("task=listops", f"attention={attention}", word, "compute=matched"))
    by_default = check_budget(composed("task=listops", f"attention={attention}", word))
    assert by_default.record()["mode"] == "report"
    assert by_default.verdict != "matched"


def test_the_default_holds_what_protocols_promise_and_reports_the_rest(monkeypatch):
    monkeypatch.setattr(registry.TASKS, "added", {})
    few = {"batch": 8, "steps": 8, "every": 4, "warmup": 1}
    data.from_arrays("own", ([[1, 2]] * 40, [i % 2 for i in range(40)]), settings=few)
    wide = ["attention=luna", "attention.M=64"]
    with pytest.raises(UserError, match="outside the compute budget"):
        check_budget(composed("task=listops", *wide))
    own = check_budget(composed("task=own", *wide))
    assert own.record()["mode"] == "report"
    assert own.verdict.startswith("over budget")
    assert "it runs all the same" in own.describe()
    with pytest.raises(UserError, match="outside the compute budget"):
        check_budget(composed("task=own", *wide, "compute=matched"))


@pytest.mark.parametrize(
    "words",
    [
        ("protocol.recipe.steps=100000", "protocol.recipe.batch=16"),
        ("steps_share=0.02",),
        ("steps_share=0.0013",),
        ("protocol.evaluation.every=700",),
    ],
)
def test_training_as_long_as_the_protocol_is_within_budget(words: tuple[str, ...]):
    assert check_budget(composed("task=listops", "attention=luna", *words)).verdict == "matched"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compute.reference=lunna"], "unknown attention 'lunna'; did you mean luna"),
        (
            ["attention=performer", "compute.reference={parameters: 100, flops: 1000000}"],
            "no setting of m 8 to 512 in steps of 8 meets the budget, the closest is attention.m=8",
        ),
        (["attention=luna", "attention.M=many"], "luna.M must be int, got 'many'"),
    ],
)
def test_bad_input_is_one_sentence(words: list[str], sentence: str):
    with pytest.raises((UserError, luna.LunaError)) as refused:
        check_budget(compose(words))
    assert sentence in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_nothing_is_prepared_or_written_for_a_run_that_is_refused(small, tmp_path):
    """The small run trains far shorter than its protocol."""
    with pytest.raises(UserError, match="outside the compute budget of luna"):
        runner.train(small("compute=matched", f"data_dir={tmp_path / 'data'}"))
    assert list(tmp_path.iterdir()) == []


def test_missing_data_are_found_before_anything_is_counted(monkeypatch, tmp_path):
    monkeypatch.setattr(runner, "check_budget", lambda run: pytest.fail("it was counted"))
    with pytest.raises(UserError, match=r"text is not prepared in .* run `lra data prepare text"):
        runner.train(compose(["task=text", f"data_dir={tmp_path}"]))


def test_counting_says_so_if_it_takes_long(monkeypatch, capsys):
    def end_of_timers() -> None:
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()

    with gate.counting():
        pass
    end_of_timers()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(gate, "SILENCE", 0)
    with gate.counting():
        end_of_timers()
    assert capsys.readouterr().err == "counting parameters and FLOPs ...\n"


def test_a_plug_in_is_held_to_the_budget():
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return q @ (k.mT @ v)

    words = ("attention=uniform", "task=pathfinder")
    with plugged(attend, composed(*words, "compute=report")) as run:
        assert check_budget(run).verdict == "under ×0.49"
        for change, sentence in (
            ({}, "has no knob that changes its cost"),
            ({"solve": True}, "declares no knob in its file"),
        ):
            matched = replace(run, compute=replace(run.compute, mode=Gate.matched, **change))
            with pytest.raises(UserError, match=sentence):
                check_budget(matched)
