"""What decides a run: its presets, its settings and its identity."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import luna
from lra import data
from lra.base.errors import UserError
from lra.base.places import CONFIGS
from lra.settings.compose import compose
from lra.settings.experiment import read_experiment
from lra.settings.presets import AROUND, usual_options

from .test_compose import files


@pytest.mark.parametrize("attention", files("attention"))
def test_a_run_holds_its_options_and_nothing_of_the_presets(attention: str):
    run = compose([f"attention={attention}", "attention.preset=published"])
    assert set(run.attention) == {"name", *AROUND, *luna.options(attention)}
    assert run.attention == usual_options(attention, "listops", "published")
    for task in data.names():  # a preset has a value for each
        assert set(usual_options(attention, task, "matched")) == set(run.attention)


def table(name: str) -> list[list[str]]:
    with Path(__file__).with_name(name).open(encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


@pytest.mark.parametrize(("identity", "fingerprint", "words"), table("identities.csv"))
def test_commands_of_committed_records_give_their_identity(
    identity: str, fingerprint: str, words: str
):
    """Records were rewritten once: what they held then is what the same words give now."""
    assert compose(words.split()).experiment.identity(fingerprint) == identity


@pytest.mark.parametrize(("option", "value"), [("projections", "frozen"), ("normalise", "rms")])
def test_another_value_of_a_later_option_is_another_run(option: str, value: str):
    run = compose(["experiment=demo", "attention=luna", f"attention.{option}={value}"])
    assert run.experiment.settings()["attention"][option] == value


def test_the_presets_hold_what_the_released_code_ran():
    """Read from the files that their comments or those of the protocols name."""
    for protocol, attention, task, released in table("presets.csv"):
        options = usual_options(attention, task, protocol)
        assert options.items() >= json.loads(released).items(), (protocol, attention, task)


def test_a_calibration_protocol_implies_its_preset_and_no_budget():
    run = compose(["protocol=nystrom", "attention=linformer"])
    usual = usual_options("linformer", "listops", "nystrom")
    assert run.attention == usual
    assert (run.compute.preset, run.compute.mode.name) == ("nystrom", "report")


def test_a_calibration_protocol_refuses_what_its_code_did_not_run():
    for protocol, ran in {
        "skyformer": "bigbird informer kernelized linformer nystrom performer reformer skyformer "
        "softmax",
        "lotformer": "bigbird informer kernelized linformer lotformer nystrom performer reformer "
        "skyformer softmax",
        "nystrom": "linformer nystrom performer reformer softmax",
        "official": "bigbird linear linformer local longformer performer performer_relu reformer "
        "softmax synthesizer",
    }.items():
        for attention in files("attention"):
            file = OmegaConf.load(CONFIGS / "attention" / f"{attention}.yaml")
            assert (protocol in file.get("presets", {})) == (attention in ran.split()), attention
    with pytest.raises(UserError, match=r"'luna' has no preset 'skyformer'"):
        compose(["protocol=skyformer", "attention=luna"])
    run = compose(["protocol=skyformer", "attention=luna", "attention.preset=published"])
    assert (run.attention["M"], run.compute.preset) == (8, "published")


def test_what_is_set_wins_over_the_preset():
    run = compose(["attention=performer", "attention.preset=published", "attention.m=160"])
    assert run.attention["m"] == 160
    run = compose(["attention=longformer", "attention.preset=published", "attention.left=10"])
    assert (run.attention["left"], run.attention["right"]) == (10, 256)


def test_an_identity_knows_of_no_preset():
    published = compose(["attention=performer", "attention.preset=published"])
    written = compose(["attention=performer", "attention.m=128"])
    other = compose(["attention=performer"])
    assert published.experiment == written.experiment
    assert published.experiment.settings() != other.experiment.settings()
    for setting in ("compute=off", "compute.solve=true", "compute.reference=uniform"):
        assert compose(["attention=performer", setting]).experiment == other.experiment


def test_experiments_of_equal_settings_share_nothing():
    """They are checked once, and a change of one is no change of another."""
    settings = compose(["task=listops", "attention=linear"]).experiment.settings()
    one, two = (read_experiment(settings, seed) for seed in (1, 2))
    one.protocol.recipe.lr, one.model.d_model = 0.5, 8
    assert two.settings() == settings == read_experiment(settings, 1).settings()
