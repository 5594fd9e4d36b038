"""The eight GLUE tasks of the published tables.

The files are `<folder>/<TASK>/train.tsv` and so on, as the benchmark distributes them. Fields are
split at tabs and quotes mean nothing: a reader that interprets them swallows whole lines. Without a
folder the package `datasets` gets them from the Hugging Face hub.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from luna.base import LunaError
from luna.convert.host import transformers
from luna.convert.tasks import metrics
from luna.convert.tasks.base import (
    ConversionData,
    ConversionTask,
    Example,
    labels_of,
    split_into_batches,
)

PAIR = ("sentence1", "sentence2")


class Texts(ConversionData):
    """Sentences or pairs, tokenised."""

    def train(self, epoch: int) -> list[Mapping[str, Tensor]]:
        return batches(
            self.examples,
            self.processor,
            size=self.recipe.batch,
            max_length=self.recipe.max_length,
            seed=10_000 * self.seed + epoch,
        )

    def evaluation(self, split: str) -> list[Mapping[str, Tensor]]:
        if split not in self.evaluations:
            size = min(32, 4 * self.recipe.batch)  # a smaller batch helps where memory runs out
            self.evaluations[split] = batches(
                self.scored[split], self.processor, size=size, max_length=self.recipe.max_length
            )
        return self.evaluations[split]


@dataclass(frozen=True)
class Glue(ConversionTask):
    name: str
    folder: str
    text: tuple[str, ...] = ("sentence",)  # columns of the sentence or the pair
    label: str = "label"
    labels: tuple[str, ...] | None = ("0", "1")  # None: a regression
    metric: metrics.Metric = metrics.classified
    header: tuple[str, ...] | None = None  # for files without a header line
    hub: tuple[str, ...] | None = None  # columns of the text on the hub, where they differ
    evaluate: tuple[str, ...] = ("dev",)  # the first one gives the result
    skip_short: bool = False  # the benchmark's own files have rows that are cut off

    data = Texts
    auto_model = "AutoModelForSequenceClassification"
    files = "config.json, tokenizer and safetensors"

    def read(self, data: str | Path | None) -> tuple[list[Example], dict[str, list[Example]]]:
        scored = {split: read_examples(self, split, data) for split in self.evaluate}
        return read_examples(self, "train", data), scored

    def processor(self, source: str, *, offline: bool = False) -> Any:
        kind = transformers().AutoTokenizer
        return kind.from_pretrained(source, local_files_only=offline, trust_remote_code=False)

    def classes(self, data: str | Path | None) -> tuple[str, ...] | None:
        return self.labels


_MNLI = ("entailment", "neutral", "contradiction")
_COLA = ("source", "label", "mark", "sentence")
_DEV = ("dev_matched", "dev_mismatched")
_HUB_MNLI = ("premise", "hypothesis")
_PHRASE = ("#1 String", "#2 String")
_RTE = ("entailment", "not_entailment")
_QQP = ("question1", "question2")
TASKS = {
    task.name: task
    for task in (
        Glue("cola", "CoLA", metric=metrics.acceptable, header=_COLA),
        Glue("sst2", "SST-2"),
        Glue("mrpc", "MRPC", _PHRASE, "Quality", metric=metrics.paraphrase, hub=PAIR),
        Glue("stsb", "STS-B", PAIR, "score", None, metrics.similarity),
        Glue("qqp", "QQP", _QQP, "is_duplicate", metric=metrics.paraphrase, skip_short=True),
        Glue("mnli", "MNLI", PAIR, "gold_label", _MNLI, hub=_HUB_MNLI, evaluate=_DEV),
        Glue("qnli", "QNLI", ("question", "sentence"), labels=_RTE),
        Glue("rte", "RTE", PAIR, labels=_RTE),
    )
}


def batches(
    examples: Sequence[Example],
    tokenizer: Any,
    *,
    size: int,
    max_length: int = 128,
    seed: int | None = None,
) -> list[Mapping[str, Tensor]]:
    """Tokenise and pad. With a seed batches are drawn from it and hold texts of similar length;
    without, examples keep their order."""
    texts = [text for text, _ in examples]
    encoded = tokenizer(
        [text[0] for text in texts],
        [text[1] for text in texts] if len(texts[0]) == 2 else None,
        truncation=True,
        max_length=max_length,
    )
    lengths = [len(ids) for ids in encoded["input_ids"]]
    in_order = split_into_batches(range(len(texts)), size)
    out: list[Mapping[str, Tensor]] = []
    for part in in_order if seed is None else _draw(lengths, size, seed):
        rows = {key: [column[i] for i in part] for key, column in encoded.items()}
        batch = dict(tokenizer.pad(rows, return_tensors="pt"))
        out.append(batch | {"labels": labels_of([examples[i] for i in part])})
    return out


def _draw(lengths: list[int], size: int, seed: int) -> list[list[int]]:
    """Draw batches of similar length, in random order."""
    g = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(lengths), generator=g).tolist()
    pool = 32 * size  # sorting all of it would give every epoch the same batches
    pools = split_into_batches(order, pool)
    order = [i for each in pools for i in sorted(each, key=lambda j: lengths[j])]
    parts = split_into_batches(order, size)
    return [parts[i] for i in torch.randperm(len(parts), generator=g).tolist()]


# ---------------------------------------------------------------------- reading


def read_examples(task: Glue, split: str, data: str | Path | None) -> list[Example]:
    """Read `data/<TASK>/<split>.tsv`, or the hub's if data is None."""
    if data is None:
        return _read_hub(task, split)
    path = Path(data) / task.folder / f"{split}.tsv"
    try:
        # MRPC's files begin with a byte order mark.
        lines = path.read_bytes().decode("utf-8-sig").removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise LunaError(
            f"{path} cannot be read ({error}): put GLUE's {_layout(task)} "
            f"(gluebenchmark.com/tasks) into {data}"
        ) from error
    rows = [line.rstrip("\r").split("\t") for line in lines]
    header = list(task.header or rows[0])
    examples: list[Example] = []
    for number, row in enumerate(rows, 1):
        if (number == 1 and task.header is None) or (len(row) < len(header) and task.skip_short):
            continue
        try:
            fields = dict(zip(header, row, strict=True))
            label = fields[task.label]
            value = float(label) if task.labels is None else task.labels.index(label)
            examples.append((tuple(fields[column] for column in task.text), value))
        except (KeyError, ValueError) as error:
            raise LunaError(
                f"{path} line {number} is no example of '{task.name}' ({error}): get the file "
                "again from gluebenchmark.com/tasks"
            ) from error
    if not examples:
        raise LunaError(f"{path} contains no examples: get the file again")
    return examples


def _layout(task: Glue) -> str:
    return f"{task.folder}/{{{','.join(('train', *task.evaluate))}}}.tsv"


def _read_hub(task: Glue, split: str) -> list[Example]:
    """Read one split by the package `datasets`, in the order of the benchmark's own files."""
    try:
        import datasets

        theirs = split.replace("dev", "validation")  # dev_matched: validation_matched
        rows = datasets.load_dataset("nyu-mll/glue", task.name, split=theirs)
        texts = zip(*(rows[column] for column in task.hub or task.text), strict=True)
        labels = map(float if task.labels is None else int, rows["label"])
        return list(zip(texts, labels, strict=True))
    except Exception as error:  # no package, no network, a proxy, a full disk
        raise LunaError(
            f"'{task.name}' cannot be loaded from the Hugging Face hub ({error}): pip install "
            f"datasets, or give a folder with {_layout(task)} (gluebenchmark.com/tasks), "
            "data.path=<folder>"
        ) from error
