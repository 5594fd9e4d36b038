"""Pages of results are templates, in which a sentence stands once, beside what makes it true:

    {% set conv = cell("leaderboard_short", "conv") %}
    {% set all = cells("leaderboard_short") %}
    {% require conv.score > all.largest - 1 %}
    A convolution without any attention has {{ conv.score }} %, the best row {{ all.largest }}.

`lra table --write` writes `RESULTS/pages/NAME.md.jinja` to `RESULTS/NAME.md`, and those in
`pages/above/` to the folder above RESULTS. A page of which a `require` is false is not written:
the answer is its template, line and sentence. A measured number that stands in a template as
letters is refused, but for those that a line above names, say of a paper:
`{% typed "has 35.7 %" %}`.

The language is Jinja's, without a way to run code: docs/pages.md says what a template may call.
"""

from __future__ import annotations

import functools
import math
import re
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader, StrictUndefined, TemplateSyntaxError, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import SandboxedEnvironment

from lra.base.errors import UserError, refuse_steering
from lra.report import between, facts
from lra.report.cell import rounded
from lra.report.study import Fact, Study

FOLDER = "pages"
ABOVE = "above"  # within it: pages of the folder above the results
ENDING = ".md.jinja"
HEAD = "<!-- Made from {}: edit that file. -->\n"
CALLS: tuple[Callable[..., Fact], ...] = (
    *(facts.cell, facts.cells, facts.rule, facts.published, facts.lines, facts.records),
    *(between.effect, between.order, between.welch, between.paired),
    *(between.pair, between.against),
)
# A measured number: with a fraction or a percent sign behind it, and no learning rate.
MEASURED = re.compile(r"(?<![\w.])(?!0\.0)[-+−]?\d[\d,]*\.\d+(?![\w.]*\w)|(?<![\w.])\d[\d,]*(?= %)")
# Where numbers are no statements: what Jinja reads, code, addresses of links, comments, headings.
SKIPPED = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->|^#.*?$",
    re.S | re.M,
)
TYPED = re.compile(r"""\{% typed (["'])(.*?)\1 %\}""")
TAGS = re.compile(r"^\s*\{%.*?%\}\s*$", re.M)
LONGEST = 90  # letters of a sentence that is quoted


def written(study: Study) -> tuple[dict[Path, str], list[str]]:
    """The pages of a study, by their places, and what is wrong in them, a sentence each."""
    pages: dict[Path, str] = {}
    problems: list[str] = []
    for name, place in templates(study.folder):
        text, wrong = rendered(study, name)
        wrong += _typed_by_hand(study.folder / FOLDER / name)
        problems += [f"{FOLDER}/{name}, {sentence}" for sentence in wrong]
        if not wrong:
            pages[place] = HEAD.format(f"{study.folder.name}/{FOLDER}/{name}") + text
    return pages, problems


def templates(results: Path) -> Iterator[tuple[str, Path]]:
    """The name of each template, and the place of its page."""
    folder = results / FOLDER
    for path in sorted(folder.rglob(f"*{ENDING}")):
        name = path.relative_to(folder)
        if name.parts[:-1] not in ((), (ABOVE,)):
            raise UserError(f"{path}: a template lies in {FOLDER}/ or in {FOLDER}/{ABOVE}/")
        above = len(name.parts) > 1
        page = (results.resolve().parent if above else results) / path.name.removesuffix(".jinja")
        yield name.as_posix(), page


def rendered(study: Study, name: str) -> tuple[str, list[str]]:
    """A page, and what is wrong: a requirement that isn't met, or that can't be computed."""
    folder = study.folder / FOLDER
    environment = _environment(study)
    source = (folder / name).read_text(encoding="utf-8")
    try:
        refuse_steering(source.splitlines())
        text = environment.get_template(name).render()
    except TemplateSyntaxError as error:
        return "", [f"line {error.lineno}: {error.message}"]
    except (UserError, TemplateError, TypeError, ValueError, ArithmeticError) as error:
        return "", [f"line {_line_of(error, folder / name)}: {error}"]
    unmet: list[int] = environment.unmet  # type: ignore[attr-defined]
    return text, [
        f"line {line}: no longer true: {condition}; of the sentence {_sentence(source, line)!r}"
        for line, condition in _conditions(source, unmet)
    ]


# ---------------------------------------------------------------------- the language


class Tags(Extension):
    """`require CONDITION` and `typed TEXT`, which write nothing."""

    tags = {"require", "typed"}  # noqa: RUF012 as Jinja declares it

    def parse(self, parser: Parser) -> nodes.Node:
        tag = next(parser.stream)
        value = parser.parse_expression()
        if tag.value == "typed":
            return nodes.ExprStmt(value, lineno=tag.lineno)
        call = self.call_method("_require", [value, nodes.Const(tag.lineno)])
        return nodes.ExprStmt(call, lineno=tag.lineno)

    def _require(self, met: Any, line: int) -> None:
        if not met:
            self.environment.unmet.append(line)  # type: ignore[attr-defined]


class Sandbox(SandboxedEnvironment):
    """Jinja that runs no code and takes no memory: products are of numbers, and there are no
    powers."""

    intercepted_binops = frozenset({"*", "**"})

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(obj, Fact):
            raise UserError("a name that was set hides the call of the same name: set another name")
        return super().is_safe_callable(obj)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not (isinstance(left, Real) and isinstance(right, Real)):
            raise TypeError(f"a page computes no {operator} of these")
        return super().call_binop(context, operator, left, right)


def _environment(study: Study) -> SandboxedEnvironment:
    environment = Sandbox(
        loader=FileSystemLoader(study.folder / FOLDER),
        undefined=StrictUndefined,
        finalize=shown,
        extensions=[Tags],
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.extend(unmet=[])
    environment.globals = {call.__name__: functools.partial(call, study) for call in CALLS}
    environment.filters |= {"to": to, "signed": signed}
    return environment


def shown(value: Any) -> str:
    """How a page writes a value: 48.1 of a score, 1,234 of a count, a minus sign as printed. What a
    macro gives is one line, for a row of a table."""
    if isinstance(value, str):
        return value.replace("\n", " ")
    if isinstance(value, Integral) and not isinstance(value, bool):
        return f"{value:,}".replace("-", "−")
    if isinstance(value, Real) and not isinstance(value, bool):
        return to(value)
    return str(value).replace("-", "−") if isinstance(value, Fact) else str(value)


def to(value: Any, digits: int = 1) -> str:
    """A number with so many digits."""
    return _number(value, digits)


def signed(value: Any, digits: int = 1) -> str:
    """A difference, with its sign."""
    return _number(value, digits, "+")


def _number(value: Any, digits: int, sign: str = "") -> str:
    """Rounded as in tables."""
    if not isinstance(value, Real) or math.isnan(value):
        raise UserError(f"{value!r} is no number that can be written")
    if digits not in range(10):
        raise UserError(f"a number has 0 to 9 digits, not {digits}")
    return format(Decimal(rounded(float(value), digits)), f"{sign},").replace("-", "−")


# ---------------------------------------------------------------------- what is wrong, and where


def _line_of(error: BaseException, template: Path) -> int:
    """The line of a template in which an error arose: Jinja puts it into the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename) == template]
    return next((line for line in reversed(lines) if line), 1)


def _conditions(source: str, unmet: list[int]) -> Iterator[tuple[int, str]]:
    """The requirements that are not met, with their lines."""
    lines = source.splitlines()
    for line in unmet:
        yield line, lines[line - 1].strip().removeprefix("{% require ").removesuffix(" %}")


def _sentence(source: str, line: int) -> str:
    """The sentence that stands below the tags of a line."""
    below = TAGS.sub("", "\n".join(source.splitlines()[line:])).lstrip()
    words = " ".join(below.partition("\n\n")[0].split())
    first = re.split(r"(?<=[.:?!]) (?=[A-Z*`\[])", words, maxsplit=1)[0]
    return first if len(first) <= LONGEST else f"{first[: LONGEST - 3]}..."


def _typed_by_hand(path: Path) -> Iterator[str]:
    """The measured numbers of a template that stand there as letters."""
    source = path.read_text(encoding="utf-8")
    spans = [match.span() for match in SKIPPED.finditer(source)]
    for _, known in TYPED.findall(source):
        words = r"\s+".join(map(re.escape, known.split()))
        spans += [match.span() for match in re.finditer(words, source)]
    for match in MEASURED.finditer(source):
        start, end = match.span()
        if not any(low <= start and end <= high for low, high in spans):
            line = source.count("\n", 0, start) + 1
            yield (
                f"line {line}: the number {match[0]} is typed: take it from a table, or say "
                'above its sentence that it comes from elsewhere: {% typed "' + match[0] + '" %}'
            )
