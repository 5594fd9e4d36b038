"""Trained runs and converted models that several tests read; no test changes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from lra.figures import style
from lra.results.trained import Trained, load_trained
from lra.settings.compose import compose
from lra.training.run import train

from ..conftest import SMALL

# The runs that tests read. The padding of the first is wider than its texts.
LUNA = (
    "attention=luna",
    "attention.L=3",
    "attention.M=2",
    "attention.share=head",
    "protocol.data.pad=full",
)
SOFTMAX = ("attention=softmax", "model.n_layers=2")
STEPS = ("protocol.recipe.steps=2", "protocol.evaluation.every=2")
PIECES = "[PAD] [UNK] [CLS] [SEP] a gorge ##ous movie ##s $ 20 < b > / . , that it is"
TEXT, PAIR = "A gorgeous movie, <b>$20</b>.", "It is  movies"
WORDS = [
    "[CLS]",
    "A",
    "gorgeous",
    "movie",
    ",",
    *"<b>",
    "$",
    "20",
    *"</b>.",
    "[SEP]",
    "It",
    "is",
    "movies",
    "[SEP]",
]


@pytest.fixture(scope="session")
def trained_folder(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Callable[..., Path]:
    """trained_folder("attention=luna", ...): the folder of a run of two steps."""

    @cache
    def make(*words: str) -> Path:
        runs = tmp_path_factory.mktemp("run")
        train(compose([*SMALL, f"data_dir={data_dir}", f"runs_dir={runs}", *STEPS, *words]))
        return next(runs.rglob("config.yaml")).parent

    return make


@pytest.fixture(scope="session")
def trained(trained_folder: Callable[..., Path], data_dir: Path) -> Callable[..., Trained]:
    """trained("attention=luna", ...): a run of two steps, read from its folder."""
    return lambda *words: load_trained(trained_folder(*words), data_dir=data_dir)


def wordpiece() -> Any:
    """A tokenizer of a few pieces, in the manner of BERT's."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    vocabulary = {piece: i for i, piece in enumerate(PIECES.split())}
    plain = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    plain.normalizer = normalizers.BertNormalizer()
    # BERT's rule for $, which it takes for punctuation
    plain.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    plain.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


@pytest.fixture(scope="session")
def text_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A teacher, and two models converted from it."""
    pytest.importorskip("transformers")
    from luna.convert import convert
    from tests.luna.convert.kit import bert

    root = tmp_path_factory.mktemp("text")
    teacher = bert()
    found = {"teacher": teacher, "hedgehog": convert(teacher, "hedgehog")}
    found["luna"] = convert(teacher, "luna", layers="last:1", M=3, L=2, nonneg="softplus")
    for name, model in found.items():
        model.save_pretrained(root / name / "model")  # as a run has it
        wordpiece().save_pretrained(root / name / "model")
    return {name: root / name for name in found}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that a test saves; no text of theirs may be cut off."""
    figures: list[Figure] = []
    save = style.save

    def check(figure: Figure, stem: Path, **how: Any) -> list[Path]:
        figures.append(figure)
        paths = save(figure, stem, **how)
        (left, low), (right, high) = figure.get_tightbbox().get_points()
        width, height = figure.get_size_inches()
        assert min(left, low, width - right, height - high) > -0.02, stem
        return paths

    monkeypatch.setattr(style, "save", check)
    return figures


def maps_of(model: Any, **batch: torch.Tensor) -> list[np.ndarray]:
    """The maps as the model itself returns them, (H, n, n) a layer."""
    with torch.no_grad():
        return [a[0].numpy() for a in model(**batch, output_attentions=True).attentions]
