"""Words fitted to a terminal, and left alone where none reads them."""

from __future__ import annotations

import io

import pytest

from lra.base.screen import fitted

WORDS = "attention 'luna' is outside the budget: attention.hidden=4 is the closest, see --help"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("columns", [10, 40, 80, 200])
def test_words_fit_a_terminal_and_lose_nothing(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = fitted("error: ", WORDS, Terminal()).splitlines()
    assert " ".join(" ".join(lines).split()) == f"error: {WORDS}"
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert max(map(len, lines)) <= max(columns, 7 + 24)
    assert len(lines) == 1 or columns < 100


def test_a_pipe_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert fitted("error: ", WORDS, io.StringIO()) == f"error: {WORDS}"
