"""`lra bench gpu` without a GPU: all but the clock and the graph runs here on a CPU."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from lra.base.errors import UserError
from lra.bench import gpu
from lra.cli import main


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls run once and take 2 ms, half of that as a graph."""

    def timed(milliseconds: float) -> Callable[..., float]:
        def time(function: Callable[[], Any], *_: Any) -> float:
            out = function()
            return milliseconds * (3 if isinstance(out, tuple) else 1)

        return time

    monkeypatch.setattr(gpu, "median", timed(2.0))
    monkeypatch.setattr(gpu, "as_graph", timed(1.0))
    monkeypatch.setattr(gpu, "TOKENS", 64)
    rows = gpu.BOTH_WAYS | {"luna": gpu.LUNA | {"evaluate": "auto"}}
    monkeypatch.setattr(gpu, "BOTH_WAYS", {name: rows[name] for name in ("luna", "linear", "lion")})


@pytest.mark.parametrize("causal", [False, True])
def test_every_attention_has_its_times(clock: None, causal: bool):
    rows = [*gpu.rows_of(torch.float32, 32, causal=causal, rate=1e6, device="cpu")]
    named = [row["attention"] for row in rows]
    assert named[:4] == ["luna", "linear", "lion", "softmax, no mask"]
    assert ("softmax with the mask" in named) is not causal
    assert not [row for row in rows if "stopped" in row]
    linear = rows[1]
    times = [linear[name] for name in ("forward", "backward", "forward_graph", "backward_graph")]
    assert times == [2.0, 4.0, 1.0, 2.0], "backward is both passes less the forward one"
    bytes_of_q = 2 * 32 * 4 * 32 * 4
    assert linear["share"] == pytest.approx(11 * bytes_of_q / 1e6 / 3, abs=6e-4)


def test_kernels_of_other_libraries_are_timed_where_they_are(clock: None, monkeypatch):
    flash, fla = ModuleType("flash_attn"), ModuleType("fla.ops.linear_attn")
    shapes = []

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        shapes.append(tuple(q.shape))
        if q.dtype == torch.float32:
            raise RuntimeError("only half precision\nis supported")
        return q + k + v

    flash.flash_attn_func = attend
    fla.chunk_linear_attn = lambda q, k, v: (q + k + v, None)
    for name in ("fla", "fla.ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "flash_attn", flash)
    monkeypatch.setitem(sys.modules, "fla.ops.linear_attn", fla)
    rows = {
        row["attention"]: row
        for row in gpu.rows_of(torch.float32, 32, causal=True, rate=1e6, device="cpu")
    }
    assert rows["fla linear"]["forward"] == 2.0
    assert rows["flash-attn softmax"]["stopped"] == "only half precision"
    assert {*shapes} == {(2, 32, gpu.HEADS, gpu.WIDTH)}, "tokens before heads"


def test_the_page_has_the_fastest_first_and_says_what_stopped():
    facts = {"card": "C", "torch": "2", "copy, TB/s": 3.0, "dtype": "bfloat16", "B": 2, "n": 2048}
    times = {"forward": 1.0, "backward": 1.0, "forward_graph": 0.5, "backward_graph": 0.5}
    rows = [
        facts | times | {"attention": "slow", "causal": False, "both_graph": 2.0, "share": 0.05},
        facts | {"attention": "none", "causal": False, "stopped": "out of memory"},
        facts | times | {"attention": "fast", "causal": False, "both_graph": 1.0, "share": 0.08},
    ]
    lines = [line for line in gpu.page(rows).splitlines() if line.startswith("| ")]
    assert [line.split()[1] for line in lines] == ["attention", "---", "fast", "slow", "none"]
    assert "| 8 % |" in lines[2]
    assert "| out of memory |" in lines[4]


def test_a_call_that_is_cut_off_leaves_what_was_measured(clock: None, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    monkeypatch.setattr(gpu, "copy_rate", lambda: 1e6)

    def cut(*_: Any, **__: Any) -> Any:
        yield {"attention": "luna", "dtype": "bfloat16", "B": 1, "n": 32, "causal": False}
        raise KeyboardInterrupt

    monkeypatch.setattr(gpu, "rows_of", cut)
    with pytest.raises(KeyboardInterrupt):
        gpu.main(Namespace(lengths=[32], write=tmp_path / "out"))
    (line,) = (tmp_path / "out" / gpu.FILE).read_text(encoding="utf-8").splitlines()
    assert json.loads(line)["card"] == "a card"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card")
def test_without_a_card_it_is_one_sentence():
    with pytest.raises(UserError, match="no CUDA device is here"):
        gpu.main(Namespace(lengths=[32], write=None))
    assert main(["bench", "gpu"]) == 2
