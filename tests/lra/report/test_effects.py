"""What each setting changes while all others are equal."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from lra import record as records
from lra.cli import main
from lra.config import UserError
from lra.report.effects import effects
from lra.report.render import markdown, to_json
from lra.report.table import Effect

from ..synthetic import Make, table

LR = "protocol.recipe.lr"


def found(runs: Path, *vary: str, **spec: object) -> dict[str, Effect]:
    shown = table(runs, vary=list(vary), effects=True, **spec).effects
    return {f"{e.setting} {e.level} {e.base}": e for e in shown}


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


def test_runs_are_compared_with_those_that_differ_in_one_setting_alone(make: Make, runs: Path):
    crossed(make)
    lines = found(runs, LR)
    assert list(lines) == ["attention luna softmax", "dwc conv1d none", "lr 0.1 0.002"]
    luna, branch, rate = lines.values()
    assert luna.differences == pytest.approx([-5] * 3 + [3] * 3)
    assert branch.differences == pytest.approx([2] * 4 + [10] * 3)
    # Means over all runs of each rate would differ by less: the best runs are missing from one.
    assert rate.differences == pytest.approx([1] * 6)
    # t(0.975, 5) = 2.570582; the standard deviation of three -5 and three 3 is sqrt(19.2)
    assert luna.half_width == pytest.approx(2.570582 * (19.2 / 6) ** 0.5, rel=1e-6)
    assert rate.half_width == pytest.approx(0, abs=1e-9)


def test_where_all_runs_have_one_attention_its_options_are_settings(make: Make, runs: Path):
    for m in (16, 4):
        for kernel, gain in (("learned", 0.1), ("rff", 0.0)):
            make("luna", 0.3 + m / 100 + gain, options={"M": m, "kernel": kernel})
    make("luna", 0.9, options={"M": 8, "kernel": "learned"})  # has partners for M alone
    lines = found(runs)
    assert list(lines) == ["M 8 4", "M 16 4", "kernel rff learned"]
    assert lines["M 8 4"].differences == pytest.approx([46])
    assert lines["M 8 4"].half_width is None
    assert lines["kernel rff learned"].differences == pytest.approx([-10, -10])


def test_settings_that_are_changed_together_count_as_one(make: Make, runs: Path):
    """At constant width no two runs differ in M alone."""
    for m, output, accuracy in ((8, "relu", 0.5), (8, "exp", 0.9), (16, "relu", 0.3)):
        make("luna", accuracy, options={"M": m, "L": 64 // m, "nonneg": output})
    assert list(found(runs)) == ["nonneg exp relu"]  # relu is the more frequent
    lines = found(runs, together=["attention.M", "attention.L"])
    assert list(lines) == ["M x L 16 x 4 8 x 8", "nonneg exp relu"]
    assert lines["M x L 16 x 4 8 x 8"].differences == pytest.approx([-20])
    with pytest.raises(UserError, match="`together` names 'kernel', in which these runs do not"):
        found(runs, together=["attention.kernel"])


def test_an_option_that_came_later_than_a_run_has_its_usual_value(make: Make, runs: Path):
    for seed in (1, 2):
        make("luna", 0.5, options={"hidden": 64}, seed=seed)
    make("luna", 0.3, options={"hidden": 64, "psi": "frozen"})
    (line,) = found(runs).values()
    assert (line.setting, line.level, line.base) == ("psi", "frozen", "learned")


def test_options_that_only_one_attention_has_are_part_of_its_name(make: Make, runs: Path):
    make("softmax", 0.5)
    for m in (4, 8):
        make("luna", 0.4 + m / 100, options={"M": m})
    lines = found(runs)
    assert lines["attention luna M=4 softmax"].mean == pytest.approx(-6)
    assert lines["attention luna M=8 softmax"].mean == pytest.approx(-2)


def test_self_pretraining_is_a_setting_and_the_code_only_where_runs_were_repeated(
    make: Make, runs: Path
):
    make("luna", 0.4, codes=["a"])
    (plain,) = records.load([runs])
    later = plain.facts | {"codes": ["b"], "test": plain["test"] | {"accuracy": 0.5}}
    pretrained = later | {"settings": plain["settings"] | {"pretrain": {"name": "masked"}}}
    (found,) = effects([plain, dataclasses.replace(plain, facts=pretrained)])
    assert (found.setting, found.level, found.base) == ("pretrain", "masked", "none")
    assert found.differences == pytest.approx([10])
    (found,) = effects([plain, dataclasses.replace(plain, facts=later)])
    assert (found.setting, found.level, found.base) == ("code", "b", "a")


def test_a_setting_that_is_a_column_counts_and_tasks_are_kept_apart(make: Make, runs: Path):
    for pairs, accuracy in ((16, 0.9), (32, 0.6)):
        make("luna", accuracy, task="recall", pairs=pairs)
        make("linear", accuracy - 0.2, task="recall", pairs=pairs)
    lines = found(runs, columns="task.pairs")
    assert lines["pairs 32 16"].differences == pytest.approx([-30, -30])
    assert lines["attention luna linear"].differences == pytest.approx([20, 20])


def test_every_format_shows_them(
    make: Make, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    crossed(make)
    shown = table(runs, vary=[LR], effects=True)
    line = "| lr: 0.1 against 0.002 | +1.0 | +1.0 to +1.0 | 6 | +1.0 to +1.0 |"
    assert line in markdown(shown, runs)
    (first, *_) = to_json(shown)["effects"]
    assert (first["level"], len(first["differences"])) == ("luna", 6)
    assert "effects" not in to_json(table(runs, vary=[LR]))
    assert main(["table", "--runs", str(runs), "--vary", LR, "--effects"]) == 0
    out = capsys.readouterr().out
    assert "effect of each setting" in out
    assert "dwc: conv1d against none" in out
    assert main(["table", "--write", "--effects"]) == 2


def test_the_figure_has_a_line_per_level(make: Make, runs: Path, tmp_path: Path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from lra.figures import effects as lines
    from lra.figures.records import write

    crossed(make)
    shown = table(runs, vary=[LR], effects=True)
    figure = Figure()
    lines.draw(figure, shown)
    (axes,) = figure.axes
    means = [float(bar.lines[0].get_xdata()[0]) for bar in axes.containers]
    assert means == pytest.approx([e.mean for e in shown.effects])
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == [
        "attention, against softmax", "luna", "local branch (dwc), against none", "conv1d",
        "learning rate, against 0.002", "0.1",
    ]  # fmt: skip
    assert "t-effects.png" in {path.name for path in write([shown], tmp_path)}
