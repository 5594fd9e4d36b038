"""What results/listops.md says of the answers of full-length runs, from the answers themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lra
from lra.data.listops.tokens import MAX, MIN, OPENING
from lra.data.prepare import find_or_prepare
from lra.settings.compose import compose

RECORDS = Path(__file__).resolve().parents[2] / "results" / "records" / "published_listops.jsonl"


@pytest.mark.rest
def test_answers_follow_the_first_token(tmp_path: Path):
    run = compose(["experiment=published_listops"])
    length = run.protocol.data.max_length
    prepared = find_or_prepare(run.task, max_length=length, data_dir=tmp_path)
    split = prepared.split("test")
    first = split.ids(np.arange(len(split)), 1)[:, 0]
    assert {*first.tolist()} == {*OPENING}

    given = {}
    for record in lra.records(RECORDS):
        if record["data.options.brackets"] != "drop" or record.answers is None:
            continue
        assert record["data.fingerprint"] == prepared.fingerprint
        name = record.attention, record["seed"], record["machine.kind"], record.score
        given[name] = record.answers
    first = first[: len(next(iter(given.values())))]
    assert (np.sum(first == MAX), np.sum(first == MIN)) == (508, 475)

    above = {name: a.answers for name, a in given.items() if name[-1] > 30}
    assert len(above) == 20
    zeros = sorted(int((answers[first == MIN] == 0).sum()) for answers in above.values())
    assert all((answers[first == MAX] == 9).all() for answers in above.values())
    assert zeros == [469, *[475] * 19]

    one_question = np.where(first == MAX, 9, 0)
    same = [name[:2] for name, a in given.items() if np.array_equal(a.answers, one_question)]
    assert sorted(same) == [("local", 1), ("local", 2), ("performer", 1)]
