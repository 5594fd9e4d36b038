"""What each method is called and how it is drawn, the same in figures, tables, pages and docs.

A method's class states its name in words, its family, and perhaps a marker. The colour says the
family; LUNA has one of its own. Within a colour each method has its own marker.
The colours are Okabe and Ito's and Tol's; simulated for colour-blind readers, any two of them stay
at least 15 apart in Lab. Their green is left out: those readers take it for LUNA's magenta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lra import methods

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


@dataclass(frozen=True)
class Family:
    """Methods whose tokens meet in one way; each says in its class of which it is."""

    name: str
    says: str  # how its tokens meet, in one sentence
    colour: str  # #rrggbb


FAMILIES = (
    Family(
        "softmax and sparse",
        "Each pair of tokens has a weight of its own, or some pairs do: those of a window, of a "
        "hash, of a random graph.",
        BLACK,
    ),
    Family(
        "low rank",
        "Tokens meet through a few landmarks, agents or mixed rows.",
        OLIVE,
    ),
    Family(
        "fixed kernels",
        "Weights are φ(q)·φ(k), and a formula gives φ; random features are drawn and stay.",
        BLUE,
    ),
    Family(
        "learned kernels",
        "Weights are φ(q)·φ(k), and φ is learned.",
        ORANGE,
    ),
    Family(
        "gates",
        "A state is a matrix that each token adds to, and a gate makes it fade.",
        INDIGO,
    ),
    Family(
        "delta rule",
        "A state is a matrix in which each token replaces what stood under its key; in mesa the "
        "matrix is the best for all tokens.",
        INDIGO,
    ),
    Family(
        "state space",
        "A linear recurrence keeps a few numbers of each channel, and weights depend on distance; "
        "in hydra and mamba2 on the tokens too, in mega an attention follows.",
        SKY,
    ),
    Family(
        "convolution",
        "A weight for every distance, free of any recurrence; in conv, a control, for a few "
        "distances.",
        SKY,
    ),
    Family(
        "stack",
        "Each layer of a network has a method of its own.",
        OLIVE,
    ),
    Family(
        "control",
        "What a method has to be better than: the mean of all tokens, whatever they are.",
        GREY,
    ),
)
OTHER = Family(methods.OTHER, "Methods of plug-ins, and those that state no family.", BROWN)
_BY_NAME = {family.name: family for family in (*FAMILIES, OTHER)}
MARKERS = ("o", "s", "^", "v", "P", "X", "<", ">", "p", "D", "h", "*", "d", "8")  # of matplotlib
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
    "negative": {"True": "negative eigenvalues", "False": "no negative eigenvalues"},
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
FIRST = {"nonneg": 0, "normalise": 1}  # settings that a name has before others, by their place


@dataclass(frozen=True)
class Look:
    name: str  # in words: `LUNA, signed, normalised`
    family: str
    colour: str  # #rrggbb
    marker: str  # of matplotlib


def look_of(attention: str, options: Mapping[str, Any] | None = None) -> Look:
    """Name and look of a method, or of one of its settings: `options` are those that its name shall
    tell, the unusual ones; where there are none, `LUNA as published`. A method that has no title
    keeps its name."""
    title, marker = methods.said_of(attention).title, marker_of(attention)
    if attention == "luna" and options:
        marker = OUTPUTS.get(str(options.get("nonneg")), marker)
    return Look(
        name=_named(attention, title, options),
        family=family_of(attention).name,
        colour=colour_of(attention),
        marker=marker,
    )


def _named(attention: str, name: str, options: Mapping[str, Any] | None) -> str:
    if options is None:
        return name
    if attention == "stack" and "layers" in options:
        layers = str(options["layers"])  # 3*gla+softmax, which tables spell so
        name = layers.replace("*", " × ").replace("+", " + ").replace("(", " (").replace(";", ", ")
        options = {key: value for key, value in options.items() if key != "layers"}
    if words := in_words(options):
        return f"{name}, {words}"
    return " ".join(filter(None, (name, PUBLISHED.get(attention))))


def family_of(attention: str) -> Family:
    return family_named(methods.said_of(attention).family)


def family_named(name: str) -> Family:
    return _BY_NAME.get(name, OTHER)


def members(family: Family) -> list[str]:
    """Our methods of a family."""
    return [name for name in sorted(methods.kept()) if family_of(name) is family]


def colour_of(attention: str) -> str:
    return LUNA if attention == "luna" else family_of(attention).colour


def marker_of(attention: str) -> str:
    """The marker that a method states; without one, the next that no other of its colour has."""
    if stated := methods.said_of(attention).marker:
        return stated
    colour = colour_of(attention)
    others = {name: methods.said_of(name).marker for name in methods.kept()}
    others = {name: marker for name, marker in others.items() if colour_of(name) == colour}
    free = [marker for marker in MARKERS if marker not in others.values()] or [*MARKERS]
    waiting = sorted(name for name, marker in others.items() if not marker)
    waiting += [attention] * (attention not in waiting)  # behind ours, whose markers stay
    return free[waiting.index(attention) % len(free)]


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
