"""Mistakes that newcomers made, and the one sentence that answers each."""

from __future__ import annotations

from pathlib import Path

import pytest

import lra
from lra.base import groups
from lra.base.errors import UserError
from lra.cli import main
from lra.settings import remarks
from lra.settings.errors import guard

Capture = pytest.CaptureFixture[str]
DEMO = ("experiment=demo", "attention=linear")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("experiment=demo", "seed=1,2"), "'seed=1,2' has several values: add -m"),
        (("experiment=demo", "attention=linear,softmax"), "has several values: add -m"),
        ((*DEMO, "logger=csv,wandb"), "write logger=[csv,wandb] for all of them at once"),
        (("task=recall", "attention=luna"), "choose protocol=recall and model=probe"),
        (("task=image", "protocol=recall", "attention=luna"), "no row that fits task 'image'"),
        (("attention=luna", "protocol=nystrom"), "add attention.preset=published"),
        ((*DEMO, "protocol.recipe.lr=abc"), "protocol.recipe.lr must be a number, got 'abc'"),
        ((*DEMO, "protocol.recipe.steps=1.5"), "steps must be a whole number, got '1.5'"),
        ((*DEMO, "rerun=perhaps"), "rerun must be true or false, got 'perhaps'"),
        ((*DEMO, "protocol.recipe.betas=3"), "protocol.recipe.betas must be a list"),
        (("experiment=demo", "attention=softmax", "attention.M=8"), "attention 'softmax' has no"),
        ((*DEMO, "attention.ep=8"), "attention 'linear' has no option 'ep'; did you mean eps?"),
        ((*DEMO, "+attention.causal=true"), "attention.causal cannot be set here"),
        ((*DEMO, "trainer.accelerator=foo"), "must be one of auto, cpu, gpu, cuda, mps"),
        ((*DEMO, "trainer.progress=none"), "must be one of auto, bar, lines, off"),
        ((*DEMO, "trainer.print_every=-1"), "trainer.print_every=-1.0 is out of range"),
        ((*DEMO, "hydra.run.dir=/proc/x"), "cannot write to /proc/x (No such file"),
        ((*DEMO, "hydra.run.dir=/dev/null/x"), "choose another hydra.run.dir"),
        ((*DEMO, "hydra.output_subdir=/dev/null"), "choose another hydra.run.dir"),
        ((*DEMO, "runs_dir="), "it must be the name of a folder"),
        (("attention=luna",), "no task is chosen: add experiment=demo for a minute"),
        ((*DEMO, "callbacks=[ema,early_stoping]"), "'early_stoping'; did you mean early_stopping"),
        ((*DEMO, "--lr", "0.1"), "'--lr' is not an option of this command: write key=value"),
        ((*DEMO, "+attention.normalise=abs"), "attention.normalise exists: write it without the +"),
        (
            ("-m", "experiment=demo", "attention=luna", "attention.M=8,0"),
            "attention.M=0: luna.M must be at least 1, got 0; no run of this sweep was started",
        ),
        (("-m", *DEMO, "seed=1,-2"), "error: seed=-2 is out of range"),
        (
            ("-m", "experiment=demo", "attention=luna,softmax", "attention.M=8"),
            "attention 'softmax' has no option 'M'",
        ),
    ],
)
def test_a_slip_is_answered_in_one_sentence(
    words: tuple[str, ...], sentence: str, capsys: Capture, tmp_path: Path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert _code(["train", *words]) == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert said.count("error: ") == 1
    assert len(said) < 400, "one sentence"
    assert not list(tmp_path.rglob("runs")), "nothing was started"


def _code(argv: list[str]) -> int:
    try:
        return main(argv)
    except SystemExit as ended:
        return int(ended.code or 0)


def test_a_name_of_another_group_is_said_to_be_there(capsys: Capture):
    """A record of the demo says protocol demo, which its experiment has."""
    assert _code(["train", "protocol=demo", "attention=luna", "task=listops"]) == 2
    said = capsys.readouterr().err
    assert "unknown protocol 'demo' (there is experiment=demo); known: bytes" in said
    assert _code(["train", "task=lotforme", "attention=luna"]) == 2
    assert "there is" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("table --format html", "--format: invalid choice: 'html' (choose from"),
        ("table --colour", "unrecognized arguments: --colour; lra table --help lists them all"),
        ("new attention", "required: name; lra new attention --help lists them all"),
        ("plan --minutes soon", "--minutes: invalid float value: 'soon'; lra plan --help"),
    ],
)
def test_a_wrong_option_is_one_sentence(words: str, sentence: str, capsys: Capture):
    assert _code(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert sentence in said
    assert said.count("\n") == 1


def test_a_text_is_no_list_of_words():
    with pytest.raises(UserError, match=r"lra\.compose\(\['experiment=demo', 'attention=luna'\]\)"):
        lra.compose("experiment=demo attention=luna")


def test_a_run_is_composed_and_a_folder_is_named(capsys: Capture):
    with pytest.raises(
        UserError, match=r"a run is what lra\.compose\(words\) gives, .* type dict$"
    ):
        lra.train({"task": "listops"})  # type: ignore[arg-type]
    assert _code(["status", "runs/demo", "-m"]) == 2
    assert "if it is a folder, write --runs runs/demo" in capsys.readouterr().err


# ---------------------------------------------------------------------- protocols of one's own


@pytest.fixture
def mine(tmp_path: Path):
    folder = tmp_path / "conf" / "protocol"
    folder.mkdir(parents=True)
    text = "defaults: [luna, _self_]\nrecipe: {steps: 2000}\n"
    (folder / "nameless.yaml").write_text(text, encoding="utf-8")
    (folder / "mine.yaml").write_text(f"{text}name: mine\nversion: 1\n", encoding="utf-8")
    remarks._say.cache_clear()
    with groups.searching(tmp_path / "conf"):
        yield


def test_a_protocol_without_a_name_is_refused(mine: None):
    with pytest.raises(UserError, match=r"nameless\.yaml has no name of its own: give it `name: n"):
        lra.compose(["task=listops", "attention=linear", "protocol=nameless"])
    assert (
        lra.compose(["task=listops", "attention=linear", "protocol=mine"]).protocol.name == "mine"
    )


def test_an_experiment_says_what_it_sets_over_a_protocol(mine: None, capsys: Capture):
    words = ["experiment=demo", "attention=linear", "protocol=mine"]
    run = lra.compose(words)
    assert (run.protocol.name, run.protocol.recipe.steps) == ("demo", 400)
    said = capsys.readouterr().err
    assert said.startswith("remark: experiment=demo sets protocol.name, ")
    assert said.endswith("over those of protocol=mine\n")
    lra.compose(words)
    assert not capsys.readouterr().err, "once is enough"
    lra.compose(["experiment=recall", "attention=linear"])
    assert not capsys.readouterr().err


def test_a_command_says_that_it_was_interrupted(capsys: Capture):
    def stopped() -> None:
        raise KeyboardInterrupt

    assert guard(stopped) == 130
    assert capsys.readouterr().err == "\ninterrupted\n"


@pytest.mark.parametrize("batch", [0, -3])
def test_a_batch_holds_an_example(batch: int) -> None:
    with pytest.raises(UserError, match=f"recipe.batch={batch} is out of range"):
        lra.compose(["task=listops", "attention=luna", f"protocol.recipe.batch={batch}"])
