"""Every recipe of CONTRIBUTING.md, followed to the letter in a fresh copy of the tool.

("In a package of your own" is in test_package.py; a table of results, and all recipes at once, are
in tests/study/test_contributing.py.)
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .recipes import (
    BENCHMARK,
    FIGURE,
    METHOD,
    MIXER,
    OWN,
    PAGE,
    PASTED,
    PROTOCOL,
    TASK,
    TINY_TRAINED,
    TRAITS,
    blocks,
    follow,
    passed,
    paste,
    pytest_in,
    run,
    section,
)
from .synthetic import write_run


def test_every_block_says_where_it_goes():
    """In a section that is followed here."""
    of_page = [block.partition("\n")[0] for block in blocks(PAGE, "python|yaml")]
    followed = [b.partition("\n")[0] for t in PASTED for b in blocks(section(t), "python|yaml")]
    assert of_page == followed
    for first in of_page:
        assert re.fullmatch(r"# [\w/]+\.(py|yaml)(, (at the end|below: \S.*))?", first), first


# A name with its command would be run by K=foo.
@pytest.mark.parametrize(
    "row", [pytest.param(i, marks=pytest.mark.rest(quarter)) for i, quarter in enumerate((4, 2, 3))]
)
def test_a_method(clone: Path, row: int):
    """Begun by a command of the first table, it is checked, tested and trained."""
    commands = re.findall(r"`(lra new .*?)`", section(METHOD))
    assert len(commands) == 3
    run(clone, commands[row])
    printed = follow(clone, METHOD)
    assert "'foo' is what it declares" in printed["lra check foo"]
    assert passed(printed["make test K=foo"]) > 30
    assert "done: test accuracy" in printed["lra train experiment=demo attention=foo"]
    run(clone, "lra list --write")
    assert "| `foo` |" in (clone / "docs/attentions.md").read_text(encoding="utf-8")


@pytest.mark.rest
def test_a_mixer_with_its_options_and_traits(clone: Path):
    paste(clone, MIXER)
    paste(clone, TRAITS)
    assert "'before' is what it declares" in run(clone, "lra check before")
    run(clone, "lra train experiment=demo attention=before attention.share=0.3")
    run(clone, "lra list --write")  # from now on the suite asks for all that a method has
    assert passed(run(clone, "make test K=before")) > 30


@pytest.mark.rest
def test_an_optimiser_a_schedule_and_a_callback(clone: Path):
    """All three at once; gradient norms, which move nothing, are not part of the run."""
    paste(clone, OWN)
    [printed] = follow(clone, OWN).values()
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
    paste(clone, TASK)
    printed = follow(clone, TASK)
    assert "differs" not in printed["lra data check foo"]
    assert "done: test accuracy" in printed["lra train task=foo attention=softmax"]
    assert passed(printed["make test K=foo"]) > 3, "that of every task is among them"


@pytest.mark.rest
def test_a_protocol(clone: Path):
    paste(clone, PROTOCOL)
    printed = follow(clone, PROTOCOL)
    assert re.search(r"^ +tenth +\S", printed["lra train --help"], re.M)
    run(clone, f"lra train task=listops attention=softmax {TINY_TRAINED}")
    tables = run(clone, "lra table")
    assert re.findall(r"^listops, protocol (\w+)", tables, re.M) == ["luna", "tenth"]


@pytest.mark.rest
def test_a_benchmark(clone: Path):
    paste(clone, BENCHMARK)
    [printed] = follow(clone, BENCHMARK).values()
    rows = [line for line in printed.splitlines() if line.startswith(("| all", "| largest"))]
    assert len(rows) == 5, "time and memory of both, and a ratio"
    assert {path.suffix for path in (clone / "bench").iterdir()} == {".json", ".md", ".png", ".pdf"}


@pytest.mark.rest
def test_a_figure(clone: Path):
    for seed in (1, 2):
        write_run(clone / "runs/demo", "luna", 0.4, seed=seed)
        write_run(clone / "runs/demo", "linear", 0.3, seed=seed)
    paste(clone, FIGURE)
    follow(clone, FIGURE)
    assert (clone / "figures/listops-listops-size.png").exists()
    assert " passed" in pytest_in(clone, "tests/lra/figures/test_tables.py")
