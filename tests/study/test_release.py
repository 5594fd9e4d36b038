"""What names the version names one version."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import lra

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts/release.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(release: ModuleType, tmp_path: Path) -> Path:
    for name in ("luna/__init__.py", "CHANGELOG.md", *release.NAMED):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_one_version_stands_everywhere(release: ModuleType) -> None:
    assert [*release.disagreeing(ROOT)] == []


def test_a_file_that_was_forgotten_is_named(release: ModuleType, copy: Path) -> None:
    own = release.version(ROOT)
    edit(copy / "luna/__init__.py", f'"{own}"', '"9.0.0"')
    found = [*release.disagreeing(copy)]
    assert [sentence.split()[0] for sentence in found] == [*release.NAMED]
    assert found[0] == f"CITATION.cff names {own}, and luna/__init__.py 9.0.0"


def test_a_release_has_a_section_and_one_date(release: ModuleType, copy: Path) -> None:
    own = release.version(ROOT)
    log = copy / "CHANGELOG.md"
    log.write_text("# Changelog\n\n## Unreleased\n", encoding="utf-8")
    [said] = release.unreleased(copy)
    assert said == f"CHANGELOG.md begins with 'Unreleased', not with '{own} (YEAR-MONTH-DAY)'"
    log.write_text(f"# Changelog\n\n## {own} (2031-01-02)\n", encoding="utf-8")
    assert [*release.unreleased(copy)] == [
        "CITATION.cff has another date than CHANGELOG.md, 2031-01-02"
    ]
    cited = yaml.safe_load((copy / "CITATION.cff").read_text(encoding="utf-8"))["date-released"]
    log.write_text(f"# Changelog\n\n## {own} ({cited})\n", encoding="utf-8")
    assert [*release.unreleased(copy)] == []


WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_trusts_no_moving_tag_and_no_stranger(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for used in re.findall(r"uses: (\S+)", text):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used
    assert "pull_request_target" not in text
    flow = yaml.safe_load(text)
    assert flow["permissions"] == {"contents": "read"}
    triggers = flow[True]  # YAML reads `on` so
    if "pull_request" in triggers and path.stem != "submission":
        assert triggers["pull_request"] == {"types": ["labeled"]}
        assert all("label.name == 'test'" in job["if"] for job in flow["jobs"].values())


def test_what_a_workflow_trains_is_a_run() -> None:
    texts = [path.read_text(encoding="utf-8") for path in WORKFLOWS]
    words = [found for text in texts for found in re.findall(r"lra train (.+)$", text, re.M)]
    assert words
    for found in words:
        lra.compose(found.split())


def test_of_what_is_sent_nothing_but_data_is_used() -> None:
    """The code that checks is that of the main branch, and only records lie over it."""
    text = (ROOT / ".github/workflows/submission.yml").read_text(encoding="utf-8")
    own, sent = [s["with"] for s in yaml.safe_load(text)["jobs"]["check"]["steps"][:2]]
    assert own["ref"] == "${{ github.event.pull_request.base.sha }}"
    assert sent["sparse-checkout"] == "results/records/submitted"
    assert re.findall(r"cp -r (\S+) (\S+)", text) == [
        ("sent/results/records/submitted", "results/records/submitted")
    ]
    assert "secrets" not in text
