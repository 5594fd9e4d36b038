"""The picture of mixers: every seed of each method on three tasks, by the size of its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from lra.figures.style import NOTE, PHONE, name_above, save_figure
from lra.looks import look_of
from lra.report.table import Table

FINDING = (
    "On recall no gate's mean is above that of signed, normalised LUNA; where the latest value "
    "counts, all seeds of the delta rule are, with a smaller state"
)
# Of each panel its title, and the tables and columns that its seeds are from.
PANELS = {
    "64 pairs": [("mixers", "pairs=64"), ("mixers_longer", "recall")],
    "latest value": [
        ("no_way_out", "forgetting"),
        ("latest_gate", "forgetting"),
        ("latest_longer", "forgetting"),
    ],
    "short ListOps": [("mixers_listops", "listops")],
}
# Options that tell the rows of a method apart, with what is usual.
TELLING = {"nonneg": True, "normalise": "sum", "decay": "selective", "M": 8}
SIGNED = (("nonneg", False), ("normalise", "rms"))


class Row(NamedTuple):
    attention: str
    options: tuple[tuple[str, Any], ...]  # those of TELLING that are not usual


def cells_of(table: Table, column: str) -> dict[Row, Any]:
    cells = {}
    for _, cell in table.column(column).iterrows():
        options = dict(cell["options"])
        usual = TELLING if cell["attention"] == "luna" else TELLING | {"normalise": "none"}
        unusual = {k: options[k] for k, v in usual.items() if options.get(k, v) != v}
        cells[Row(cell["attention"], tuple(unusual.items()))] = cell
    return cells


def states_of(tables: dict[str, Table]) -> dict[Row, str]:
    """What a head keeps between tokens, of all rows, from the smallest up."""
    states: dict[Row, str] = {}
    for parts in PANELS.values():
        for name, column in parts:
            for row, cell in cells_of(tables[name], column).items():
                states.setdefault(row, str(cell["state"]))  # that of recall, if it ran there

    def size(row: Row) -> tuple[float, Row]:
        return (float(states[row]) if states[row].isdigit() else float("inf")), row

    return {row: states[row] for row in sorted(states, key=size)}


def draw(tables: dict[str, Table], out: Path) -> list[Path]:
    states = states_of(tables)
    places = {row: y for y, row in enumerate(states)}

    def fill(figure: Any) -> None:
        panels = figure.subplots(1, len(PANELS), sharey=True)
        for axes, (title, parts) in zip(panels, PANELS.items(), strict=True):
            for name, column in parts:
                for row, cell in cells_of(tables[name], column).items():
                    colour = look_of(row.attention).colour
                    face = colour if name.endswith("_longer") else "none"
                    heights = [places[row]] * len(cell["values"])
                    axes.plot(cell["values"], heights, "o", ms=4.5, mfc=face, color=colour)
            name, column = parts[0]
            axes.axvline(tables[name].column(column)["rule"].iloc[0], color=NOTE, lw=1, ls=":")
            axes.set(title=title, xlim=(0, 60 if "ListOps" in title else 104))
        names = [look_of(row.attention, dict(row.options)).name for row in states]
        both = zip(names, states.values(), strict=True)
        name_above(panels, {y: f"{name}: {state}" for y, (name, state) in enumerate(both)})
        panels[0].set_ylim(-0.5, len(states) - 0.2)
        figure.supxlabel("test accuracy, %", fontsize=PHONE.points)

    title = (
        f"{FINDING}\n○ a seed   ● after three or four times the steps   dotted: the best rule   "
        "Beside a name: numbers a head keeps between tokens. No point: not run."
    )
    return save_figure(out / "states", fill, title, 2.9 + 0.42 * len(states), PHONE)
