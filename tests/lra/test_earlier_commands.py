"""Commands that earlier pages printed (git revision 09dbb6d9) are still understood.

What a page printed once is in somebody's script. Nothing is trained here: words are composed or
parsed. Commands that today's pages print, too, are left to test_docs.py, which does more with them.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import hydra
import pytest

from lra.base import hydras
from lra.base.places import CONFIGS
from lra.settings import search_path
from lra.settings.compose import compose
from lra.training.conversion import check_conversion

from . import pages
from .pages import ROOT, kind

FILE = Path(__file__).with_name("commands_of_09dbb6d9.txt")
LINES = [line for line in FILE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
# Beginnings of commands, and why they are not looked at.
LEFT_OUT = {
    "pip ": "of another project",
    "ray ": "the same",
    "docker ": "the same",
    "python -m pytest": "the same",
    "source ": "the shell's own",
    "export ": "the same",
    "eval ": "the same; tests/lra/test_cli.py asks for completions",
    "python reviews.py": "the reader's file; test_docs.py runs the page",
    "python macro.py": "the same",
    "lra train --config-dir mine": "its folder is the reader's; tests/lra/base/test_groups.py",
    "lra compute --config-dir mine": "the same",
    "lra data prepare text --protocol short": "the same",
    "lra train protocol=tenth": "its file is the reader's; test_contributing.py writes it",
    "lra train task=foo": "the same",
    "lra train experiment=demo attention=foo": "the same",
    "lra train experiment=recall attention=fla": "the same; test_company.py writes it",
    "lra train -m experiment=recall task.pairs=16": "the same; test_tutorial.py writes it",
    "lra bench sort": "the same; test_contributing.py writes it",
    "python scripts/study/theory/": "the study's own; tests/study/test_theory.py",
}
# Commands that were renamed or taken out since, and why.
GONE = {
    "lra figures scheme": "draws a picture of the study: scripts/study/scheme.py",
    "python scripts/gpu_quarter.py": "is scripts/study/gpu, for it runs the study's queue",
    "make test QUARTER": "is make test SHARD=3/4: every push runs all tests, in shards",
}


def _printed_today() -> set[str]:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    names = [file.relative_to(ROOT).as_posix() for file in files]
    return {" ".join(line.split()) for page in names for line in pages.commands(page)}


def _looked_at() -> list[str]:
    today = _printed_today()
    return [line for line in LINES if line not in today and not kind(line, LEFT_OUT | GONE)]


def test_the_lists_name_commands_that_there_were():
    assert len(LINES) > 200
    for beginning in LEFT_OUT | GONE:
        assert any(line.startswith(beginning) for line in LINES), beginning


@pytest.mark.parametrize("line", _looked_at())
def test_a_command_of_an_earlier_page_is_understood(line: str):
    if line.startswith("make "):
        words = ["make", "-n", *shlex.split(line)[1:]]
        subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    elif re.match(r"[\w.]+=", line):
        compose(shlex.split(line))
    elif re.match(r"(lra|python) \S*(train|convert)\b", line):
        _compose(line)
    else:
        pages.parse(line)


def _compose(line: str) -> None:
    command, *words = pages.words_of(line)
    if command == "convert":
        folder = CONFIGS / "convert"
        search_path.install(folder)
        with hydra.initialize_config_dir(config_dir=str(folder), **hydras.of_base()):
            check_conversion(hydra.compose("convert", words))
    elif "-m" in words:
        pages.compose_all(line)
    else:
        compose(words)
