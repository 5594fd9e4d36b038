"""The conformance suite, public and without pytest: what a method declares is held to, both ways.

    from luna.testing import Case, check

    for result in check(Case("foo")):
        print(result.name, result.problem or "holds")

`lra check foo` prints the same. Our own tests run these checks too, on every method and profile:
there is one suite and no weaker copy. `with registered(foo=Foo):` knows a class for a test alone.
"""

from __future__ import annotations

from luna.testing.cases import Case, Contradiction
from luna.testing.known import registered
from luna.testing.run import CHECKS, Check, Result, check

__all__ = ["CHECKS", "Case", "Check", "Contradiction", "Result", "check", "registered"]
