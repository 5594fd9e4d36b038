"""The table of attentions in docs/attentions.md is what the classes say."""

from __future__ import annotations

import luna
from lra import catalogue
from lra.cli import main

from .conftest import REPOSITORY

PAGE = (REPOSITORY / catalogue.PAGE).read_text(encoding="utf-8")


def test_the_catalogue_is_what_the_classes_say():
    """A method that is not in it yet joins with `make tables`."""
    listed = PAGE.split(f"{catalogue.BEGIN}\n")[1].split(f"\n{catalogue.END}")[0].splitlines()
    said = catalogue.markdown().splitlines()
    assert listed == [line for line in said if line in listed]
    assert len(listed) >= 29 + 2, "a head, and a line of every method that ships"


def test_a_method_that_cannot_be_imported_has_its_error_as_its_line(monkeypatch, capsys):
    def get(name: str) -> type[luna.Attention]:
        if name == "luna":
            raise TypeError("attention 'luna' cannot be built")  # as a plug-in may
        return luna.registry.get(name)

    monkeypatch.setattr(luna, "get", get)
    assert main(["list", "--papers"]) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("luna ")]
    assert line.endswith("  attention 'luna' cannot be built")
    assert "Linformer" in out


def test_a_method_joins_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = next(line for line in PAGE.splitlines() if line.startswith("| `luna` |"))
    catalogue.PAGE.parent.mkdir()
    catalogue.PAGE.write_text(PAGE.replace(f"{row}\n", ""), encoding="utf-8")
    assert main(["list", "--write"]) == 0
    assert catalogue.PAGE.read_text(encoding="utf-8") == PAGE
    catalogue.PAGE.write_text("of another project", encoding="utf-8")
    assert main(["list", "--write"]) == 2
