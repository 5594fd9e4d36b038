"""What training does to the kernel, drawn from results/theory/theory.json. The numbers are those of
an earlier revision, whose measure has no script any more (results/theory.md)."""

import json
from pathlib import Path

from lra.figures.style import OTHERS, PHONE, name_above, save_figure, ticked
from lra.looks import look_of

FINDING = "Training leaves the regime of the theorems on LUNA's projections"
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
        axes.set(
            xscale="log",
            xlabel="distance from the attention\nof infinitely many projections",
            ylim=(0.5 - len(ticks), 0.8),
        )
        ticked(axes.xaxis)
        name_above([axes], {-i: tick for i, tick in enumerate(ticks)})

    title = (
        f"{FINDING}\n◆ ✚ the projections of a run   | 100 fresh draws\n"
        "First layer, one test example. Of Performer queries and keys are "
        "trained, projections never."
    )
    return save_figure(
        out / "trained", fill, title, 2.6 + 0.42 * sum(map(len, runs.values())), PHONE
    )


if __name__ == "__main__":
    print(*draw(FOLDER), sep="\n")
