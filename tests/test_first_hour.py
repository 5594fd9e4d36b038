"""scripts/first_hour.sh, which needs a GPU, without running its steps."""

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "first_hour.sh"


def test_the_first_hour_lists_its_steps():
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    listed = subprocess.run([SCRIPT, "--list"], capture_output=True, text=True, check=True)
    names = [line.partition(":")[0] for line in listed.stdout.splitlines()]
    assert names[:4] == ["environment", "tests", "correctness", "attention"]
    assert sum(name.startswith("steps-") for name in names) == 5
    assert sum(name.startswith("run-") for name in names) == 12
