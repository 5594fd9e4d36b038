"""Gradients and precision: one suite for attentions and mixers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from luna.errors import LunaError
from luna.method import Seeded
from luna.qkv import QKV
from luna.testing.cases import Case, hold, mask_of
from luna.testing.subject import Subject

DEAD = 1e-6  # of the largest gradient of a parameter: a slice with less is not used
HALF_ERROR = 2e-2  # relative, of bfloat16


def gradients(subject: Subject) -> None:
    """Gradients of inputs and parameters are those of finite differences; one example is empty."""
    case = subject.case
    if case.name == "synthesizer" and case.profile == "official":
        return  # it subtracts 1e10, which rounds away what finite differences need
    n, d = 9, 4
    m = torch.tensor([[True, False] + [True] * 6 + [False], [True] * n, [False] * n])
    both = case.cls.declared.causal_form and case.profile == "strict"
    for causal in (False, True) if both else (False,):
        method = subject.build(d=d, max_len=64, causal=causal)
        function, leaves = as_function(subject, method, subject.small_inputs(3, n, d), m)
        same = torch.autograd.gradcheck(
            function, leaves, fast_mode=True, atol=1e-6, raise_exception=False
        )
        hold(same, "autograd and finite differences differ: a gradient is wrong or detached")


def as_function(
    subject: Subject, method: Any, given: list[Tensor], m: Tensor
) -> tuple[Callable[..., Tensor], list[Tensor]]:
    """A method as a function of its inputs and parameters, and these as leaves."""
    names = [name for name, _ in method.named_parameters()]
    state, count = random_state(method), len(given)

    def function(*tensors: Tensor) -> Tensor:
        restore(method, state)  # what is drawn in every forward is the same
        named = dict(zip(names, tensors[count:], strict=True))
        inputs, x = tensors[:count], tensors[count - 1]
        arguments = (x, m) if subject.as_mixer else (*inputs[:3], m, x)
        return torch.func.functional_call(method, named, arguments)

    leaves = [*given, *(p.detach() for p in method.parameters())]
    return function, [t.clone().requires_grad_() for t in leaves]


def random_state(method: Any) -> Any:
    return method.get_extra_state() if isinstance(method, Seeded) else None


def restore(method: Any, state: Any) -> None:
    if isinstance(method, Seeded):
        method.set_extra_state(state)


def second(subject: Subject) -> None:
    """Second derivatives are right, or refused; along one direction, all inputs being one tensor
    which the loss has beside them."""
    method, given = subject.build(), subject.inputs(9)
    first, direction = given[0], subject.inputs(9, seed=2)[0]
    state = random_state(method)

    def slope(t: Tensor) -> Tensor:
        restore(method, state)
        tensors = [t] if subject.as_mixer else [t, t, t, given[3]]
        loss = (t + subject.run(method, tensors)).square().sum()
        return torch.autograd.grad(loss, t, create_graph=True)[0].sum()

    try:
        (found,) = torch.autograd.grad(slope(first.requires_grad_()), first)
    except LunaError:
        return
    except RuntimeError as error:
        if "is not implemented" not in str(error):  # by torch's own attention
            raise
        return
    step = 1e-5 * direction
    moved = (slope(first + step) - slope(first - step)) / 2e-5
    same = torch.allclose((found * direction).sum(), moved, rtol=1e-4, atol=1e-4)
    hold(same, "second derivatives are wrong: make them right, or refuse them")


def learns(subject: Subject) -> None:
    """Every parameter takes part in the output of a training step."""
    method = subject.build().train()
    if not list(method.parameters()):
        return
    subject.run(method, subject.inputs(), mask_of("prefix")).square().sum().backward()
    unused = [n for n, p in method.named_parameters() if p.requires_grad and p.grad is None]
    hold(not unused, f"{', '.join(unused)} take no part in the output")


def dead_weight(case: Case) -> None:
    """In a network no slice of a parameter idles: over some random batches each has a gradient that
    is no millionth of the parameter's largest. `idle` excuses parameters by name, with a reason."""
    method = case.mixer(max_len=64).train()
    largest = largest_gradients(method)
    of_all = max((float(seen.max()) for seen in largest.values()), default=0.0)
    for name, seen in largest.items():
        reference = float(seen.max())
        hold(
            reference > DEAD**2 * of_all or excused(name, method.traits().idle),
            f"{name} has no gradient: leave it out, or say why in idle={{'{name}': ...}}",
        )
        for part, of_part in parts_of(method, name, seen):
            if not excused(part, method.traits().idle):
                slices_learn(part, of_part, reference)


def largest_gradients(method: Any) -> dict[str, Tensor]:
    """The largest size of every gradient over some batches."""
    largest: dict[str, Tensor] = {}
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(4, 64, method.d_model, generator=generator).double()
        weights = torch.randn(x.shape, generator=generator).double()
        method.zero_grad()
        torch.manual_seed(seed)
        (method(x) * weights).sum().backward()
        for name, p in method.named_parameters():
            if p.requires_grad:
                seen = torch.zeros_like(p) if p.grad is None else p.grad.abs()
                largest[name] = torch.maximum(largest.get(name, seen), seen)
    return largest


def slices_learn(name: str, seen: Tensor, reference: float) -> None:
    for axis in range(seen.dim()):
        others = [a for a in range(seen.dim()) if a != axis]
        of_slice = seen.amax(others) if others else seen
        dead = int((of_slice < DEAD * reference).sum())
        hold(
            dead == 0,
            f"{dead} of {len(of_slice)} slices of {name} have no gradient: leave them out (of a "
            f"projection by `projected`), or say why in idle={{'{name}': ...}}",
        )


def parts_of(method: Any, name: str, t: Tensor) -> list[tuple[str, Tensor]]:
    """A joint projection of queries, keys and values in its letters: `qkv.weight.k`."""
    if not (isinstance(method, QKV) and name.startswith("qkv.")):
        return [(name, t)]
    letters = method.letters.replace("o", "")
    parts = t.chunk(len(letters))
    return [(f"{name}.{letter}", part) for letter, part in zip(letters, parts, strict=True)]


def excused(name: str, patterns: Iterable[str]) -> bool:
    """Whether a parameter is meant; an attention's patterns are those of its own names."""
    own = name.removeprefix("attention.")
    return any(fnmatchcase(name, p) or fnmatchcase(own, p) for p in patterns)


def half_precision(subject: Subject) -> None:
    """bfloat16 inputs, autocast on, give what float32 gives, to the bit where the method asks for
    full precision. No overflow at thirty times the scale."""
    method, same = subject.build().float(), subject.build().float()
    given = [t.bfloat16() for t in subject.inputs()]
    m = mask_of("prefix")
    exact = subject.run(method, [t.float() for t in given], m)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            half = subject.run(same, given, m)  # another module: a profile may draw every time
            large = subject.run(method, [30 * t for t in given], m)
    except RuntimeError as error:
        hold(False, f"bfloat16 inputs end in an error ({first_line(error)}): raise them to float32")
    hold(half.dtype == torch.bfloat16, f"bfloat16 comes out as {half.dtype}")
    hold(bool(large.isfinite().all()), "bfloat16 inputs of thirty times the scale overflow")
    away = relative(half.float(), exact)
    hold(away < HALF_ERROR, f"bfloat16 is {away:.1%} away from float32")
    if method.traits().full_precision:
        equal = torch.equal(half, exact.bfloat16())
        hold(equal, "it does not run in float32 inside autocast: declare full_precision=False")


def relative(a: Tensor, b: Tensor) -> float:
    with torch.no_grad():
        return float((a - b).norm() / b.norm())


def first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:120]


def float32(subject: Subject) -> None:
    """float32 is close to float64, and stays float32."""
    method, given = subject.build(), subject.inputs()
    m = mask_of("scatter")
    exact = subject.run(method, given, m)
    single = subject.run(method.float(), [t.float() for t in given], m)
    hold(single.dtype == torch.float32, f"float32 comes out as {single.dtype}")
    away = relative(single.double(), exact)
    hold(away < 1e-4, f"float32 is {away:.1g} away from float64")


def extreme(subject: Subject) -> None:
    """Tiny, zero and large inputs stay finite, and so do their gradients."""
    for scale in (0.0, 1e-6, 1e3):
        method = subject.build().float()
        given = [(scale * t).float().requires_grad_() for t in subject.inputs()]
        if not subject.as_mixer:
            given[3] = subject.inputs()[3].float()
        out = subject.run(method, given, mask_of("prefix"))
        hold(bool(out.isfinite().all()), f"inputs times {scale:g} give numbers that are not finite")
        wanted = [t for t in given if t.requires_grad]
        for gradient in torch.autograd.grad(out.sum(), wanted, allow_unused=True):
            finite = gradient is None or bool(gradient.isfinite().all())
            hold(finite, f"inputs times {scale:g} give gradients that are not finite")
