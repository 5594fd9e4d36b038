"""Lightning's own callbacks: each runs, or is refused in one sentence; all end."""

from __future__ import annotations

from typing import Any

import pytest
import pytorch_lightning as pl
from pytorch_lightning import callbacks as lightning_callbacks

from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.training import run as runner

# Arguments that a callback of Lightning's cannot be without.
NEEDED = {
    "EarlyStopping": {"monitor": "dev/loss"},
    "GradientAccumulationScheduler": {"scheduling": "{0:3}"},
    "ModelPruning": {"pruning_fn": "l1_unstructured", "amount": 0.5},
    "OnExceptionCheckpoint": {"dirpath": "elsewhere"},
    "StochasticWeightAveraging": {"swa_lrs": 0.01},
    "ThroughputMonitor": {"batch_size_fn": "{_target_:hydra.utils.get_method,path:builtins.len}"},
}
NOT_RUN = {
    "BackboneFinetuning": "freezes a pretrained backbone",
    "BaseFinetuning": "freezes a pretrained backbone",
    "BatchSizeFinder": "set protocol.recipe.batch",
    "Checkpoint": "Lightning cannot train this",
    "DeviceStatsMonitor": "Lightning cannot train this",
    "GradientAccumulationScheduler": "takes several batches for a step",
    "LearningRateFinder": "sweep protocol.recipe.lr",
    "LearningRateMonitor": "Lightning cannot train this",
    "ModelCheckpoint": "Lightning cannot train this",
    "OnExceptionCheckpoint": "Lightning cannot train this",
    "ProgressBar": "Lightning cannot train this",
    "RichProgressBar": "Lightning cannot train this",
    "StochasticWeightAveraging": "use callbacks=ema",
    "TQDMProgressBar": "Lightning cannot train this",
}


@pytest.mark.rest
@pytest.mark.parametrize("name", sorted(set(lightning_callbacks.__all__) - {"Callback"}))
def test_every_callback_of_lightning_runs_or_is_refused_in_a_sentence(small, name: str):
    place = f"+callbacks.tried._target_=pytorch_lightning.callbacks.{name}"
    words = [f"+callbacks.tried.{key}={value}" for key, value in NEEDED.get(name, {}).items()]
    run = small(place, *words, "protocol.recipe.steps=10", "protocol.evaluation.every=5")
    if name in NOT_RUN:
        with pytest.raises(UserError, match=NOT_RUN[name]):
            runner.train(run)
    else:
        assert (read_json(runner.train(run)) or {})["steps"] == 10


def test_a_step_of_several_batches_is_refused_before_empty_epochs(small, monkeypatch):
    """Whichever callback asks for them; Lightning would go on for ever."""

    class Accumulates(pl.Callback):
        def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
            trainer.accumulate_grad_batches = 3

    monkeypatch.setattr("lra.training.trainer.build_callbacks", lambda *_: [Accumulates()])
    with pytest.raises(UserError, match=r"ended at step 2 of 6: does a callback take several"):
        runner.train(small("protocol.recipe.steps=6", "protocol.evaluation.every=3"))
