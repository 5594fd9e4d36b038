"""docs/company.md: its code and its commands, offline, with stand-ins for what is not installed."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import lra
import luna
from lra import cli
from lra.data import registry
from luna.errors import LunaError
from luna.testing import Case, check, registered

from . import stand_ins
from .conftest import REPOSITORY

PAGE = (REPOSITORY / "docs" / "company.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
]
FILES = dict(
    block.split("\n", 1) for block in re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
)
ADAPTER, HARNESS = FILES["# luna-fla/luna_fla.py"], FILES["# harness.py"]
NOT_RUN = ("pip install", "trackio show")  # a network; a server
SMALL = shlex.split(
    "task.n_train=64 task.n_val=16 task.n_test=16 steps_share=1e-6 min_evaluations=1 "
    "trainer=cpu trainer.threads=1"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(beginning: str) -> list[str]:
    """The words of the page's command that begins so."""
    [line] = [line for line in COMMANDS if line.startswith(beginning)]
    return shlex.split(line)


def test_every_command_is_run_below():
    run = ("cd .. && lra new", "lra train", "lra records export", "HF_HUB_OFFLINE=1 python")
    assert [line for line in COMMANDS if not line.startswith((*run, *NOT_RUN))] == []


# ---------------------------------------------------------------------- flash-linear-attention


@pytest.fixture
def adapter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The module of the page, known for as long as a test runs."""
    (folder / "luna_fla.py").write_text(ADAPTER, encoding="utf-8")
    monkeypatch.syspath_prepend(folder)
    with registered():
        importlib.import_module("luna_fla")
        yield
    sys.modules.pop("luna_fla")


@pytest.fixture
def without_fla(monkeypatch: pytest.MonkeyPatch, adapter: None) -> None:
    for name, module in stand_ins.fla().items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize("shared", [False, True])
def test_the_adapter_is_what_it_declares(without_fla, shared: bool):
    """Padding, batches, streams, ...: though its layer looks at no mask."""
    assert {r.name: r.problem for r in check(Case("fla", {"shared": shared})) if r.problem} == {}


def test_it_reads_both_ways_unless_it_is_causal(without_fla):
    x = torch.randn(2, 9, 8, requires_grad=True)
    mask = torch.arange(9).expand(2, -1) < torch.tensor([[9], [6]])
    for causal in (False, True):
        mixer = luna.mixer("fla", d_model=8, n_heads=2, max_len=9, causal=causal)
        seen = torch.autograd.grad(mixer(x, mask)[1, 2].sum(), x)[0][1].abs().sum(-1) > 0
        assert seen.tolist() == [True] * 3 + [not causal] * 3 + [False] * 3


def test_the_two_directions_share_a_layer_if_asked(without_fla):
    sizes = {"d_model": 8, "n_heads": 2, "max_len": 9}
    two, one = luna.mixer("fla", **sizes), luna.mixer("fla", shared=True, **sizes)
    count = [sum(p.numel() for p in mixer.parameters()) for mixer in (two, one)]
    assert count[0] == 2 * count[1]
    assert one.behind is one.ahead


def test_what_it_needs_is_one_sentence(without_fla, monkeypatch):
    sizes = {"d_model": 8, "n_heads": 2, "max_len": 9}
    with pytest.raises(LunaError, match="has no 'Nothing': give another"):
        luna.mixer("fla", kind="Nothing", **sizes)
    monkeypatch.setattr(stand_ins.CausalMeans, "__module__", "fla.layers.gla")
    with pytest.raises(LunaError, match="need a GPU: trainer=gpu"):
        luna.mixer("fla", **sizes)(torch.randn(1, 9, 8))


def test_a_layer_of_fla_has_the_signature_of_the_stand_in(adapter):
    layers = pytest.importorskip("fla.layers")
    known = inspect.signature(stand_ins.CausalMeans.forward).parameters
    for name in ("GatedLinearAttention", "DeltaNet", "GatedDeltaNet", "MultiScaleRetention"):
        theirs = inspect.signature(getattr(layers, name).forward).parameters
        assert [*theirs][:5] == [*known][:5], name
        mixer = luna.mixer("fla", kind=name, d_model=64, n_heads=2, max_len=9)
        assert mixer.ahead.num_heads == 2
        with pytest.raises(LunaError, match="need a GPU"):
            mixer(torch.randn(1, 9, 64))


def test_the_command_writes_the_package_whose_class_is_replaced(folder):
    new = command("cd .. && lra new")
    assert cli.main(new[new.index("lra") + 1 : new.index("lra") + 4]) in (0, None)
    assert (folder / "luna-fla" / "luna_fla.py").exists()
    assert (folder / "luna-fla" / "test_luna_fla.py").exists()


def test_it_trains(without_fla, folder):
    _, _, *words = command("lra train experiment=recall attention=fla")
    words[words.index("trainer=gpu")] = "trainer=cpu"
    assert lra.train(lra.compose([*words, *SMALL])).attention == "fla"


# ---------------------------------------------------------------------- the others


def test_zoology_has_the_lengths_of_the_page(folder):
    rows = re.findall(r"^\| (\d+) \| (.*) \|.*\|$", PAGE, re.M)
    assert len(rows) == 8
    for length, cell in rows:
        for words in re.findall(r"`(task\.pairs=.*?)`", cell):
            run = lra.compose(["experiment=zoology", *words.split()])
            task = registry.get("recall")
            assert task.width(run.task, 0) == int(length), words


def test_zoology_trains(folder, capsys):
    assert cli.main([*command("lra train experiment=zoology")[1:], *SMALL]) in (0, None)
    assert "protocol zoology" in capsys.readouterr().out


def test_a_run_becomes_a_file_of_every_eval_ever(folder):
    trained = ["train", "experiment=demo", "attention=luna", *SMALL]
    assert cli.main(trained) in (0, None)
    assert cli.main(command("lra records export")[1:]) in (0, None)
    [file] = Path("shared/data/lra.listops/My-Lab").glob("*/*.json")
    assert json.loads(file.read_text("utf-8"))["source_metadata"]["source_name"] == "luna-lra"


def test_a_run_is_logged_by_trackio(folder, monkeypatch):
    trackio = stand_ins.Trackio()
    monkeypatch.setitem(sys.modules, "trackio", trackio)
    assert cli.main([*command("lra train experiment=demo")[1:], *SMALL]) in (0, None)
    assert [run["project"] for run in trackio.runs] == ["luna-lra"]


def test_the_harness_evaluates_a_converted_decoder(folder, monkeypatch, capsys):
    pytest.importorskip("transformers")
    if importlib.util.find_spec("lm_eval") is None:
        for name, module in stand_ins.lm_eval().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("harness.py").write_text(HARNESS, encoding="utf-8")
    found = runpy.run_path("harness.py")
    assert any(isinstance(module, luna.Attention) for module in found["student"].modules())
    assert "'acc,none': " in capsys.readouterr().out
