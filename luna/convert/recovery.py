"""How much of a teacher's score a converted model keeps.

Two averages are in use and differ: the mean over tasks of score / teacher, and the mean score over
the mean teacher. Where a constant answer already scores high (MRPC: F1 81.2), the part kept of the
headroom above this floor says more than either.
"""

from __future__ import annotations

from collections.abc import Mapping

from luna.base import LunaError


def mean_of_ratios(scores: Mapping[str, float], teacher: Mapping[str, float]) -> float:
    """The mean over tasks of score / teacher, in percent."""
    _check_tasks(scores, teacher)
    return 100 * sum(scores[task] / teacher[task] for task in scores) / len(scores)


def ratio_of_means(scores: Mapping[str, float], teacher: Mapping[str, float]) -> float:
    """The mean score / the mean teacher, in percent."""
    _check_tasks(scores, teacher)
    return 100 * sum(scores.values()) / sum(teacher.values())


def headroom(score: float, teacher: float, floor: float) -> float:
    """The part kept of the teacher's headroom, (score - floor) / (teacher - floor), in percent."""
    if teacher <= floor:
        raise LunaError(
            f"the teacher ({teacher:g}) is not above the floor ({floor:g}): there is no headroom"
        )
    return 100 * (score - floor) / (teacher - floor)


def _check_tasks(scores: Mapping[str, float], teacher: Mapping[str, float]) -> None:
    if not scores or scores.keys() != teacher.keys():
        raise LunaError(
            "recovery compares the same tasks: "
            f"scores of {', '.join(sorted(scores)) or 'none'}, "
            f"teacher of {', '.join(sorted(teacher)) or 'none'}"
        )
