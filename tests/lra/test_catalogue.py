"""The table of attentions in docs/attentions.md is what the classes say."""

from __future__ import annotations

import json

import pytest
import torch

import luna
from lra import catalogue, looks, methods
from lra.base.disk import read_json
from lra.cli import main
from lra.compute.state import numbers

from .conftest import REPOSITORY, command

PAGE = (REPOSITORY / catalogue.PAGE).read_text(encoding="utf-8")


def methods_of(text: str) -> list[str]:
    """The lines of methods, and the headings of their families."""
    lines = text.partition(catalogue.BEGIN)[2] or text
    lines = lines.partition(catalogue.END)[0]
    return [line for line in lines.splitlines() if line.startswith(("| `", "### "))]


def test_the_catalogue_is_what_the_classes_say():
    """A method that is not in it yet joins with `make tables`."""
    listed, said = methods_of(PAGE), methods_of(catalogue.markdown())
    assert listed == [line for line in said if line in listed]
    assert len(listed) >= 43 + 9, "a line of every method that ships, and of every family"


def test_every_method_of_the_page_has_one_family():
    """A method that somebody begins stands under `other` until its class states a family."""
    listed = [line.split("`")[1] for line in methods_of(PAGE) if line.startswith("| `")]
    assert len(listed) == len(set(listed))
    assert set(listed) <= set(methods.ours())
    assert {*map(looks.family_of, listed)} == {*looks.FAMILIES}, "state its family in its class"
    assert looks.family_of("of_a_plug_in") is looks.OTHER
    assert "### Other" not in PAGE


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("linear", 32 * 32 + 32),  # S and z of a head
        ("luna", 64 * 32 + 64),
        ("gated_deltanet", 32 * 32),  # no normaliser
        ("hydra", 32 * 32 + 32),
        ("ema", 32 * 16),  # of each of a head's channels
        ("s4d", 32 * 32 * 2),  # complex
        ("lru", 256 * 2 // 2),  # complex, of all channels together
        ("softmax", "grows"),
        ("longconv", "grows"),
        ("nystrom", "-"),
    ],
)
def test_the_state_of_a_head_is_measured_on_its_stream(name: str, size: int | str):
    assert catalogue.spelt_state(name) == (f"{size:,}" if isinstance(size, int) else size)


def test_a_window_is_no_state_that_grows(monkeypatch):
    """Mega in chunks keeps the tokens of one, and as a whole all of them."""
    assert catalogue.spelt_state("mega") == "grows"
    chunked = {**catalogue.SIZES, "chunk": 64}
    monkeypatch.setattr(catalogue, "SIZES", chunked)
    size = int(catalogue.spelt_state("mega").replace(",", ""))
    mixer = luna.mixer("mega", causal=True, **chunked)
    kept, most = None, 0
    for token in torch.zeros(130, 1, 64):
        with torch.no_grad():
            kept, _ = mixer.step(kept, token)
        most = max(most, numbers(kept))
    assert size == most // 2


def test_what_is_kept_is_what_the_classes_say():
    """Else `make tables`. The hash of its code may be an older one: then `lra list` asks the
    class, which takes the import of torch and nothing else."""

    def without_code(rows: dict) -> dict:
        return {name: row | {"code": ""} for name, row in rows.items()}

    said, kept = without_code(catalogue.described()), without_code(read_json(methods.KEPT))
    assert kept == {name: row for name, row in said.items() if name in kept}


def test_the_list_imports_no_torch(tmp_path):
    """Where the methods' code is what is kept."""
    (tmp_path / "kept.json").write_text(json.dumps(catalogue.described()), encoding="utf-8")
    code = (
        "import sys, luna.around; from pathlib import Path; from lra import methods; "
        "from lra.cli import main; "
        f"methods.KEPT = Path({str(tmp_path / 'kept.json')!r}); main(['list', '--papers']); "
    )
    done = command("-c", code + "print('imported', {'torch', 'numpy', 'hydra'} & {*sys.modules})")
    lines = done.stdout.splitlines()
    assert lines[-1] == "imported set()", done.stderr
    listed = [line for line in lines[1:-1] if line and line[0] not in "# "]
    assert sorted(line.split()[0] for line in listed) == luna.names()
    assert [line[2:] for line in lines if line.startswith("# ")][:2] == [
        family.name for family in looks.FAMILIES[:2]
    ]


def test_changed_code_is_described_anew(tmp_path, monkeypatch):
    kept = read_json(methods.KEPT)
    kept["luna"] |= {"code": "other", "parameters": "1"}
    kept["linear"] |= {"parameters": "2"}
    (tmp_path / "kept.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(methods, "KEPT", tmp_path / "kept.json")
    parameters = {row["attention"]: row["parameters"] for row in catalogue.rows()}
    assert (parameters["luna"], parameters["linear"]) == ("3,616", "2")


def test_a_method_that_cannot_be_imported_has_its_error_as_its_line(tmp_path, monkeypatch, capsys):
    def get(name: str) -> type[luna.Attention]:
        if name == "luna":
            raise TypeError("attention 'luna' cannot be built")  # as a plug-in may
        return luna.registry.get(name)

    monkeypatch.setattr(luna, "get", get)
    monkeypatch.setattr(methods, "KEPT", tmp_path / "none.json")
    assert main(["list", "--papers"]) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("luna ")]
    assert line.endswith("  attention 'luna' cannot be built")
    assert "Linformer" in out


@pytest.mark.parametrize(("room", "last"), [(80, "causal"), (200, "protocols")])
def test_lines_of_a_terminal_end_at_its_edge(room, last, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(room))
    assert main(["list"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.startswith("attention ")
    assert heading.endswith(last)
    assert max(map(len, lines)) <= room
    assert any(line.startswith("rff ") and "Random Fourier features" in line for line in lines)
    left_out = "Not shown on 80 columns: parameters, state size, knobs, protocols."
    assert (left_out in lines) == (room == 80)


def test_a_method_joins_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "KEPT", tmp_path / "kept.json")
    row = next(line for line in PAGE.splitlines() if line.startswith("| `luna` |"))
    catalogue.PAGE.parent.mkdir()
    catalogue.PAGE.write_text(PAGE.replace(f"{row}\n", ""), encoding="utf-8")
    assert main(["list", "--write"]) == 0
    written = methods_of(catalogue.PAGE.read_text(encoding="utf-8"))
    begun = [line for line in written if line not in PAGE]
    assert [line for line in written if line not in begun] == methods_of(PAGE)
    assert row in written
    assert read_json(methods.KEPT) == catalogue.described()
    catalogue.PAGE.write_text("of another project", encoding="utf-8")
    assert main(["list", "--write"]) == 2
