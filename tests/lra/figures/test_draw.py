"""Saving of figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from lra.figures import draw

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure


def test_pdf_is_written_on_request_and_is_the_same_every_time(tmp_path: Path):
    def fill(figure: Figure) -> None:
        figure.subplots().plot([1, 2])

    def once(stem: Path) -> bytes:
        with draw.also_pdf():
            return draw.save_figure(stem, fill, size=(2, 2))[-1].read_bytes()

    assert once(tmp_path / "a") == once(tmp_path / "b")
    assert len(draw.save_figure(tmp_path / "c", fill, size=(2, 2))) == 2
