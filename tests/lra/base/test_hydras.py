"""What Hydra 1.3 and 1.4 want otherwise."""

from __future__ import annotations

import pytest
from omegaconf import OmegaConf

from lra.base import groups, hydras


def test_settings_may_call_what_they_name_and_nothing_else(monkeypatch):
    options = {"_target_": "collections.Counter", "of": {"_target_": "collections.Counter"}}
    assert hydras.instantiate(options) == {"of": {}}
    assert [*hydras.targets_in([options])] == ["collections.Counter"] * 2
    if hydras.is_old():
        assert hydras.of_main() == hydras.of_base() == {"version_base": "1.3"}
        return
    later = OmegaConf.create(
        {**options, "of": "${other}", "other": {"_target_": "fractions.Fraction"}}
    )
    monkeypatch.setattr(hydras, "targets_in", lambda _: iter(["collections.Counter"]))
    with pytest.raises(Exception, match=r"fractions\.Fraction"):
        hydras.instantiate(later)
    assert "version_base" not in hydras.of_main()


def test_files_beside_the_configs_of_a_user_may_be_callbacks_of_a_sweep(monkeypatch, tmp_path):
    (tmp_path / "counting.py").touch()
    monkeypatch.setattr(groups, "folders", lambda: [tmp_path, tmp_path / "ours"])
    monkeypatch.setattr(hydras, "is_old", lambda: False)
    allowed = hydras.of_main()["execution_whitelist"]
    assert "counting.*" in allowed
    assert "lra.*" in allowed


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        (["experiment=recipe"], True),
        (["experiment=recipe", "hydra.mode=RUN"], False),
        (["task=listops"], False),
        (["experiment=no_such"], False),
    ],
)
def test_an_experiment_may_ask_for_a_sweep(words: list[str], sweep: bool):
    assert hydras.is_sweep(words) is sweep
