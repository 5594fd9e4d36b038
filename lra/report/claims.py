"""What pages say of results, and what makes it true: results/claims.yaml.

A claim is a sentence of a page with a name in the place of each number, where each number comes
from, and conditions that must hold:

    - in: [README.md]
      says: "At full length `linear` stays at {linear.score:.1f} %."
      values:
        linear: {cell: published_listops, row: linear, column: listops}
      holds: [linear.largest < 20]

`lra table --write` writes the numbers of today's tables into the sentence where it stands, and
`lra table --check` fails if a page has other numbers or no such sentence, or if a condition is
false. Numbers of a page that are in no claim fail too: `apart` lists the few that come from
nowhere in results/, such as those of a paper.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from lra.base.errors import UserError, readable
from lra.base.yaml_data import read_yaml
from lra.report.table import Table
from lra.report.values import Value, value_of
from lra.runs.facts import refuse_steering

FILE = "claims.yaml"
NAMED = re.compile(r"\{([^{}]+)\}")
FORM = re.compile(r"\+?,?(\.\d)?[dfg]?")
LONGEST = 500  # letters of a formula
WRITTEN = r"([-+−~≈]?\d[\d.,]*(?: ± \d[\d.]*)?(?:[,;] ?\d[\d.,]*(?: ± \d[\d.]*)?)*)"
# A measured number: with a fraction, a deviation or a percent sign behind it.
MEASURED = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*\.\d+(?![\w.]*\w)|(?<![\w.])\d[\d,]*(?= %)")
# Where numbers are no statements: code, addresses of links, comments, headings.
SKIPPED = re.compile(r"```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|^#.*?$", re.S | re.M)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"{text!r} is no regular expression: {error}") from error
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]
Texts = Annotated[list[str], BeforeValidator(_listed)]


class Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: Texts = Field(alias="in")
    says: str
    values: dict[str, dict[str, Any]] = {}
    holds: Texts = []


class Claims(BaseModel):
    """`pages` have no measured number outside of claims, but for those `apart`: texts of a page, as
    regular expressions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pages: list[str] = []
    apart: list[Pattern] = []
    claims: list[Claim] = []


def read_claims(results: Path) -> Claims:
    """The claims of a results folder; none without a file of them."""
    path = results / FILE
    if not path.exists():
        return Claims()
    with readable(path, "lra/report/claims.py explains its fields"):
        listed = read_yaml(path)
        refuse_steering(listed)
        return Claims.model_validate(listed)


def checked(results: Path, tables: Sequence[Table]) -> tuple[dict[Path, str], list[str]]:
    """The pages with the numbers of today, and what is wrong whatever numbers stand there."""
    claims, root = read_claims(results), results.parent
    named = {*claims.pages, *(page for claim in claims.claims for page in claim.pages)}
    pages = {page: _page(root, page).read_text(encoding="utf-8") for page in sorted(named)}
    said: dict[str, list[tuple[int, int]]] = {page: [] for page in pages}
    problems: list[str] = []
    for claim in claims.claims:
        values = {name: value_of(source, tables, results) for name, source in claim.values.items()}
        problems += [
            f"no longer true: {condition!r}, of {_short(claim.says)}"
            for condition in claim.holds
            if not holds(condition, values)
        ]
        for page in claim.pages:
            found = [*pattern_of(claim.says).finditer(pages[page])]
            if not found:
                problems.append(f"{page} does not say: {_short(claim.says)}")
            for match in reversed(found):
                pages[page] = _filled(pages[page], match, numbers_of(claim.says, values))
    for claim in claims.claims:  # places after all numbers are written
        for page in claim.pages:
            said[page] += [m.span() for m in pattern_of(claim.says).finditer(pages[page])]
    for page in claims.pages:
        problems += _unclaimed(page, pages[page], said[page], claims.apart)
    return {root / page: text for page, text in pages.items()}, problems


def _page(root: Path, page: str) -> Path:
    """The place of a page, which is written: a text of this project."""
    path = root / page
    inside = path.resolve().is_relative_to(root.resolve())
    if not (inside and path.suffix == ".md" and path.is_file()):
        raise UserError(f"a claim names the page {page}, which is no .md file of {root.resolve()}")
    return path


def _short(text: str) -> str:
    words = " ".join(text.split())
    return repr(words if len(words) <= 90 else f"{words[:87]}...")


# ---------------------------------------------------------------------- sentences


def pattern_of(says: str) -> re.Pattern[str]:
    """The sentence with any numbers, whichever way its lines are broken."""
    parts = NAMED.split(" ".join(says.split()))
    literal = [re.escape(part).replace(r"\ ", r"\s+") for part in parts[::2]]
    return re.compile(WRITTEN.join(literal))


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
        except ValueError as error:
            raise UserError(f"a claim cannot be written: '{place}': {error}") from error
        numbers.append(text.replace("-", "−"))
    return numbers


def _filled(text: str, match: re.Match[str], numbers: Sequence[str]) -> str:
    for group in range(len(numbers), 0, -1):
        start, end = match.span(group)
        text = text[:start] + numbers[group - 1] + text[end:]
    return text


def _unclaimed(
    page: str, text: str, said: Iterable[tuple[int, int]], apart: Sequence[str]
) -> Iterator[str]:
    """The measured numbers of a page that no claim has."""
    spans = [*said, *(m.span() for m in SKIPPED.finditer(text))]
    spans += [m.span() for known in apart for m in re.finditer(known, text)]
    for match in MEASURED.finditer(text):
        start, end = match.span()
        if not any(low <= start and end <= high for low, high in spans):
            line = text.count("\n", 0, start) + 1
            yield f"{page}, line {line}: no claim has the number {match[0]}"


# ---------------------------------------------------------------------- conditions

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
