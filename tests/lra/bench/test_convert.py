"""`lra bench convert`: what is measured is the model it says."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from lra.bench import convert as bench
from lra.bench.cases import methods_of
from lra.bench.rows import BenchResult
from lra.bench.worker import BenchMeter, BenchRules, measure
from lra.cli import main
from luna.convert.swap import describe

from .results import INFERENCE, result_of

METER = BenchMeter(BenchRules(rounds=1, threads=1, calls=1, least=0.0, dear=math.inf))
TINY = bench.Geometry(host="bert", layers=2, heads=2, width=16, vocab=50)
TINY_IMAGE = replace(TINY, host="vit")


@pytest.mark.parametrize(("geometry", "n"), [(TINY, 600), (TINY, 7), (TINY_IMAGE, 38)])
def test_a_model_has_positions_for_the_length_and_the_fused_kernel(
    geometry: bench.Geometry, n: int
):
    """600 is past BERT's 512 positions; 37 patches are no square."""
    model, inputs = geometry.build(n), geometry.batch(2, n, METER.device)
    assert model.config._attn_implementation == "sdpa"
    assert model.config.attention_probs_dropout_prob == 0
    out = model(**inputs, output_hidden_states=True)
    assert out.hidden_states[-1].shape == (2, n, 16)
    assert out.loss.isfinite()


def test_dense_flops_are_those_of_the_linear_layers():
    layers = [m for name, m in TINY.build(16).named_modules() if ".layer." in name]
    linear = sum(m.weight.numel() for m in layers if isinstance(m, torch.nn.Linear))
    assert TINY.dense_flops(16) == 2 * 16 * linear


def test_a_step_trains_everything_and_inference_nothing():
    model, inputs = TINY.build(8), TINY.batch(2, 8, METER.device)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    bench.inference(model, inputs)()
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    step = bench.step(model, inputs)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    step()
    assert model.training
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    still = {name.split(".")[-2] for name in before if name not in changed}
    assert still <= {"key"}, still  # a bias of keys moves no softmax
    parameters = sum(p.numel() for p in model.parameters())
    # Every gradient and activations; AdamW's own tensors are made before.
    assert 4 * parameters < METER.peak_bytes(step)["peak_bytes"] < 12 * parameters


def test_only_the_original_is_not_converted(monkeypatch: pytest.MonkeyPatch):
    seen: list[tuple[str | None, str, int]] = []

    def spy(model: Any, inputs: dict[str, torch.Tensor]) -> Callable[[], object]:
        block = describe(model)
        implementation = model.config._attn_implementation
        seen.append((block and block["method"], implementation, inputs["input_ids"].shape[1]))
        return lambda: torch.ones(100)

    monkeypatch.setitem(bench.PASSES, "inference", spy)
    cases = [
        bench.ConvertedCase(group="inference", lengths=[8, 16], geometry=TINY, batch=2,
                            **methods_of([word])[0])
        for word in ("softmax", "luna", "t2r")
    ]  # fmt: skip
    rows = list(measure(cases, METER))
    assert list(dict.fromkeys(seen)) == [
        (method, "luna" if method else "sdpa", n)
        for n in (8, 16)
        for method in (None, "luna", "t2r")
    ]
    assert {row.values[0] for row in rows if row.measure == "peak_bytes"} == {400}


def test_the_table_has_ratios_to_softmax_and_break_evens():
    costs = INFERENCE | {
        ("conversion", "luna", 0, "seconds"): [0.5, 0.7, 0.6],
        ("conversion", "luna", 0, "parameters"): [1234, 1234, 1234],
    }
    found = result_of(costs, settings={"passes": ["inference"], "rounds": 3})
    time, _, conversion = bench.tables(found)
    assert time.title == "Inference: time, ms"
    assert time.lines == [
        ["`softmax`", "10", "40", "> 9 s", ""],
        ["`luna`", "20 (2.00×)", "30 (0.75×)", "60", "≈ 210"],
    ]
    assert conversion.lines == [["`luna`", "0.60 (0.50 .. 0.70)", "1,234"]]


@pytest.mark.usefixtures("in_this_process", "without_pictures")
def test_the_command_measures_and_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    assert bench.GEOMETRIES[bench.TIMED].layers == 12
    for name in bench.GEOMETRIES:
        monkeypatch.setitem(bench.GEOMETRIES, name, TINY)
    words = ["--methods", "t2r", "softmax", "--lengths", "16", "8", "--rounds", "1"]
    assert main(["bench", "convert", *words, "--out", str(tmp_path)]) == 0
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert written[".md"].name.startswith("convert-minilm-")
    found = BenchResult.load(written[".json"])
    for group in ("inference", "step"):
        for measured in ("seconds", "peak_bytes"):
            rows = found.select(group, measured)
            assert [(case, list(by_n)) for case, by_n in rows.items()] == [
                ("softmax", [8, 16]), ("t2r", [8, 16]),
            ]  # fmt: skip
            assert all(row.values[0] > 0 for by_n in rows.values() for row in by_n.values())
    (conversion,) = found.select("conversion", "parameters").values()
    assert conversion[0].values == [2 * 2 * (8 * 8 + 8)]  # layers, heads, weights and biases
    assert found.facts["versions"]["transformers"]
    page = written[".md"].read_text(encoding="utf-8")
    assert page in capsys.readouterr().out
    assert "model: minilm, random weights: 2 layers, 2 heads of 8, 16 wide" in page
