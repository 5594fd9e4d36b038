"""The model card (README.md) beside a converted model: what it is, how it was made, its scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luna.convert.swap import full_name

STAGES = {
    "teacher": "before, with softmax",
    "swap": "attention replaced, nothing trained",
    "stage1": "after stage 1, attention distillation",
    "best": "after stage 2, best epoch",
    "last": "after stage 2, last epoch",
}

LOADING = """\
```python
from luna.convert import load

model = load({folder!r})  # with its feature maps; transformers alone refuses this folder
```"""


def write_card(name: str, record: Mapping[str, Any]) -> str:
    """The card of the model in the folder `name`, from the record of luna.convert.pipeline.run."""
    method = full_name(record["attention"] or "softmax", record["options"])
    linear = record["attention"] not in (None, "softmax")
    title = f"{record['task']} with {method} attention" if linear else f"{record['task']}, softmax"
    rows = ["| | dev score |", "|---|---|"]
    for stage, scores in record["scores"].items():
        cells = ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())
        rows.append(f"| {STAGES.get(stage, stage)} | {cells} |")
    made = [
        f"* started from weights with SHA-256 `{record['teacher']}`",
        f"* attention: {record['attention'] or 'softmax'} {_pairs(record['options'])}".rstrip(),
        f"* recipe: {_pairs(record['recipe'])}",
        f"* seed {record['seed']}, {record['train_examples']:,} training examples, "
        f"torch {record['torch']}",
    ]
    if linear:
        made.append(f"* feature maps: {record['phi_parameters']:,} trained parameters")
    parts = [
        "---\nlibrary_name: luna-lra\ntags: [linear-attention]\n---",
        f"# {title}",
        "\n".join(rows),
        f"A constant answer scores {100 * record['floor']:.2f}. {_recovery(record)}".strip(),
        "## How it was made\n" + "\n".join(made),
        *(["## Loading", LOADING.format(folder=name)] if linear else []),
    ]
    return "\n\n".join(parts) + "\n"


def _recovery(record: Mapping[str, Any]) -> str:
    if record["attention"] is None:
        return ""  # a teacher, which recovers nothing
    recovery, headroom = record["recovery"], record["headroom_recovery"]
    parts = [] if recovery is None else [f"{recovery:.1f} % of the teacher's score"]
    if headroom is not None:
        parts.append(f"{headroom:.1f} % of what the teacher has above a constant answer")
    return f"Recovery: {', '.join(parts)}." if parts else ""


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in values.items())
