"""What a training run shares beside its network: steps, selection, seeds and self-pretraining."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from lra import data
from lra.base.config import Clip
from lra.base.disk import read_json
from lra.data.loader import Batch
from lra.metrics import metric
from lra.model.pretrain import TOKENS, InputLoader, carry, choose, inputs, phase_one
from lra.settings.compose import Run
from lra.training import run as runner
from lra.training.checkpoints import Checkpoints
from lra.training.module import LRAModule
from lra.training.run import build
from luna.dropout import Dropout

from .compare import Numbers
from .made import Trained, in_float64, made, norm_of, numbers_of, small, trained
from .of_network import waves

# ---------------------------------------------------------------------- a step


class Plain(nn.Module):
    """In place of the network: a mean of vectors of the real tokens, and dropout."""

    def __init__(self, classes: int, vocab: int = 40, width: int = 6):
        super().__init__()
        self.table = nn.Parameter(waves(vocab, width))
        self.out = nn.Parameter(waves(width, classes, shift=0.3))
        self.dropout = Dropout(0.25)  # draws the same on every processor

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        x = self.table[ids]
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        return 3 * self.dropout(x.mean(1)) @ self.out


def plainly(module: LRAModule) -> None:
    module.network = Plain(module.target.outputs)


def clipped(module: LRAModule, norms: list[float]) -> None:
    """Note the norm of the gradients that the optimiser is given."""
    plainly(module)
    clip = module.configure_gradient_clipping

    def configure_gradient_clipping(*arguments: Any, **options: Any) -> None:
        clip(*arguments, **options)
        norms.append(norm_of(p.grad for p in module.parameters() if p.grad is not None))

    module.configure_gradient_clipping = configure_gradient_clipping  # type: ignore[method-assign]


def step() -> Numbers:
    """Losses, gradients after clipping and weights of a plain network; averages of weights, early
    stopping; the loss and the score of tokens of which some are not scored."""
    numbers: Numbers = {}
    for clip, at in ((Clip.norm, 0.3), (Clip.value, 0.02), (Clip.none, 1.0)):
        norms: list[float] = []
        run = _with_recipe(small(), clip=clip, clip_at=at)
        result = trained(run, lambda module, norms=norms: clipped(module, norms))
        numbers[f"clip {clip.name}"] = _of_steps(result) | {"gradients": norms}
    averaged = trained(
        small("callbacks=[ema,early_stopping]", "callbacks.early_stopping.patience=2"), plainly
    )
    numbers["average of weights"] = _of_steps(averaged)
    return numbers | {"tokens": _tokens()}


def _of_steps(result: Trained) -> Numbers:
    """Without what selection decides."""
    return {"losses": result.losses, "weights": result.norms["after"]}


def _with_recipe(run: Run, **changes: Any) -> Run:
    protocol = run.protocol
    return replace(run, protocol=replace(protocol, recipe=replace(protocol.recipe, **changes)))


def _tokens() -> Numbers:
    """Logits (2, 3, 4), of which three tokens are scored."""
    network = nn.Module()
    network.forward = lambda ids, mask: waves(2, 3, 4)  # type: ignore[method-assign]
    asked = SimpleNamespace(target=data.get("listops").target, metric_names=["accuracy"])
    module = LRAModule(network, small().protocol.recipe, asked)
    labels = torch.tensor([[1, -100, 0], [-100, -100, 2]])
    loss = module.training_step(Batch(labels, None, labels), 0)
    return {"loss": float(loss), "measured": list(module.meter.read())}


# ---------------------------------------------------------------------- selection

SCORES = {
    "rising": [10.0, 30.0, 30.0, 20.0, 40.0],
    "falling": [50.0, 30.0, 40.0, 50.0, 10.0],
    "begins with nan": [float("nan"), 20.0, 30.0, 10.0, 5.0],
}


def selection() -> Numbers:
    """Which evaluation is the best, by metrics of both directions and from when on; and which
    checkpoint a run reports."""
    numbers: Numbers = {}
    for name, scores in SCORES.items():
        for measure in ("accuracy", "rmse"):
            for after in (0.0, 0.4):  # of 20 steps: behind the second evaluation
                numbers[f"{name}, {measure}, after {after}"] = _chosen(scores, measure, after)
    for rule in ("best", "last"):
        numbers[f"select {rule}"] = _reported(f"protocol.evaluation.select={rule}")
    return numbers


def _chosen(scores: list[float], measure: str, after: float) -> Numbers:
    evaluation = SimpleNamespace(every=4, select_after=after)
    protocol = SimpleNamespace(evaluation=evaluation, recipe=SimpleNamespace(steps=20))
    run = SimpleNamespace(protocol=protocol, trainer=SimpleNamespace(checkpoint_every=100))
    folder: Any = SimpleNamespace(run=run, last="last", best="best")
    checkpoints, saved = Checkpoints(folder), list[list[Any]]()
    for at, score in enumerate(scores, 1):
        module: Any = SimpleNamespace(
            evaluated={"dev": {"score": score}}, metric=metric.get(measure)
        )
        trainer: Any = SimpleNamespace(
            global_step=4 * at,
            save_checkpoint=lambda path, weights_only=False, at=at: saved.append([4 * at, path]),
        )
        checkpoints.on_validation_end(trainer, module)
    assert checkpoints.best is not None
    return {
        "best": [checkpoints.best["step"], checkpoints.best["score"]],
        "best kept": checkpoints.best_step,
        "saved": [at for at, path in saved if path == "best"],
    }


def _reported(rule: str) -> Numbers:
    """A whole run on the bundled miniature of ListOps."""
    words = (rule, "protocol.recipe.lr=0.03", "trainer.precision=64-true")
    with tempfile.TemporaryDirectory() as place:
        run = replace(small(*words), data_dir=place, runs_dir=place)
        record = read_json(runner.train(run))
    assert record is not None
    stages = {
        name: [facts["step"], facts["score"], facts["predicted"]]
        for name, facts in record["stages"].items()
    }
    dev = [record["dev"]["step"], record["dev"]["score"]]
    return {"select": record["select"], "score": record["score"], "stages": stages, "dev": dev}


# ---------------------------------------------------------------------- seeds


def seeding() -> Numbers:
    """Weights as they are drawn, in float32 and under every rule for them."""
    numbers: Numbers = {}
    for seed in (1, 2):
        for init in ("torch", "flax"):
            run = small(f"seed={seed}", f"protocol.style.init={init}", "attention=performer")
            numbers[f"seed {seed}, {init}"] = _drawn(run)
    return numbers


def _drawn(run: Run) -> Numbers:
    """In float32 last bits differ between processors, so these numbers have six digits."""
    module = build(run)
    weights = dict(module.network.named_parameters())
    norms = {name: float(f"{norm_of([p]):.5g}") for name, p in weights.items()}
    return norms


# ---------------------------------------------------------------------- self-pretraining

MASKED = ("pretrain=masked", "pretrain.rate=0.3")
CAUSAL = ("pretrain=causal", "attention=linear")


def pretraining() -> Numbers:
    """20 steps of both objectives, what is masked, and the weights that phase two begins with."""
    numbers: Numbers = {}
    for name, words in {"masked": MASKED, "causal": CAUSAL}.items():
        run = small(*words)
        first = phase_one(run)
        assert first is not None
        numbers[name] = numbers_of(trained(first)) | {"batches": list(_batches(first))}
        numbers[name] |= _carried(run, first)
    draws = waves(3, 6).abs()
    real = torch.arange(6) < torch.tensor([[6], [3], [1]])
    numbers["chosen"] = choose(draws, real, 0.3).int().flatten().tolist()
    return numbers


def _batches(run: Run) -> Iterator[list[Any]]:
    split = inputs(made(data.of(run.task)), held_out=False)
    loader = InputLoader(split, run, steps=3, rank=0, world=1)
    for ids, _, labels in loader:
        yield [int(ids.sum()), (labels >= 0).sum(1).tolist(), int(labels.clamp_min(0).sum())]


def _carried(run: Run, first: Run) -> Numbers:
    with in_float64():
        before, after = build(first).network, build(run).network
    head = norm_of(after.head.parameters())
    carry(before.state_dict(), after)
    table = after.get_parameter(TOKENS)
    return {
        "head stays": norm_of(after.head.parameters()) == head,
        "rows": len(table),
        "carried": norm_of([table]),
    }
