"""Generated data are the same on every CPU: images, expressions and grey levels, made again
with other instruction sets, have the digests that are written down here."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import pytest
from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

from lra.data import configure, registry
from lra.data.image import grey
from lra.data.listops import generator as listops_generator
from lra.data.pathfinder import generator as pathfinder_generator
from lra.data.pathfinder import sizes
from tests.lra.conftest import command, environment

SAMPLE = {
    "pathfinder": "761f1482a758d952",
    "listops": "faf47aa2749f8440",
    "recall": "678e7f835dece859",
    "single": "88b6313f75ec6632",
    "grey": "ca2de8423c3d46ca",
}
SPECIAL = [name for name in __cpu_dispatch__ if __cpu_features__[name]]  # code of this CPU's own
WITHOUT = {
    "AVX-512": [name for name in SPECIAL if "AVX512" in name or name == "X86_V4"],
    "AVX2 and FMA": SPECIAL,
}
LIBM = "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4"  # other last bits of math.sin and math.pow


def test_every_sample_has_the_digest_of_the_first_machine() -> None:
    assert sample() == SAMPLE


@pytest.mark.parametrize(
    "missing", [pytest.param("AVX-512", marks=pytest.mark.rest), "AVX2 and FMA"]
)
def test_another_instruction_set_gives_the_same_sample(missing: str) -> None:
    chosen = {"NPY_DISABLE_CPU_FEATURES": " ".join(WITHOUT[missing])}
    if missing != "AVX-512":
        chosen["GLIBC_TUNABLES"] = LIBM
    code = f"import json; from {__name__} import *; print(json.dumps([SPECIAL, sample()]))"
    done = command("-c", code, env=environment() | chosen)
    assert done.returncode == 0, done.stderr
    left, found = json.loads(done.stdout)
    assert not set(left) & set(WITHOUT[missing])
    assert found == SAMPLE


def sample() -> dict[str, str]:
    return {what: digest(parts()) for what, parts in PARTS.items()}


def digest(parts: Iterator[object]) -> str:
    """A hash of arrays byte by byte and of numbers bit by bit."""
    found = hashlib.sha256()
    for part in parts:
        found.update(part.tobytes() if isinstance(part, np.ndarray) else repr(part).encode())
    return found.hexdigest()[:16]


@functools.cache
def drawer(side: int) -> pathfinder_generator.ImageGenerator:
    return pathfinder_generator.ImageGenerator(sizes.settings(side, sizes.Difficulty.easy))


def pathfinder() -> Iterator[object]:
    for side in sizes.SIZES:
        for number in range(3):
            image, scene = drawer(side).image(1, number)
            yield from (image, scene.label, scene.margin, scene.markers)


def listops() -> Iterator[object]:
    shape = listops_generator.TreeShape(
        min_length=20, max_length=256, max_depth=6, max_args=5, p_leaf=0.7
    )
    for ids, value in islice(listops_generator.generate(shape, seed=1), 200):
        yield from (ids, value)


def recall() -> Iterator[object]:
    options = configure("recall", ["filler=5"])
    yield from registry.of(options).block(options, 1)


def single() -> Iterator[object]:
    options = configure("single", ["strength=7.3"])
    yield from registry.of(options).block(options, 1)


def colours() -> Iterator[object]:
    yield grey(np.random.default_rng(0).integers(0, 256, (100, 3, 1024), np.uint8))


PARTS: dict[str, Callable[[], Iterator[object]]] = {
    "pathfinder": pathfinder,
    "listops": listops,
    "recall": recall,
    "single": single,
    "grey": colours,
}
