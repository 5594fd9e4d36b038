"""A training step on a GPU, emulated on a CPU that counts as one: data on the device, a fused
optimiser, and no wait for the device between rows of metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lra.base.config import Compile
from lra.data import device
from lra.data.device import DeviceLoader
from lra.data.prepare import find_or_prepare
from lra.runs.search import folder_of
from lra.settings.compose import Run
from lra.training import module
from lra.training.run import build
from lra.training.trainer import Compiled, LRAData, trainer_for
from luna import heads

# What makes Python wait for a GPU: reading a number, and results whose size is one.
OPERATORS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2"}
METHODS = {"cpu", "tolist", "numpy", "item"}


class Waits(TorchDispatchMode):
    """Counts them, by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        index = args[1] if name == "index" else ()  # by a mask: its size is a number
        masked = any(t is not None and t.dtype in (torch.bool, torch.uint8) for t in index)
        self.counts[name] += name in OPERATORS or masked
        return func(*args, **(kwargs or {}))


class Reads(TorchFunctionMode):
    """Counts calls that copy a tensor to the host, which a CPU's dispatcher does not see."""

    def __init__(self, counts: Counter[str]):
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        self.counts[name] += name in METHODS
        return func(*args, **(kwargs or {}))


class Watch(pl.Callback):
    """The waits of each step, from its batch to the callbacks behind it."""

    def __init__(self) -> None:
        self.steps: list[Counter[str]] = []
        self.waits = Waits()

    def on_train_batch_start(self, *_: Any) -> None:
        self.waits.counts.clear()
        self.reads = Reads(self.waits.counts)
        self.waits.__enter__()
        self.reads.__enter__()

    def on_train_batch_end(self, *_: Any) -> None:
        self.reads.__exit__(None, None, None)
        self.waits.__exit__(None, None, None)
        self.steps.append(+self.waits.counts)


@pytest.mark.parametrize("attention", ["luna", "softmax", "linear", "performer", "nystrom"])
@pytest.mark.filterwarnings("ignore:You defined a `validation_step`")
def test_no_step_waits_for_the_device(
    attention: str, small: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device, "HELD_ON", {"cpu"})
    monkeypatch.setattr(module, "FUSED_ON", {"cpu"})
    monkeypatch.setattr(heads, "INDEXED_ON", set())
    run = small(
        f"attention={attention}",
        "trainer.log_every=4",
        "trainer.progress=off",
        "protocol.recipe.clip=norm",
        "protocol.recipe.steps=80",
    )
    prepared = find_or_prepare(run.task, max_length=512, data_dir=run.data_dir)
    folder, watch = folder_of(run, prepared.fingerprint), Watch()
    folder.path.mkdir(parents=True)
    loaders = LRAData(run, prepared)
    trainer = trainer_for(folder, watch, max_steps=5, val_check_interval=None)
    loaders.trainer = trainer
    loader = loaders.train_dataloader()
    assert isinstance(loader, DeviceLoader)
    trained = build(run)
    trainer.fit(trained, loader)
    assert trainer.optimizers[0].defaults["fused"]
    assert len(watch.steps) == 5
    read = [sum(step.values()) for step in watch.steps]
    assert [read[i] for i in (0, 1, 2, 4)] == [0] * 4, watch.steps
    assert read[3] > 0  # the row of metrics: the counter counts


class Recorded(nn.Module):
    """A network that notes its forward passes, and what it is compiled to."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        self.seen.append("training" if self.training else "evaluation")
        return ids

    def compile(self, mode: str | None) -> None:  # type: ignore[override]
        self.seen.append(mode)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_an_ordinary_forward_pass_precedes_compilation_on_a_gpu(where: str):
    network = Recorded()
    trained = cast(Any, SimpleNamespace(network=network, device=torch.device(where)))
    trainer = cast(
        Any, SimpleNamespace(precision_plugin=SimpleNamespace(forward_context=nullcontext))
    )
    callback, batch = Compiled(Compile.default), SimpleNamespace(ids=torch.zeros(1, 8), mask=None)
    for step in range(2):
        callback.on_train_batch_start(trainer, trained, batch, step)
    assert network.seen == (["evaluation", None] if where == "cuda" else [None])
    assert network.training
