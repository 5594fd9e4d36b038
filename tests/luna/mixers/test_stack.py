"""A stack: the method of each layer, with its own options, and nothing of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import luna
from luna import LunaError
from luna.qkv import QKV

SIZES = {"d_model": 16, "n_heads": 2, "max_len": 32}
LAYERS = ["gated_deltanet", {"name": "gla", "norm": False, "short_conv": 3}, "s4d"]


def of_layer(layer: int, layers: list[Any] = LAYERS, **settings: Any) -> luna.Mixer:
    torch.manual_seed(0)
    return luna.mixer("stack", layers=layers, layer=layer, n_layers=7, **SIZES, **settings)


@pytest.mark.parametrize("layer", range(7))
def test_a_layer_is_the_mixer_of_its_entry(layer: int):
    """Behind its end the list begins anew; the same draws, the same parameters, the same result."""
    entry = LAYERS[layer % 3]
    options = {"name": entry} if isinstance(entry, str) else dict(entry)
    stacked = of_layer(layer)
    torch.manual_seed(0)
    alone = luna.mixer(options.pop("name"), layer=layer, n_layers=7, **SIZES, **options)
    assert type(stacked) is type(alone)
    x = torch.randn(2, 9, 16)
    assert torch.equal(stacked.eval()(x), alone.eval()(x))
    assert stacked.state_dict().keys() == alone.state_dict().keys()


def test_an_entry_has_options_and_surroundings_of_its_own():
    gla = of_layer(1)
    assert isinstance(gla, QKV)
    assert gla.name == "gla"
    assert gla.attention.norm is None
    assert gla.conv.kernel == 3
    assert of_layer(0).conv is None


def test_it_streams_as_its_layers_do():
    x, state, outs = torch.randn(2, 9, 16), None, []
    mixer = of_layer(3, causal=True)
    for token in x.unbind(1):
        state, out = mixer.step(state, token)
        outs.append(out)
    assert torch.allclose(torch.stack(outs, 1), mixer(x), atol=1e-5)
    with pytest.raises(LunaError, match="'linformer' has no causal form"):
        of_layer(0, ["linformer"], causal=True)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([], "must be a list of methods"),
        ([3], "must be a list of methods"),
        ([{"norm": False}], "must be a list of methods"),
        ("softmax", "stack.layers must be list, got 'softmax'"),
        (["stack"], "cannot have a stack among its layers"),
        (["softmx"], "unknown attention 'softmx'; did you mean softmax"),
        ([{"name": "gla", "nrm": False}], "'gla' has no option 'nrm'"),
        ([{"name": "gla", "causal": True}], "'gla' has no option 'causal'"),
    ],
    ids=str,
)
def test_what_is_no_stack_is_refused(layers: Any, words: str):
    with pytest.raises(LunaError, match=words.replace("[", "\\[")):
        of_layer(0, layers)


def test_what_stands_around_belongs_to_entries():
    with pytest.raises(LunaError, match=r"takes head_norm from its entries, such as layers="):
        of_layer(0, head_norm=True)
    with pytest.raises(LunaError, match=r"luna.mixer\('stack', ...\)"):
        luna.get("stack")(luna.Place(**SIZES))
