"""Attention of [CLS] to the words of a text: shares, page and picture."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from lra.figures import students, tokens
from lra.figures.tokens import ShadedText, Word, WordShares, page

from .conftest import PAIR, TEXT, WORDS, maps_of, wordpiece


def shaded(texts: list[str], shares: list[float], label: str = "m") -> ShadedText:
    words = [Word(t, " ", [i]) for i, t in enumerate(texts)]
    return ShadedText(words, [WordShares(label, shares, max(map(abs, shares)))], "layer 0, head 0")


def test_the_page_is_text_and_loads_nothing():
    nasty = "</span><script>alert(1)</script>&<img src=x onerror=alert(1)>"
    html = page(shaded([nasty, "fine", "less"], [0.5, 1.0, -0.25], label=nasty))
    assert "<script" not in html
    assert "<img" not in html
    assert not re.search(r"(src|href)=[\"'](?!data:)|url\(|@import|https?:", html)
    assert "default-src 'none'" in html
    strengths = re.findall(r'<span(.*?) style="--s:(\d+)%" title="(.*?)">', html)
    assert strengths == [("", "50", "50.0 %"), ("", "100", "100.0 %"),
                         (' class="less"', "25", "-25.0 %")]  # fmt: skip


def test_words_lie_on_lines_side_by_side():
    texts = ["aa", *"<b>", "cc"] * 30
    words = [Word(t, "" if t in "<b>" and i else " ", [i]) for i, t in enumerate(texts)]
    words.append(Word("x" * 200, " ", [0]))
    words.append(Word("second", " ", [0], second=True))
    places = tokens.wrap(words)
    taken = set()
    for (line, column), word in zip(places, words, strict=True):
        assert column + len(word.text) <= tokens.COLUMNS or column == 0
        taken |= {(line, column + c) for c in range(len(word.text))}
    assert places[-1] == (places[-2][0] + 1, 0)
    assert len(taken) == sum(len(w.text) for w in words)  # nothing on top of anything
    assert tokens.width("日本a") == 5


def test_the_picture_holds_the_letters(tmp_path: Path):
    pytest.importorskip("matplotlib")
    paths = tokens.draw_tokens(shaded(["$a_1$", "<b>"], [0.5, -0.5], label="$m$"), tmp_path / "t")
    assert [p.name for p in paths] == ["t.html", "t.png", "t.svg"]
    svg = paths[2].read_text(encoding="utf-8")
    assert all(f">{text}<" in svg for text in ("$a_1$", "&lt;b&gt;", "$m$"))  # no formulas


def test_words_are_spelt_as_in_the_text(text_models: dict[str, Path]):
    opened = students.open_students([text_models["luna"]])
    words, batch = tokens.encode(opened, TEXT, PAIR)
    assert [w.text for w in words] == WORDS
    assert [w.special for w in words] == [w.startswith("[") for w in WORDS]
    assert words[2].at == [2, 3]  # gorge ##ous
    assert sorted(i for w in words for i in w.at) == list(range(batch["input_ids"].shape[1]))
    for second, text in ((False, TEXT), (True, PAIR)):
        own = [w for w in words if w.second is second and not w.special]
        assert "".join(w.before + w.text for w in own).strip() == text


def test_shares_are_the_cls_rows_of_teacher_and_students(text_models: dict[str, Path]):
    folders = [text_models["hedgehog"], text_models["luna"]]
    transformers = pytest.importorskip("transformers")
    teacher = transformers.BertForSequenceClassification.from_pretrained(
        text_models["teacher"] / "model", attn_implementation="eager"
    ).eval()
    loaded = [teacher, *(s.model for s in students.open_students(folders))]
    batch = wordpiece()(TEXT, return_tensors="pt")
    for layer, head in ((-1, None), (0, 2)):
        shown = tokens.cls_to_words(
            folders, TEXT, teacher=text_models["teacher"], layer=layer, head=head
        )
        labels = ["softmax teacher", "hedgehog, not fitted", "luna, not fitted"]
        assert [row.label for row in shown.rows] == labels
        for model, row in zip(loaded, shown.rows, strict=True):
            heads = maps_of(model, **batch)[layer]
            cls = heads.mean(0)[0] if head is None else heads[head, 0]
            pieces = [cls[w.at].sum() for w in shown.words]
            np.testing.assert_allclose(row.shares, pieces, atol=1e-5)
            plain = [s for s, w in zip(row.shares, shown.words, strict=True) if not w.special]
            assert row.top == max(plain)
    assert shown.what == "layer 0, head 2"
