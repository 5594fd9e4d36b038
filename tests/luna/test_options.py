"""Options that a method refuses, each by a sentence that says what to do."""

from __future__ import annotations

from typing import Any

import pytest

import luna
from luna import LunaError

from . import kit

PUBLISHED, OFFICIAL, CAUSAL = {"profile": "published"}, {"profile": "official"}, {"causal": True}

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("agent", {"agents": 0}, "agents must be at least 1"),
    ("based", {"d_out": 0}, "d_out must be at least 1"),
    ("bigbird", {"block": 0}, "bigbird.block must be at least 1"),
    ("bigbird", {"random_blocks": -1}, "bigbird.random_blocks must be at least 0"),
    ("conv", {"kernel": 4}, "conv.kernel must be odd and at least 1, got 4"),
    ("cosformer", CAUSAL | PUBLISHED, "constant horizon"),
    ("ema", {"dims": 0}, "dims must be at least 1"),
    ("ema", CAUSAL | {"lag0": "twice"}, "has no causal form: use lag0='once'"),
    ("fastfood", {"blocks": 0}, "blocks must be at least 1"),
    ("fastfood", {"smoothing": -1.0}, "smoothing must be at least 0"),
    ("fastfood", {"head_dim": 48}, "a power of 2, for its Hadamard matrix; got head_dim=48"),
    ("deltanet", {"gates": "q"}, "deltanet.gates must be one of 'k', 'x'"),
    ("deltanet", {"steps": 0}, "deltanet.steps must be at least 1"),
    ("deltanet", {"features": "elu"}, "features must be one of 'none', 'luna', 'rff'"),
    ("deltanet", {"M": 4}, "deltanet.features='none' has no M: leave it out"),
    ("deltanet", {"features": "luna", "M": 0}, "deltanet.M must be at least 1, got 0"),
    ("flowformer", CAUSAL | PUBLISHED, "no causal form under profile=published"),
    ("gated_deltanet", {"gates": "q"}, "gated_deltanet.gates must be one of 'k', 'x'"),
    ("hydra", {"gates": "v"}, "hydra.gates must be one of 'k', 'x'"),
    ("gla", {"rank": 0}, "rank must be at least 1"),
    ("gla", {"decay": "none"}, "gla.decay must be one of 'vector', 'scalar', 'fixed'"),
    ("gla", {"keys": "complement", "decay": "fixed"}, "needs decay='vector', not 'fixed'"),
    ("hedgehog", {"d_out": 0}, "d_out must be at least 1"),
    ("hedgehog", {"d_out": 16}, "needs d_out = head_dim = 32"),
    ("hedgehog", {"normalisation": "l2"}, "normalisation must be one of"),
    ("hedgehog", {"init": "xavier"}, "init must be one of"),
    ("informer", {"budget": 0}, "informer.budget must be at least 1"),
    ("kda", {"rank": 0}, "rank must be at least 1"),
    ("kda", {"gates": "q"}, "kda.gates must be one of 'k', 'x'"),
    ("klt", {"m": 0}, "m must be at least 1"),
    ("klt", {"kind": "generator"}, "klt.kind must be one of 'gmm_prf', 'gmm_rks'"),
    ("klt", {"smoothing": -1.0}, "smoothing must be at least 0"),
    ("linear", {"eps": 0.0}, "greater than 0, got 0"),
    ("linformer", {"k": 0}, "at least 1"),
    ("linformer", {"init_std": 0.0}, "greater than 0"),
    ("lion", {"decay": "free"}, "lion.decay must be one of 'selective', 'fixed', 'none'"),
    ("lion", {"gates": "v"}, "lion.gates must be one of 'k', 'x'"),
    ("local", {"block": 0}, "local.block must be at least 1"),
    ("local", {"look_back": -1}, "must be at least 0"),
    ("local", {"look_ahead": 1} | OFFICIAL, "must be 0 under profile official"),
    ("longconv", {"threshold": -1.0}, "longconv.threshold must be at least 0, got -1.0"),
    ("longconv", {"kernel_dropout": 1.0}, "longconv.kernel_dropout must be in [0, 1), got 1.0"),
    ("longformer", {"left": -1}, "must be at least 0"),
    ("longformer", {"global_tokens": [128]}, "positions from 0 to 127"),
    ("lotformer", {"R": 0}, "R must be at least 1"),
    ("lotformer", {"half_steps": 0}, "half_steps must be at least 1"),
    ("lotformer", {"eps": 0.0}, "eps must be greater than 0"),
    ("lru", {"state": 0}, "state must be at least 1"),
    ("lru", {"r_max": 1.1}, "which must rise within 0 and 1, got r_min=0.0 and r_max=1.1"),
    ("lru", {"r_min": 0.9, "r_max": 0.9}, "which must rise within 0 and 1"),
    ("lru", {"phase": 7.0}, "lru.phase must be greater than 0 and at most 2 pi, got 7.0"),
    ("luna", {"M": 0}, "luna.M must be at least 1, got 0"),
    ("luna", {"hidden": 0}, "luna.hidden must be at least 1"),
    ("luna", {"chunk": 0}, "luna.chunk must be at least 1"),
    ("luna", {"envelope_hidden": -1, "envelope": "scalar"}, "envelope_hidden must be at least 0"),
    ("luna", {"envelope": "vector", "envelope_squash": "softplus"}, "must be sigmoid"),
    ("luna", {"kernel": "rff", "M": 3, "L": 3}, "M L must be even, got 9"),
    ("luna", {"kernel": "rff", "envelope": "scalar"}, "need kernel='learned', not 'rff'"),
    ("luna", {"kernel": "rff", "psi": "frozen"}, "never trains its frequencies"),
    ("luna", {"phases": True}, "luna.phases=true needs kernel='rff', not 'learned'"),
    ("luna", {"kernel": "bank_coef", "ch_rms": True}, "need kernel='learned', not 'bank_coef'"),
    ("luna", {"ch_rms": True} | CAUSAL, "sees the future"),
    ("luna", {"ch_rms": "shared", "tie_qk": False}, "needs tie_qk=true"),
    ("luna", {"evaluate": "piecewise", "activation": "gelu"}, "a piecewise linear activation"),
    ("luna", {"activation": "swish"}, "luna.activation must be one of 'relu', 'leaky_relu', 'gelu"),
    ("luna", {"nonneg": "yes"}, "luna.nonneg must be bool or one of 'softplus', 'exp', got 'yes'"),
    ("luna", {"hiden": 3}, "no option 'hiden'; did you mean hidden"),
    ("luna2021", {"packed": 0}, "packed must be at least 1"),
    ("mamba2", {"state": 0}, "state must be at least 1"),
    ("mamba2", {"n_heads": 3}, "mamba2 is expand * d_model = 128 wide, and 3 heads do not divide"),
    ("mesa", {"features": "rff", "M": 3, "L": 3}, "M L must be even, got 9"),
    ("mesa", {"features": "rff", "frozen": True}, "mesa.features='rff' has no frozen"),
    ("mega", {"chunk": 0}, "chunk must be at least 1"),
    ("mega", {"weights": "relu2"}, "mega.weights must be one of 'softmax', 'laplace'"),
    ("mega", CAUSAL | {"lag0": "twice"}, "mega.lag0='twice' counts a token in both directions"),
    ("mlstm", {"gates": "q"}, "mlstm.gates must be one of 'k', 'x'"),
    ("nystrom", {"landmarks": 0}, "at least 1"),
    ("nystrom", {"conv_kernel": 4}, "odd"),
    ("nystrom", {"inverse_steps": 0}, "inverse_steps must be at least 1"),
    ("performer", {"m": 0}, "m must be at least 1"),
    ("performer", {"eps": -1e-6}, "eps must be at least 0"),
    ("performer", {"redraw": -1}, "redraw must be at least 0"),
    ("performer", CAUSAL | PUBLISHED, "profile=strict"),
    ("performer_relu", {"eps": -1.0}, "eps must be at least 0"),
    ("polaformer", {"alpha": -1.0}, "alpha must be at least 0"),
    ("rebased", {"d_out": 1}, "d_out must be at least 2"),
    ("reformer", {"chunk": 0}, "reformer.chunk must be at least 1"),
    ("reformer", {"rounds": 0}, "reformer.rounds must be at least 1"),
    ("rff", {"P": 0}, "P must be at least 1"),
    ("rff", {"eps": 0.0}, "eps must be greater than 0"),
    ("s4d", {"state": 0}, "s4d.state must be even and at least 2, got 0"),
    ("s4d", {"state": 7}, "s4d.state must be even and at least 2, got 7"),
    ("s4d", {"init": "hippo"}, "s4d.init must be one of 'lin', 'inv', 'legs', 'real'"),
    ("skyformer", {"landmarks": 0}, "even and at least 2"),
    ("skyformer", {"landmarks": 7}, "even and at least 2"),
    ("skyformer", {"ridge": -0.1}, "at least 0"),
    ("skyformer", {"inverse_steps": 0}, "inverse_steps must be at least 1"),
    ("softmax", CAUSAL | PUBLISHED, "no causal form under profile=published"),
    ("softmax", CAUSAL | OFFICIAL, "no causal form under profile=official"),
    ("synthesizer", {"form": "dot"}, "not dot alone"),
    ("synthesizer", {"form": "random+random"}, "different parts"),
    ("synthesizer", {"form": "banded"}, "random, factorized_random, dense, factorized_dense, dot"),
    ("synthesizer", {"rank": 0}, "rank must be at least 1"),
    ("t2r", {"r": 0}, "r must be at least 1"),
    ("transnormer", {"block": 0}, "transnormer.block must be at least 1"),
    ("t2r", {"eps": 0.0}, "eps must be greater than 0"),
]


REFUSED_SLOTS = [
    ("softmax", {"causal": "no"}, "causal must be bool, got 'no'"),
    ("softmax", {"dropout": 1.0}, "dropout=1.0 is out of range"),
    ("softmax", {"head_dim": 0}, "head_dim must be greater than 0"),
    ("performer", {"seed": None}, "seed must be int"),
]


def build(name: str, **options: Any) -> luna.Attention | luna.Mixer:
    if luna.registry.mixes(name):
        return luna.mixer(name, **{"d_model": 64, "n_heads": 2, "max_len": 64, **options})
    return kit.build(name, **options)


@pytest.mark.parametrize(("name", "options", "message"), REFUSED + REFUSED_SLOTS)
def test_refused_options_are_named(name: str, options: dict[str, Any], message: str):
    with pytest.raises(LunaError) as refusal:
        build(name, **options)
    assert message in str(refusal.value)


OPTIONS = [(name, option) for name in luna.names() for option in luna.options(name)]


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_refuses_what_is_of_no_type_of_its_own(name: str, option: str):
    """Of every method, without a line here: ranges, which only a method knows, are above."""
    with pytest.raises(LunaError, match=rf"{name}\.{option} must be"):
        build(name, **{option: object()})
