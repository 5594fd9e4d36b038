"""What feature map fits softmax maps best? Stage 1 alone, on MRPC's pairs, one line a setting.

python scripts/conversion_study.py MODEL GLUE OUT.jsonl

MODEL is an encoder (any checkpoint of transformers), GLUE a folder in GLUE's own layout. Every
setting starts from the same weights and sees the same batches; the KL is that of 64 dev pairs, mean
over layers, heads and rows. Settings that are in OUT already are skipped.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from luna.convert import convert, distill, feature_parameters
from luna.convert.host import transformers
from luna.convert.tasks import glue

STEPS, BATCH, MAX_LENGTH = 100, 16, 96


def luna(M: int, L: int, nonneg: Any = "exp", **more: Any) -> dict[str, Any]:
    return {"name": "luna", "M": M, "L": L, "nonneg": nonneg, **more}


# (attention and options, rate, steps); the first is the paper's listing
SETTINGS: list[tuple[dict[str, Any], float, int]] = [
    *((luna(8, 8, True), lr, STEPS) for lr in (1e-2, 3e-2)),
    (luna(8, 8, "softplus"), 1e-2, STEPS),
    *((luna(8, 8), lr, STEPS) for lr in (1e-2, 3e-2)),
    (luna(16, 4), 1e-2, STEPS),
    *((luna(32, 2), lr, STEPS) for lr in (1e-2, 3e-2, 1e-1)),
    *((luna(64, 1), lr, STEPS) for lr in (1e-2, 3e-2)),
    *((luna(64, 1, hidden=16), lr, STEPS) for lr in (1e-2, 3e-2)),
    *((luna(*shape, True), 1e-2, STEPS) for shape in ((32, 2), (64, 1))),
    (luna(64, 1, "softplus"), 1e-2, STEPS),
    *((luna(*s, tie_qk=False), 1e-2, STEPS) for s in ((8, 8), (16, 4), (32, 2), (64, 1))),
    *((luna(16, 4, tie_qk=False), lr, STEPS) for lr in (3e-3, 3e-2)),
    *(({"name": "hedgehog"}, lr, STEPS) for lr in (1e-2, 3e-2, 1e-1)),
    *(({"name": "t2r"}, lr, STEPS) for lr in (1e-2, 3e-2)),
    (luna(64, 1), 3e-2, 4 * STEPS),
    (luna(8, 8, True), 1e-2, 4 * STEPS),
]


def main(source: str, data: str, out: str) -> None:
    library, path = transformers(), Path(out)
    torch.manual_seed(0)
    model = library.AutoModelForSequenceClassification.from_pretrained(source).eval()
    tokenizer = library.AutoTokenizer.from_pretrained(source)
    task = glue.TASKS["mrpc"]
    train, dev = (glue.read(task, split, data) for split in ("train", "dev"))
    kwargs = {"size": BATCH, "max_length": MAX_LENGTH, "seed": 1}
    batches = glue.batches(train, tokenizer, **kwargs)
    held_out = glue.batches(dev[:64], tokenizer, **kwargs)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    known = [json.loads(line)["setting"] for line in lines]
    for attention, lr, steps in SETTINGS:
        setting = {**attention, "lr": lr, "steps": steps}
        if setting in known:
            continue
        options = {k: v for k, v in attention.items() if k != "name"}
        student, started = convert(model, attention["name"], **options), time.monotonic()
        report = distill(student, batches, steps=steps, lr=lr, held_out=held_out)
        row = {
            "setting": setting,
            "kl_before": report.before.mean(),
            "kl": report.after.mean(),
            "kl_layers": [round(kl, 3) for kl in report.after.layers().values()],
            "dead_rows": max(max(heads) for heads in report.after.dead.values()),
            "phi_parameters": sum(p.numel() for p in feature_parameters(student).values()),
            "seconds": time.monotonic() - started,
        }
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"KL {row['kl']:.3f}  {row['phi_parameters']:>9,} parameters  {setting}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
