"""Protocols and model sizes resolve, task by task, to the numbers of their sources: protocols.csv,
which was held against transcriptions of the released codes and papers that the files name.

    python -m tests.lra.settings.test_protocols    write it anew, after a change of a protocol
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import InterpolationKeyError, ValidationError

from lra import data
from lra.base.config import Dev
from lra.base.errors import UserError
from lra.base.places import CONFIGS
from lra.settings.compose import compose, task_settings
from lra.settings.experiment import plain

from ..conftest import read_settings

GOLDEN = Path(__file__).with_name("protocols.csv")
PROTOCOLS = ["luna", "skyformer", "lotformer", "nystrom", "official", "s4"]
FIVE = ["listops", "text", "retrieval", "image", "pathfinder"]
S4 = ["listops", "text", "image", "pathfinder", "pathx"]
EIGHT = [*FIVE, "pathfinder64", "pathx", "pathfinder256"]
METHODS = [
    "softmax",
    "bigbird",
    "linear",
    "linformer",
    "local",
    "longformer",
    "performer",
    "performer_relu",
    "reformer",
    "synthesizer",
    "luna",
]


def cases() -> Iterator[tuple[str, str, str, str]]:
    """Protocol, task, model, attention."""
    for name in PROTOCOLS[:-1]:
        for task in EIGHT if name in ("luna", "official") else FIVE:
            yield name, task, "small", "softmax"
    yield from (("s4", task, "s4", "s4d") for task in S4)
    for task in EIGHT:
        by_method = task in ("image", "pathfinder")
        yield from (("official", task, "official", m) for m in METHODS[: None if by_method else 1])
    yield "luna", "image", "base", "softmax"


def row(name: str, task: str, model: str, attention: str) -> dict[str, str]:
    protocol, sizes = read_settings(name, task, model, f"attention.name={attention}")
    facts: dict[str, Any] = {"task": task, "attention": attention} | plain(asdict(protocol))
    for part in ("data", "style", "recipe", "evaluation"):
        facts |= facts.pop(part)
    facts |= {f"model.{key}": value for key, value in asdict(sizes).items()}
    return {k: str(v) for k, v in facts.items() if not k.endswith(("tasks", "methods", "sizes_of"))}


@pytest.mark.parametrize("case", list(cases()), ids="-".join)
def test_numbers_of_a_protocol(case: tuple[str, str, str, str]):
    with GOLDEN.open(encoding="utf-8") as file:
        golden = {
            (r["name"], r["task"], r["model.name"], r["attention"]): r for r in csv.DictReader(file)
        }
    assert row(*case) == golden[case]


# ---------------------------------------------------------------- what a protocol asks of the data

DEV = {name: Dev.train if name in ("luna", "s4") else Dev.test for name in PROTOCOLS}


@pytest.mark.parametrize("name", PROTOCOLS)
def test_where_the_dev_split_of_text_comes_from(name):
    """The same for a run and for the command that prepares its data, and both can be set."""
    words = ["task=text", f"protocol={name}", f"attention={'s4d' if name == 's4' else 'softmax'}"]
    (other,) = set(Dev) - {DEV[name]}
    assert compose(words).task.dev is DEV[name]
    assert compose([*words, f"protocol.evaluation.dev={other.name}"]).task.dev is other
    prepared, _ = task_settings("text", name)
    assert data.configure("text", [], prepared).dev is DEV[name]
    assert data.configure("text", [f"dev={other.name}"], prepared).dev is other


def test_a_dev_split_of_another_name_is_refused():
    with pytest.raises(UserError, match=r"\[train, test\] full_key: task\.dev"):
        compose(["task=text", "task.dev=val"])


def test_brackets_are_lost_only_where_one_asks_for_it():
    assert {task_settings("listops", name)[0]["brackets"] for name in PROTOCOLS} == {"keep"}
    words = ["task=listops", "protocol=skyformer", "attention=softmax", "task.brackets=drop"]
    assert compose(words).task.brackets.name == "drop"


# ---------------------------------------------------------------- the form of the files


@pytest.mark.parametrize("name", PROTOCOLS)
def test_rows_of_a_protocol_have_the_same_columns_and_each_is_read(name):
    text = (CONFIGS / "protocol" / f"{name}.yaml").read_text(encoding="utf-8")
    table = OmegaConf.create(text).tasks
    assert len({frozenset(of_task) for of_task in table.values()}) == 1
    for column in table.listops:
        assert f"${{protocol.tasks.${{task.name}}.{column}}}" in text


@pytest.mark.parametrize("name", ["skyformer", "lotformer"])
def test_a_task_without_a_row_is_refused(name):
    with pytest.raises(InterpolationKeyError, match=r"protocol\.tasks\.pathx"):
        read_settings(name, "pathx")


def test_the_command_line_overrides_the_table_within_its_choices():
    words = ["protocol.recipe.lr=3e-3", "protocol.style.pooling=cls"]
    protocol, _ = read_settings("luna", "image", "small", *words)
    assert (protocol.recipe.lr, protocol.style.pooling.name) == (3e-3, "cls")
    with pytest.raises(ValidationError, match="pooling"):
        read_settings("luna", "image", "small", "protocol.style.pooling=max")


if __name__ == "__main__":
    rows = [row(*case) for case in cases()]
    with GOLDEN.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
