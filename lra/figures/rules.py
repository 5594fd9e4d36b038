"""ListOps at the benchmark's length: what rules score, what was published and what was measured
here, on one axis (docs/listops.md)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from lra.base.config import UserError
from lra.data.rules import FILE, read_scores
from lra.figures.style import INK, LUNA, NOTE, OTHERS, save_figure
from lra.report.specs import published
from lra.results.frame import frame_of
from lra.results.record import load_records

# Rules with the line of their label above the axes, so that labels do not cover each other.
SHOWN = {"constant": 0, "first operator": 2, "first tokens": 1, "own digits, no median": 0,
         "own digits": 1}  # fmt: skip
LENGTHS = {"min_length": 500, "max_length": 2000}  # of the benchmark
BRACKETS = {"lost": "lost", "kept": "kept", "unknown": "?"}
TITLE = """Test accuracy on ListOps, %: rules, published rows and runs of this repository
Published rows are on the released files; a source's word says if brackets were lost."""


def draw_rules(arguments: argparse.Namespace) -> list[Path]:
    results = Path(arguments.results)
    scored = [line for line in read_scores(results / FILE) if _is_full(line)]
    rules = next((line["rules"] for line in scored if line["options"]["brackets"] == "keep"), None)
    if rules is None:
        raise UserError(
            f"{results / FILE} has no rules for ListOps: lra data baseline listops --to"
        )
    runs = frame_of(load_records([results / "records"]))
    ours = runs[runs["fingerprint"].isin([line["fingerprint"] for line in scored])]
    rows = {
        **_published(),
        "measured here": list(zip(ours["attention"], ours["score"], strict=True)),
    }

    def fill(figure: Any) -> None:
        axes = figure.subplots()
        for i, scores in enumerate(reversed(rows.values())):
            for method, score in scores:
                is_luna = method == "luna"
                axes.plot(score, i, "D" if is_luna else "o", ms=6 if is_luna else 4.5, mec="white",
                          mew=0.5, color=LUNA if is_luna else INK, zorder=4 + is_luna)  # fmt: skip
        axes.set_yticks(range(len(rows)), [*reversed(rows)])
        for name, line in SHOWN.items():
            score = 100 * rules[name]["test"]
            axes.axvline(score, color=OTHERS, lw=1.2, zorder=1)
            axes.annotate(f"{name} {score:.1f}", (score, len(rows) - 0.35 + 0.62 * line),
                          ha="center", color=NOTE, annotation_clip=False)  # fmt: skip
        axes.tick_params(axis="y", labelsize=8)
        axes.set(xlabel="test accuracy, %", xlim=(12, 52), ylim=(-0.6, len(rows) - 0.5))
        axes.plot([], [], "D", color=LUNA, label="LUNA (2025)")
        axes.plot([], [], "o", color=INK, label="another method")
        axes.legend(loc="lower right", frameon=False)
        axes.grid(axis="y")

    return save_figure(Path(arguments.out) / "listops-rules", fill, TITLE, 4.6)


def _is_full(line: dict[str, Any]) -> bool:
    options = line["options"]
    return line["task"] == "listops" and LENGTHS.items() <= options.items()


def _published() -> dict[str, list[tuple[str, float]]]:
    """The published scores on ListOps by source, with what is known of its brackets."""
    contents, rows = published(), dict[str, list[tuple[str, float]]]()
    for table in contents["tables"].values():
        for method, row in table["rows"].items() if "listops" in table["tasks"] else ():
            source = f"{row['source']}, {BRACKETS[contents['brackets'][row['source']]]}"
            score = row["values"][table["tasks"].index("listops")]
            if (method, score) not in rows.setdefault(source, []):
                rows[source].append((method, score))
    return dict(sorted(rows.items(), key=lambda item: -len(item[1])))
