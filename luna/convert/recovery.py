"""How much of a teacher's score a converted model keeps.

Two averages are in use and they differ: the mean over tasks of score / teacher, and the mean score
over the mean teacher. Both are named here and both belong in a table. Where always giving the same
answer already scores high (MRPC: F1 81.2), the headroom above that floor says more than either.
"""

from __future__ import annotations

from collections.abc import Mapping

from luna.base import LunaError


def mean_of_ratios(scores: Mapping[str, float], teacher: Mapping[str, float]) -> float:
    """Percent: the mean over tasks of score / teacher."""
    _same_tasks(scores, teacher)
    return 100 * sum(scores[task] / teacher[task] for task in scores) / len(scores)


def ratio_of_means(scores: Mapping[str, float], teacher: Mapping[str, float]) -> float:
    """Percent: the mean score / the mean teacher."""
    _same_tasks(scores, teacher)
    return 100 * sum(scores.values()) / sum(teacher.values())


def headroom(score: float, teacher: float, floor: float) -> float:
    """Percent of what the teacher has above the floor: (score - floor) / (teacher - floor)."""
    if teacher <= floor:
        raise LunaError(
            f"the teacher ({teacher:g}) is not above the floor ({floor:g}): there is no headroom"
        )
    return 100 * (score - floor) / (teacher - floor)


def _same_tasks(scores: Mapping[str, float], teacher: Mapping[str, float]) -> None:
    if not scores or scores.keys() != teacher.keys():
        raise LunaError(
            "recovery compares the same tasks: "
            f"scores of {', '.join(sorted(scores)) or 'none'}, "
            f"teacher of {', '.join(sorted(teacher)) or 'none'}"
        )
