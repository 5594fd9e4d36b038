"""`lra check foo`: a method held to what it declares, a line for each check."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from lra.base.screen import fitted
from lra.compute.compiler import without_compiler

WIDTH = 15  # of the name of a check


def add_arguments(checking: argparse.ArgumentParser) -> None:
    checking.description = (
        "Runs the conformance suite on one method, ours or a plug-in's: padding, the batch, "
        "gradients, precision, streams, memory, and every trait that its class declares, in both "
        "directions. Exit code 1 if something does not hold."
    )
    checking.add_argument("name", help="as in attention=")
    checking.add_argument("--all", action="store_true", help="torch.compile too, which takes long")
    checking.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> None:
    """Print a line for each check as it ends; exit with 1 if one does not hold."""
    import torch

    from luna.testing import CHECKS, Case, check

    says = {one.name: one.says for one in CHECKS}
    torch.set_num_threads(1)
    case, began, problems = Case(arguments.name), time.monotonic(), 0
    with nullcontext() if arguments.all else without_compiler():
        for result in check(case, slow=arguments.all):
            holds = f"holds: {says[result.name]}"
            excused = f"does not hold, as declared: {result.excused}" if result.excused else holds
            words = result.problem or excused
            print(fitted(f"{result.name:{WIDTH}} ", words, sys.stdout), flush=True)
            problems += bool(result.problem)
    seconds = f"{time.monotonic() - began:.0f} s"
    if problems:
        print(f"'{arguments.name}' is not what it declares: problems {problems} ({seconds})")
    else:
        print(f"'{arguments.name}' is what it declares ({seconds})")
    left_out = [one.name for one in CHECKS if one.slow and not arguments.all]
    left_out += [f"profile {name}" for name in case.cls.profiles[1:]]
    left_out += ["options other than the defaults", "GPUs"]
    print(f"not checked: {', '.join(left_out)}")
    if problems:
        raise SystemExit(1)
