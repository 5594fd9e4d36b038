"""Protocol s4 trains step for step as the authors' code (state-spaces/s4 e757cef, Apache 2.0).

golden/s4.json holds what that code computed for the networks of s4_kit.py, with their weights
carried over, in double precision: its SequenceModel, encoder and SequenceDecoder, built from its
configurations; the groups of parameters of its train.py; transformers' schedule. Of Image that is
small-s4d.yaml as it is. Of ListOps it is s4-listops.yaml with `mode: diag`, because the kernel
there is S4, which we do not have. Theirs and ours differed by 1e-14 in logits, losses and gradients
of ten steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import lra

from ..conftest import SMALL
from . import s4_kit as kit
from .test_checkpoints import Killed, assert_same, kill_at, only_folder

GOLDEN = json.loads((Path(__file__).parent / "golden/s4.json").read_text(encoding="utf-8"))
# Whose gradient is 0 but for rounding, so that Adam moves it by chance: a norm subtracts it.
IDLE = "embedding.token.map.bias"


def norms(tensors: dict[str, Any]) -> dict[str, float]:
    return {name: t.norm().item() for name, t in tensors.items() if name != IDLE}


def close(found: Any, golden: Any) -> None:
    if isinstance(golden, dict):
        golden = {name: value for name, value in golden.items() if name != IDLE}
    assert found == pytest.approx(golden, rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("case", list(kit.WORDS))
def test_ten_steps_are_those_of_the_authors(case: str):
    expected, module = GOLDEN[case], kit.module_of(case)
    optimizer, schedule = module.build_optimizer()
    losses, rates = [], []
    for step in range(kit.STEPS):
        ids, labels = kit.batch(case, step)
        logits = kit.forward(module, ids)
        loss = module.target.loss(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            close(logits.flatten().tolist(), expected["logits"])
            close(
                norms({n: p.grad for n, p in module.network.named_parameters()}),
                expected["gradients"],
            )
        losses.append(loss.item())
        rates.append(sorted({group["lr"] for group in optimizer.param_groups if group["params"]}))
        optimizer.step()
        schedule.step()
    close(losses, expected["losses"])
    for found, golden in zip(rates, expected["lr"], strict=True):
        close(found, golden)
    network = module.network
    close(norms(dict(network.named_parameters())), expected["weights"])
    close(
        norms({n: b for n, b in network.named_buffers() if "running" in n}), expected["statistics"]
    )
    module.eval()
    close(network(kit.batch(case, 99)[0]).flatten().tolist(), expected["evaluated"])


def test_the_small_model_of_image_has_the_authors_size():
    """Their README says 267 thousand."""
    run = lra.compose(["task=image", "protocol=s4", "attention=s4d"])
    assert (run.model.name, run.compute.mode.name) == ("s4", "report")
    network = kit.build(run).network
    assert sum(p.numel() for p in network.parameters()) == 267_018


def test_a_run_of_it_that_is_cut_ends_like_one_that_is_not(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Running statistics of batches with padding and dropout inside the mixer included."""
    words = [w for w in SMALL if not w.startswith(("attention", "model", "protocol.recipe.lr"))]
    words += [
        "attention=s4d",
        "protocol=s4",
        *kit.SIZES,
        "model.dropout=0.1",
        f"data_dir={data_dir}",
    ]
    whole, cut = (lra.compose([*words, f"runs_dir={tmp_path / name}"]) for name in ("whole", "cut"))
    lra.train(whole)
    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", 7)
        with pytest.raises(Killed):
            lra.train(cut)
    lra.train(cut)
    assert_same(only_folder(whole), only_folder(cut))
    weights = torch.load(only_folder(cut) / "checkpoints/last.ckpt", weights_only=True)
    kept = weights["state_dict"]["network.encoder.blocks.0.norm1.running_mean"]
    assert kept.abs().min() > 0
