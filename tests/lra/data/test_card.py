"""The data card: every task has one, and its numbers are those of the data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lra.data
from lra.data.task import Job, RawSplit
from tests.lra.data.conftest import Numbers

Call = Callable[..., tuple[int, str, str]]


def joined(card: str) -> str:
    """Without its line breaks."""
    return " ".join(card.split())


def row(card: str, name: str) -> list[str]:
    (line,) = (line for line in card.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize("name", lra.data.names())
def test_every_task_and_source_has_a_card(name: str, lra_data: Call, tmp_path: Path) -> None:
    task = lra.data.get(name)
    for source in task.sources:
        words = [f"source={source}"]
        words += [f"path={tmp_path}"] if source in ("files", "release") else []
        code, out, err = lra_data("card", name, *words)
        assert (code, err) == (0, "")
        assert out.splitlines()[0] == f"# {name}: {task.title}"
        printed = joined(out)
        for text in (task.about.origin, task.about.licence, task.about.splits):
            assert text in printed
        assert all(f"- {problem}" in printed for problem in task.about.problems)
        provenance = task.provenance(lra.data.configure(name, words))
        assert f"- source: {source}: {provenance} -" in printed
        assert "Not prepared with these settings: `lra data prepare" in printed
        assert all(len(line) <= 100 or str(tmp_path) in line for line in out.splitlines())


def test_statistics_are_those_of_the_prepared_data(lra_data: Call) -> None:
    words = ("listops", "source=tiny")
    _, printed, _ = lra_data("prepare", *words)
    code, out, _ = lra_data("card", *words)
    assert code == 0
    folder, described = (line.strip() for line in printed.splitlines()[1:3])
    assert f"Counted in {folder}, {described.split(', ')[-1]}." in joined(out)
    assert row(out, "examples") == ["96", "32", "32"]
    assert row(out, "label 9")[0] == "16.7%"
    assert row(out, "length, median")[0] == "23"
    assert row(out, "cut to that length") == ["0", "0", "0"]
    assert "across splits: train 0, val 0, test 0, train/val 0," in out
    assert "Not prepared" not in out


def test_a_picture_has_no_lengths_and_a_pair_is_two(fake: Callable, lra_data: Call) -> None:
    fake("pictures")
    _, out, _ = lra_data("card", "pictures")
    assert "- example: 2 x 3 grey levels of 256, one of 3 labels" in out
    assert "length," not in out
    assert row(out, "of one colour") == ["30", "4", "3"]
    fake("pairs")
    _, out, _ = lra_data("card", "pairs")
    assert "- example: 2 x at most 150 ids of 300, one of 3 labels" in out


def test_what_is_committed_is_printed_where_nothing_is_prepared(
    lra_data: Call, tmp_path: Path
) -> None:
    _, out, _ = lra_data("card", "listops")
    assert row(out, "examples") == ["96,000", "2,000", "2,000"]
    assert row(out, "length, max") == ["1,999", "1,999", "1,998"]
    assert "What follows is known of them." in joined(out)
    _, out, _ = lra_data("card", "listops", "seed=1")
    assert "`lra data prepare listops seed=1 --data-dir" in joined(out)
    assert "known of them" not in out
    assert "| examples |" not in out
    _, out, _ = lra_data("card", "retrieval", f"path={tmp_path}")  # of the release only counts are
    assert row(out, "examples") == ["147,086", "18,090", "17,437"]
    assert "label 0" not in out


def test_the_protocol_decides_which_data_are_meant(lra_data: Call) -> None:
    _, out, _ = lra_data("card", "text", "--protocol", "official")
    assert "- options: dev=test" in out
    assert row(out, "examples") == ["25,000"] * 3
    assert row(out, "length, max") == ["1,000"] * 3


def test_what_was_skipped_is_printed(
    fake: Callable, lra_data: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = Numbers.splits

    def skipping(self: Numbers, options: Any, job: Job) -> list[RawSplit]:
        job.notes["train: odd ones skipped"] = 1234
        return splits(self, options, job)

    monkeypatch.setattr(Numbers, "splits", skipping)
    fake("numbers")
    assert "\ntrain: odd ones skipped: 1,234\n" in lra_data("card", "numbers")[1]
