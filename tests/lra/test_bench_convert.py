"""`lra bench convert`: what is measured is the model it says, and the arithmetic of its tables; the
measuring itself is that of `lra bench attention`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from lra.bench import convert as bench
from lra.bench import convert_host as host
from lra.bench import convert_sheet as sheet
from lra.bench import convert_worker as worker
from lra.bench.worker import peak_bytes
from lra.cli import main
from luna.convert.swap import describe

CPU = torch.device("cpu")
TINY = host.Geometry(host="bert", layers=2, heads=2, width=16, vocab=50)
TINY_IMAGE = replace(TINY, host="vit")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in host.GEOMETRIES:
        monkeypatch.setitem(host.GEOMETRIES, name, TINY)


def request(measured: str = "inference", **lengths: list[int]) -> dict[str, Any]:
    methods = [
        {"measured": measured, "method": name, "profile": "strict", "lengths": at}
        for name, at in lengths.items()
    ]
    return {
        "methods": methods, "geometry": asdict(TINY), "batch": 2, "device": "cpu", "threads": 1,
        "seconds": 10.0, "mib": 4096.0, "memory": True,
    }  # fmt: skip


# ---------------------------------------------------------------------- what is measured


@pytest.mark.parametrize(("geometry", "n"), [(TINY, 600), (TINY, 7), (TINY_IMAGE, 38)])
def test_a_model_has_positions_for_the_length_and_the_fused_kernel(
    geometry: host.Geometry, n: int
) -> None:
    """600 is past BERT's 512 positions; 37 patches are no square."""
    model, inputs = host.build(geometry, n), host.batch(geometry, 2, n, CPU)
    assert model.config._attn_implementation == "sdpa"
    assert model.config.attention_probs_dropout_prob == 0
    out = model(**inputs, output_hidden_states=True)
    assert out.hidden_states[-1].shape == (2, n, 16)
    assert out.loss.isfinite()


def test_dense_flops_are_those_of_the_linear_layers() -> None:
    model = host.build(TINY, 16)
    layers = [m for name, m in model.named_modules() if ".layer." in name]
    linear = sum(m.weight.numel() for m in layers if isinstance(m, torch.nn.Linear))
    assert host.dense_flops(TINY, 16) == 2 * 16 * linear


def test_a_step_trains_everything_and_inference_nothing() -> None:
    model, inputs = host.build(TINY, 8), host.batch(TINY, 2, 8, CPU)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    worker.inference(model, inputs)()
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    step = worker.step(model, inputs)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    step()
    assert model.training
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    still = {name.split(".")[-2] for name in before if name not in changed}
    assert still <= {"key"}, still  # a bias of keys moves no softmax
    parameters = sum(p.numel() for p in model.parameters())
    assert peak_bytes(step, CPU) > 4 * parameters  # every gradient, and activations


def test_methods_are_measured_in_turn_and_only_the_original_is_not_converted(monkeypatch) -> None:
    seen: list[tuple[str | None, str, int]] = []

    def spy(model: torch.nn.Module, inputs: dict[str, torch.Tensor]):
        block = describe(model)
        implementation = model.config._attn_implementation
        seen.append((block and block["method"], implementation, inputs["input_ids"].shape[1]))
        return lambda: torch.ones(100)

    monkeypatch.setitem(worker.PASSES, "inference", spy)
    rows = list(worker.measure(request(softmax=[8], luna=[8, 16], t2r=[8, 16])))
    assert [(row["n"], row["method"]) for row in rows] == [
        (8, "softmax"), (8, "luna"), (8, "t2r"), (16, "luna"), (16, "t2r"),
    ]  # fmt: skip
    assert set(seen) == {
        (None, "sdpa", 8), ("luna", "luna", 8), ("t2r", "luna", 8),
        ("luna", "luna", 16), ("t2r", "luna", 16),
    }  # fmt: skip
    assert all(row["peak_bytes"] == 400 and row["stopped"] is None for row in rows)


def test_a_step_is_measured_and_stops_at_the_limit() -> None:
    rows = list(worker.measure(request("step", t2r=[8, 16]) | {"seconds": 1e-9}))
    assert rows[0]["seconds"] > 0
    assert rows[0]["peak_bytes"] > 0
    assert [row["stopped"] for row in rows] == [None, "> 1e-09 s"]


# ---------------------------------------------------------------------- tables


def rows(costs: dict[str, dict[int, float | None]]) -> list[dict[str, Any]]:
    """Seconds of inference, and as many bytes; None where stopped."""
    return [
        {"measured": "inference", "method": method, "profile": "strict", "n": n, "flops": 1,
         "stopped": None if value else "> 9 s"}
        | ({"seconds": value, "slowest_seconds": 2 * value, "peak_bytes": value} if value else {})
        for method, values in costs.items() for n, value in values.items()
    ]  # fmt: skip


LENGTHS = (128, 256, 512, 1024)


@pytest.mark.parametrize(
    ("cost", "between", "told"),
    [
        (lambda n: 300 * n, (256, 512), "≈ 300"),
        (lambda n: 100 * n, (None, 128), "≤ 128"),
        (lambda n: 1024 * n, (1024, None), "> 1,024"),  # as much is not less
        # Less once, by accident, and then not: the last crossing counts.
        (lambda n: {128: 1, 256: 2 * 256**2}.get(n, 300 * n), (256, 512), "≈ 380"),
    ],
)
def test_break_even_is_where_the_lines_cross(cost, between, told: str) -> None:
    """n² against n: straight lines in the logarithms, so that the crossing is exact."""
    found = rows({"softmax": {n: n * n for n in LENGTHS}, "t2r": {n: cost(n) for n in LENGTHS}})
    for crossing in (crossings := list(sheet.break_evens(found))):
        assert (crossing.above, crossing.below) == between
        assert crossing.told == told
    assert [c.measure for c in crossings] == ["seconds", "peak_bytes"]


def test_cells_have_number_and_ratio_and_say_why_not() -> None:
    softmax: dict[int, float | None] = {128: 0.01, 256: 0.04, 512: None}
    found = rows({"softmax": softmax, "luna": {128: 0.02, 256: 0.03, 512: 0.06}})
    (title, cells), memory = sheet.tables(found)
    assert title == "Inference: time, ms"
    assert cells[:2] == [["attention", "128", "256", "512", "break-even"],
                         ["softmax", "10", "40", "> 9 s", ""]]  # fmt: skip
    assert cells[2] == ["luna", "20 (2.00×)", "30 (0.75×)", "60", "≈ 210"]
    assert memory[0] == "Inference: peak memory, MiB"
    lines = sheet.terminal(found, []).splitlines()
    assert lines[1] == title
    assert len({len(line) for line in lines[2:3] + lines[4:5]}) == 1  # columns end alike


def test_the_picture_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    figure = pytest.importorskip("lra.bench.convert_figure")
    softmax: dict[int, float | None] = {128: 0.01, 256: 0.04, 512: None}
    found = rows({"softmax": softmax, "luna": {128: 0.02, 256: 0.03, 512: 0.06}})
    settings = {"geometry": "minilm", "batch": 1, "seconds": 9.0, "mib": 1.0}
    facts = {
        "settings": settings, "geometry": asdict(TINY), "versions": {"torch": "t"}, "date": "today",
        "machine": {"kind": "cpu", "device": "d", "threads": 1},
    }  # fmt: skip
    for name in ("first", "second"):
        figure.draw(found, facts, tmp_path / name)
    svg = (tmp_path / "first.svg").read_text()
    assert svg == (tmp_path / "second.svg").read_text()
    for text in ("Inference: time, × softmax", "costs less than softmax from here on",
                 "the next length: over 9 s or 1 MiB"):  # fmt: skip
        assert text in svg
    panel = figure._panel(found, "inference", "seconds")
    assert [row["n"] for row in panel.rows if row["method"] == "luna"] == [128, 256]
    assert panel.rings == [(pytest.approx(210, abs=3), 1.0)]


# ---------------------------------------------------------------------- the command


def test_the_command_measures_and_writes(tiny, tmp_path: Path, capsys) -> None:
    words = ["--methods", "t2r", "softmax", "--lengths", "16", "8", "--repeats", "1"]
    words += ["--passes", "inference", "--out", str(tmp_path)]
    assert main(["bench", "convert", *words]) == 0
    written = {path.suffix: path for path in tmp_path.iterdir()}
    assert set(written) == {".json", ".md", ".png", ".svg"}
    assert written[".md"].name.startswith("convert-minilm-")
    found = json.loads(written[".json"].read_text())
    assert [(row["method"], row["n"]) for row in found["rows"]] == [
        ("softmax", 8), ("softmax", 16), ("t2r", 8), ("t2r", 16),
    ]  # fmt: skip
    assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 for row in found["rows"])
    (conversion,) = found["conversions"]
    assert conversion["method"] == "t2r"
    assert conversion["parameters"] == 2 * 2 * (8 * 8 + 8)  # layers, heads, weights and biases
    assert len(conversion["seconds"]) == 1
    assert found["geometry"] == asdict(TINY)
    assert found["versions"]["transformers"]
    page, told = written[".md"].read_text(), capsys.readouterr().out
    for title in ("Inference: time, ms", "Inference: peak memory, MiB", "Conversion on the CPU"):
        assert title in page
        assert title in told
    assert f"written to {written['.svg']}" in told


def test_a_process_that_dies_is_told(tiny, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    words = ["--methods", "t2r", "--lengths", "8", "--out", str(tmp_path)]
    assert main(["bench", "convert", *words]) == 2
    errors = capsys.readouterr().err
    assert "t2r: failed at n=8" in errors
    assert "error: nothing was measured: failed" in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--methods", "lunar"], "unknown attention 'lunar'; did you mean luna"),
        (["--seconds", "0"], "--seconds must be greater than 0, got 0"),
        (["--geometry", "vit-b16-like", "--lengths", "1"], "--lengths of vit-b16-like must be"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, capsys) -> None:
    assert main(["bench", "convert", *words]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


def test_conversion_is_timed_on_twelve_layers() -> None:
    assert host.GEOMETRIES[bench.CONVERTED].layers == 12


@pytest.mark.parametrize("name", host.GEOMETRIES)
def test_every_geometry_can_be_chosen(name: str, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:  # by --help, after the choice was read
        main(["bench", "convert", "--geometry", name, "--help"])
    assert stopped.value.code == 0
    assert name in capsys.readouterr().out
