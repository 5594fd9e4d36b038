"""Attention maps: what the layers see, losses, gradients, measurements, and memory."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from luna.convert import attention_maps, convert, feature_parameters
from luna.convert.host import probing
from luna.convert.maps import (
    MapLoss,
    attention_cross_entropy,
    measure,
    row_cross_entropy,
    row_entropy,
    softmax_rows,
)
from luna.convert.running import forward

from .kit import ENCODERS, HOSTS, H, bert, host, inputs_of, text


def test_the_loss_of_the_teacher_itself_is_its_entropy():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 3, 4, 9, 8, generator=g, dtype=torch.float64).unbind(0)
    T = softmax_rows(q, k)
    torch.testing.assert_close(row_cross_entropy(T, T), row_entropy(T), atol=1e-7, rtol=0)
    hard = torch.zeros_like(T)
    hard[..., 0] = 1
    assert float(row_entropy(hard).abs().max()) == 0


def test_the_loss_is_the_formula():
    """The mean over real rows; the floor bounds small weights and leaves the others."""
    T = torch.tensor([[[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]]])
    A = torch.tensor([[[[0.25, 0.75, 0.0], [0.0, 0.5, 0.5], [0.2, 0.3, 0.5]]]])
    rows = [
        -0.5 * math.log(0.25) - 0.5 * math.log(0.75),
        -math.log(1e-8),
        -sum(p * math.log(p) for p in (0.2, 0.3, 0.5)),
    ]
    mask = torch.tensor([[True, False, True]])
    assert attention_cross_entropy(T, A).item() == pytest.approx(sum(rows) / 3)
    assert attention_cross_entropy(T, A, mask).item() == pytest.approx((rows[0] + rows[2]) / 2)
    assert attention_cross_entropy(T, A, torch.zeros_like(mask)).item() == 0
    rows[1] = -math.log(0.1)
    assert attention_cross_entropy(T, A, floor=0.1).item() == pytest.approx(sum(rows) / 3)


def test_rows_of_a_teacher_that_see_no_key_are_0():
    q, k = torch.randn(2, 2, 2, 9, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    rows = softmax_rows(q, k, (torch.arange(9) >= 5).expand(2, 9), causal=True)
    assert (rows[:, :, :5] == 0).all()
    torch.testing.assert_close(rows[:, :, 5:].sum(-1), torch.ones(2, 2, 4))


@pytest.mark.parametrize("name", HOSTS)
def test_maps_are_the_hosts_own_and_the_students(name):
    model = host(name)
    batch = inputs_of(model)
    student = convert(model, "hedgehog")
    maps = attention_maps(student, batch)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch, output_attentions=True).attentions
        requested = student(**batch, output_attentions=True).attentions
    real = batch["attention_mask"] == 1 if "attention_mask" in batch else slice(None)
    for ours, theirs in zip(maps.teacher, expected, strict=True):
        ours, theirs = (t.transpose(1, 2)[real] for t in (ours, theirs))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    for ours, theirs in zip(maps.student, requested, strict=name != "gpt2"):  # its layers are not
        torch.testing.assert_close(ours, theirs)  # where maps are asked for
    assert name in ENCODERS or all((A.triu(1) == 0).all() for A in maps.student)


def test_every_token_weighs_the_same_in_measurements():
    """The fit of two batches is not the mean of their fits when their lengths differ."""
    student = convert(bert(), "t2r", layers=[1])
    short, long = text((4,)), text((30,), seed=2)
    both, a, b = (measure(student, batches) for batches in ([short, long], [short], [long]))
    assert list(both.kl) == ["bert.encoder.layer.1.attention.self"]  # the other one stays softmax
    for layer in both.kl:
        for h in range(H):
            expected = (4 * a.kl[layer][h] + 30 * b.kl[layer][h]) / 34
            assert both.kl[layer][h] == pytest.approx(expected, rel=1e-4)


# ---------------------------------------------------------------------- gradients


def gradients(student, *, loss="ce", batch=None):
    """Gradients of the feature maps from one batch, and the loss."""
    student.zero_grad()
    total = MapLoss(student, loss).backward(batch or inputs_of(student))
    return {n: p.grad.clone() for n, p in feature_parameters(student).items()}, total


def assert_same(got, expected, rtol=1e-4, atol=1e-7):
    assert got[1] == pytest.approx(expected[1], rel=1e-5)
    for name, gradient in expected[0].items():
        torch.testing.assert_close(got[0][name], gradient, rtol=rtol, atol=atol)


def test_the_teacher_has_no_dropout_even_from_train_mode():
    """In train mode every call would have another target."""
    student = convert(bert(attention_probs_dropout_prob=0.5, hidden_dropout_prob=0.5), "hedgehog")
    student.train()
    runs = [attention_maps(student, text()).teacher for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    first, second = (gradients(student) for _ in range(2))
    assert first[1] == second[1]
    assert all(torch.equal(first[0][n], second[0][n]) for n in first[0])
    assert student.training
    assert student.bert.encoder.layer[0].attention.self.dropout.training


@pytest.mark.parametrize("loss", ["ce", "mse", "both"])
def test_layer_local_gradients_are_those_of_the_summed_loss(loss):
    """Whatever the feature map, the next layer sees the teacher's hidden states."""
    student, batch = convert(bert(), "hedgehog"), text()
    local = gradients(student, loss=loss)
    seen = []

    def record(layer, given):
        q, k, v, mask, _ = given
        seen.append((layer.attention, q, k, v))
        return softmax_rows(q, k, mask) @ v, None

    with torch.no_grad(), probing(student, record):
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
    expected = {name: p.grad for name, p in feature_parameters(student).items()}
    assert_same(local, (expected, float(whole.detach())))


def test_the_loss_of_the_maps_beside_the_tasks():
    """The feature maps' gradients are the task's plus the weighted ones of stage 1 on the student's
    own queries and keys; all others are the task's alone."""
    student = convert(bert(), "hedgehog").eval()
    batch = inputs_of(student)

    def task(model, batch):
        return forward(model, batch).logits.square().mean()

    def of_all(loss):
        student.zero_grad()
        loss(student, batch).backward()
        return {n: p.grad.clone() for n, p in student.named_parameters() if p.grad is not None}

    alone = of_all(task)
    joint = of_all(MapLoss(student, "ce").beside(task, 0.5))
    maps = feature_parameters(student)
    for name in alone.keys() - maps.keys():
        torch.testing.assert_close(joint[name], alone[name], rtol=1e-5, atol=1e-7)

    first = next(n for n in maps if "layer.0." in n)  # its queries are the teacher's
    by_stage_1, _ = gradients(student, batch=batch)
    torch.testing.assert_close(
        joint[first], alone[first] + 0.5 * by_stage_1[first], rtol=1e-4, atol=1e-7
    )
    assert all(not torch.allclose(joint[n], alone[n], rtol=1e-2) for n in maps)


def test_padding_and_order_change_no_gradient():
    student = convert(bert(), "luna")
    whole = text((5, 12, 9))
    padded = {
        "input_ids": F.pad(whole["input_ids"], (0, 6), value=7),
        "attention_mask": F.pad(whole["attention_mask"], (0, 6)),
    }
    turned = {key: t.flip(0) for key, t in whole.items()}
    expected = gradients(student, batch=whole)
    for batch in (padded, turned):
        assert_same(gradients(student, batch=batch), expected, rtol=1e-3, atol=1e-6)


def most_bytes(student, batch) -> int:
    """The most bytes that autograd keeps for the backward at one time."""
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
        gradients(student, batch=batch)
    return peak


def test_memory_is_that_of_one_layer():
    batch = text((40,) * 8)
    one, six = (
        most_bytes(convert(bert(num_hidden_layers=layers), "hedgehog"), batch) for layers in (1, 6)
    )
    assert six <= 1.01 * one
