"""The machine code of the GPU's kernels, for compute capability 9.0 and without a GPU.

A kernel that is right can be slow by one word: with Triton's default order each atomic addition was
a fence of the whole GPU, and more than half of the time. Spills are at most what they were when
this was measured (docs/speed.md); a number here may fall.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch

from luna import kernels
from luna.kernels import compiled as how
from luna.kernels.checked import INTERPRETED, TRITON
from luna.kernels.scalar_mlp import OUTPUTS

pytestmark = [
    pytest.mark.skipif(not TRITON, reason="needs triton: pip install 'luna-lra[triton]'"),
    pytest.mark.skipif(INTERPRETED, reason="the interpreter replaces the compiler's language"),
]
PASSES = ("keys", "queries", "queries_backward", "keys_backward")
GROUPS = {
    "queries": {"states": 2},
    "queries_backward": {"states": 3, "made": 2, "results": 2},
    "keys_backward": {"states": 4, "results": 2},
}
SHARED = 227 * 1024  # bytes that a program of this card can have

# Instructions that spill, of the four passes, at most: by Triton 3.7.1 and 3.9.0.
SPILLS = {
    ("half", False): (0, 0, 400, 40),
    ("half", True): (0, 0, 750, 650),
    ("single", False): (0, 0, 490, 240),
    ("single", True): (0, 96, 1060, 1220),
}
rest = pytest.mark.rest


def shape(half: bool, causal: bool = False, nonneg: Any = True, absolute: bool = False) -> Any:
    from luna.kernels.luna_attention.triton_map import shape_of

    v = torch.empty(1, 1, 1, 32, dtype=torch.bfloat16 if half else torch.float32)
    output = list(OUTPUTS).index(nonneg)
    maps = torch.empty(1, 8, 32), torch.empty(1, 513, 16)
    return shape_of(v, *maps, causal, output, eps=1e-6, divided=True, absolute=absolute)


def code_of(name: str, shape: Any, half: bool) -> Any:
    from luna.kernels.linear_triton import passes

    from .machine_code import compiled

    kernel = getattr(passes, f"{name}_kernel")
    return compiled(kernel, {"s": shape}, half=half, **GROUPS.get(name, {}))


@pytest.mark.parametrize(
    ("precision", "causal"),
    [
        ("half", False),
        pytest.param("half", True, marks=rest),
        pytest.param("single", False, marks=rest),
        pytest.param("single", True, marks=rest),
    ],
)
def test_passes_fence_nothing_and_spill_no_more(precision: str, causal: bool):
    half = precision == "half"
    for name, spills in zip(PASSES, SPILLS[precision, causal], strict=True):
        code = code_of(name, shape(half, causal), half)
        assert (code.fences, code.returning) == (0, 0), name
        assert code.spills <= spills, (name, code)
        assert code.shared <= SHARED, (name, code)
        assert bool(code.vectors) == name.endswith("backward"), (name, code)


@rest
@pytest.mark.parametrize("causal", [False, True])
def test_ordered_sums_have_no_atomic_additions(causal: bool):
    torch.use_deterministic_algorithms(True)
    try:
        ordered = shape(True, causal)
    finally:
        torch.use_deterministic_algorithms(False)
    for name in PASSES[2:]:
        code = code_of(name, ordered, half=True)
        assert (code.fences, code.returning, code.vectors) == (0, 0, 0), (name, code)
        assert code.shared <= SHARED, (name, code)


def test_the_fences_of_the_default_order_would_be_seen():
    """The count itself: the same addition without the word that this is about."""
    import triton
    import triton.language as tl

    from .machine_code import compiled

    @triton.jit
    def add(a, RELAXED: tl.constexpr):
        at = a + tl.arange(0, 128)
        if RELAXED:
            tl.atomic_add(at, 1.0, sem="relaxed")
        else:
            tl.atomic_add(at, 1.0)

    assert compiled(add, {"RELAXED": False}, half=False).fences > 0
    assert compiled(add, {"RELAXED": True}, half=False).fences == 0


@rest
@pytest.mark.parametrize(
    ("nonneg", "absolute"), [(False, False), (False, True), ("exp", False), ("softplus", False)]
)
@pytest.mark.parametrize("causal", [False, True])
def test_other_outputs_compile(nonneg: Any, absolute: bool, causal: bool):
    """Types and shapes: the interpreter takes what the compiler does not."""
    for name in PASSES:
        code = code_of(name, shape(True, causal, nonneg, absolute), half=True)
        assert (code.fences, code.returning) == (0, 0), (name, code)


@rest
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("name", "parameters"), [("elu", 0), ("relu", 2)])
def test_other_feature_maps_compile(name: str, parameters: int, causal: bool):
    from luna.kernels.linear_triton import passes
    from luna.kernels.mapped.operator import MAPS, _module

    from .machine_code import compiled

    assert MAPS[name] == parameters
    q = torch.empty(2, 4, 64, 32, dtype=torch.bfloat16)
    maps = [torch.empty(4, 32, 32), torch.empty(4, 32)][:parameters]
    call = _module(name).call(q, q, maps, causal, 1e-6, True, 64)
    for kernel in PASSES:
        groups = GROUPS.get(kernel, {}) | {"maps": len(call.maps)}
        groups |= {"results": 1} if "results" in groups else {}
        code = compiled(getattr(passes, f"{kernel}_kernel"), {"s": call.shape}, half=True, **groups)
        assert (code.fences, code.returning, code.vectors) == (0, 0, 0), (kernel, code)
        assert code.shared <= SHARED, (kernel, code)


# Of the kernels with decays: groups of pointers, and instructions that spill.
DECAYED = {
    "keys": {"own": 2},
    "queries": {"states": 2},
    "queries_backward": {"states": 3, "made": 4},
    "keys_backward": {"states": 4, "of_keys": 2},
}
DECAYED_SPILLS = {
    ("half", False): (0, 0, 120, 30),
    ("half", True): (0, 0, 60, 20),
    ("single", False): (4, 0, 140, 140),
    ("single", True): (4, 0, 50, 130),
}


@pytest.mark.parametrize(
    ("precision", "causal"),
    [
        ("half", False),
        pytest.param("half", True, marks=rest),
        pytest.param("single", False, marks=rest),
        pytest.param("single", True, marks=rest),
    ],
)
def test_passes_with_decays_add_nothing_atomically_and_spill_no_more(precision: str, causal: bool):
    from luna.kernels.decayed import passes
    from luna.kernels.decayed.calls import Call
    from luna.kernels.decayed.operator import block_of

    from .machine_code import compiled

    half, spills = precision == "half", DECAYED_SPILLS[precision, causal]
    q = torch.empty(2, 4, 64, 32, dtype=torch.bfloat16 if half else torch.float32)
    shape = Call(q, q, 1 if causal else 2, 1e-6, block_of(32)).shape
    for (name, groups), most in zip(DECAYED.items(), spills, strict=True):
        code = compiled(getattr(passes, f"{name}_kernel"), {"s": shape}, half=half, **groups)
        assert (code.fences, code.returning, code.vectors) == (0, 0, 0), (name, code)
        assert code.spills <= most, (name, code)
        assert code.shared <= SHARED, (name, code)
    states = compiled(
        passes.states_kernel, {"LATER": True, "s": shape}, half=half, options=how.STATES
    )
    assert (states.fences, states.returning, states.spills) == (0, 0, 0)


@pytest.mark.parametrize("kernel", ["keys", "table", "table_backward"])
def test_the_kernels_of_the_table_compile(kernel: str):
    from luna.kernels.scalar_mlp import by_triton

    from .machine_code import compiled

    constants: dict[str, dict[str, Any]] = {"keys": {"KEYS": 32, "OTHERS": 128}}
    of_table = {"SHARED": False, "SLOPE": 0.0, "ROWS": 16, "OTHERS": 128}
    function, given = getattr(by_triton, f"{kernel}_kernel"), constants.get(kernel, of_table)
    code = compiled(function, given, half=False, options=how.TABLES)
    assert (code.fences, code.returning, code.spills) == (0, 0, 0)


def test_states_are_added_up_in_order():
    from luna.kernels.linear_triton.passes import states_kernel

    from .machine_code import compiled

    constants = {"CAUSAL": True, "LATER": False, "s": shape(True, causal=True)}
    code = compiled(states_kernel, constants, half=True, options=how.STATES)
    assert (code.fences, code.returning, code.spills) == (0, 0, 0)


def test_every_launch_says_how_its_kernel_is_compiled():
    """Or a default of Triton decides, which changes with its version."""
    launches = [
        (ast.unparse(node.func), {ast.unparse(w.value) for w in node.keywords if w.arg is None})
        for path in Path(kernels.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Subscript)
        and "kernel" in ast.unparse(node.func.value)
    ]
    assert len(launches) == 7
    for kernel, words in launches:
        assert words & {"PASSES", "STATES", "TABLES"}, kernel
    every = how.PASSES, how.STATES, how.TABLES
    assert all(options.items() >= how.FUSED.items() for options in every)
