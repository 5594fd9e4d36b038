"""Decoder-only language models: conversion, generation with a state, both stages on a text file."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import luna
from luna.base import LunaError
from luna.convert import TextFile, convert

from .kit import GREEDY, host, logits, prompts, transformers


def positions(mask: Tensor) -> Tensor:
    return (mask.cumsum(1) - 1).clamp(min=0)


# A conversion to TransNormer, which does not divide by weights, is refused.
# A mixer has no q, k, v to be given.
CAUSAL = [name for name in luna.names(causal=True) if not luna.registry.mixes(name)]


@pytest.mark.parametrize("name", sorted({*CAUSAL} - {"transnormer"}))
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_generation_with_a_state_gives_the_tokens_of_the_parallel_form(kind, name):
    """Which runs the whole text again for each token."""
    student, batch = convert(host(kind), name), prompts()
    wanted = {"return_dict_in_generate": True, "output_logits": True}
    for search in ({}, {"num_beams": 3, "num_return_sequences": 2}):
        stateful = student.generate(**batch, **GREEDY, **wanted, **search)
        parallel = student.generate(**batch, **GREEDY, **wanted, **search, use_cache=False)
        assert torch.equal(stateful.sequences, parallel.sequences)
        for got, expected in zip(stateful.logits, parallel.logits, strict=True):
            torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-4)
    assert parallel.past_key_values is None


def numbers(cache: Any) -> int:
    return sum(t.numel() for layer in cache.layers for t in layer.state if isinstance(t, Tensor))


def test_the_state_does_not_grow_with_the_text():
    sizes = {}
    for name in ("luna", "softmax"):
        student = convert(host("llama"), name)
        caches = [
            student.generate(
                torch.full((1, n), 5), return_dict_in_generate=True, **GREEDY
            ).past_key_values
            for n in (4, 40)
        ]
        assert [cache.get_seq_length() for cache in caches] == [15, 51]
        sizes[name] = [numbers(cache) for cache in caches]
    assert sizes["luna"][0] == sizes["luna"][1]
    assert sizes["softmax"][1] > 3 * sizes["softmax"][0]


def test_a_text_in_parts_and_a_state_that_goes_on():
    """Several tokens after a state, with the prompts' padding before them, and a cache for a second
    call of `generate`."""
    student, batch = convert(host("gpt2"), "performer"), prompts()
    ids, mask = batch["input_ids"], batch["attention_mask"]
    where = positions(mask)
    expected = logits(student, batch | {"position_ids": where})
    cache, parts = transformers.DynamicCache(), []
    for part in (slice(0, 7), slice(7, 8), slice(8, 12)):
        so_far = {"attention_mask": mask[:, : part.stop], "position_ids": where[:, part]}
        so_far |= {"input_ids": ids[:, part], "past_key_values": cache}
        parts.append(logits(student, so_far))
    got = torch.cat(parts, 1)
    torch.testing.assert_close(got[mask == 1], expected[mask == 1], atol=2e-5, rtol=1e-4)

    first = student.generate(ids[:1], return_dict_in_generate=True, **GREEDY)
    longer = torch.cat([first.sequences, ids[1:2, 6:]], 1)
    again = student.generate(longer, past_key_values=first.past_key_values, **GREEDY)
    assert torch.equal(again, student.generate(longer, use_cache=False, **GREEDY))


def test_layers_that_stay_softmax_and_half_precision():
    """In a mixed model the softmax layers keep keys and values; features stay in float32."""
    batch = prompts()
    mixed = convert(host("llama"), "hedgehog", layers=[1])
    stateful = mixed.generate(**batch, **GREEDY)
    assert torch.equal(stateful, mixed.generate(**batch, **GREEDY, use_cache=False))
    half = convert(host("llama").to(torch.bfloat16), "hedgehog", layers=[1])
    cache = transformers.DynamicCache()
    got = logits(half, batch | {"past_key_values": cache})
    assert [layer.state[0].dtype for layer in cache.layers] == [torch.bfloat16, torch.float32]
    real = batch["attention_mask"] == 1
    expected = logits(mixed, batch)[real]
    assert (got.float()[real] - expected).norm() < 0.05 * expected.norm()


def test_gradient_checkpointing_and_training_with_a_cache():
    """transformers makes a cache in training as well; what it learns from must not change."""
    model, grads = convert(host("llama"), "luna").train(), []
    ids = prompts()["input_ids"]
    for how in ({"use_cache": True}, {"use_cache": False}, {}):
        if not how:
            model.activation_checkpointing_enable()
        model.zero_grad()
        model(ids, labels=ids, **how).loss.backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0])


# ---------------------------------------------------------------------- refusals


def test_ways_to_decode_that_a_state_does_not_have():
    model, batch = host("gpt2"), prompts()
    student, ids, mask = convert(model, "linear"), batch["input_ids"], batch["attention_mask"]
    llama = convert(host("llama"), "linear")
    cache = transformers.DynamicCache()
    logits(model, {"input_ids": ids, "past_key_values": cache})
    block, packed = torch.ones(3, 1, 12, 12).bool(), torch.arange(12)[None] % 5
    wanted = {"output_attentions": True, "return_dict_in_generate": True}
    for call, reason in (
        (lambda: student.generate(ids, cache_implementation="static", **GREEDY), "StaticCache"),
        (lambda: student.generate(ids[:1], prompt_lookup_num_tokens=2, **GREEDY), "cannot forget"),
        (lambda: student.generate(ids[:1], assistant_model=model, **GREEDY), "cannot forget"),
        (lambda: llama.generate(ids, **wanted, **GREEDY), "no attention map over earlier tokens"),
        (lambda: student(ids, past_key_values=cache), "an empty DynamicCache"),
        (lambda: student(ids, attention_mask=block), r"\(B, n\) in place of one of shape"),
        (lambda: student(ids[:1], position_ids=packed, use_cache=False), "windowed or packed"),
    ):
        with pytest.raises(LunaError, match=reason):
            call()
    shown, new_padding = torch.ones(3, 13).long(), torch.cat([mask, mask[:, :1]], 1)
    for later in (None, shown, new_padding):
        cache = transformers.DynamicCache()
        logits(student, batch | {"past_key_values": cache})
        with pytest.raises(LunaError, match="hides as padding stays hidden"):
            student(ids[:, :1], attention_mask=later, past_key_values=cache)


# ---------------------------------------------------------------------- texts


def write_words(path: Path, lines: int) -> list[str]:
    """Lines such as `bad=bad`: whoever remembers the word knows half of the letters."""
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=3)) for _ in range(lines)]
    path.write_text("".join(f"{word}={word}\n" for word in words), encoding="utf-8")
    return sorted(set("abcdefgh=\n"))


def test_a_text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("abcdefghij" * 10 + "xyz", encoding="utf-8")
    text = TextFile(path, lambda s: [ord(c) for c in s], length=10, batch=4, held_out=0.2)
    assert [len(b["input_ids"]) for b in text.train(1)] == [4, 4]
    assert [len(b["input_ids"]) for b in text.held_out] == [2]
    write_words(path, 40)
    text = TextFile(path, lambda s: [ord(c) for c in s], length=8, batch=4)
    one, two, again = (torch.cat([b["labels"] for b in text.train(e)]) for e in (1, 2, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, two)
    assert torch.equal(one.sort(0).values, two.sort(0).values)
    model = host("gpt2", vocab_size=128)
    total = 0.0
    for batch in text.held_out:
        scores = logits(model, {"input_ids": batch["input_ids"]})[:, :-1].log_softmax(-1)
        total += float(scores.gather(2, batch["input_ids"][:, 1:, None]).sum())
    scores = text.evaluate(model)
    assert scores["log_likelihood"] == pytest.approx(total / (4 * 7), rel=1e-5)
    with pytest.raises(LunaError, match="too few for two blocks of 200"):
        TextFile(path, lambda s: [ord(c) for c in s], length=200)


def test_the_page_on_decoders(tmp_path, monkeypatch):
    """docs/conversion.md, with a tiny model, fewer steps and a shorter text."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split

    monkeypatch.chdir(tmp_path)
    letters = write_words(Path("corpus.txt"), 300)
    tokens = {token: i for i, token in enumerate(["[PAD]", *letters, "[UNK]"])}
    inner = Tokenizer(WordLevel(tokens, unk_token="[UNK]"))
    inner.pre_tokenizer = Split("", "isolated")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]")
    tokenizer.save_pretrained("gpt2")
    host("gpt2", n_positions=512).save_pretrained("gpt2")
    page = (Path(__file__).parents[3] / "docs/conversion.md").read_text(encoding="utf-8")
    (block,) = (b for b in re.findall(r"```python\n(.*?)```", page, flags=re.S) if "TextFile" in b)
    assert "steps=250" in block
    block = block.replace("steps=250", "steps=1").replace("length=512", "length=64")
    names: dict[str, Any] = {}
    exec(compile(block, "docs/conversion.md", "exec"), names)
    assert isinstance(names["story"], str)
