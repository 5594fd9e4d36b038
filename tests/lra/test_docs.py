"""Every command of README, CONTRIBUTING and the docs of the tool does what its page says."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import luna
from lra.data import registry
from lra.looks import FAMILIES, family_of
from lra.settings.compose import compose

from . import pages
from .pages import COMPOSED, NOT_RUN, PARSED, ROOT, SMALL, kind

# Pages that tests of their own follow: test_tutorial.py, test_company.py. So does
# test_contributing.py those of docs/extend.
FOLLOWED = {"docs/company.md", "docs/tutorial.md"}
PAGES = ["README.md", "CONTRIBUTING.md"]
PAGES += sorted({f"docs/{p.name}" for p in ROOT.glob("docs/*.md")} - FOLLOWED)
# Long ones, whose commands have tests of their own, and the quarter in which CI runs them.
REST = {"docs/compute.md": 2, "docs/settings.md": 3, "docs/results.md": 4}
COMMANDS = pages.commands_of(PAGES)
EVERY = [command for page in PAGES for command in COMMANDS[page]]


def test_the_lists_name_commands_that_there_are():
    assert len(EVERY) > 60
    for table in (NOT_RUN, COMPOSED, PARSED):
        for beginning in table:
            assert any(command.startswith(beginning) for command in EVERY), beginning


@pytest.mark.parametrize("command", sorted({c for c in EVERY if kind(c, COMPOSED)}))
def test_the_words_of_sweeps_and_clusters_compose(command: str):
    pages.compose_all(command)


@pytest.mark.parametrize(
    "command", sorted({c for c in EVERY if kind(c, PARSED) and not kind(c, NOT_RUN)})
)
def test_what_takes_long_is_known_to_its_command(command: str):
    pages.parse(command)


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.rest(REST[p])) if p in REST else p for p in PAGES],
)
def test_every_other_command_runs_as_printed(
    page: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    pages.furnish()
    pages.follow(page, COMMANDS[page], NOT_RUN, monkeypatch, capsys)


def test_the_blocks_of_ones_own_transformer_run(tmp_path: Path):
    """In a process of their own: torch.export needs flags that other tests have locked."""
    text = (ROOT / "docs" / "transformer.md").read_text(encoding="utf-8")
    script = tmp_path / "page.py"
    script.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S)))
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "assigned during export" not in ran.stderr


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/tasks.md"])
def test_the_python_of_a_page_runs_from_its_top_to_its_end(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a script whose demo is small; what a script registers is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry.TASKS, "added", {})
    text = (ROOT / page).read_text(encoding="utf-8")
    small = [*SMALL["train experiment=demo"].split(), "trainer=cpu"]
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))
    code = code.replace('"experiment=demo"', f'"experiment=demo", *{small}')
    assert 1 <= code.count("lra.train(") <= 6
    script = tmp_path / f"{Path(page).stem}_page.py"
    script.write_text(code, encoding="utf-8")
    runpy.run_path(str(script), run_name=script.stem)


def test_the_page_of_baselines_has_each_method_in_its_family():
    page = (ROOT / "docs" / "baselines.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        section = page.partition(f"\n## {family.name.capitalize()}\n")[2].partition("\n## ")[0]
        words = [row.split() for row in re.findall(r"^\| `(attention=.*?)` \|", section, re.M)]
        runs = [compose(["experiment=demo", *row]) for row in words]
        assert runs, family.name
        assert {family_of(run.attention["name"]) for run in runs} == {family}


def test_the_readme_names_version_and_licence():
    first = (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    assert f"version {luna.__version__}\n" in first
    assert "[Apache 2.0](LICENSE)" in first


def test_the_changelog_is_short_and_begins_with_what_moves_numbers():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    longest = max(len(part.splitlines()) for part in text.split("\n## ")[1:])
    assert longest <= 120, "what changed in one version is read at once: the rest is in git"
    for release in text.split("\n## ")[1:]:
        assert release.split("\n### ")[1].startswith("Moves numbers\n"), release.splitlines()[0]
