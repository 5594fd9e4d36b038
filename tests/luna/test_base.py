"""The registry (luna/registry.py) and the contract's own machinery (luna/contract.py)."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import luna
from luna import Attention, LunaError, Paper, Slot
from luna.base import _classes

SIZES = {"n_heads": 2, "head_dim": 8, "max_len": 32}
HEAVY = (
    "pytorch_lightning",
    "lightning",
    "hydra",
    "omegaconf",
    "tensorflow_datasets",
    "tensorflow",
    "wandb",
    "transformers",
    "torchvision",
    "matplotlib",
    "numba",
)


@pytest.fixture(autouse=True)
def _own_registry() -> Iterator[None]:
    """What a test registers is gone afterwards. The methods are loaded before: a module is imported
    once, so one that only a test has seen would be lost."""
    for name in luna.names():
        luna.get(name)
    kept = dict(_classes)
    yield
    _classes.clear()
    _classes.update(kept)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A second folder of methods, searched like luna/attention; its modules are forgotten after."""
    from luna import attention

    monkeypatch.setattr(attention, "__path__", [*attention.__path__, str(tmp_path)])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("luna.attention."):
            del sys.modules[name]


def write(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text, encoding="utf-8")


MINIMAL = """
from luna.base import Attention, register

@register("{name}")
class Method(Attention):
    def attend(self, q, k, v, mask, x):
        return 2 * v
"""


# ---------------------------------------------------------------------- names


def test_importing_luna_costs_torch_alone():
    code = (
        f"import luna, sys; luna.names(); print([m for m in {HEAVY} if m in sys.modules]);"
        "luna.build('uniform', n_heads=1, head_dim=2, max_len=3);"
        "print([m for m in sys.modules if m.startswith('luna.attention.')])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines() == ["[]", "['luna.attention.uniform']"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sofmax", r"^unknown attention 'sofmax'; did you mean softmax\?$"),
        ("zzz", r"^unknown attention 'zzz'; known: .*linear.*luna.*softmax"),
        (
            "broken",
            r"'broken' .* from luna/attention/broken.py: ModuleNotFoundError: No module named",
        ),
        ("empty", r"empty.py holds no class decorated with @register\('empty'\)"),
    ],
)
def test_a_method_that_is_not_there(folder: Path, name: str, message: str):
    """A broken file is reported by its name, and the other methods go on."""
    write(folder, "broken", "import nowhere_to_be_found")
    write(folder, "empty", MINIMAL.format(name="another"))
    assert {"broken", "empty"} <= set(luna.names())
    with pytest.raises(LunaError, match=message):
        luna.build(name, **SIZES)
    assert luna.get("uniform").name == "uniform"


def test_a_name_is_taken_once():
    taken = r"'uniform' is already registered by luna\.attention\.uniform"
    with pytest.raises(LunaError, match=taken):
        luna.register("uniform")(type("Other", (Attention,), {}))


def test_a_package_outside_adds_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Through the entry-point group `luna.attention`, as an installed distribution declares it."""
    write(tmp_path, "plugged_in", MINIMAL.format(name="plugin"))
    info = tmp_path / "plugged_in-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[luna.attention]\nplugin = plugged_in:Method\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert "plugin" in luna.names()
    v = torch.ones(1, 2, 3, 8)
    assert torch.equal(luna.build("plugin", **SIZES)(v, v, v), 2 * v)
    monkeypatch.delitem(sys.modules, "plugged_in")


def test_a_package_outside_replaces_no_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Its runs would have the name and the code hash of ours."""
    write(tmp_path, "disguised", MINIMAL.format(name="linear"))
    info = tmp_path / "disguised-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: disguised\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[luna.attention]\nlinear = disguised:Method\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(luna.registry._classes, "linear", raising=False)
    importlib.invalidate_caches()
    message = "disguised.* names a method 'linear', as one of luna is named"
    with pytest.raises(LunaError, match=message):
        luna.get("linear")
    (info / "entry_points.txt").unlink()
    luna.registry._plugins.cache_clear()
    importlib.import_module("disguised")  # by itself, or as a class of a notebook
    with pytest.raises(LunaError, match=message):
        luna.get("linear")
    monkeypatch.delitem(sys.modules, "disguised")


# ---------------------------------------------------------------------- options


@pytest.fixture
def gadget() -> type[Attention]:
    @luna.register("gadget")
    class Gadget(Attention):
        def __init__(
            self,
            slot: Slot,
            *,
            width: int = 4,
            rate: float | None = None,
            kind: Literal["a", "b"] = "a",
            on: bool = False,
            free: Any = None,
            bands: tuple | list = (),
        ):
            super().__init__(slot)
            self.width = width

    return Gadget


def test_options_are_the_keyword_parameters(gadget: type[Attention]):
    assert list(luna.options("gadget")) == ["width", "rate", "kind", "on", "free", "bands"]
    assert luna.build("gadget", width=7, rate=1, kind="b", bands=[1], **SIZES).width == 7


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"widht": 4}, r"attention 'gadget' has no option 'widht'; did you mean width\?"),
        ({"zzz": 4}, r"no option 'zzz'; known: bands, free, kind, on, rate, width"),
        ({"width": 4.0}, r"gadget\.width must be int, got 4\.0"),
        ({"width": True}, r"gadget\.width must be int, got True"),
        ({"width": "4"}, r"gadget\.width must be int, got '4'"),
        ({"rate": "fast"}, r"gadget\.rate must be float or None, got 'fast'"),
        ({"kind": "c"}, r"gadget\.kind must be one of 'a', 'b', got 'c'"),
        ({"on": 1}, r"gadget\.on must be bool, got 1"),
        ({"bands": 3}, r"gadget\.bands must be tuple or list, got 3"),
    ],
)
def test_wrong_options_are_refused(gadget: type[Attention], option: dict, message: str):
    with pytest.raises(LunaError, match=message):
        luna.build("gadget", **option, **SIZES)


# ---------------------------------------------------------------------- what every method inherits


class Echo(Attention):
    """Returns q + v + 1 and records what it was given."""

    name = "echo"
    paper = Paper(title="-", year=2000, url="https://example.org")
    profiles = ("strict", "published")

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, x: Tensor | None
    ) -> Tensor:
        self.given = (q, k, v, x)
        self.autocast = torch.is_autocast_enabled("cpu")
        return q + v + 1


class HalfEcho(Echo):
    full_precision = False


def slot(**changes: Any) -> Slot:
    return Slot(**(SIZES | changes))


def masked() -> tuple[list[Tensor], Tensor]:
    tensors = [torch.randn(2, 2, 3, 8) for _ in range(3)]
    return tensors, torch.tensor([[True, False, True], [False, False, False]])


def test_strict_zeroes_padding_before_and_after():
    (q, k, v), mask = masked()
    x = torch.randn(2, 3, 16)
    echo = Echo(slot())
    out = echo(q, k, v, mask, x)
    padded = ~mask[:, None, :, None]
    for given in echo.given[:3]:
        assert (given.masked_select(padded) == 0).all()
    assert (echo.given[3][~mask] == 0).all()
    assert torch.equal(out, (q + v + 1).masked_fill(padded, 0))


def test_other_profiles_receive_the_raw_tensors():
    (q, k, v), mask = masked()
    echo = Echo(slot(profile="published"))
    assert torch.equal(echo(q, k, v, mask), q + v + 1)
    assert echo.given[0] is q


@pytest.mark.parametrize("cls", [Echo, HalfEcho])
def test_precision(cls: type[Echo]):
    tensors, mask = masked()
    echo = cls(slot())
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        with torch.autocast("cpu", torch.bfloat16):
            out = echo(*(t.to(dtype) for t in tensors), mask)
        assert out.dtype == dtype
        half = dtype in (torch.float16, torch.bfloat16)
        inside = torch.float32 if half and echo.traits().full_precision else dtype
        assert echo.given[0].dtype == inside
        assert echo.autocast is not echo.traits().full_precision


def test_what_a_method_lacks_is_refused():
    echo, (tensors, _) = Echo(slot()), masked()
    with pytest.raises(LunaError, match="'echo' has no causal form"):
        Echo(slot(causal=True))
    with pytest.raises(LunaError, match="'echo' cannot stream"):
        echo.step(None, *(t[:, :, 0] for t in tensors))
    with pytest.raises(LunaError, match="'echo' has no implied attention matrix"):
        echo.matrix(*tensors[:2])
    echo = Echo(slot())
    echo.needs_x = True  # as methods written before `declared` may say it
    with pytest.raises(LunaError, match="'echo' needs the hidden states"):
        echo(*tensors)


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_is_one_of_the_network(layer: int):
    message = rf"layer={layer} is out of range: it must be in \[0, n_layers\), and n_layers=2"
    with pytest.raises(LunaError, match=message):
        slot(layer=layer, n_layers=2)
    with pytest.raises(LunaError, match=message):
        luna.mixer("s4d", d_model=16, n_heads=2, max_len=8, layer=layer, n_layers=2)


MIXERS = ("ema", "longconv", "lru", "mamba2", "mega", "s4d")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MIXERS)
def test_a_mixer_in_full_precision_refuses_weights_in_half(name: str, dtype: torch.dtype):
    mixer = luna.mixer(name, d_model=16, n_heads=2, max_len=8, causal=True)
    x = torch.randn(2, 4, 16, dtype=dtype)
    assert mixer(x).dtype == dtype
    mixer.to(dtype)
    refused = rf"'{name}' .*: keep its weights in float32 and use autocast"
    with pytest.raises(LunaError, match=refused):
        mixer(x)
    with pytest.raises(LunaError, match=refused):
        mixer.step(None, x[:, 0])


@pytest.mark.parametrize("name", [*MIXERS, "kda"])
def test_a_state_of_other_sequences_is_refused(name: str):
    mixer = luna.mixer(name, d_model=16, n_heads=2, max_len=8, causal=True)
    state, _ = mixer.steps(None, torch.randn(2, 4, 16))
    mixer.steps(state, torch.randn(2, 1, 16))
    for B in (1, 3):
        with pytest.raises(LunaError, match="this state does not belong to these tokens"):
            mixer.steps(state, torch.randn(B, 1, 16))


def test_generator_is_seeded_saved_and_its_own():
    first, second = Echo(slot(seed=3)), Echo(slot(seed=3))

    def draw(echo: Echo) -> list[float]:
        return torch.rand(3, generator=echo.generator("cpu")).tolist()

    torch.manual_seed(1)
    drawn = draw(first)
    assert drawn == draw(second)
    assert drawn == torch.rand(3, generator=torch.Generator().manual_seed(3)).tolist()
    assert draw(Echo(slot(seed=4))) != drawn
    third = Echo(slot(seed=9))
    draw(third)
    third.load_state_dict(first.state_dict())
    saved_again = Echo(slot(seed=8))
    saved_again.load_state_dict(third.state_dict())  # untouched in between
    following = draw(first)
    assert draw(third) == draw(saved_again) == following != drawn
    third.load_state_dict(Echo(slot(seed=3)).state_dict())  # one that never drew
    assert draw(third) != following


def test_torch_is_imported_with_the_first_name_that_needs_it():
    code = (
        "import sys, luna, luna.around\n"
        "assert not hasattr(luna, 'nothing') and 'torch' not in sys.modules\n"
        "assert luna.registry.get('linear') is luna.get('linear') and 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
