"""Signatures of records."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from lra import cli, signatures

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs OpenSSH")


def test_signed_edited_and_unknown(
    make, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    key, records = tmp_path / "key", tmp_path / "results" / "records"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = " ".join(key.with_suffix(".pub").read_text(encoding="utf-8").split()[:2])
    signers = tmp_path / "results" / "signers"
    make("luna", 0.4)
    make("linear", 0.3)
    assert cli.main(["records", "export", str(records), "--runs", str(runs)]) == 0
    assert cli.main(["records", "sign", str(records), "--key", str(key)]) == 0
    signers.write_text(f"alice {public}\n", encoding="utf-8")
    check = ["records", "verify", str(records), "--signers", str(signers)]
    assert cli.main(check) == 0
    assert capsys.readouterr().out.count("signed by alice") == 2

    assert cli.main(["table", "--write", "--results", str(tmp_path / "results")]) == 0
    written = (tmp_path / "results" / "tables" / "leaderboard.md").read_text(encoding="utf-8")
    assert written.count("(signed: alice)") == 2

    [luna] = records.rglob("luna/*.json")
    luna.write_text(luna.read_text(encoding="utf-8") + " ", encoding="utf-8")
    with pytest.raises(SystemExit):
        cli.main(check)
    assert f"{luna}: no valid signature" in capsys.readouterr().out

    signers.write_text(f"bob ssh-ed25519 {'A' * 68}\n", encoding="utf-8")
    assert signatures.signer(next(records.rglob("linear/*.json")), signers) is None


def test_what_cannot_be_signed_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert cli.main(["records", "sign", str(tmp_path), "--key", "none"]) == 2
    assert "holds no exported record" in capsys.readouterr().err
