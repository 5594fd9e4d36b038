"""What each setting changes while all others are equal."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra.base.errors import UserError
from lra.cli import main
from lra.report.specs import TableSpec
from lra.report.trainings import build
from lra.results import record as records
from lra.results.frame import frame_of

from ..synthetic import Make, table

LR = "protocol.recipe.lr"
Capture = pytest.CaptureFixture[str]


def lines(runs: Path, *vary: str, **spec: object) -> dict[str, Any]:
    return by_name(table(runs, vary=list(vary), effects=True, **spec).effects)


def by_name(frame: pd.DataFrame) -> dict[str, Any]:
    return {f"{e.setting} {e.level} {e.base} {e.where}".strip(): e for e in frame.itertuples()}


def of(*runs: records.Record) -> Any:
    """The only effect of these runs."""
    apart = [
        dataclasses.replace(r, facts=r.facts | {"identity": str(i)}) for i, r in enumerate(runs)
    ]
    spec = TableSpec(name="t", title="T", effects=True)
    (line,) = by_name(build(spec, frame_of(apart)).effects).values()
    return line


def crossed(make: Make) -> None:
    """luna is 5 points worse than softmax, the branch 2 better with softmax and 10 with luna, the
    high rate 1 better, seed 2 is 3 better; luna lacks seed 2 at the high rate."""
    for attention, of_attention, of_branch in (("softmax", 0.0, 0.02), ("luna", -0.05, 0.1)):
        for dwc, branch in (("none", 0.0), ("conv1d", of_branch)):
            for lr, rate in ((0.002, 0.0), (0.1, 0.01)):
                for seed in (1, 2):
                    if (attention, lr, seed) != ("luna", 0.1, 2):
                        accuracy = 0.5 + of_attention + branch + rate + 0.03 * seed
                        make(attention, accuracy, options={"dwc": dwc}, lr=lr, seed=seed)


def test_compared_runs_differ_in_one_setting_alone(make: Make, runs: Path):
    crossed(make)
    effect = lines(runs, LR)
    luna = effect["attention luna softmax"]
    assert luna.differences == pytest.approx([-5] * 3 + [3] * 3)
    assert (luna.pairs, luna.runs) == (4, 6)  # rows with both seeds, and without
    # Seeds are no pairs of rows: t(0.975, 3) = 3.182446; the deviation of -5, -5, 3, 3 is 4.618802
    assert luna.mean == pytest.approx(-1)
    assert luna.high - luna.mean == pytest.approx(3.182446 * 4.618802 / 2, rel=1e-6)
    # Means over all runs of each rate would differ by less: the best runs are missing from one.
    rate = effect["lr 0.1 0.002 luna dwc=none"]
    assert rate.differences == pytest.approx([1])


def test_methods_are_not_averaged_with_each_other(make: Make, runs: Path):
    """The branch brings softmax 2 points and luna 10: an average of 6 would be true of neither."""
    crossed(make)
    effect = lines(runs, LR)
    found = {name: e.mean for name, e in effect.items() if e.setting == "dwc"}
    assert found == {
        "dwc conv1d none softmax lr=0.002": pytest.approx(2),
        "dwc conv1d none softmax lr=0.1": pytest.approx(2),
        "dwc conv1d none luna lr=0.002": pytest.approx(10),
        "dwc conv1d none luna lr=0.1": pytest.approx(10),
    }


def test_three_pairs_of_one_method_are_averaged_and_two_are_not(make: Make, runs: Path):
    """Of two pairs the seeds alone make an interval, in which no run need lie."""
    for lr, gain in ((0.002, 0.04), (0.1, 0.24)):
        for seed in (1, 2, 3):
            for method in ("luna", "linear"):
                for dwc in ("none", "conv1d"):
                    accuracy = 0.3 + 0.001 * seed + gain * (dwc == "conv1d")
                    make(method, accuracy, options={"dwc": dwc}, lr=lr, seed=seed)
    branch = {name: e for name, e in lines(runs, LR).items() if e.setting == "dwc"}
    assert len(branch) == 4
    for effect in branch.values():
        assert (effect.pairs, effect.runs) == (1, 3)
        inside = [d for d in effect.differences if effect.low - 1e-9 <= d <= effect.high + 1e-9]
        assert inside == effect.differences
    for method in ("luna", "linear"):
        for dwc in ("none", "conv1d"):
            make(method, 0.3 + 0.1 * (dwc == "conv1d"), options={"dwc": dwc}, lr=0.5)
    branch = {name: e for name, e in lines(runs, LR).items() if e.setting == "dwc"}
    assert set(branch) == {"dwc conv1d none luna", "dwc conv1d none linear"}
    for effect in branch.values():
        assert effect.pairs == 3
        assert effect.mean == pytest.approx((4 + 24 + 10) / 3)
        # t(0.975, 2) = 4.302653; the deviation of 4, 24, 10 is 10.263203
        assert effect.high - effect.mean == pytest.approx(4.302653 * 10.263203 / 3**0.5, rel=1e-6)


def test_attentions_are_compared_without_self_pretraining(make: Make, runs: Path):
    """It costs luna ten points more than softmax; without it they are one point apart."""
    make("softmax", 0.5)
    make("luna", 0.49)
    plain = records.load_records([runs])
    pretrained = [
        dataclasses.replace(
            run,
            facts=run.facts
            | {
                "identity": f"{run['attention.name']}-masked",
                "score": {"softmax": 45.0, "luna": 34.0}[run["attention.name"]],
                "settings": run["settings"] | {"pretrain": {"name": "masked"}},
            },
        )
        for run in plain
    ]
    spec = TableSpec(name="t", title="T", effects=True)
    effect = by_name(build(spec, frame_of([*plain, *pretrained])).effects)
    assert effect["attention luna softmax"].differences == pytest.approx([-1])
    assert effect["pretrain masked none luna"].differences == pytest.approx([-15])


def test_settings_that_are_changed_together_count_as_one(make: Make, runs: Path):
    """At constant width no two runs differ in M alone."""
    for m, output, accuracy in ((8, True, 0.5), (8, "exp", 0.9), (16, True, 0.3)):
        make("luna", accuracy, options={"M": m, "L": 64 // m, "nonneg": output})
    assert list(lines(runs)) == ["nonneg exp True"]
    effect = lines(runs, together=["attention.M", "attention.L"])
    assert list(effect) == ["M x L 16 x 4 8 x 8", "nonneg exp True"]
    assert effect["M x L 16 x 4 8 x 8"].differences == pytest.approx([-20])
    with pytest.raises(UserError, match="`together` names 'kernel', in which these runs do not"):
        lines(runs, together=["attention.kernel"])


def test_rows_whose_rate_was_chosen_from_others_make_no_pair(make: Make, runs: Path):
    """A search over more rates finds better ones: that is no effect of the other setting."""
    for output, lr, accuracy in ((True, 0.002, 0.5), (True, 0.1, 0.7), ("exp", 0.002, 0.6)):
        make("luna", accuracy, options={"nonneg": output}, lr=lr)
    assert not lines(runs, choose=LR)
    make("luna", 0.8, options={"nonneg": "exp"}, lr=0.1)
    (line,) = lines(runs, choose=LR).values()
    assert line.differences == pytest.approx([10])


def test_several_processes_are_a_setting(make: Make, runs: Path):
    make("luna", 0.5)
    (one,) = records.load_records([runs])
    two = one.facts | {"settings": one["settings"] | {"processes": 2}}
    two["score"] = 40.0
    line = of(one, dataclasses.replace(one, facts=two))
    assert (line.setting, line.level, line.base) == ("processes", "2", "none")
    other = one.facts | {"settings": one["settings"] | {"loss": "other"}}
    with pytest.raises(UserError, match="name them in `vary`"):
        of(one, dataclasses.replace(one, facts=other))


def test_self_pretraining_is_a_setting_and_so_is_code(make: Make, runs: Path):
    make("luna", 0.4, codes=["a"])
    (plain,) = records.load_records([runs])
    later = plain.facts | {"codes": ["b"], "score": 50.0}
    pretrained = later | {"settings": plain["settings"] | {"pretrain": {"name": "masked"}}}
    line = of(plain, dataclasses.replace(plain, facts=pretrained))
    assert (line.setting, line.level, line.base) == ("pretrain", "masked", "none")
    assert line.differences == pytest.approx([10])
    line = of(plain, dataclasses.replace(plain, facts=later))
    assert (line.setting, line.level, line.base) == ("code", "b", "a")


def test_the_terminal_shows_them(make: Make, runs: Path, capsys: Capture):
    crossed(make)
    assert main(["table", "--runs", str(runs), "--vary", LR, "--effects"]) == 0
    assert "dwc: conv1d against none" in capsys.readouterr().out
    assert main(["table", "--write", "--effects"]) == 2


def grid(make: Make, attention: str = "luna") -> None:
    """M = 16 is 2 points better than 8, L = 4 is 10 worse than 8."""
    for m, of_m in ((8, 0.0), (16, 0.02)):
        for size, of_l in ((4, -0.1), (8, 0.0)):
            make(attention, 0.5 + of_m + of_l, options={"M": m, "L": size})


def test_options_that_vary_names_have_the_effects_of_options(
    make: Make, runs: Path, capsys: Capture
):
    """Of one attention they are settings anyway, and naming them changes no number."""
    grid(make)
    effect = lines(runs, "attention.M", "attention.L")
    assert {name: e.mean for name, e in effect.items()} == {
        "M 16 8 L=4": pytest.approx(2),
        "M 16 8 L=8": pytest.approx(2),
        "L 4 8 M=8": pytest.approx(-10),
        "L 4 8 M=16": pytest.approx(-10),
    }
    assert {n: e.mean for n, e in lines(runs).items()} == {n: e.mean for n, e in effect.items()}
    words = ["table", "--runs", str(runs), "--vary", "attention.M", "attention.L", "--effects"]
    assert main(words) == 0
    assert re.search(r"\nM: 16 against 8 +L=4 +\+2\.0 ", capsys.readouterr().out)


def test_an_option_among_several_attentions_has_lines_of_those_that_have_it(make: Make, runs: Path):
    """Without --vary it is a part of the name that softmax is compared with, and no more."""
    grid(make)
    make("softmax", 0.4)
    plain = lines(runs)
    assert {e.setting for e in plain.values()} == {"attention"}
    named = lines(runs, "attention.M")
    assert {name: e.mean for name, e in named.items() if name not in plain} == {
        "M 16 8 luna L=4": pytest.approx(2),
        "M 16 8 luna L=8": pytest.approx(2),
    }
    assert {name: e.mean for name, e in plain.items()}.items() <= {
        name: e.mean for name, e in named.items()
    }.items()
    (row,) = (row for row in table(runs, vary=["attention.M"]).rows.index if "softmax" in row)
    assert row == "softmax", "it has no M to be named by"


def test_the_terminal_says_that_there_is_no_pair(make: Make, runs: Path, capsys: Capture):
    make("luna", 0.5)
    assert main(["table", "--runs", str(runs), "--effects"]) == 0
    assert "no two rows differ in one setting alone" in capsys.readouterr().out
