from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import luna
from lra.config import (
    Clip,
    ClsMask,
    DataRules,
    Dev,
    Evaluation,
    Gelu,
    Init,
    Interaction,
    Mask,
    Model,
    Pad,
    Pooling,
    Positions,
    Protocol,
    Recipe,
    Schedule,
    Select,
    Style,
    UserError,
)
from lra.model import build
from lra.model.backbone import AttentionLayer
from lra.model.embedding import Embedding
from lra.model.heads import POOLINGS, DualClassifier


@dataclass
class Facts:
    classes: int = 3
    vocab: int = 11
    dual: bool = False
    grid: tuple[int, int] | None = None


TASKS = {
    "listops": Facts(10, 16),
    "text": Facts(2, 257),
    "retrieval": Facts(2, 257, dual=True),
    "image": Facts(10, 256, grid=(32, 32)),
    "pathfinder": Facts(2, 256, grid=(32, 32)),
    "pathfinder64": Facts(2, 256, grid=(64, 64)),
    "pathx": Facts(2, 256, grid=(128, 128)),
    "pathfinder256": Facts(2, 256, grid=(256, 256)),
}

SKYFORMER = Style(
    positions=Positions.learned, position_std=0.02, embedding_std=0.02, init=Init.torch,
    qkv_bias=True, out_bias=True, gelu=Gelu.erf, ln_eps=1e-5, mask_output=True,
    pooling=Pooling.mean, cls_mask=ClsMask.real, interaction=Interaction.nli, dual_hidden_layers=1,
)  # fmt: skip
OFFICIAL = Style(
    positions=Positions.fixed, position_std=0.02, embedding_std=1.0, init=Init.flax,
    qkv_bias=False, out_bias=False, gelu=Gelu.tanh, ln_eps=1e-6, mask_output=False,
    pooling=Pooling.cls, cls_mask=ClsMask.first,
    interaction=Interaction.concat, dual_hidden_layers=2,
)  # fmt: skip
CLEAN = replace(SKYFORMER, mask_output=False, pooling=Pooling.masked_mean)

TINY = Model(
    "tiny", n_layers=2, d_model=12, n_heads=3, qkv_dim=12, mlp_dim=10,
    dropout=0, attention_dropout=0,
)  # fmt: skip


def protocol(style=CLEAN, length=24, profile="strict", vocab=11):
    return Protocol(
        name="test", version=1, profile=profile, precision="32-true",
        data=DataRules(length, length, Pad.full, Mask.length, vocab),
        style=style,
        recipe=Recipe(4, 10, 0, Schedule.constant, 1e-3, [0.9, 0.98], 1e-8, 0.0, Clip.none, 1.0),
        evaluation=Evaluation(5, -1, Dev.train, False, Select.last, 0.0),
        tasks={},
    )  # fmt: skip


def network(
    style=CLEAN, *, facts=None, attention="softmax", model=TINY, length=24, profile="strict", seed=0
):
    """Double precision, evaluation mode, and no parameter at a value that hides a mistake."""
    torch.manual_seed(seed)
    attention = attention if isinstance(attention, dict) else {"name": attention, "dwc": "none"}
    net = build(facts or Facts(), attention, model, protocol(style, length, profile), seed)
    return net.double().eval()


def shake(net):
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(torch.randn_like(p) * 0.4)
    return net


def count(net):
    return sum(p.numel() for p in net.parameters())


def example(lengths, n=24, vocab=11, seed=0):
    """ids (B, n) with zeros behind the real tokens, which are not zero, and their mask."""
    torch.manual_seed(seed)
    mask = torch.arange(n) < torch.tensor(lengths)[:, None]
    return torch.randint(1, vocab, (len(lengths), n)) * mask, mask


# ---------------------------------------------------------------- sizes, as printed by the lineages


def parameters(settings, protocol_name, task, model_name, *overrides):
    protocol, model = settings(protocol_name, task, model_name, *overrides)
    with torch.device("meta"):
        return count(build(TASKS[task], {"name": "softmax", "dwc": "none"}, model, protocol, 0))


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("listops", 209_802),
        ("text", 370_562),
        ("retrieval", 395_138),
        ("pathfinder", 173_954),
        ("image", 158_602),
    ],
)
@pytest.mark.parametrize("name", ["skyformer", "lotformer", "luna"])
def test_parameters_of_the_small_model(settings, name, task, expected):
    assert parameters(settings, name, task, "small") == expected


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("listops", 8_948_746),
        ("text", 3_486_722),
        ("retrieval", 1_087_618),
        ("image", 248_458),
        ("pathfinder", 26_530),
        ("pathfinder64", 153_186),
        ("pathx", 537_954),
        ("pathfinder256", 2_119_266),
    ],
)
def test_parameters_of_the_official_transformer(settings, task, expected):
    assert parameters(settings, "official", task, "official") == expected


def test_parameters_of_the_bare_cifar_config(settings):
    sizes = {"n_layers": 1, "n_heads": 1, "d_model": 32, "qkv_dim": 32, "mlp_dim": 64}
    changes = [f"model.{k}={v}" for k, v in sizes.items()]
    assert parameters(settings, "official", "image", "official", *changes) == 52_266


# ---------------------------------------------------------------- the forward pass, written again


def sinusoids(n, width):
    """One entry at a time, stored in float32."""
    table = torch.zeros(n, width, dtype=torch.float64)
    for pos in range(n):
        for i in range(0, width, 2):
            angle = pos * math.exp(-i * math.log(10_000) / width)
            table[pos, i] = math.sin(angle)
            if i + 1 < width:
                table[pos, i + 1] = math.cos(angle)
    return table.float().double()


def layer_norm(x, state, name, eps):
    mu = x.mean(-1, keepdim=True)
    variance = (x * x).mean(-1, keepdim=True) - mu * mu
    return (x - mu) / (variance + eps).sqrt() * state[f"{name}.weight"] + state[f"{name}.bias"]


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def erf_gelu(x):
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def affine(x, state, name):
    out = x @ state[f"{name}.weight"].T
    return out + state[f"{name}.bias"] if f"{name}.bias" in state else out


def heads_of(x, model):
    B, n, _ = x.shape
    return x.reshape(B, n, model.n_heads, model.qkv_dim // model.n_heads).permute(0, 2, 1, 3)


def official_weights(scores, mask):
    """-1e10 where query or key is masked: a masked query is left with equal weights for all."""
    both = (mask[:, :, None] & mask[:, None, :])[:, None]
    A = scores.masked_fill(~both, -torch.inf).softmax(-1)
    return torch.where(mask[:, None, :, None], A, torch.full_like(A, 1 / A.shape[-1]))


def skyformer_weights(scores, mask):
    return (scores - 1e6 * (~mask[:, None, None, :]).double()).softmax(-1)


def encoder(x, mask, state, model, weights, gelu, eps):
    """Pre-norm blocks on x (B, n, E) and the final LayerNorm."""
    B, n, _ = x.shape
    for layer in range(model.n_layers):
        block = f"encoder.blocks.{layer}"
        h = layer_norm(x, state, f"{block}.norm1", eps)
        q, k, v = affine(h, state, f"{block}.attention.qkv").split(model.qkv_dim, -1)
        q, k, v = (heads_of(t, model) for t in (q, k, v))
        scores = q / math.sqrt(model.qkv_dim // model.n_heads) @ k.transpose(2, 3)
        mixed = (weights(scores, mask) @ v).permute(0, 2, 1, 3).reshape(B, n, model.qkv_dim)
        x = x + affine(mixed, state, f"{block}.attention.out")
        h = layer_norm(x, state, f"{block}.norm2", eps)
        x = x + affine(gelu(affine(h, state, f"{block}.mlp.0")), state, f"{block}.mlp.3")
    return layer_norm(x, state, "encoder.norm", eps)


def official_vectors(ids, state, model, style):
    """The encoder of the 2020 code on one input, pooled."""
    mask = ids > 0
    x = state["embedding.token.weight"][ids]
    if style.pooling is Pooling.cls:
        cls = state["embedding.cls"].reshape(1, 1, -1).repeat(len(x), 1, 1)
        x = torch.cat([cls, x], 1)
        mask = torch.cat([mask[:, 0:1], mask], 1)
    n = x.shape[1]
    learned = style.positions is Positions.learned
    x = x + (state["embedding.position.table"][:n] if learned else sinusoids(n, x.shape[2]))
    x = encoder(x, mask, state, model, official_weights, tanh_gelu, 1e-6)
    return x.sum(1) / n if style.pooling is Pooling.mean else x[:, 0]


def official_logits(ids, state, model, style, head="head"):
    pooled = official_vectors(ids, state, model, style)
    return affine(affine(pooled, state, f"{head}.0").relu(), state, f"{head}.2")


NARROW = replace(TINY, qkv_dim=6)  # projections narrower than the residual stream, as on Image


@pytest.mark.parametrize("n", [24, 17])
@pytest.mark.parametrize("positions", [Positions.learned, Positions.fixed])
@pytest.mark.parametrize("pooling", [Pooling.cls, Pooling.mean])
@pytest.mark.parametrize("model", [TINY, NARROW])
def test_official_model(pooling, positions, n, model):
    style = replace(OFFICIAL, pooling=pooling, positions=positions)
    net = shake(network(style, model=model, profile="official"))
    ids, _ = example([n, 9, 1, 0], n)
    ids[0, 3] = 0  # a black pixel inside
    ids = torch.cat([ids, ids[:1].roll(-3, 1)])  # and one in front, which masks the CLS token
    torch.testing.assert_close(
        net(ids, ids > 0), official_logits(ids, net.state_dict(), model, style), rtol=0, atol=1e-10
    )


@pytest.mark.parametrize("interaction", list(Interaction))
def test_official_dual_encoder(interaction):
    style = replace(OFFICIAL, pooling=Pooling.first, interaction=interaction)
    net = shake(network(style, facts=Facts(2, dual=True), profile="official"))
    ids = torch.stack([example([24, 9, 5])[0], example([3, 24, 13], seed=1)[0]], 1)  # (B, 2, n)
    state = net.state_dict()
    a = official_vectors(ids[:, 0], state, TINY, style)
    b = official_vectors(ids[:, 1], state, TINY, style)
    features = [a, b] if interaction is Interaction.concat else [a, b, a * b, a - b]
    h = affine(torch.cat(features, -1), state, "head.classifier.0").relu()
    h = affine(h, state, "head.classifier.2").relu()
    assert h.shape[-1] == TINY.mlp_dim // 2
    expected = affine(h, state, "head.classifier.4")
    torch.testing.assert_close(net(ids, ids > 0), expected, rtol=0, atol=1e-10)


def skyformer_vectors(ids, mask, state):
    x = state["embedding.token.weight"][ids] + state["embedding.position.table"][: ids.shape[1]]
    x = encoder(x, mask, state, TINY, skyformer_weights, erf_gelu, 1e-5)
    return (x * mask[:, :, None]).sum(1) / ids.shape[1]


def test_skyformer_model():
    net = shake(network(SKYFORMER, profile="published"))
    ids, _ = example([24, 9, 1])
    ids[0, ::3] = 0
    mask, state = ids != 0, net.state_dict()
    pooled = skyformer_vectors(ids, mask, state)
    expected = affine(affine(pooled, state, "head.0").relu(), state, "head.2")
    torch.testing.assert_close(net(ids, mask), expected, rtol=0, atol=1e-10)


def test_skyformer_dual_encoder():
    net = shake(network(SKYFORMER, facts=Facts(2, dual=True), profile="published"))
    ids = torch.stack([example([24, 9, 5])[0], example([3, 24, 13], seed=1)[0]], 1)
    mask, state = ids != 0, net.state_dict()
    a, b = (skyformer_vectors(ids[:, i], mask[:, i], state) for i in (0, 1))
    h = affine(torch.cat([a, b, a * b, a - b], -1), state, "head.classifier.0").relu()
    expected = affine(h, state, "head.classifier.2")
    torch.testing.assert_close(net(ids, mask), expected, rtol=0, atol=1e-10)


# ---------------------------------------------------------------- how weights start

LARGE = replace(TINY, n_layers=1, d_model=96, n_heads=4, qkv_dim=64, mlp_dim=160)


def fresh(style, **kwargs):
    torch.manual_seed(0)
    return build(
        Facts(), {"name": "softmax"}, LARGE, protocol(style, length=500, vocab=300, **kwargs), 0
    )


def test_flax_initialisation():
    net = fresh(replace(OFFICIAL, positions=Positions.learned))
    state = net.state_dict()
    E, qkv, F_ = LARGE.d_model, LARGE.qkv_dim, LARGE.mlp_dim

    def uniform(name, weight, fan_in, fan_out):
        bound = math.sqrt(6 / (fan_in + fan_out))
        assert weight.abs().max() <= bound, name
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.03), name

    block = "encoder.blocks.0"
    stacked = state[f"{block}.attention.qkv.weight"]
    assert stacked.shape == (3 * qkv, E)
    for part in stacked.chunk(3):  # each on its own: stacking must not shrink the range
        uniform("qkv", part, E, qkv)
    uniform("out", state[f"{block}.attention.out.weight"], qkv, E)
    uniform("up", state[f"{block}.mlp.0.weight"], E, F_)
    uniform("down", state[f"{block}.mlp.3.weight"], F_, E)
    for name in (f"{block}.mlp.0.bias", f"{block}.mlp.3.bias"):
        assert state[name].std().item() == pytest.approx(1e-6, rel=0.2)
    for name, fan_in in (("head.0.weight", E), ("head.2.weight", F_)):
        scaled = state[name] * math.sqrt(fan_in)
        assert scaled.std().item() == pytest.approx(1, rel=0.07)
        assert scaled.abs().max() <= 2 / 0.8796 + 1e-3  # a normal cut off at two of its own sigmas
        assert scaled.abs().max() > 2
    assert not state["head.0.bias"].any()
    assert not state["head.2.bias"].any()
    assert not state["embedding.cls"].any()
    assert state["embedding.token.weight"].std().item() == pytest.approx(1.0, rel=0.03)
    assert state["embedding.position.table"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["embedding.position.table"].shape == (501, E)
    assert not any(k.endswith(("qkv.bias", "out.bias")) for k in state)


def test_torch_initialisation():
    state = fresh(SKYFORMER).state_dict()
    for name, weight in state.items():
        if name.endswith("weight") and "norm" not in name and "embedding" not in name:
            bound = 1 / math.sqrt(weight.shape[1])
            for tensor in (weight, state[name.replace("weight", "bias")]):
                assert tensor.abs().max() <= bound, name
            assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.06), name
            assert state[name.replace("weight", "bias")].any(), name
    assert state["embedding.token.weight"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["embedding.token.weight"][0].any()  # the padding row is drawn like the others
    assert state["embedding.position.table"].std().item() == pytest.approx(0.02, rel=0.03)
    assert state["encoder.norm.weight"].eq(1).all()


def test_the_callers_seed_decides_all_weights():
    one, two, three = (network(seed=s).state_dict() for s in (1, 1, 2))
    assert all(torch.equal(one[k], two[k]) for k in one if torch.is_tensor(one[k]))
    assert not torch.equal(one["head.0.weight"], three["head.0.weight"])


def test_layers_have_random_streams_of_their_own():
    net = network(seed=7)
    assert [b.attention.attention.slot.seed for b in net.encoder.blocks] == [7, 8]


# ---------------------------------------------------------------- dropout


def test_dropout_is_where_both_lineages_have_it():
    model = replace(TINY, n_layers=1, dropout=0.25, attention_dropout=0.125)
    net = network(model=model)
    places = {name: m.p for name, m in net.named_modules() if isinstance(m, nn.Dropout)}
    ours = {k: p for k, p in places.items() if ".attention.attention" not in k}
    assert ours == {
        "embedding.dropout": 0.25,
        "encoder.blocks.0.dropout": 0.25,
        "encoder.blocks.0.mlp.2": 0.25,
        "encoder.blocks.0.mlp.4": 0.25,
    }
    assert net.encoder.blocks[0].attention.attention.slot.dropout == 0.125


def test_dropout_acts_in_training_only():
    net = network(model=replace(TINY, dropout=0.5))
    ids, mask = example([24, 9])
    assert torch.equal(net(ids, mask), net(ids, mask))
    net.train()
    assert not torch.equal(net(ids, mask), net(ids, mask))


# ---------------------------------------------------------------- padding, CLS, pooling, heads


@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
@pytest.mark.parametrize("style", [CLEAN, replace(OFFICIAL, cls_mask=ClsMask.real)])
def test_longer_padding_changes_no_logit(attention, style):
    net = shake(network(style, attention=attention, length=64))
    ids, mask = example([20, 9, 1], 20)
    longer, garbage = (F.pad(ids, (0, 44), value=v) for v in (0, 7))
    longer_mask = F.pad(mask, (0, 44))
    expected = net(ids, mask)
    for padded in (longer, garbage):
        torch.testing.assert_close(net(padded, longer_mask), expected, rtol=0, atol=1e-10)


def test_longer_padding_dilutes_the_plain_mean():
    net = shake(network(replace(SKYFORMER), length=48))
    ids, mask = example([20, 9], 20)
    before = net(ids, mask)
    after = net(F.pad(ids, (0, 20)), F.pad(mask, (0, 20)))
    assert (before - after).abs().max() > 1e-3


def test_an_all_padded_example_pools_to_zero():
    net = shake(network())
    ids, mask = example([24, 0])
    logits = net(ids, mask)
    logits.sum().backward()
    state = net.state_dict()
    at_zero = affine(state["head.0.bias"].relu(), state, "head.2")
    torch.testing.assert_close(logits[1], at_zero, rtol=0, atol=1e-12)
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_poolings():
    x = torch.tensor([[[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]]])
    mask = torch.tensor([[True, False, True]])
    assert POOLINGS[Pooling.masked_mean](x, mask).tolist() == [[3.0, 1.5]]
    one = torch.tensor([[False, True, False]])
    assert POOLINGS[Pooling.masked_mean](x, one).tolist() == [[3.0, 6.0]]
    assert POOLINGS[Pooling.masked_mean](x, None).tolist() == [[3.0, 3.0]]
    assert POOLINGS[Pooling.masked_mean](x, torch.zeros_like(mask)).tolist() == [[0.0, 0.0]]
    assert POOLINGS[Pooling.mean](x, mask).tolist() == [[3.0, 3.0]]
    assert POOLINGS[Pooling.cls](x, mask).tolist() == [[1.0, 2.0]]
    assert POOLINGS[Pooling.first](x, mask).tolist() == [[1.0, 2.0]]
    assert set(POOLINGS) == set(Pooling)


@pytest.mark.parametrize("positions", [Positions.learned, Positions.fixed])
@pytest.mark.parametrize(
    ("rule", "expected"), [(ClsMask.real, [True, True]), (ClsMask.first, [False, True])]
)
def test_cls_takes_position_0_and_a_place_in_the_mask(positions, rule, expected):
    style = replace(OFFICIAL, positions=positions, cls_mask=rule)
    embedding = Embedding(11, 12, 5, style, 0.0)
    with torch.no_grad():
        embedding.cls.fill_(3.0)
    ids = torch.tensor([[0, 4, 5, 0, 6], [4, 4, 5, 0, 6]])
    x, mask = embedding(ids, ids > 0)
    assert x.shape == (2, 6, 12)
    assert embedding.position.table.shape == (6, 12)
    torch.testing.assert_close(x[:, 0], (3 + embedding.position.table[0]).expand(2, -1))
    torch.testing.assert_close(x[:, 1:], embedding.token(ids) + embedding.position.table[1:])
    assert mask[:, 0].tolist() == expected
    assert torch.equal(mask[:, 1:], ids > 0)
    assert embedding(ids, None)[1] is None


@pytest.mark.parametrize("pooling", [p for p in Pooling if p is not Pooling.cls])
def test_no_cls_unless_it_is_pooled(pooling):
    embedding = Embedding(11, 12, 5, replace(CLEAN, pooling=pooling), 0.0)
    assert "cls" not in dict(embedding.named_parameters())
    assert embedding(torch.ones(2, 5, dtype=torch.long), None)[0].shape == (2, 5, 12)


@pytest.mark.parametrize("width", [8, 7])
def test_fixed_positions_interleave(width):
    style = replace(CLEAN, positions=Positions.fixed)
    embedding = Embedding(11, width, 4100, style, 0.0)
    table = embedding.position.table
    assert table.dtype == torch.float32
    rows = torch.tensor([0, 1, 77, 4099])
    torch.testing.assert_close(
        table[rows].double(), sinusoids(4100, width)[rows], rtol=0, atol=1e-7
    )
    assert table[0].tolist() == [0, 1] * (width // 2) + [0] * (width % 2)
    assert list(dict(embedding.named_parameters())) == ["token.weight"]
    assert "position.table" not in embedding.state_dict()


def test_without_positions_order_is_invisible():
    net = shake(network(replace(CLEAN, positions=Positions.none)))
    ids, mask = example([24, 24])
    order = torch.randperm(24)
    torch.testing.assert_close(net(ids, mask), net(ids[:, order], mask), rtol=0, atol=1e-10)


def test_masking_the_output_zeroes_padding_only_there():
    ids, mask = example([24, 9])
    outputs = {}
    for mask_output in (True, False):
        net = shake(network(replace(SKYFORMER, mask_output=mask_output)))
        outputs[mask_output] = net.encoder(*net.embedding(ids, mask))
    assert not outputs[True][1, 9:].any()
    assert outputs[False][1, 9:].any(-1).all()
    assert torch.equal(outputs[True][1, :9], outputs[False][1, :9])


@pytest.mark.parametrize("interaction", list(Interaction))
@pytest.mark.parametrize("layers", [1, 2])
def test_dual_head_shapes(interaction, layers):
    head = DualClassifier(6, 10, 2, Init.torch, interaction=interaction, hidden_layers=layers)
    widths = [tuple(m.weight.shape) for m in head.modules() if isinstance(m, nn.Linear)]
    features = 12 if interaction is Interaction.concat else 24
    assert widths == (
        [(10, features), (2, 10)] if layers == 1 else [(10, features), (5, 10), (2, 5)]
    )
    assert head(torch.randn(4, 2, 6)).shape == (4, 2)


def test_both_texts_share_the_encoder_and_keep_their_masks():
    net = shake(network(facts=Facts(2, dual=True)))
    (a, ma), (b, mb) = example([24, 9]), example([3, 24], seed=1)
    ids, masks = torch.stack([a, b], 1), torch.stack([ma, mb], 1)
    x, mask = net.embedding(a, ma)
    pooled_a = net.pool(net.encoder(x, mask), mask)
    x, mask = net.embedding(b, mb)
    pooled_b = net.pool(net.encoder(x, mask), mask)
    expected = net.head(torch.stack([pooled_a, pooled_b], 1))
    torch.testing.assert_close(net(ids, masks), expected, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- the slot


@pytest.mark.parametrize("name", luna.names())
@pytest.mark.parametrize("masked", [True, False])
def test_every_attention_trains_inside_the_backbone(name, masked):
    torch.manual_seed(0)
    net = build(Facts(), {"name": name, "dwc": "none"}, TINY, protocol(), 0)
    ids, mask = example([24, 9, 1])
    logits = net(ids, mask if masked else None)
    assert logits.shape == (3, 3)
    F.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()
    grads = {n: p.grad for n, p in net.named_parameters()}
    assert all(g.isfinite().all() for g in grads.values() if g is not None)
    for layer in range(2):
        value = grads[f"encoder.blocks.{layer}.attention.qkv.weight"].chunk(3)[2]
        assert value.any(), "the loss does not depend on the values"


@pytest.mark.parametrize("name", luna.names())
@pytest.mark.parametrize("profile", ["published", "official"])
def test_every_attention_trains_under_the_quirks(name, profile):
    torch.manual_seed(0)
    style = OFFICIAL if profile == "official" else SKYFORMER
    net = build(Facts(), {"name": name, "dwc": "none"}, TINY, protocol(style, profile=profile), 0)
    ids, mask = example([24, 9, 13])
    F.cross_entropy(net(ids, mask), torch.tensor([0, 1, 2])).backward()
    assert all(p.grad.isfinite().all() for p in net.parameters() if p.grad is not None)


def test_layers_are_tied_to_the_first(monkeypatch):
    seen = []
    monkeypatch.setattr(luna.Attention, "tie", lambda self, first: seen.append((self, first)))
    net = network()
    layers = [block.attention.attention for block in net.encoder.blocks]
    assert seen == [(layer, layers[0]) for layer in layers]


def test_hidden_states_go_to_the_methods_that_need_them(monkeypatch):
    given = []
    softmax = luna.get("softmax")
    forward = softmax.forward
    monkeypatch.setattr(
        softmax, "forward", lambda self, *a: given.append(a[4]) or forward(self, *a)
    )
    net = network(model=replace(TINY, n_layers=1))
    ids, mask = example([24, 9])
    net(ids, mask)
    assert given == [None]
    monkeypatch.setattr(softmax, "needs_x", True)
    net(ids, mask)
    block = net.encoder.blocks[0]
    assert torch.equal(given[1], block.norm1(net.embedding(ids, mask)[0]))


def test_options_reach_the_method():
    net = network(attention={"name": "luna", "dwc": "none", "M": 3, "L": 5})
    assert net.encoder.blocks[1].attention.attention.feature_dim == 15


@pytest.mark.parametrize(
    ("kind", "grid"), [("conv1d", None), ("conv2d", (4, 6)), ("conv1d_long", None)]
)
@pytest.mark.parametrize("pooling", [Pooling.masked_mean, Pooling.cls])
def test_local_branch_adds_a_convolution_of_the_values(kind, grid, pooling):
    style, facts = replace(CLEAN, pooling=pooling), Facts(grid=grid)
    plain = network(style, facts=facts)
    net = network(style, facts=facts, attention={"name": "softmax", "dwc": kind})
    extra = {k: v for k, v in net.named_parameters() if ".local." in k}
    assert extra
    assert count(net) == count(plain) + sum(v.numel() for v in extra.values())
    net.load_state_dict(plain.state_dict(), strict=False)

    layer, bare = net.encoder.blocks[0].attention, plain.encoder.blocks[0].attention
    x, mask = net.embedding(*example([24, 9]))
    v = layer.qkv(x)[..., 24:].unflatten(-1, (3, 4)).transpose(1, 2)  # (B, H, n, d)
    conv = layer.local(v, mask).transpose(1, 2).flatten(2)
    assert conv.abs().max() > 0
    torch.testing.assert_close(
        layer(x, mask), bare(x, mask) + conv @ layer.out.weight.T, rtol=0, atol=1e-10
    )
    if pooling is Pooling.cls:
        assert not conv[:, 0].any()


def test_hidden_states_need_the_width_of_the_heads():
    class NeedsX(luna.get("softmax")):
        needs_x = True

    class Place:
        max_len, profile, seed, grid, cls = 24, "strict", 0, None, False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(luna, "build", lambda name, **slot: NeedsX(luna.Slot(**slot)))
        AttentionLayer({"name": "softmax"}, TINY, CLEAN, Place)
        with pytest.raises(UserError, match=r"model.qkv_dim=6 and model.d_model=12"):
            AttentionLayer({"name": "softmax"}, NARROW, CLEAN, Place)


# ---------------------------------------------------------------- mistakes


def test_indivisible_heads():
    with pytest.raises(UserError, match=r"n_heads=5 does not divide model.qkv_dim=12"):
        network(model=replace(TINY, n_heads=5))


def test_too_few_embedding_rows():
    with pytest.raises(UserError, match=r"12 token ids.*protocol.data.vocab=12"):
        network(facts=Facts(vocab=12))


def test_too_long_an_example():
    net = network(replace(CLEAN, pooling=Pooling.cls), length=8)
    net(torch.ones(2, 8, dtype=torch.long))
    with pytest.raises(UserError, match=r"9 tokens, the network was built for 8"):
        net(torch.ones(2, 9, dtype=torch.long))


def test_hidden_layers_of_the_dual_head():
    with pytest.raises(UserError, match="dual_hidden_layers=3"):
        network(replace(CLEAN, dual_hidden_layers=3))


def test_unknown_option():
    with pytest.raises(luna.LunaError, match="no option 'N'"):
        network(attention={"name": "luna", "N": 3})


# ---------------------------------------------------------------- how it runs


@pytest.mark.parametrize("dual", [False, True])
@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
def test_runs_on_the_meta_device(attention, dual):
    with torch.device("meta"):
        net = build(Facts(dual=dual), {"name": attention}, TINY, protocol(OFFICIAL), 0)
        shape = (2, 2, 24) if dual else (2, 24)
        logits = net(torch.zeros(shape, dtype=torch.long), torch.ones(shape, dtype=torch.bool))
    assert logits.device.type == "meta"
    assert logits.shape == (2, 3)


@pytest.mark.parametrize("attention", ["softmax", "linear", "luna"])
def test_logits_stay_float32_under_autocast(attention):
    net = shake(network(attention=attention)).float()
    ids, mask = example([24, 9])
    exact = net(ids, mask)
    inside = []
    net.encoder.blocks[0].mlp[0].register_forward_hook(lambda m, i, out: inside.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = net(ids, mask)
    assert inside == [torch.bfloat16]
    assert logits.dtype == torch.float32
    assert (logits - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("style", [CLEAN, OFFICIAL, SKYFORMER])
def test_compiles_in_one_graph(style, masked):
    net = shake(network(style, attention="linear"))
    ids, mask = example([24, 9])
    mask = mask if masked else None
    torch._dynamo.reset()  # what other tests compiled counts towards its limit of recompilations
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids, mask), net(ids, mask), rtol=0, atol=1e-12)
