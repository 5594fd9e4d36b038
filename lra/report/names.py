"""Rows, columns and tasks in words, for those who do not know the options."""

from __future__ import annotations

import pandas as pd

from lra.looks import look_of
from lra.report.table import Table
from lra.results.frame import usual_of

NAMES = {
    "listops": "ListOps",
    "pathx": "Path-X",
    "image8": "Image, 8 x 8",
    "image16": "Image, 16 x 16",
    "fuzzy": "Fuzzy recall",
    "hops": "Two hops",
    "forgetting": "The latest value",
    "spatial": "Two dimensions",
    "group": "Words in a group",
    "cola": "CoLA",
    "sst2": "SST-2",
    "stsb": "STS-B",
    **{name: name.upper() for name in ("mrpc", "qqp", "mnli", "qnli", "rte")},
}


def task_name(task: str) -> str:
    """A task in words; one that is not named here, such as a user's, keeps its name."""
    return NAMES.get(task, task.capitalize() if task.islower() else task)


def heading(table: Table, column: str) -> str:
    """`ListOps`, or `pairs 16` in a table over a setting."""
    return f"{table.axis} {column.partition('=')[2]}" if table.axis else task_name(column)


def names_of(table: Table) -> dict[str, str]:
    """The rows' names in words, with the options that are unusual; with all where two rows would
    have one name. Rows of one name are of several codes: they are told apart by their time."""
    if not table.costs:
        methods = table.rows["attention"].items()
        return {str(label): _converted(str(label), method) for label, method in methods}
    usual = table.cells.groupby("row")["record"].first().map(usual_of)
    words, full = {}, {}
    for label, row in table.rows.iterrows():
        options = {key: value for key, value in row["options"].items() if key != "code"}
        unusual = {k: v for k, v in options.items() if str(v) != str(usual[label].get(k))}
        words[label] = look_of(row["attention"], unusual).name
        full[label] = look_of(row["attention"], options).name
    settings = pd.DataFrame({"words": words, "full": full})
    several = settings.groupby("words")["full"].transform("nunique") > 1
    names = settings["full"].where(several, settings["words"])
    times = table.cells.groupby("row")["record"].first().map(lambda record: record["times.started"])
    return _told_apart(names, times)


def _told_apart(names: pd.Series, times: pd.Series) -> dict[str, str]:
    """The names by label, with `earlier code` or `later code` where two are the same."""
    told = dict[str, str]()
    for name, labels in names.groupby(names, sort=False).groups.items():
        in_time = sorted(labels, key=lambda label: str(times[label]))
        for i, label in enumerate(in_time, 1):
            place = f"code {i} of {len(labels)}"
            if len(labels) == 2:
                place = "earlier code" if i == 1 else "later code"
            told[str(label)] = str(name) if len(labels) == 1 else f"{name}, {place}"
    return {str(label): told[str(label)] for label in names.index}


def _converted(label: str, method: str) -> str:
    """A row of a conversion table in words; what it says of its stages stays."""
    options, comma, stages = label.partition(", ")
    pairs = [word.partition("=") for word in options.split()[1:]]
    return look_of(method, {key: value for key, _, value in pairs}).name + comma + stages
