"""The command line: options, mistakes."""

from __future__ import annotations

import pytest

from lra.bench import commands
from lra.cli import main


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("attention --methods softmacks", "unknown attention 'softmacks'; did you mean softmax?"),
        ("attention --methods luna@published", "attention 'luna' is the same under profile"),
        ("attention --repeats 0", "--rounds must be greater than 0, got 0"),
        ("attention --lengths 8 0", "--lengths must be greater than 0, got 0"),
        ("convert --methods lunar", "unknown attention 'lunar'; did you mean luna"),
        ("convert --geometry vit-b16-like --lengths 1", "--lengths of vit-b16-like must be"),
        ("convert --seconds -1", "--seconds must be greater than 0, got -1.0"),
        ("compute --steps 0", "--steps must be greater than 0, got 0"),
        ("luna --lengths 0", "--lengths must be greater than 0, got 0"),
    ],
)
def test_mistakes_are_one_sentence(words: str, sentence: str, capsys: pytest.CaptureFixture[str]):
    if words.startswith("convert"):
        pytest.importorskip("transformers")
    assert main(["bench", *words.split()]) == 2
    assert capsys.readouterr().err.startswith(f"error: {sentence}")


@pytest.mark.parametrize("name", commands.BENCHMARKS)
def test_help_says_every_default(name: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", name, "--help"])
    assert stopped.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    defaults = commands.BENCHMARKS[name][1]
    assert f"rounds over all cases ({defaults.get('rounds', 3)})" in text
    if "lengths" in defaults:
        assert f"({' '.join(map(str, defaults['lengths']))})" in text
