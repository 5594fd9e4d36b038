"""Attention distillation: targets, gradients, memory, dead heads (V6-V10, V14-V16)."""

from __future__ import annotations

import copy

import pytest
import torch

from luna.base import LunaError
from luna.convert import attention_maps, convert, describe, distill, feature_parameters, revert
from luna.convert import host as seam
from luna.convert.batches import forward
from luna.convert.fit import measure
from luna.convert.layerwise import Layerwise
from luna.convert.losses import (
    attention_cross_entropy,
    row_cross_entropy,
    row_entropy,
    softmax_rows,
)
from luna.convert.redraw import redraw_dead
from luna.convert.stage1 import STATE
from luna.convert.swap import evaluating, feature_maps

from .kit import HOSTS, bert, comes_again, images, inputs_of, logits, text, vit

H, N = 4, 9


def grads(student, *, loss="ce", inputs="teacher", chunk=None, recompute=False, batch=None):
    """Gradients of the feature maps from one batch, and the loss."""
    student.zero_grad()
    work = Layerwise(student, loss, inputs, chunk, recompute)
    total = work.backward(batch or inputs_of(student))
    return {n: p.grad.clone() for n, p in feature_parameters(student).items()}, total


# ---------------------------------------------------------------------- what the layers see


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_V6_the_distilling_forward_is_the_eager_teachers(make):
    model = make()
    batch = inputs_of(model)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    expected, outs = logits(eager, batch), []
    for name in ("t2r", "luna"):  # whatever the feature map
        student = convert(model, name)
        work = Layerwise(student, "ce", "teacher", None, False)
        with seam.probing(student, work.teacher_forced), evaluating(student):
            outs.append(logits(student, batch))
    for out in outs:
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    assert torch.equal(outs[0], outs[1])


def test_V16_the_teacher_has_no_dropout_even_from_train_mode():
    """Pitfall 4: in train mode the target would be another one in every call."""
    student = convert(bert(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5), "hedgehog")
    student.train()
    runs = [attention_maps(student, text()).teacher for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    first, second = (grads(student) for _ in range(2))
    assert first[1] == second[1]
    assert all(torch.equal(first[0][n], second[0][n]) for n in first[0])
    assert student.training
    assert student.bert.encoder.layer[0].attention.self.dropout.training


# ---------------------------------------------------------------------- gradients


@pytest.mark.parametrize("make", [bert, vit], ids=["bert", "vit"])
@pytest.mark.parametrize("inputs", ["teacher", "student"])
@pytest.mark.parametrize("name", ["luna", "hedgehog", "t2r"])
def test_V7_only_feature_maps_learn(make, inputs, name):
    student = convert(make(), name)
    before = copy.deepcopy(student.state_dict())
    flags = {n: p.requires_grad for n, p in student.named_parameters()}
    found, _ = grads(student, inputs=inputs)
    assert all(float(g.abs().sum()) > 0 for g in found.values())
    for n, p in student.named_parameters():
        assert (p.grad is not None) == (n in found), n
        assert p.requires_grad == flags[n]
    distill(student, [inputs_of(student)], steps=3, inputs=inputs)
    for n, tensor in student.state_dict().items():
        if isinstance(tensor, torch.Tensor) and ".luna_attn." not in n:
            assert torch.equal(tensor, before[n]), n
    assert describe(student)["stage"] == "stage1"


@pytest.mark.parametrize("loss", ["ce", "mse", "both"])
def test_V8_layer_local_gradients_are_those_of_the_summed_loss(loss):
    student, batch = convert(bert(), "hedgehog"), text()
    local, total = grads(student, loss=loss)
    seen = []

    def record(module, q, k, v, mask, x):
        seen.append((module.luna_attn, q, k, v))
        return softmax_rows(q, k, mask) @ v, None

    with torch.no_grad(), seam.probing(student, record):
        forward(student, batch)
    mask = batch["attention_mask"].bool()
    parts = []
    for phi, q, k, v in seen:
        T = softmax_rows(q, k, mask)
        if loss != "mse":
            parts.append(attention_cross_entropy(T, phi.matrix(q, k, mask), mask))
        if loss != "ce":
            error = (phi(q, k, v, mask) - T @ v).transpose(1, 2)[mask]
            parts.append(1000 * error.square().mean())
    student.zero_grad()
    whole = sum(parts) / 2  # two layers
    whole.backward()
    assert total == pytest.approx(float(whole.detach()), rel=1e-6)
    for name, p in feature_parameters(student).items():
        torch.testing.assert_close(local[name], p.grad, rtol=1e-4, atol=1e-7)


def test_V8_student_run_inputs_reach_earlier_layers():
    """There the loss of the second layer moves the first one's feature map as well."""
    student = convert(bert(), "hedgehog")
    forced, run = (grads(student, inputs=inputs)[0] for inputs in ("teacher", "student"))
    first = next(n for n in forced if "layer.0." in n and n.endswith("weight"))
    assert not torch.allclose(forced[first], run[first], rtol=1e-2)


def test_a_loss_with_that_of_the_maps_beside_it():
    """The feature maps' gradients are the task's plus the weighted ones of stage 1 on the student's
    own queries and keys; all others are the task's alone."""
    student = convert(bert(), "hedgehog").eval()
    batch = inputs_of(student)

    def task(model, batch):
        return forward(model, batch).logits.square().mean()

    def gradients(loss):
        student.zero_grad()
        loss(student, batch).backward()
        return {n: p.grad.clone() for n, p in student.named_parameters() if p.grad is not None}

    alone = gradients(task)
    joint = gradients(Layerwise(student, "ce", "student").beside(task, 0.5))
    maps = feature_parameters(student)
    for name in alone.keys() - maps.keys():
        torch.testing.assert_close(joint[name], alone[name], rtol=1e-5, atol=1e-7)

    first = next(n for n in maps if "layer.0." in n)  # its queries are the teacher's
    by_stage_1, _ = grads(student, batch=batch)
    torch.testing.assert_close(
        joint[first], alone[first] + 0.5 * by_stage_1[first], rtol=1e-4, atol=1e-7
    )
    assert all(not torch.allclose(joint[n], alone[n], rtol=1e-2) for n in maps)


@pytest.mark.parametrize("name", ["luna", "hedgehog"])
@pytest.mark.parametrize("loss", ["ce", "both"])
def test_V14_chunks_and_recomputation_change_no_result(name, loss):
    student = convert(bert(), name)
    expected, total = grads(student, loss=loss)
    for options in ({"chunk": 1}, {"chunk": 2}, {"recompute": True}, {"chunk": 2, "recompute": 1}):
        got, value = grads(student, loss=loss, **options)
        assert value == pytest.approx(total, rel=1e-6)
        for n, g in expected.items():
            torch.testing.assert_close(got[n], g, rtol=1e-4, atol=1e-7)


def alive(student, batch, **options) -> int:
    """The most bytes that autograd holds for the backward at one time."""
    now = peak = 0

    class Held:
        def __init__(self, tensor):
            nonlocal now, peak
            self.tensor, self.size = tensor, tensor.numel() * tensor.element_size()
            now += self.size
            peak = max(peak, now)

        def __del__(self):
            nonlocal now
            now -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Held, lambda held: held.tensor):
        grads(student, batch=batch, **options)
    return peak


def test_V14_memory_is_that_of_one_layer_and_one_chunk():
    B, n, batch = 8, 40, text((40,) * 8)
    deep = {"num_hidden_layers": 6}
    one = alive(convert(bert(num_hidden_layers=1), "hedgehog"), batch)
    six = alive(convert(bert(**deep), "hedgehog"), batch)
    assert six <= 1.01 * one
    # Hedgehog keeps a handful of n x n matrices a head, and features of width 2 d.
    matrix, features = 4 * B * H * n * n, 4 * B * H * n * 16
    assert one <= 8 * matrix + 24 * features
    assert alive(convert(bert(**deep), "hedgehog"), batch, chunk=2) <= 0.3 * six
    assert alive(convert(bert(**deep), "hedgehog"), batch, recompute=True) <= 0.5 * six
    # What layer-local gradients are for: run by the student, all layers are alive at once.
    assert alive(convert(bert(**deep), "hedgehog"), batch, inputs="student") > 5 * one


# ---------------------------------------------------------------------- the loss


def test_V9_the_loss_of_the_teacher_itself_is_its_entropy():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, H, N, 8, generator=g, dtype=torch.float64).unbind(0)
    T = softmax_rows(q, k)
    torch.testing.assert_close(row_cross_entropy(T, T), row_entropy(T), atol=1e-7, rtol=0)
    hard = torch.zeros_like(T)
    hard[..., 0] = 1
    assert float(row_entropy(hard).abs().max()) == 0


def test_V9_padding_and_order_change_nothing():
    student = convert(bert(), "luna")
    whole = text((5, 12, 9))
    padded = {
        "input_ids": torch.nn.functional.pad(whole["input_ids"], (0, 6), value=7),
        "attention_mask": torch.nn.functional.pad(whole["attention_mask"], (0, 6)),
    }
    turned = {key: t.flip(0) for key, t in whole.items()}
    expected, total = grads(student, batch=whole)
    for batch in (padded, turned):
        got, value = grads(student, batch=batch)
        assert value == pytest.approx(total, rel=1e-5)
        for n, g in expected.items():
            torch.testing.assert_close(got[n], g, rtol=1e-3, atol=1e-6)


def test_V9_every_token_weighs_the_same_in_measurements():
    """The fit of two batches is not the mean of their fits when their lengths differ."""
    student = convert(bert(), "t2r")
    short, long = text((4,)), text((30,), seed=2)
    both, a, b = (measure(student, batches) for batches in ([short, long], [short], [long]))
    for layer in both.kl:
        for h in range(H):
            expected = (4 * a.kl[layer][h] + 30 * b.kl[layer][h]) / 34
            assert both.kl[layer][h] == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------------- fitting


def test_V10_the_kl_falls_by_half_on_a_trained_model(trained):
    student = convert(trained, "hedgehog")
    batches = [comes_again(16, seed=i) for i in range(4)]
    report = distill(student, batches, steps=60, evaluate_every=20, held_out=batches)
    assert report.after.mean() < 0.5 * report.before.mean()
    assert [point["step"] for point in report.curve] == [0, 20, 40, 60]
    assert report.losses[-1] < report.losses[0]


@pytest.mark.parametrize("name", ["luna", "hedgehog", "t2r"])
def test_V10_the_kl_falls_on_a_random_model(name):
    student = convert(bert(), name)
    report = distill(student, [text()], steps=40)
    for layer, before in report.before.layers().items():
        assert report.after.layers()[layer] < before


def test_the_best_feature_maps_are_kept(trained):
    """A rate that destroys them leaves the start; the measure is the held-out KL."""
    student = convert(trained, "hedgehog")
    batch = comes_again(16)
    report = distill(student, [batch], steps=6, lr=30.0, evaluate_every=1, redraw=False)
    lowest = {layer: min(point["kl"][layer] for point in report.curve) for layer in report.after.kl}
    assert report.after.layers() == pytest.approx(lowest, rel=1e-5)
    assert any(report.curve[-1]["kl"][layer] > 2 * kl for layer, kl in lowest.items())


def test_maps_fitted_on_short_texts_are_measured_on_long_ones(trained):
    """Normalisers see other sums there: a KL of the training lengths says little."""
    short, long = comes_again(16, n=6), comes_again(16, n=24)
    student = convert(trained, "hedgehog")
    report = distill(student, [short], steps=30, held_out=[long])
    assert report.after.mean() == pytest.approx(measure(student, [long]).mean())
    assert report.after.mean() > 1.2 * measure(student, [short]).mean()


def test_report_is_plain_data(trained):
    import json

    report = distill(convert(trained, "t2r", layers=[1]), [comes_again(4)], steps=2)
    record = json.loads(json.dumps(report.to_dict()))
    assert list(record["after"]["kl"]) == ["bert.encoder.layer.1.attention.self"]
    assert record["method"] == "t2r"
    assert record["steps"] == 2


def test_reverting_after_stage_1_gives_the_teacher_back():
    model = bert()
    student = convert(model, "luna")
    distill(student, [text()], steps=3)
    assert torch.equal(logits(revert(student), text()), logits(model, text()))


# ---------------------------------------------------------------------- dead heads


def kill(student, layer: int, head: int) -> None:
    """T2R features of one head that are zero whatever comes in."""
    phi = list(feature_maps(student).values())[layer]
    with torch.no_grad():
        phi.map.weight[head] = 0
        phi.map.bias[head] = -1


def test_V15_a_dead_head_gives_zeros_finite_gradients_and_a_record():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    name = next(iter(feature_maps(student)))
    A = attention_maps(student, text()).student[0]
    assert float(A[:, 2].abs().max()) == 0
    found, _ = grads(student)
    assert all(g.isfinite().all() for g in found.values())
    assert torch.isfinite(logits(student, text())).all()

    report = distill(student, [text()], steps=4, redraw=False)
    assert report.before.dead[name][2] == 1.0
    assert report.after.dead[name][2] == 1.0
    assert report.after.dead_heads() == [f"{name} head 2"]
    assert f"{name} head 2 is dead: its features are 0" in report.warnings


def test_V15_a_dead_head_is_drawn_again_once():
    student = convert(bert(), "t2r")
    kill(student, 0, 2)
    others = next(iter(feature_maps(student).values())).map.weight.detach()[[0, 1, 3]].clone()
    name = next(iter(feature_maps(student)))
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    dead = {name: [0.0, 0.1, 1.0, 0.5]}
    records = redraw_dead(student, dead, 0.5, optimizer, [], 10)
    assert records == [{"layer": name, "head": 2, "step": 10}]
    weight = next(iter(feature_maps(student).values())).map.weight.detach()
    assert torch.equal(weight[[0, 1, 3]], others)
    assert float(weight[2].abs().max()) > 0
    assert redraw_dead(student, dead, 0.5, optimizer, records, 20) == []

    kill(student, 0, 2)
    report = distill(student, [text()], steps=30, evaluate_every=10)
    assert [r["head"] for r in report.redrawn] == [2]
    assert report.after.dead[name][2] < 0.5
    assert report.after.dead_heads() == []


def test_a_shared_map_is_drawn_again_only_when_all_heads_are_dead():
    student = convert(bert(), "luna", share="layer")
    name = next(iter(feature_maps(student)))
    optimizer = torch.optim.AdamW(feature_parameters(student).values())
    assert redraw_dead(student, {name: [1.0, 1.0, 1.0, 0.0]}, 0.5, optimizer, [], 1) == []
    assert len(redraw_dead(student, {name: [1.0] * 4}, 0.5, optimizer, [], 1)) == 4


# ---------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("uniform", {}, "no trainable feature map"),
        ("polaformer", {}, "use loss='mse'"),
        ("t2r", {"loss": "kl"}, "one of ce, mse, both"),
        ("t2r", {"inputs": "both"}, "one of teacher, student"),
        ("t2r", {"steps": 0}, "steps must be at least 1"),
        ("t2r", {"evaluate_every": 0}, "evaluate_every must be at least 1"),
    ],
)
def test_what_distill_refuses(method, options, reason):
    with pytest.raises(LunaError, match=reason):
        distill(convert(bert(), method), [text()], **options)


def test_distill_refuses_a_plain_model_and_used_up_batches():
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


# ---------------------------------------------------------------------- interruption


@pytest.mark.parametrize("own_held_out", [False, True])
def test_an_interrupted_stage_1_resumes_exactly(own_held_out, trained, tmp_path):
    batches = [comes_again(8, seed=i) for i in range(5)]  # 7 steps begin a second pass
    options = {"steps": 12, "evaluate_every": 4}
    if own_held_out:
        options["held_out"] = [comes_again(8, seed=9)]
    whole = convert(trained, "t2r")
    kill(whole, 0, 2)  # so that a re-drawn head is part of it
    torn = copy.deepcopy(whole)
    expected = distill(whole, batches, **options)
    assert expected.redrawn

    class Interrupted(Exception):
        pass

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


def test_stage_1_state_of_another_run_or_torn_is_refused(tmp_path):
    distill(convert(bert(), "t2r"), [text()], steps=2, folder=tmp_path)
    with pytest.raises(LunaError, match="other settings"):
        distill(convert(bert(), "t2r"), [text()], steps=3, folder=tmp_path)
    path = tmp_path / STATE
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(LunaError, match="cannot be read"):
        distill(convert(bert(), "t2r"), [text()], steps=2, folder=tmp_path)
