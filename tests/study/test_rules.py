"""Kept scores of rules are those of a fresh fit, within one standard error."""

from __future__ import annotations

from pathlib import Path

import pytest

import lra.data
from lra.data import registry
from lra.data.prepare import prepare
from lra.data.rules import baselines, read_scores
from lra.report.stats import noise_of_share

KEPT = Path(__file__).resolve().parents[2] / "results" / "rules.jsonl"
FITTED = ["bag", "counts", "counts and extremes"]
SHORT = {"n_train": 20000, "n_val": 500, "n_test": 2000}
SHORT |= {"max_args": 4, "max_depth": 4, "min_length": 4, "max_length": 60}


@pytest.mark.rest
def test_fresh_rules_of_short_listops_are_the_kept_ones(tmp_path: Path) -> None:
    options = lra.data.configure("listops", [f"{name}={value}" for name, value in SHORT.items()])
    made = prepare(options, max_length=64, data_dir=tmp_path, workers=1)
    fresh = baselines(made, registry.of_facts(made.facts), FITTED)["rules"]
    (line,) = [line for line in read_scores(KEPT) if line["fingerprint"] == made.fingerprint]
    for split, examples in (("val", SHORT["n_val"]), ("test", SHORT["n_test"])):
        for name in FITTED:
            kept = line["rules"][name][split]
            assert abs(fresh[name][split] - kept) <= noise_of_share(kept, examples), (name, split)
