"""Counting and checking import no compiler, and leave it as it was."""

from __future__ import annotations

from ..conftest import command

CODE = """
import sys
from lra.cli import main

compiler = "torch._dynamo"
main("compute task=listops attention=luna compute=report".split())
main(["check", "uniform"])
heavy = (compiler, "pandas", "pytorch_lightning")
print("imported", [name for name in sys.modules if name.startswith(heavy)])

import torch
from lra.compute.compiler import COMPILER, MARK, without_compiler

assert compiler == COMPILER
with without_compiler():  # whoever needs more of it than the mark gets the compiler itself
    assert torch._dynamo.config.recompile_limit > 0
double = torch.compile(lambda x: 2 * x, backend="eager")
print("doubled", double(torch.ones(1)).item())
counter = vars(torch.utils.flop_counter._FlopCounterMode)["__torch_dispatch__"].__wrapped__
print("marked", hasattr(counter, MARK))
"""


def test_counting_and_checking_import_no_compiler():
    done = command("-c", CODE)
    assert "213,418 parameters" in done.stdout, done.stderr
    assert "'uniform' is what it declares" in done.stdout
    assert "imported []" in done.stdout
    assert done.stdout.splitlines()[-2:] == ["doubled 2.0", "marked False"], done.stderr
