"""Budgets, the gate, knobs and the solver: a comparison that is not matched does not slip in."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from torch import Tensor

import luna
from lra import data
from lra import run as runner
from lra.compose import Run, compose, fit
from lra.compute import Admission, admit, budget_of, count_run, settled
from lra.compute.budget import Budget, Cost, times
from lra.compute.solve import closest, compare, knob_values, solve
from lra.config import CONFIGS, Gate, Tolerance, UserError
from lra.disk import read_json
from lra.report.leaderboard import compute_class
from luna.base import Attention, Paper, register

TOLERANCE = Tolerance(parameters=0.05, flops=0.1, examples=0.01)


@cache
def composed(*words: str) -> Run:
    return compose(words)


@cache
def shipped(task: str, attention: str, preset: str = "matched") -> Run:
    """What composing with `attention=..` gives, without composing everything around it again."""
    defaults = OmegaConf.load(CONFIGS / "train.yaml").attention
    file = OmegaConf.load(CONFIGS / "attention" / f"{attention}.yaml")
    cfg = OmegaConf.create({"task": {"name": task}})
    cfg.attention = OmegaConf.merge(defaults, file)
    cfg.attention.preset = preset
    run = copy.deepcopy(composed(f"task={task}"))
    run.attention = OmegaConf.to_container(cfg, resolve=True)["attention"]
    fit(run)
    return run


@cache
def budget(task: str) -> Budget:
    return budget_of(composed(f"task={task}"))


# ---------------------------------------------------------------------- what ships


@pytest.mark.parametrize("task", data.names())
def test_the_shipped_defaults_fit_or_are_declared_exempt(task: str):
    """Every plain `task=.. attention=..` command starts."""
    for attention in luna.names():
        run = shipped(task, attention)
        size = compare(run, budget(task), {})
        assert size is not None
        fits = budget(task).verdict(size.ratios) == "matched"
        assert fits == (run.compute.exempt is None), (attention, size.ratios)


@pytest.mark.parametrize(
    ("task", "attention"),
    [("listops", "linformer"), ("image", "linformer"), ("pathx", "linformer"),
     ("listops", "t2r"), ("image", "t2r"), ("pathfinder", "t2r")],
)  # fmt: skip
def test_an_exemption_is_true(task: str, attention: str):
    """No setting of the knobs fits; where the default is not the published one, it is the
    closest."""
    run = shipped(task, attention)
    best = closest(run, budget(task))
    assert best is not None
    assert best.excess > 0
    assert run.compute.exempt
    if attention == "t2r":
        assert best.options["r"] == run.attention["r"]


def test_an_exempt_method_without_a_knob_has_no_number_to_choose():
    """But the tables' options, which leave its cost or its excess as it is."""
    for attention in luna.names():
        run = shipped("listops", attention)
        if not run.compute.exempt or run.compute.knobs:
            continue
        numbers = {k for k, v in run.attention.items() if type(v) is int}
        assert numbers <= {"rank"}, attention


def test_every_knob_is_an_option_and_every_default_lies_in_its_range():
    for attention in luna.names():
        run = shipped("listops", attention)
        for knob, spec in run.compute.knobs.items():
            values = knob_values(attention, knob, spec)
            assert knob in luna.options(attention)
            for preset in ("matched", "published"):
                value = shipped("listops", attention, preset).attention[knob]
                assert value is None or values[0] <= value <= values[-1], (attention, preset)


def test_a_published_preset_under_a_gate_is_told_how_to_go_on():
    for words in (["attention.preset=published"], ["protocol=skyformer", "compute=matched"]):
        with pytest.raises(
            UserError,
            match=r"attention.preset=(published|skyformer) is held to no budget: "
            r"attention.preset=matched .*; compute=report runs it as it is",
        ):
            admit(composed("task=image", "attention=performer", *words))


def test_the_published_setting_is_one_override_away():
    for attention, wanted in {"performer": {"m": 128}, "nystrom": {"landmarks": 128},
                              "longformer": {"left": 255, "right": 256}}.items():  # fmt: skip
        run = composed(f"attention={attention}", "attention.preset=published", "compute=report")
        assert run.attention.items() >= wanted.items()


# ---------------------------------------------------------------------- the gate


def test_a_run_outside_its_budget_does_not_start_and_is_told_what_would_fit():
    run = composed("task=listops", "attention=performer", "attention.m=128")
    with pytest.raises(UserError) as refused:
        admit(run)
    told = str(refused.value)
    own, reference = count_run(run), count_run(run, {"name": "luna"})
    for count in (own, reference):
        assert f"{count.parameters:,}" in told
        assert f"{count.flops / 1e9:.3f}" in told
    assert times(own.flops / reference.flops) in told
    assert "attention.m=160 fits" in told
    assert len(told.splitlines()) == 1
    fitting = replace(run, attention=run.attention | {"m": 160})
    assert admit(fitting).verdict == "matched"


def test_a_report_starts_and_tells_the_class():
    admission = admit(composed("attention=performer", "attention.m=512", "compute=report"))
    assert admission.verdict == f"over budget {times(admission.ratios['flops'])}"
    record = admission.record()
    assert record["mode"] == "report"
    assert record["verdict"] == admission.verdict
    assert record["reference"] == {"attention": "luna"} | admission.ratios
    assert record["budget"]["parameters"] == count_run(composed(), {"name": "luna"}).parameters
    assert record["budget"]["tolerance"] == asdict(TOLERANCE)
    assert record["exempt"] is None
    parts = record["parts"].values()
    assert record["flops"] == sum(part["flops"] for part in parts)
    assert json.loads(json.dumps(record)) == record


def test_off_counts_and_compares_with_nothing():
    admission = admit(composed("attention=softmax", "compute=off"))
    assert admission.verdict is None
    assert {"parameters", "flops", "training_flops", "elementwise"} <= set(admission.record())
    assert not {"budget", "reference", "verdict"} & set(admission.record())


def test_the_default_is_matched_and_luna_is_its_own_measure():
    admission = admit(composed("attention=luna"))
    assert admission.run.compute.mode is Gate.matched
    assert admission.ratios == {"parameters": 1.0, "flops": 1.0, "examples": 1.0}


def test_an_exempt_method_starts_and_says_so():
    admission = admit(composed("task=listops", "attention=softmax"))
    assert admission.verdict.startswith("over budget ×3.9")
    assert "grows with the square" in admission.record()["exempt"]
    assert "exempt: no option" in admission.describe()


@pytest.mark.parametrize("attention", ["luna", "softmax"])
@pytest.mark.parametrize("word", ["protocol.recipe.steps=100", "protocol.recipe.batch=8"])
def test_shorter_training_is_another_budget_whoever_is_exempt(attention: str, word: str):
    with pytest.raises(UserError, match=r"training examples against 1,600,000.*budget="):
        admit(composed("task=listops", f"attention={attention}", word))


@pytest.mark.parametrize(
    "words",
    [("protocol.recipe.steps=100000", "protocol.recipe.batch=16"), ("budget=0.02",),
     ("budget=0.0013",), ("protocol.evaluation.every=700",)],
)  # fmt: skip
def test_training_as_long_as_the_protocol_is_within_budget(words: tuple[str, ...]):
    assert admit(composed("task=listops", "attention=luna", *words)).verdict == "matched"


def test_every_protocol_is_its_own_measure_of_training():
    for protocol in ("skyformer", "lotformer", "official"):
        run = composed(f"protocol={protocol}", "task=image", "attention=softmax")
        recipe = run.protocol.recipe
        assert budget_of(run).cost.examples == recipe.steps * recipe.batch


def test_a_protocol_from_elsewhere_has_no_measure_of_training():
    run = composed("task=listops")
    elsewhere = replace(run, protocol=replace(run.protocol, name="elsewhere"))
    assert budget_of(elsewhere).cost.examples is None


def test_a_wider_tolerance_admits_more():
    words = ("task=listops", "attention=performer", "attention.m=128")
    assert admit(composed(*words, "compute.tolerance.flops=0.2")).verdict == "matched"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["compute.reference=lunna"], "compute.reference='lunna' is no attention; did you mean lu"),
        (["attention=performer", "attention.m=4096"],
         "attention.m=4096 is outside the range of performer's knob, 8 to 512 in steps of 8"),
        (["attention=performer", "attention.m=4", "compute=report", "compute.solve=true"],
         "attention.m=4 is outside the range"),
        (["attention=performer", "compute.reference={parameters: 100, flops: 1000000}"],
         "no setting of m 8 to 512 in steps of 8 meets it, the closest is attention.m=8"),
        (["attention=performer", "compute.reference={flops: 1000}", "compute.solve=true"],
         "no setting of m"),
        (["attention=luna", "attention.M=many"], "luna.M must be int, got 'many'"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(words: list[str], sentence: str):
    with pytest.raises((UserError, luna.LunaError)) as refused:
        admit(compose(words))
    assert sentence in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_a_value_outside_the_knobs_range_may_still_be_looked_at():
    run = composed("attention=performer", "attention.m=1024", "compute=report")
    assert admit(run).verdict.startswith("over budget")


def test_nothing_is_prepared_or_written_for_a_run_that_is_refused(
    small: Callable[..., Run], tmp_path: Path
):
    """The small run trains far shorter than its protocol."""
    with pytest.raises(UserError, match="outside the compute budget of luna"):
        runner.train(small("compute=matched", f"data_dir={tmp_path / 'data'}"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------- verdicts


def budget_with(**cost: int | None) -> Budget:
    limits = {"parameters": 100, "flops": 1000, "examples": None} | cost
    return Budget("luna", Cost(**limits), TOLERANCE)


@pytest.mark.parametrize(
    ("parameters", "flops", "verdict"),
    [
        (100, 1000, "matched"),
        (105, 900, "matched"),  # on the bounds
        (95, 1100, "matched"),
        (106, 1000, "over budget ×1.06"),
        (100, 1200, "over budget ×1.20"),
        (590, 1200, "over budget ×5.90"),
        (100, 890, "under ×0.89"),
        (60, 450, "under ×0.45"),
        (300, 450, "over budget ×3.00"),  # one over, one under
        (100, 5, "under ×0.005"),
        (400_000, 1000, "over budget ×4,000"),
    ],
)
def test_verdicts(parameters: int, flops: int, verdict: str):
    limits = budget_with()
    ratios = limits.ratios(Cost(parameters, flops, 7))
    assert limits.verdict(ratios) == verdict
    assert (limits.excess(ratios) == 0) == (verdict == "matched")


def test_what_is_not_limited_is_not_compared():
    limits = budget_with(parameters=None)
    assert limits.ratios(Cost(5, 1000, 3)) == {"flops": 1.0}
    assert limits.verdict({"flops": 1.0}) == "matched"


def test_excess_is_in_tolerances():
    limits = budget_with()
    assert limits.excess({"parameters": 1.10, "flops": 1.0}) == pytest.approx(1)
    assert limits.excess({"parameters": 1.0, "flops": 1.5}) == pytest.approx(4)


def test_any_attention_and_plain_numbers_can_be_the_measure():
    run = composed("task=listops", "attention=linear", "compute.reference=linear")
    assert admit(run).ratios == {"parameters": 1.0, "flops": 1.0, "examples": 1.0}
    run = composed("task=listops", "compute.reference={parameters: 426836, flops: 1e9}",
                   "compute=report")  # fmt: skip
    admission = admit(run)
    assert admission.ratios["parameters"] == pytest.approx(0.5)
    assert admission.record()["reference"]["attention"] == "numbers"
    run = composed("compute.reference={examples: 3200000}", "compute=report", "task=listops")
    assert admit(run).verdict == "under ×0.50"


# ---------------------------------------------------------------------- the solver


def test_the_solver_finds_the_closest_of_all_settings():
    """Against the whole network counted at every setting."""
    run = composed("task=pathfinder", "attention=nystrom", "compute.solve=true")
    run = replace(run, compute=replace(run.compute, knobs={"landmarks": [48, 64, 68, 72, 90, 96]}))
    limits = budget("pathfinder")

    def away(landmarks: int) -> float:
        count = count_run(run, run.attention | {"landmarks": landmarks}, backward=False)
        return abs(count.flops / limits.cost.flops - 1)

    best = min(run.compute.knobs["landmarks"], key=away)
    found, changed = solve(run, limits)
    assert found.attention == run.attention | {"landmarks": best}
    assert changed == {"landmarks": (72, 68)}
    assert run.attention["landmarks"] == 72  # the run it was given is as it was


def test_it_prefers_what_fits_to_what_is_close_in_flops():
    """Hedgehog's widest map within the parameters, though a wider one is closer in FLOPs."""
    run = composed("task=image", "attention=hedgehog", "attention.preset=shared_map")
    best, limits = closest(run, budget("image")), budget("image")
    assert best.excess == 0
    wider = compare(run, limits, {"d_out": 108})
    assert wider.ratios["parameters"] > 1.05
    assert abs(wider.ratios["flops"] - 1) < abs(best.ratios["flops"] - 1)


@pytest.mark.parametrize("attention", ["nystrom", "linformer", "longformer", "hedgehog"])
def test_a_setting_is_counted_as_the_whole_network_is(attention: str):
    """Shared and per layer, products and definitions, with the pair of texts and the branch."""
    words = ("task=retrieval", f"attention={attention}", "attention.dwc=conv1d", "compute=report")
    words += ("attention.share_layers=true",) if attention == "linformer" else ()
    run = composed(*words)
    limits = Budget("numbers", Cost(1, 1, None), TOLERANCE)  # ratios are the counts themselves
    counted = count_run(run, backward=False)
    ratios = compare(run, limits, {}).ratios
    assert ratios == {"parameters": counted.parameters, "flops": counted.flops}


def test_a_tied_knob_sets_both_of_its_options():
    run = composed("attention=longformer", "compute.reference=bigbird", "compute.solve=true")
    found = admit(run).run.attention
    assert found["left"] == found["right"] != 164


def test_settings_that_exclude_each_other_are_left_out():
    """An identity needs d_out = head_dim."""
    run = composed("attention=hedgehog", "attention.init=identity")
    assert closest(run, budget("listops")).options == {"d_out": 32}


def test_what_was_solved_is_trained_and_recorded(small: Callable[..., Run], capsys):
    words = ("attention=performer", "attention.m=8", "compute=report", "compute.solve=true")
    run = small(*words, "compute.reference=luna", "protocol.recipe.steps=10")
    runner.train(run)
    told = capsys.readouterr().out
    record = read_json(next(Path(run.runs_dir).rglob("result.json")))
    solved = record["attention"]["m"]
    assert solved != 8
    assert f"solved: attention.m={solved}, it was 8" in told
    assert record["compute"]["solved"] == {"m": [8, solved]}
    assert record["compute"]["mode"] == "report"
    config = yaml.safe_load(
        next(Path(run.runs_dir).rglob("config.yaml")).read_text(encoding="utf-8")
    )
    assert config["settings"]["attention"]["m"] == solved
    assert settled(run).attention["m"] == solved
    runner.train(run)  # the same command finds the run it has already done
    assert "already finished" in capsys.readouterr().out


@pytest.mark.parametrize(
    "spec",
    [{"min": 8}, {"min": 9, "max": 8}, {"min": 1, "max": 8, "step": 0}, {"min": 1.5, "max": 8},
     {"min": 1, "max": 8, "stop": 2}, [], "8-64", None],
)  # fmt: skip
def test_a_range_that_is_none_is_told(spec: Any):
    with pytest.raises(UserError, match=r"knobs.m of attention 'performer' must be a list of val"):
        knob_values("performer", "m", spec)


def test_knobs_that_are_no_options_or_too_many_are_told():
    run = composed("attention=performer")
    wrong = replace(run, compute=replace(run.compute, knobs={"width": [1, 2]}))
    with pytest.raises(UserError, match="declares the knob 'width', which is none of its options"):
        admit(wrong)
    many = {"m": {"min": 1, "max": 4000}}
    with pytest.raises(UserError, match="have 4,000 settings, more than the 2,000"):
        closest(replace(run, compute=replace(run.compute, knobs=many)), budget("listops"))


# ---------------------------------------------------------------------- plug-ins


class Silent(Attention):
    """Does not say its FLOPs."""

    paper = Paper(title="A plug-in", year=2026, url="https://example.org")
    complexity = "O(n² e)"

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        return q @ (k.mT @ v)


class Speaking(Silent):
    def flops(self, n: int, d_v: int | None = None) -> int:
        return self.n_heads * 4 * n * self.head_dim * (d_v or self.head_dim)


class Exaggerating(Speaking):
    def flops(self, n: int, d_v: int | None = None) -> int:
        return 100 * super().flops(n, d_v)


@pytest.fixture
def plug() -> Iterator[Callable[..., Run]]:
    def put(cls: type[Attention], *words: str) -> Run:
        register("plug")(cls)
        run = composed("attention=uniform", "task=pathfinder", *words)
        compute = replace(run.compute, exempt=None)
        return replace(run, attention={"name": "plug", "dwc": "none"}, compute=compute)

    yield put
    luna.base._classes.pop("plug", None)


def test_a_plug_in_that_says_nothing_is_reported_and_not_matched(plug: Callable[..., Run]):
    assert admit(plug(Silent, "compute=report")).verdict == "under ×0.49"
    with pytest.raises(UserError, match=r"'plug' does not say its FLOPs.*give Silent a method flo"):
        admit(plug(Silent))


def test_a_plug_in_that_says_its_flops_is_held_to_the_budget(plug: Callable[..., Run]):
    with pytest.raises(UserError, match=r"outside the compute budget of luna.*has no knob to turn"):
        admit(plug(Speaking))
    assert admit(plug(Speaking, "compute.reference=linear")).verdict == "matched"
    with pytest.raises(UserError, match="names no knob in its file"):
        admit(plug(Speaking, "compute.solve=true"))


def test_a_formula_that_does_not_fit_the_count_is_told(plug: Callable[..., Run]):
    with pytest.warns(UserWarning, match="'plug' says it takes .* FLOPs, counted are"):
        admit(plug(Exaggerating, "compute=report"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        admit(plug(Speaking, "compute=report"))


# ---------------------------------------------------------------------- tables


def recorded(admission: Admission, **facts: Any) -> dict[str, Any]:
    return {"task": "listops", "compute": admission.record()} | facts


def test_a_table_tells_the_class():
    assert compute_class(recorded(admit(composed("attention=luna")))["compute"]) == "matched"
    softmax = recorded(admit(composed("task=listops", "attention=softmax")))
    assert compute_class(softmax["compute"]).startswith("exempt, over budget ×3.9")
    assert compute_class(recorded(admit(composed("compute=off")))["compute"]) == "-"
