"""The list of all checks, and what runs them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, cast

import luna
from luna.mixing import Layered
from luna.testing import graphs, mixers, numbers, padding, shapes, states, streaming
from luna.testing.cases import Case, Contradiction, hold
from luna.testing.subject import Subject


@dataclass(frozen=True)
class Check:
    """One check: its name, by which a method may excuse itself, and what it is about."""

    name: str
    run: Callable[[Any], None]
    about: str = "all"  # all: a Subject; attention: a Case of an attention; case: any Case
    strict: bool = True  # only under the strict profile
    slow: bool = False  # by itself longer than all others: with --all
    excuse: str = ""  # the name in `exempt`, of a check that shares another's

    @property
    def says(self) -> str:
        """What holds, in one sentence: the first of its function."""
        return re.split(r"\. |\.$", " ".join((self.run.__doc__ or "").split()))[0]

    def applies(self, case: Case) -> bool:
        if self.strict and case.profile != "strict":
            return False
        return self.about != "attention" or case.is_attention

    def __call__(self, case: Case) -> None:
        self.run(Subject.of(case) if self.about == "all" else case)


def excuses(case: Case) -> None:
    """What a method is exempt from is the name of a check."""
    unknown = set(case.mixer().traits().exempt) - NAMES
    listed = ", ".join(sorted(NAMES))
    hold(not unknown, f"exempt names {', '.join(unknown)}, which is no check: {listed}")


CHECKS: tuple[Check, ...] = (
    Check("facts", states.facts, "case"),
    Check("excuses", excuses, "case"),
    Check("mixer", mixers.as_mixer, "case"),
    Check("rates", mixers.rates, "case"),
    Check("shape", shapes.shape, "attention"),
    Check("d_v", shapes.d_v, "attention", strict=False),
    Check("one_token", shapes.one_token, "attention"),
    Check("mask", shapes.no_mask, "attention"),
    Check("strides", shapes.strides, "attention"),
    Check("max_len", shapes.max_len, "attention"),
    Check("contract", shapes.contract, "attention"),
    Check("matrix", shapes.matrix, "attention", strict=False),
    Check("cross", shapes.cross, "attention"),
    Check("no_cross", shapes.no_cross, "attention"),
    Check("profiles", shapes.every_profile, "attention"),
    Check("padding", padding.padding),
    Check("content", padding.content),
    Check("batch", padding.batch),
    Check("holes", padding.holes),
    Check("all_padded", padding.all_padded),
    Check("permutation", padding.permutation),
    Check("heads", padding.heads, "attention"),
    Check("constant", padding.constant, "attention"),
    Check("compares", padding.compares, "attention"),
    Check("convex", padding.convex, "attention"),
    Check("scale", padding.scale, "attention"),
    Check("causal", streaming.causal),
    Check("future", streaming.future),
    Check("chunks", streaming.chunks, "attention", excuse="causal"),
    Check("states", streaming.states, "attention"),
    Check("mixer_streams", mixers.mixer_streams, "case"),
    Check("gradients", numbers.gradients, strict=False),
    Check("second", numbers.second),
    Check("learns", numbers.learns),
    Check("dead_weight", numbers.dead_weight, "case"),
    Check("half_precision", numbers.half_precision, strict=False),
    Check("float32", numbers.float32),
    Check("extreme", numbers.extreme),
    Check("eval", states.evaluation),
    Check("draws", states.draws),
    Check("seed", states.seed),
    Check("state", states.state),
    Check("copy", states.deep_copy),
    Check("dropout", states.dropout),
    Check("layers", states.layers),
    Check("memory", states.memory),
    Check("speed", states.speed),
    Check("compiled", graphs.compiled, strict=False, slow=True),
)
NAMES = {check.name for check in CHECKS}


@dataclass(frozen=True)
class Result:
    name: str
    problem: str = ""  # empty where the check holds
    excused: str = ""  # the method's reason, where it is exempt
    seconds: float = 0.0


def check(case: Case, *, slow: bool = False) -> Iterator[Result]:
    """Run every check that applies, one after the other. An excuse that is not needed is a problem
    too. Of a choice of methods by layer each of them is checked as itself."""
    if issubclass(case.cls, Layered):
        for layer in of_layers(case):
            for result in check(layer, slow=slow):
                yield replace(result, name=f"{layer} {result.name}")
        return
    exempt = exempt_of(case)
    for one in CHECKS:
        if not one.applies(case) or (one.slow and not slow):
            continue
        began = time.perf_counter()
        problem = problem_of(one, case)
        seconds = time.perf_counter() - began
        reason = excuse_of(one, exempt)
        if reason and not problem:
            problem = f"it is exempt ({reason}) and holds: take '{one.name}' out of exempt"
            reason = ""
        yield Result(one.name, "" if reason else problem, reason, seconds)


def of_layers(case: Case) -> list[Case]:
    """The methods that the layers of a choice have, each once."""
    found: dict[str, Case] = {}
    layers = case.options.get("layers", luna.options(case.name)["layers"].default)
    for layer in range(len(layers)):
        entry = cast(type[Layered], case.cls).of_layer(layer, layers)
        one = Case(entry.pop("name"), entry, case.profile)
        found.setdefault(str(one), one)
    return [*found.values()]


def exempt_of(case: Case) -> dict[str, str]:
    """What a method declares that it is exempt from, and why."""
    return case.mixer().traits().exempt


def excuse_of(one: Check, exempt: dict[str, str]) -> str:
    """Why a method is exempt from a check, if it is."""
    return exempt.get(one.excuse or one.name, "")


def problem_of(one: Check, case: Case) -> str:
    try:
        one(case)
    except Contradiction as error:
        return str(error)
    except Exception as error:  # whatever a method raises is a problem of this check, and no crash
        return f"it ends in {type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return ""
