"""Every recipe of docs/extend, followed to the letter in a fresh copy of the tool.

("In a package of your own" is in test_package.py; a table of results, and all recipes at once, are
in tests/study/test_contributing.py.)
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from .recipes import (
    NOT_PASTED,
    PAGES,
    PASTED,
    TINY_TRAINED,
    blocks,
    follow,
    passed,
    paste,
    pytest_in,
    run,
)
from .synthetic import write_run

# What the page runs with a method that it begins, and not with the one that it shows.
FOO = ("lra check foo", "make test K=foo", "lra train experiment=demo attention=foo")
# A host's shell, as `ssh -tt HOST COMMAND` is: it says which host it is, if it can be reached.
SSH = '#!/bin/sh\n[ "$2" != dead ] || exit 255\necho "on $2"\nexec sh -c "$3"\n'


def test_every_block_says_where_it_goes():
    """On a page that is followed here."""
    assert {*PASTED, *NOT_PASTED} == {*PAGES}
    for name in NOT_PASTED:
        assert not blocks(PAGES[name], "python|yaml")
    for name in PASTED:
        for block in blocks(PAGES[name], "python|yaml"):
            first = block.partition("\n")[0]
            where = r"(, (at the end|(below|in place of): \S.*))?"
            assert re.fullmatch(rf"# [\w/]+\.(py|yaml){where}", first), first


def test_every_page_is_named_in_contributing():
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    assert {*re.findall(r"\(docs/extend/(\w+)\.md\)", page)} == {*PAGES}


# A name with its command would be run by K=foo.
@pytest.mark.parametrize(
    "row", [pytest.param(i, marks=pytest.mark.rest(quarter)) for i, quarter in enumerate((4, 2, 3))]
)
def test_a_method(clone: Path, row: int):
    """Begun by a command of the first table, it is checked, tested and trained."""
    commands = re.findall(r"`(lra new .*?)`", PAGES["attention"])
    assert len(commands) == 3
    run(clone, commands[row])
    printed = {command: run(clone, command) for command in FOO}
    assert "'foo' is what it declares" in printed["lra check foo"]
    assert passed(printed["make test K=foo"]) > 30
    assert "done: test accuracy" in printed["lra train experiment=demo attention=foo"]
    run(clone, "lra list --write")
    assert "| `foo` |" in (clone / "docs/attentions.md").read_text(encoding="utf-8")


@pytest.mark.rest
def test_a_feature_map(clone: Path):
    """What the page says of `foo`, of the method that it shows."""
    paste(clone, "attention")
    assert "'square' is what it declares" in run(clone, "lra check square")
    run(clone, "lra train experiment=demo attention=square attention.power=3")
    run(clone, "lra list --write")
    assert passed(run(clone, "make test K=square")) > 30


@pytest.mark.rest
def test_a_mixer_with_its_options_and_traits(clone: Path):
    paste(clone, "mixer")
    assert "'before' is what it declares" in follow(clone, "mixer")["lra check before"]
    run(clone, "lra list --write")  # from now on the suite asks for all that a method has
    assert passed(run(clone, "make test K=before")) > 30


@pytest.mark.rest
def test_a_kernel(clone: Path):
    paste(clone, "mixer")
    paste(clone, "kernel")
    printed = follow(clone, "kernel")
    assert passed(printed["make test K=blend"]) == 7
    assert "'before' is what it declares" in printed["lra check before"]
    [bench] = [text for command, text in printed.items() if command.startswith("lra bench")]
    assert "| before" in bench


@pytest.mark.rest
def test_a_metric(clone: Path):
    paste(clone, "metric")
    printed = follow(clone, "metric")
    assert passed(printed["make test K=metrics"]) > 50
    kept = (clone / "tests/golden/runs/_scoring.json").read_text(encoding="utf-8")
    assert "classes balanced_accuracy" in kept


@pytest.mark.rest
def test_a_command(clone: Path):
    paste(clone, "command")
    printed = follow(clone, "command")
    assert "by attention" in printed["lra hours --help"]
    assert passed(printed["make test K=hours"]) >= 2
    assert re.search(r"^  hours +how long", run(clone, "lra --help"), re.M)
    assert " passed" in pytest_in(clone, "tests/lra/test_cli.py")


@pytest.mark.rest
def test_a_launcher(clone: Path, monkeypatch: pytest.MonkeyPatch):
    paste(clone, "launcher")
    (clone / "bin").mkdir()
    (clone / "bin/ssh").write_text(SSH, encoding="utf-8")
    (clone / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{clone / 'bin'}:{os.environ['PATH']}")
    [printed] = follow(clone, "launcher").values()
    assert {*re.findall(r"^on (\w+)", printed, re.M)} == {"one", "two"}
    assert len([*(clone / "runs").rglob("result.json")]) == 2
    assert re.search(r"2 done", printed)
    lost = "hydra.launcher.hosts=[dead] experiment=demo attention=linear seed=3"
    with pytest.raises(AssertionError, match=r"1 failed(.|\n)*dead: exit code 255"):
        run(clone, f"lra train -m hydra/launcher=ssh {lost}")


@pytest.mark.rest
def test_an_optimiser_a_schedule_and_a_callback(clone: Path):
    """All three at once; gradient norms, which move nothing, are not part of the run."""
    paste(clone, "optimizer")
    [printed] = follow(clone, "optimizer").values()
    assert "optimizer  Lion(betas=[0.9, 0.99])" in printed
    assert "schedule   fall(least=0.1)" in printed
    assert "callbacks  GradientNoise(eta=0.01" in printed
    [metrics] = clone.rglob("metrics.csv")
    assert metrics.read_text("utf-8").partition("\n")[0].endswith(",grad_norm,grad_norm_max,noise")
    facts = json.loads(metrics.with_name("result.json").read_text("utf-8"))
    chosen = {"optimizer", "schedule", "callbacks noise"}
    assert {f"the chosen {name}" for name in chosen} <= {*facts["code"]}
    assert facts["settings"]["protocol"]["recipe"]["lr"] == 3e-4


@pytest.mark.rest
def test_a_task(clone: Path):
    paste(clone, "task")
    printed = follow(clone, "task")
    assert "differs" not in printed["lra data check foo"]
    assert "done: test accuracy" in printed["lra train task=foo attention=softmax"]
    assert passed(printed["make test K=foo"]) > 3, "that of every task is among them"


@pytest.mark.rest
def test_a_protocol(clone: Path):
    paste(clone, "protocol")
    printed = follow(clone, "protocol")
    assert re.search(r"^ +tenth +\S", printed["lra train --help"], re.M)
    run(clone, f"lra train task=listops attention=softmax {TINY_TRAINED}")
    tables = run(clone, "lra table")
    assert re.findall(r"^listops, protocol (\w+)", tables, re.M) == ["luna", "tenth"]


@pytest.mark.rest
def test_a_benchmark(clone: Path):
    paste(clone, "benchmark")
    [printed] = follow(clone, "benchmark").values()
    rows = [line for line in printed.splitlines() if line.startswith(("| all", "| largest"))]
    assert len(rows) == 5, "time and memory of both, and a ratio"
    assert {path.suffix for path in (clone / "bench").iterdir()} == {".json", ".md", ".png", ".pdf"}


@pytest.mark.rest
def test_a_figure(clone: Path):
    for seed in (1, 2):
        write_run(clone / "runs/demo", "luna", 0.4, seed=seed)
        write_run(clone / "runs/demo", "linear", 0.3, seed=seed)
    paste(clone, "figure")
    follow(clone, "figure")
    assert (clone / "figures/listops-listops-size.png").exists()
    assert " passed" in pytest_in(clone, "tests/lra/figures/test_tables.py")
