"""In place of packages of other projects, which the tests do not need: what of them is used here,
with the signatures that they have. Tests that run where a package is installed hold both alike."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn


class Trackio(ModuleType):
    """In place of the package: what `trackio.init` got, and what was logged until `finish`."""

    def __init__(self) -> None:
        super().__init__("trackio")
        self.runs: list[dict[str, Any]] = []
        self.open = False

    def init(self, project: str, name: str, config: dict[str, Any], **others: Any) -> Any:
        assert not self.open, "the run before was not ended"
        self.open = True
        self.runs.append({"project": project, "name": name, "config": config, **others, "rows": []})
        return self

    def log(self, metrics: dict[str, float], step: int | None = None) -> None:
        assert self.open, "logged after its end"
        self.runs[-1]["rows"].append((step, tuple(metrics)))

    def finish(self) -> None:
        self.open = False


class CausalMeans(nn.Module):
    """In place of a layer of fla: gated means of the tokens so far. It takes no notice of its mask,
    as some of theirs."""

    def __init__(self, hidden_size: int = 1024, num_heads: int = 4, layer_idx: int | None = None):
        super().__init__()
        self.num_heads = num_heads
        self.value, self.gate, self.out = (nn.Linear(hidden_size, hidden_size) for _ in range(3))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        use_cache: bool | None = False,
        output_attentions: bool | None = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Any]:
        count = torch.arange(1, hidden_states.shape[1] + 1, device=hidden_states.device)
        means = self.value(hidden_states).cumsum(1) / count[:, None]
        return self.out(self.gate(hidden_states).sigmoid() * means), None, past_key_values


def fla() -> dict[str, ModuleType]:
    package, layers = ModuleType("fla"), ModuleType("fla.layers")
    layers.GatedLinearAttention = CausalMeans
    package.layers = layers
    return {"fla": package, "fla.layers": layers}


class HFLM:
    """In place of lm_eval's: log-likelihoods of continuations by a model of transformers."""

    def __init__(self, pretrained: Any, tokenizer: Any, batch_size: int = 1):
        self.model, self.tokenizer = pretrained, tokenizer

    def loglikelihood(self, context: str, continuation: str) -> float:
        seen = len(self.tokenizer(context)["input_ids"])
        ids = torch.tensor([self.tokenizer(context + continuation)["input_ids"]])
        with torch.no_grad():
            log_p = self.model(ids).logits.log_softmax(-1)
        return float(log_p[0, seen - 1 : -1].gather(-1, ids[0, seen:, None]).sum())


def simple_evaluate(model: HFLM, tasks: list[dict[str, Any]], task_manager: Any) -> dict[str, Any]:
    """Accuracy on tasks of several choices, whose fields are templates of a single field."""
    results = {}
    for task in tasks:
        field = {k: v.strip("{}") for k, v in task.items() if k.startswith("doc_to_")}
        lines = Path(task["dataset_kwargs"]["data_files"][task["test_split"]]).read_text("utf-8")
        right = []
        for row in map(json.loads, lines.splitlines()):
            choices = [f" {choice}" for choice in row[field["doc_to_choice"]]]
            scores = [model.loglikelihood(row[field["doc_to_text"]], c) for c in choices]
            right.append(scores.index(max(scores)) == row[field["doc_to_target"]])
        results[task["task"]] = {"acc,none": sum(right) / len(right)}
    return {"results": results}


def lm_eval() -> dict[str, ModuleType]:
    names = ("lm_eval", "lm_eval.models", "lm_eval.models.huggingface", "lm_eval.tasks")
    modules = {name: ModuleType(name) for name in names}
    modules["lm_eval"].simple_evaluate = simple_evaluate
    modules["lm_eval.models.huggingface"].HFLM = HFLM
    modules["lm_eval.tasks"].TaskManager = lambda include_defaults: None
    return modules
