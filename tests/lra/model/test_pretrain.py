"""Phase one sees the training inputs and nothing else, phase two begins where it ended, and both
are one run: resumed, counted and named together."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lra.base.config import Mask
from lra.base.digests import digest
from lra.base.disk import read_json
from lra.base.errors import UserError
from lra.compute.count import count_run
from lra.compute.gate import check_budget
from lra.data.arrays import IGNORED, Prepared
from lra.data.loader import Batch
from lra.data.prepare import find_or_prepare
from lra.model import pretrain
from lra.model.build import build_network
from lra.report.specs import TableSpec
from lra.report.trainings import build as build_table
from lra.results.audit import refuse_contradictions
from lra.results.frame import frame_of
from lra.results.record import load_records, read_record
from lra.results.trained import load_trained
from lra.runs.folder import PHASE_ONE, RESULT, RunFolder
from lra.settings.compose import Run
from lra.sweeps.status import of_folder
from lra.training import run as runner
from lra.training.checkpoints import Interrupted
from lra.training.run import build
from lra.training.trainer import LRAData
from luna import LunaError

from ..compute.kit import with_attention
from ..conftest import SMALL, composed

SHORT = ("protocol.recipe.steps=6", "protocol.evaluation.every=3", "trainer.checkpoint_every=2")
MASKED = ("pretrain=masked", *SHORT)
Small = Callable[..., Run]


def folder_of(run: Run, name: str = RESULT) -> Path:
    """The folder of the only run that left such a file."""
    [file] = Path(run.runs_dir).rglob(name)
    return file.parent


def weights(folder: Path) -> dict[str, torch.Tensor]:
    state = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]
    return {k: v for k, v in state.items() if isinstance(v, torch.Tensor)}


def assert_equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    assert [name for name in a if not torch.equal(a[name], b[name])] == []


def prepared_of(run: Run) -> Prepared:
    return find_or_prepare(run.task, max_length=run.protocol.data.max_length, data_dir=run.data_dir)


@pytest.fixture(scope="module")
def finished(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a phase one, never interrupted."""
    words = (*SMALL, f"data_dir={data_dir}", *MASKED)
    run = replace(composed(*words), runs_dir=str(tmp_path_factory.mktemp("pretrained")))
    runner.train(run)
    return run


# ---------------------------------------------------------------------- what phase one sees


def batches(run: Run, split: str = "train", prepared: Prepared | None = None) -> list[Batch]:
    first = pretrain.phase_one(run)
    data = LRAData(first, prepared or prepared_of(run))
    return list(data.train_dataloader() if split == "train" else data.val_dataloader())


def test_masked_tokens_are_hidden_and_scored_and_no_others_at_the_stated_rate(small: Small):
    run = small("pretrain=masked", "pretrain.rate=0.3", "pretrain.recipe.steps=60")
    token, scored, real = run.protocol.data.vocab, 0, 0
    train = {tuple(ids[ids > 0]) for ids in prepared_of(run).split("train").ids(np.arange(96))}
    for batch in batches(run):
        targets = batch.labels != IGNORED
        assert torch.equal(targets, batch.ids == token)
        assert targets.any(-1).all()
        restored = torch.where(targets, batch.labels, batch.ids)
        assert {tuple(ids[ids > 0]) for ids in restored.numpy()} <= train  # nothing else changed
        scored, real = scored + int(targets.sum()), real + int(batch.mask.sum())
    assert scored / real == pytest.approx(0.3, abs=0.01)


def test_a_short_sequence_has_a_masked_token_and_padding_never():
    real = torch.arange(20) < torch.tensor([[1], [3], [0], [20]])
    draws = 0.9 - 0.01 * torch.arange(20).expand(4, 20)
    targets = pretrain.choose(draws, real, rate=0.15)
    assert [row.nonzero().flatten().tolist() for row in targets] == [[0], [2], [], [19]]


def test_masks_are_a_function_of_the_seed_and_the_place(small: Small):
    """The same in every process that reads the stream, from wherever it begins; new ones in every
    epoch, the same ones in every evaluation."""
    run = small(*MASKED, "pretrain.recipe.steps=30")
    whole, again = batches(run), LRAData(pretrain.phase_one(run), prepared_of(run))
    loader = again.train_dataloader()
    loader.load_state_dict({"delivered": 20})
    for a, b in zip(whole[20:], loader, strict=True):
        assert torch.equal(a.ids, b.ids)
        assert torch.equal(a.labels, b.labels)
    other = batches(replace(run, seed=2))
    assert not torch.equal(whole[0].labels, other[0].labels)
    places: dict[bytes, set[bytes]] = {}
    for batch in whole:  # 96 - 5 examples, 8 in a batch: each comes twice or more
        for ids, labels in zip(batch.ids, batch.labels, strict=True):
            targets = labels != IGNORED
            example, targets = torch.where(targets, labels, ids), targets[ids > 0]
            key = example[example > 0].numpy().tobytes()
            places.setdefault(key, set()).add(targets.numpy().tobytes())
    assert max(map(len, places.values())) > 1
    held = batches(run, "val"), batches(run, "val")
    assert all(torch.equal(a.labels, b.labels) for a, b in zip(*held, strict=True))


def test_causal_targets_are_the_tokens_that_follow(small: Small):
    run = small("pretrain=causal", *SHORT)
    for ids, mask, labels in batches(run):
        assert torch.equal(labels[:, :-1][mask[:, 1:]], ids[:, 1:][mask[:, 1:]])
        assert (labels[:, :-1][~mask[:, 1:]] == IGNORED).all()
        assert (labels[:, -1] == IGNORED).all()


def test_black_pixels_are_predicted_unless_the_quirk_takes_them_for_padding(data_dir: Path):
    words = (
        "task=image",
        "task.source=tiny",
        f"data_dir={data_dir}",
        "pretrain=masked",
        "pretrain.recipe.batch=16",
        "pretrain.recipe.steps=2",
        "compute=off",
    )
    run = composed(*words)
    assert run.pretrain.rate == 0.5
    assert any((batch.labels == 0).any() for batch in batches(run))
    quirk = replace(run.protocol, data=replace(run.protocol.data, mask=Mask.nonzero))
    for batch in batches(replace(run, protocol=quirk)):
        scored = batch.labels != IGNORED
        assert batch.labels[scored].min() > 0
        assert batch.mask[scored].all()


def test_pairs_are_pretrained_as_single_texts_of_train(data_dir: Path):
    run = composed(
        "task=retrieval",
        "task.source=tiny",
        f"data_dir={data_dir}",
        "pretrain=masked",
        "compute=off",
        "protocol.data.max_length=128",
        "protocol.data.pad_to=128",
        "pretrain.recipe.steps=40",
        "pretrain.recipe.batch=4",
    )
    prepared = prepared_of(run)
    train = prepared.split("train")
    pairs = train.ids(np.arange(len(train)))
    texts = {row.tobytes() for pair in pairs.astype(np.int64) for row in pair}
    seen, held = (
        [
            ids.numpy().tobytes()
            for b in batches(run, split)
            for ids in torch.where(b.labels != IGNORED, b.labels, b.ids)
        ]
        for split in ("train", "val")
    )
    assert set(seen) | set(held) == texts
    assert not set(seen) & set(held)
    assert len(held) == len(set(held)) == -(-len(texts) // pretrain.HELD_OUT)


class Blind(Prepared):
    """Prepared data without anything that phase one must not read."""

    def __init__(self, prepared: Prepared):
        self.__dict__ |= prepared.__dict__
        train = prepared.split("train")
        self._splits = {"train": replace(train, labels=Unread(len(train)))}


class Unread:
    """Labels that can be counted and not read."""

    def __init__(self, n: int):
        self.n = n

    def __len__(self) -> int:
        return self.n


def test_phase_one_reads_no_label_and_nothing_of_dev_or_test(small: Small, finished: Run):
    """Without them its weights are the same, bit for bit."""
    run = small(*MASKED)
    runner.begin_with(pretrain.phase_one(run), build(run), Blind(prepared_of(run)))
    assert_equal(weights(folder_of(run, PHASE_ONE)), weights(folder_of(finished, PHASE_ONE)))


# ---------------------------------------------------------------------- what phase two gets


@pytest.mark.parametrize(
    "words",
    [
        ("attention=performer", "attention.redraw=null"),
        ("attention=luna", "pretrain=causal"),
        ("protocol.style.pooling=cls",),
        ("attention=linformer",),
        ("trainer.precision=64-true",),
    ],
)
def test_the_backbone_is_carried_bit_for_bit_and_the_head_is_not(
    small: Small, monkeypatch, words: tuple[str, ...]
):
    """Phase two, stopped before its first step, has the weights of phase one's last."""
    seen, fit = dict[str, torch.Tensor](), runner.fit

    def stop(module: Any, loaders: Any, folder: RunFolder) -> Any:
        if folder.run.pretrain.is_the_run:
            return fit(module, loaders, folder)
        seen.update(module.state_dict())
        raise Interrupted(15)

    monkeypatch.setattr(runner, "fit", stop)
    run = small("pretrain=masked", *SHORT, *words)
    with pytest.raises(SystemExit):
        runner.train(run)
    one = weights(folder_of(run, PHASE_ONE))
    fresh = build(run).state_dict()
    table = "network.embedding.token.weight"
    for name, value in seen.items():
        if name.startswith("network.head."):
            assert torch.equal(value, fresh[name].to(value.dtype)), name
        elif isinstance(value, torch.Tensor):
            same = one[name][:-1] if name == table and run.pretrain.rate else one[name]
            assert torch.equal(value, same), name
    assert not torch.equal(seen[table], fresh[table].to(seen[table].dtype))


@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
def test_causal_predictions_depend_on_no_later_token(small: Small, attention: str):
    two = with_attention(small("pretrain=causal"), attention)
    run = pretrain.phase_one(two)
    torch.manual_seed(0)
    network = build_network(run).eval()
    ids = torch.randint(1, 15, (1, run.protocol.data.pad_to))
    changed = ids.clone()
    changed[:, 300:] = 3
    assert torch.allclose(network(ids)[:, :300], network(changed)[:, :300], atol=1e-5)
    pretrain.carry(network.state_dict(), build_network(two))


def test_seeds_share_one_phase_one_and_the_record_shows_it(small: Small):
    shared = (*MASKED, "pretrain.seed=7")
    for words in ((*shared, "seed=1"), (*shared, "seed=2"), (*MASKED, "seed=2")):
        runner.train(small(*words))
    assert len(list(Path(small().runs_dir).rglob(PHASE_ONE))) == 2
    records = {(r["seed"], r["pretraining.seed"]): r for r in load_records([small().runs_dir])}
    one, two, unshared = (records[pair] for pair in ((1, 7), (2, 7), (2, 2)))
    assert one["pretraining"] == two["pretraining"] != unshared["pretraining"]
    assert one["identity"] == two["identity"] != unshared["identity"]
    assert (one["settings.pretrain.seed"], unshared["settings.pretrain.seed"]) == (7, None)
    table = build_table(TableSpec(name="t", title="t"), frame_of([one, two]))
    assert any("2 of these runs share" in note for note in table.notes)


def test_the_identity_covers_both_phases_and_that_of_a_run_without_is_what_it_was(small: Small):
    identities = [
        small(*words).experiment.identity("data")
        for words in (
            (),
            ("pretrain=masked",),
            ("pretrain=causal",),
            ("pretrain=masked", "pretrain.rate=0.2"),
            ("pretrain=masked", "pretrain.recipe.lr=0.02"),
            ("pretrain=masked", "pretrain.seed=3"),
        )
    ]
    assert len(set(identities)) == len(identities)
    assert small("pretrain=none").experiment.identity("data") == identities[0]
    assert small("pretrain=masked", "seed=2").experiment.identity("data") == identities[1]
    phase = ("pretrain=masked", "pretrain.recipe.lr=0.01", "pretrain.recipe.steps=30")
    two = ("protocol.recipe.lr=0.02", "pretrain.every=10", "protocol.recipe.steps=60")
    shared = {
        pretrain.phase_one(small(*phase, *more)).experiment.identity("data") for more in ((), two)
    }
    assert len(shared) == 1


# ---------------------------------------------------------------------- one run


def test_a_phase_one_without_its_weights_is_trained_again(small: Small, finished: Run):
    folder = shutil.copytree(finished.runs_dir, small().runs_dir) and folder_of(small(), PHASE_ONE)
    (folder / "checkpoints/last.ckpt").unlink()
    runner.train(small(*MASKED, "seed=1", "protocol.recipe.lr=0.02", "pretrain.recipe.lr=0.01"))
    assert_equal(weights(folder), weights(folder_of(finished, PHASE_ONE)))


def test_a_signal_in_phase_one_interrupts_the_run(small: Small, monkeypatch):
    run = small(*MASKED)
    with monkeypatch.context() as patch:
        patch.setattr(runner.LRAData, "val_dataloader", lambda _: os.kill(os.getpid(), 15))
        with pytest.raises(SystemExit, match="143"):
            runner.train(run)
    states = of_folder(Path(run.runs_dir))
    assert [s.state for s in states] == ["interrupted", "interrupted"]
    runner.train(small(*MASKED))
    assert [s.state for s in of_folder(Path(run.runs_dir))] == ["done", "done"]


def test_the_record_has_both_phases_and_the_table_names_them(finished: Run, small: Small):
    plain = read_record(runner.train(small(*SHORT)))
    [record] = load_records([finished.runs_dir])
    refuse_contradictions([plain, record])
    about, two = record["pretraining"], record["compute"]
    assert (about["name"], about["rate"], about["steps"], about["batch"]) == ("masked", 0.15, 6, 8)
    assert about["run"] == "-".join(folder_of(finished, PHASE_ONE).parts[-2:])
    assert 0 < about["held_out"]["loss"] < about["held_out"]["first"]["loss"]
    one = count_run(pretrain.phase_one(finished))
    assert two["phase_one"]["flops"] == one.flops > two["flops"]
    works = [6 * 8 * flops for flops in (one.training_flops, two["training_flops"])]
    assert two["training"] == {"phase_one": works[0], "phase_two": works[1], "both": sum(works)}
    table = build_table(TableSpec(name="t", title="t"), frame_of([plain, record]))
    assert {*table.rows.index} == {"linear", "linear pretrain=masked"}
    trained = load_trained(folder_of(finished), data_dir=finished.data_dir)
    assert trained.evaluate().digests() == record["answers"]


def test_a_record_that_hides_its_phase_one_is_refused(finished: Run, tmp_path: Path):
    folder = shutil.copytree(folder_of(finished), tmp_path / "seed-1")
    facts = read_json(folder / RESULT)
    del facts["pretraining"], facts["digest"]
    (folder / RESULT).write_text(json.dumps(facts | {"digest": digest(facts)}), encoding="utf-8")
    with pytest.raises(UserError, match=r"its pretraining\.name is None, but in its settings"):
        read_record(folder / RESULT)


# ---------------------------------------------------------------------- budgets and refusals


def test_the_gate_can_hold_both_phases_to_the_budget_of_one():
    words = ("task=listops", "attention=luna", "pretrain=masked")
    assert check_budget(composed(*words)).verdict == "matched"
    with pytest.raises(UserError, match=r"both phases count: lower pretrain\.recipe\.steps"):
        check_budget(composed(*words, "compute.both_phases=true"))
    run = composed(*words, "compute.both_phases=true", "compute=report")
    both = check_budget(run)
    assert both.ratios["examples"] == pytest.approx(
        sum(both.work.values()) / both.work["phase_two"], rel=1e-5
    )
    share = both.work["phase_two"] / sum(both.work.values())
    steps = [
        f"{key}.steps={round(50 * share) * 1000}" for key in ("pretrain.recipe", "protocol.recipe")
    ]
    fitting = composed(
        *words, *steps, "compute.both_phases=true", "compute.tolerance.examples=0.03"
    )
    assert check_budget(fitting).verdict == "matched"


def test_a_budget_scales_both_phases():
    run = composed(
        "task=listops", "pretrain=masked", "steps_share=0.02", "pretrain.recipe.steps=25000"
    )
    one, two = run.pretrain.recipe, run.protocol.recipe
    assert (one.steps, one.warmup, run.pretrain.every) == (500, 100, 100)
    assert (two.steps, two.warmup, run.protocol.evaluation.every) == (1000, 100, 200)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ("attention=linformer", "pretrain=causal"),
            "pretrain=causal needs the attention's causal form, which 'linformer' does not have",
        ),
        (("pretrain=causal", "protocol.style.pooling=cls"), "a CLS token in front sees no other"),
        (("pretrain=causal", "attention.dwc=conv2d"), "dwc=conv2d needs a grid of tokens"),
        (
            ("task=recall", "protocol=recall", "model=probe", "pretrain=masked"),
            "one of task 'recall' is the sum of 2",
        ),
        (("pretrain=masked", "pretrain.rate=1"), "pretrain.rate=1.0 is out of range"),
        (("pretrain=causal", "pretrain.rate=0.2"), "null under pretrain=causal"),
        (("pretrain=masked", "pretrain.recipe=null"), "unless pretrain.recipe"),
        (("pretrain=mask",), "unknown pretrain 'mask'; did you mean masked?"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(words: tuple[str, ...], sentence: str):
    with pytest.raises((UserError, LunaError)) as refused:
        check_budget(composed("compute=off", *words))
    assert sentence in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
