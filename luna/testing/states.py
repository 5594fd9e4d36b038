"""Randomness, state dicts, layers and cost: one suite for attentions and mixers."""

from __future__ import annotations

import copy
import dataclasses
import io
import time
from typing import Any

import torch

from luna.around import Around
from luna.contract import Slot
from luna.method import PROFILES
from luna.mixing import Place
from luna.qkv import Style
from luna.registry import options
from luna.testing.cases import Case, hold, mask_of
from luna.testing.memory import Sizes
from luna.testing.numbers import random_state
from luna.testing.subject import Subject

# Words of every method: an option of the same name would never be given to its method.
PLACES = (Around, Place, Style, Slot)
TAKEN = {"style", *(field.name for cls in PLACES for field in dataclasses.fields(cls))}
SLOW = 60.0  # times as long as softmax at 512 tokens: a Python loop over tokens


def evaluation(subject: Subject) -> None:
    """Evaluation is deterministic, and draws nothing from torch's own generator."""
    method = subject.build(dropout=0.5)
    given, m = subject.inputs(), mask_of("prefix")
    first = subject.run(method, given, m)
    subject.trained_output(method)  # whatever training draws, evaluation does not
    method.eval()
    state = torch.get_rng_state()
    again = subject.run(method, given, m)
    hold(torch.equal(torch.get_rng_state(), state), "evaluation draws from torch's generator")
    hold(torch.equal(subject.run(method, given, m), again), "two evaluations differ")
    if not list(method.buffers()):  # a buffer may follow training: a redraw, a running average
        hold(torch.equal(first, again), "an evaluation after training steps differs from before")


def draws(subject: Subject) -> None:
    """What draws in training says so, since who trains a batch in pieces asks. It need not draw in
    every call: a few tokens may do without."""
    method = subject.build(dropout=0.0)
    states = []
    for runs in (False, True):
        if runs:
            subject.run(method.train(), subject.inputs(), mask_of("prefix"))
        found = {"torch": torch.get_rng_state()} | (random_state(method) or {})
        states.append({name: state.tolist() for name, state in found.items()})
    drawn = states[0] != states[1]
    hold(method.traits().draws or not drawn, "a call in training draws: declare draws=True")


def seed(subject: Subject) -> None:
    """A seed determines everything."""
    first, other = (subject.build(init=3, seed=7, dropout=0.1) for _ in range(2))
    for step in range(2):
        same = torch.equal(*(subject.trained_output(m, step) for m in (first, other)))
        hold(same, "two methods of one seed differ in training")


def state(subject: Subject) -> None:
    """All that a method has come to is in its state dict, its random stream included, and that is a
    file of plain tensors."""
    trained, other = subject.build(init=1, seed=1), subject.build(init=2, seed=2)
    subject.trained_output(trained)
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    given, m = subject.inputs(), mask_of("prefix")
    same = torch.equal(subject.run(other.eval(), given, m), subject.run(trained.eval(), given, m))
    hold(same, "something that decides the output is not in the state dict: register it")
    for step in range(2):
        same = torch.equal(*(subject.trained_output(x, step) for x in (other, trained)))
        hold(same, "something that decides training is not in the state dict: register it")


def deep_copy(subject: Subject) -> None:
    """A deep copy gives what its original gives."""
    method = subject.build()
    subject.trained_output(method)
    twin = copy.deepcopy(method)
    same = torch.equal(subject.trained_output(twin), subject.trained_output(method))
    hold(same, "a deep copy differs from its original")


def dropout(subject: Subject) -> None:
    """The place's dropout acts if and only if `uses_dropout` is declared."""
    off, on = (subject.trained_output(subject.build(dropout=p)) for p in (0.0, 0.5))
    declared, differ = subject.build(dropout=0.5).traits().uses_dropout, not torch.equal(off, on)
    hold(
        differ == declared,
        f"dropout {'acts' if differ else 'does nothing'}: declare uses_dropout={differ}",
    )


def layers(subject: Subject) -> None:
    """Layers with the same parameters differ if and only if `layers_differ` is declared."""
    place = {"n_layers": 2} if "n_layers" not in subject.case.options else {}
    first, last = (subject.build(layer=layer, **place) for layer in (0, 1))
    same = first.state_dict().keys() == last.state_dict().keys()
    if same:
        last.load_state_dict(first.state_dict())
        same = torch.equal(subject.trained_output(first), subject.trained_output(last))
    declared = first.traits().layers_differ
    hold(
        same != declared,
        f"layers {'are alike' if same else 'differ'}: declare layers_differ={not same}",
    )


# ---------------------------------------------------------------------- cost


def memory(subject: Subject) -> None:
    """At twice the length the largest tensor of a training step, and the most bytes alive at once,
    grow as its complexity says. Of the quadratic methods only the fused softmax does without an n x
    n tensor."""
    linear = subject.case.cls.declared.linear_in_n
    growth(subject, 2048 if linear else 1024)  # from 2,048 tokens some work in blocks
    if subject.case.cls.declared.causal_form:
        growth(subject, 512, causal=True)


def growth(subject: Subject, short: int, **place: Any) -> None:
    largest, peaks = [], []
    linear = subject.case.cls.declared.linear_in_n
    for n in (short, 2 * short):
        method = subject.build(heads=1, max_len=n, **place).float().train()
        given = [t.float().requires_grad_() for t in subject.inputs(n, batch=1, heads=1)]
        with Sizes() as sizes:
            subject.run(method, given, mask_of("prefix", n, 1)).sum().backward()
        largest.append(sizes.largest)
        peaks.append(sizes.peak)
        square = any(shape.count(n) > 1 for shape in sizes.shapes)
        hold(not (linear and square), "it makes an n x n tensor: declare linear_in_n=False")
    ratios = largest[1] / largest[0], peaks[1] / peaks[0]
    if linear or subject.case.name == "softmax":
        # 4 for n x n; blocks at the ends count too.
        what = f"twice the tokens take {max(ratios):.1f} times the memory"
        hold(max(ratios) <= 2.5, f"{what}: declare linear_in_n=False")
    else:
        what = f"twice the tokens take {ratios[1]:.1f} times the memory"
        hold(ratios[1] > 3.5, f"{what}: declare linear_in_n=True")


def speed(subject: Subject) -> None:
    """A training step is no loop over tokens in Python. Best of three, beside softmax in the same
    process, so a busy machine slows both."""
    ours = best_time(subject, 512)
    softmax = best_time(Subject.of(Case("softmax")), 512)
    ratio = ours / softmax
    hold(
        ratio < SLOW,
        f"a training step of 512 tokens takes {ratio:.0f} times as long as softmax's: work in "
        "chunks of tokens in place of a loop",
    )


def best_time(subject: Subject, n: int) -> float:
    method = subject.build(max_len=n).float().train()
    given = [t.float().requires_grad_() for t in subject.inputs(n)]
    times = []
    for _ in range(4):  # the first one warms up
        began = time.perf_counter()
        subject.run(method, given, mask_of("prefix", n)).sum().backward()
        times.append(time.perf_counter() - began)
    return min(times[1:])


# ---------------------------------------------------------------------- description


def facts(case: Case) -> None:
    """Its paper, its complexity and the names of its options are as a catalogue needs them."""
    mixer = case.mixer()
    cls, declared = case.cls, mixer.traits()
    hold(bool(cls.paper.title), "its paper has no title")
    hold(cls.paper.year > 1950, f"its paper is of the year {cls.paper.year}")
    hold(cls.paper.url.startswith("https://"), f"its paper's address is {cls.paper.url}")
    hold(cls.complexity.startswith("O("), f"its complexity is '{cls.complexity}', not O(...)")
    taken = ", ".join(sorted(TAKEN & set(options(case.name))))
    hold(not taken, f"its option {taken} is a setting of every method: give it another name")
    hold(cls.profiles[0] == "strict", "its first profile is not strict")
    hold(set(cls.profiles) <= set(PROFILES), f"its profiles are {cls.profiles}")
    reasons = [*declared.exempt.values(), *declared.idle.values()]
    short = [reason for reason in reasons if len(reason.split()) <= 3]
    hold(not short, f"a reason says too little: {', '.join(map(repr, short))}")
    complex_ones = [name for name, p in mixer.named_parameters() if p.is_complex()]
    hold(
        not complex_ones,
        f"complex parameters ({', '.join(complex_ones)}): keep real and imaginary parts, for "
        ".double() leaves complex numbers single and fused optimisers refuse them",
    )
