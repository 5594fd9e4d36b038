"""Both stages of a conversion of a tiny transformer in float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from luna.convert import convert, distill, feature_parameters, finetune
from luna.convert.maps import MapLoss
from luna.convert.running import evaluating, own_loss

from .compare import Numbers
from .made import in_float64, norm_of
from .of_network import by_formula

SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "vocab_size": 30,
    "max_position_embeddings": 12,
    "num_labels": 2,
    "hidden_dropout_prob": 0.0,  # torch's own draws differ between processors
    "attention_probs_dropout_prob": 0.0,
}
METHODS = ("hedgehog", "t2r", "luna")


def teacher() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**SIZES)
    with in_float64():
        model = by_formula(BertForSequenceClassification(config))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "LayerNorm.weight" in name:
                p.fill_(1.0)
    return model.double().eval()


def batch(seed: int) -> dict[str, Tensor]:
    """Sentences of three lengths."""
    ids = (torch.arange(3 * 9).view(3, 9) * (seed + 3) + seed) % 29 + 1
    mask = torch.arange(9) < torch.tensor([[9], [6], [4]])
    labels = torch.tensor([seed % 2, 1, 0])
    return {"input_ids": ids * mask, "attention_mask": mask.long(), "labels": labels}


def epoch(number: int) -> list[dict[str, Tensor]]:
    return [batch(10 * number + i) for i in range(5)]


def scored(model: nn.Module) -> dict[str, float]:
    with evaluating(model), torch.no_grad():
        losses = [float(model(**batch(100 + i)).loss) for i in range(3)]
    return {"score": -sum(losses)}


def conversion() -> Numbers:
    return {method: _converted(method) for method in METHODS}


def _converted(method: str) -> Numbers:
    with in_float64():
        student = convert(teacher(), method, seed=3).double()
        swapped = scored(student)["score"]
        batches = [batch(seed) for seed in range(7)]
        first = distill(student, batches, steps=20, lr=0.02, evaluate_every=5)
        phi = norm_of(feature_parameters(student).values())
        torch.manual_seed(4)
        second = finetune(
            student,
            epoch,
            scored,
            metric="score",
            lr=2e-3,
            phi_lr=1e-3,
            weight_decay=0.1,
            epochs=4,
            warmup=0.1,
            loss=MapLoss(student, "ce").beside(own_loss, 0.5),
        )
    return {
        "swapped in": swapped,
        "losses": first.losses,
        "feature maps": phi,
        "best epoch": second.best_epoch,
        "epochs": [facts["scores"]["score"] for facts in second.to_dict()["epochs"]],
        "weights": norm_of(student.parameters()),
    }
