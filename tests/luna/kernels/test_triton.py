"""The Triton kernels of LUNA's attention: on a GPU, or in Triton's interpreter.

The interpreter's variable has to be set before triton is imported, so in a process of its own. That
runs test_luna_attention.py too, which holds outputs and every gradient to the paper's listing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import luna
from luna import LunaError
from luna.kernels import checked
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.linear_triton import segments
from luna.kernels.luna_attention import luna_attention

from .kit import scattered
from .test_luna_attention import (
    NO_GPU,
    Place,
    assert_is_the_listing,
    attended_at,
    build,
    causally,
    tensors,
)

triton = pytest.mark.skipif(not TRITON, reason="needs triton: pip install 'luna-lra[triton]'")
HERE = pytest.param(
    Place("cpu", torch.float64, 1e-11),
    marks=pytest.mark.skipif(not INTERPRETED, reason="needs the interpreter"),
    id="cpu",
)
THERE = pytest.param(Place("cuda", torch.float32, 1e-4), marks=[pytest.mark.gpu, NO_GPU], id="cuda")
at_a_place = pytest.mark.parametrize("place", [HERE, THERE])


# Most of the interpreter's time: more lengths, layouts and sizes of what the other tests compute.
LONG = (
    "lengths or (test_mapped and t2r) or wide or dims1 or 5-33 "
    "or (False and (segments or precision)) or (precision and (dtype1 or dtype4)) "
    "or (divisor and (exp or softplus)) "
    "or (test_decayed and (fixed or none or layouts or dtype1))"
)


@triton
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter")
@pytest.mark.parametrize(
    "which", [f"not ({LONG})", pytest.param(LONG, marks=pytest.mark.rest)], ids=["short", "long"]
)
def test_in_the_interpreter(which: str):
    others = ("test_luna_attention.py", "test_mapped.py", "test_decayed.py")
    files = [__file__, *(str(Path(__file__).with_name(name)) for name in others)]
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-k",
            f"cpu and not compile and ({which})",
            *files,
        ],
        cwd=Path(__file__).resolve().parents[3],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        check=True,
        timeout=500,
    )


@at_a_place
@causally
def test_segments_of_several_blocks(place: Place, causal: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(segments, "PROGRAMS", 3)  # two of 128 tokens, the second with one block
    qkv = tensors(150, H=1)
    assert_is_the_listing(place, build(causal=causal, heads=1), qkv, scattered(150))


@at_a_place
@causally
def test_deterministic_sums(place: Place, causal: bool):
    """Where torch shall be deterministic each program adds to a table of its own, in order."""
    n, times = (70, 1) if INTERPRETED else (150, 3)  # it runs programs one by one, slowly
    qkv, mask = tensors(n), scattered(n)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        attention = build(share="head", causal=causal)
        first = assert_is_the_listing(place, attention, qkv, mask)
        again = [attended_at(place, attention, qkv, mask) for _ in range(times)]
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for other in again for a, b in zip(first, other, strict=True))


@at_a_place
@causally
def test_the_kernels_are_used_after_a_comparison(place: Place, causal: bool, monkeypatch):
    monkeypatch.setattr(checked, "_compared", compared := set())
    assert_is_the_listing(place, build("auto", causal=causal), tensors(20), scattered(20))
    assert len(compared) == 1
    assert not checked.LEFT_OUT


@pytest.mark.gpu
@NO_GPU
@causally
def test_the_defaults_at_full_length(causal: bool):
    """M = L = 8, hidden 64, n = 4096. Of half a million inputs some lie within a rounding error of
    a breakpoint, where the gradient jumps: hence norms."""
    ours, theirs = (
        attended_at(
            Place("cuda", torch.float32, 0),
            build(how, causal=causal, M=8, L=8, hidden=64),
            tensors(4096, B=4, e=32),
            scattered(4096, 4),
        )
        for how in ("fused", "piecewise")
    )
    for a, b in zip(ours, theirs, strict=True):
        assert (a - b).norm() <= 1e-3 * b.norm()


# ---------------------------------------------------------------------- without running them


def test_segments_fill_a_gpu_and_no_more():
    for tokens, segment in ((1, 64), (2**15, 64), (2**15 + 1, 128), (2**20, 2048)):
        assert segments.segment_of(tokens) == segment


def test_what_is_asked_for_and_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    """`auto` takes the kernels where Triton is installed."""
    build = partial(luna.build, "luna", n_heads=2, head_dim=8, max_len=8, share="head")
    for causal in (False, True):
        for installed, usual in ((True, "fused"), (False, "piecewise")):
            monkeypatch.setattr(checked, "TRITON", installed)
            assert build(causal=causal).evaluation("cuda") == usual
        with pytest.raises(LunaError, match="fused attention on cuda needs triton: pip install"):
            build(causal=causal, evaluate="fused").evaluation("cuda")
    with pytest.raises(LunaError, match="there is no fused attention for mps"):
        build(evaluate="fused").evaluation("mps")


def test_activations_without_a_table_are_refused():
    with pytest.raises(LunaError, match="needs relu or leaky_relu, not 'gelu'"):
        luna_attention(*tensors(3), None, *[torch.zeros(1)] * 6, activation="gelu")
