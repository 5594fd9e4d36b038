"""torch.compile: a compiled training step equals the eager one."""

from __future__ import annotations

import copy
from typing import Any

import torch

from luna.testing.cases import hold, mask_of
from luna.testing.subject import Subject


def compiled(subject: Subject) -> None:
    """Values and gradients of a compiled step are those of the eager one. Breaks of the graph are
    allowed; a backward pass is compiled under strict."""
    compiled_step(subject, backend="aot_eager" if subject.case.profile == "strict" else "eager")


def compiled_step(subject: Subject, **how: Any) -> None:
    torch._dynamo.reset()
    method = subject.build().float().train()
    other = copy.deepcopy(method)  # with its own random stream, at the same place
    other.compile(**how)
    given = [t.float().requires_grad_() for t in subject.inputs()]
    results = []
    for f in (method, other):
        out = subject.run(f, given, mask_of("prefix"))
        wanted = [t for t in (*given, *f.parameters()) if t.requires_grad]
        gradients = torch.autograd.grad(out.square().sum(), wanted, materialize_grads=True)
        results.append([out, *gradients])
    for eager, fast in zip(*results, strict=True):
        same = torch.allclose(fast, eager, rtol=1e-4, atol=1e-5)
        hold(same, "a compiled training step differs from the eager one")
