"""What each method is called and how it is drawn, the same in figures, tables, pages and docs.

The colour says the family; LUNA has one of its own. Within a colour each method has its own marker.
The colours are Okabe and Ito's and Tol's; simulated for colour-blind readers, any two of them stay
at least 15 apart in Lab. Their green is left out: those readers take it for LUNA's magenta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lra.families import OTHER, family_of

LUNA, BLACK, BLUE, ORANGE, SKY, INDIGO, OLIVE, GREY, BROWN = (
    "#c2185b",
    "#1d2126",
    "#0072b2",
    "#e69f00",
    "#56b4e9",
    "#332288",
    "#8a6d00",
    "#7f7f7f",
    "#7b3f00",
)
COLOURS = {
    "softmax and sparse": BLACK,
    "low rank": OLIVE,
    "fixed kernels": BLUE,
    "learned kernels": ORANGE,
    "gates": INDIGO,
    "delta rule": INDIGO,
    "state space": SKY,
    "convolution": SKY,
    "control": GREY,
    OTHER.name: BROWN,
}
# Name and marker (matplotlib's) of each method; methods of one colour differ in their markers.
METHODS = {
    "softmax": ("Softmax", "o"),
    "bigbird": ("BigBird", "s"),
    "informer": ("Informer", "^"),
    "kernelized": ("Kernelized attention", "v"),
    "local": ("Local attention", "P"),
    "longformer": ("Longformer", "X"),
    "reformer": ("Reformer", "<"),
    "synthesizer": ("Synthesizer", ">"),
    "nystrom": ("Nyströmformer", "v"),
    "linformer": ("Linformer", "s"),
    "skyformer": ("Skyformer", "^"),
    "agent": ("Agent attention", "P"),
    "lotformer": ("LOTFormer", "X"),
    "luna2021": ("Luna (2021)", "p"),
    "linear": ("Linear attention", "s"),
    "performer": ("Performer", "P"),
    "performer_relu": ("Performer with relu", "X"),
    "cosformer": ("cosFormer", "^"),
    "rff": ("Random Fourier features", "v"),
    "based": ("Based", "o"),
    "flowformer": ("Flowformer", "<"),
    "mala": ("MALA", ">"),
    "transnormer": ("TransNormer", "p"),
    "luna": ("LUNA", "D"),
    "hedgehog": ("Hedgehog", "^"),
    "t2r": ("T2R", "v"),
    "rebased": ("ReBased", "o"),
    "polaformer": ("PolaFormer", "s"),
    "fastfood": ("FastFood features", "P"),
    "klt": ("KL-Transformer", "X"),
    "gla": ("GLA", "s"),
    "lion": ("LION", "^"),
    "deltanet": ("DeltaNet", "v"),
    "gated_deltanet": ("Gated DeltaNet", "P"),
    "s4d": ("S4D", "s"),
    "mamba2": ("Mamba-2", "^"),
    "hydra": ("Hydra", "v"),
    "lru": ("LRU", "P"),
    "mega": ("Mega", "X"),
    "ema": ("Moving averages (EMA)", "o"),
    "conv": ("Short convolution", "<"),
    "longconv": ("Long convolution", ">"),
    "uniform": ("Plain averaging", "o"),
}
OUTPUTS = {"False": "d", "exp": "p", "softplus": "h"}  # markers of LUNA by its output

# Settings and their values in words; of one that is not named here, `name value` is said.
WORDS = {
    "nonneg": {
        "True": "relu",
        "False": "signed",
        "exp": "exponential",
        "softplus": "softplus",
    },
    "normalise": {
        "sum": "divided by the sum",
        "abs": "divided by absolute weights",
        "rms": "normalised",
    },
    "share": {"head": "a map per head", "layer": "a map per layer"},
    "tie_qk": {"True": "one map for q and k", "False": "a map each for q and k"},
    "projections": {
        "learned": "learned projections",
        "frozen": "frozen projections",
        "gaussian": "projections from N(0, I)",
    },
    "psi": {"learned": "learned functions", "frozen": "frozen functions"},
    "envelope": {"none": "no envelope"},
    "positions": {"rope": "rotary"},
    "dwc": {"none": "no local branch", "conv1d": "local branch", "conv2d": "local branch"},
    "pretrain": {"none": "", "masked": "self-pretrained"},
    "gates": {"x": "gates of hidden states"},
    "init": {"legs": "LegS"},
    "output": {"glu": "gated output"},
    "joint": {"0.0": "", "1.0": "with stage 1's loss"},
}
NAMES = {
    "lr": "rate",
    "stage1_lr": "rate",
    "stage1_steps": "stage-1 steps",
    "phi_lr": "rate of maps",
    "hidden": "width",
    "dwc": "local branch",
}
PUBLISHED = {"luna": "as published"}  # said of a setting in which nothing is unusual
FIRST = {"nonneg": 0, "normalise": 1}  # settings that are told before others, by their place


@dataclass(frozen=True)
class Look:
    name: str  # in words: `LUNA, signed, normalised`
    family: str  # a name of lra/families.py
    colour: str  # #rrggbb
    marker: str  # of matplotlib


def look_of(attention: str, options: Mapping[str, Any] | None = None) -> Look:
    """Name and look of a method, or of one of its settings: `options` are those that its name shall
    tell, the unusual ones; where there are none, `LUNA as published`. A method of a plug-in keeps
    its name."""
    family = family_of(attention)
    name, marker = METHODS.get(attention, (attention, "o"))
    if attention == "luna" and options:
        marker = OUTPUTS.get(str(options.get("nonneg")), marker)
    return Look(
        name=_told(attention, name, options),
        family=family.name,
        colour=LUNA if attention == "luna" else COLOURS[family.name],
        marker=marker,
    )


def _told(attention: str, name: str, options: Mapping[str, Any] | None) -> str:
    if options is None:
        return name
    if words := in_words(options):
        return f"{name}, {words}"
    return " ".join(filter(None, (name, PUBLISHED.get(attention))))


def beside(word: str, name: str) -> str:
    """What is typed, with its name where that says more: `rff (Random Fourier features)`."""
    return word if name.lower() in ("", word.lower()) else f"{word} ({name})"


def in_words(options: Mapping[str, Any]) -> str:
    """`signed, normalised, 64 x 1`: outputs and divisor first, M and L together."""
    left = sorted(options.items(), key=lambda pair: FIRST.get(pair[0], len(FIRST)))
    words = [word_of(key, value) for key, value in left if key not in ("M", "L")]
    size = {key: options[key] for key in ("M", "L") if key in options}
    if len(size) == 2:
        words.append(f"{size['M']} x {size['L']}")
    else:
        words += [word_of(key, value) for key, value in size.items()]
    return ", ".join(filter(None, words))


def word_of(key: str, value: Any) -> str:
    """A setting with its value in words."""
    equals = " = " if len(key) == 1 else " "
    plain = f"{NAMES.get(key, key)}{equals}{value}"
    return WORDS.get(key, {}).get(str(value), plain)
