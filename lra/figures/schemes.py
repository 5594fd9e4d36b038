"""A picture in the colours of a dark page, made from the same picture in those of a light one: the
colours of methods have dark ones that are chosen, every other shade changes its lightness and keeps
its hue. Photographs, given as red, green and blue, stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lra.looks import BLACK, BLUE, BROWN, GREY, INDIGO, LUNA, OLIVE, ORANGE, SKY

BAND = "#f3d9a8"  # of a range that stands behind points
PAPER, BRIGHT = "#0d1117", "#e6edf3"  # of a dark page: its ground and its letters
# As far from each other as those of the light scheme, for every reader, and clear on PAPER.
DARK = {
    LUNA: "#ff6fa0",
    BLACK: BRIGHT,
    BLUE: "#4780e4",
    ORANGE: "#e89722",
    SKY: "#8fdcff",
    INDIGO: "#ad9ffc",
    OLIVE: "#c7d065",
    GREY: "#747474",
    BROWN: "#b5683a",
    BAND: "#6b521d",
    "#262626": BRIGHT,  # of letters, notes and what stands back: style.INK, NOTE and OTHERS
    "#666666": "#9da7b3",
    "#b4b4b4": "#59616b",
    "#ffffff": PAPER,
}
MIDDLE = 0.75  # below 1 shades between the ends become brighter
Change = Callable[[Any], Any]  # of colours (..., 4)

# From linear red, green and blue to the cones of the eye, and from these to lightness and two hues.
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def darkened(figure: Any) -> None:
    """Give a figure that is drawn the colours of a dark page."""
    recolour(figure, of_dark, turned)


def of_dark(colour: Any) -> Any:
    """The colour that stands for this one on a dark page."""
    from matplotlib.colors import to_hex, to_rgba

    rgba = to_rgba(colour)
    chosen = DARK.get(to_hex(rgba))
    return to_rgba(chosen, rgba[3]) if chosen else tuple(turned(np.array([rgba]))[0])


def turned(rgba: np.ndarray) -> np.ndarray:
    """Colours (n, 4) whose lightness is that of the other end: white becomes PAPER, black
    BRIGHT."""
    lab = np.cbrt(_linear(rgba[:, :3]) @ CONES.T) @ OKLAB.T
    ends = np.array([[int(end[i : i + 2], 16) / 255 for i in (1, 3, 5)] for end in (PAPER, BRIGHT)])
    paper, bright = (np.cbrt(_linear(ends) @ CONES.T) @ OKLAB.T)[:, 0]
    lab[:, 0] = paper + np.clip(1 - lab[:, 0], 0, 1) ** MIDDLE * (bright - paper)
    rgb = (lab @ np.linalg.inv(OKLAB).T) ** 3 @ np.linalg.inv(CONES).T
    rgb = np.clip(rgb, 0, 1)
    rgb = np.where(rgb <= 0.0031308, 12.92 * rgb, 1.055 * rgb ** (1 / 2.4) - 0.055)
    return np.concatenate([rgb, rgba[:, 3:]], axis=1)


def _linear(rgb: np.ndarray) -> np.ndarray:
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


# ---------------------------------------------------------------------- all colours of a figure


def colours_of(figure: Any) -> set[str]:
    """Every colour that a figure asks for, but those of scales, as #rrggbb."""
    from matplotlib.colors import to_hex

    found = set[str]()

    def seen(colour: Any) -> Any:
        found.add(to_hex(colour))
        return colour

    recolour(figure, seen, lambda scale: scale)
    return found


def recolour(figure: Any, change: Change, of_scale: Change) -> None:
    """Give every part of a figure the colour that `change` makes of its own, and every scale of
    colours those that `of_scale` makes of its 256."""
    from matplotlib.patches import Patch
    from matplotlib.text import Annotation, Text

    figure.draw_without_rendering()  # a tick has its colours once it is drawn
    parts = figure.findobj()
    for text in [part for part in parts if isinstance(part, Text)]:
        parts += [text.get_bbox_patch()] if text.get_bbox_patch() else []
        parts += [text.arrow_patch] if isinstance(text, Annotation) and text.arrow_patch else []
    for part in parts:
        if isinstance(part, Text):
            part.set_color(change(part.get_color()))
        elif isinstance(part, Patch):
            face, edge = part.get_facecolor(), part.get_edgecolor()
            part.set(facecolor=change(face), edgecolor=change(edge))
        else:
            _recolour_data(part, change, of_scale)


def _recolour_data(part: Any, change: Change, of_scale: Change) -> None:
    """The same for a line, many lines or areas, or a scale of colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.collections import Collection
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D

    if isinstance(part, Line2D):
        own = part.get_color(), part.get_markerfacecolor(), part.get_markeredgecolor()
        line, face, edge = map(change, own)
        part.set(color=line, markerfacecolor=face, markeredgecolor=edge)
        return
    values = part.get_array() if isinstance(part, ScalarMappable) else None
    if isinstance(part, Collection):
        part.set_edgecolor([change(colour) for colour in part.get_edgecolor()])
        if values is None:
            part.set_facecolor([change(colour) for colour in part.get_facecolor()])
    if values is not None and np.ndim(values) == 2:
        scale = part.get_cmap()(np.linspace(0, 1, 256))
        part.set_cmap(ListedColormap(of_scale(scale)))
