"""The pictures of `lra bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from lra.cli import main
from lra.figures.bench_convert import panel_of

from ..bench.results import INFERENCE, Costs, result_of

SLOT = {"batch": 1, "heads": 2, "head_dim": 8, "seconds": 9.0, "mib": 1.0, "rounds": 1}
ATTENTION: Costs = {
    ("attention", case, n, measure): [n / 1e3] if (case, n) != ("softmax", 128) else "> 9 s"
    for case in ("luna", "softmax") for n in (64, 128)
    for measure in ("train_seconds", "peak_bytes")
}  # fmt: skip
CAUSAL: Costs = {
    ("causal", case, n, measure): [n / 1e3]
    for case in ("luna", "softmax") for n in (64, 128)
    for measure in ("prefill_seconds", "decode_seconds", "peak_bytes", "state_bytes")
}  # fmt: skip
LUNA: Costs = {
    ("attention", "luna", 64, "train_seconds"): [0.2, 0.5, 0.3],
    ("step, image", "softmax, fused", 64, "seconds"): [0.7],
    **{("feature map", f"compiled, hidden {width}", 64, "train_seconds"): [0.1]
       for width in (16, 64)},
}  # fmt: skip
COMPUTE: Costs = {
    ("step", case, 64, measure): [value]
    for case in ("luna", "linear") for measure, value in (("seconds", 0.5), ("peak_bytes", 1e6))
}  # fmt: skip
COUNTED = {"group": "step", "task": "image", "batch": 2, "step_flops": 2e9, "flops_ratio": 1.0,
           "flops_tolerance": 0.1, "verdict": "matched"}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "costs", "facts", "texts"),
    [
        ("attention", ATTENTION, {},
         ["One attention, batch 1, 2 heads of 8, float32", "softmax, fused", "luna",
          "the next length: over 9 s or 1 MiB", "Time of forward + backward, ms"]),
        ("causal", CAUSAL, {},
         ["One causal attention, batch 1", "Time of one more token, ms", "State, KiB"]),
        ("convert", INFERENCE, {"settings": SLOT | {"geometry": "minilm", "model": "2 layers"}},
         ["minilm, 2 layers, batch 1", "Inference: time, × softmax",
          "costs less than softmax from here on"]),
        ("luna", LUNA, {"settings": SLOT | {"M": 8, "L": 4}},
         ["M = 8, L = 4", "luna  300", "softmax, fused  700", "compiled  100"]),
        ("compute", COMPUTE,
         {"cases": [COUNTED | {"case": case, "attention": case} for case in ("luna", "linear")]},
         ["A training step of image, batch 2 of n = 64", "linear", "ms per step", "peak MiB"]),
    ],
)  # fmt: skip
def test_a_file_is_drawn_again_the_same(
    name: str, costs: Costs, facts: dict[str, Any], texts: list[str], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):  # fmt: skip
    facts = {"benchmark": f"lra bench {name}", "settings": SLOT} | facts
    file = tmp_path / f"{name}-torch2.13.0.json"
    result_of(costs, **facts).save(file)
    pictures = [file.with_name(f"{name}-torch2.13.0.{kind}") for kind in ("png", "svg")]
    assert main(["figures", "scaling", str(file)]) == 0
    assert capsys.readouterr().out.split() == [str(path) for path in pictures]
    first = [path.read_bytes() for path in pictures]
    svg = first[1].decode()
    assert not [text for text in texts if text not in svg]
    assert "a CPU, 1 thread · torch 2.0 · 2026-01-01" in svg
    assert main(["figures", "scaling", str(file), "--out", str(tmp_path / "new")]) == 0
    assert [(tmp_path / "new" / path.name).read_bytes() for path in pictures] == first


def test_lengths_without_a_ratio_are_left_out():
    """Nothing to compare with where softmax was stopped, and no stop of the method's own."""
    panel = panel_of(result_of(INFERENCE), "inference", "seconds")
    assert panel.costs == {
        "softmax": {128: 1.0, 256: 1.0, 512: None}, "luna": {128: 2.0, 256: pytest.approx(0.75)},
    }  # fmt: skip
    assert panel.rings == [(pytest.approx(210, abs=3), 1.0)]


def test_a_file_without_a_picture_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "train.json"
    result_of({}, benchmark="lra bench train").save(file)
    assert main(["figures", "scaling", str(file)]) == 2
    assert "is from `lra bench train`, which has no picture" in capsys.readouterr().err
