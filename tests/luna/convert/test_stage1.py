"""Attention distillation: what learns, what is kept, what is refused, and interruption."""

from __future__ import annotations

import copy
import errno
from pathlib import Path

import pytest
import torch

from luna.base import LunaError
from luna.convert import convert, distill, feature_parameters
from luna.convert.stage import read_state, write_state
from luna.convert.stage1 import STATE

from .kit import Interrupted, bert, comes_again, images, kill, text, vit


def test_the_kl_falls_by_half_on_a_trained_model(trained):
    student = convert(trained, "hedgehog")
    batches = [comes_again(16, seed=i) for i in range(4)]
    report = distill(student, batches, steps=60, evaluate_every=20, held_out=batches)
    assert report.after.mean() < 0.5 * report.before.mean()
    assert [point["step"] for point in report.curve] == [0, 20, 40, 60]
    assert report.losses[-1] < report.losses[0]


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
    ],
)
def test_wrong_arguments_are_refused(method, options, reason):
    with pytest.raises(LunaError, match=reason):
        distill(convert(bert(), method), [text()], **options)


def test_a_plain_model_used_up_batches_and_divergence_are_refused():
    with pytest.raises(LunaError, match="was not converted"):
        distill(bert(), [text()])
    with pytest.raises(LunaError, match="ran out"):
        distill(convert(bert(), "t2r"), iter([text()]), steps=3)
    nothing = {"pixel_values": images()["pixel_values"] * float("nan")}
    with pytest.raises(LunaError, match="diverged"):
        distill(convert(vit(), "t2r"), [nothing], steps=1)


def test_without_a_number_of_steps_the_batches_are_seen_once():
    batches = [text(seed=seed) for seed in range(3)]
    assert distill(convert(bert(), "t2r"), batches).steps == 3
    with pytest.raises(LunaError, match="give distill a number of steps"):
        distill(convert(bert(), "t2r"), iter(batches))


def test_methods_without_a_matrix_learn_from_outputs():
    student = convert(bert(), "polaformer")
    report = distill(student, [text()], steps=10, loss="mse")
    assert report.losses[-1] < report.losses[0]
    assert report.before.kl == {}


@pytest.mark.parametrize("own_held_out", [False, True])
def test_an_interrupted_stage_1_resumes_exactly(own_held_out, trained, tmp_path):
    batches = [comes_again(8, seed=i) for i in range(5)]  # 7 steps begin a second pass
    options = {"steps": 12, "evaluate_every": 4}
    if own_held_out:
        options["held_out"] = [comes_again(8, seed=9)]
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
    path = tmp_path / STATE
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(LunaError, match="cannot be read"):
        distill(student, [text()], steps=2, folder=tmp_path)


def test_a_full_disk_under_a_state_is_no_error_of_torch(tmp_path, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / STATE
    write_state(path, {"settings": {}, "step": 1})
    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        write_state(path, {"settings": {}, "step": 2})
    assert read_state(path, {})["step"] == 1
