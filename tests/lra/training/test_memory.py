"""Less memory for the same numbers: a batch in pieces, and activations computed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

import lra
import luna
from lra.base.errors import UserError
from lra.data.loader import Batch
from lra.metrics.target import IGNORED, Classes, Numbers
from lra.report.specs import TableSpec
from lra.report.trainings import build as build_table
from lra.results.frame import frame_of
from lra.runs.folder import read_metrics
from lra.settings.compose import Run
from lra.training import run as runner
from lra.training.checkpoints import Checkpoints
from lra.training.memory import recomputed
from lra.training.module import LRAModule, pieces_of
from lra.training.run import build

from ..conftest import SMALL

SHORT = ("protocol.recipe.steps=6", "protocol.evaluation.every=3", "trainer.log_every=1")
STILL = ("model.dropout=0", "model.attention_dropout=0", *SHORT)
PIECES = "trainer.micro_batch=3"  # of a batch of 8: 3, 3 and 2
Small = Callable[..., Run]


def rows_of(run: Run) -> list[dict[str, str]]:
    runner.train(run)
    [file] = Path(run.runs_dir).rglob("metrics.csv")
    return read_metrics(file)


def assert_close(ours: list[dict[str, str]], theirs: list[dict[str, str]], rel: float) -> None:
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    for a, b in zip(ours, theirs, strict=True):
        for key in ("train_loss", "train_score", "dev_loss"):
            if a[key]:
                assert float(a[key]) == pytest.approx(float(b[key]), rel=rel), (a["step"], key)


def gradients(run: Run, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    module = build(run).train()

    def zero_grad() -> None:
        module.zero_grad()

    plugin = SimpleNamespace(pre_backward=lambda loss, _: loss)
    stand_in = SimpleNamespace(
        optimizers=[SimpleNamespace(zero_grad=zero_grad)], precision_plugin=plugin
    )
    monkeypatch.setattr(LRAModule, "trainer", stand_in)
    torch.manual_seed(5)
    loss = module.training_step(batch, 0)
    loss.backward()
    return {"loss": loss.detach()} | {
        name: p.grad for name, p in module.named_parameters() if p.grad is not None
    }


def batch_of(n: int, width: int = 96) -> Batch:
    drawn = torch.Generator().manual_seed(0)
    lengths = torch.randint(20, width, (n, 1), generator=drawn)
    mask = torch.arange(width) < lengths
    ids = torch.randint(1, 15, (n, width), generator=drawn) * mask
    return Batch(ids, mask, torch.randint(10, (n,), generator=drawn))


def words(*more: str) -> list[str]:
    places = ("protocol.data.pad_to=96", "protocol.data.max_length=96", "model.n_layers=2")
    return [*SMALL, *STILL, *places, *more]


NAMES = [name for name in luna.names() if not luna.get(name).declared.draws]
FIRST = ("luna", "softmax", "linear", "mamba2")


@pytest.mark.parametrize(
    "name", [*FIRST, *(pytest.param(n, marks=pytest.mark.rest) for n in NAMES if n not in FIRST)]
)
def test_gradients_of_pieces_are_those_of_the_batch(name: str, monkeypatch: pytest.MonkeyPatch):
    method = f"attention={name}"
    whole = gradients(lra.compose(words(method)), batch_of(8), monkeypatch)
    pieces = gradients(lra.compose(words(method, PIECES)), batch_of(8), monkeypatch)
    assert pieces.keys() == whole.keys()
    size = torch.stack([g.norm() for g in whole.values()]).norm()
    apart = torch.stack([(whole[name] - pieces[name]).norm() for name in whole]).norm()
    assert apart / size < 2e-6


def test_a_piece_counts_by_what_it_scores():
    labels = torch.full((5, 4), IGNORED)
    labels[0, :3] = 1  # three of the first piece, none of the second, one of the third
    labels[4, 0] = 1
    batch = Batch(torch.ones(5, 4, dtype=torch.long), None, labels)
    cut = pieces_of(batch, 2, Classes(3))
    assert [(len(piece.ids), share) for piece, share in cut] == [(2, 0.75), (1, 0.25)]
    logits = torch.randn(5, 4, 3, generator=torch.Generator().manual_seed(0))
    target = Classes(3)
    loss = 0.75 * target.loss(logits[:2], labels[:2]) + 0.25 * target.loss(logits[4:], labels[4:])
    torch.testing.assert_close(loss, target.loss(logits, labels))
    numbers = Batch(batch.ids, None, torch.zeros(5))
    assert [share for _, share in pieces_of(numbers, 2, Numbers(1))] == [0.4, 0.4, 0.2]
    nothing = Batch(batch.ids, None, torch.full((5, 4), IGNORED))
    assert len(pieces_of(nothing, 2, target)) == 1


def test_it_is_the_same_run_where_nothing_is_drawn(small: Small, tmp_path: Path):
    whole, places = rows_of(small(*STILL)), f"runs_dir={tmp_path / 'pieces'}"
    pieces = small(*STILL, PIECES, places)
    assert_close(rows_of(pieces), whole, 1e-5)
    assert len(lra.records(tmp_path / "runs", tmp_path / "pieces")) == 1, "of one run"
    [record] = lra.records(tmp_path / "pieces")
    assert record["machine.micro_batch"] == 3
    assert "micro_batch" not in record["settings"]
    assert small(*STILL, "trainer.micro_batch=8").in_pieces is None


@pytest.mark.parametrize("more", [("model.dropout=0.1",), ("attention=reformer",)])
def test_where_numbers_are_drawn_it_is_another(small: Small, tmp_path: Path, more: tuple[str]):
    usual, pieces = small(*STILL, *more), small(*STILL, *more, PIECES)
    runner.train(usual)
    runner.train(pieces)
    records = lra.records(tmp_path)
    assert len({record["identity"] for record in records}) == 2
    table = build_table(TableSpec(name="t", title="t"), frame_of(records))
    assert sorted(row.partition(" ")[2] for row in table.rows.index) == ["", "micro_batch=3"]


def test_one_that_was_killed_goes_on_exactly(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """In the middle of dropout's numbers."""
    more = (*SHORT, "trainer.checkpoint_every=1", PIECES)
    whole = rows_of(small(*more, f"runs_dir={tmp_path / 'whole'}"))
    original = Checkpoints.on_train_batch_end

    def dying(self: Checkpoints, trainer: pl.Trainer, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "on_train_batch_end", dying)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            runner.train(small(*more))
    resumed = rows_of(small(*more))
    for a, b in zip(whole, resumed, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {
            k: v for k, v in b.items() if k != "seconds"
        }


@pytest.mark.parametrize(
    ("more", "rel"),
    [
        (("callbacks=ema",), 1e-5),
        (("optimizer=sam",), 1e-4),
        (("trainer.precision=bf16-mixed", "attention=softmax"), 2e-2),
        (("protocol.recipe.clip=norm", "protocol.recipe.clip_at=0.1"), 1e-5),
    ],
    ids=["ema", "sam", "bf16", "clipped"],
)
def test_it_goes_with(small: Small, tmp_path: Path, more: tuple[str, ...], rel: float):
    whole = rows_of(small(*STILL, *more))
    pieces = rows_of(small(*STILL, *more, PIECES, f"runs_dir={tmp_path / 'pieces'}"))
    assert_close(pieces, whole, rel)


def test_two_processes_take_their_shares_in_pieces(small: Small, train: Any, tmp_path: Path):
    """Over gloo; each sends its gradients once, when all pieces are done."""
    whole = rows_of(small(*STILL))
    two = ("trainer=ddp", "trainer.accelerator=cpu", f"runs_dir={tmp_path / 'two'}")
    done = train(*STILL, *two, PIECES)
    assert done.returncode == 0, done.stderr
    [file] = (tmp_path / "two").rglob("metrics.csv")
    assert_close(read_metrics(file), whole, 1e-4)


@pytest.mark.parametrize("name", ["luna", "reformer", "klt", "skyformer"])
def test_activations_computed_again_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch):
    """Also where a method draws from a stream of its own, and beside dropout."""
    drawn = (f"attention={name}", "model.dropout=0.2", "model.attention_dropout=0.2")
    usual = gradients(lra.compose(words(*drawn)), batch_of(8), monkeypatch)
    run = lra.compose(words(*drawn, "trainer.checkpointing=true"))
    assert build(run).network.encoder.around_block is recomputed
    again = gradients(run, batch_of(8), monkeypatch)
    assert usual.keys() == again.keys()
    for parameter, gradient in usual.items():
        assert torch.equal(gradient, again[parameter]), parameter


def test_a_run_with_them_is_the_same_run(small: Small, tmp_path: Path):
    more = (*SHORT, "attention=reformer", "model.n_layers=2")
    usual = rows_of(small(*more))
    again = rows_of(small(*more, "trainer.checkpointing=true", f"runs_dir={tmp_path / 'again'}"))
    assert_close(again, usual, 0)
    [record] = lra.records(tmp_path / "again")
    assert record["machine.checkpointing"] is True
    assert record["identity"] == lra.records(tmp_path / "runs")[0]["identity"]


NORM = ("attention=luna", "attention.ch_rms=true")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ((PIECES, *NORM), "trainer.micro_batch: .* normalises over the batch"),
        ((PIECES, "protocol.style.norm=batch"), "trainer.micro_batch: .* over the batch"),
        (("trainer.checkpointing=true", *NORM), "trainer.checkpointing: .* over the batch"),
        ((PIECES, "trainer.strategy=fsdp"), "does not fit trainer.strategy=fsdp"),
        ((PIECES, "trainer.compile=graphs"), "which CUDA graphs overwrite"),
        (("trainer.checkpointing=true", "trainer.compile=default"), "add trainer.compile=off"),
        (("optimizer=sam", *NORM), "would move the statistics of .*, a norm over the batch"),
        (("optimizer=sam", "protocol.style.norm=batch"), "statistics of .* over the batch"),
        (("trainer.accumulate_grad_batches=2",), "trainer.micro_batch=8 computes the gradients"),
        (("trainer.micro_batch=0",), "trainer.micro_batch=0 is out of range"),
    ],
)
def test_what_they_do_not_fit_is_a_sentence(more: tuple[str, ...], sentence: str):
    with pytest.raises(UserError, match=sentence):
        build(lra.compose([*SMALL, *more]))
