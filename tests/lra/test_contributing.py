"""Every recipe of CONTRIBUTING.md, followed to the letter in a fresh copy of the repository.

The blocks of the page are pasted where their first lines say, and its commands are run, with more
words that make them small. With all recipes at once the whole suite must pass, as `make test` runs
it. ("In a package of your own" is in tests/test_package.py.)
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from .conftest import REPOSITORY, call_in, run_in

PAGE = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
METHOD = "I have a method: what do I write?"
MIXER, TRAITS = "A mixer, complete", "Traits"
OWN = "I have an optimiser, a schedule or a callback: what do I write?"
TASK, PROTOCOL, BENCHMARK = "Add a task", "Add a protocol", "Add a benchmark case"
TABLE, FIGURE = "Add a table", "Add a figure"
PASTED = (MIXER, TRAITS, OWN, TASK, PROTOCOL, BENCHMARK, TABLE, FIGURE)

FEW = "n_train=64 n_val=16 n_test=16"
TRAINED = "steps_share=1e-6 min_evaluations=1 trainer=cpu trainer.threads=1"
FEW_TRAINED = f"{FEW.replace('n_', 'task.n_')} {TRAINED}"
TINY_TRAINED = f"task.source=tiny protocol.data.max_length=512 protocol.data.pad_to=512 {TRAINED}"
# Beginnings of commands, and what makes them small.
SMALL = {
    "lra train experiment=demo": FEW_TRAINED,
    "lra train --config-dir mine": FEW_TRAINED,
    "lra train task=foo": FEW_TRAINED,
    "lra train protocol=tenth": TINY_TRAINED,
    "lra data": FEW,
    "lra bench": "--lengths 64 128 --rounds 1 --write bench",
    # What is installed already, and one process in place of one a core.
    "make": f"VENV={sys.prefix} --old-file={sys.prefix}/.installed",
    "make test": f"PYTEST='{sys.executable} -m pytest -n 0 -p no:cacheprovider'",
}
HIDDEN = (".ci", ".github", ".gitattributes", ".gitignore", ".pre-commit-config.yaml")


def section(title: str) -> str:
    """What stands below a heading, up to the next."""
    found = re.search(rf"^##+ {re.escape(title)}\n(.*?)(?=^##+ |\Z)", PAGE, re.M | re.S)
    assert found is not None, title
    return found[1]


def blocks(text: str, languages: str) -> list[str]:
    return re.findall(rf"^```(?:{languages})\n(.*?)^```", text, re.M | re.S)


def paste(clone: Path, title: str) -> None:
    """Put the blocks of a section where their first lines say; what results is tidy."""
    found = blocks(section(title), "python|yaml")
    assert found, title
    python = set()
    for block in found:
        first, code = block.split("\n", 1)
        name, _, where = first.removeprefix("# ").partition(", ")
        file = clone / name
        assert file.exists() == bool(where), first
        old = file.read_text(encoding="utf-8") if where else ""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(placed(old, where, code), encoding="utf-8")
        python |= {name} if file.suffix == ".py" else set()
    for words in (("check", "--quiet"), ("format", "--check", "--quiet")) if python else ():
        run_in(clone, "ruff", *words, *sorted(python))


def placed(old: str, where: str, code: str) -> str:
    """A file's text with code in it: below a line, or at the end."""
    if where in ("", "at the end"):
        return old + code
    text = where.removeprefix("below: ")
    assert text != where, where
    lines = old.splitlines(keepends=True)
    found = [i for i, line in enumerate(lines, 1) if line.lstrip().startswith(text)]
    assert len(found) == 1, f"{where}: lines {found}"
    return "".join([*lines[: found[0]], code, *lines[found[0] :]])


def run(clone: Path, command: str) -> str:
    """What a command of the page prints."""
    small = [more for beginning, more in SMALL.items() if command.startswith(beginning)]
    words = shlex.split(" ".join([command, *small]))
    return call_in(clone, *words) if words[0] == "make" else run_in(clone, *words)


def follow(clone: Path, title: str) -> dict[str, str]:
    """Run the commands of a section; what each of them prints."""
    lines = "\n".join(blocks(section(title), "sh")).splitlines()
    every = [line for line in lines if line.startswith(("lra ", "make "))]
    assert every, title
    return {command: run(clone, command) for command in every}


def pytest_in(clone: Path, *tests: str) -> str:
    return run_in(clone, "pytest", "-n", "0", "-p", "no:cacheprovider", *tests)


def test_every_block_says_where_it_goes():
    """In a section that is followed here."""
    of_page = [block.partition("\n")[0] for block in blocks(PAGE, "python|yaml")]
    followed = [b.partition("\n")[0] for t in PASTED for b in blocks(section(t), "python|yaml")]
    assert of_page == followed
    for first in of_page:
        assert re.fullmatch(r"# [\w/]+\.(py|yaml)(, (at the end|below: \S.*))?", first), first


# A name with its command would be run by K=foo.
@pytest.mark.parametrize(
    "row", [pytest.param(i, marks=pytest.mark.rest(quarter)) for i, quarter in enumerate((4, 2, 3))]
)
def test_a_method(clone: Path, row: int):
    """Begun by a command of the first table, it is checked, tested and trained."""
    commands = re.findall(r"`(lra new .*?)`", section(METHOD))
    assert len(commands) == 3
    run(clone, commands[row])
    printed = follow(clone, METHOD)
    assert "'foo' is what it declares" in printed["lra check foo"]
    assert passed(printed["make test K=foo"]) > 30
    assert "done: test accuracy" in printed["lra train experiment=demo attention=foo"]
    run(clone, "lra list --write")
    assert "| `foo` |" in (clone / "docs/attentions.md").read_text(encoding="utf-8")


def passed(printed: str) -> int:
    found = re.search(r"(\d+) passed", printed)
    return int(found[1]) if found else 0


@pytest.mark.rest(1)
def test_a_mixer_with_its_options_and_traits(clone: Path):
    paste(clone, MIXER)
    paste(clone, TRAITS)
    assert "'before' is what it declares" in run(clone, "lra check before")
    run(clone, "lra train experiment=demo attention=before attention.share=0.3")
    run(clone, "lra list --write")  # from now on the suite asks for all that a method has
    assert passed(run(clone, "make test K=before")) > 30


@pytest.mark.rest
def test_an_optimiser_a_schedule_and_a_callback(clone: Path):
    """All three at once; gradient norms, which move nothing, are not part of the run."""
    paste(clone, OWN)
    [printed] = follow(clone, OWN).values()
    assert "optimizer  Lion(betas=[0.9, 0.99])" in printed
    assert "schedule   fall(least=0.1)" in printed
    assert "callbacks  GradientNoise(eta=0.01" in printed
    [metrics] = clone.rglob("metrics.csv")
    assert metrics.read_text("utf-8").partition("\n")[0].endswith(",grad_norm,grad_norm_max,noise")
    facts = json.loads(metrics.with_name("result.json").read_text("utf-8"))
    chosen = {"optimizer", "schedule", "callbacks noise"}
    assert {f"the chosen {name}" for name in chosen} <= {*facts["code"]}
    assert facts["settings"]["protocol"]["recipe"]["lr"] == 3e-4


@pytest.mark.rest(2)
def test_a_task(clone: Path):
    paste(clone, TASK)
    printed = follow(clone, TASK)
    assert "differs" not in printed["lra data check foo"]
    assert "done: test accuracy" in printed["lra train task=foo attention=softmax"]
    assert passed(printed["make test K=foo"]) > 3, "that of every task is among them"


@pytest.mark.rest(1)
def test_a_protocol(clone: Path):
    paste(clone, PROTOCOL)
    printed = follow(clone, PROTOCOL)
    assert re.search(r"^ +tenth +\S", printed["lra train --help"], re.M)
    run(clone, f"lra train task=listops attention=softmax {TINY_TRAINED}")
    tables = run(clone, "lra table")
    assert re.findall(r"^listops, protocol (\w+)", tables, re.M) == ["luna", "tenth"]


@pytest.mark.rest(1)
def test_a_benchmark(clone: Path):
    paste(clone, BENCHMARK)
    [printed] = follow(clone, BENCHMARK).values()
    rows = [line for line in printed.splitlines() if line.startswith(("| all", "| largest"))]
    assert len(rows) == 5, "time and memory of both, and a ratio"
    assert {path.suffix for path in (clone / "bench").iterdir()} == {".json", ".md", ".png", ".pdf"}


@pytest.fixture
def results(clone: Path) -> Path:
    """In place of all results, whose figures take a minute, one table and its records."""
    (clone / "results").unlink()
    folder = clone / "results"
    (folder / "records/campaign").mkdir(parents=True)
    for name in ("campaign/mixers", "short_luna"):
        for ending in ("jsonl", "npz"):
            record = f"records/{name}.{ending}"
            shutil.copy(REPOSITORY / "results" / record, folder / record)
    every = yaml.safe_load((REPOSITORY / "results/tables.yaml").read_text(encoding="utf-8"))
    one = [table for table in every if table["name"] == "mixers_listops"]
    (folder / "tables.yaml").write_text(yaml.safe_dump(one), encoding="utf-8")
    shutil.copy(REPOSITORY / "results/README.md", folder)
    return folder


@pytest.mark.rest(3)
def test_a_table(clone: Path, results: Path):
    paste(clone, TABLE)
    follow(clone, TABLE)
    text = (results / "tables/three_methods.md").read_text(encoding="utf-8")
    assert all(f"| {name}" in text for name in ("luna", "linear", "softmax"))
    assert "rff" not in text
    assert "LUNA (2025), linear attention and softmax" in (results / "index.html").read_text(
        "utf-8"
    )
    assert (results / "figures/three_methods-listops-scores.png").exists()


@pytest.mark.rest(3)
def test_a_figure(clone: Path, results: Path):
    paste(clone, FIGURE)
    follow(clone, FIGURE)
    assert (clone / "figures/listops-listops-size.png").exists()
    assert " passed" in pytest_in(clone, "tests/lra/figures/test_tables.py")


@pytest.fixture
def whole(clone: Path) -> Path:
    """A copy with all results, which the others only share, and with what `clone` leaves out."""
    (clone / "results").unlink()
    for name in ("results", *HIDDEN):
        source = REPOSITORY / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, clone / name)
    if (known := REPOSITORY / ".mypy_cache").exists():  # by `make lint`, mostly of torch
        shutil.copytree(known, clone / ".mypy_cache")
    return clone


@pytest.mark.rest(4)
@pytest.mark.timeout(7200)  # the suite itself takes six minutes of two idle cores
def test_with_all_recipes_in_it_the_whole_suite_is_green(whole: Path):
    """What one pastes fits what another does, and what looks at everything finds each in its place:
    whoever follows the page may run `make test`."""
    for title in PASTED:
        paste(whole, title)
    run_in(whole, "mypy")
    make = shlex.split(f"make {SMALL['make']}")
    call_in(whole, *make, "tables")
    call_in(whole, *make, "golden", "NAME=before")
    call_in(whole, *make, "test")
