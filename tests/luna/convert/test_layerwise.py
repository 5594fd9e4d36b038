"""Losses inside the layers: what the layers see, gradients, and memory."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from luna.convert import attention_maps, convert, feature_parameters, host
from luna.convert.batches import forward
from luna.convert.layerwise import Layerwise
from luna.convert.losses import attention_cross_entropy, softmax_rows
from luna.convert.swap import evaluating

from .kit import HOSTS, H, bert, inputs_of, logits, text


def gradients(student, *, loss="ce", batch=None):
    """Gradients of the feature maps from one batch, and the loss."""
    student.zero_grad()
    total = Layerwise(student, loss).backward(batch or inputs_of(student))
    return {n: p.grad.clone() for n, p in feature_parameters(student).items()}, total


def assert_same(got, expected, rtol=1e-4, atol=1e-7):
    assert got[1] == pytest.approx(expected[1], rel=1e-5)
    for name, gradient in expected[0].items():
        torch.testing.assert_close(got[0][name], gradient, rtol=rtol, atol=atol)


@pytest.mark.parametrize("make", HOSTS.values(), ids=HOSTS)
def test_the_distilling_forward_is_the_eager_teachers(make):
    model = make()
    batch = inputs_of(model)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    expected, outs = logits(eager, batch), []
    for name in ("t2r", "luna"):  # whatever the feature map
        student = convert(model, name)
        work = Layerwise(student, "ce")
        with host.probing(student, work.teacher_forced), evaluating(student):
            outs.append(logits(student, batch))
    for out in outs:
        torch.testing.assert_close(out, expected, atol=1e-6, rtol=0)
    assert torch.equal(outs[0], outs[1])


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
    student, batch = convert(bert(), "hedgehog"), text()
    local = gradients(student, loss=loss)
    seen = []

    def record(module, q, k, v, mask, x):
        seen.append((module.luna_attn, q, k, v))
        return softmax_rows(q, k, mask) @ v, None

    with torch.no_grad(), host.probing(student, record):
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
    joint = of_all(Layerwise(student, "ce").beside(task, 0.5))
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
    B, n, batch = 8, 40, text((40,) * 8)
    one, six = (
        most_bytes(convert(bert(num_hidden_layers=layers), "hedgehog"), batch) for layers in (1, 6)
    )
    assert six <= 1.01 * one
    # Hedgehog keeps a handful of n x n matrices per head, and features of width 2 d.
    assert one <= 8 * (4 * B * H * n * n) + 24 * (4 * B * H * n * 16)
