"""The table of attentions in docs/attentions.md is what the classes say."""

from __future__ import annotations

import json

import luna
from lra import catalogue
from lra.base.disk import read_json
from lra.cli import main

from .conftest import REPOSITORY, command

PAGE = (REPOSITORY / catalogue.PAGE).read_text(encoding="utf-8")


def test_the_catalogue_is_what_the_classes_say():
    """A method that is not in it yet joins with `make tables`."""
    listed = PAGE.split(f"{catalogue.BEGIN}\n")[1].split(f"\n{catalogue.END}")[0].splitlines()
    said = catalogue.markdown().splitlines()
    assert listed == [line for line in said if line in listed]
    assert len(listed) >= 29 + 2, "a head, and a line of every method that ships"


def test_what_is_kept_is_what_the_classes_say():
    """Else `make tables`. The hash of its code may be an older one: then `lra list` asks the
    class, which takes the import of torch and nothing else."""

    def without_code(rows: dict) -> dict:
        return {name: row | {"code": ""} for name, row in rows.items()}

    said, kept = without_code(catalogue.described()), without_code(read_json(catalogue.KEPT))
    assert kept == {name: row for name, row in said.items() if name in kept}


def test_the_list_imports_no_torch(tmp_path):
    """Where the methods' code is what is kept."""
    (tmp_path / "kept.json").write_text(json.dumps(catalogue.described()), encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from lra import catalogue; "
        "from lra.cli import main; "
        f"catalogue.KEPT = Path({str(tmp_path / 'kept.json')!r}); main(['list', '--papers']); "
    )
    done = command("-c", code + "print('imported', {'torch', 'numpy', 'hydra'} & {*sys.modules})")
    lines = done.stdout.splitlines()
    assert lines[-1] == "imported set()", done.stderr
    assert [line.split()[0] for line in lines[1:-1:2]] == luna.names()


def test_changed_code_is_described_anew(tmp_path, monkeypatch):
    kept = read_json(catalogue.KEPT)
    kept["luna"] |= {"code": "other", "parameters": "1"}
    kept["linear"] |= {"parameters": "2"}
    (tmp_path / "kept.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(catalogue, "KEPT", tmp_path / "kept.json")
    parameters = {row["attention"]: row["parameters"] for row in catalogue.rows()}
    assert (parameters["luna"], parameters["linear"]) == ("3,616", "2")


def test_a_method_that_cannot_be_imported_has_its_error_as_its_line(tmp_path, monkeypatch, capsys):
    def get(name: str) -> type[luna.Attention]:
        if name == "luna":
            raise TypeError("attention 'luna' cannot be built")  # as a plug-in may
        return luna.registry.get(name)

    monkeypatch.setattr(luna, "get", get)
    monkeypatch.setattr(catalogue, "KEPT", tmp_path / "none.json")
    assert main(["list", "--papers"]) == 0
    out = capsys.readouterr().out
    [line] = [line for line in out.splitlines() if line.startswith("luna ")]
    assert line.endswith("  attention 'luna' cannot be built")
    assert "Linformer" in out


def test_a_method_joins_the_catalogue(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "KEPT", tmp_path / "kept.json")
    row = next(line for line in PAGE.splitlines() if line.startswith("| `luna` |"))
    catalogue.PAGE.parent.mkdir()
    catalogue.PAGE.write_text(PAGE.replace(f"{row}\n", ""), encoding="utf-8")
    assert main(["list", "--write"]) == 0
    written = catalogue.PAGE.read_text(encoding="utf-8").splitlines()
    begun = [line for line in written if line.startswith("| `") and line not in PAGE]
    assert [line for line in written if line not in begun] == PAGE.splitlines()
    assert read_json(catalogue.KEPT) == catalogue.described()
    catalogue.PAGE.write_text("of another project", encoding="utf-8")
    assert main(["list", "--write"]) == 2
