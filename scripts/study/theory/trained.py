"""What training does to the kernel, drawn from results/theory/theory.json. The numbers are those of
an earlier revision, whose measure has no script any more (results/theory.md)."""

import json
from pathlib import Path

from lra.figures.style import OTHERS, save_figure
from lra.looks import look_of

FINDING = "Training moves LUNA's projections to where its theorems say nothing"
FOLDER = Path(__file__).parents[3] / "results/theory"
TASKS = {"recall": "recall, 32 pairs", "listops": "short ListOps"}


def draw(out):
    """Write trained.png and trained.pdf: the distance of a run's own projections, and of fresh
    draws, from infinitely many random ones, at the start and after training."""
    numbers = json.loads((FOLDER / "theory.json").read_text(encoding="utf-8"))
    runs = numbers["claims"]["trained"]["runs"]

    def fill(figure):
        axes, ticks = figure.subplots(), []
        for run, moments in runs.items():
            method, _, task = run.partition(",")[0].partition(" on ")
            look = look_of(method)
            for when, at in moments.items():
                y = -len(ticks)
                moment = "at the start" if when == "start" else when
                ticks.append(f"{look.name}, {TASKS[task]}, {moment}")
                axes.plot(at["redrawn"], [y] * len(at["redrawn"]), "|", color=OTHERS, ms=9)
                axes.plot(at["error"], y, look.marker, color=look.colour, ms=8)
        axes.set_yticks([-i for i in range(len(ticks))], ticks)
        axes.set(
            xscale="log",
            xlabel="distance from the attention of infinitely many projections",
        )
        axes.grid(axis="x")

    title = (
        f"{FINDING}\n◆ ✚ the projections of a run   | 100 fresh draws   First layer, one test "
        "example. Performer's projections are never trained, its queries and keys are."
    )
    return save_figure(out / "trained", fill, title, 3.2)


if __name__ == "__main__":
    print(*draw(FOLDER), sep="\n")
