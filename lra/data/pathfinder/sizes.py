"""The sizes and difficulties of Pathfinder, with the parameters of google-research/
long-range-arena."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Difficulty(Enum):
    easy = 6  # dashes of a target
    intermediate = 9
    hard = 14

    @property
    def folder(self) -> str:
        """Name its folder in the release."""
        easiest = self is Difficulty.easy
        return "curv_baseline" if easiest else f"curv_contour_length_{self.value}"


@dataclass(frozen=True, kw_only=True)
class PathfinderSettings:
    """One kind of image. Distances are in pixels, contours in dashes."""

    side: int
    padding: int  # width of the frame that counts as occupied
    length: int  # of a dash
    thickness: float
    margins: tuple[int, ...]  # around a dash; an image draws one of these
    marker_radius: float
    seed_distance: int  # between the tails of the two targets
    continuity: float  # bends are below 90 degrees / continuity
    contrast: float  # of a target's dash
    distractor_contrast: float
    distractor_dashes: int  # wanted in all
    contour: int = 14  # of a target; a distractor's is a third
    distractors: int = 0  # wanted; one that finds no place is left out
    scale: int = 2  # dashes are drawn this much larger and shrunk

    @property
    def distractor_contour(self) -> int:
        return self.contour // 3


SIZES = {
    32: PathfinderSettings(
        side=32,
        padding=1,
        length=2,
        thickness=0.5,
        margins=(1,),
        marker_radius=1.5,
        seed_distance=7,
        continuity=1.0,
        contrast=1.5,
        distractor_contrast=2.0,
        distractor_dashes=20,
    ),
    64: PathfinderSettings(
        side=64,
        padding=1,
        length=5,
        thickness=1,
        margins=(1,),
        marker_radius=2.5,
        seed_distance=12,
        continuity=1.8,
        contrast=0.8,
        distractor_contrast=0.8,
        distractor_dashes=22,
    ),
    128: PathfinderSettings(
        side=128,
        padding=1,
        length=5,
        thickness=1.5,
        margins=(2, 3),
        marker_radius=3.0,
        seed_distance=20,
        continuity=1.8,
        contrast=0.9,
        distractor_contrast=0.9,
        distractor_dashes=35,
    ),
    256: PathfinderSettings(
        side=256,
        padding=22,
        length=5,
        thickness=2,
        margins=(3,),
        marker_radius=5.0,
        seed_distance=27,
        continuity=1.8,
        contrast=1.0,
        distractor_contrast=1.0,
        distractor_dashes=30,
    ),
}


def settings(
    side: int, difficulty: Difficulty = Difficulty.hard, *, distractors: int | None = None
) -> PathfinderSettings:
    """Give the settings of `pathfinder<side>_<difficulty>`.

    How many distractors LRA's images were asked to hold is documented for hard alone: 5, 5, 8 and 7
    for the four sizes. By default the others ask for as many dashes in all, which makes 10 (easy)
    and 6 (intermediate) distractors at 32x32. That is an assumption.
    """
    kind = replace(SIZES[side], contour=difficulty.value)
    wanted = kind.distractor_dashes // kind.distractor_contour
    return replace(kind, distractors=wanted if distractors is None else distractors)
