"""docs/tutorial.md, followed to the letter in a fresh copy of the repository.

Its blocks are taken from the top: a block of code is the file that its first line names, in place
of one that is there, and a block of shell is run, with more words that make it small.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from luna import base
from luna.testing import Case, check, registered

from .conftest import REPOSITORY, call_in, run_in

PAGE = (REPOSITORY / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(sh|python|yaml)\n(.*?)^```", PAGE, re.M | re.S)
FILES = dict(block.split("\n", 1) for language, block in BLOCKS if language != "sh")
METHOD = FILES["# luna/mixers/efficient.py"]
INSTALLS = ("make setup", "source ")  # CI begins with the one; the other is the shell's own
# Beginnings of commands, and the words after them that make them small.
FEW = "n_train=64 n_val=16 n_test=16"
SMALL = {
    "lra train": f"{FEW.replace('n_', 'task.n_')} steps_share=1e-6 min_evaluations=1",
    "lra data show recall": FEW,
}
SEEDS = ("seed=1,2,3", "seed=1,2")  # of the page, and as many as a comparison needs


def run(clone: Path, command: str) -> str:
    for beginning, small in SMALL.items():
        command = command.replace(beginning, f"{beginning} {small}")
    words = shlex.split(command.replace(*SEEDS))
    if words[0] == "python":
        return call_in(clone, sys.executable, *words[1:])
    return run_in(clone, *words)


@pytest.mark.timeout(1800)  # a minute of work, in twenty processes
@pytest.mark.rest
def test_the_page_from_its_top_to_its_end(clone: Path):
    printed: dict[str, str] = {}
    for language, block in BLOCKS:
        if language != "sh":
            first, code = block.split("\n", 1)
            (clone / first.removeprefix("# ")).write_text(code, encoding="utf-8")
            continue
        for command in block.splitlines():
            if not command.startswith(INSTALLS):
                printed[command] = run(clone, command)
    assert "'efficient' is what it declares" in printed["lra check efficient"]
    three = {"softmax", "luna", "efficient"}
    assert {*re.findall(r"^(\w+) .*\(2\)", printed["lra table"], re.M)} == three
    rates = re.findall(r"^(\w+) lr=(\S+)", printed["lra table --vary protocol.recipe.lr"], re.M)
    assert {*rates} == {(name, rate) for name in three for rate in ("0.001", "0.003")}
    assert "p = " in printed["lra compare efficient luna"]
    answers = re.findall(r"^(\w+) [\d.]+ %$", printed["python reviews.py"], re.M)
    assert answers == ["softmax", "luna", "efficient"]
    assert re.search(r"^[\d.]+ % \{'accuracy'", printed["python macro.py"], re.M)


@contextmanager
def known(code: str) -> Iterator[None]:
    """The page's class, or another, by its name."""
    with registered():
        base._classes.pop("efficient", None)  # where somebody has followed the page
        exec(code, {"__name__": "luna.mixers.efficient"})
        yield


def problems(code: str) -> dict[str, str]:
    """What `lra check` has against a method."""
    with known(code):
        return {r.name: r.problem for r in check(Case("efficient")) if r.problem}


def test_its_method_is_what_it_declares():
    assert problems(METHOD) == {}


@pytest.mark.parametrize(
    ("right", "wrong", "found", "said"),
    [
        ("if mask is not None:", "if False:", "padding", "in 1 padded tokens moves real rows by"),
        ("bias=False", "bias=True", "dead_weight", "key.bias has no gradient"),
    ],
)
def test_the_check_finds_the_mistakes_that_the_page_names(right, wrong, found, said):
    assert METHOD.count(right) == 1
    assert said in problems(METHOD.replace(right, wrong))[found]
    assert f"`{found}" in PAGE
    assert said in PAGE


def test_its_test_tells_a_right_method_from_a_wrong_one():
    """With the softmax of q over the tokens, a likely slip."""
    holds()
    with pytest.raises(AssertionError):
        holds(METHOD.replace(".softmax(-1)", ".softmax(1)"))


def holds(code: str = METHOD) -> None:
    """Run the page's test of a method."""
    with known(code):
        names: dict[str, Any] = {}
        exec(FILES["# tests/luna/mixers/test_efficient.py"], names)
        names["test_it_is_its_formula"]()
