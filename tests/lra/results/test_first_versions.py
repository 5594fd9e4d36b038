"""Records by declared versions: which runs share a row, and which are told apart by their code."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.base.errors import UserError
from lra.results.record import read_all
from tests.lra.synthetic import table, write_run

ONES = {"attention": 1, "step": 1}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "records"


def of_codes(records: Path, *codes: str, **more) -> None:
    """A run of each code, with a seed of its own."""
    for seed, code in enumerate(codes, start=1):
        write_run(records, "linear", 0.4, seed=seed, codes=[code], **more)


def test_runs_of_one_version_and_several_sources_share_a_row_that_says_so(records: Path):
    of_codes(records, "aaaa1111", "bbbb2222", numerics=ONES)
    made = table(records)
    assert list(made.rows.index) == ["linear"]
    [note] = [note for note in made.notes if "made by code that differs" in note]
    assert note.startswith("linear: ")


def test_early_records_are_told_apart_by_their_code(records: Path):
    of_codes(records, "aaaa1111", "bbbb2222")
    assert list(table(records).rows.index) == ["linear code=aaaa1111", "linear code=bbbb2222"]


def test_early_records_of_a_known_code_are_those_of_version_1(records: Path):
    of_codes(records, "aaaa1111", "bbbb2222", "cccc3333")
    (records.parent / "numerics.yaml").write_text("linear: [aaaa1111, bbbb2222]\n")
    names = list(table(records).rows.index)
    assert len(names) == 2
    assert "linear code=cccc3333" in names
    (records.parent / "numerics.yaml").write_text("linear: aaaa1111\n")
    with pytest.raises(UserError, match="each attention has a list of hashes of code"):
        [record.version for record in read_all([records])]


def test_a_plugin_is_told_apart_by_its_source(records: Path):
    """It declares no version: of its parts those from outside decide."""
    outside = {"the step": "x", "the chosen optimizer": "y"}
    of_codes(records, "aaaa1111", numerics=ONES, code=outside)
    write_run(
        records, "linear", 0.4, seed=2, codes=["bbbb2222"], numerics=ONES, code={"the step": "z"}
    )
    first, second = read_all([records])
    assert first.version != second.version == ""
    own = {"step": 1}
    write_run(records, "mine", 0.4, codes=["c"], numerics=own, code={"the attention mine": "w"})
    assert read_all([records])[-1].version
