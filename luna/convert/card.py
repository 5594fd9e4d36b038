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
CARD = """\
---
library_name: luna-lra
tags: [linear-attention]
---

# {task} with {method} attention

| | dev score |
|---|---|
{rows}

A constant answer scores {floor:.2f}.

* started from weights with SHA-256 `{teacher}`
* options: {options}
* recipe: {recipe}
* seed {seed}, {train_examples:,} training examples, torch {torch}
"""
LOADING = """
```python
from luna.convert import load

model = load({folder!r})  # with its feature maps; transformers alone refuses this folder
```
"""


def write_card(folder: str, record: Mapping[str, Any]) -> str:
    """Write the card of the model in `folder` from the record of luna.convert.pipeline.run."""
    rows = [
        f"| {STAGES[stage]} | {', '.join(f'{k} {100 * v:.2f}' for k, v in scores.items())} |"
        for stage, scores in record["scores"].items()
    ]
    values = dict(record)
    values |= {
        key: ", ".join(f"{k}={v}" for k, v in record[key].items()) for key in ("options", "recipe")
    }
    values["method"] = full_name(record["attention"] or "softmax", record["options"])
    values |= {"rows": "\n".join(rows), "floor": 100 * record["floor"]}
    return CARD.format_map(values) + (LOADING.format(folder=folder) if record["attention"] else "")
