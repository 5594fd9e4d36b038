"""Help, mistyped commands, and completion in the shell."""

from __future__ import annotations

import contextlib

import pytest

from lra.cli import COMMANDS, HYDRA, _for_hydra, main
from lra.settings.command import typed

from .conftest import command

HEAVY = "torch pytorch_lightning pandas numpy hydra omegaconf transformers"
OTHERS = sorted(name for part in COMMANDS.values() for name in part if name not in HYDRA)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["train"],
            "  demo              A minute of short ListOps, to see everything work\n",
        ),
        (["train", "--help"], "debug       fast, one_batch, overfit"),
        (["train"], "  off               Costs are counted and compared with nothing\n"),
        (["train"], "  listops           Nested operations on digits, 10 classes\n"),
        (["convert"], "task        cola, sst2"),
        (["convert"], "  minilm            MiniLM, 6 layers of 384\n"),
        ([], "  list       every attention"),
    ],
)
def test_help_lists_the_choices_within_the_terminal(words, line, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with contextlib.suppress(SystemExit):  # of argparse
        assert main(words) == 0
    out = capsys.readouterr().out
    assert line in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out, "what a choice is fits into 80 columns"


@pytest.mark.parametrize("name", OTHERS)
def test_every_command_has_a_help(name: str, capsys):
    with pytest.raises(SystemExit, match="0"):
        main([name, "--help"])
    assert capsys.readouterr().out.startswith(f"usage: lra {name} ")


def test_a_command_imports_what_it_needs(tmp_path):
    """Help and `lra status` take a tenth of a second, so scripts and shells may ask for them."""
    code = (
        "import contextlib, sys\n"
        "from lra.cli import main\n"
        f"status = ['status', '--runs', {str(tmp_path)!r}]\n"
        "for words in ([], ['--help'], ['table', '--help'], status):\n"
        "    with contextlib.suppress(SystemExit): main(words)\n"
        f"print('imported', [name for name in '{HEAVY}'.split() if name in sys.modules])"
    )
    done = command("-c", code)
    assert "no runs" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "imported []"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("tabel", "unknown command 'tabel'; did you mean table?"),
        ("train attention = luna", "'attention' is not a setting: write key=value, without spaces"),
        ("train -m --cfg job attention=luna", "leave out -m"),
        ("train listops", "'listops' is not a setting"),
        ("train attention=luna attention=softmax", "are two choices for one run: write one"),
        ("train task=listops seed=2", "no attention is chosen: add attention=luna"),
        ("figures", "name what to draw (lra figures --help), or runs: lra figures --runs runs"),
        ("train protocol.recipe.learning_rate=1", "did you mean lr?"),
        (
            "train task=listops attention=linear attention.M=9",
            "attention 'linear' has no option 'M'; known:",
        ),
    ],
)
def test_a_mistyped_command_is_one_sentence(words: str, sentence: str, capsys):
    assert main(words.split()) == 2
    assert sentence in capsys.readouterr().err


def test_m_may_stand_between_the_words():
    assert _for_hydra(["a=1", "-m", "b=1,2"]) == ["-m", "a=1", "b=1,2"]
    assert _for_hydra(["a=1", "--cfg", "job"]) == ["a=1", "--cfg", "job"]


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("lra train task=list", "task=listops"),
        ("lra convert recipe=s", "recipe=small"),
        ("lra comp", "compute"),
    ],
)
def test_the_shell_completes(line: str, answer: str, monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", line)
    assert main(["-sc", "query=bash"]) == 0
    assert answer in capsys.readouterr().out.split()


def test_the_recorded_command_holds_no_password():
    words = ["seed=2", "logger=mlflow", "logger.mlflow.store=http://a:b@host", "+logger.x=1"]
    assert typed("train", words) == "lra train seed=2"
