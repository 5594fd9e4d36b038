"""`lra figures`, from the command line to its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main

from .conftest import LUNA, PAIR, TEXT
from .test_distillation import write_run

pytest.importorskip("matplotlib")


def test_figures_of_a_trained_run(
    trained_folder: Callable[..., Path], tmp_path: Path, data_dir: Path, capsys
):
    folder = str(trained_folder(*LUNA))
    where = [folder, "--data-dir", str(data_dir), "--out", str(tmp_path / "figures")]
    assert main(["figures", "channels", *where, "--layout", "overlay"]) == 0
    assert main(["figures", "maps", *where, "--example", "2"]) == 0
    names = {p.name.split("-")[0] + p.suffix for p in (tmp_path / "figures").iterdir()}
    assert names == {"channels.png", "channels.svg", "maps.png", "maps.svg"}
    out = capsys.readouterr().out
    assert "example-2.png" in out
    for svg in (Path(line) for line in out.splitlines() if line.endswith(".svg")):
        assert "protocol luna v1" in svg.read_text(encoding="utf-8")
        assert "2 steps" in svg.read_text(encoding="utf-8")
    bare = shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("*.ckpt"))
    assert main(["figures", "maps", str(bare), *where[1:]]) == 2
    assert "has no checkpoint: train the run again" in capsys.readouterr().err


def test_figures_of_converted_models(
    text_models: dict[str, Path],
    image_models: dict[str, Path],
    picture: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    write_run(tmp_path / "run" / "luna" / "a" / "seed-0", 0, 1.0)
    out, luna = ["--out", str(tmp_path / "out")], str(text_models["luna"])
    words = [luna, str(text_models["hedgehog"]), "--text", TEXT, "--text-pair", PAIR]
    assert main(["figures", "tokens", *words, "--layer", "-2", *out]) == 0
    image = [str(image_models["hedgehog"]), str(image_models["luna"]), "--image", str(picture)]
    assert main(["figures", "patches", *image, *out]) == 0
    assert main(["figures", "distillation", str(tmp_path / "run"), *out]) == 0
    named = ["--text", TEXT, "--layout", "overlay", "--name", "psi"]
    assert main(["figures", "channels", luna, *named, *out]) == 0
    assert main(["figures", "channels", luna, *out]) == 2
    captured = capsys.readouterr()
    assert "whose channels need inputs" in captured.err
    written = [Path(line) for line in captured.out.splitlines() if line.startswith("/")]
    assert sorted(p.suffix for p in written) == [".html"] + 4 * [".png"] + 4 * [".svg"]
    assert all(p.stat().st_size > 4000 for p in written)
    assert {"psi.png", "psi.svg"} < {p.name for p in written}
