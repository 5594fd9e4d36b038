"""Which warnings fail a test: those of our own code (`filterwarnings` in pyproject.toml)."""

from __future__ import annotations

import warnings

import pytest


def warn(module: str) -> None:
    warnings.warn_explicit("a warning", DeprecationWarning, "file.py", 1, module=module)


@pytest.mark.parametrize("module", ["luna", "lra.data.task", "tests.lra.test_run"])
def test_our_own_warnings_fail_a_test(module: str) -> None:
    with pytest.raises(DeprecationWarning):
        warn(module)
    with pytest.raises(UserWarning):
        warnings.warn("of this file", stacklevel=1)


@pytest.mark.parametrize("module", ["torch.jit", "lunatic", "pytorch_lightning.trainer", "lralib"])
def test_warnings_of_a_library_do_not(module: str) -> None:
    with warnings.catch_warnings(record=True) as listed:  # the filters stay as they are
        warn(module)
    assert [str(warning.message) for warning in listed] == ["a warning"]
