"""Both stages: what learns, what is kept, what is refused, dead heads, and interruption."""

from __future__ import annotations

import copy
import errno
import json
from pathlib import Path

import pytest
import torch

from luna.base import LunaError
from luna.convert import attention_maps, convert, describe, distill, feature_parameters, finetune
from luna.convert.dead_heads import redraw_dead
from luna.convert.loop import STATES, write_whole
from luna.convert.maps import Fit
from luna.convert.stage2 import build_optimizer, rate_factor
from luna.convert.swap import feature_maps

from .kit import Interrupted, accuracy, bert, comes_again, images, kill, logits, text, vit

# ---------------------------------------------------------------------- stage 1


def test_the_best_feature_maps_are_kept(trained):
    """A rate that destroys them keeps the start; the measure is the held-out KL."""
    student = convert(trained, "hedgehog")
    batch = comes_again(16)
    report = distill(student, [batch], steps=6, lr=30.0, evaluate_every=1)
    lowest = {layer: min(point["kl"][layer] for point in report.curve) for layer in report.after.kl}
    assert report.after.layers() == pytest.approx(lowest, rel=1e-5)
    assert any(report.curve[-1]["kl"][layer] > 2 * kl for layer, kl in lowest.items())


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("uniform", {}, "no trainable feature map"),
        ("polaformer", {}, "use loss='mse'"),
        ("t2r", {"loss": "kl"}, "one of ce, mse, both"),
        ("t2r", {"steps": 0}, "steps must be at least 1"),
        ("t2r", {"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ("t2r", {"steps": 3, "batches": iter([text()])}, "ran out"),
        ("t2r", {"steps": None, "batches": iter([])}, "give distill a number of steps"),
        (None, {}, "was not converted"),
    ],
)
def test_what_cannot_be_distilled_is_refused(method, options, reason):
    model = bert() if method is None else convert(bert(), method)
    with pytest.raises(LunaError, match=reason):
        distill(model, **{"batches": [text()]} | options)


IDS = torch.ones(1, 4, dtype=torch.long)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        ((IDS,), "a batch is a tensor, or a mapping .* got tuple"),
        ({}, "no tensors"),
        ({"input_ids": IDS.tolist()}, "'input_ids' of a batch is of type list"),
        ({"input_ids": IDS[:0]}, "'input_ids' is empty"),
        ({"input_ids": IDS.float()}, "whole numbers .* got torch.float32"),
        ({"input_ids": IDS[0]}, r"of shape \(4,\)"),
    ],
)
def test_what_is_no_batch_is_refused(batch: object, reason: str):
    with pytest.raises(LunaError, match=reason):
        distill(convert(bert(), "t2r"), [batch], steps=1)


def test_divergence_is_an_error():
    nothing = {"pixel_values": images()["pixel_values"] * float("nan")}
    with pytest.raises(LunaError, match="diverged"):
        distill(convert(vit(), "t2r"), [nothing], steps=1)


def test_without_a_number_of_steps_the_batches_are_seen_once():
    batches = [text(seed=seed) for seed in range(3)]
    assert distill(convert(bert(), "t2r"), batches).steps == 3


def test_methods_without_a_matrix_learn_from_outputs():
    student = convert(bert(), "polaformer")
    report = distill(student, [text()], steps=10, loss="mse")
    assert report.losses[-1] < report.losses[0]
    assert report.before.kl == {}


def test_an_interrupted_stage_1_resumes_exactly(trained, tmp_path):
    batches = [comes_again(8, seed=i) for i in range(5)]  # 7 steps begin a second pass
    options = {"steps": 12, "evaluate_every": 4}
    whole = convert(trained, "t2r")
    kill(whole, 0, 2)  # so that a head is drawn again
    torn = copy.deepcopy(whole)
    expected = distill(whole, batches, **options)
    assert expected.redrawn

    def some():
        yield from batches
        yield from batches[:2]
        raise Interrupted

    with pytest.raises(Interrupted):
        distill(torn, some(), folder=tmp_path, **options)
    fresh = convert(trained, "t2r", seed=7)
    report = distill(fresh, batches, folder=tmp_path, **options)
    assert report.losses == expected.losses
    assert report.curve == expected.curve
    assert report.redrawn == expected.redrawn
    assert report.before == expected.before
    for name, p in feature_parameters(whole).items():
        assert torch.equal(p, feature_parameters(fresh)[name]), name


def test_a_damaged_state_or_that_of_another_run_is_refused(tmp_path):
    student = convert(bert(), "t2r")
    distill(student, [text()], steps=2, folder=tmp_path)
    with pytest.raises(LunaError, match="other settings"):
        distill(student, [text()], steps=3, folder=tmp_path)
    path = tmp_path / STATES[0]
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(LunaError, match="cannot be read"):
        distill(student, [text()], steps=2, folder=tmp_path)


def test_a_full_disk_leaves_the_earlier_state(tmp_path, monkeypatch):
    path = tmp_path / STATES[0]
    student = convert(bert(), "t2r")
    distill(student, [text()], steps=2, folder=tmp_path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):  # and no error of torch
        write_whole(path, b"new")
    assert path.read_bytes() == before


# ---------------------------------------------------------------------- dead heads


def test_a_dead_head_gives_zeros_finite_gradients_and_a_warning():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    name = next(iter(feature_maps(student)))
    A = attention_maps(student, text()).student[0]
    assert float(A[:, 2].abs().max()) == 0
    assert torch.isfinite(logits(student, text())).all()

    report = distill(student, [text()], steps=4)
    assert all(p.isfinite().all() for p in feature_parameters(student).values())
    assert report.before.dead[name][2] == 1.0
    assert report.after.dead[name][2] == 1.0
    assert report.after.dead_heads()[name] == [2]
    assert f"{name} head 2 is dead: its features are 0" in report.warnings


def test_a_dead_head_is_drawn_again_once():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    name, attention = next(iter(feature_maps(student).items()))
    weight = attention.map.weight.detach()
    others = weight[[0, 1, 3]].clone()
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    dead = Fit(dead={name: [0.0, 0.1, 1.0, 0.5]})
    records = redraw_dead(student, dead, optimizer, [], 10)
    assert records == [{"layer": name, "head": 2, "step": 10}]
    assert torch.equal(weight[[0, 1, 3]], others)
    assert float(weight[2].abs().max()) > 0
    assert redraw_dead(student, dead, optimizer, records, 20) == []

    kill(student, 0, 2)
    report = distill(student, [text()], steps=30, evaluate_every=10)
    assert [r["head"] for r in report.redrawn] == [2]
    assert not any(report.after.dead_heads().values())


def test_a_shared_map_is_drawn_again_only_when_all_heads_are_dead():
    student = convert(bert(), "luna", share="layer", normalise="sum")
    name = next(iter(feature_maps(student)))
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    assert redraw_dead(student, Fit(dead={name: [1.0, 1.0, 1.0, 0.0]}), optimizer, [], 1) == []
    assert len(redraw_dead(student, Fit(dead={name: [1.0] * 4}), optimizer, [], 1)) == 4


# ---------------------------------------------------------------------- stage 2

QUIET = {"num_labels": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def batches(epoch: int) -> list[dict[str, torch.Tensor]]:
    return [comes_again(16, seed=100 * epoch + i) for i in range(5)]


def scripted(*scores: float):
    """An evaluation that gives these scores, whatever the model."""
    values = iter(scores)
    return lambda model: {"score": next(values)}


def run(model, **options):
    return finetune(model, batches, **{"evaluate": accuracy, "metric": "accuracy"} | options)


def test_the_default_recipe_is_the_papers():
    model = convert(bert(**QUIET), "t2r")
    report = run(model, evaluate=scripted(0.1, 0.2, 0.3, 0.3, 0.2, 0.1), metric="score")
    assert report.settings == {
        "lr": 1e-5,
        "phi_lr": None,
        "weight_decay": 0.0,
        "epochs": 10,
        "patience": 3,
        "schedule": "linear",
        "clip": 1.0,
        "warmup": 0.0,
    }
    # Three epochs without a better score: a tie is not better.
    assert (report.best_epoch, len(report.epochs)) == (3, 6)
    assert (report.best, report.last) == (0.3, 0.1)
    assert json.loads(json.dumps(report.to_dict()))["best"] == 0.3
    assert describe(model)["stage"] == "finetuned"


def test_the_best_epochs_weights_are_in_the_model():
    seen = []

    def evaluate(model):
        seen.append(copy.deepcopy(model.state_dict()))
        return {"score": [0.5, 0.9, 0.7, 0.8][len(seen) - 1]}

    model = convert(bert(**QUIET), "hedgehog")
    report = run(model, evaluate=evaluate, metric="score", epochs=4, lr=1e-3)
    assert report.best_epoch == 2
    assert all(torch.equal(t, seen[1][n]) for n, t in model.state_dict().items())
    assert not torch.equal(seen[1]["classifier.weight"], seen[3]["classifier.weight"])
    assert not model.training


def test_feature_maps_have_their_own_rate():
    model = convert(bert(**QUIET), "hedgehog")
    host, maps = build_optimizer(model, 1e-4, 1e-2, 0.0).param_groups
    assert (host["lr"], maps["lr"]) == (1e-4, 1e-2)
    assert {id(p) for p in maps["params"]} == {id(p) for p in feature_parameters(model).values()}
    assert len(host["params"]) + len(maps["params"]) == len(list(model.parameters()))
    assert len(build_optimizer(bert(), 1e-4, None, 0.0).param_groups) == 1


@pytest.mark.parametrize(
    ("schedule", "warmup", "factors"),
    [
        ("linear", 0.0, [1, 0.9, 0.8, 0.4, 0]),
        ("linear", 0.2, [0, 0.5, 1, 0.5, 0]),  # from 0 to the rate in a fifth of all steps
        ("cosine", 0.0, [1, 0.97553, 0.90451, 0.34549, 0]),
        ("constant", 0.0, [1, 1, 1, 1, 1]),
    ],
)
def test_schedules(schedule, warmup, factors):
    rate = rate_factor(schedule, warmup)
    assert [rate(t) for t in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx(factors, abs=1e-5)


def test_the_schedule_runs_over_all_steps(monkeypatch):
    rates, step = [], torch.optim.AdamW.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    run(convert(bert(**QUIET), "t2r"), epochs=2, lr=1e-3)
    assert rates == pytest.approx([1e-3 * (1 - i / 10) for i in range(10)])


@pytest.mark.parametrize("name", ["hedgehog", "reformer"])
def test_an_interrupted_run_resumes_exactly(name, tmp_path):
    """Dropout on, generators in use: the random streams are part of the state."""
    options = {"epochs": 4, "lr": 1e-3, "patience": 4}

    def fresh():
        torch.manual_seed(0)
        return convert(bert(num_labels=2), name)

    whole = fresh()
    expected = run(whole, **options)

    def interrupt(model):
        if len(calls) == 2:
            raise Interrupted
        calls.append(1)
        return accuracy(model)

    calls: list[int] = []
    with pytest.raises(Interrupted):
        run(fresh(), evaluate=interrupt, folder=tmp_path, **options)
    torch.manual_seed(77)
    resumed = convert(bert(num_labels=2), name, seed=8)
    report = run(resumed, folder=tmp_path, **options)
    for ours, theirs in zip(report.epochs, expected.epochs, strict=True):
        assert ours | {"seconds": 0} == theirs | {"seconds": 0}
    assert report.best_epoch == expected.best_epoch
    for n, tensor in whole.state_dict().items():
        assert torch.equal(tensor, resumed.state_dict()[n]), n

    with pytest.raises(LunaError, match="other settings"):
        run(fresh(), folder=tmp_path, **options | {"epochs": 5})
    again = fresh()  # a finished run trains no more
    run(again, evaluate=lambda model: 1 / 0, folder=tmp_path, **options)
    assert torch.equal(again.classifier.weight, whole.classifier.weight)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"schedule": "step"}, "one of linear, cosine, constant"),
        ({"metric": "f1"}, "evaluate gave no 'f1', only accuracy"),
    ],
)
def test_wrong_arguments_of_finetune_are_refused(options, reason):
    with pytest.raises(LunaError, match=reason):
        run(convert(bert(**QUIET), "t2r"), **options)
