"""What was prepared, and examples of it, in the words of `lra data`."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Iterator
from typing import Any

import numpy as np

from lra.base.errors import printable
from lra.data import registry
from lra.data.arrays import IGNORED, IN_WORDS, Layout, Prepared, Split
from lra.metrics.words import text_of

fill = functools.partial(textwrap.fill, width=100, break_long_words=False, break_on_hyphens=False)


def asked(layout: Layout) -> str:
    """`10 classes`, `1 number`"""
    one = {"labels": "label", "numbers": "number"}.get(layout.asks, layout.asks)
    return f"{layout.classes} {layout.asks if layout.classes != 1 else one}"


def sizes(facts: dict[str, Any]) -> Iterator[str]:
    """Describe what was counted in prepared data, or the part of it that is known."""
    for name, split in facts.get("splits", {}).items():
        words = [f"{IN_WORDS[name]:<5} {split['examples']:>7,} examples"]
        if lengths := split.get("lengths"):
            range_ = f"lengths {lengths['min']:,} to {lengths['max']:,}"
            words.append(f"{range_}, median {lengths['median']:,}")
        words += _labels_in_words(split)
        if split.get("truncated"):
            words.append(f"{split['truncated']:,} cut to {lengths['max']:,}")
        if split.get("constant"):
            words.append(f"{split['constant']:,} of one colour")
        yield ", ".join(words)
    if repeated := facts.get("duplicates"):
        counts = ", ".join(f"{where.replace('val', 'dev')} {n:,}" for where, n in repeated.items())
        yield f"examples that come again: {counts}"
    for reason, count in facts.get("notes", {}).items():
        yield f"{reason}: {count:,}"


def _labels_in_words(split: dict[str, Any]) -> Iterator[str]:
    if labels := split.get("labels"):
        yield f"most frequent label {max(labels) / sum(labels):.1%}"
    if counts := split.get("with_label"):
        most, least = max(counts) / split["examples"], min(counts) / split["examples"]
        yield f"{sum(counts) / split['examples']:.2f} labels each"
        yield f"most frequent label {most:.1%}, rarest {least:.1%}"
    if targets := split.get("targets"):
        yield f"targets from {min(targets['least']):.4g} to {max(targets['largest']):.4g}"
        for name in ("mean", "spread"):
            values = [f"{f(targets[name]):.4g}" for f in (min, max)]
            one = len(targets[name]) == 1
            yield f"{name} {values[0]}" if one else f"{name}s {' to '.join(values)}"


def _label_of(split: Split, i: int) -> str:
    """Spell the label of an example."""
    label, asks = split.labels[i], split.layout.asks
    if asks == "labels":
        return ", ".join(map(str, np.flatnonzero(label))) or "none"
    if asks == "numbers":
        return ", ".join(f"{x:g}" for x in np.atleast_1d(label))
    if split.layout.per_token:
        return ", ".join(f"{at}: {y}" for at, y in enumerate(label) if y != IGNORED)
    return str(label)


def lines(prepared: Prepared, split: Split, i: int) -> Iterator[str]:
    """Show an example with its label, its text, the ids and the mask of their length."""
    layout, at = prepared.layout, np.array([i])
    lengths = split.lengths(at).ravel()
    yield (
        f"{layout.name} {IN_WORDS[split.name]} {i}   label {_label_of(split, i)}   "
        f"length {' and '.join(map(str, lengths))} of {split.width}"
    )
    task = registry.of_facts(prepared.facts)
    for ids, n in zip(split.stored(split.rows(at).ravel()), lengths, strict=True):
        shown = {"mask": f"1 x {n}, 0 x {split.width - n}"}
        if not layout.channels:
            shown = {"ids": " ".join(map(str, ids[:n])), **shown}
        if layout.grid is None:
            shown = {"numbers" if layout.channels else "text": task.decode(ids[:n]), **shown}
        for name, text in shown.items():
            filled = fill(text, initial_indent=f"  {name:<5} ", subsequent_indent=" " * 8)
            yield from map(printable, filled.split("\n"))


def rungs_in_words(rungs: dict[str, Any]) -> Iterator[str]:
    """Say how many test examples need so much to be read, and what rules score on them."""
    beside = rungs["rules"]
    yield "Test examples by the least that a reader must read to be sure (90 %), and the accuracy"
    yield f"of rules on them in %: {', '.join(beside)}."
    for number, name in enumerate(rungs["names"]):
        counts = [of[number] for of in beside.values()]
        shares = " ".join(f"{100 * right / n:6.1f}" if n else "     –" for right, n in counts)
        yield f"{name:<22} {rungs['test'].count(str(number)):6,} {shares}"


HOW = {
    "constant": "one answer",
    "table": "a table",
    "bayes": "naive Bayes",
    "boosting": "gradient boosting",
    "network": "a small network",
}


SHORTEST = 16  # tokens; of fewer nearly any attempt reads them all
MISSED = "Missed are places that say nothing alone, if they are three or more or far too many."


def _verdict(found: dict[str, Any], what: str, scored: str, floor: str) -> Iterator[str]:
    """Say if it is a shortcut: what does not read the whole example."""
    if not found["found"]:
        yield f"No shortcut was found: the best on dev, {what},"
        yield f"has {scored}, one answer to everything {floor}."
        yield MISSED
        return
    tokens, of = found.get("tokens"), found.get("of_tokens")
    if of is not None and of < SHORTEST:
        yield f"Found: {what} has {scored}, one answer to everything {floor}."
        yield f"It may be no shortcut: examples have about {of} tokens, and what was found may read"
        yield f"all of them. From {SHORTEST} tokens on, this search can say which it is."
        return
    if of is not None and (tokens is None or tokens >= of):
        yield f"Not a shortcut: {what} has {scored}, one answer to everything {floor}."
        yield "It reads all tokens, but little of their order. A method that is no better has not"
        yield "shown that it knows the order."
        return
    yield f"A shortcut: {what} has {scored}, one answer to everything {floor}."
    if tokens is not None and of is not None:
        yield f"It reads {100 * tokens / of:.2g} % of the tokens: {tokens} of about {of:,}."
    yield "A method that is no better has not shown that it reads more."


def hunted(found: dict[str, Any]) -> Iterator[str]:
    """Say what a hunt has tried, the best first, and what it is worth."""
    metric, tries = found["metric"], found["tried"]
    digits, unit, sign = metric["digits"], metric["unit"], 1 if metric["higher_is_better"] else -1
    yield f"{metric['title']}{f' in {unit}' if unit else ''} of each attempt on dev:"
    for one in sorted(tries, key=lambda one: -sign * one["val"]):
        yield f"{one['val']:8.{digits}f}  {one['how']:<9} {one['reads']}"
    best, floor = found["best"], text_of(metric, found["constant"])
    low, high = (f"{found[end]:.{digits}f}" for end in ("low", "high"))
    what = f"{HOW[best['how']]} that reads {best['reads']}"
    scored = f"{metric['title']} {text_of(metric, found['test'])} on test"
    scored += f" (95 % interval {low} to {high})"
    yield ""
    yield from _verdict(found, what, scored, floor)
    if found["perfect"]:
        yield "No other attempt can be better."
    elif found["left"]:
        every = len(tries) + found["left"]
        yield f"{found['left']} of {every} attempts were not made: --minutes gives more time."
