"""Every golden run by its name, the integers that it depends on, and the sentence when it moved.

Names are those of methods, `_step` for a part that runs share, and `_kernel_rms_norm` for a kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import luna
from lra.base.versions import ATTENTION, PARTS, of_training

from . import compare, kernels, methods
from .compare import Moved, Numbers
from .parts import PARTS_MEASURED

ROOT = Path(__file__).parents[2]
# The parts in the order in which they are asked: one that moved moves those behind it.
ORDER = (
    "data",
    "embedding",
    "projections",
    "backbone",
    "optimizer",
    "schedule",
    "seeding",
    "step",
    "selection",
    "scoring",
    "pretraining",
    "conversion",
)
TRAINING = tuple(sorted(of_training(pretrained=False), key=ORDER.index))
# Of a part: those on which its numbers depend too.
BELOW: dict[str, tuple[str, ...]] = {
    "backbone": ("projections",),
    "step": ("data", "optimizer", "schedule"),
    "selection": ORDER[: ORDER.index("selection")],
    "seeding": ("embedding", "projections", "backbone"),
    "pretraining": tuple(name for name in TRAINING if name != "scoring"),
}


NEEDS = {"conversion": ("transformers",)}


@dataclass(frozen=True)
class Golden:
    name: str
    measure: Callable[[], Numbers]
    parts: tuple[str, ...]  # which it depends on, beside what it is of
    method: str | None = None
    part: str | None = None
    close: float = compare.CLOSE
    needs: tuple[str, ...] = ()  # packages that are extras

    def numerics(self) -> dict[str, int]:
        """The integers of today: its own first, then those of the parts below."""
        own = {}
        if self.method is not None:
            own = {ATTENTION: luna.get(self.method).version()}
        parts = self.parts if self.part is None else (self.part, *self.parts)
        return own | {name: PARTS[name].numerics for name in parts}

    @property
    def subject(self) -> str:
        if self.part is not None:
            return f"the {self.part}"
        return self.method if self.name == self.method else f"{self.method}'s kernel {self.name}"

    def remedy(self) -> str:
        """Which integer to raise, where, and what to write then."""
        again = f"then `make golden NAME={self.name}`"
        if self.part is not None:
            number = PARTS[self.part].numerics + 1
            raised = f"raise PARTS['{self.part}'] in lra/base/versions.py to {number}"
            return f"{raised}, then `make golden`"
        assert self.method is not None
        cls = luna.get(self.method)
        return f"raise `numerics` of {cls.__name__} to {cls.numerics + 1}, {again}"

    def place(self) -> str:
        if self.part is not None:
            return " or ".join(m.replace(".", "/") + ".py" for m in PARTS[self.part].modules)
        assert self.method is not None
        file = Path(inspect.getfile(luna.get(self.method))).resolve()
        return file.relative_to(ROOT).as_posix() if file.is_relative_to(ROOT) else file.name


@cache
def every() -> dict[str, Golden]:
    parts = [
        Golden(f"_{name}", measure, BELOW.get(name, ()), part=name, needs=NEEDS.get(name, ()))
        for name, measure in PARTS_MEASURED.items()
    ]
    of_methods = [
        Golden(name, partial(methods.measure, name), TRAINING, method=name)
        for name in methods.names()
    ]
    of_kernels = [
        Golden(f"_kernel_{name}", measure, (), method=method, close=compare.SINGLE)
        for name, (method, measure) in kernels.KERNELS.items()
    ]
    made = [*parts, *of_methods, *of_kernels]
    return {golden.name: golden for golden in made}


@cache
def moved(name: str) -> Moved | None:
    """The first number that moved since the file was written; measured once in a process."""
    golden, before = every()[name], compare.kept(name)
    assert before is not None, f"{name} has no file yet: make golden NAME={name}"
    return compare.first_moved(golden.measure(), before, golden.close)


def stale(name: str) -> str:
    """Say which integer is not that of the file; empty where all are."""
    golden, before = every()[name], compare.kept(name)
    if before is None:
        return f"{golden.subject} has no golden run yet: make golden NAME={name}"
    for key, now in golden.numerics().items():
        was = before["numerics"].get(key, 1)  # or the part was declared later
        if was != now:
            return (
                f"{golden.place()}: numerics of the {key} is {now}, and {was} in "
                f"tests/golden/runs/{name}.json: write the file again: make golden"
            )
    return ""


def problem(name: str) -> str:
    """One sentence: what moved, and which integer to raise; empty where all is as it was."""
    if said := stale(name):
        return said
    if (what := moved(name)) is None:
        return ""
    golden = every()[name]
    said = f"{golden.place()}: the numbers of {golden.subject} moved ({what})"
    for part in golden.parts:
        if not stale(f"_{part}") and moved(f"_{part}"):
            first = every()[f"_{part}"]
            kept = f"tests/golden/runs/{first.name}.json"
            return f"{said} with {first.subject}, see {kept}: {first.remedy()}"
    return f"{said}: {golden.remedy()}"
