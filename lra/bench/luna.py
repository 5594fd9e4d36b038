"""`lra bench luna`: LUNA's evaluations beside linear attention and fused softmax, by length."""

from __future__ import annotations

from argparse import Namespace
from functools import partial
from typing import Any, get_args

import luna
from lra.bench.attention import attention_calls
from lra.bench.measure import BenchCase, Benchmark
from luna.feature_maps.options import Evaluate

SLOT = {"heads": 2, "head_dim": 32}
SIZES = {"M": 8, "L": 8, "hidden": 64}


def benchmark(options: Namespace) -> Benchmark:
    used = luna.build("luna", n_heads=2, head_dim=32, max_len=64).evaluation(options.device)
    other = [how for how in get_args(Evaluate) if how not in ("auto", "dense", used)]
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "luna": ("luna", SIZES),
        "luna, the listing": ("luna", SIZES | {"evaluate": "dense"}),
        **{f"luna, {how}": ("luna", SIZES | {"evaluate": how}) for how in other},
        **{f"luna, {how}": ("luna", SIZES | {"nonneg": how}) for how in ("softplus", "exp")},
        "linear": ("linear", {}),
        "linear, D = 64": ("linear", {"head_dim": 64, "value_dim": 32}),
        "softmax": ("softmax", {}),
    }
    build = partial(attention_calls, passes=["train"], batch=options.batch)
    return Benchmark(
        stem="luna",
        title="LUNA's evaluations",
        notes=[
            f"batch {options.batch}, 2 heads of 32, M = L = 8, hidden 64, float32",
            f"luna is evaluated as {used} here, unless its name says otherwise",
            "linear, D = 64: with queries and keys as wide as LUNA's features",
        ],
        cases=[
            BenchCase(name=name, build=partial(build, method, **SLOT | extra))
            for name, (method, extra) in cases.items()
        ],
        base="luna",
    )
