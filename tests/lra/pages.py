"""Commands of pages: what of them is run, by which words they are small, and what is only checked.

They run in this process, in an empty folder for each page, from its top to its end, with more words
that make them small. What cannot run here is listed with its reason, and what can be checked of it
is checked: that its words compose, or that its command knows them.
"""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import hydra
import pytest

from lra import cli
from lra.bench.result import BenchResult, BenchRow
from lra.settings.compose import check_settings
from lra.settings.search_path import initialised
from lra.sweeps.status import jobs
from tests.luna.convert import kit

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "make|lra|python|pip|pre-commit|torchrun|srun|ray|source|export|eval|docker"

# Beginnings of commands, and why they are not run here.
NOT_RUN = {
    "make setup": "installs packages; CI begins with it",
    "make PYTHON=": "the same",
    "make test": "this test is part of it",
    "make lint": "takes a minute; CI does it",
    "make docs": "the same; tests/study/test_site.py builds the site",
    "lra figures records": "needs tables with findings; tests/lra/figures/test_tables.py",
    "make wheel": "tests/lra/test_package.py builds and installs it",
    "pip install": "needs a network",
    "source ": "the shell's own",
    "export ": "the shell's own",
    "ray ": "starts a cluster; tests/lra/sweeps/test_sweep.py has one",
    "eval ": "the shell's own; tests/lra/test_cli.py asks for completions",
    "docker ": "needs Docker",
    "lra train --config-dir mine": "its folder is the reader's; tests/lra/base/test_groups.py",
    "lra compute --config-dir mine": "the same",
    "lra train task=series task.source=files": "the same; tests/lra/data/test_series.py",
    "lra data prepare text --protocol short --config-dir mine": "the same",
}
# Those whose words are composed, job by job, and nothing is run.
COMPOSED = {
    "lra train -m": "a process for each job; tests/lra/sweeps/test_sweep.py runs sweeps",
    "python train.py -m": "the same",
    "lra train task=pathx attention=luna trainer=ddp": "needs four GPUs",
    "lra train task=text attention=softmax trainer=gpu": "needs a GPU",
    "torchrun ": "the same",
    "srun ": "needs SLURM",
}
# Those that only have to be known to their command.
PARSED = {
    "lra bench": "measures for a long time; tests/lra/bench",
    "lra compute table": "counts everything, for minutes; tests/lra/compute/test_table.py",
    "lra data hunt": "hunts for minutes; tests/lra/data/test_hunt.py",
    "lra data prepare image source=files": "needs an archive; tests/lra/data/test_image.py",
    "lra data prepare retrieval": "needs an archive; tests/lra/data/test_retrieval.py",
    "lra figures --runs": "needs runs that learned; tests/lra/figures/test_tables.py",
    "lra figures tokens": "needs converted models; tests/lra/figures/test_models.py",
    "lra figures curves": "needs runs; tests/lra/figures/test_steps.py",
    "lra figures channels RUN --texts": "the same",
    "lra predict RUN prompt.txt": "needs a run of bytes; tests/lra/data/test_bytes.py",
    "lra leaderboard": "trains for a day; tests/lra/bench/test_board.py",
    "lra plan": "measures in processes of its own; tests/lra/bench/test_plan.py",
    "lra records submit": "needs runs that are not there yet; tests/lra/results/test_submit.py",
    "lra table --page": "needs records; tests/lra/report/test_commands.py",
    "lra table --rungs": "needs runs of a ladder; tests/lra/report/test_rungs.py",
    "lra table --runs runs/recipe": "needs a sweep; tests/lra/report/test_effects.py",
    "lra compare luna softmax --runs": "needs committed answers; tests/lra/report/test_versus.py",
}
# What a page's reader has done before.
BEFORE = {
    "CONTRIBUTING.md": ["make demo"],
    "docs/results.md": ["make demo"],
    "docs/records.md": ["make demo"],
    "docs/tables.md": ["make demo", "lra records export"],
    "docs/pages.md": ["make demo", "lra records export"],
    "docs/python.md": ["lra train experiment=demo attention=luna runs_dir=runs/demo"],
}
# What makes the others small.
SMALL = {
    "train experiment=demo": "task.n_train=64 task.n_val=16 task.n_test=16 steps_share=1e-6 "
    "min_evaluations=1 trainer.threads=1",
    "train experiment=recall": "task.n_train=64 task.n_val=16 task.n_test=16 steps_share=1e-6 "
    "min_evaluations=1 trainer=cpu trainer.threads=1",
    "train task=bytes": f"task.path={ROOT / 'README.md'} task.held_out=0.1 steps_share=1e-6 "
    "min_evaluations=1 trainer=cpu trainer.threads=1",
    "train task=series": "task.n_train=64 task.n_val=16 task.n_test=16 steps_share=1e-6 "
    "min_evaluations=1 trainer=cpu trainer.threads=1",
    "data baseline series": "n_train=64 n_val=16 n_test=16",
    "train experiment=probes": "task.n_train=64 task.n_val=16 task.n_test=16 steps_share=1e-6 "
    "min_evaluations=1 trainer=cpu trainer.threads=1",
    "train": "task.source=tiny steps_share=1e-6 min_evaluations=1 trainer=cpu trainer.threads=1 "
    "protocol.data.max_length=512 protocol.data.pad_to=512",
    "convert stage=teacher data.source=tiny": "recipe.epochs=1",
    "convert attention=luna data.source=tiny": "recipe.epochs=1 recipe.stage1_steps=2",
    "convert": "model.path=model data.path=glue recipe=small recipe.epochs=1 recipe.stage1_steps=2 "
    "recipe.max_length=8",
    "data prepare path": "n=24",
    "data show path": "n=24",
    "data export pathx": "n=24",
    **{f"data {action}": "source=tiny" for action in ("prepare", "show", "check", "baseline")},
}


def commands(page: str) -> Iterator[str]:
    """The lines of its blocks of shell, and what stands inline with settings
    or flags."""
    text = (ROOT / page).read_text(encoding="utf-8").replace("\\\n", " ")
    for i, part in enumerate(re.split(r"^```", text, flags=re.M)):
        if i % 2 == 0:  # prose
            inline = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", part))
            lines = [code for code in inline if re.search(r"=| -", code) and "..." not in code]
        else:
            language, *lines = part.splitlines()
            lines = lines if language in ("sh", "console") else []
        for line in lines:
            line = re.sub(r"\s+# .*", "", line).removeprefix("$ ").strip()
            if re.match(rf"({PROGRAMS}) ", line):
                yield from line.split(" && ")


def commands_of(pages: Sequence[str]) -> dict[str, list[str]]:
    """Those of each page, in their order."""
    return {page: list(dict.fromkeys(commands(page))) for page in pages}


def kind(command: str, table: Mapping[str, str]) -> str | None:
    return next((beginning for beginning in table if command.startswith(beginning)), None)


def words_of(command: str) -> list[str]:
    """Without the program: `train`, `data`, ..."""
    words = shlex.split(command)
    if words[0] == "python" and words[1].endswith(".py"):
        return [Path(words[1]).stem, *words[2:]]
    return words[words.index("lra") + 1 :]


def compose_all(command: str) -> None:
    """Compose the words of a sweep: those of its first job and of its last."""
    _, *words = words_of(command)
    search = [word for word in words if "tag(" in word or "interval(" in word]
    words = [word for word in words if word != "-m" and word not in search]
    with initialised():
        every = list(jobs(words))
        # Every experiment but the demo is a sweep by itself.
        several = r",|glob|sweep=|experiment=(?!demo\b)"
        assert (len(every) > 1) == any(re.search(several, word) for word in words)
        for job in {tuple(every[0]), tuple(every[-1])}:
            check_settings(hydra.compose("train", list(job)))


def parse(command: str) -> None:
    """Whether the command of some words knows them."""
    parsed = cli.parse(re.sub(r"[\[\]]", "", " ".join(words_of(command))).split())
    assert callable(parsed.run)


def furnish() -> None:
    """Make of the current folder one where a reader stands: with a model and texts in the place of
    the hub's."""
    for name in ("train.py", "convert.py", "Makefile"):
        Path(name).symlink_to(ROOT / name)
    Path("docs").mkdir()
    shutil.copy(ROOT / "docs" / "attentions.md", "docs")
    kit.checkpoint(Path("model"))
    Path("glue/MRPC").mkdir(parents=True)
    pairs = [
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
        *["1\t1\t2\tgood film\tgood film", "0\t3\t4\tgood film\tbad film"] * 4,
    ]
    for split in ("train", "dev"):
        Path(f"glue/MRPC/{split}.tsv").write_text("\n".join(pairs) + "\n", encoding="utf-8")


def follow(
    page: str,
    lines: Sequence[str],
    left_out: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Run the commands of a page, each as it is printed, but for those that are left out."""
    for command in [*BEFORE.get(page, []), *lines]:
        if any(kind(command, table) for table in (left_out, COMPOSED, PARSED)):
            continue
        for step in steps_of(command):
            if kind(step, left_out):
                continue
            words = [place(word) for word in words_of(step)]
            code = run(step, smaller(words), monkeypatch)
            printed = capsys.readouterr()
            assert code == 0, f"{step}\n{printed.out}{printed.err}"


def smaller(words: list[str]) -> list[str]:
    """The words of a command, and behind its settings those that make it small."""
    small = kind(" ".join(words), SMALL) if len(words) > 1 else None
    settings = [i for i, word in enumerate(words) if "=" in word and not word.startswith("-")]
    end = settings[-1] + 1 if settings else len(words)  # argparse needs them side by side
    return [*words[:end], *(SMALL[small].split() if small else ()), *words[end:]]


def run(step: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    """In this process: the exit code."""
    try:
        if not step.startswith(("python train.py", "python convert.py")):
            return cli.main(words)
        script = step.split()[1]
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", [script, *words[1:]])
            runpy.run_path(script, run_name="__main__")
    except SystemExit as stopped:
        return stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
    return 0


def steps_of(command: str) -> list[str]:
    """A command, or those that make would run in its place."""
    if not command.startswith("make "):
        return [command]
    tools = Path("venv/bin")
    tools.mkdir(parents=True, exist_ok=True)
    for tool in ("python", "lra"):
        (tools / tool).write_text(f'#!/bin/sh\necho {tool} "$@"\n', encoding="utf-8")
        (tools / tool).chmod(0o755)
    # Under `make test` this is a make within a make, which would print its folder too.
    quiet = ["--no-print-directory", "VENV=venv"]
    installed = ["--old-file=venv/.installed", "--old-file=venv/.installed-run"]
    words = [*shlex.split(command), *quiet, *installed]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    return [line for line in printed.splitlines() if line.strip()]


def place(word: str) -> str:
    """Something real in the place of a name in capitals."""
    found = {
        "RUN": lambda: next(Path("runs/demo").rglob("luna/*/seed-*")),
        "FILE": _benchmark,
        "examples.txt": lambda: _written("examples.txt", "[MAX 2 9 ]\n7\n"),
        "examples.tsv": lambda: _written("examples.tsv", "text\n7\n"),
        "DIR": lambda: "runs",
        "runs/leaderboard": lambda: "runs/demo",  # a sweep's, as the demo's here
        "runs/recipe_control": lambda: "runs/demo",
    }
    return str(found[word]()) if word in found else word


def _written(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


def _benchmark() -> str:
    """What `lra bench` writes: two methods at two lengths."""
    rows = [
        BenchRow(group="g", case=case, n=n, measure="forward_seconds", values=[n * share])
        for case, share in (("luna", 1e-5), ("softmax", 2e-5))
        for n in (64, 128)
    ]
    facts = {"title": "T", "date": "today", "machine": {"device": "cpu", "threads": 1}}
    facts |= {"benchmark": "attention", "notes": []}
    numbers, _ = BenchResult(facts=facts, rows=rows).save(Path("bench/attention"))
    return str(numbers)
