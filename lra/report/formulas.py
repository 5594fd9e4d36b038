"""Formulas of claims and excerpts: numbers of results, their arithmetic and comparisons. No formula
runs code."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from numbers import Real
from typing import Any

from lra.base.errors import UserError
from lra.report.value import Value

NAMED = re.compile(r"\{([^{}]+)\}")
FORM = re.compile(r"\+?,?(\.\d)?[dfg]?")
LONGEST = 500  # letters of a formula


def numbers_of(says: str, values: Mapping[str, Value]) -> list[str]:
    """What stands in the places of a sentence: `{linear}`, `{linear.score:.1f}`, or of several
    names a formula: `{luna.score - linear.score:+.1f}`."""
    numbers = []
    for place in NAMED.findall(" ".join(says.split())):
        formula, colon, form = place.partition(":")
        value = evaluate(formula, values)
        if colon and not (FORM.fullmatch(form) and isinstance(value, Real)):
            raise UserError(f"a claim cannot be written: '{place}' has no form such as .1f or +.2f")
        try:
            text = format(value, form) if colon else str(value)
        except (AttributeError, ValueError) as error:
            raise UserError(f"a claim cannot be written: '{place}': {error}") from error
        numbers.append(text.replace("-", "−"))
    return numbers


def written(says: str, values: Mapping[str, Value]) -> str:
    """The text with its numbers."""
    numbers = iter(numbers_of(says, values))
    return NAMED.sub(lambda _: next(numbers), says)


# ---------------------------------------------------------------------- formulas

OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "abs": abs, "round": round}


def holds(condition: str, values: Mapping[str, Value]) -> bool:
    return bool(evaluate(condition, values))


def evaluate(formula: str, values: Mapping[str, Value]) -> Any:
    """Compute a formula of values: their fields, numbers, arithmetic, comparisons, and, or, not,
    min, max, abs, round. Nothing else: a claim runs no code."""
    try:
        if len(formula) > LONGEST:
            raise ValueError(f"it has more than {LONGEST} letters")
        return _evaluated(ast.parse(formula.strip(), mode="eval").body, values)
    except (
        *(SyntaxError, KeyError, AttributeError, TypeError, ValueError),
        *(ArithmeticError, RecursionError, MemoryError),
    ) as error:
        raise UserError(f"a claim cannot be computed: {formula!r}: {error}") from error


def _evaluated(node: ast.expr, values: Mapping[str, Value]) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as constant):
            return constant
        case ast.Name(id=name):
            return values[name]
        case ast.Attribute(value=inner, attr=field) if not field.startswith("_"):
            return _evaluated(inner, values).field(field)
        case ast.UnaryOp(op=op, operand=inner):
            return OPERATORS[type(op)](_evaluated(inner, values))
        case ast.BinOp(left=left, op=op, right=right):
            numbers = [_evaluated(part, values) for part in (left, right)]
            if not all(isinstance(number, Real) for number in numbers):
                raise TypeError("texts are compared, and not computed with")  # 'a' * 10**9
            return OPERATORS[type(op)](*numbers)
        case ast.BoolOp(op=op, values=parts):
            every = [bool(_evaluated(part, values)) for part in parts]
            return all(every) if isinstance(op, ast.And) else any(every)
        case ast.Compare(left=left, ops=ops, comparators=others):
            numbers = [_evaluated(part, values) for part in (left, *others)]
            pairs = zip(ops, numbers[:-1], numbers[1:], strict=True)
            return all(OPERATORS[type(op)](a, b) for op, a, b in pairs)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return FUNCTIONS[name](*(_evaluated(part, values) for part in arguments))
    raise TypeError(f"{ast.unparse(node)} is no number, name, field or comparison")
