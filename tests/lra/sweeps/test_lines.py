"""What a sweep prints as its jobs begin."""

from __future__ import annotations

import logging

import pytest

from lra.sweeps.lines import Formatter


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("\t#3 : task=text attention=luna seed=2 runs_dir=a", "#3 begins: attention=luna seed=2"),
        ("\t#0 : task=text runs_dir=a", "#0 begins"),
        ("Launching 4 jobs locally", "Launching 4 jobs locally"),
    ],
)
def test_a_job_is_named_by_what_the_command_does_not_say_of_all(
    message: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["train.py", "-m", "task=text", "attention=luna,linear", "seed=1,2", "runs_dir=a"]
    monkeypatch.setattr("sys.argv", words)
    record = logging.LogRecord("hydra", logging.INFO, "", 0, message, (), None)
    assert Formatter("%(message)s").format(record) == line
