"""A made task and a made model of texts, to try a conversion without a network and without files.

A sentence praises or blames in one word. The model is a BERT of two small layers with random
weights, whose tokenizer knows these words. Its scores say that a conversion works, and no more.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from luna.convert.host import transformers
from luna.convert.tasks.base import Example
from luna.convert.tasks.glue import Glue

NAME = "tiny"
VERSION = "tiny-1"  # change it when other sentences are made
SENTENCES = {"train": 512, "dev": 128}
BLAME = ["bad", "dull", "poor", "weak"]
PRAISE = ["good", "fine", "great", "clever"]
OTHERS = [
    "a",
    "and",
    "film",
    "in",
    "it",
    "of",
    "plot",
    "scene",
    "story",
    "that",
    "the",
    "this",
    "was",
    "which",
    "with",
]
SIZES = {"hidden_size": 64, "intermediate_size": 64, "max_position_embeddings": 32}
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2}


@dataclass(frozen=True)
class Tiny(Glue):
    def read(self, data: str | Path | None) -> tuple[list[Example], dict[str, list[Example]]]:
        made = {split: sentences(split) for split in SENTENCES}
        return made.pop("train"), made

    def fingerprint(self, data: str | Path | None) -> str:
        return VERSION


TASKS = {NAME: Tiny(NAME, NAME)}


def sentences(split: str) -> list[Example]:
    """Make the sentences of a split, the same ones in every run."""
    stream, made = random.Random(f"{VERSION} {split}"), list[Example]()
    for _ in range(SENTENCES[split]):
        praises = stream.random() < 0.5
        word = stream.choice(PRAISE if praises else BLAME)
        before = [stream.choice(OTHERS) for _ in range(stream.randint(2, 8))]
        after = [stream.choice(OTHERS) for _ in range(stream.randint(1, 4))]
        text = " ".join([*before, word, *after])
        made.append(((text,), int(praises)))
    return made


def make_model(folder: Path) -> None:
    """Write the model and its tokenizer, without a head, to a new folder."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *BLAME, *PRAISE, *OTHERS]
    package: Any = transformers()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "vocab.txt"
        file.write_text("\n".join(words), encoding="utf-8")
        package.BertTokenizerFast(vocab=str(file)).save_pretrained(folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = package.BertModel(package.BertConfig(vocab_size=len(words), **SIZES, **LAYERS))
    model.save_pretrained(folder)
