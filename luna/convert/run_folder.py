"""What the run of a conversion leaves in its folder.

run.json     what identifies the run, written before it starts
result.json  its record, written last: a folder that has one is finished
model        the model, with a card
*.pt         states to resume from, removed at the end
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from luna.base import LunaError
from luna.convert.loop import STATES, write_whole

RESULT, MODEL = "result.json", "model"
SCHEMA = 1
STAGES = ("best", "stage1", "swap", "teacher")  # the first that a run has gives its score
CARD = """\
# A model of luna-lra

Converted models are loaded by `luna.convert.load(folder)`, transformers alone refuses them.

```json
{}
```
"""

Scores = dict[str, float]  # by name: `score` is what counts, others are metrics of the task


def start(folder: Path, identity: Mapping[str, Any]) -> None:
    _write_json(folder / "run.json", identity)


def finished(folder: Path, identity: Mapping[str, Any]) -> dict[str, Any] | None:
    """Read the result in `folder`, if there is one; a LunaError if the folder is another run's."""
    if (folder / "run.json").is_file():
        there = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        other = [key for key, value in identity.items() if there.get(key) != value]
        if other:
            raise LunaError(
                f"{folder} contains another run (different {', '.join(other)}): use another folder"
            )
    if not (folder / RESULT).is_file():
        return None
    return json.loads((folder / RESULT).read_text(encoding="utf-8"))


def finish(folder: Path, result: Mapping[str, Any]) -> None:
    _write_json(folder / RESULT, result)
    remove_states(folder)


def remove_states(folder: Path) -> None:
    """Remove the states to resume from, which are four times the model's size."""
    for state in STATES:
        (folder / state).unlink(missing_ok=True)


def save_model(folder: Path, model: nn.Module, processor: Any, made: Mapping[str, Any]) -> None:
    """Write the model, its processor and a card with the facts `made`, all at once: a process that
    is killed here leaves no half of a model."""
    place = folder / MODEL
    partial = folder / f"{MODEL}.tmp"
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
    model.save_pretrained(partial)  # type: ignore[operator]
    processor.save_pretrained(partial)
    card = CARD.format(json.dumps(made, indent=1))
    (partial / "README.md").write_text(card, encoding="utf-8")
    shutil.rmtree(place, ignore_errors=True)
    partial.replace(place)


def recovery(scores: Mapping[str, Scores], floor: float) -> dict[str, Any]:
    """Return the parts that are left, in percent, of the teacher's score and of its headroom above
    a constant answer, which alone scores high on some tasks (MRPC: F1 81.2)."""
    top = scores["teacher"]["score"]
    final = next(scores[stage]["score"] for stage in STAGES if stage in scores)
    return {
        "floor": floor,
        "score": final,
        "recovery": 100 * final / top if top > 0 else None,
        "headroom_recovery": 100 * (final - floor) / (top - floor) if top > floor else None,
    }


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    write_whole(path, json.dumps(record, indent=1).encode())
