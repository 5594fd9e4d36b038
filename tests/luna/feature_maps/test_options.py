"""LUNA's options: stated once, repeated for the command line to the word."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import luna
from luna.feature_maps.options import LunaOptions

YAML = Path(__file__).parents[3] / "configs" / "attention" / "luna.yaml"


def test_the_config_repeats_every_comment():
    """Its keys and values are compared with the class in tests/lra/settings/test_compose.py."""
    stated = dict(re.findall(r"^    (\w+): .*  # (.*)$", inspect.getsource(LunaOptions), re.M))
    assert list(stated) == list(luna.options("luna"))
    repeated = dict(re.findall(r"^(\w+): .*  # (.*)$", YAML.read_text(encoding="utf-8"), re.M))
    assert {key: repeated[key][: len(text)] for key, text in stated.items()} == stated


def test_the_defaults_are_the_listings():
    o = LunaOptions()
    assert (o.M, o.L, o.hidden, o.activation, o.nonneg) == (8, 8, 64, "relu", True)
    assert (o.shared_channels, o.tie_qk, o.envelope, o.kernel) == (False, True, "none", "learned")
    assert (o.ch_rms, o.chunk) == (False, 1_000_000)
