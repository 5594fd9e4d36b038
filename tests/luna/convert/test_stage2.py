"""Finetuning: the recipe, early stopping, exact resume, and both stages end to end."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn

from luna.base import LunaError
from luna.convert import convert, describe, distill, feature_parameters, finetune, load
from luna.convert.stage2 import build_optimizer, rate_factor

from .kit import Interrupted, accuracy, bert, comes_again

QUIET = {"num_labels": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def batches(epoch: int) -> list[dict[str, torch.Tensor]]:
    return [comes_again(16, seed=100 * epoch + i) for i in range(5)]


def scripted(*scores: float):
    """An evaluation that gives these scores, whatever the model."""
    given = iter(scores)
    return lambda model: {"score": next(given)}


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


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedules(schedule, monkeypatch):
    rates = []
    step = torch.optim.AdamW.step

    def spy(self, *args, **kwargs):
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    run(convert(bert(**QUIET), "t2r"), epochs=2, lr=1e-3, schedule=schedule)
    assert len(rates) == 10
    assert rates[0] == pytest.approx(1e-3)
    half = {"linear": 5e-4, "cosine": 5e-4, "constant": 1e-3}[schedule]
    assert rates[5] == pytest.approx(half)
    last = {"linear": 1e-4, "cosine": 2.4472e-5, "constant": 1e-3}[schedule]
    assert rates[9] == pytest.approx(last, rel=1e-4)


def test_a_warm_up_comes_before_the_schedule():
    """From 0 to the rate in a fifth of all steps, then the whole schedule."""
    rate = rate_factor({"schedule": "linear", "warmup": 0.2})
    assert [rate(t) for t in (0.0, 0.1, 0.2, 0.6, 1.0)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    model = convert(bert(**QUIET), "t2r")
    assert run(model, epochs=1, warmup=0.5).settings["warmup"] == 0.5
    with pytest.raises(LunaError, match="warmup must be at least 0 and below 1"):
        run(model, warmup=1.0)


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


def test_both_stages_end_to_end(trained, tmp_path):
    """Swap, stage 1, stage 2, saved and loaded, on a task that only attention can solve."""

    def many(epoch):
        return [comes_again(64, seed=1000 * epoch + i) for i in range(15)]

    student = convert(trained, "luna")
    swapped = accuracy(student)["accuracy"]
    report = distill(student, many(50)[:8], steps=60, evaluate_every=30)
    fitted = accuracy(student)["accuracy"]
    finetuned = finetune(student, many, accuracy, metric="accuracy", epochs=2, lr=1e-3)
    assert swapped < 0.8
    assert report.after.mean() < 0.7 * report.before.mean()
    assert fitted > swapped
    assert finetuned.best > 0.9
    student.save_pretrained(tmp_path)
    assert accuracy(load(tmp_path)) == {"accuracy": finetuned.best}


def test_a_loss_of_ones_own():
    model = convert(bert(**QUIET), "t2r")

    def loss(model, batch):
        out = model(input_ids=batch["input_ids"]).logits
        return nn.functional.cross_entropy(out, batch["labels"], label_smoothing=0.1)

    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([9.0, -9.0]))  # sure of itself
    report = run(model, loss=loss, epochs=1)
    expected = sum(float(loss(model.eval(), b).detach()) for b in batches(1)) / 5
    assert report.epochs[0]["loss"] == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"schedule": "step"}, "one of linear, cosine, constant"),
        ({"metric": "f1"}, "evaluate gave no 'f1', only accuracy"),
    ],
)
def test_wrong_arguments_are_refused(options, reason):
    with pytest.raises(LunaError, match=reason):
        run(convert(bert(**QUIET), "t2r"), **options)


def test_divergence_is_an_error():
    model = convert(bert(**QUIET), "t2r")
    with torch.no_grad():
        model.classifier.weight.fill_(float("nan"))
    with pytest.raises(LunaError, match="diverged"):
        run(model, epochs=1)
