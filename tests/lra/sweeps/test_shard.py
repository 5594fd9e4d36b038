"""`shard=3/64`: parts of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.disk import read_json
from lra.cli import main
from lra.settings.search_path import initialised
from lra.sweeps import sweep
from lra.sweeps.shard import is_own, without_shard
from lra.sweeps.status import jobs
from lra.sweeps.sweep import Outcome

Capture = pytest.CaptureFixture[str]


def test_parts_are_the_whole_and_share_nothing():
    for parts in (1, 2, 5, 64):
        owners = [
            [part for part in range(1, parts + 1) if is_own(f"{part}/{parts}", number)]
            for number in range(150)
        ]
        assert all(len(owner) == 1 for owner in owners)
        counts = [sum(owner == [part] for owner in owners) for part in range(1, parts + 1)]
        assert max(counts) - min(counts) <= 1
    assert is_own(None, 7)


def test_a_sweep_does_its_part(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
):
    """And its runs do not know of which part they were."""
    done: list[list[str]] = []

    def attempt(run: object, words: list[str], label: str) -> Outcome:
        done.append(words)
        return Outcome(words, "done")

    monkeypatch.setattr(sweep, "attempt", attempt)
    words = [*overrides, "attention=linear,uniform,softmax", "seed=1,2"]
    words = [word for word in words if word != "attention=linear"]
    for part in (1, 2):
        assert main(["train", "-m", *words, f"shard={part}/2"]) == 0
        assert "sweep of 6: 3 done, 3 of other shards" in capsys.readouterr().out
    assert len({*map(tuple, done)}) == 6
    assert not any(word.startswith("shard") for job in done for word in job)
    states = [read_json(file)["state"] for file in sorted(tmp_path.rglob("outcomes/*.json"))]
    assert states.count("done") == 6
    with initialised():
        listed = [*jobs([*words, "shard=2/2"])]
    assert [without_shard(job) for job in listed] == done[3:]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["-m", "seed=1,2", "shard=3/2"], "a part and the number of parts, such as 3/64"),
        (["-m", "seed=1,2", "shard=0/2"], "such as 3/64"),
        (["-m", "seed=1,2", "shard=2"], "such as 3/64"),
        (["shard=1/2"], "this is one run: add -m"),
    ],
)
def test_what_is_no_part_is_a_sentence(
    overrides: list[str], capsys: Capture, more: list[str], sentence: str
):
    try:
        code = main(["train", *overrides, *more])
    except SystemExit as ended:  # of a sweep, by Hydra's hand
        code = ended.code
    assert code == 2
    assert sentence in capsys.readouterr().err
