"""Protocols and model sizes resolve, task by task, to the numbers of their sources."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError, ValidationError

from lra import data
from lra.base.config import (
    CONFIGS,
    Clip,
    ClsMask,
    Dev,
    Gelu,
    Init,
    Interaction,
    Mask,
    Pad,
    Pooling,
    Positions,
    Schedule,
    Select,
    UserError,
)
from lra.settings.compose import compose
from lra.settings.task import task_settings

PROTOCOLS = ["luna", "skyformer", "lotformer", "nystrom", "official"]
FIVE = ["listops", "text", "retrieval", "image", "pathfinder"]
EIGHT = [*FIVE, "pathfinder64", "pathx", "pathfinder256"]


def numbers(protocol, *names):
    """The named fields of a protocol, wherever they are."""
    parts = [protocol.data, protocol.style, protocol.recipe, protocol.evaluation]
    return tuple(next(getattr(p, n) for p in parts if hasattr(p, n)) for n in names)


# ---------------------------------------------------------------- the LOTFormer lineage

P3 = {  # batch, lr, warm-up, steps
    "listops": (32, 1e-4, 5000, 50_000),
    "text": (32, 1e-4, 4000, 50_000),
    "retrieval": (16, 1e-4, 5000, 50_000),
    "pathfinder": (128, 1e-4, 5000, 60_000),
    "image": (64, 1e-3, 1000, 50_000),
}
STORED = {  # ids kept, stored length, embedding rows
    "listops": (2000, 2048, 32),
    "text": (4000, 4096, 512),
    "retrieval": (4000, 4096, 512),
    "pathfinder": (1024, 1024, 512),
    "image": (1024, 1024, 256),
}
P3_DEV = {  # evaluate every, dev batches
    "listops": (1000, 62),
    "text": (1000, 200),
    "retrieval": (1000, 156),
    "pathfinder": (1000, 156),
    "image": (50, 20),
}


@pytest.mark.parametrize("task", FIVE)
@pytest.mark.parametrize("name", ["luna", "lotformer"])
def test_recipe_of_lotformer(settings, name, task):
    protocol, _ = settings(name, task)
    assert numbers(protocol, "batch", "lr", "warmup", "steps") == P3[task]
    assert numbers(protocol, "max_length", "pad_to", "vocab") == STORED[task]
    recipe = protocol.recipe
    assert (recipe.schedule, recipe.betas, recipe.eps) == (Schedule.cosine_floor, [0.9, 0.98], 1e-8)
    assert (recipe.clip, recipe.clip_at, recipe.weight_decay) == (Clip.norm, 5.0, 0.0)


@pytest.mark.parametrize("task", FIVE)
def test_lotformer_keeps_its_quirks(settings, task):
    protocol, _ = settings("lotformer", task)
    assert (protocol.name, protocol.profile, protocol.precision) == (
        "lotformer",
        "published",
        "bf16-mixed",
    )
    assert numbers(protocol, "every", "dev_batches") == P3_DEV[task]
    assert_quirks_of_the_skyformer_lineage(protocol)


@pytest.mark.parametrize("task", EIGHT)
def test_luna_is_clean(settings, task):
    protocol, _ = settings("luna", task)
    assert (protocol.name, protocol.profile, protocol.precision) == ("luna", "strict", "32-true")
    images = task not in ("listops", "text", "retrieval")
    assert protocol.data.mask is (Mask.none if images else Mask.length)
    assert protocol.data.pad is Pad.full
    assert (protocol.style.pooling, protocol.style.interaction) == (
        Pooling.masked_mean,
        Interaction.nli,
    )
    evaluation = protocol.evaluation
    assert (evaluation.dev_batches, evaluation.drop_last) == (-1, False)
    assert (evaluation.select, evaluation.select_after) == (Select.best, 0.0)
    assert protocol.recipe.steps % evaluation.every == 0
    assert 20 <= protocol.recipe.steps // evaluation.every <= 60


@pytest.mark.parametrize(
    ("task", "length"), [("pathfinder64", 4096), ("pathx", 16384), ("pathfinder256", 65536)]
)
def test_luna_on_longer_pathfinders(settings, task, length):
    protocol, _ = settings("luna", task)
    assert numbers(protocol, "max_length", "pad_to", "vocab") == (length, length, 512)
    assert numbers(protocol, "lr", "warmup", "steps") == P3["pathfinder"][1:]


# ---------------------------------------------------------------- Skyformer

SKYFORMER = {  # batch, peak lr, warm-up, evaluate every, dev batches
    "listops": (32, 1e-4, 1000, 500, 62),
    "text": (16, 1e-4, 80, 500, 200),
    "retrieval": (16, 2e-4, 800, 1000, 300),
    "pathfinder": (128, 2e-4, 312, 500, 156),
    "image": (256, 1e-4, 175, 50, 20),
}


@pytest.mark.parametrize("task", FIVE)
def test_skyformer(settings, task):
    protocol, _ = settings("skyformer", task)
    got = numbers(protocol, "batch", "lr", "warmup", "every", "dev_batches")
    assert got == SKYFORMER[task]
    assert numbers(protocol, "max_length", "pad_to", "vocab") == STORED[task]
    recipe = protocol.recipe
    assert (recipe.steps, recipe.schedule) == (50_000, Schedule.onecycle)
    assert (recipe.betas[1], recipe.eps, recipe.weight_decay) == (0.999, 1e-6, 0.0)
    assert (recipe.clip, recipe.clip_at) == (Clip.value, 1.0)
    assert (protocol.profile, protocol.precision) == ("published", "16-mixed")
    assert_quirks_of_the_skyformer_lineage(protocol)


NYSTROM = {  # batch, steps, warm-up, evaluate every, dev batches
    "listops": (32, 5000, 1000, 50, 62),
    "text": (32, 20_000, 8000, 500, 781),
    "retrieval": (32, 30_000, 800, 300, 565),
    "pathfinder": (256, 62_400, 312, 312, 312),
    "image": (256, 35_000, 175, 175, 20),
}


@pytest.mark.parametrize("task", FIVE)
def test_nystrom(settings, task):
    protocol, _ = settings("nystrom", task)
    got = numbers(protocol, "batch", "steps", "warmup", "every", "dev_batches")
    assert got == NYSTROM[task]
    vocab = 512 if task == "image" else STORED[task][2]
    assert numbers(protocol, "max_length", "pad_to", "vocab") == (*STORED[task][:2], vocab)
    recipe = protocol.recipe
    assert (recipe.lr, recipe.schedule, recipe.clip) == (1e-4, Schedule.onecycle, Clip.none)
    assert (recipe.betas[1], recipe.eps, recipe.weight_decay) == (0.999, 1e-6, 0.0)
    assert (protocol.profile, protocol.precision) == ("published", "16-mixed")
    assert_quirks_of_the_skyformer_lineage(protocol, select_after=0.0)


def assert_quirks_of_the_skyformer_lineage(protocol, select_after=0.2):
    assert (protocol.data.mask, protocol.data.pad) == (Mask.nonzero, Pad.full)
    style = protocol.style
    assert (style.pooling, style.mask_output) == (Pooling.mean, True)
    assert (style.positions, style.position_std, style.embedding_std) == (
        Positions.learned,
        0.02,
        0.02,
    )
    assert (style.init, style.gelu, style.ln_eps) == (Init.torch, Gelu.erf, 1e-5)
    assert (style.qkv_bias, style.out_bias) == (True, True)
    assert (style.interaction, style.dual_hidden_layers) == (Interaction.nli, 1)
    evaluation = protocol.evaluation
    assert (evaluation.drop_last, evaluation.select, evaluation.select_after) == (
        True,
        Select.best,
        select_after,
    )


# ---------------------------------------------------------------- the 2020 benchmark

LEARNED, FIXED = Positions.learned, Positions.fixed
RSQRT, COSINE = Schedule.rsqrt, Schedule.cosine
OFFICIAL = {
    # batch, lr, schedule, warm-up, steps, decay, clip, every, length, vocab,
    # pooling, positions, drop last
    "listops": (32, 0.05, RSQRT, 1000, 5000, 0.1, Clip.none, 50, 2000, 17, "cls", FIXED, False),
    "text": (32, 0.05, RSQRT, 8000, 20_000, 0.1, Clip.none, 100, 1000, 257, "cls", FIXED, False),
    "retrieval": (
        32, 0.05, RSQRT, 8000, 5000, 0.1, Clip.none, 100, 4000, 257, "first", FIXED, True,
    ),
    "image": (256, 5e-4, COSINE, 175, 35_000, 0, Clip.none, 175, 1024, 256, "cls", LEARNED, True),
    "pathfinder": (
        512, 1e-3, COSINE, 312, 62_400, 0, Clip.none, 312, 1024, 256, "mean", FIXED, True,
    ),
    "pathfinder64": (
        256, 1e-3, COSINE, 625, 125_000, 0, Clip.none, 625, 4096, 256, "cls", LEARNED, True,
    ),
    "pathx": (
        64, 1e-3, COSINE, 2500, 500_000, 0, Clip.norm, 2500, 16384, 256, "mean", LEARNED, True,
    ),
    "pathfinder256": (
        32, 1e-3, COSINE, 5000, 500_000, 0, Clip.none, 5000, 65536, 256, "cls", LEARNED, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("task", EIGHT)
def test_official(settings, task):
    protocol, _ = settings("official", task)
    *row, pooling, positions, drop_last = OFFICIAL[task]
    got = numbers(
        protocol, "batch", "lr", "schedule", "warmup", "steps", "weight_decay", "clip", "every",
        "max_length", "vocab",
    )  # fmt: skip
    assert got == tuple(row)
    assert protocol.data.pad_to == protocol.data.max_length
    assert numbers(protocol, "pooling", "positions", "drop_last") == (
        Pooling[pooling],
        positions,
        drop_last,
    )
    assert (protocol.recipe.betas, protocol.recipe.eps, protocol.recipe.clip_at) == (
        [0.9, 0.98],
        1e-9,
        1.0,
    )
    assert (protocol.profile, protocol.data.mask) == ("official", Mask.nonzero)
    style = protocol.style
    assert (style.init, style.gelu, style.ln_eps) == (Init.flax, Gelu.tanh, 1e-6)
    assert (style.qkv_bias, style.out_bias, style.mask_output) == (False, False, False)
    assert (style.embedding_std, style.position_std) == (1.0, 0.02)
    assert style.cls_mask is ClsMask.first
    assert (style.interaction, style.dual_hidden_layers) == (Interaction.concat, 2)
    evaluation = protocol.evaluation
    assert (evaluation.select, evaluation.dev_batches) == (Select.last, -1)


OFFICIAL_SIZES = {  # layers, heads, embedding, q/k/v, MLP, dropout, attention dropout
    "listops": (4, 8, 512, 512, 1024, 0.1, 0.1),
    "text": (4, 4, 256, 256, 1024, 0.1, 0.1),
    "retrieval": (4, 4, 128, 128, 512, 0.1, 0.1),
    "pathfinder64": (2, 4, 32, 32, 32, 0.1, 0.1),
    "pathx": (1, 2, 32, 16, 32, 0.1, 0.1),
    "pathfinder256": (2, 4, 32, 32, 32, 0.1, 0.1),
}
IMAGE_SIZES = {  # layers, heads, embedding, q/k/v, MLP
    "softmax": (1, 8, 128, 64, 128),
    "bigbird": (1, 4, 128, 64, 128),
    "linear": (1, 8, 128, 64, 128),
    "linformer": (1, 8, 128, 64, 128),
    "local": (1, 2, 128, 64, 128),
    "longformer": (4, 4, 128, 64, 128),
    "performer": (1, 8, 128, 64, 128),
    "reformer": (4, 8, 64, 64, 64),
    "synthesizer": (1, 8, 128, 64, 128),
}
PATHFINDER_SIZES = {  # layers, heads, embedding, q/k/v, MLP, dropout
    "softmax": (4, 4, 32, 16, 32, 0.2),
    "bigbird": (4, 2, 64, 32, 64, 0.2),
    "linear": (1, 2, 128, 64, 128, 0.2),
    "linformer": (1, 2, 32, 16, 32, 0.2),
    "local": (2, 4, 64, 32, 64, 0.1),
    "longformer": (2, 2, 32, 16, 32, 0.1),
    "performer": (4, 8, 32, 16, 32, 0.2),
    "reformer": (2, 8, 64, 64, 64, 0.2),
    "synthesizer": (2, 4, 64, 32, 64, 0.2),
}


def sizes(model):
    return (
        model.n_layers, model.n_heads, model.d_model, model.qkv_dim, model.mlp_dim,
        model.dropout, model.attention_dropout,
    )  # fmt: skip


@pytest.mark.parametrize("task", OFFICIAL_SIZES)
def test_official_sizes(settings, task):
    assert sizes(settings("official", task, "official")[1]) == OFFICIAL_SIZES[task]


@pytest.mark.parametrize("method", IMAGE_SIZES)
def test_official_sizes_of_a_method_on_image(settings, method):
    _, model = settings("official", "image", "official", f"model.sizes_of={method}")
    assert sizes(model) == (*IMAGE_SIZES[method], 0.3, 0.2)


@pytest.mark.parametrize("method", PATHFINDER_SIZES)
def test_official_sizes_of_a_method_on_pathfinder(settings, method):
    _, model = settings("official", "pathfinder", "official", f"model.sizes_of={method}")
    assert sizes(model) == (*PATHFINDER_SIZES[method], 0.1)


def test_official_sizes_are_the_attentions_own_or_the_transformers(settings):
    for task, table in (("image", IMAGE_SIZES), ("pathfinder", PATHFINDER_SIZES)):
        for attention, of in (("local", "local"), ("performer_relu", "performer"),
                              ("luna", "softmax")):  # fmt: skip
            model = settings("official", task, "official", f"attention.name={attention}")[1]
            assert sizes(model)[:5] == table[of][:5]


def test_pooling_of_the_official_protocol_follows_the_attention(settings):
    for attention, pooling in (("local", Pooling.mean), ("longformer", Pooling.mean),
                               ("softmax", Pooling.cls), ("luna", Pooling.cls)):  # fmt: skip
        protocol, _ = settings("official", "image", "official", f"attention.name={attention}")
        assert protocol.style.pooling is pooling


def test_small_and_base(settings):
    assert sizes(settings("luna", "image", "small")[1]) == (2, 2, 64, 64, 128, 0.1, 0.1)
    assert sizes(settings("luna", "image", "base")[1]) == (6, 4, 256, 256, 512, 0.1, 0.1)


# ---------------------------------------------------------------- what a protocol asks of the data

DEV = {name: Dev.train if name == "luna" else Dev.test for name in PROTOCOLS}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_where_the_dev_split_of_text_comes_from(name):
    """The same for a run and for the command that prepares its data, and both can be set."""
    words = ["task=text", f"protocol={name}", "attention=softmax"]
    (other,) = set(Dev) - {DEV[name]}
    assert compose(words).task.dev is DEV[name]
    assert compose([*words, f"protocol.evaluation.dev={other.name}"]).task.dev is other
    prepared, _ = task_settings("text", name)
    assert data.configure("text", [], prepared).dev is DEV[name]
    assert data.configure("text", [f"dev={other.name}"], prepared).dev is other


def test_a_dev_split_of_another_name_is_refused():
    with pytest.raises(UserError, match=r"dev.*train, test"):
        compose(["task=text", "task.dev=val"])
    with pytest.raises(UserError, match=r"dev=val: Invalid value .*\[train, test\]"):
        data.configure("text", ["dev=val"])


def test_brackets_are_lost_only_where_one_asks_for_it():
    assert {task_settings("listops", name)[0]["brackets"] for name in PROTOCOLS} == {"keep"}
    words = ["task=listops", "protocol=skyformer", "attention=softmax", "task.brackets=drop"]
    assert compose(words).task.brackets.name == "drop"


# ---------------------------------------------------------------- the form of the files


@pytest.mark.parametrize("name", PROTOCOLS)
def test_a_protocol_has_rows_for_the_tasks_its_lineage_ran(name):
    table = OmegaConf.load(CONFIGS / "protocol" / f"{name}.yaml").tasks
    if name == "luna":  # which a new task joins
        assert set(table) >= set(EIGHT)
    else:
        assert set(table) == set(EIGHT if name == "official" else FIVE)
    columns = {frozenset(row) for row in table.values()}
    assert len(columns) == 1, "every row has the same columns"


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_column_of_the_table_is_read(name):
    text = (CONFIGS / "protocol" / f"{name}.yaml").read_text(encoding="utf-8")
    table = OmegaConf.load(CONFIGS / "protocol" / f"{name}.yaml").tasks
    for column in table.listops:
        assert f"${{protocol.tasks.${{task.name}}.{column}}}" in text


@pytest.mark.parametrize("name", ["skyformer", "lotformer"])
def test_a_task_without_a_row_is_refused(settings, name):
    with pytest.raises(InterpolationKeyError, match=r"protocol\.tasks\.pathx"):
        settings(name, "pathx")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_command_line_overrides_the_table(settings, name):
    overrides = ["protocol.recipe.lr=3e-3", "protocol.style.pooling=cls", "protocol.data.pad=batch"]
    protocol, _ = settings(name, "image", "small", *overrides)
    assert protocol.recipe.lr == 3e-3
    assert (protocol.style.pooling, protocol.data.pad) == (Pooling.cls, Pad.batch)


def test_a_value_outside_its_choices_is_refused(settings):
    with pytest.raises(ValidationError, match="pooling"):
        settings("luna", "image", "small", "protocol.style.pooling=max")
