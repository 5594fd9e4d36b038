"""`lra compute <overrides>`: one run, part by part."""

from __future__ import annotations

from lra.cli import main


def test_one_run_by_part(capsys):
    assert main(["compute", "task=listops", "attention=luna", "attention.M=16"]) == 0
    output = capsys.readouterr().out
    for part in ("attention", "projections", "mlp", "embedding", "head", "norms", "total"):
        assert f"\n {part} " in output
    assert "over budget ×1.56" in output  # `lra compute` refuses nothing
    assert "the code executes 56.0% fewer FLOPs than are counted" in output
