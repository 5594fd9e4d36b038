"""Both stages of training, in one loop.

Stage 1 (`distill`) fits the feature maps to the teacher's attention maps, everything else frozen.
Stage 2 (`finetune`) trains the whole model on its task. They differ in what is trained, in the loss
of a batch and in what follows a round: a round of stage 1 is some steps, of stage 2 an epoch.
"""

from __future__ import annotations

import copy
import io
import itertools
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from luna.base import LunaError
from luna.convert.maps import Fit, LossOf, MapLoss, measure
from luna.convert.recipe import LOSSES, SCHEDULES, check_choice, check_range
from luna.convert.swap import (
    ModelInputs,
    describe,
    described,
    feature_maps,
    feature_parameters,
    own_loss,
)
from luna.registry import build

STATES = ("stage1.pt", "stage2.pt")
CLIP = 1.0  # norm of stage 2's gradients
KL_WARNING = 0.25  # maps that stayed above rarely recovered in finetuning

Batches = Any  # of an epoch: a list or a loader, which has a length and is iterated repeatedly
Log = Callable[[str], None]


# ---------------------------------------------------------------------- the loop


@dataclass
class Training:
    """Rounds of steps, each followed by `finish`; the state after each is saved."""

    name: str
    weights: nn.Module  # what is trained: its tensors are part of the state
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    batches: Callable[[int], Iterable[ModelInputs]]  # of round 1, 2, ...
    backward: Callable[[ModelInputs], float]  # adds the gradients of a batch, returns its loss
    finish: Callable[[list[float]], bool]  # receives the losses of a round; True ends the training
    results: dict[str, Any]  # what `finish` notes: part of the state
    settings: dict[str, Any]  # of the run to which a state belongs
    path: Path | None  # of the state
    round: int = 0
    done: bool = False

    def run(self) -> None:
        while not self.done:
            self.round += 1
            losses = [self.step(batch) for batch in self.batches(self.round)]
            self.done = self.finish(losses)
            self.save()

    def step(self, batch: ModelInputs) -> float:
        self.optimizer.zero_grad()
        loss = self.backward(batch)
        if not math.isfinite(loss):
            rate = self.optimizer.param_groups[0]["lr"]
            raise LunaError(f"{self.name} diverged (loss {loss} at lr {rate:.1e}): lower lr")
        self.optimizer.step()
        self.schedule.step()
        return loss

    def save(self) -> None:
        if self.path is None:
            return
        state = {
            "settings": self.settings,
            "weights": self.weights.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "results": self.results,
            "progress": (self.round, self.done),
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }
        content = io.BytesIO()  # torch would turn an error of the disk into one of its own
        torch.save(state, content)
        write_whole(self.path, content.getbuffer())

    def resume(self) -> bool:
        """Go on from the saved state, if there is one."""
        if self.path is None or not self.path.is_file():
            return False
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:  # zip, pickle and runtime errors, whatever a damaged file causes
            raise LunaError(
                f"{self.path} cannot be read ({error}): delete it to start over"
            ) from error
        if state["settings"] != self.settings:
            raise LunaError(
                f"{self.path} belongs to a run with other settings ({state['settings']}): use "
                "another folder"
            )
        self.weights.load_state_dict(state["weights"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.results.update(state["results"])
        self.round, self.done = state["progress"]
        torch.set_rng_state(state["rng"])
        if torch.cuda.is_available() and state["cuda_rng"]:
            torch.cuda.set_rng_state_all(state["cuda_rng"])
        return True


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write a file beside `path`, then rename it: a crash leaves no half of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".tmp")
    partial.write_bytes(content)
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)


# ---------------------------------------------------------------------- stage 1


@dataclass
class Distilled:
    """The report of stage 1."""

    method: str
    loss: str
    lr: float
    steps: int
    before: Fit
    after: Fit
    curve: list[dict[str, Any]]  # step, mean KL of each layer on the held-out batches
    losses: list[float]
    redrawn: list[dict[str, Any]]  # layer and head of feature maps drawn again, and the step
    seconds: float

    @property
    def warnings(self) -> list[str]:
        dead = [(layer, h) for layer, heads in self.after.dead_heads().items() for h in heads]
        return [f"{layer} head {h} is dead: its features are 0" for layer, h in dead] + [
            f"{layer}: KL {kl:.2f} after stage 1 is above {KL_WARNING}"
            for layer, kl in self.after.layers().items()
            if kl > KL_WARNING
        ]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"warnings": self.warnings}


def distill(
    student: nn.Module,
    batches: Iterable[ModelInputs],
    *,
    steps: int | None = None,
    lr: float = 3e-2,
    loss: str = "ce",
    held_out: Iterable[ModelInputs] | None = None,
    evaluate_every: int = 50,
    folder: str | Path | None = None,
    log: Log | None = None,
) -> Distilled:
    """Fit the feature maps of a converted model, in place; of each layer the best ones seen are
    kept. The map of a dead head is drawn again, once.

    batches    mappings of the model's keywords (labels are ignored) or tensors
    steps      number of batches, repeated where they end; None: each batch once
    lr         rate of AdamW without weight decay, on a cosine to 0
    loss       ce: rows of the maps; mse: 1000 x squared error of the outputs; both: their sum
    held_out   batches on which the KL is measured; None: the first two of `batches`
    folder     keeps the state at every evaluation; the same call on the same batches resumes there
    """
    if steps is None:
        if not isinstance(batches, Sized):
            raise LunaError("the number of batches is unknown: give distill a number of steps")
        steps = len(batches)
    check_choice("distill's loss", loss, LOSSES)
    check_range("distill's steps", steps, 1)
    check_range("distill's evaluate_every", evaluate_every, 1)
    started, maps, method = time.monotonic(), feature_maps(student), described(student)["method"]
    if not feature_parameters(student):
        raise LunaError(f"'{method}' has no trainable feature map: there is nothing to distill")
    if loss != "mse" and not next(iter(maps.values())).traits().has_matrix:
        raise LunaError(f"'{method}' has no attention matrix to distill: use loss='mse'")
    stream = _endless(batches)
    held = list(itertools.islice(stream, 2)) if held_out is None else list(held_out)
    if held_out is None:  # they are trained on as well
        stream = itertools.chain(held, stream)
    optimizer = torch.optim.AdamW(feature_parameters(student).values(), lr=lr, weight_decay=0.0)
    results: dict[str, Any] = {"losses": [], "curve": [], "redrawn": [], "best": {}}
    position = 0  # in the stream

    def next_steps(number: int) -> Iterator[ModelInputs]:
        nonlocal position
        first, end = (number - 1) * evaluate_every, min(number * evaluate_every, steps)
        skip, position = first - position, end
        return itertools.islice(stream, skip, skip + end - first)

    def add(fit: Fit) -> None:
        each = fit.layers()
        results["curve"].append({"step": len(results["losses"]), "kl": each})
        for layer, attention in maps.items():
            kl = each.get(layer, math.nan)
            if layer not in results["best"] or not kl >= results["best"][layer][0]:
                results["best"][layer] = (kl, copy.deepcopy(attention.state_dict()))

    def finish(losses: list[float]) -> bool:
        results["losses"] += losses
        step, fit = len(results["losses"]), measure(student, held)
        add(fit)
        if log is not None:
            log(f"stage 1 step {step}/{steps}: loss {losses[-1]:.4f}, KL {fit.mean():.4f}")
        if step < steps:
            results["redrawn"] += redraw_dead(student, fit, optimizer, results["redrawn"], step)
        return step == steps

    training = Training(
        name="stage 1",
        weights=nn.ModuleList(maps.values()),
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        batches=next_steps,
        backward=MapLoss(student, loss).backward,
        finish=finish,
        results=results,
        settings={"steps": steps, "lr": lr, "loss": loss, "evaluate_every": evaluate_every},
        path=None if folder is None else Path(folder) / STATES[0],
    )
    if not training.resume():
        before = measure(student, held)
        add(before)
        results["before"] = asdict(before)
    training.run()
    for layer, (_, best) in results["best"].items():
        maps[layer].load_state_dict(best)
    described(student)["stage"] = "stage1"
    return Distilled(
        method=method,
        loss=loss,
        lr=lr,
        steps=steps,
        before=Fit(**results["before"]),
        after=measure(student, held),
        curve=results["curve"],
        losses=results["losses"],
        redrawn=results["redrawn"],
        seconds=time.monotonic() - started,
    )


def _endless(batches: Iterable[ModelInputs]) -> Iterator[ModelInputs]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise LunaError(
                "the batches ran out: give distill a list or a loader, not a used-up iterator"
            )


@torch.no_grad()
def redraw_dead(
    student: nn.Module,
    fit: Fit,
    optimizer: torch.optim.Optimizer,
    already: list[dict[str, Any]],
    step: int,
) -> list[dict[str, Any]]:
    """Draw the feature map of every dead head again, but no head twice; return the heads drawn.
    Relu features that are all zero get no gradient and would stay dead."""
    done = {(record["layer"], record["head"]) for record in already}
    drawn: list[dict[str, Any]] = []
    for layer, dead in fit.dead_heads().items():
        heads = [h for h in dead if (layer, h) not in done]
        if not heads:
            continue
        attention, n_heads = feature_maps(student)[layer], len(fit.dead[layer])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1_000_003 * step + len(drawn))
            fresh = build(attention.name, **described(student)["options"] | vars(attention.slot))
        changed = False
        for old, new in zip(attention.parameters(), fresh.parameters(), strict=True):
            per_head = old.ndim > 0 and len(old) == n_heads
            if not per_head and len(heads) < n_heads:
                continue  # other heads share it
            part = heads if per_head else slice(None)
            old[part] = new[part].to(old)
            for moment in optimizer.state.get(old, {}).values():
                if moment.shape == old.shape:
                    moment[part] = 0
            changed = True
        if changed:
            drawn += [{"layer": layer, "head": h, "step": step} for h in heads]
    return drawn


# ---------------------------------------------------------------------- stage 2


@dataclass
class Finetuned:
    """The report of stage 2. The best epoch was chosen on the scores that are reported, so the last
    one is reported beside it."""

    metric: str
    settings: dict[str, Any]
    epochs: list[dict[str, Any]]  # epoch, loss, scores, seconds
    best_epoch: int

    @property
    def best(self) -> float:
        return self.epochs[self.best_epoch - 1]["scores"][self.metric]

    @property
    def last(self) -> float:
        return self.epochs[-1]["scores"][self.metric]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"best": self.best, "last": self.last}


def finetune(
    model: nn.Module,
    train: Callable[[int], Batches],
    evaluate: Callable[[nn.Module], Mapping[str, float]],
    *,
    metric: str,
    lr: float = 1e-5,
    phi_lr: float | None = None,
    weight_decay: float = 0.0,
    epochs: int = 10,
    patience: int = 3,
    schedule: str = "linear",
    warmup: float = 0.0,
    loss: LossOf = own_loss,
    folder: str | Path | None = None,
    log: Log | None = None,
) -> Finetuned:
    """Train the whole model, converted or not, in place; it ends as it was after its best epoch.

    The defaults are the paper's: AdamW, lr 1e-5, no weight decay, up to 10 epochs, early stopping
    with patience 3. It does not state schedule and gradient norm: linear decay without warm-up and
    norm 1, as in the LOTFormer code of the same group.

    train     the batches of epoch 1, 2, ...: a list or a loader, the same for the same number
    evaluate  the scores of the model in eval mode, by name; larger is better
    metric    the score that chooses the best epoch and stops
    phi_lr    rate of the feature maps; None: lr
    warmup    part of all steps in which the rate rises from 0, before the schedule
    loss      of a batch; by default what the model itself computes from `labels`
    folder    keeps the state after every epoch; the same call resumes there, exactly
    """
    settings = {
        "lr": lr,
        "phi_lr": phi_lr,
        "weight_decay": weight_decay,
        "epochs": epochs,
        "patience": patience,
        "schedule": schedule,
        "clip": CLIP,
        "warmup": warmup,
    }
    check_range("finetune's epochs", epochs, 1)
    check_range("finetune's patience", patience, 1)
    if not 0 <= warmup < 1:
        raise LunaError(f"finetune's warmup must be at least 0 and below 1, got {warmup}")
    check_choice("finetune's schedule", schedule, SCHEDULES)
    optimizer = build_optimizer(model, lr, phi_lr, weight_decay)
    factor, total = rate_factor(schedule, warmup), len(train(1)) * epochs
    results: dict[str, Any] = {"epochs": [], "best_epoch": 0, "best": {}}
    started = time.monotonic()

    def epoch_of(number: int) -> Batches:
        nonlocal started
        started = time.monotonic()
        model.train()
        return train(number)

    def backward(batch: ModelInputs) -> float:
        value = loss(model, batch)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        return value.item()

    def finish(losses: list[float]) -> bool:
        model.eval()
        with torch.no_grad():
            scores = dict(evaluate(model))
        if metric not in scores:
            raise LunaError(f"evaluate gave no '{metric}', only {', '.join(sorted(scores))}")
        done, best, mean = results["epochs"], results["best_epoch"], sum(losses) / len(losses)
        seconds = time.monotonic() - started
        epoch = len(done) + 1
        done.append({"epoch": epoch, "loss": mean, "scores": scores, "seconds": seconds})
        if epoch == 1 or scores[metric] > done[best - 1]["scores"][metric]:
            results["best_epoch"] = best = epoch
            results["best"] = {name: t.detach().clone() for name, t in model.state_dict().items()}
        if log is not None:
            log(f"stage 2 epoch {epoch}/{epochs}: loss {mean:.4f}, {metric} {scores[metric]:.4f}")
        return epoch == epochs or epoch - best >= patience

    training = Training(
        name="stage 2",
        weights=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor(step / total)),
        batches=epoch_of,
        backward=backward,
        finish=finish,
        results=results,
        settings=settings | {"metric": metric},
        path=None if folder is None else Path(folder) / STATES[1],
    )
    training.resume()
    training.run()
    model.load_state_dict(results["best"])
    model.eval()
    description = describe(model)
    if description is not None:
        description["stage"] = "finetuned"
    return Finetuned(metric, settings, results["epochs"], results["best_epoch"])


def build_optimizer(
    model: nn.Module, lr: float, phi_lr: float | None, weight_decay: float
) -> torch.optim.AdamW:
    """AdamW with a group of its own for the feature maps."""
    phi = feature_parameters(model) if describe(model) is not None else {}
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    host = [p for name, p in trained if name not in phi]
    maps = [p for name, p in trained if name in phi]
    groups = [{"params": host, "lr": lr}, {"params": maps, "lr": lr if phi_lr is None else phi_lr}]
    return torch.optim.AdamW([g for g in groups if g["params"]], weight_decay=weight_decay)


def rate_factor(schedule: str, warmup: float = 0.0) -> Callable[[float], float]:
    """Return the factor of the rate at progress t in [0, 1)."""
    decay: Callable[[float], float] = {
        "linear": lambda t: 1 - t,
        "cosine": lambda t: (1 + math.cos(math.pi * t)) / 2,
        "constant": lambda t: 1.0,
    }[schedule]
    return lambda t: t / warmup if t < warmup else decay((t - warmup) / (1 - warmup))
