"""The `lra` command: its subcommands, and the two whose words Hydra reads.

A command's module is looked up by the command's name and imported when it is called: a command does
not pay for the others, and their help pays for none.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import pkgutil
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from lra.base import disk, groups, hydras
from lra.base.errors import UserError, nearest
from lra.base.parent import end_with_first
from lra.base.parser import Parser
from lra.base.places import CONFIGS
from lra.settings.errors import guard

if TYPE_CHECKING:
    from omegaconf import DictConfig

HYDRA = {"train": CONFIGS, "convert": CONFIGS / "convert"}  # with the folder of their main config
# The commands, as the help groups them: half a line about each, and the function that gives its
# parser its arguments. Hydra reads the words of the two that have none.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "run": {
        "train": ("train an attention on a task; alone: list the choices", ""),
        "convert": ("give a trained softmax model linear attention", ""),
        "plan": ("what a run or a sweep will cost", "lra.cli:add_plan"),
        "leaderboard": (
            "the benchmark's sweep in the order of what an hour teaches",
            "lra.bench.board:add_arguments",
        ),
        "status": (
            "which runs are done, running, failed or to do",
            "lra.sweeps.status:add_arguments",
        ),
    },
    "look": {
        "list": ("every attention: complexity, parameters, paper", "lra.catalogue:add_arguments"),
        "data": (
            "prepare, verify and inspect the data of the tasks",
            "lra.data_commands:add_arguments",
        ),
        "compute": ("count parameters and FLOPs without training", "lra.cli:add_compute"),
        "table": (
            "show finished runs in tables; --write: make the tables and the page of results/",
            "lra.report.commands:add_table",
        ),
        "compare": (
            "compare two rows or runs example by example",
            "lra.report.commands:add_compare",
        ),
        "figures": (
            "draw figures of records, benchmarks, trained runs or converted models",
            "lra.figures.commands:add_arguments",
        ),
    },
    "measure": {
        "evaluate": (
            "test a trained network on a split of its data",
            "lra.results.commands:add_evaluate",
        ),
        "predict": (
            "answers of a trained network to your own examples, as JSON lines",
            "lra.results.commands:add_predict",
        ),
        "bench": ("measure time and memory of attentions, models or training", "lra.cli:add_bench"),
    },
    "extend": {
        "new": ("write the files of a new attention or task", "lra.new:add_arguments"),
        "check": ("hold a method to what its class declares", "lra.check:add_arguments"),
        "export": (
            "write a trained network, its record and a card into a folder",
            "lra.results.commands:add_export",
        ),
        "records": (
            "records of finished runs: export, import, check",
            "lra.cli:add_records",
        ),
    },
}
EXAMPLES = """\
  lra train experiment=demo attention=luna    one network in a minute
  lra table                                   what finished runs have reached
"""
MULTIRUN = ("-m", "--multirun")
DRY = "--dry"  # of lra train: the script for SLURM, and no job
# Options that Hydra reads; whatever else begins with two dashes was meant as a setting.
OPTIONS = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--info"),
    *("--shell-completion", "--config-path", "--config-name", "--config-dir"),
    "--experimental-rerun",
)


def main(argv: Sequence[str] | None = None) -> int:
    gc.set_threshold(100_000)  # by default it takes a sixth of the time in which torch is imported
    return guard(lambda: _main(list(sys.argv[1:] if argv is None else argv)))


def _main(words: list[str]) -> None:
    words, folder = groups.take_folder(words)
    with groups.searching(folder):
        if words[:1] and words[0] in HYDRA:
            start(words[0], words[1:])
        elif words[:1] == ["-sc"]:
            _complete(words)
        else:
            arguments = parse(words or ["--help"])
            arguments.run(arguments)


# ---------------------------------------------------------------------- lra train, lra convert


def start(command: str, words: Sequence[str]) -> None:
    """Run `lra train` or `lra convert` with these words; without any, print its help."""
    if not words or "--help" in words or "-h" in words:
        from lra import choices

        choices.show(command)
        return
    if os.environ.get("LOCAL_RANK", "0") != "0":  # Lightning has started this for a run
        end_with_first()
    if command == "train":
        _check_choices(words)
    if DRY in words:
        _show_script(command, words)
        return
    # Hydra composes a run, which starts when Hydra has ended; jobs of a sweep run in its hands.
    for cfg, given in _composed(command, _for_hydra(words)):
        (_train if command == "train" else _convert)(cfg, given)


def _composed(command: str, words: Sequence[str]) -> list[tuple[DictConfig, list[str]]]:
    """The config that Hydra composes of these words, and the settings among them as they were
    typed; none after a sweep, or where Hydra was only asked to show something."""
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from lra.settings import search_path
    from lra.settings.command import given_words

    begun: list[tuple[DictConfig, list[str]] | None] = []

    def task(cfg: DictConfig) -> float | None:
        if command == "convert" or HydraConfig.get().mode is RunMode.RUN:
            begun.append((cfg, given_words()))
            return None
        begun.append(None)
        from lra.sweeps import sweep

        return sweep.job(cfg)

    folder = HYDRA[command]
    application = hydra.main(config_path=str(folder), config_name=command, **hydras.of_main())
    search_path.install(folder)
    try:
        with _argv([f"lra {command}", *words]):  # as Hydra's usage names the command
            application(task)()
    except OSError as error:
        place = error.filename or "hydra.run.dir"  # a write that fails has no name
        message = disk.sentence(error, place, "choose another hydra.run.dir")
        if begun or message is None:  # before, Hydra makes its folders
            raise
        raise UserError(message) from error
    return [job for job in begun if job]


@contextlib.contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    """Hydra reads its words nowhere else."""
    typed, sys.argv = sys.argv, words
    try:
        yield
    finally:
        sys.argv = typed  # with which Lightning starts the other processes of DDP


def _show_script(command: str, words: Sequence[str]) -> None:
    """Print what `hydra/launcher=slurm` would submit."""
    from lra.sweeps.dry import show_script

    settings = [word for word in words if word not in (DRY, *MULTIRUN)]
    _for_hydra(settings)  # refuses what is worded badly
    others = [word for word in settings if word.startswith("-")]
    if others or command != "train":
        other = others[0] if others else f"lra {command}"
        raise UserError(f"{DRY} is for the settings of lra train, and not for {other}")
    show_script(settings, multirun=len(settings) < len(words) - words.count(DRY))


def _for_hydra(words: Sequence[str]) -> list[str]:
    """Put -m first, where Hydra's parser takes it, and refuse what it words badly."""
    settings = [word for word in words if word not in MULTIRUN]
    for before, word in zip(["", *settings], settings, strict=False):
        if word == "=" or not ("=" in word or word.startswith(("-", "~")) or before[:1] == "-"):
            raise UserError(f"'{word}' is not a setting: write key=value, without spaces")
        if word.startswith("--") and word.partition("=")[0] not in OPTIONS:
            raise UserError(
                f"'{word}' is not an option of this command: write key=value, without dashes"
            )
    if len(settings) == len(words):
        asked = any(word.startswith("-") for word in settings)  # to be shown something
        return ["-m", *settings] if not asked and hydras.is_sweep(settings) else settings
    if {"--cfg", "-c"} & {*settings}:
        raise UserError("--cfg shows the config of one run: leave out -m and lists of values")
    return ["-m", *settings]


def _check_choices(words: Sequence[str]) -> None:
    """Refuse two choices for one run, and a task or an attention alone, which takes hours."""
    for group in ("task", "attention"):
        choices = sorted({word for word in words if word.startswith(f"{group}=")})
        if len(choices) > 1:
            raise UserError(f"{' and '.join(choices)} are two choices for one run: write one")
    others = ("attention", "experiment", "hydra", "+", "--", "-c")
    alone = not any(word.startswith(others) for word in words)
    if alone and any(word.startswith("task=") for word in words):
        raise UserError(
            "no attention is chosen: add attention=luna, or another of `lra list`; "
            "`lra plan` with the same words says how long it takes"
        )
    where = ("task", "experiment", "protocol", "model", *others[2:])
    alone = not any(word.startswith(where) for word in words)
    if alone and any(word.startswith("attention=") for word in words):
        raise UserError(
            "no task is chosen: add experiment=demo for a minute, or task=listops for the "
            "benchmark's, which takes hours (`lra plan` says how many)"
        )


def _train(cfg: DictConfig, words: list[str]) -> None:
    from lra.settings.command import typed
    from lra.settings.compose import check_settings
    from lra.settings.remarks import remark_on
    from lra.sweeps.shard import refuse_shard

    remark_on(words)
    run = check_settings(cfg)  # before anything heavy is imported
    refuse_shard(run.shard)
    from lra.training.run import train

    train(run, typed("train", words, run.callbacks))


def _convert(cfg: DictConfig, words: list[str]) -> None:
    from lra.settings.command import typed
    from lra.training import conversion

    conversion.convert(conversion.check_conversion(cfg), typed("convert", words))


def _complete(words: Sequence[str]) -> None:
    """Shell completion: by Hydra behind `lra train` and `lra convert`, before them the names of
    the commands. The shell calls `lra -sc query=...` with the typed line in COMP_LINE."""
    line = os.environ.get("COMP_LINE", "")
    command = re.match(r"\s*(\S+)\s+(train|convert)\s+", line)
    if command is not None:
        os.environ["COMP_LINE"] = f"{command[1]} {line[command.end() :]}"
        start(command[2], words)
    elif any(word.startswith("query=") for word in words):
        print(" ".join(name for commands in COMMANDS.values() for name in commands))
    else:
        start("train", words)


# ---------------------------------------------------------------------- the other commands


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command that Hydra does not read; `run` of the result is its function,
    which takes the result."""
    command = words[0]
    places = {name: place for part in COMMANDS.values() for name, (_, place) in part.items()}
    if command in places:
        parser = Parser(prog=f"lra {command}")
        pkgutil.resolve_name(places[command])(parser)
        # Settings may stand before and behind an option, as those of lra train may.
        mixed = command in ("plan", "status", "compute", "leaderboard")
        return (parser.parse_intermixed_args if mixed else parser.parse_args)(words[1:])
    if not command.startswith("-"):
        raise UserError(f"unknown command '{command}'{nearest(command, places)}")
    return _of_all_commands().parse_args(words)


def _of_all_commands() -> argparse.ArgumentParser:
    """Give the parser of `lra --help` and `lra --version`."""
    width, lines = shutil.get_terminal_size().columns, [EXAMPLES]
    for purpose, commands in COMMANDS.items():
        listed = (f"  {name:10} {about}" for name, (about, _) in commands.items())
        wrapped = (textwrap.fill(line, width, subsequent_indent=" " * 13) for line in listed)
        lines += [f"{purpose}:", *wrapped, ""]
    parser = argparse.ArgumentParser(
        prog="lra",
        usage="lra [--config-dir DIR] command ...",
        description="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = next((d.version for d in metadata.distributions(name="luna-lra")), "not installed")
    parser.add_argument("--version", action="version", version=f"luna-lra {version}")
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        help="a folder laid out like configs/, whose files add to ours or replace them",
    )
    return parser


def add_plan(plan: argparse.ArgumentParser) -> None:
    plan.description = (
        "Measures a few training steps and evaluated batches of every distinct run of "
        "`lra train <overrides>` on this machine; prints time and memory of them all. Ctrl-C stops "
        "measuring and prints what is known by then."
    )
    plan.add_argument("overrides", nargs="*", help="as for lra train: -m attention=luna,linear")
    plan.add_argument(*MULTIRUN, action="store_true", help="a sweep, as in lra train")
    plan.add_argument(
        "--minutes",
        type=float,
        help="stop measuring after so many minutes and print what is known by then",
    )
    plan.add_argument(
        "--device",
        metavar="NAME",
        help="measure nothing: estimate for a device with known finished runs, such as h100",
    )
    plan.add_argument("--price", type=float, help="of an hour of --device, in any currency")
    plan.set_defaults(run=later("lra.bench.plan:show_plan"))


def add_compute(compute: argparse.ArgumentParser) -> None:
    compute.add_argument(
        "overrides",
        nargs="*",
        metavar="[table] overrides",
        help="settings as for lra train (task=listops attention=luna ...); after the word table "
        "they hold for the page of all tasks and attentions",
    )
    compute.add_argument("--write", action="store_true", help="write the table to results/compute")
    compute.set_defaults(run=later("lra.compute.table:main"))


def add_bench(bench: argparse.ArgumentParser) -> None:
    from lra.bench.commands import add_arguments

    add_arguments(bench, later("lra.figures.bench:draw_bench"))


def add_records(records: argparse.ArgumentParser) -> None:
    from lra.results import commands

    commands.add_records(records, later("lra.report.dataset:export_all"))


def later(place: str) -> Callable[..., Any]:
    """Give a function by its place, `module:name`, that is imported when it is called."""
    return lambda *arguments: pkgutil.resolve_name(place)(*arguments)
